"""The embedded engine's request handlers, one function for each, and the table of all handlers. `answer` runs them.

Must not know: handles, activations, how a task finds its worker. Errors have the wording of a Temporal server.
`answering` contains the parts that handlers share. The handlers for reads, workers, activities, updates and schedules
are in other modules.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar, cast

import msgspec

from hourglass._contract import limits as li
from hourglass._contract import service as s
from hourglass._contract import workflows as wf
from hourglass._contract.ids import new_id
from hourglass._embedded.api.activity_requests import ACTIVITY_HANDLERS
from hourglass._embedded.api.answering import (
    LONG_POLL,
    EngineClosed,
    Handlers,
    PendingAnswer,
    as_known,
    check_moves,
    check_open,
    done,
    find,
    holding,
    is_written,
    refusal_rests_on,
    wait,
    wait_for_room,
)
from hourglass._embedded.api.schedule_requests import SCHEDULE_HANDLERS
from hourglass._embedded.api.update_requests import UPDATE_HANDLERS
from hourglass._embedded.api.view_requests import VIEW_HANDLERS
from hourglass._embedded.api.worker_requests import WORKER_HANDLERS
from hourglass._embedded.engine import Engine
from hourglass._embedded.runs.run import LoadedRun, WaitingQuery
from hourglass._embedded.runs.starting import (
    NO_SKIPPING,
    check_free,
    check_room,
    check_signals,
    check_start,
    start_workflow,
)
from hourglass._embedded.transitions import children, resetting, transitions
from hourglass._embedded.transitions.run import RUNNING, Change, Run, RunPriority
from hourglass._embedded.transitions.standalone import PREFIX, RESERVED
from hourglass._embedded.transitions.updates import request_id
from hourglass._evaluator.events import QueryReceived
from hourglass._history import events as h
from hourglass._history.codec import read_event
from hourglass.converter import Payload
from hourglass.errors import HistoryError, HourglassError, ServiceError, StorageError

A = TypeVar("A")


DEBOUNCE = "hourglass.debounce"
_OPEN = frozenset({wf.WorkflowStatus.RUNNING})
_ALL = frozenset(wf.WorkflowStatus)
_REJECTED = {
    wf.QueryRejectCondition.NONE: frozenset[wf.WorkflowStatus](),
    wf.QueryRejectCondition.NOT_OPEN: _ALL - _OPEN,
    wf.QueryRejectCondition.NOT_COMPLETED_CLEANLY: _ALL - _OPEN - {wf.WorkflowStatus.COMPLETED},
}


async def start(engine: Engine, request: wf.StartWorkflow) -> PendingAnswer[wf.Started]:
    """Start a workflow. For a debounced call, schedule a later start instead."""
    if (
        request.workflow_type == DEBOUNCE
        and (debounced := engine.keepers.bursts.debounce(request)) is not None
    ):
        return PendingAnswer(debounced, engine.writes.newest)
    started, record = _start(engine, request)
    return PendingAnswer(started, engine.writes.number_of(record))


async def execute(engine: Engine, request: wf.ExecuteWorkflow) -> PendingAnswer[wf.Executed]:
    """Start a workflow and wait until its run closes. The start is not acknowledged separately, so it need not be
    durable before the run's end.
    """
    started, record = _start(engine, request.start)
    engine.queues.dispatch()
    # If the request is a repetition, an earlier call has started a run, and a newer run may have replaced it.
    if record.run.run_id != started.run_id:
        record = find(engine, request.start.workflow_id, started.run_id)
    await wait(engine, record, record.closed, lambda: record.run.status is not RUNNING, request.rpc_timeout)
    return PendingAnswer(wf.Executed(started.run_id, _outcome(record)), engine.writes.number_of(record))


def _start(engine: Engine, request: wf.StartWorkflow) -> tuple[wf.Started, LoadedRun]:
    if request.versioning_override is not None:
        engine.deployments.check(request.versioning_override, request.spec.task_queue)
    check_start(engine.runs, request)
    return start_workflow(engine.runs, request)


async def signal(engine: Engine, request: wf.SignalWorkflow) -> PendingAnswer[s.Nothing]:
    """Send a signal to a workflow."""
    limit = engine.limits.held_events
    while not _was_carried_out(engine, request):
        record = find(engine, request.workflow_id, request.run_id)
        check_open(record)
        check_signals(engine.runs, record)
        if len(record.run.held) < limit:
            _change(
                engine, record, lambda run, now: transitions.signal(run, request, now), request.request_id
            )
            return done(engine, record)
        # With one more event, the run's task would fail because it has received too many.
        await wait_for_room(
            engine,
            record,
            partial(_has_room, record, limit),
            f"the workflow received {limit} events during its current workflow task, which has not been completed: try "
            "again later",
        )
    return _done_before(engine)


async def query(engine: Engine, request: wf.QueryWorkflow) -> PendingAnswer[wf.QueryAnswer]:
    if (
        li.is_keeper(request.workflow_id)
        and (engine_answer := _answered_by_engine(engine, request)) is not None
    ):
        return PendingAnswer(wf.QueryAnswer((engine_answer,)), engine.writes.newest)
    record = find(engine, request.workflow_id, request.run_id)
    if record.run.status in _REJECTED[request.reject_condition]:
        return PendingAnswer(wf.QueryAnswer(rejected=record.run.status), engine.writes.number_of(record))
    check_moves(engine, record)
    await _first_task(engine, record)
    if record.run.task is not None and record.run.task.attempt > 2:
        raise ServiceError(
            "Cannot query workflow: its workflow task keeps failing", status="FAILED_PRECONDITION"
        )
    event = QueryReceived(new_id(), request.query_name, request.arguments, request.headers)
    waiting = WaitingQuery(event, asyncio.get_running_loop().create_future())
    with holding(engine, record):
        engine.tasks.add_query(record, waiting)
        engine.queues.dispatch()
        try:
            result = await waiting.answer
        finally:
            engine.tasks.remove_query(record, waiting)
    if not request.run_id and _passed_signals_on(engine, record):
        return await query(engine, request)  # a query sees every signal that was acknowledged before it
    return PendingAnswer(wf.QueryAnswer(() if result is None else (result,)), engine.writes.number_of(record))


def _passed_signals_on(engine: Engine, record: LoadedRun) -> bool:
    """Whether the run continued as new, and the next run began with signals that this run had received but not seen."""
    final = record.run.final
    if not isinstance(final, h.WorkflowExecutionContinuedAsNew):
        return False
    following = engine.runs.record(final.new_run_id)
    return following is not None and any(
        isinstance(event.attributes, h.WorkflowExecutionSignaled) for event in following.events[1:2]
    )


async def cancel(engine: Engine, request: wf.CancelWorkflow) -> PendingAnswer[s.Nothing]:
    """Request the cancellation of a workflow. Do nothing if its run is closed."""
    if _was_carried_out(engine, request):
        return _done_before(engine)
    if li.is_keeper(request.workflow_id) and engine.keepers.bursts.drop(request.workflow_id):
        return _done_before(engine)
    record = find(engine, request.workflow_id, request.run_id, request.first_execution_run_id)
    if record.run.is_open:
        _change(
            engine,
            record,
            lambda run, now: transitions.request_cancel(run, request, now),
            request.request_id,
        )
    return done(engine, record)


async def terminate(engine: Engine, request: wf.TerminateWorkflow) -> PendingAnswer[s.Nothing]:
    if _was_carried_out(engine, request):
        return _done_before(engine)
    if li.is_keeper(request.workflow_id) and engine.keepers.forget(request.workflow_id):
        return _done_before(engine)
    record = find(engine, request.workflow_id, request.run_id, request.first_execution_run_id)
    check_open(record)
    engine.runs.change(
        record,
        lambda run, now: transitions.terminate(run, request, now),
        request_ids=(request.request_id,) if request.request_id else (),
    )
    return done(engine, record)


async def pause_or_unpause(
    engine: Engine, request: wf.PauseWorkflow | wf.UnpauseWorkflow
) -> PendingAnswer[s.Nothing]:
    """Pause or unpause a run."""
    if _was_carried_out(engine, request):
        return _done_before(engine)
    record = find(engine, request.workflow_id, request.run_id)
    check_open(record)
    if isinstance(request, wf.PauseWorkflow):
        if record.run.paused is not None:
            raise ServiceError("workflow is already paused.", status="FAILED_PRECONDITION")
        _change(engine, record, lambda run, now: transitions.pause(run, request, now), request.request_id)
    else:
        if record.run.paused is None:
            raise ServiceError("workflow is not paused.", status="FAILED_PRECONDITION")
        _change(engine, record, lambda run, now: transitions.unpause(run, request, now), request.request_id)
        engine.updates.want_task(record)
    return done(engine, record)


async def skip_time(engine: Engine, request: wf.SkipTime | wf.WaitForFastForward) -> PendingAnswer[Any]:
    """Reject the request, because workers of this engine use real time."""
    raise ServiceError(NO_SKIPPING, status="UNIMPLEMENTED")


async def update_options(engine: Engine, request: wf.UpdateWorkflowOptions) -> PendingAnswer[s.Nothing]:
    """Change the version or the priority of a run."""
    record = find(engine, request.workflow_id, request.run_id)
    check_open(record)
    override, spec = request.versioning_override, record.run.started.spec
    if override is not None:
        engine.deployments.check(override, spec.task_queue)
    if "versioning_override" in request.fields:
        engine.runs.change(
            record, lambda run, now: transitions.change_override(run, override, request.identity, now)
        )
        engine.queues.wake_all()  # the override may allow another worker to receive the run's task
    values = {name: getattr(request.spec, name) for name in request.fields if name in _PRIORITY}
    if values:
        priority = RunPriority(**{name: values.get(name, getattr(spec, name)) for name in _PRIORITY})
        engine.runs.change(
            record, lambda run, now: transitions.change_priority(run, priority, request.identity, now)
        )
        engine.queues.offer_again(record.run, engine.clock.now_ns(), record.sticky)
    return done(engine, record)


_PRIORITY = RunPriority.__struct_fields__


async def delete(engine: Engine, request: wf.DeleteWorkflow) -> PendingAnswer[s.Nothing]:
    """Delete a run. Terminate it first if it is open, so that everyone waiting for its end is notified."""
    record = find(engine, request.workflow_id, request.run_id)
    if record.run.is_open:
        end = wf.TerminateWorkflow(
            workflow_id=request.workflow_id, run_id=record.run.run_id, reason="Delete workflow execution"
        )
        engine.runs.change(record, lambda run, now: transitions.terminate(run, end, now))
    await engine.durable(engine.writes.number_of(record))
    return PendingAnswer(s.Nothing(), engine.runs.forget(record))


async def wait_for_close(engine: Engine, request: wf.WaitForClose) -> PendingAnswer[wf.Outcome]:
    record = find(engine, request.workflow_id, request.run_id)
    await wait(engine, record, record.closed, lambda: not record.run.is_open, request.rpc_timeout)
    return PendingAnswer(_outcome(record), engine.writes.number_of(record))


# Resets and imports start runs that already have a history (see `transitions.resetting`). Invariants: the
# start of the new run and the end of the current run are one change in the store. A repeated request does not
# reset a second time.


async def reset(engine: Engine, request: wf.ResetWorkflow) -> PendingAnswer[wf.Started]:
    """Start a new run that continues from one of a run's workflow tasks."""
    base = find(engine, request.workflow_id, request.run_id)
    current = find(engine, request.workflow_id)
    if request.request_id and (made := engine.runs.find_request(current, request.request_id)):
        return PendingAnswer(wf.Started(made), engine.writes.newest)
    later = [event for run in _following(engine, base) for event in run]
    of_base = [event.attributes for event in (*base.events, *(() if current is base else current.events))]
    new_run_id = engine.runs.new_run_id()
    now_ns = engine.clock.now_ns()
    step = resetting.reset(base.run, base.events, request, later, new_run_id, now_ns)
    carried_out = tuple(_carried_out(request, step.run, [*of_base, *later]))
    with engine.runs.transaction():
        _give_way(engine, base, current, request, new_run_id)
        record = engine.runs.open_with_history(step, carried_out)
    _notify_of_ended_children(engine, record)
    return PendingAnswer(wf.Started(new_run_id), engine.writes.number_of(record))


