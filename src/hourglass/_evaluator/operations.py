"""The operations that fibers wait for: timers, activities, children, Nexus operations, requests to other
workflows. Each operation issues its command, and settles a fixed number of turns after the event with its
result.

The number of turns is the same as in Temporal's Python SDK (see `scheduler`). There, an activity is a task that
waits for a future with `asyncio.wait`, so three turns pass between the event and the continuation of the
waiting code. Here, a small state machine, `RemoteOperation`, takes the same three turns without the four
objects that asyncio needs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from hourglass._evaluator.behaviour import Recorded
from hourglass._evaluator.commands import (
    CancelChildWorkflow,
    CancelNexusOperation,
    CancelSignalExternal,
    CancelTimer,
    Command,
    RequestCancelActivity,
    RequestCancelExternal,
    RequestCancelLocalActivity,
    ScheduleActivity,
    ScheduleLocalActivity,
    ScheduleNexusOperation,
    SignalExternalWorkflow,
    StartChildWorkflow,
    StartTimer,
)
from hourglass._evaluator.context import LiveRun
from hourglass._evaluator.events import ActivityBackedOff
from hourglass._evaluator.fibers import FiberTask, Task, require_fiber, suspend, wait_for
from hourglass._evaluator.options import CallSettings
from hourglass._evaluator.scheduler import CANCELLED, FAILED, PENDING, RESOLVED, Future
from hourglass._evaluator.specs import Payloads
from hourglass._evaluator.state import ACTIVITY, CANCEL, CHILD, NEXUS, SIGNAL, TIMER
from hourglass.converter import Failure, Payload
from hourglass.errors import ActivityError, Cancelled, NexusOperationError, RetryState, TimedOutError

R = TypeVar("R")

_NEW, _WAITING, _WAKING = range(3)


class Timer:
    """A timer. Its callback is called two turns before the waiting fiber continues."""

    __slots__ = ("callback", "fiber", "groups", "run", "seq")

    callback: Callable[[Any], object] | None

    def __init__(
        self, fiber: FiberTask[Any], duration: float, callback: Callable[[Any], object], summary: str = ""
    ) -> None:
        run = fiber.run
        self.run = run
        self.fiber = fiber
        self.callback = callback
        self.seq = run.accumulator.number(TIMER)
        note = run.converter.encode(summary) if summary else None
        command = StartTimer(self.seq, round(duration * 1e9), note)
        self.groups = run.issue(command, fiber, (TIMER, self.seq), self).event_groups

    def fired(self) -> None:
        """Schedule the callback after the timer has fired."""
        self.run.scheduler.soon(self._call_back)

    def _call_back(self, _: Any) -> None:
        if self.callback is not None:
            self.callback(None)

    def cancel(self) -> None:
        """Cancel the timer. If the timer has already fired in this activation, its callback is not called."""
        run = self.run
        self.callback = None
        if not run.dead and run.pending.pop((TIMER, self.seq), None) is not None:
            run.issue(CancelTimer(self.seq, event_groups=self.groups), self.fiber)


class RemoteOperation(Task[R]):
    """The result of remote work: an activity, a child or a Nexus operation. The result is stored encoded, and
    each read decodes a new object (I6).
    """

    __slots__ = (
        "answer",
        "answered",
        "command",
        "fiber",
        "must_cancel",
        "phase",
        "requested_seq",
        "return_type",
        "run",
        "seq",
        "woken_by_cancel",
    )

    command: Any

    def __init__(self, fiber: FiberTask[Any], return_type: Any) -> None:
        super().__init__(fiber.run.scheduler)
        self.run = fiber.run
        self.fiber = fiber
        self.return_type = return_type
        self.looked_at = False
        self.seq = 0
        self.phase = _NEW
        self.answered = PENDING
        self.answer: Payload | Failure | None = None
        self.must_cancel = False
        self.woken_by_cancel = False
        self.requested_seq = 0
        self.scheduler.ready.append((self._begin, None))

    def _begin(self, _: Any) -> None:
        if self.must_cancel:
            self.must_cancel = False
            super().cancel()
        else:
            self._wait()

    def _wait(self) -> None:
        self.phase = _WAITING
        if self.answered != PENDING:
            self.scheduler.ready.append((self._first_turn, None))

    def settle(self, outcome: int, answer: Payload | Failure | None) -> None:
        """Store the result. The waiting fiber receives it three turns later."""
        if self.phase == _NEW or self.state != PENDING:
            return  # cancelled before the first turn, or already settled: no fiber waits
        self.answered = outcome
        self.answer = answer
        self.scheduler.ready.append((self._first_turn, None))

    def _first_turn(self, _: Any) -> None:
        if self.phase == _WAITING and self.state == PENDING:
            self.phase = _WAKING
            self.scheduler.ready.append((self._second_turn, None))

    def _second_turn(self, _: Any) -> None:
        # The third turn is that of the waiting fiber, whose callback is queued when this future is settled.
        # Temporal's Python SDK takes the same three turns. One turn less would reorder commands when its
        # histories are replayed.
        cancelled = self.woken_by_cancel or self.must_cancel
        self.woken_by_cancel = self.must_cancel = False
        if not cancelled and self.answered == RESOLVED:
            self._settle(RESOLVED, None)
        elif not cancelled:
            self.fail(self.build_error())
        elif self.answered != PENDING and self.run.holds(self._cancel_beats_result()):
            super().cancel()
        else:
            self._request_cancel()
            self._wait()

    def _cancel_beats_result(self) -> Recorded:
        return self.run.behaviour.cancel_beats_child_result

    def outcome(self) -> Any:
        """Return the result, decoded to a new object."""
        if self.answer is None:
            return None
        assert isinstance(self.answer, Payload)
        run = self.run
        converter = run.converter_of(self.command) if run.contextual else run.converter
        return converter.decode(self.answer, self.return_type)

    def build_error(self) -> BaseException:
        """Return the failure as a new exception."""
        assert isinstance(self.answer, Failure)
        run = self.run
        converter = run.converter_of(self.command) if run.contextual else run.converter
        return converter.from_failure(self.answer)

    def cancel(self, source: object = None) -> bool:
        """Request the cancellation of the remote work. The cancellation type determines how long this task
        waits for the work to end.
        """
        if self.state != PENDING:
            return False
        if self.run.latched:
            self.run.raise_unavailable(self.fiber, "cancelling")
        if self.phase == _NEW:
            self._cancelled_before_it_began()
            self.must_cancel = True
        elif self.phase == _WAITING:
            self.phase = _WAKING
            self.woken_by_cancel = True
            self.scheduler.ready.append((self._second_turn, None))
        else:
            self.must_cancel = True
        return True

    def _cancelled_before_it_began(self) -> None:
        """Cancel an operation whose command has been issued, before a fiber waits for it."""
        self._request_cancel()

    def _request_cancel(self) -> None:
        if self.requested_seq != self.seq:
            self.requested_seq = self.seq
            self.run.issue(self._cancel_command(), self.fiber)

    def _cancel_command(self) -> Command:
        raise NotImplementedError


class ActivityOperation(RemoteOperation[Any]):
    """An activity, remote or local."""

    __slots__ = ("pause",)

    command: ScheduleActivity | ScheduleLocalActivity

    def __init__(
        self,
        fiber: FiberTask[Any],
        command: ScheduleActivity | ScheduleLocalActivity,
        return_type: Any,
    ) -> None:
        super().__init__(fiber, return_type)
        self.pause: Future | None = None
        self.seq = command.seq
        self.command = self.run.issue(command, fiber, (ACTIVITY, self.seq), self)

    def build_error(self) -> BaseException:
        """Return the failure as a new `ActivityError`, even if Core delivers the failure of a local activity
        unwrapped.
        """
        return activity_error(self.command, super().build_error())

    def _cancel_beats_result(self) -> Recorded:
        return self.run.behaviour.cancel_beats_activity_result

    def _cancel_command(self) -> Command:
        groups = self.command.event_groups
        if isinstance(self.command, ScheduleActivity):
            return RequestCancelActivity(self.seq, event_groups=groups)
        return RequestCancelLocalActivity(self.seq, event_groups=groups)

    def cancel(self, source: object = None) -> bool:
        """Request the activity's cancellation. During the long retry delay of a local activity, only end the
        delay.
        """
        if self.pause is not None and self.state == PENDING:
            if not self.pause.cancel():
                self.must_cancel = True  # the delay has just ended: do not start the next attempt
            return True
        return super().cancel(source)

    def back_off(self, event: ActivityBackedOff) -> None:
        """Start a timer for a local activity's long retry delay, after the usual number of turns. Schedule the
        next attempt when the timer fires.
        """
        assert isinstance(self.command, ScheduleLocalActivity)
        self.command = next_attempt(self.run, self.command, event)
        self.seq = self.command.seq
        self.answered = FAILED
        self.answer = None
        self.pause = Future(self.scheduler)
        self.scheduler.ready.append((self._pause_first_turn, event.backoff))

    def _pause_first_turn(self, backoff: float) -> None:
        self.scheduler.ready.append((self._pause_second_turn, backoff))

    def _pause_second_turn(self, backoff: float) -> None:
        if self.state != PENDING:
            return
        self.answered = PENDING
        assert self.pause is not None
        pause = self.pause
        if pause.state == CANCELLED:
            self.pause = None
            Future.cancel(self)
            return
        timer = Timer(self.fiber, backoff, pause.release)

        def again(_: Any) -> None:
            self.pause = None
            if pause.state == CANCELLED or self.must_cancel:
                timer.cancel()
                Future.cancel(self)
                return
            self.run.issue(self.command, self.fiber, (ACTIVITY, self.seq), self)
            self._wait()

        pause.add_callback(again)


class StepOperation(ActivityOperation):
    """A step: a local activity whose function is passed in the call."""

    __slots__ = ()

    def settle(self, outcome: int, answer: Payload | Failure | None) -> None:
        """Store the result, and remove the step's function, which is no longer needed."""
        drop_step(self.run, self.command.activity_id)
        super().settle(outcome, answer)


