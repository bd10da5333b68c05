"""Operations on workflows. Each function builds a request from the caller's arguments, and parses the answer.

Both clients run the same operations. Building and parsing never wait; `ask` runs on the control loop.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import msgspec

from hourglass._contract.ids import new_id
from hourglass._contract.service import Nothing, Request
from hourglass._contract.workflows import (
    CancelWorkflow,
    CountWorkflows,
    DescribeWorkflow,
    Description,
    GetHistory,
    HistoryEventFilter,
    HistoryPage,
    ListWorkflows,
    Outcome,
    Page,
    PendingUpdate,
    QueryAnswer,
    QueryRejectCondition,
    QueryWorkflow,
    SignalWorkflow,
    SkipTime,
    TerminateWorkflow,
    TimeSkippingConfig,
    UpdateWorkflowOptions,
    WaitForFastForward,
    WorkflowStatus,
)
from hourglass._evaluator.options import (
    INT32,
    Duration,
    check_text,
    choice,
    fairness_key,
    fairness_weight,
    optional_seconds,
    priority,
    whole_number,
)
from hourglass._evaluator.specs import StartSpec, check_override
from hourglass._history.codec import read_event
from hourglass._history.events import WorkflowExecutionUpdateAccepted
from hourglass.client._calls import (
    CancelWorkflowInput,
    CountWorkflowsInput,
    DescribeWorkflowInput,
    FetchWorkflowHistoryEventsInput,
    ListWorkflowsInput,
    QueryWorkflowInput,
    SignalWorkflowInput,
    TerminateWorkflowInput,
    WorkflowEndInput,
)
from hourglass.client._options import (
    WorkflowOptionsUpdate,
    check_changes,
    check_time_skipping,
)
from hourglass.client._session import ClientOperation, ClientSession, asking, listing, nothing, through
from hourglass.client._values import (
    HistoryEventPage,
    WorkflowDescription,
    WorkflowExecutionCount,
    WorkflowExecutionPage,
    count_from,
    description_from,
    execution_from,
)
from hourglass.client._waiting import (
    first,
    result_of,
    wait_for_close,
)
from hourglass.errors import (
    QueryRejectedError,
    ServiceError,
    UsageError,
)
from hourglass.workflow._references import resolve_message, resolve_workflow


class Reference(msgspec.Struct, frozen=True):
    """The workflow of a handle. A pinned handle addresses its own run; any other handle addresses the current run of the
    workflow id.
    """

    workflow_id: str
    run_id: str = ""
    pinned: bool = False
    first_execution_run_id: str = ""
    return_type: Any = Any

    @property
    def addressed_run(self) -> str:
        """The run id for requests; empty to address the current run."""
        return self.run_id if self.pinned else ""

    def addressed(self) -> dict[str, Any]:
        """Return the workflow id and run id for the input of a call."""
        return {"id": self.workflow_id, "run_id": self.addressed_run or None}


def refer(
    workflow_id: str,
    run_id: str | None,
    workflow: object,
    result_type: Any,
    first_execution_run_id: str | None = None,
) -> Reference:
    """Return a reference to an existing workflow for a handle, without sending a request."""
    if not isinstance(workflow_id, str) or not workflow_id:
        raise UsageError("a workflow's id must be a non-empty str")
    check_text(workflow_id, "a workflow's id")
    if run_id is not None:
        check_text(run_id, "run_id")
    if workflow is not None and result_type is not None:
        raise UsageError("pass workflow or result_type, not both")
    return_type = Any if result_type is None else result_type
    if workflow is not None:
        return_type = resolve_workflow(workflow).return_type
    if first_execution_run_id is not None:
        check_text(first_execution_run_id, "first_execution_run_id")
    return Reference(
        workflow_id,
        run_id or "",
        pinned=bool(run_id),
        first_execution_run_id=first_execution_run_id or "",
        return_type=return_type,
    )


def list_page(
    session: ClientSession, query: str, page_size: int, token: bytes
) -> ClientOperation[WorkflowExecutionPage]:
    """Return one page of the matching runs."""

    def parse(page: Page) -> WorkflowExecutionPage:
        items = tuple(
            execution_from(summary, session.of_workflow(summary.workflow_id).converter)
            for summary in page.workflows
        )
        return WorkflowExecutionPage(items, page.next_page_token, page.notice)

    return listing(session, ListWorkflowsInput, ListWorkflows, parse, query, page_size, token)


def count(session: ClientSession, query: str) -> ClientOperation[WorkflowExecutionCount]:
    """Return the number of matching runs."""

    def build(call: CountWorkflowsInput) -> ClientOperation[WorkflowExecutionCount]:
        return asking(CountWorkflows(query=call.query), count_from)

    return through(session, CountWorkflowsInput(query=query, _proceed=build))


def result(
    session: ClientSession, reference: Reference, timeout: Duration | None, follow: bool
) -> ClientOperation[Any]:
    """Wait for a workflow's result."""
    limit = optional_seconds(timeout, "timeout")

    def ask(session: ClientSession) -> Coroutine[Any, Any, Outcome]:
        return wait_for_close(session, reference.workflow_id, reference.run_id, follow=follow, timeout=limit)

    return ClientOperation(
        ask, functools.partial(result_of, reference.workflow_id, reference.return_type, session.converter)
    )


