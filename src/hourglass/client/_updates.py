"""Operations on updates: request an update and wait for its result, alone or together with the start of the workflow."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from hourglass._contract.ids import new_id
from hourglass._contract.workflows import (
    IdConflictPolicy,
    PollUpdate,
    StartWorkflow,
    UpdateStage,
    UpdateStarted,
    UpdateState,
    UpdateWithStart,
    UpdateWorkflow,
)
from hourglass._evaluator.options import Duration, check_text, choice, optional_seconds
from hourglass.client._calls import StartUpdateWithStartInput, StartWorkflowUpdateInput
from hourglass.client._operations import Reference
from hourglass.client._options import rpc_fields
from hourglass.client._session import ClientOperation, ClientSession, through
from hourglass.client._starts import PlannedStart
from hourglass.client._wait_notices import WaitNotice
from hourglass.client._waiting import in_time
from hourglass.converter import Converter
from hourglass.errors import ServiceTimeoutError, UpdateFailedError, UsageError
from hourglass.workflow._references import resolve_message


@dataclass(frozen=True)
class UpdateReference:
    """The update of a handle, and the update's last known state."""

    workflow_id: str
    run_id: str
    update_id: str
    return_type: Any = Any
    last_state: UpdateState | None = None


def build_update_request(
    session: ClientSession,
    reference: Reference,
    message: object,
    arguments: Sequence[Any],
    options: Mapping[str, Any],
    stage: UpdateStage,
) -> tuple[StartWorkflowUpdateInput, Callable[[StartWorkflowUpdateInput], UpdateWorkflow]]:
    """Return the input of an update call, and the function that builds its request."""
    definition = resolve_message("update", message)
    update_id = check_text(options.get("id") or new_id(), "the id of an update")
    _check_stage(stage)

    def build(call: StartWorkflowUpdateInput) -> UpdateWorkflow:
        return UpdateWorkflow(
            workflow_id=call.id,
            run_id=call.run_id or "",
            first_execution_run_id=call.first_execution_run_id or "",
            update_id=call.update_id,
            update_name=call.update,
            arguments=definition.encode(session.of_workflow(call.id).converter, call.args),
            headers=call.headers,
            identity=session.identity,
            wait_stage=_check_stage(call.wait_for_stage),
            request_id=new_id(),
            **rpc_fields(call._rpc()),
        )

    result_type = options.get("result_type")
    call = StartWorkflowUpdateInput(
        **reference.addressed(),
        update=definition.name,
        update_id=update_id,
        wait_for_stage=stage,
        first_execution_run_id=reference.first_execution_run_id or None,
        result_type=definition.return_type if result_type is None else result_type,
        args=list(arguments),
        **rpc_fields(options),
        _proceed=build,
    )
    return call, build


def _check_stage(stage: UpdateStage) -> UpdateStage:
    if choice(UpdateStage, stage, "wait_for_stage") < UpdateStage.ACCEPTED:
        raise UsageError(
            f"wait_for_stage must be ACCEPTED or COMPLETED, not {stage.name}: no service keeps an update before a worker has "
            "accepted it"
        )
    return stage


def start(
    session: ClientSession,
    reference: Reference,
    message: object,
    arguments: Sequence[Any],
    options: Mapping[str, Any],
    stage: UpdateStage,
) -> ClientOperation[UpdateReference]:
    """Request an update and wait until it has reached a stage. Return a reference to the update."""
    update, requested = build_update_request(session, reference, message, arguments, options, stage)

    def request_update(call: StartWorkflowUpdateInput) -> ClientOperation[UpdateReference]:
        request, stage = requested(call), call.wait_for_stage

        async def ask(session: ClientSession) -> UpdateState:
            async with _patience(session, request):
                state = await session.call(request)
                while state.stage < min(stage, UpdateStage.ACCEPTED):
                    # Request the update again with the same id. Nothing is durable before ACCEPTED, so an engine that has
                    # restarted in the meantime does not know the update.
                    state = await session.call(request)
                return await _to_stage(session, state, stage)

        return ClientOperation(ask, lambda state: _referred(state, call.result_type))

    return through(session, replace(update, _proceed=request_update))


def result(
    session: ClientSession, reference: UpdateReference, timeout: Duration | None
) -> ClientOperation[Any]:
    """Wait for an update's result."""
    limit = optional_seconds(timeout, "timeout")

    async def ask(session: ClientSession) -> UpdateState:
        last = reference.last_state
        if last is not None and last.stage is UpdateStage.COMPLETED:
            return last
        state = UpdateState(
            update_id=reference.update_id, workflow_id=reference.workflow_id, run_id=reference.run_id
        )
        late = f"update {reference.update_id!r} of workflow {reference.workflow_id!r} did not complete within"
        with WaitNotice(session, reference.workflow_id, reference.run_id):
            async with in_time(session, limit, late):
                return await _to_stage(session, state, UpdateStage.COMPLETED)

    return ClientOperation(ask, lambda state: outcome(state, reference.return_type, session.converter))