async def import_workflow(engine: Engine, request: wf.ImportWorkflow) -> PendingAnswer[wf.Started]:
    if request.workflow_id.startswith(PREFIX):
        raise ServiceError(RESERVED, status="INVALID_ARGUMENT")
    existing = engine.current(request.workflow_id)
    if existing is not None:
        made = engine.runs.find_request(existing, request.request_id)
        if made:
            return PendingAnswer(wf.Started(made), engine.writes.newest)
        check_free(existing)
    check_room(engine.runs)
    try:
        events = [
            read_event(msgspec.json.decode(data), place) for place, data in enumerate(request.events, 1)
        ]
    except (HistoryError, msgspec.DecodeError) as error:
        raise ServiceError(f"the history cannot be read: {error}", status="INVALID_ARGUMENT") from None
    run_id, now = engine.runs.new_run_id(), engine.clock.now_ns()
    step = resetting.begin_with(events, request.workflow_id, run_id, now)
    if request.dry_run:
        return PendingAnswer(wf.Started("", False), 0)
    ids = (
        request.request_id,
        *(request_id(step.run, accepted_update) for accepted_update in _accepted_updates(events)),
    )
    record = engine.runs.open_with_history(step, tuple(filter(None, ids)))
    return PendingAnswer(wf.Started(run_id), engine.writes.number_of(record))