def signal(
    session: ClientSession,
    reference: Reference,
    message: object,
    arguments: Sequence[Any],
    request_id: str | None = None,
) -> ClientOperation[None]:
    """Send a signal."""
    sent_as = new_id() if request_id is None else check_text(request_id, "request_id")
    definition = resolve_message("signal", message)

    def build(call: SignalWorkflowInput) -> ClientOperation[None]:
        request = SignalWorkflow(
            workflow_id=call.id,
            run_id=call.run_id or "",
            signal_name=call.signal,
            arguments=definition.encode(session.converter, call.args),
            headers=call.headers,
            request_id=sent_as,
            identity=session.identity,
        )
        return asking(request, nothing)

    return through(
        session,
        SignalWorkflowInput(
            **reference.addressed(), signal=definition.name, args=list(arguments), _proceed=build
        ),
    )


def query(
    session: ClientSession,
    reference: Reference,
    message: object,
    arguments: Sequence[Any],
    result_type: Any,
    reject_condition: QueryRejectCondition | None,
) -> ClientOperation[Any]:
    """Query a workflow."""
    definition = resolve_message("query", message)
    rejects = session.query_reject_condition if reject_condition is None else reject_condition
    return_type = definition.return_type if result_type is None else result_type

    def build(call: QueryWorkflowInput) -> ClientOperation[Any]:
        request = QueryWorkflow(
            workflow_id=call.id,
            run_id=call.run_id or "",
            query_name=call.query,
            arguments=definition.encode(session.converter, call.args),
            headers=call.headers,
            reject_condition=choice(
                QueryRejectCondition,
                call.reject_condition or QueryRejectCondition.NONE,
                "reject_condition",
            ),
        )
        return asking(request, functools.partial(parse, call.result_type))

    def parse(return_type: Any, answer: QueryAnswer) -> Any:
        if answer.rejected != WorkflowStatus.UNSPECIFIED:
            raise QueryRejectedError(
                f"query {definition.name!r} was not sent to workflow {reference.workflow_id!r}: its status is "
                f"{answer.rejected.name}",
                status=answer.rejected,
            )
        return first(answer.result, return_type, session.converter)

    return through(
        session,
        QueryWorkflowInput(
            **reference.addressed(),
            query=definition.name,
            args=list(arguments),
            reject_condition=rejects,
            result_type=return_type,
            _proceed=build,
        ),
    )


def cancel(session: ClientSession, reference: Reference, reason: str) -> ClientOperation[None]:
    """Request the cancellation of a workflow."""

    def build(call: CancelWorkflowInput) -> ClientOperation[None]:
        return asking(CancelWorkflow(**_ending(session, call)), nothing)

    return through(session, CancelWorkflowInput(**_ended(reference), reason=reason, _proceed=build))


def terminate(
    session: ClientSession,
    reference: Reference,
    reason: str,
    details: Sequence[Any],
) -> ClientOperation[None]:
    """Terminate a workflow immediately."""

    def build(call: TerminateWorkflowInput) -> ClientOperation[None]:
        details = tuple(session.converter.encode_all(call.args))
        return asking(TerminateWorkflow(**_ending(session, call), details=details), nothing)

    call = TerminateWorkflowInput(**_ended(reference), reason=reason, args=list(details), _proceed=build)
    return through(session, call)


