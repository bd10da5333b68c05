"""The start and the end of a run, and a handler for each kind of event. The handlers are in a table, so that
a test can check its completeness (I8).

Patches and seeds are not in the table: they wake no fiber, and are applied before or between the other events
(`prepare`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any

from hourglass._evaluator.call_sites import Site, raised_at, returned_at
from hourglass._evaluator.commands import CancelRun, Command, CompleteRun, FailRun
from hourglass._evaluator.context import LiveRun
from hourglass._evaluator.events import (
    ActivityBackedOff,
    ActivityCancelled,
    ActivityCompleted,
    ActivityFailed,
    AnyEvent,
    CancelRequested,
    ChildCancelled,
    ChildCompleted,
    ChildFailed,
    ChildStartCancelled,
    ChildStarted,
    ChildStartFailed,
    Event,
    ExternalCancelResolved,
    ExternalResolved,
    ExternalSignalResolved,
    FailureEvent,
    NexusCompleted,
    NexusFailed,
    NexusStarted,
    NexusStartFailed,
    PatchNoticed,
    ResultEvent,
    RunStarted,
    SeedChanged,
    SignalReceived,
    TimerFired,
    UpdateReceived,
)
from hourglass._evaluator.fibers import Dropped, FiberTask, current_fiber, error_of, is_cancellation, watched
from hourglass._evaluator.interception import chain
from hourglass._evaluator.messages import (
    ContinueAsNewError,
    HandlerFiber,
    await_call,
    is_failure,
    parked,
    run_body,
)
from hourglass._evaluator.operations import Timer, nexus_error
from hourglass._evaluator.scheduler import FAILED, PENDING, RESOLVED
from hourglass._evaluator.state import ACTIVITY, CANCEL, CHILD, NEXUS, SIGNAL, TIMER
from hourglass.errors import (
    Cancelled,
    CancelledError,
    InternalError,
    InvalidVersioningOverrideError,
    NondeterminismError,
    PayloadError,
    TaskCancelledError,
    UsageError,
    WorkflowAlreadyStartedError,
)


def start(live: LiveRun, events: list[AnyEvent]) -> None:
    """Start a run: store its type and input, create its workflow object, and create the fiber of its body. The
    body does not run yet.
    """
    started = next((event for event in events if isinstance(event, RunStarted)), None)
    if started is None:
        raise InternalError("received an activation for a run that has not been started")
    live.started = started
    live.belongs_to(started)
    live.begun_ns = live.facts.timestamp_ns
    state = live.state
    state.workflow_type = started.workflow_type
    if live.settings.interceptors:
        with live.read_only_block("the factory of an interceptor"):
            live.inbound, live.outbound = watched(chain, live.settings.interceptors)
    definition = live.definition
    try:
        arguments = definition.arguments(live.converter, started.arguments)
    except (PayloadError, UsageError) as error:
        if not is_failure(live, error):
            raise
        live.main = RejectedFiber(live, error)
        return
    if definition.is_class:
        obj = _build_object(live, arguments if definition.init_takes_arguments else [])
        live.handlers.bind_object(obj)
        arguments = [obj, *arguments]
        if definition.config is not None:
            with live.read_only_block("@workflow.dynamic_config"):
                live.definition = watched(definition.configured, obj)

    live.main = MainTask(live, arguments) if definition.is_async else MainFiber(live, arguments)


class MainFiber(HandlerFiber):
    """The fiber of the workflow's body. A class of its own, because closures would take half a KiB more memory
    in each waiting run.
    """

    __slots__ = ("arguments",)

    def __init__(self, live: LiveRun, arguments: list[Any]) -> None:
        super().__init__(live, (), "workflow", self._main)
        self.arguments = arguments

    def _main(self) -> None:
        run_top_level(self.run, self._complete)

    def _complete(self) -> None:
        live = self.run
        if live.inbound is None:
            value = _call(live.definition.run, self.arguments)
        else:
            value = run_body(live, live.inbound, self.arguments)
        at = returned_at(self, live.definition.run) if live.sites is not None else None
        result = CompleteRun(live.converter.encode(value))
        if live.closing is not None:
            live.closing()
        live.issue(result, self, at=at)


class MainTask:
    """The body of an `async def` workflow: a task on the run's event loop. The task starts one turn after the
    run.
    """

    __slots__ = ("arguments", "run", "task")

    def __init__(self, live: LiveRun, arguments: list[Any]) -> None:
        self.run = live
        self.arguments = arguments
        self.task: Any = None

    def start_soon(self) -> None:
        """Schedule the start of the body for the next free turn."""
        loop = self.run.loop
        self.task = loop.create_task(await_top_level(self.run, self._complete()), name="workflow")

    async def _complete(self) -> None:
        live = self.run
        arguments, self.arguments = self.arguments, []
        call = (
            functools.partial(_call, live.definition.run, arguments)
            if live.inbound is None
            else functools.partial(run_body, live, live.inbound, arguments)
        )
        value, at = await await_call(live, call)
        await _await_end(live, CompleteRun(live.converter.encode(value)), at)

    def cancel(self) -> bool:
        """Request the cancellation of the body: `asyncio.CancelledError` is raised at its current await."""
        return self.task is not None and bool(self.task.cancel())

    def frames(self) -> list[FrameType]:
        """Return the frames of the body, the innermost first."""
        return [] if self.task is None else self.run.loop.frames_of(self.task)


class RejectedFiber(HandlerFiber):
    """A replacement for the body of a run that fails because its arguments are invalid."""

    __slots__ = ("error",)

    def __init__(self, live: LiveRun, error: Exception) -> None:
        super().__init__(live, (), "workflow", self._main)
        self.error = error

    def _main(self) -> None:
        run_top_level(self.run, self._reject)

    def _reject(self) -> None:
        raise self.error


def _call(body: Callable[..., Any], arguments: list[Any]) -> Any:
    """Call the body. Up to three arguments are passed explicitly, because a call with `*` uses C stack, and
    every waiting fiber keeps its stack in memory.
    """
    match arguments:
        case []:
            return body()
        case [first]:
            return body(first)
        case [first, second]:
            return body(first, second)
        case [first, second, third]:
            return body(first, second, third)
        case _:
            return body(*arguments)


def _build_object(live: LiveRun, arguments: list[Any]) -> Any:
    """Call the constructor of the workflow class. The constructor may read facts and register handlers, but
    must not wait.
    """
    if live.definition.is_async:  # in a fiber of the event loop, where asyncio objects can be created
        return live.loop.fiber.call(functools.partial(live.definition.target, *arguments))
    fiber: FiberTask[Any] = FiberTask(
        live, ("init",), f"{live.definition.name}.__init__", live.definition.target, *arguments
    )
    fiber.run_at_once()
    if fiber.state != RESOLVED:
        raise error_of(fiber)
    return fiber.value


def run_top_level(live: LiveRun, call: Callable[[], None]) -> None:
    """Run the body or a signal handler. An exception raised by this code determines how the run ends."""
    try:
        call()
    except (Exception, Cancelled, ContinueAsNewError) as error:
        if live.dead:
            raise
        fiber = current_fiber()
        assert fiber is not None
        at = raised_at(error) if live.sites is not None else None
        command = _last_command(live, error)
        if command is not None:
            if live.closing is not None:
                live.closing()
            live.issue(command, fiber, at=at)


async def await_top_level(live: LiveRun, coroutine: Coroutine[Any, Any, None]) -> None:
    """Await the body or a signal handler. An exception raised by this code determines how the run ends."""
    try:
        await live.loop.await_translated(coroutine)
    except (Exception, Cancelled, ContinueAsNewError) as error:
        if live.dead:
            raise
        at = raised_at(error) if live.sites is not None else None
        command = _last_command(live, error)
        if command is not None:
            await _await_end(live, command, at)
    except (GeneratorExit, Dropped):
        raise
    except BaseException as error:
        live.error = parked("a coroutine", error)


def _last_command(live: LiveRun, error: BaseException) -> Command | None:
    """Return the run's last command for an exception raised by the body or a signal handler. If the exception
    indicates a bug, store it in `live.error` and return None.
    """
    if isinstance(error, ContinueAsNewError):
        command: Command = error.command
        return command
    if live.cancel_reason is not None and is_cancellation(error):
        return CancelRun()
    if isinstance(error, Cancelled) or (
        isinstance(error, TaskCancelledError) and live.behaviour.other_tasks_cancellation_ends_run
    ):
        # asyncio, and therefore a run of temporalio, does not distinguish the cancellation of another task from
        # that of the current one.
        failed = CancelledError("the workflow was cancelled by its own code")
        return FailRun(live.converter.to_failure(failed))
    if is_failure(live, error):
        live.let_out = error
        return FailRun(live.converter.to_failure(error))
    live.error = error
    return None


async def _await_end(live: LiveRun, command: Command, at: Site | None) -> None:
    """Issue the run's last command. Before that, run the `closing` callback in a separate fiber, because it is
    plain code that waits.
    """
    fiber = live.loop.fiber
    if live.closing is not None:
        last: FiberTask[None] = FiberTask(live, fiber.next_child_path(), "closing", live.closing)
        last.start_soon()
        await last
    live.issue(command, fiber, at=at)


def prepare(live: LiveRun, event: AnyEvent) -> None:
    """Apply a patch or a seed. It affects all code that runs afterwards."""
    if isinstance(event, PatchNoticed):
        live.patches |= {event.patch_id}
    elif isinstance(event, SeedChanged):
        live.reseed(event.seed)


def late_seeds(live: LiveRun, first: list[AnyEvent]) -> tuple[SeedChanged, ...]:
    """Return the new seeds that take effect only after the messages have been handled."""
    seeds = tuple([event for event in first if isinstance(event, SeedChanged)])
    return seeds if live.behaviour.seeds_follow_messages else ()


def _run_started(live: LiveRun, _: RunStarted) -> None:
    assert live.main is not None
    live.main.start_soon()


def _timer_fired(live: LiveRun, event: TimerFired) -> None:
    # A signal handler may have cancelled the timer earlier in this activation.
    timer: Timer | None = live.pending.pop((TIMER, event.seq), None)
    if timer is not None:
        timer.fired()


_WORDS = {
    ACTIVITY: "activity",
    CHILD: "child workflow",
    NEXUS: "Nexus operation",
    SIGNAL: "signal to another workflow",
    CANCEL: "cancel request to another workflow",
}


def _take(live: LiveRun, kind: str, seq: int) -> Any:
    """Return the operation that waits for this outcome. It is no longer pending."""
    operation = live.pending.pop((kind, seq), None)
    if operation is None:
        raise _unknown(kind, seq)
    return operation


def _result_handler(kind: str) -> Callable[[LiveRun, Any], None]:
    def apply(live: LiveRun, event: ResultEvent) -> None:
        _take(live, kind, event.seq).settle(RESOLVED, event.result)

    return apply


def _failure_handler(kind: str) -> Callable[[LiveRun, Any], None]:
    def apply(live: LiveRun, event: FailureEvent) -> None:
        _take(live, kind, event.seq).settle(FAILED, event.failure)

    return apply


def _activity_backed_off(live: LiveRun, event: ActivityBackedOff) -> None:
    _take(live, ACTIVITY, event.seq).back_off(event)


def _started(live: LiveRun, kind: str, seq: int) -> Any:
    operation = live.pending.get((kind, seq))
    if operation is None:
        raise _unknown(kind, seq)
    operation.start.resolve()
    return operation


def _child_started(live: LiveRun, event: ChildStarted) -> None:
    _started(live, CHILD, event.seq).first_run_id = event.run_id


def _nexus_started(live: LiveRun, event: NexusStarted) -> None:
    _started(live, NEXUS, event.seq).token = event.token


def _child_start_failed(live: LiveRun, event: ChildStartFailed) -> None:
    child = _take(live, CHILD, event.seq)
    if event.invalid_override:
        child.start.fail(InvalidVersioningOverrideError("Invalid versioning override"))
        child.settle(RESOLVED, None)
        return
    # A run that does not catch this error fails with its message, and histories of temporalio contain
    # temporalio's message.
    ours = f"child workflow {event.workflow_id!r} is already running"
    child.start.fail(
        WorkflowAlreadyStartedError(
            ours if live.behaviour.taken_child_ids_are_named else "Workflow execution already started",
            workflow_id=event.workflow_id,
            workflow_type=event.workflow_type,
        )
    )
    child.settle(RESOLVED, None)


def _child_start_cancelled(live: LiveRun, event: ChildStartCancelled) -> None:
    child = _take(live, CHILD, event.seq)
    child.start.fail(live.converter.from_failure(event.failure))
    child.settle(RESOLVED, None)


def _nexus_start_failed(live: LiveRun, event: NexusStartFailed) -> None:
    operation = _take(live, NEXUS, event.seq)
    operation.start.fail(nexus_error(operation.command, live.converter.from_failure(event.failure)))


def _answer_handler(kind: str) -> Callable[[LiveRun, Any], None]:
    def apply(live: LiveRun, event: ExternalResolved) -> None:
        answer = _take(live, kind, event.seq)
        if answer.state != PENDING:
            return
        if event.failure is None:
            answer.resolve()
        else:
            answer.fail(live.converter.from_failure(event.failure))

    return apply


def _signal_received(live: LiveRun, event: SignalReceived) -> None:
    live.handlers.signal(event)


def _update_received(live: LiveRun, event: UpdateReceived) -> None:
    live.handlers.update(event)


def _cancel_requested(live: LiveRun, event: CancelRequested) -> None:
    live.cancel_reason = event.reason
    # One turn later, so that a body that has not started yet can see the request.
    if live.main is not None:
        live.scheduler.soon(lambda _: live.main.cancel() if live.main is not None else None)


def _unknown(kind: str, seq: int) -> NondeterminismError:
    expected = f"{_WORDS[kind]} number {seq}"
    return NondeterminismError(
        f"the history contains the outcome of {expected}, which the workflow code did not start: the code has changed",
        expected=expected,
        produced="no such command",
    )


APPLY: dict[type[Event], Callable[[LiveRun, Any], None]] = {
    RunStarted: _run_started,
    TimerFired: _timer_fired,
    ActivityCompleted: _result_handler(ACTIVITY),
    ActivityFailed: _failure_handler(ACTIVITY),
    ActivityCancelled: _failure_handler(ACTIVITY),
    ActivityBackedOff: _activity_backed_off,
    ChildStarted: _child_started,
    ChildStartFailed: _child_start_failed,
    ChildStartCancelled: _child_start_cancelled,
    ChildCompleted: _result_handler(CHILD),
    ChildFailed: _failure_handler(CHILD),
    ChildCancelled: _failure_handler(CHILD),
    NexusStarted: _nexus_started,
    NexusStartFailed: _nexus_start_failed,
    NexusCompleted: _result_handler(NEXUS),
    NexusFailed: _failure_handler(NEXUS),
    ExternalSignalResolved: _answer_handler(SIGNAL),
    ExternalCancelResolved: _answer_handler(CANCEL),
    SignalReceived: _signal_received,
    UpdateReceived: _update_received,
    CancelRequested: _cancel_requested,
}
