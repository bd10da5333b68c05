"""Every operation of the client, written once: built here from what the caller gave, parsed here from the
answer.

The blocking and the asynchronous face run the same operations. Nothing here waits.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from hourglass._contract.ids import new_id
from hourglass._contract.service import (
    CancelWorkflow,
    CountWorkflows,
    DescribeWorkflow,
    Description,
    GetHistory,
    ListWorkflows,
    Page,
    QueryAnswer,
    QueryRejectCondition,
    QueryWorkflow,
    SignalWorkflow,
    Started,
    StartWorkflow,
    TerminateWorkflow,
    WorkflowStatus,
)
from hourglass._engine.options import INT32, Duration, check_text, choice, optional_seconds, whole_number
from hourglass.client._interception import (
    CancelWorkflowInput,
    DescribeWorkflowInput,
    QueryWorkflowInput,
    SignalWorkflowInput,
    StartWorkflowInput,
    TerminateWorkflowInput,
)
from hourglass.client._options import start_request
from hourglass.client._outcomes import first, result_of
from hourglass.client._session import Operation, Session, asking, nothing, through
from hourglass.client._values import (
    WorkflowDescription,
    WorkflowExecution,
    WorkflowExecutionCount,
    count_from,
    description_from,
    execution_from,
)
from hourglass.client._waiting import Closed, wait_for_close
from hourglass.errors import (
    QueryRejectedError,
    UsageError,
)
from hourglass.workflow._given import Given, given_message, given_workflow


class Reference(msgspec.Struct, frozen=True):
    """Which workflow a handle means. Only a pinned one is addressed by its run; others by their id alone."""

    workflow_id: str
    run_id: str = ""
    pinned: bool = False
    first_execution_run_id: str = ""
    return_type: Any = Any

    @property
    def addressed_run(self) -> str:
        """The run id to send along: empty means whichever run is the current one."""
        return self.run_id if self.pinned else ""

    def addressed(self) -> dict[str, Any]:
        """Whom a call means, as interceptors see it."""
        return {"id": self.workflow_id, "run_id": self.addressed_run or None}


class Executions(msgspec.Struct, frozen=True):
    """A page of a list, and where to go on (empty at the end)."""

    items: tuple[WorkflowExecution, ...]
    next_page_token: bytes


# --- starting and finding ---------------------------------------------------------------------------------


def start(
    session: Session, workflow: object, arguments: Sequence[Any], options: Mapping[str, Any], result_type: Any
) -> Operation[Reference]:
    """Start a workflow; gives what its handle refers to."""
    given = given_workflow(workflow)
    return_type = given.return_type if result_type is None else result_type
    if not session.interceptors:
        return _start(
            start_request(given, arguments, options, session.converter, session.identity), return_type
        )

    def build(call: StartWorkflowInput) -> Operation[Reference]:
        return _start(requested(session, given, call), return_type)

    return through(session, start_call(given, arguments, options, build))


def _start(request: StartWorkflow, return_type: Any) -> Operation[Reference]:
    def parse(answer: Started) -> Reference:
        first = answer.run_id if answer.started else ""  # an existing run need not be the chain's first
        return Reference(
            request.workflow_id, answer.run_id, first_execution_run_id=first, return_type=return_type
        )

    return asking(request, parse)


def execute(
    session: Session, workflow: object, arguments: Sequence[Any], options: Mapping[str, Any], result_type: Any
) -> Operation[Any]:
    """Start a workflow and wait for its result, in one go; interceptors, who could see a start, are not asked."""
    given = given_workflow(workflow)
    return_type = given.return_type if result_type is None else result_type
    request = start_request(given, arguments, options, session.converter, session.identity)

    async def ask(session: Session) -> Closed:
        started = await session.call(request)
        return await wait_for_close(session, request.workflow_id, started.run_id, follow=True, timeout=None)

    return Operation(ask, functools.partial(result_of, request.workflow_id, return_type, session.converter))


def start_call(
    given: Given, arguments: Sequence[Any], options: Mapping[str, Any], build: Callable[[Any], Any]
) -> StartWorkflowInput:
    """A start as interceptors see it; the id of one that was given none is made here."""
    rest = {name: value for name, value in options.items() if name != "id"}
    workflow_id = options["id"] if "id" in options else new_id()
    return StartWorkflowInput(
        workflow=given.name, id=workflow_id, args=list(arguments), options=rest, _proceed=build
    )


def requested(session: Session, given: Given, call: StartWorkflowInput) -> StartWorkflow:
    """The request of a start, as the interceptors left it."""
    named = given if call.workflow == given.name else replace(given, name=call.workflow)
    request = start_request(
        named, call.args, {**call.options, "id": call.id}, session.converter, session.identity
    )
    return msgspec.structs.replace(request, headers=call.headers) if call.headers else request


def refer(workflow_id: str, run_id: str | None, workflow: object, result_type: Any) -> Reference:
    """What a handle to an existing workflow refers to. Asks nobody."""
    if not isinstance(workflow_id, str) or not workflow_id:
        raise UsageError("a workflow's id must be a text that is not empty")
    check_text(workflow_id, "a workflow's id")
    if run_id is not None:
        check_text(run_id, "run_id")
    if workflow is not None and result_type is not None:
        raise UsageError("give workflow or result_type, not both")
    return_type = Any if result_type is None else result_type
    if workflow is not None:
        return_type = given_workflow(workflow).return_type
    return Reference(workflow_id, run_id or "", pinned=bool(run_id), return_type=return_type)


def list_page(session: Session, query: str, page_size: int, token: bytes) -> Operation[Executions]:
    """One page of the runs that match."""

    def parse(page: Page) -> Executions:
        items = tuple(execution_from(summary, session.converter) for summary in page.workflows)
        return Executions(items, page.next_page_token)

    size = whole_number(page_size, "page_size", 1, INT32)
    return asking(ListWorkflows(query=query, page_size=size, next_page_token=token), parse)


def count(query: str) -> Operation[WorkflowExecutionCount]:
    """How many runs match."""
    return asking(CountWorkflows(query=query), count_from)


# --- one workflow -----------------------------------------------------------------------------------------


def result(session: Session, reference: Reference, timeout: Duration | None, follow: bool) -> Operation[Any]:
    """Wait for a workflow's result."""
    limit = optional_seconds(timeout, "timeout")

    def ask(session: Session) -> Coroutine[Any, Any, Closed]:
        return wait_for_close(session, reference.workflow_id, reference.run_id, follow=follow, timeout=limit)

    return Operation(
        ask, functools.partial(result_of, reference.workflow_id, reference.return_type, session.converter)
    )


