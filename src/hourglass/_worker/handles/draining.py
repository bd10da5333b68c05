"""The drain of a handle: executes the steps from `life.next_step` until the handle is closed or abandoned.

A drain needs only the tables, so it continues if the holder that began it dies, and can be resumed from any point.
Invariants: `initiate_shutdown` is always called first. Every item that still arrives is answered. The handle is
finalized once, when nothing is in progress. A failure never keeps a handle from being closed or abandoned.

Items that arrive during the drain are answered as failed, so that another handle receives them. There is one exception:
the result of a local activity counts only in the workflow task that it belongs to, which only this worker has. As long
as activities may finish, the run therefore continues on this handle, including further local activities. If the drain
has to stop a local activity, it fails the workflow task, and another handle starts the task from its beginning.
"""

from __future__ import annotations

import asyncio

from hourglass._contract.handle import ActivityCancel, ActivityItem, ActivityTask
from hourglass._evaluator.events import (
    Activation,
    ActivityBackedOff,
    ActivityCancelled,
    ActivityCompleted,
    ActivityFailed,
    is_eviction,
)
from hourglass._worker.handles.handles import Drain, HandleRecord, HandleTables, logger, notify
from hourglass._worker.handles.inbox import OURS
from hourglass._worker.handles.life import (
    Deadlines,
    DrainStep,
    DrainView,
    HandleSignal,
    HandleState,
    next_step,
)
from hourglass._worker.handles.sending import fail_attempt, fail_run

_ENDED = "the worker's handle ended before the task was dispatched"
_UNFINISHED = "the worker's handle ended before the task was completed"
_LOCAL_ENDS = (ActivityCompleted, ActivityFailed, ActivityCancelled, ActivityBackedOff)


def begin_drain(tables: HandleTables, record: HandleRecord, signal: HandleSignal) -> None:
    """Stop receiving new work immediately, and drain the handle in the background. If the function is called again, the
    earlier deadlines apply.

    With `RECYCLED` the worker keeps running, so its activities may finish. Otherwise the activities have the graceful
    period to finish.
    """
    record.stop_waiting()
    now = asyncio.get_running_loop().time()
    graceful = None if signal is HandleSignal.RECYCLED else record.config.graceful_shutdown
    deadlines = Deadlines.after(now, tables.limits, graceful)
    if record.drain is None:
        record.apply_signal(signal)
        record.drain = Drain(deadlines, now)
    else:
        record.drain.deadlines = record.drain.deadlines.sooner(deadlines)
    if record.state is HandleState.DRAINING:
        _shut(record)
    # The poll loops see that the registration has ended; the drain itself handles the items that still
    # arrive.
    record.detach()
    record.changed.notify_all()
    drive(tables, record, record.drain)


def drive(tables: HandleTables, record: HandleRecord, drain: Drain) -> None:
    """Ensure that a task is draining this handle: an earlier task may have died."""
    if not record.state.over and (drain.task is None or drain.task.done()):
        drain.task = tables.spawn(_drive(tables, record, drain))


def _shut(record: HandleRecord) -> None:
    try:
        record.handle.initiate_shutdown()
    except OURS:
        raise
    except BaseException as error:
        logger.error("shutting down %r failed: %s", record, type(error).__name__)


async def _drive(tables: HandleTables, record: HandleRecord, drain: Drain) -> None:
    try:
        while record.state is HandleState.DRAINING:
            await _step(tables, record, drain)
        if record.state is HandleState.FINALIZING:
            await _finalize(tables, record, drain)
    except asyncio.CancelledError:
        raise
    except Exception:
        logger.exception("%r could not be closed", record)
        _abandon(tables, record)