def send(
    session: ClientSession, reference: Reference, kind: type[Request[Nothing]], **fields: Any
) -> ClientOperation[None]:
    """Send a request about a run. The methods in `_async_requests` use this operation."""
    common: dict[str, Any] = {
        "workflow_id": reference.workflow_id,
        "run_id": reference.addressed_run,
        "request_id": new_id(),
        "identity": session.identity,
    }
    fields |= {name: value for name, value in common.items() if name in kind.__struct_fields__}
    return asking(kind(**fields), nothing)


def _ended(reference: Reference) -> dict[str, Any]:
    return {**reference.addressed(), "first_execution_run_id": reference.first_execution_run_id or None}


def _ending(session: ClientSession, call: WorkflowEndInput) -> dict[str, Any]:
    """Return the fields of a request that ends a run."""
    return {
        "workflow_id": call.id,
        "run_id": call.run_id or "",
        "first_execution_run_id": call.first_execution_run_id or "",
        "request_id": new_id(),
        "reason": call.reason,
        "identity": session.identity,
    }


def update_options(
    session: ClientSession, reference: Reference, changes: Mapping[str, Any]
) -> ClientOperation[None]:
    """Change the options of a run."""
    check_changes("a run", WorkflowOptionsUpdate, changes)
    values = {name: _CHANGES[name](changes[name], name) for name in changes}
    override = values.pop("versioning_override", None)
    request = UpdateWorkflowOptions(
        workflow_id=reference.workflow_id,
        run_id=reference.addressed_run,
        fields=tuple(changes),
        versioning_override=override,
        spec=StartSpec(**values),
        identity=session.identity,
    )
    return asking(request, nothing)


def fast_forward(
    session: ClientSession,
    reference: Reference,
    duration: Duration | None,
    config: TimeSkippingConfig | None,
    timeout: Duration | None,
) -> ClientOperation[bool]:
    """Skip time in a run, and wait until the skip is complete."""
    limit = optional_seconds(timeout, "timeout")
    by = optional_seconds(duration, "duration")
    request = SkipTime(
        workflow_id=reference.workflow_id,
        run_id=reference.addressed_run,
        config=msgspec.structs.replace(check_time_skipping(config) or TimeSkippingConfig(), enabled=True),
        fast_forward_id="" if by is None else new_id(),
        seconds=by or 0.0,
        identity=session.identity,
    )

    async def ask(session: ClientSession) -> bool:
        async with session.within(limit):
            await session.call(request)
            if by is None:
                await wait_for_close(
                    session, request.workflow_id, reference.run_id, follow=False, timeout=None
                )
                return False
            wait = WaitForFastForward(
                workflow_id=request.workflow_id, fast_forward_id=request.fast_forward_id
            )
            while not (state := await session.call(wait)).over:
                pass
            if "does not match" in state.reason:
                raise ServiceError(
                    f"this fast_forward of workflow {request.workflow_id!r} was replaced by another one",
                    status="ABORTED",
                )
            return state.reached

    return ClientOperation(ask, bool)


_CHANGES: dict[str, Callable[[Any, str], Any]] = {
    "versioning_override": lambda value, name: check_override(value),
    "priority_key": priority,
    "fairness_key": fairness_key,
    "fairness_weight": fairness_weight,
}


def describe(session: ClientSession, reference: Reference) -> ClientOperation[WorkflowDescription]:
    """Return the description of a workflow."""

    def build(call: DescribeWorkflowInput) -> ClientOperation[WorkflowDescription]:
        request = DescribeWorkflow(workflow_id=call.id, run_id=call.run_id or "")

        async def ask(session: ClientSession) -> Description:
            return await _with_requested_updates(session, await session.call(request))

        return ClientOperation(ask, parse)

    def parse(answer: Description) -> WorkflowDescription:
        return description_from(answer, session.converter)

    return through(session, DescribeWorkflowInput(**reference.addressed(), _proceed=build))