def activity_error(command: ScheduleActivity | ScheduleLocalActivity, error: BaseException) -> BaseException:
    """Return the failure of an activity as an `ActivityError`, even if Core delivers the failure unwrapped."""
    if isinstance(error, ActivityError):
        return error
    # Core wraps the timeout of a local activity in the first execution, but delivers it unwrapped in a replay.
    is_timeout = isinstance(command, ScheduleLocalActivity) and isinstance(error, TimedOutError)
    wrapped = ActivityError(
        "Local Activity timed out" if is_timeout else "Activity task failed",
        activity_type=command.activity_type,
        activity_id=command.activity_id,
        retry_state=RetryState.CANCEL_REQUESTED if is_timeout else RetryState.UNSPECIFIED,
    )
    wrapped.__cause__ = error
    return wrapped


class ChildOperation(RemoteOperation[R]):
    """The result of a child workflow. A separate future represents the child's start."""

    __slots__ = ("first_run_id", "start")

    command: StartChildWorkflow

    def __init__(self, fiber: FiberTask[Any], command: StartChildWorkflow, return_type: Any) -> None:
        super().__init__(fiber, return_type)
        self.seq = command.seq
        self.first_run_id = ""
        self.start = Future(self.scheduler)
        self.command = self.run.issue(command, fiber, (CHILD, self.seq), self)

    def _cancel_command(self) -> Command:
        return CancelChildWorkflow(self.seq, event_groups=self.command.event_groups)

    def _cancelled_before_it_began(self) -> None:
        """Do nothing, because the fiber that starts a child first waits for the child's start."""

    def _request_cancel(self) -> None:
        # Unlike that of an activity, the cancellation of a child may be requested repeatedly.
        self.run.issue(self._cancel_command(), self.fiber)

    @property
    def id(self) -> str:
        """The child's workflow id."""
        return self.command.workflow_id


