"""What clients ask about updates: one small handler per request.

Must not know: handles, activations, how updates reach a worker. Errors are those of the Temporal server. An
asker waits for a stage, or until its patience ends; an update goes on whoever waits. Invariant: between looking
for an update and admitting it nothing else happens, so that an id is one update.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from hourglass._bridge.service import Request, Started
from hourglass._bridge.service_changes import (
    PollUpdate,
    UpdateStage,
    UpdateStarted,
    UpdateState,
    UpdateWithStart,
    UpdateWorkflow,
)
from hourglass._embedded.clients.answering import Answer, check_open, find, wait
from hourglass._embedded.events import history as h
from hourglass._embedded.events.history_updates import UpdateRequest
from hourglass._embedded.rules.resetting import RESETTER
from hourglass._embedded.rules.updates import ABANDONED, Waiting
from hourglass._embedded.running.engine import Engine
from hourglass._embedded.running.record import Record
from hourglass._embedded.running.starting import check_start, start_workflow
from hourglass.errors import ServiceError, WorkflowNotFoundError

ROOM = 10.0
"""How long an asker waits while too many updates are in flight, in seconds: so long a client of a server tries."""


async def update(engine: Engine, request: UpdateWorkflow) -> Answer[UpdateState]:
    """Ask for an update and wait until it has come so far."""
    while True:
        record = find(engine, request.workflow_id, request.run_id, request.first_execution_run_id)
        waiting = await _admitted(engine, record, request)
        answer = await _follow(engine, record, waiting, request)
        if answer is not None:
            return answer


async def poll_update(engine: Engine, request: PollUpdate) -> Answer[UpdateState]:
    """Wait on for an update."""
    record = find(engine, request.workflow_id, request.run_id)
    updates = engine.updates.of(record)
    if not updates.knows(request.update_id):
        raise WorkflowNotFoundError(f'update "{request.update_id}" not found', status="NOT_FOUND")
    answer = await _follow(engine, record, updates.find(request.update_id), request)
    if answer is None:
        raise WorkflowNotFoundError(f'update "{request.update_id}" not found', status="NOT_FOUND")
    return answer


async def update_with_start(engine: Engine, request: UpdateWithStart) -> Answer[UpdateStarted]:
    """Start a workflow, or use the one that runs, and ask for an update, with nothing in between."""
    if request.start.cron_schedule:
        raise ServiceError("CronSchedule is not allowed.", status="INVALID_ARGUMENT")
    if request.start.start_delay:
        raise ServiceError("WorkflowStartDelay is not supported.", status="INVALID_ARGUMENT")
    record, started = _asked_already(engine, request)
    if record is None:
        engine.deployments.check(request.start.versioning_override, request.start.task_queue)
        check_start(engine.runs, request.start)
        started, record = start_workflow(engine.runs, request.start)
    waiting = await _admitted(engine, record, request.update)
    answer = await _follow(engine, record, waiting, request.update)
    if answer is None:  # it has gone on as another run, which has not heard of the update
        answer = await update(engine, request.update)
    return Answer(UpdateStarted(started, answer.value), answer.rests_on)


def _asked_already(engine: Engine, request: UpdateWithStart) -> tuple[Record | None, Started]:
    """The run that was asked for this very update before, whatever the policies say of its id: an open one, or a closed
    one that has completed it.
    """
    record = engine.current(request.start.workflow_id)
    if record is None:
        return None, Started("")
    updates, update_id = engine.updates.of(record), request.update.update_id
    if not (updates.knows(update_id) if record.run.is_open else update_id in updates.completed):
        return None, Started("")
    return record, Started(record.run.run_id, started=False)


async def _admitted(engine: Engine, record: Record, request: UpdateWorkflow) -> Waiting | None:
    """The update, admitted unless it is known; None if it is accepted already."""
    while True:
        updates = engine.updates.of(record)
        if updates.knows(request.update_id):
            return updates.find(request.update_id)
        check_open(record)
        if updates.total >= engine.limits.updates:
            raise ServiceError(
                "the limit on the total number of distinct updates of this workflow has been reached "
                f"({engine.limits.updates}); the same update asked for again should have the same id",
                status="FAILED_PRECONDITION",
            )
        if updates.in_flight < engine.limits.updates_in_flight:
            return engine.updates.admit(record, _request(request))
        await _wait_for_room(engine, record)


async def _wait_for_room(engine: Engine, record: Record) -> None:
    limit = engine.limits.updates_in_flight

    def is_room() -> bool:
        return engine.updates.of(record).in_flight < limit or not record.run.is_open

    await wait(engine, record, record.changed, is_room, ROOM)
    if not is_room():
        raise ServiceError(
            f"the limit on the number of concurrent in-flight updates has been reached ({limit})",
            status="RESOURCE_EXHAUSTED",
        )


async def _follow(
    engine: Engine, record: Record, waiting: Waiting | None, request: UpdateWorkflow | PollUpdate
) -> Answer[UpdateState] | None:
    """Wait until the update has come so far; None if its run went on as another before it was accepted."""
    update_id = request.update_id

    def state() -> UpdateState:
        return _state(engine, record, waiting, update_id)

    def is_done() -> bool:
        return state().stage >= request.wait_stage or not record.run.is_open

    await wait(engine, record, record.changed, is_done, request.rpc_timeout)
    found = state()
    if found.stage is UpdateStage.ADMITTED and not record.run.is_open:
        if not request.run_id and _goes_on(record):
            return None
        raise WorkflowNotFoundError("workflow update was aborted by closing workflow", status="NOT_FOUND")
    if found.stage is UpdateStage.ACCEPTED and request.wait_stage > found.stage and not record.run.is_open:
        found = _reached(record, update_id, UpdateStage.COMPLETED, failure=ABANDONED)
    return Answer(found, record.number)


def _state(engine: Engine, record: Record, waiting: Waiting | None, update_id: str) -> UpdateState:
    updates = engine.updates.of(record)
    completed = updates.completed.get(update_id)
    if completed is not None:
        return _reached(
            record, update_id, UpdateStage.COMPLETED, result=completed.result, failure=completed.failure
        )
    if update_id in updates.accepted:
        return _reached(record, update_id, UpdateStage.ACCEPTED)
    if waiting is not None and waiting.refusal is not None:
        return _reached(record, update_id, UpdateStage.COMPLETED, failure=waiting.refusal)
    return _reached(record, update_id, UpdateStage.ADMITTED)


def _reached(record: Record, update_id: str, stage: UpdateStage, **outcome: Any) -> UpdateState:
    run = record.run
    return UpdateState(
        update_id=update_id,
        workflow_id=run.started.workflow_id,
        run_id=run.run_id,
        stage=stage,
        **outcome,
    )


def _goes_on(record: Record) -> bool:
    """Whether another run took the place of one that has closed."""
    match record.run.final:
        case h.WorkflowExecutionTerminated(identity=identity):
            return identity == RESETTER
        case final:
            return bool(getattr(final, "new_run_id", ""))


def _request(request: UpdateWorkflow) -> UpdateRequest:
    return UpdateRequest(
        update_id=request.update_id,
        name=request.update_name,
        arguments=request.arguments,
        headers=request.headers,
        identity=request.identity,
    )


UPDATE_HANDLERS: dict[type[Request[Any]], Callable[[Engine, Any], Awaitable[Answer[Any]]]] = {
    UpdateWorkflow: update,
    PollUpdate: poll_update,
    UpdateWithStart: update_with_start,
}
"""Who handles what."""
