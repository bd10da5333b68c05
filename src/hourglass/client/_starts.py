"""Operations that start workflows: alone, together with the wait for the result, or atomically with a signal. `PlannedStart`
is a start that is sent together with a message.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from hourglass._contract.ids import new_id
from hourglass._contract.workflows import ExecuteWorkflow, Outcome, Started, StartWorkflow, StillOpen
from hourglass._evaluator.interception import Headers
from hourglass.client._calls import StartWorkflowInput
from hourglass.client._operations import Reference
from hourglass.client._options import rpc_fields, start_request, without_rpc
from hourglass.client._session import ClientOperation, ClientSession, asking, through
from hourglass.client._wait_notices import WaitNotice
from hourglass.client._waiting import result_of, successor_of, wait_for_close
from hourglass.errors import UsageError
from hourglass.workflow._references import ResolvedReference, resolve_workflow


def start(
    session: ClientSession,
    workflow: object,
    arguments: Sequence[Any],
    options: Mapping[str, Any],
    result_type: Any,
    headers: Headers | None = None,
) -> ClientOperation[Reference]:
    """Start a workflow and return a reference to it."""
    definition = resolve_workflow(workflow)
    return_type = definition.return_type if result_type is None else result_type
    if not session.interceptors and not headers:
        if session.contextual:
            session, options = _identified(session, options)
        return _start(
            start_request(definition, arguments, options, session.converter, session.identity), return_type
        )

    def build(call: StartWorkflowInput) -> ClientOperation[Reference]:
        return _start(requested(session, definition, call), call.result_type)

    call = start_call(definition, arguments, options, build, return_type)
    call.headers.update(headers or {})
    return through(session, call)


def _identified(
    session: ClientSession, options: Mapping[str, Any]
) -> tuple[ClientSession, Mapping[str, Any]]:
    """Return the session for the workflow's values, and the options with the workflow id on which the session depends."""
    workflow_id = options.get("id") or new_id()
    return session.of_workflow(workflow_id), {**options, "id": workflow_id}


def _start(request: StartWorkflow, return_type: Any) -> ClientOperation[Reference]:
    def parse(answer: Started) -> Reference:
        first = answer.run_id if answer.started else ""  # an existing run may not be the first of its chain
        return Reference(
            answer.becomes or request.workflow_id,
            answer.run_id,
            first_execution_run_id=first,
            return_type=return_type,
        )

    return asking(request, parse)


def execute(
    session: ClientSession,
    workflow: object,
    arguments: Sequence[Any],
    options: Mapping[str, Any],
    result_type: Any,
) -> ClientOperation[Any]:
    """Start a workflow and wait for its result. Use a single request if the engine supports waiting. Without interceptors."""
    definition = resolve_workflow(workflow)
    return_type = definition.return_type if result_type is None else result_type
    if session.contextual:
        session, options = _identified(session, options)
    request = start_request(definition, arguments, options, session.converter, session.identity)

    async def ask(session: ClientSession) -> Outcome:
        with WaitNotice(session, request.workflow_id, ""):
            executed = await session.call(
                ExecuteWorkflow(
                    start=request, rpc_timeout=request.rpc_timeout, rpc_metadata=request.rpc_metadata
                )
            )
        successor = successor_of(executed.outcome)
        if not successor and not isinstance(executed.outcome, StillOpen):
            return executed.outcome
        run_id = successor or executed.run_id
        return await wait_for_close(session, request.workflow_id, run_id, follow=True, timeout=None)

    return ClientOperation(
        ask, functools.partial(result_of, request.workflow_id, return_type, session.converter)
    )


def start_call(
    definition: ResolvedReference,
    arguments: Sequence[Any],
    options: Mapping[str, Any],
    build: Callable[[Any], Any],
    return_type: Any,
) -> StartWorkflowInput:
    """Return the input of a start, with a generated id if none is set."""
    remaining = {name: value for name, value in without_rpc(options).items() if name != "id"}
    workflow_id = options["id"] if "id" in options else new_id()
    return StartWorkflowInput(
        workflow=definition.name,
        id=workflow_id,
        args=list(arguments),
        options=remaining,
        result_type=return_type,
        **rpc_fields(options),
        _proceed=build,
    )


def requested(
    session: ClientSession, definition: ResolvedReference, call: StartWorkflowInput
) -> StartWorkflow:
    """Return the start request for a call, after interceptors."""
    named = definition if call.workflow == definition.name else replace(definition, name=call.workflow)
    converter = session.of_workflow(call.id).converter
    options = {**call.options, **call._rpc(), "id": call.id}
    request = start_request(named, call.args, options, converter, session.identity)
    return msgspec.structs.replace(request, headers=call.headers) if call.headers else request


class PlannedStart:
    """A start that is sent together with a message."""

    def __init__(
        self,
        session: ClientSession,
        workflow: object,
        arguments: Sequence[Any],
        options: Mapping[str, Any],
        result_type: Any,
    ) -> None:
        if "start_signal" in options:
            raise UsageError(
                "with_start does not accept start_signal: call .signal(…) or .execute_update(…) of its result"
            )
        if "id" not in options:
            raise UsageError("with_start needs the id of the workflow")
        self._session = session
        self.workflow = workflow
        self.arguments = arguments
        self.options = options
        self.result_type = result_type
        self.headers: Headers = {}
        """Headers of the start, set by workflow interceptors."""
        self._reference: Reference | None = None
        self.sent = Reference("")
        """The reference to the workflow without a run id, after interceptors."""

    def sent_as(self, reference: Reference) -> None:
        """Store the reference to the workflow that will be started or used."""
        self.sent = reference

    @property
    def is_sent(self) -> bool:
        """Whether the workflow was started or used."""
        return self._reference is not None

    @property
    def reference(self) -> Reference:
        """The reference to the workflow that was started or used."""
        if self._reference is None:
            raise UsageError("the workflow has not been started: call .signal(…) or .execute_update(…) first")
        return self._reference

    def call(self) -> tuple[StartWorkflowInput, Callable[[StartWorkflowInput], StartWorkflow], Reference]:
        """Return the input of the start, the function that builds its request, and a reference to the workflow without a run
        id.
        """
        definition = resolve_workflow(self.workflow)
        build = functools.partial(requested, self._session, definition)
        return_type = definition.return_type if self.result_type is None else self.result_type
        call = start_call(definition, self.arguments, self.options, build, return_type)
        return call, build, Reference(call.id, return_type=return_type)

    def began(self, reference: Reference) -> Reference:
        """Store the reference to the workflow that was started or used, and return it."""
        self._reference = reference
        return reference


def signal(planned: PlannedStart, message: object, arguments: Sequence[Any]) -> ClientOperation[Reference]:
    """Start a workflow and signal it atomically."""
    options = {**planned.options, "start_signal": message, "start_signal_args": arguments}
    operation = start(
        planned._session,
        planned.workflow,
        planned.arguments,
        options,
        planned.result_type,
        planned.headers,
    )
    return operation.then(planned.began)