class NexusOperation(RemoteOperation[R]):
    """The result of a Nexus operation. A separate future represents the operation's start."""

    __slots__ = ("start", "token")

    command: ScheduleNexusOperation

    def __init__(self, fiber: FiberTask[Any], command: ScheduleNexusOperation, return_type: Any) -> None:
        super().__init__(fiber, return_type)
        self.seq = command.seq
        self.token = ""
        self.start = Future(self.scheduler)
        self.command = self.run.issue(command, fiber, (NEXUS, self.seq), self)

    def _cancel_command(self) -> Command:
        return CancelNexusOperation(self.seq, event_groups=self.command.event_groups)

    def _cancelled_before_it_began(self) -> None:
        """Do nothing, because the fiber that starts an operation first waits for the operation's start."""

    def build_error(self) -> BaseException:
        """Return the failure as a `NexusOperationError`, with the handler's exception as its cause."""
        return nexus_error(self.command, super().build_error(), self.token)


def nexus_error(
    command: ScheduleNexusOperation, error: BaseException, token: str = ""
) -> NexusOperationError:
    """Return the error of a Nexus operation. The server wraps the handler's failure in a failure that only
    repeats the operation's names, so the wrapper is removed.
    """
    wrapped = NexusOperationError(
        f"operation {command.operation!r} of the Nexus service {command.service!r} failed: {error.__cause__ or error}",
        endpoint=command.endpoint,
        service=command.service,
        operation=command.operation,
        operation_token=token,
    )
    wrapped.__cause__ = error.__cause__ or error
    return wrapped