async def _with_requested_updates(session: ClientSession, answer: Description) -> Description:
    """Add the updates that this client has requested and that no worker has accepted.

    A server does not list these updates. On a file without a worker, they have not left the client. A request that also
    waits for the result stays open after the update was accepted, so the history decides whether an update is pending.
    """
    summary = answer.summary
    listed = {update.update_id for update in answer.pending_updates}
    requested = [
        request
        for request in list(session.link.requested_updates.values())
        if request.workflow_id == summary.workflow_id
        and request.run_id in ("", summary.run_id)
        and request.update_id not in listed
    ]
    if not requested or summary.close_time_ns:
        return answer
    run = Reference(workflow_id=summary.workflow_id, run_id=summary.run_id, pinned=True)
    events = await fetch_history_events(run).ask(session)
    accepted = {
        attributes.update_id
        for event in events
        if isinstance(
            attributes := read_event(msgspec.json.decode(event)).attributes, WorkflowExecutionUpdateAccepted
        )
    }
    pending = [
        PendingUpdate(update_id=request.update_id, name=request.update_name)
        for request in requested
        if request.update_id not in accepted
    ]
    return msgspec.structs.replace(answer, pending_updates=(*answer.pending_updates, *pending))


def describe_briefly(session: ClientSession, reference: Reference) -> ClientOperation[WorkflowDescription]:
    """Return the description of a workflow for a timeline. Interceptors do not see this request, and its timeout is short."""
    request = DescribeWorkflow(
        workflow_id=reference.workflow_id, run_id=reference.addressed_run, rpc_timeout=_GLANCE
    )
    return asking(request, lambda answer: description_from(answer, session.converter))


_GLANCE = 5.0


def fetch_history_events(reference: Reference) -> ClientOperation[list[bytes]]:
    """Return all events of a run's history in Temporal's JSON format."""

    async def ask(session: ClientSession) -> list[bytes]:
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

    return ClientOperation(ask, list)


_WAITING_PAGE_SIZE = 1000


def history_page(
    session: ClientSession,
    reference: Reference,
    page_size: int,
    token: bytes,
    newest_first: bool,
    wait_new: bool = False,
    event_filter: HistoryEventFilter = HistoryEventFilter.ALL_EVENT,
) -> ClientOperation[HistoryEventPage]:
    """Return a page of the events of a run's history."""

    def parse(page: HistoryPage) -> HistoryEventPage:
        return HistoryEventPage(
            tuple(msgspec.json.decode(event) for event in page.events), page.next_page_token
        )

    def build(call: FetchWorkflowHistoryEventsInput) -> ClientOperation[HistoryEventPage]:
        size = whole_number(call.page_size, "page_size", 1, INT32)
        if call.wait_new_event:
            # While a request waits for new events, a Temporal server skips events that do not fit into one page.
            size = max(size, _WAITING_PAGE_SIZE)
        request = GetHistory(
            workflow_id=call.id,
            run_id=call.run_id or "",
            next_page_token=call.next_page_token,
            page_size=size,
            newest_first=call.newest_first,
            wait_new=call.wait_new_event,
            event_filter=choice(HistoryEventFilter, call.event_filter, "event_filter"),
        )
        return asking(request, parse)

    call = FetchWorkflowHistoryEventsInput(
        **reference.addressed(),
        page_size=page_size,
        next_page_token=token,
        newest_first=newest_first,
        wait_new_event=wait_new,
        event_filter=event_filter,
        _proceed=build,
    )
    return through(session, call)


def history(session: ClientSession, reference: Reference) -> ClientOperation[Any]:
    """Return a run's history, as `hourglass.replay.History`."""

    def parse(events: list[bytes]) -> Any:
        # Imported by name, because `replay` belongs to a layer above the client.
        replay = importlib.import_module("hourglass.replay")
        return replay.History.from_events(reference.workflow_id, events)

    def build(call: FetchWorkflowHistoryEventsInput) -> ClientOperation[Any]:
        run = Reference(call.id, call.run_id or "", pinned=bool(call.run_id))
        return ClientOperation(fetch_history_events(run).ask, parse)

    return through(session, FetchWorkflowHistoryEventsInput(**reference.addressed(), _proceed=build))
