"""The operations that coroutines wait for: activities, children, requests to other workflows, conditions. The
counterpart of `operations` for `async def` code.

In `operations`, a small state machine delays a result by the required number of turns. Here, as in Temporal's
Python SDK, a handle is an asyncio task that waits for the result with `asyncio.wait`. The turns are therefore
asyncio's own, and `gather`, `wait` and `wait_for` accept the handle as a task. Cancelling the handle does not
end its wait. It sends a cancellation request to the activity or workflow, and the response ends the wait.

Commands are issued in the same order as in temporalio, even if a cancellation coincides with a result (flags 1
and 2 of `behaviour`), so that histories are interchangeable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec

from hourglass._evaluator.commands import (
    CancelChildWorkflow,
    CancelSignalExternal,
    RequestCancelActivity,
    RequestCancelExternal,
    RequestCancelLocalActivity,
    ScheduleActivity,
    ScheduleLocalActivity,
    SignalExternalWorkflow,
    StartChildWorkflow,
)
from hourglass._evaluator.context import LiveRun
from hourglass._evaluator.event_loop import Awaited, timer_summary
from hourglass._evaluator.events import ActivityBackedOff
from hourglass._evaluator.fibers import require_fiber
from hourglass._evaluator.operations import activity_command, activity_error, next_attempt
from hourglass._evaluator.options import CallSettings
from hourglass._evaluator.scheduler import RESOLVED
from hourglass._evaluator.specs import Payloads
from hourglass._evaluator.state import ACTIVITY, CANCEL, CHILD, SIGNAL
from hourglass.converter import Failure, Payload
from hourglass.errors import ActivityError, ApplicationError

R = TypeVar("R")


class _PauseError(BaseException):
    """Raised when a local activity requests a long delay before its next attempt."""


class ActivityHandle(asyncio.Task[R], Generic[R]):
    """A handle of a started activity: an asyncio task with the activity's result."""

    def __init__(
        self, run: LiveRun, command: ScheduleActivity | ScheduleLocalActivity, return_type: Any
    ) -> None:
        super().__init__(self._follow(), loop=run.loop, name=f"activity {command.activity_type}")
        self._run = run
        self._command = command
        self._return_type = return_type
        self._answer: asyncio.Future[Any] = run.loop.create_future()
        self._backoff = 0.0
        self._started = False
        self._requested_seq = 0
        run.loop.register_task(self)
        self._schedule()

    def _schedule(self) -> None:
        seq = self._command.seq
        self._command = self._run.issue(self._command, self._run.loop.fiber, (ACTIVITY, seq), self)

    async def _follow(self) -> R:
        self._started = True
        run = self._run
        while True:
            outcome, answer = await _wait_for_answer(run, self._answer, self._request_cancel, activity=True)
            if outcome is _PauseError:
                await sleep(self._backoff)
                self._schedule()
            elif outcome == RESOLVED:
                converter = run.converter_of(self._command) if run.contextual else run.converter
                value: R = None if answer is None else converter.decode(answer, self._return_type)  # type: ignore[assignment]
                return value
            else:
                converter = run.converter_of(self._command) if run.contextual else run.converter
                raise self._error(converter.from_failure(answer))

    def _error(self, failure: BaseException) -> BaseException:
        return activity_error(self._command, failure)

    def settle(self, outcome: int, answer: Payload | Failure | None) -> None:
        """Store the result."""
        if not self._answer.done():
            self._answer.set_result((outcome, answer))

    def back_off(self, event: ActivityBackedOff) -> None:
        """Start a timer for a local activity's long retry delay, and schedule the next attempt afterwards under
        a new sequence number.
        """
        command = self._command
        assert isinstance(command, ScheduleLocalActivity)
        self._command = next_attempt(self._run, command, event)
        self._backoff = event.backoff
        self._answer.set_result((_PauseError, None))
        self._answer = self._run.loop.create_future()

    def cancel(self, msg: Any | None = None) -> bool:
        """Request the activity's cancellation. The cancellation type determines how long the task waits for the
        activity.
        """
        run = self._run
        if not run.dead:
            if run.latched:
                run.raise_unavailable(run.loop.fiber, "cancelling an activity")
            if not self._started and not self.done():
                # This task's coroutine will never run, but its command has been issued, so the activity is
                # cancelled here.
                self._request_cancel("")
        return super().cancel(msg)

    def _request_cancel(self, _: str) -> None:
        command = self._command
        if self._requested_seq != command.seq:
            self._requested_seq = command.seq
            is_local = isinstance(command, ScheduleLocalActivity)
            kind = RequestCancelLocalActivity if is_local else RequestCancelActivity
            self._run.issue(kind(command.seq, event_groups=command.event_groups), self._run.loop.fiber)


class LocalActivityHandle(ActivityHandle[R]):
    """A handle of a local activity. As in temporalio, awaiting it raises the activity's own exception. The
    handle of another activity raises an `ActivityError` with that exception as its cause.
    """

    def _error(self, failure: BaseException) -> BaseException:
        raised = failure.__cause__ if isinstance(failure, ActivityError) else failure
        return raised if isinstance(raised, ApplicationError) else super()._error(failure)