def start_activity(
    activity_type: str,
    arguments: Payloads,
    settings: CallSettings,
    return_type: Any,
    *,
    local: bool = False,
    headers: dict[str, Payload] | None = None,
    operation_type: type[ActivityOperation] = ActivityOperation,
) -> Task[Any]:
    """Schedule an activity and return its task."""
    fiber = require_fiber("starting activity", activity_type)
    command = activity_command(fiber.run, activity_type, arguments, settings, local=local, headers=headers)
    operation = operation_type(fiber, command, return_type)
    if fiber.scope is not None:
        fiber.scope.add(operation)
    return operation


def activity_command(
    run: LiveRun,
    activity_type: str,
    arguments: Payloads,
    settings: CallSettings,
    *,
    local: bool,
    headers: dict[str, Payload] | None,
) -> ScheduleActivity | ScheduleLocalActivity:
    """Return the command that schedules an activity, with the next number."""
    if local:
        _check_known(run, activity_type, settings)
    seq = run.accumulator.number(ACTIVITY)
    kind = ScheduleLocalActivity if local else ScheduleActivity
    return kind(
        seq,
        settings.activity_id or str(seq),
        activity_type,
        settings.spec,
        arguments,
        headers or {},
        run.converter.encode(settings.summary) if settings.summary else None,
        event_groups=settings.event_groups,
    )


def next_attempt(
    run: LiveRun, command: ScheduleLocalActivity, event: ActivityBackedOff
) -> ScheduleLocalActivity:
    """Return the command that schedules the next attempt of a local activity, with the next number."""
    seq = run.accumulator.number(ACTIVITY)
    return msgspec.structs.replace(
        command,
        seq=seq,
        activity_id=str(seq) if command.activity_id == str(command.seq) else command.activity_id,
        attempt=event.attempt,
        original_schedule_time_ns=event.original_schedule_time_ns,
    )


def _check_known(run: LiveRun, activity_type: str, settings: CallSettings) -> None:
    """Raise `UsageError`, which fails the workflow task, for a new local activity that is not registered on the
    worker.

    Steps are exempt, because their definitions are stored by run. Calls in a replay are exempt, because the
    history has recorded their activities.
    """
    check = run.settings.check_local_activity
    if check is None or run.facts.is_replaying:
        return
    steps = (run.settings.steps or {}).get(run.state.run_id, {})
    if settings.activity_id not in steps:
        check(activity_type)


def start_step(
    definition: object,
    activity_type: str,
    arguments: Payloads,
    settings: CallSettings,
    return_type: Any,
    *,
    local: bool = True,
    headers: dict[str, Payload] | None = None,
) -> Task[Any]:
    """Schedule a local activity whose `definition` is stored for the worker that executes this run."""
    run = require_fiber("starting step", activity_type).run
    step_settings = msgspec.structs.replace(settings, activity_id=keep_step(run, definition, settings))
    return start_activity(
        activity_type,
        arguments,
        step_settings,
        return_type,
        local=local,
        headers=headers,
        operation_type=StepOperation,
    )


