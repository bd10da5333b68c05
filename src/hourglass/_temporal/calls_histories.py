"""Calls that read a run's history: wait for its end, fetch its events. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import temporalio.api.workflowservice.v1 as ws
from temporalio.api.enums.v1 import HistoryEventFilterType

from hourglass._contract import service as sv
from hourglass._temporal.calls import LONG_POLL, ORDINARY, Call, Scope, put_execution
from hourglass._temporal.failures import failure_from
from hourglass._temporal.histories import event_to_json
from hourglass._temporal.payloads import payloads_from

RPC = "get_workflow_execution_history"


def wait_for_close(request: sv.WaitForClose, scope: Scope) -> Call:
    """Wait until a run closes: the server holds the call open for 20 s, then says that nothing happened."""
    message: Any = ws.GetWorkflowExecutionHistoryRequest(
        namespace=scope.namespace,
        wait_new_event=True,
        history_event_filter_type=HistoryEventFilterType.HISTORY_EVENT_FILTER_TYPE_CLOSE_EVENT,
        skip_archival=True,
    )
    put_execution(message.execution, request.workflow_id, request.run_id)
    open_still = sv.StillOpen(request.run_id)
    return Call(RPC, message, lambda data: _outcome(data, open_still), LONG_POLL, open_still)


def _outcome(data: bytes, open_still: sv.StillOpen) -> sv.Outcome:
    events = ws.GetWorkflowExecutionHistoryResponse.FromString(data).history.events
    if not events:
        return open_still
    event = events[-1]
    kind = event.WhichOneof("attributes")
    read = _OUTCOMES.get(kind)
    return open_still if kind is None or read is None else read(getattr(event, kind))


def _completed(end: Any) -> sv.Outcome:
    return sv.RunCompleted(payloads_from(end.result.payloads), end.new_execution_run_id)


def _failed(end: Any) -> sv.Outcome:
    return sv.RunFailed(failure_from(end.failure), end.new_execution_run_id)


def _canceled(end: Any) -> sv.Outcome:
    return sv.RunCanceled(payloads_from(end.details.payloads))


def _terminated(end: Any) -> sv.Outcome:
    return sv.RunTerminated(end.reason, payloads_from(end.details.payloads))


def _timed_out(end: Any) -> sv.Outcome:
    return sv.RunTimedOut(end.new_execution_run_id)


def _continued(end: Any) -> sv.Outcome:
    return sv.RunContinued(end.new_execution_run_id)


_OUTCOMES: dict[str | None, Callable[[Any], sv.Outcome]] = {
    "workflow_execution_completed_event_attributes": _completed,
    "workflow_execution_failed_event_attributes": _failed,
    "workflow_execution_canceled_event_attributes": _canceled,
    "workflow_execution_terminated_event_attributes": _terminated,
    "workflow_execution_timed_out_event_attributes": _timed_out,
    "workflow_execution_continued_as_new_event_attributes": _continued,
}


def history(request: sv.GetHistory, scope: Scope) -> Call:
    """Fetch a page of events, or wait for new ones."""
    message: Any = ws.GetWorkflowExecutionHistoryRequest(
        namespace=scope.namespace,
        next_page_token=request.next_page_token,
        wait_new_event=request.wait_new,
        skip_archival=request.wait_new,
    )
    put_execution(message.execution, request.workflow_id, request.run_id)
    late = sv.HistoryPage((), request.next_page_token) if request.wait_new else None
    return Call(RPC, message, _page, LONG_POLL if request.wait_new else ORDINARY, late)


def _page(data: bytes) -> sv.HistoryPage:
    answer = ws.GetWorkflowExecutionHistoryResponse.FromString(data)
    return sv.HistoryPage(
        tuple(event_to_json(event) for event in answer.history.events), answer.next_page_token
    )