def _carried_out(request: wf.ResetWorkflow, run: Run, before: Iterable[h.Attributes]) -> Iterator[str]:
    """Yield the ids of the requests that the new run counts as carried out: the reset itself, and all updates
    accepted before the reset. The history of the new run determines whether such an update is completed, must be
    repeated, or never existed.
    """
    if request.request_id:
        yield request.request_id
    for attributes in before:
        if isinstance(attributes, h.WorkflowExecutionUpdateAccepted):
            yield request_id(run, attributes.update_id)


def _accepted_updates(events: Iterable[h.HistoryEvent]) -> Iterator[str]:
    """Yield the ids of the updates that were accepted according to a history."""
    for event in events:
        if isinstance(event.attributes, h.WorkflowExecutionUpdateAccepted):
            yield event.attributes.update_id


def _give_way(
    engine: Engine, base: LoadedRun, current: LoadedRun, request: wf.ResetWorkflow, new_run_id: str
) -> None:
    if current.run.is_open:
        reason = request.reason
        engine.runs.change(
            current, lambda run, now: resetting.terminate_replaced(run, reason, new_run_id, now)
        )
    if base is not current or not base.run.reset_run_id:
        engine.runs.change(base, lambda run, now: resetting.note_reset(run, new_run_id, now))


def _following(engine: Engine, base: LoadedRun) -> Iterator[list[h.Attributes]]:
    """Yield the events of each run that continued the base run as new."""
    record: LoadedRun | None = base
    while record is not None and isinstance(record.run.final, h.WorkflowExecutionContinuedAsNew):
        record = engine.record(record.run.final.new_run_id)
        if record is not None:
            yield [*(event.attributes for event in record.events), *record.run.held]