class ChildHandle(asyncio.Task[R], Generic[R]):
    """A handle of a child workflow: an asyncio task with the child's result. A separate future represents the
    child's start.
    """

    def __init__(self, run: LiveRun, command: StartChildWorkflow, return_type: Any) -> None:
        super().__init__(self._follow(), loop=run.loop, name=f"child {command.workflow_type}")
        self._run = run
        self._return_type = return_type
        self._answer: asyncio.Future[Any] = run.loop.create_future()
        self.start = Awaited(run.loop)
        self.first_run_id = ""
        run.loop.register_task(self)
        self._command = run.issue(command, run.loop.fiber, (CHILD, command.seq), self)

    @property
    def id(self) -> str:
        """The child's workflow id."""
        return self._command.workflow_id

    @property
    def first_execution_run_id(self) -> str | None:
        """The run id of the child's first run."""
        return self.first_run_id or None

    async def _follow(self) -> R:
        run = self._run
        outcome, answer = await _wait_for_answer(run, self._answer, self._request_cancel)
        converter = run.converter_of_workflow(self._command.workflow_id)
        if outcome == RESOLVED:
            value: R = None if answer is None else converter.decode(answer, self._return_type)  # type: ignore[assignment]
            return value
        raise converter.from_failure(answer)

    async def started(self) -> None:
        """Wait until the child has started."""
        await _wait_for_answer(self._run, self.start.future, self._request_cancel, reraise=True)

    def settle(self, outcome: int, answer: Payload | Failure | None) -> None:
        """Store the result."""
        if not self._answer.done():
            self._answer.set_result((outcome, answer))

    def _request_cancel(self, reason: str) -> None:
        start_command = self._command
        command = CancelChildWorkflow(start_command.seq, reason, event_groups=start_command.event_groups)
        self._run.issue(command, self._run.loop.fiber)


async def _wait_for_answer(
    run: LiveRun,
    future: asyncio.Future[Any],
    on_cancel: Callable[[str], object],
    *,
    activity: bool = False,
    reraise: bool = False,
) -> Any:
    """Wait for the answer of an activity or another workflow. If the waiting task is cancelled, call
    `on_cancel` to pass the request on, and continue to wait for the answer.
    """
    while True:
        try:
            await asyncio.wait([future])
            return future.result()
        except asyncio.CancelledError as error:
            behaviour = run.behaviour
            if future.done() and run.holds(
                behaviour.cancel_beats_activity_result
                if activity
                else behaviour.cancellation_beats_awaited_answer
            ):
                raise
            on_cancel(error.args[0] if error.args and isinstance(error.args[0], str) else "")
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()  # the request has been handled: `asyncio.timeout` counts open requests
            if reraise and run.cancel_reason is not None:
                raise


def start_activity(
    activity_type: str,
    arguments: Payloads,
    settings: CallSettings,
    return_type: Any,
    *,
    local: bool = False,
    headers: dict[str, Payload] | None = None,
    handle_type: type[ActivityHandle[Any]] = ActivityHandle,
) -> ActivityHandle[Any]:
    """Schedule an activity and return its task."""
    run = require_fiber("starting activity", activity_type).run
    command = activity_command(run, activity_type, arguments, settings, local=local, headers=headers)
    return handle_type(run, command, return_type)


start_local_activity = partial(start_activity, handle_type=LocalActivityHandle)


async def start_child(
    command: StartChildWorkflow, return_type: Any, kind: type[ChildHandle[Any]]
) -> ChildHandle[Any]:
    """Start a child workflow and wait until it has started. `command` has no sequence number yet."""
    run = require_fiber("starting child workflow", command.workflow_type).run
    numbered = msgspec.structs.replace(command, seq=run.accumulator.number(CHILD))
    handle = kind(run, numbered, return_type)
    await handle.started()
    return handle


async def signal_external(command: SignalExternalWorkflow) -> None:
    """Send a signal to another workflow and wait until it is delivered. `command` has no sequence number yet."""
    run = require_fiber("signalling another workflow").run
    fiber, seq = run.loop.fiber, run.accumulator.number(SIGNAL)
    answer = Awaited(run.loop)
    run.issue(msgspec.structs.replace(command, seq=seq), fiber, (SIGNAL, seq), answer)
    await _wait_for_answer(run, answer.future, lambda _: run.issue(CancelSignalExternal(seq), fiber))


async def cancel_external(workflow_id: str, run_id: str, reason: str) -> None:
    """Request the cancellation of another workflow and wait until the request is delivered."""
    run = require_fiber("cancelling another workflow").run
    seq = run.accumulator.number(CANCEL)
    answer = Awaited(run.loop)
    command = RequestCancelExternal(seq=seq, workflow_id=workflow_id, run_id=run_id, reason=reason)
    run.issue(command, run.loop.fiber, (CANCEL, seq), answer)
    await answer.future


async def sleep(duration: float, summary: str = "") -> None:
    """Wait for a duration in workflow time. Unlike with `asyncio.sleep(0)`, a duration of 0 also starts a
    timer.
    """
    loop = require_fiber("sleeping").run.loop
    future = loop.create_future()
    token = timer_summary.set(summary)
    try:
        timer = loop.call_later(duration, _release, future)
    finally:
        timer_summary.reset(token)
    future.add_done_callback(lambda done: timer.cancel() if done.cancelled() else None)
    await future


def _release(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def wait_condition(holds: Callable[[], object], timeout: float | None, summary: str = "") -> None:
    """Wait until `holds` returns a true value. Raise `TimeoutError` after `timeout`."""
    run = require_fiber("workflow.wait_condition").run
    was_cancelled = run.cancel_reason is not None
    condition = Awaited(run.loop)
    run.scheduler.conditions.append((holds, condition))
    token = timer_summary.set(summary)
    try:
        await asyncio.wait_for(condition.future, timeout)
    except TimeoutError:
        if not _cancelled_meanwhile(run, was_cancelled):
            raise
    finally:
        timer_summary.reset(token)
    if _cancelled_meanwhile(run, was_cancelled):
        raise asyncio.CancelledError


def _cancelled_meanwhile(run: LiveRun, before: bool) -> bool:
    return run.behaviour.cancellation_beats_condition and not before and run.cancel_reason is not None