async def _step(tables: HandleTables, record: HandleRecord, drain: Drain) -> None:
    _consume(tables, record, drain)
    loop = asyncio.get_running_loop()
    view = DrainView(
        open_runs=len(record.runs.open),
        open_activities=len(record.attempts.open),
        calls=len(record.calls),
        polls_ended=all(inbox.end is not None for inbox in record.inboxes()),
        stop_requested=drain.stop_requested,
        quiet_since=drain.quiet_since,
    )
    step, until = next_step(view, drain.deadlines, tables.limits, loop.time())
    match step:
        case DrainStep.WAIT:
            if await record.changed.wait(until - loop.time()):
                drain.quiet_since = loop.time()
        case DrainStep.FAIL_RUNS:
            for run_id in tuple(record.runs.open):
                fail_run(tables, record, run_id, _UNFINISHED)
        case DrainStep.STOP_ACTIVITIES:
            drain.stop_requested = True
            for token in tuple(record.attempts.open):
                _pass_on(tables, record, ActivityCancel(token, "WORKER_SHUTDOWN"))
        case DrainStep.FAIL_ACTIVITIES:
            for token in tuple(record.attempts.open):
                fail_attempt(tables, record, token, _UNFINISHED)
        case DrainStep.FINALIZE:
            record.apply_signal(HandleSignal.DRAINED)
        case DrainStep.ABANDON:
            _abandon(tables, record)


def _consume(tables: HandleTables, record: HandleRecord, drain: Drain) -> None:
    """Dispatch the kept items of runs that continue during the drain, and fail all others. The handle can end only when
    no item is open.
    """
    now = asyncio.get_running_loop().time()
    while record.activations.undelivered:
        activation = record.activations.undelivered.popleft()
        run_id = activation.run_id
        if _can_continue(record, drain, activation, now):
            drain.deadlines = drain.deadlines.for_one_more(now, tables.limits)
            _offer(tables, record, activation)
            if record.runs.open[run_id].is_dispatched:
                continue
        fail_run(tables, record, run_id, _ENDED)
    while record.activities.undelivered:
        item = record.activities.undelivered.popleft()
        if isinstance(item, ActivityTask) and item.is_local and now < drain.deadlines.stop_activities:
            _offer(tables, record, item)
            if record.attempts.open[item.token].is_dispatched:
                continue
        _reject(tables, record, item)


def _can_continue(record: HandleRecord, drain: Drain, activation: Activation, now: float) -> bool:
    """Whether the activation belongs to a workflow task that waits, or has waited, for local activities of its run."""
    run_id = activation.run_id
    if is_eviction(activation) or run_id in drain.unfinished or now >= drain.deadlines.activities:
        return False
    if any(isinstance(event, _LOCAL_ENDS) and event.is_local for event in activation.events):
        return True
    return any(
        isinstance(task := entry.item, ActivityTask) and task.is_local and task.run_id == run_id
        for entry in record.attempts.open.values()
    )


def _offer(tables: HandleTables, record: HandleRecord, item: Activation | ActivityItem) -> None:
    notify(tables.events.item_arrived, record, item)


def _reject(tables: HandleTables, record: HandleRecord, item: ActivityItem) -> None:
    match item:
        case ActivityTask():
            if item.token in record.attempts.open:
                fail_attempt(tables, record, item.token, _ENDED)
        case ActivityCancel() if item.reason != "WORKER_SHUTDOWN":
            _pass_on(tables, record, item)
        case ActivityCancel():
            pass  # a recycled handle's worker is still alive; otherwise the drain stops the attempts after the graceful period


def _pass_on(tables: HandleTables, record: HandleRecord, cancel: ActivityCancel) -> None:
    notify(tables.events.attempt_cancelled, record, cancel)


async def _finalize(tables: HandleTables, record: HandleRecord, drain: Drain) -> None:
    if drain.finalizing is None:  # kept in the record: a drain that is started again must not finalize twice
        drain.finalizing = tables.spawn(record.handle.finalize())
    task = drain.finalizing
    limit = drain.deadlines.finalizing(asyncio.get_running_loop().time(), tables.limits)
    done, _ = await asyncio.wait({task}, timeout=limit)
    if done and not task.cancelled() and task.exception() is None:
        record.apply_signal(HandleSignal.FREED)
        tables.leave(record)
    else:
        task.cancel()
        _abandon(tables, record)


def _abandon(tables: HandleTables, record: HandleRecord) -> None:
    """Abandon a handle whose drain does not finish: stop waiting for its calls, and count the handle as abandoned."""
    if record.state.over:
        return
    logger.error(
        "%r is abandoned with %d runs, %d attempts and %d calls open",
        record,
        len(record.runs.open),
        len(record.attempts.open),
        len(record.calls),
    )
    record.apply_signal(HandleSignal.OVERDUE)
    for call in tuple(record.calls):
        call.abandon()
    tables.leave(record)