def _notify_of_ended_children(engine: Engine, record: LoadedRun) -> None:
    """Notify the new run of children that ended after the old run had closed."""
    for child in tuple(record.run.children.values()):
        last = engine.current(child.initiated.workflow_id)
        if last is None or last.run.is_open or last.run.started.first_run_id != child.run_id:
            continue
        engine.runs.change(record, partial(_child_ended, child.initiated_event_id, last.run))


def _child_ended(initiated: int, last: Run, run: Run, now_ns: int) -> Change:
    return children.child_ended(run, initiated, last, now_ns)


def _answered_by_engine(engine: Engine, request: wf.QueryWorkflow) -> Payload | None:
    """Return the engine's answer to a query of a limit keeper. Return None if the keeper is an open workflow instead."""
    record = engine.current(request.workflow_id)
    if request.run_id or (record is not None and record.run.is_open):
        return None
    return engine.keepers.query(request.workflow_id, request.query_name)


async def list_limits(engine: Engine, request: li.ListLimits) -> PendingAnswer[li.KeptLimits]:
    """Return the limits that the engine manages."""
    return await as_known(engine, li.KeptLimits(tuple(engine.keepers.view(request.id))))


async def await_burst(engine: Engine, request: li.AwaitBurst) -> PendingAnswer[li.BurstState]:
    """Wait until debounced calls have started a run or were dropped."""
    bursts, loop = engine.keepers.bursts, asyncio.get_running_loop()
    limit = LONG_POLL if request.rpc_timeout is None else min(request.rpc_timeout, LONG_POLL)
    until = loop.time() + limit
    while bursts.is_waiting(request.workflow_id, request.id):
        if engine.is_over:
            raise EngineClosed
        left = until - loop.time()
        if left <= 0:
            return PendingAnswer(li.BurstState(pending=True), 0)
        await bursts.fired.wait(left)
    record = engine.current(request.workflow_id)
    return PendingAnswer(
        li.BurstState(run_id="" if record is None else record.run.run_id), engine.writes.newest
    )


HANDLERS: Handlers = {
    li.ListLimits: list_limits,
    li.AwaitBurst: await_burst,
    wf.StartWorkflow: start,
    wf.ExecuteWorkflow: execute,
    wf.SignalWorkflow: signal,
    wf.QueryWorkflow: query,
    wf.CancelWorkflow: cancel,
    wf.TerminateWorkflow: terminate,
    wf.PauseWorkflow: pause_or_unpause,
    wf.UnpauseWorkflow: pause_or_unpause,
    wf.UpdateWorkflowOptions: update_options,
    wf.SkipTime: skip_time,
    wf.WaitForFastForward: skip_time,
    wf.DeleteWorkflow: delete,
    wf.WaitForClose: wait_for_close,
    wf.ResetWorkflow: reset,
    wf.ImportWorkflow: import_workflow,
    **VIEW_HANDLERS,
    **WORKER_HANDLERS,
    **UPDATE_HANDLERS,
    **SCHEDULE_HANDLERS,
    **ACTIVITY_HANDLERS,
}
"""All request types that this engine supports, with their handlers."""


