"""Request handlers for updates.

Must not know: handles, activations, how updates reach a worker. Errors are those of a Temporal server. A client waits
until its update has reached a stage, or until the client's timeout. The update continues even if no client is
waiting. Invariants:

- Finding an update and admitting it happen in one step, so that an id identifies a single update across all runs of a
  chain.
- An update that no run has accepted moves to the next run of its workflow.
"""

from __future__ import annotations

from typing import Any

from hourglass._contract.workflows import (
    PollUpdate,
    Started,
    UpdateStage,
    UpdateStarted,
    UpdateState,
    UpdateWithStart,
    UpdateWorkflow,
)
from hourglass._embedded.api.answering import (
    Handlers,
    PendingAnswer,
    check_open,
    find,
    wait,
    wait_for_room,
)
from hourglass._embedded.engine import Engine
from hourglass._embedded.runs.run import LoadedRun
from hourglass._embedded.runs.starting import check_start, start_workflow
from hourglass._embedded.transitions.resetting import RESETTER
from hourglass._embedded.transitions.updates import ABANDONED, Waiting, call_id, request_id
from hourglass._history import events as h
from hourglass.errors import ServiceError, WorkflowNotFoundError


class _RunReplaced(Exception):
    """Raised when another run has replaced the run before the run accepted the update."""


async def update(engine: Engine, request: UpdateWorkflow) -> PendingAnswer[UpdateState]:
    """Request an update and wait until it has reached the requested stage."""
    while True:
        record = _accepted_for(engine, request)
        if record is None:
            named = find(engine, request.workflow_id, request.run_id, request.first_execution_run_id)
            record = _run_with_update(engine, named, request.update_id)
        try:
            return await _updated(engine, record, request)
        except _RunReplaced:
            continue


async def poll_update(engine: Engine, request: PollUpdate) -> PendingAnswer[UpdateState]:
    """Wait until an existing update has reached the requested stage."""
    record = _run_with_update(engine, find(engine, request.workflow_id, request.run_id), request.update_id)
    updates, not_found = engine.updates.of(record), f'update "{request.update_id}" not found'
    if not updates.knows(request.update_id):
        raise WorkflowNotFoundError(not_found, status="NOT_FOUND")
    try:
        return await _follow(engine, record, updates.find(request.update_id), request)
    except _RunReplaced:
        raise WorkflowNotFoundError(not_found, status="NOT_FOUND") from None


async def update_with_start(engine: Engine, request: UpdateWithStart) -> PendingAnswer[UpdateStarted]:
    """Start a workflow, or use the running one, and request an update, in a single step."""
    if request.start.spec.cron_schedule:
        raise ServiceError("CronSchedule is not allowed.", status="INVALID_ARGUMENT")
    if request.start.start_delay:
        raise ServiceError("WorkflowStartDelay is not supported.", status="INVALID_ARGUMENT")
    record, started = _run_of_earlier_call(engine, request)
    if record is None:
        if request.start.versioning_override is not None:
            engine.deployments.check(request.start.versioning_override, request.start.spec.task_queue)
        check_start(engine.runs, request.start)
        started, record = start_workflow(engine.runs, request.start)
    try:
        answer = await _updated(engine, record, request.update)
    except _RunReplaced:
        answer = await update(engine, request.update)
    return PendingAnswer(UpdateStarted(started, answer.value), answer.rests_on)


def _run_of_earlier_call(engine: Engine, request: UpdateWithStart) -> tuple[LoadedRun | None, Started]:
    """Return the run that has already received this update, regardless of the id policies: a run of an open chain, or
    of a closed chain if the run completed the update.

    If an earlier attempt of this call started a chain, look only in that chain, even if the workflow has another one
    by now.
    """
    latest = engine.current(request.start.workflow_id)
    if latest is None:
        return None, Started("")
    began = request.start.request_id and engine.runs.find_request(latest, request.start.request_id)
    accepted = _accepted_for(engine, request.update)
    if accepted is not None:
        return accepted, Started(began) if began else Started(accepted.run.run_id, started=False)
    first = engine.record(began) if began else None
    record = _run_with_update(engine, first or latest, request.update.update_id)
    updates, update_id = engine.updates.of(record), request.update.update_id
    is_open = _last_of_chain(engine, record).run.is_open
    if not (updates.knows(update_id) if is_open else update_id in updates.completed):
        return None, Started("")
    return record, Started(began) if began else Started(record.run.run_id, started=False)


def _accepted_for(engine: Engine, request: UpdateWorkflow) -> LoadedRun | None:
    """Return the run that accepted the update for an earlier attempt of this call, regardless of the outcome and of
    the runs that the workflow has now.
    """
    latest = engine.current(request.workflow_id) if request.request_id else None
    run_id = "" if latest is None else engine.runs.find_request(latest, call_id(request.request_id))
    return engine.record(run_id) if run_id else None


def _last_of_chain(engine: Engine, record: LoadedRun) -> LoadedRun:
    """Return the latest run of the workflow if it belongs to the same chain. Otherwise return the given run, which is
    closed.
    """
    latest = engine.current(record.run.started.workflow_id)
    same = latest is not None and latest.run.started.first_run_id == record.run.started.first_run_id
    return latest if same and latest is not None else record