def keep_step(run: LiveRun, definition: object, settings: CallSettings) -> str:
    """Store the definition of the next step for the worker. Return the activity id of the step."""
    # The plain number would be a default id, which changes after a long retry delay (`back_off`).
    activity_id = settings.activity_id or f"step-{run.state.next_seq.get(ACTIVITY, 0) + 1}"
    if run.settings.steps is not None:
        run.settings.steps.setdefault(run.state.run_id, {})[activity_id] = definition
    return activity_id


def drop_step(run: LiveRun, activity_id: str) -> None:
    """Remove the definition of a step that has completed."""
    if run.settings.steps is not None:
        run.settings.steps.get(run.state.run_id, {}).pop(activity_id, None)


def sleep(duration: float, summary: str = "") -> None:
    """Wait in the current fiber. A duration of 0 yields for one turn and starts no timer."""
    fiber = require_fiber("sleeping")
    if duration == 0:
        suspend(fiber, None)
        return
    future = Future(fiber.scheduler)
    timer = Timer(fiber, duration, future.release, summary)
    try:
        wait_for(future)
    finally:
        timer.cancel()  # issues no command if the timer has fired


def start_child(
    command: StartChildWorkflow, return_type: Any, kind: type[ChildOperation[Any]] = ChildOperation
) -> ChildOperation[Any]:
    """Start a child workflow and wait until it has started. `command` has no sequence number yet."""
    fiber = require_fiber("starting child workflow", command.workflow_type)
    run = fiber.run
    numbered = msgspec.structs.replace(command, seq=run.accumulator.number(CHILD))
    operation = kind(fiber, numbered, return_type)
    _wait_for_start(operation)
    return operation


def start_nexus(command: ScheduleNexusOperation, return_type: Any) -> NexusOperation[Any]:
    """Call a Nexus operation and wait until it has started. `command` has no sequence number yet."""
    fiber = require_fiber("calling Nexus operation", command.operation)
    run = fiber.run
    numbered = msgspec.structs.replace(command, seq=run.accumulator.number(NEXUS))
    operation: NexusOperation[Any] = NexusOperation(fiber, numbered, return_type)
    _wait_for_start(operation)
    return operation


def _wait_for_start(operation: ChildOperation[Any] | NexusOperation[Any]) -> None:
    fiber = operation.fiber
    if fiber.scope is not None:
        fiber.scope.add(operation)
    _wait_through_cancellation(fiber, operation.start, operation._request_cancel, reraise=True)


def signal_external(command: SignalExternalWorkflow) -> None:
    """Send a signal to another workflow and wait until it is delivered. `command` has no sequence number yet."""
    fiber = require_fiber("signalling another workflow")
    run = fiber.run
    seq = run.accumulator.number(SIGNAL)
    answer = Future(run.scheduler)
    run.issue(msgspec.structs.replace(command, seq=seq), fiber, (SIGNAL, seq), answer)
    _wait_through_cancellation(
        fiber, answer, lambda: run.issue(CancelSignalExternal(seq), fiber), reraise=False
    )


def cancel_external(workflow_id: str, run_id: str, reason: str) -> None:
    """Request the cancellation of another workflow and wait until the request is delivered."""
    fiber = require_fiber("cancelling another workflow")
    run = fiber.run
    seq = run.accumulator.number(CANCEL)
    answer = Future(run.scheduler)
    command = RequestCancelExternal(seq=seq, workflow_id=workflow_id, run_id=run_id, reason=reason)
    run.issue(command, fiber, (CANCEL, seq), answer)
    wait_for(answer)


def _wait_through_cancellation(
    fiber: FiberTask[Any], future: Future, on_cancel: Callable[[], object], *, reraise: bool
) -> None:
    """Wait for a future, in two turns. If the fiber is cancelled, call `on_cancel` to pass the request on, and
    continue to wait for the answer.
    """
    while True:
        waiter = Future(fiber.scheduler)
        future.add_callback(waiter.release)
        try:
            wait_for(waiter)
            break
        except Cancelled:
            future.remove_callback(waiter.release)
            if future.state != PENDING and fiber.run.behaviour.cancellation_survives_answer:
                # the answer has already arrived, so the request is not passed on; asyncio would lose the
                # cancellation here
                raise
            on_cancel()
            if fiber.run.behaviour.waiting_takes_request_back:
                fiber.withdraw_request()
            if reraise and fiber.run.cancel_reason is not None:
                raise
    wait_for(future)