async def answer(engine: Engine, request: s.Request[A]) -> A:
    """Check a request, carry it out in memory, and return the answer once the changes that it depends on are durable.

    Raise `EngineClosed` if the engine has closed or failed in the meantime, otherwise any error that the handler
    raises.
    """
    handler = HANDLERS.get(type(request))
    if handler is None:
        name = type(request).__name__
        raise ServiceError(f"the embedded engine does not support {name} yet", status="UNIMPLEMENTED")
    if engine.failed is not None:
        raise EngineClosed
    engine.limits.check(request)
    try:
        try:
            pending = await handler(engine, request)
        except StorageError:
            raise
        except HourglassError:
            # A rejection depends on the state just like an answer.
            engine.queues.dispatch()
            rests_on = refusal_rests_on(engine, request)
            if request.effect is s.Effect.READ:
                await is_written(engine, rests_on)
            else:
                await engine.durable(rests_on)
            raise
        # Dispatch before the wait, so that tasks completed immediately can be part of the same commit.
        engine.queues.dispatch()
        await engine.durable(pending.rests_on)
        value: A = pending.value
        if isinstance(value, s.ReadAnswer) and (trouble := engine.trouble):
            notice = f"{trouble}{s.AS_STORED}" if engine.held else trouble
            return cast(A, msgspec.structs.replace(value, notice=notice))
        return value
    except Exception as error:
        if isinstance(error, StorageError):
            engine.stop_if_unreadable(error)
        if engine.is_over:  # whatever the error is: the next engine will answer the request
            raise EngineClosed from None
        if isinstance(error, OverflowError):
            name = type(request).__name__
            raise ServiceError(
                f"a number in this {name} does not fit into 64 bits", status="INVALID_ARGUMENT"
            ) from None
        raise


async def _first_task(engine: Engine, record: LoadedRun) -> None:
    """Wait until a worker has received the run's first task. Before that, no worker can answer a query."""

    def has_begun() -> bool:
        return any(type(event.attributes) is h.WorkflowTaskStarted for event in record.events)

    def is_decided() -> bool:
        return not record.run.is_open or has_begun()

    while not is_decided():
        await wait(engine, record, record.changed, is_decided, None)
    if not record.run.is_open and not has_begun():
        raise ServiceError(
            "Workflow execution closed before WorkflowTaskStarted event", status="FAILED_PRECONDITION"
        )


def _was_carried_out(
    engine: Engine,
    request: wf.SignalWorkflow | wf.TerminateWorkflow | wf.OpenRunRequest,
) -> bool:
    """Whether any run of the workflow has already carried out this request. The client repeats a request if the
    answer is lost.
    """
    latest = engine.current(request.workflow_id) if request.request_id else None
    return latest is not None and bool(engine.runs.find_request(latest, request.request_id))


def _done_before(engine: Engine) -> PendingAnswer[s.Nothing]:
    return PendingAnswer(s.Nothing(), engine.writes.newest)


def _has_room(record: LoadedRun, limit: int) -> bool:
    return not record.run.is_open or len(record.run.held) < limit


def _change(
    engine: Engine, record: LoadedRun, transition: Callable[[Run, int], Change], request_id: str
) -> None:
    """Apply a transition to a run. Raise `ServiceError` if the run was terminated instead because it has exceeded its
    limits.
    """
    reason = engine.runs.change(record, transition, request_ids=(request_id,) if request_id else ())
    if reason:
        raise ServiceError(reason, status="INVALID_ARGUMENT")


def _outcome(record: LoadedRun) -> wf.Outcome:
    match record.run.final:
        case h.WorkflowExecutionCompleted() as final:
            return wf.RunCompleted((final.result,), final.new_run_id)
        case h.WorkflowExecutionFailed() as final:
            return wf.RunFailed(final.failure, final.new_run_id)
        case h.WorkflowExecutionCanceled() as final:
            return wf.RunCanceled(final.details)
        case h.WorkflowExecutionTerminated() as final:
            return wf.RunTerminated(final.reason, final.details)
        case h.WorkflowExecutionTimedOut() as final:
            return wf.RunTimedOut(final.new_run_id)
        case h.WorkflowExecutionContinuedAsNew() as final:
            return wf.RunContinued(final.new_run_id)
        case _:
            return wf.StillOpen(record.run.run_id)