def signal(
    session: Session,
    reference: Reference,
    message: object,
    arguments: Sequence[Any],
    rpc_timeout: Duration | None,
) -> Operation[None]:
    """Send a signal."""
    given = given_message("signal", message)

    def build(call: SignalWorkflowInput) -> Operation[None]:
        request = SignalWorkflow(
            workflow_id=call.id,
            run_id=call.run_id or "",
            signal_name=call.signal,
            arguments=given.encode(session.converter, call.args),
            headers=call.headers,
            request_id=new_id(),
            identity=session.identity,
            rpc_timeout=optional_seconds(rpc_timeout, "rpc_timeout"),
        )
        return asking(request, nothing)

    return through(
        session,
        SignalWorkflowInput(**reference.addressed(), signal=given.name, args=list(arguments), _proceed=build),
    )


def query(
    session: Session,
    reference: Reference,
    message: object,
    arguments: Sequence[Any],
    result_type: Any,
    reject_condition: QueryRejectCondition,
    rpc_timeout: Duration | None,
) -> Operation[Any]:
    """Ask a workflow a question."""
    given = given_message("query", message)
    return_type = given.return_type if result_type is None else result_type

    def build(call: QueryWorkflowInput) -> Operation[Any]:
        request = QueryWorkflow(
            workflow_id=call.id,
            run_id=call.run_id or "",
            query_name=call.query,
            arguments=given.encode(session.converter, call.args),
            headers=call.headers,
            reject_condition=choice(QueryRejectCondition, reject_condition, "reject_condition"),
            rpc_timeout=optional_seconds(rpc_timeout, "rpc_timeout"),
        )
        return asking(request, parse)

    def parse(answer: QueryAnswer) -> Any:
        if answer.rejected != WorkflowStatus.UNSPECIFIED:
            raise QueryRejectedError(
                f"query {given.name!r} was not put to workflow {reference.workflow_id!r}: its status is "
                f"{answer.rejected.name}",
                status=answer.rejected,
            )
        return first(answer.result, return_type, session.converter)

    return through(
        session,
        QueryWorkflowInput(**reference.addressed(), query=given.name, args=list(arguments), _proceed=build),
    )


