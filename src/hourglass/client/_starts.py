"""Operations that start workflows, written once for both faces: as they are, to their end, or with a signal in one step; and
what a start is that waits for what is sent with it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from hourglass._contract.service import new_id
from hourglass._contract.workflows import ExecuteWorkflow, Outcome, Started, StartWorkflow, StillOpen
from hourglass._evaluator.interception import Headers
from hourglass.client._calls import StartWorkflowInput
from hourglass.client._operations import Reference
from hourglass.client._options import rpc_fields, start_request, without_rpc
from hourglass.client._session import ClientOperation, ClientSession, asking, through
from hourglass.client._waiting import WaitNotice, result_of, successor_of, wait_for_close
from hourglass.errors import UsageError
from hourglass.workflow._references import Given, given_workflow


def start(
    session: ClientSession,
    workflow: object,
    arguments: Sequence[Any],
    options: Mapping[str, Any],
    result_type: Any,
    headers: Headers | None = None,
) -> ClientOperation[Reference]:
    """Start a workflow; gives what its handle refers to."""
    given = given_workflow(workflow)
    return_type = given.return_type if result_type is None else result_type
    if not session.interceptors and not headers:
        session, options = _identified(session, options)
        return _start(
            start_request(given, arguments, options, session.converter, session.identity), return_type
        )

    def build(call: StartWorkflowInput) -> ClientOperation[Reference]:
        return _start(requested(session, given, call), call.result_type)

    call = start_call(given, arguments, options, build, return_type)
    call.headers.update(headers or {})
    return through(session, call)


def _identified(
    session: ClientSession, options: Mapping[str, Any]
) -> tuple[ClientSession, Mapping[str, Any]]:
    """The session for the values of the workflow that is started, whose id must be known for that."""
    if not session.contextual:
        return session, options
    workflow_id = options.get("id") or new_id()
    return session.of_workflow(workflow_id), {**options, "id": workflow_id}


def _start(request: StartWorkflow, return_type: Any) -> ClientOperation[Reference]:
    def parse(answer: Started) -> Reference:
        first = answer.run_id if answer.started else ""  # an existing run need not be the chain's first
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
    """Start a workflow and wait for its result, in one go; interceptors, who could see a start, are not asked."""
    given = given_workflow(workflow)
    return_type = given.return_type if result_type is None else result_type
    session, options = _identified(session, options)
    request = start_request(given, arguments, options, session.converter, session.identity)

    async def ask(session: ClientSession) -> Outcome:
        notice = WaitNotice(session, request.workflow_id, "")
        try:
            executed = await session.call(
                ExecuteWorkflow(
                    start=request, rpc_timeout=request.rpc_timeout, rpc_metadata=request.rpc_metadata
                )
            )
        finally:
            notice.end()
        successor = successor_of(executed.outcome)
        if not successor and not isinstance(executed.outcome, StillOpen):
            return executed.outcome
        run_id = successor or executed.run_id
        return await wait_for_close(session, request.workflow_id, run_id, follow=True, timeout=None)

    return ClientOperation(
        ask, functools.partial(result_of, request.workflow_id, return_type, session.converter)
    )


def start_call(
    given: Given,
    arguments: Sequence[Any],
    options: Mapping[str, Any],
    build: Callable[[Any], Any],
    return_type: Any,
) -> StartWorkflowInput:
    """A start as interceptors see it; the id of one that was given none is made here."""
    rest = {name: value for name, value in without_rpc(options).items() if name != "id"}
    workflow_id = options["id"] if "id" in options else new_id()
    return StartWorkflowInput(
        workflow=given.name,
        id=workflow_id,
        args=list(arguments),
        options=rest,
        result_type=return_type,
        **rpc_fields(options),
        _proceed=build,
    )


def requested(session: ClientSession, given: Given, call: StartWorkflowInput) -> StartWorkflow:
    """The request of a start, as the interceptors left it."""
    named = given if call.workflow == given.name else replace(given, name=call.workflow)
    converter = session.of_workflow(call.id).converter
    options = {**call.options, **call._rpc(), "id": call.id}
    request = start_request(named, call.args, options, converter, session.identity)
    return msgspec.structs.replace(request, headers=call.headers) if call.headers else request


# --- with what is sent along ----------------------------------------------------------------------


class PlannedStart:
    """A start that waits for what is sent with it."""

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
                "with_start sends what you call on it: .signal(…) or .execute_update(…), not start_signal"
            )
        if "id" not in options:
            raise UsageError("with_start needs the id of the workflow that is to run")
        self._session = session
        self.workflow = workflow
        self.arguments = arguments
        self.options = options
        self.result_type = result_type
        self.headers: Headers = {}
        """What travels along with the start, where a workflow's interceptors have put something there."""
        self._reference: Reference | None = None
        self.sent = Reference("")
        """What the handle refers to, but for the run, as the interceptors left it."""

    def sent_as(self, reference: Reference) -> None:
        """Remember what is about to be started, or used."""
        self.sent = reference

    @property
    def is_sent(self) -> bool:
        """Whether it is known what was started or used."""
        return self._reference is not None

    @property
    def reference(self) -> Reference:
        """What was started or used."""
        if self._reference is None:
            raise UsageError(
                "nothing was sent yet: the workflow is not started before .signal(…) or .execute_update(…)"
            )
        return self._reference

    def call(self) -> tuple[StartWorkflowInput, Callable[[StartWorkflowInput], StartWorkflow], Reference]:
        """The start as interceptors see it, how its request is built, and what its handle refers to but for the run."""
        given = given_workflow(self.workflow)
        build = functools.partial(requested, self._session, given)
        return_type = given.return_type if self.result_type is None else self.result_type
        call = start_call(given, self.arguments, self.options, build, return_type)
        return call, build, Reference(call.id, return_type=return_type)

    def began(self, reference: Reference) -> Reference:
        """Remember what was started or used."""
        self._reference = reference
        return reference


def signal(planned: PlannedStart, message: object, arguments: Sequence[Any]) -> ClientOperation[Reference]:
    """Start and signal."""
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
