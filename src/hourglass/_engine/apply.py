"""One handler for each kind of event: what it does to a run. A table, so that a test can walk it (I8).

Patches and seeds are not in it: they make no fiber ready, and are taken in before or between the others (`prepare`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hourglass._engine.context import LiveRun
from hourglass._engine.events import (
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
    ExternalSignalResolved,
    PatchNoticed,
    RunStarted,
    SeedChanged,
    SignalReceived,
    TimerFired,
    UpdateReceived,
)
from hourglass._engine.operations import ActivityOperation, ChildOperation, Timer
from hourglass._engine.scheduler import FAILED, PENDING, RESOLVED
from hourglass._engine.state import ACTIVITY, CANCEL, CHILD, SIGNAL, TIMER
from hourglass.converter import Failure
from hourglass.errors import NondeterminismError, WorkflowAlreadyStartedError


def prepare(live: LiveRun, event: AnyEvent) -> None:
    """Take in a patch or a seed: it holds for whatever runs from here on."""
    if isinstance(event, PatchNoticed):
        live.patches |= {event.patch_id}
    elif isinstance(event, SeedChanged):
        live.reseed(event.seed)


def late_seeds(live: LiveRun, first: list[AnyEvent]) -> tuple[SeedChanged, ...]:
    """The seeds that take effect only when the messages have run."""
    seeds = tuple([event for event in first if isinstance(event, SeedChanged)])
    return seeds if seeds and live.holds(live.behaviour.seeds_follow_messages) else ()


def _run_started(live: LiveRun, _: RunStarted) -> None:
    assert live.main is not None
    live.main.start_soon()


def _timer_fired(live: LiveRun, event: TimerFired) -> None:
    # A timer that was cancelled earlier in this activation, by a signal's handler, is not there any more.
    timer: Timer | None = live.resolve((TIMER, event.seq), None)
    if timer is not None:
        timer.fired()


def _activity(live: LiveRun, seq: int, result: Any) -> ActivityOperation:
    operation: ActivityOperation | None = live.resolve((ACTIVITY, seq), result)
    if operation is None:
        raise _unknown("activity", seq)
    return operation


def _activity_completed(live: LiveRun, event: ActivityCompleted) -> None:
    _activity(live, event.seq, event.result).settle(RESOLVED, event.result)


def _activity_failed(live: LiveRun, event: ActivityFailed | ActivityCancelled) -> None:
    _activity(live, event.seq, event.failure).settle(FAILED, event.failure)


def _activity_backed_off(live: LiveRun, event: ActivityBackedOff) -> None:
    _activity(live, event.seq, None).back_off(event)


def _child_started(live: LiveRun, event: ChildStarted) -> None:
    child: ChildOperation[Any] | None = live.pending.get((CHILD, event.seq))
    if child is None:
        raise _unknown("child workflow", event.seq)
    child.first_run_id = event.run_id
    child.start.resolve()


def _child(live: LiveRun, seq: int, result: Any) -> ChildOperation[Any]:
    child: ChildOperation[Any] | None = live.resolve((CHILD, seq), result)
    if child is None:
        raise _unknown("child workflow", seq)
    return child


def _child_start_failed(live: LiveRun, event: ChildStartFailed) -> None:
    child = _child(live, event.seq, None)
    # A run that lets it out fails with this message: histories of temporalio hold temporalio's.
    ours = f"child workflow {event.workflow_id!r} is running already"
    child.start.fail(
        WorkflowAlreadyStartedError(
            ours if live.behaviour.taken_child_ids_are_named else "Workflow execution already started",
            workflow_id=event.workflow_id,
            workflow_type=event.workflow_type,
        )
    )
    child.settle(RESOLVED, None)


def _child_start_cancelled(live: LiveRun, event: ChildStartCancelled) -> None:
    child = _child(live, event.seq, event.failure)
    child.start.fail(live.converter.from_failure(event.failure))
    child.settle(RESOLVED, None)


def _child_completed(live: LiveRun, event: ChildCompleted) -> None:
    _child(live, event.seq, event.result).settle(RESOLVED, event.result)


def _child_failed(live: LiveRun, event: ChildFailed | ChildCancelled) -> None:
    _child(live, event.seq, event.failure).settle(FAILED, event.failure)


def _answer(live: LiveRun, key: tuple[str, int], what: str, failure: Failure | None) -> None:
    answer = live.resolve(key, failure)
    if answer is None:
        raise _unknown(what, key[1])
    if answer.future.state != PENDING:
        return
    if failure is None:
        answer.future.resolve()
    else:
        answer.future.fail(live.converter.from_failure(failure))


def _external_signal_resolved(live: LiveRun, event: ExternalSignalResolved) -> None:
    _answer(live, (SIGNAL, event.seq), "signal to another workflow", event.failure)


def _external_cancel_resolved(live: LiveRun, event: ExternalCancelResolved) -> None:
    _answer(live, (CANCEL, event.seq), "cancel request to another workflow", event.failure)


def _signal_received(live: LiveRun, event: SignalReceived) -> None:
    live.handlers.signal(event)


def _update_received(live: LiveRun, event: UpdateReceived) -> None:
    live.handlers.update(event)


def _cancel_requested(live: LiveRun, event: CancelRequested) -> None:
    live.cancel_reason = event.reason
    # A turn later, so that a body that has not begun yet gets the chance to see it.
    if live.main is not None:
        live.scheduler.soon(lambda _: live.main.cancel() if live.main is not None else None)


def _unknown(what: str, seq: int) -> NondeterminismError:
    return NondeterminismError(
        f"the history resolves {what} number {seq}, which the workflow did not ask for: its code has changed",
        expected=f"{what} number {seq}",
        produced="nothing of that number",
    )


APPLY: dict[type[Event], Callable[[LiveRun, Any], None]] = {
    RunStarted: _run_started,
    TimerFired: _timer_fired,
    ActivityCompleted: _activity_completed,
    ActivityFailed: _activity_failed,
    ActivityCancelled: _activity_failed,
    ActivityBackedOff: _activity_backed_off,
    ChildStarted: _child_started,
    ChildStartFailed: _child_start_failed,
    ChildStartCancelled: _child_start_cancelled,
    ChildCompleted: _child_completed,
    ChildFailed: _child_failed,
    ChildCancelled: _child_failed,
    ExternalSignalResolved: _external_signal_resolved,
    ExternalCancelResolved: _external_cancel_resolved,
    SignalReceived: _signal_received,
    UpdateReceived: _update_received,
    CancelRequested: _cancel_requested,
}