def _run_with_update(engine: Engine, record: LoadedRun, update_id: str) -> LoadedRun:
    """Return the run of the chain that received the update. Default to the given run."""
    if engine.updates.of(record).knows(update_id):
        return record
    latest = engine.current(record.run.started.workflow_id) or record
    run_id = engine.runs.find_request(latest, request_id(record.run, update_id))
    holder = engine.record(run_id) if run_id else None
    if holder is None:
        return record
    # A run that was started by a reset may not know updates that the reset has undone. A run that closed
    # before the update completed has failed the update for its waiting clients, and the update id can be
    # reused, as on a server.
    updates = engine.updates.of(holder)
    has_update = updates.knows(update_id) if holder.run.is_open else update_id in updates.completed
    return holder if has_update else record


async def _updated(engine: Engine, record: LoadedRun, request: UpdateWorkflow) -> PendingAnswer[UpdateState]:
    """Admit an update to a run, unless it already exists, and wait until it has reached the stage. Raise `_RunReplaced` if
    another run has replaced the run.
    """
    waiting = await _admitted(engine, record, request)
    return await _follow(engine, record, waiting, request)


async def _admitted(engine: Engine, record: LoadedRun, request: UpdateWorkflow) -> Waiting | None:
    """Return the update, admitting it first if it does not exist. Return None if it has already been accepted."""
    limit = engine.limits.updates_in_flight

    def is_room() -> bool:
        return engine.updates.of(record).in_flight < limit or not record.run.is_open

    while True:
        updates = engine.updates.of(record)
        if updates.knows(request.update_id):
            return _joined(updates.find(request.update_id), request)
        if not request.run_id and _is_continued(engine, record):
            raise _RunReplaced
        check_open(record)
        if updates.total >= engine.limits.updates:
            raise ServiceError(
                f"this workflow has reached the limit of {engine.limits.updates} distinct updates; use the same update "
                "id when you repeat an update",
                status="FAILED_PRECONDITION",
            )
        if updates.in_flight < limit:
            return _joined(engine.updates.admit(record, _request(request)), request)
        rejection = f"this workflow has reached the limit of {limit} updates in progress: wait until some of them are completed"
        await wait_for_room(engine, record, is_room, rejection)


def _joined(waiting: Waiting | None, request: UpdateWorkflow) -> Waiting | None:
    """Return the update after adding this call to it."""
    if waiting is not None and request.request_id:
        waiting.calls.add(request.request_id)
    return waiting


async def _follow(
    engine: Engine, record: LoadedRun, waiting: Waiting | None, request: UpdateWorkflow | PollUpdate
) -> PendingAnswer[UpdateState]:
    """Wait until the update has reached the stage. Raise `_RunReplaced` if another run has replaced the run before the
    update was accepted.
    """
    update_id = request.update_id

    def state() -> UpdateState:
        return _state(engine, record, waiting, update_id)

    def is_done() -> bool:
        return state().stage >= request.wait_stage or not record.run.is_open

    await wait(engine, record, record.changed, is_done, request.rpc_timeout)
    reached = state()
    if reached.stage is UpdateStage.ADMITTED and not record.run.is_open:
        if not request.run_id and _is_continued(engine, record):
            raise _RunReplaced
        raise WorkflowNotFoundError("workflow update was aborted by closing workflow", status="NOT_FOUND")
    if (
        reached.stage is UpdateStage.ACCEPTED
        and request.wait_stage > reached.stage
        and not record.run.is_open
    ):
        reached = _reached(record, update_id, UpdateStage.COMPLETED, failure=ABANDONED)
    return PendingAnswer(reached, engine.writes.number_of(record))


def _state(engine: Engine, record: LoadedRun, waiting: Waiting | None, update_id: str) -> UpdateState:
    updates = engine.updates.of(record)
    completed = updates.completed.get(update_id)
    if completed is not None:
        return _reached(
            record, update_id, UpdateStage.COMPLETED, result=completed.result, failure=completed.failure
        )
    if update_id in updates.accepted:
        return _reached(record, update_id, UpdateStage.ACCEPTED)
    if waiting is not None and waiting.rejection is not None:
        return _reached(record, update_id, UpdateStage.COMPLETED, failure=waiting.rejection)
    return _reached(record, update_id, UpdateStage.ADMITTED)


def _reached(record: LoadedRun, update_id: str, stage: UpdateStage, **outcome: Any) -> UpdateState:
    run = record.run
    return UpdateState(
        update_id=update_id,
        workflow_id=run.started.workflow_id,
        run_id=run.run_id,
        stage=stage,
        **outcome,
    )


def _is_continued(engine: Engine, record: LoadedRun) -> bool:
    """Whether this run is closed and another run continues the workflow."""
    if record.run.is_open or engine.current(record.run.started.workflow_id) is record:
        return False
    match record.run.final:
        case h.WorkflowExecutionTerminated(identity=identity):
            return identity == RESETTER
        case final:
            return bool(getattr(final, "new_run_id", ""))


def _request(request: UpdateWorkflow) -> h.UpdateRequest:
    return h.UpdateRequest(
        update_id=request.update_id,
        name=request.update_name,
        arguments=request.arguments,
        headers=request.headers,
        identity=request.identity,
    )


UPDATE_HANDLERS: Handlers = {
    UpdateWorkflow: update,
    PollUpdate: poll_update,
    UpdateWithStart: update_with_start,
}