def outcome(state: UpdateState, return_type: Any, converter: Converter) -> Any:
    """Return the result of a completed update. Raise `UpdateFailedError` if it failed."""
    if state.failure is not None:
        cause = converter.from_failure(state.failure)
        raise UpdateFailedError(
            f"update {state.update_id!r} of workflow {state.workflow_id!r} failed: {cause}"
        ) from cause
    return None if state.result is None else converter.decode(state.result, return_type)


def replace_run(state: UpdateState, run_id: str) -> UpdateState:
    """Return the state with this run id if the service did not report one."""
    return state if state.run_id else msgspec.structs.replace(state, run_id=run_id)


@asynccontextmanager
async def _patience(session: ClientSession, request: UpdateWorkflow) -> AsyncIterator[None]:
    """Apply the caller's timeout to all requests for an update, and log the cause of a long delay.

    In the meantime, `describe` shows the update as pending, unless it is accepted according to the history.
    """
    requested = session.link.requested_updates
    requested[request.update_id] = request
    try:
        with WaitNotice(session, request.workflow_id, request.run_id):
            async with session.within(request.rpc_timeout):
                yield
    except TimeoutError:
        raise ServiceTimeoutError(
            f"update {request.update_id!r} of workflow {request.workflow_id!r} did not reach the requested stage within "
            f"{request.rpc_timeout or 0:g} s, and may still be executed. Check that a worker runs on the workflow's task "
            "queue",
            status="DEADLINE_EXCEEDED",
        ) from None
    finally:
        if requested.get(request.update_id) is request:
            del requested[request.update_id]


async def _to_stage(session: ClientSession, state: UpdateState, stage: UpdateStage) -> UpdateState:
    """Poll until the update has reached this stage. One poll is not enough: the service limits the duration of
    each.
    """
    while state.stage < stage:
        answer = await session.call(
            PollUpdate(
                workflow_id=state.workflow_id,
                run_id=state.run_id,
                update_id=state.update_id,
                identity=session.identity,
                wait_stage=stage,
            )
        )
        state = replace_run(answer, state.run_id)
    return state


def _referred(state: UpdateState, return_type: Any) -> UpdateReference:
    return UpdateReference(state.workflow_id, state.run_id, state.update_id, return_type, state)


def refer_update(reference: Reference, update_id: str, message: object, result_type: Any) -> UpdateReference:
    """Return a reference to an update that was requested earlier."""
    check_text(update_id, "the id of an update")
    return_type = Any if result_type is None else result_type
    if message is not None:
        return_type = resolve_message("update", message).return_type
    return UpdateReference(reference.workflow_id, reference.run_id, update_id, return_type)


def start_together(
    planned: PlannedStart,
    message: object,
    arguments: Sequence[Any],
    options: Mapping[str, Any],
    stage: UpdateStage,
) -> ClientOperation[UpdateReference]:
    """Start a workflow and update it atomically. Return a reference to the update."""
    session = planned._session
    start, build_start, reference = planned.call()
    update_call, build_update = build_update_request(session, reference, message, arguments, options, stage)

    def build(call: StartUpdateWithStartInput) -> ClientOperation[tuple[UpdateStarted, UpdateReference]]:
        first = build_start(call.start)
        if first.id_conflict_policy is IdConflictPolicy.UNSPECIFIED:
            first = msgspec.structs.replace(first, id_conflict_policy=IdConflictPolicy.USE_EXISTING)
        planned.sent_as(
            msgspec.structs.replace(reference, workflow_id=call.start.id, return_type=call.start.result_type)
        )
        update = call.update
        return start_with_start(first, build_update(update), update.result_type, update.wait_for_stage)

    def began(answer: tuple[UpdateStarted, UpdateReference]) -> UpdateReference:
        started = answer[0].start
        first = started.run_id if started.started else ""
        planned.began(
            msgspec.structs.replace(planned.sent, run_id=started.run_id, first_execution_run_id=first)
        )
        return answer[1]

    call = StartUpdateWithStartInput(id=start.id, start=start, update=update_call, _proceed=build)
    return through(session, call).then(began)


def start_with_start(
    first: StartWorkflow, update: UpdateWorkflow, return_type: Any, stage: UpdateStage
) -> ClientOperation[tuple[UpdateStarted, UpdateReference]]:
    """Start a workflow, or use the running one, and request an update."""
    request = UpdateWithStart(
        start=first, update=update, rpc_timeout=update.rpc_timeout, rpc_metadata=update.rpc_metadata
    )

    async def ask(session: ClientSession) -> UpdateStarted:
        async with _patience(session, update):
            answer = await session.call(request)
            while answer.update.stage < min(stage, UpdateStage.ACCEPTED):
                answer = await session.call(request)
            state = replace_run(answer.update, answer.start.run_id)
            return UpdateStarted(answer.start, await _to_stage(session, state, stage))

    return ClientOperation(ask, lambda answer: (answer, _referred(answer.update, return_type)))