def cancel(
    session: Session, reference: Reference, reason: str, rpc_timeout: Duration | None
) -> Operation[None]:
    """Ask a workflow to cancel."""

    def build(call: CancelWorkflowInput) -> Operation[None]:
        request = CancelWorkflow(
            workflow_id=call.id,
            run_id=call.run_id or "",
            first_execution_run_id=reference.first_execution_run_id,
            reason=call.reason,
            request_id=new_id(),
            identity=session.identity,
            rpc_timeout=optional_seconds(rpc_timeout, "rpc_timeout"),
        )
        return asking(request, nothing)

    return through(session, CancelWorkflowInput(**reference.addressed(), reason=reason, _proceed=build))


def terminate(
    session: Session, reference: Reference, reason: str, details: Sequence[Any], rpc_timeout: Duration | None
) -> Operation[None]:
    """End a workflow now."""

    def build(call: TerminateWorkflowInput) -> Operation[None]:
        request = TerminateWorkflow(
            workflow_id=call.id,
            run_id=call.run_id or "",
            first_execution_run_id=reference.first_execution_run_id,
            reason=call.reason,
            details=tuple(session.converter.encode_all(call.args)),
            request_id=new_id(),
            identity=session.identity,
            rpc_timeout=optional_seconds(rpc_timeout, "rpc_timeout"),
        )
        return asking(request, nothing)

    call = TerminateWorkflowInput(**reference.addressed(), reason=reason, args=list(details), _proceed=build)
    return through(session, call)


def describe(
    session: Session, reference: Reference, rpc_timeout: Duration | None
) -> Operation[WorkflowDescription]:
    """Look at a workflow."""

    def build(call: DescribeWorkflowInput) -> Operation[WorkflowDescription]:
        request = DescribeWorkflow(
            workflow_id=call.id,
            run_id=call.run_id or "",
            rpc_timeout=optional_seconds(rpc_timeout, "rpc_timeout"),
        )
        return asking(request, parse)

    def parse(answer: Description) -> WorkflowDescription:
        return description_from(answer, session.converter)

    return through(session, DescribeWorkflowInput(**reference.addressed(), _proceed=build))


def fetch_history_events(reference: Reference) -> Operation[list[bytes]]:
    """Every event of a run's history, in Temporal's JSON form."""

    async def ask(session: Session) -> list[bytes]:
        events: list[bytes] = []
        token = b""
        while True:
            page = await session.call(
                GetHistory(
                    workflow_id=reference.workflow_id,
                    run_id=reference.addressed_run,
                    next_page_token=token,
                )
            )
            events.extend(page.events)
            token = page.next_page_token
            if not token:
                return events

    return Operation(ask, list)


def history(reference: Reference) -> Operation[Any]:
    """A run's history, as `hourglass.replay.History`."""

    def parse(events: list[bytes]) -> Any:
        # By name: `replay` stands above the client, which must be usable without it.
        replay = importlib.import_module("hourglass.replay")
        return replay.History.from_events(reference.workflow_id, events)

    return Operation(fetch_history_events(reference).ask, parse)
