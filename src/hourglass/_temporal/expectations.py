"""What a history says that a workflow asked for, in order, as data: the other side of a comparison with its commands.
Pure.

Also reads what other SDKs put into histories as encoded messages of Temporal's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from temporalio.api.common.v1 import Payloads as PayloadsMessage
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import History, HistoryEvent

from hourglass._engine.specs import Payloads
from hourglass._temporal.dialect import Dialect, dialect_of, sdk_name
from hourglass._temporal.payloads import failure_from, payload_map_from, payloads_from
from hourglass.converter import Failure, Payload

# --- payloads of other SDKs ------------------------------------------------------------------------------------------


def payloads_from_bytes(data: bytes) -> Payloads:
    """An encoded Payloads message as data. Raises `ValueError`."""
    try:
        return payloads_from(PayloadsMessage.FromString(data).payloads)
    except Exception:
        raise ValueError("these bytes are no payloads") from None


def payloads_from_json(text: bytes) -> Payloads:
    """A Payloads message in JSON as data. Raises `ValueError`."""
    from google.protobuf import json_format

    message = PayloadsMessage()
    try:
        json_format.Parse(text, message, ignore_unknown_fields=True)
    except json_format.ParseError:
        raise ValueError("this is no JSON of payloads") from None
    return payloads_from(message.payloads)


# --- what the events say ---------------------------------------------------------------------------------------------


class Expected(msgspec.Struct, frozen=True):
    """One thing a run asked for, as its history tells it. `key` tells those of one kind apart."""

    event_id: int
    kind: str
    key: str = ""
    name: str = ""
    payloads: Payloads = ()
    duration_ns: int | None = None
    failure: Failure | None = None
    memo: dict[str, Payload] = {}
    search_attributes: dict[str, Payload] = {}


class HistoryFacts(msgspec.Struct, frozen=True):
    """What a replay needs to know of a history before it begins."""

    workflow_type: str
    workflow_id: str
    run_id: str
    task_queue: str
    events: int
    expected: tuple[Expected, ...]
    dialect: Dialect = Dialect.PYTHON
    may_be_python: bool = True
    """Whether Python's SDK may have written it: histories that name no SDK do not say."""


def read_facts(history: bytes) -> HistoryFacts:
    """Read an encoded History message that has been checked."""
    message = History.FromString(history)
    first = message.events[0].workflow_execution_started_event_attributes
    expected = []
    for event in message.events:
        read = _READ.get(event.event_type)
        if read is not None:
            expected.append(read(event))
    return HistoryFacts(
        workflow_type=first.workflow_type.name,
        workflow_id=first.workflow_id,
        run_id=first.original_execution_run_id,
        task_queue=first.task_queue.name,
        events=len(message.events),
        expected=tuple(expected),
        dialect=dialect_of(message.events),
        may_be_python=sdk_name(message.events) in ("", "temporal-python"),
    )


def _activity(event: HistoryEvent) -> Expected:
    a = event.activity_task_scheduled_event_attributes
    return Expected(
        event.event_id, "activity", a.activity_id, a.activity_type.name, payloads_from(a.input.payloads)
    )


def _timer(event: HistoryEvent) -> Expected:
    a = event.timer_started_event_attributes
    return Expected(event.event_id, "timer", a.timer_id, duration_ns=a.start_to_fire_timeout.ToNanoseconds())


def _child(event: HistoryEvent) -> Expected:
    a = event.start_child_workflow_execution_initiated_event_attributes
    return Expected(
        event.event_id,
        "child workflow",
        a.workflow_id,
        a.workflow_type.name,
        payloads_from(a.input.payloads),
        memo=payload_map_from(a.memo.fields),
        search_attributes=payload_map_from(a.search_attributes.indexed_fields),
    )


def _signal(event: HistoryEvent) -> Expected:
    a = event.signal_external_workflow_execution_initiated_event_attributes
    return Expected(
        event.event_id,
        "signal to another workflow",
        a.workflow_execution.workflow_id,
        a.signal_name,
        payloads_from(a.input.payloads),
    )


def _cancel(event: HistoryEvent) -> Expected:
    a = event.request_cancel_external_workflow_execution_initiated_event_attributes
    return Expected(event.event_id, "cancel request to another workflow", a.workflow_execution.workflow_id)


def _completed(event: HistoryEvent) -> Expected:
    a = event.workflow_execution_completed_event_attributes
    return Expected(event.event_id, "completion", payloads=payloads_from(a.result.payloads))


def _failed(event: HistoryEvent) -> Expected:
    a = event.workflow_execution_failed_event_attributes
    return Expected(event.event_id, "failure", failure=failure_from(a.failure))


def _continued(event: HistoryEvent) -> Expected:
    a = event.workflow_execution_continued_as_new_event_attributes
    # Servers of the first years ended a run so that was to be tried again, or came round by its cron schedule.
    if a.initiator == _RETRY or (a.initiator == _CRON and a.HasField("failure")):
        return Expected(event.event_id, "failure", failure=failure_from(a.failure))
    if a.initiator == _CRON:
        return Expected(
            event.event_id, "completion", payloads=payloads_from(a.last_completion_result.payloads)
        )
    return Expected(
        event.event_id,
        "continue-as-new",
        name=a.workflow_type.name,
        payloads=payloads_from(a.input.payloads),
        memo=payload_map_from(a.memo.fields),
        search_attributes=payload_map_from(a.search_attributes.indexed_fields),
    )


def _activity_cancel(event: HistoryEvent) -> Expected:
    a = event.activity_task_cancel_requested_event_attributes
    return Expected(event.event_id, "cancellation of the activity of event", str(a.scheduled_event_id))


def _timer_cancel(event: HistoryEvent) -> Expected:
    a = event.timer_canceled_event_attributes
    return Expected(event.event_id, "cancellation of the timer of event", str(a.started_event_id))


def _upserted(event: HistoryEvent) -> Expected:
    a = event.upsert_workflow_search_attributes_event_attributes
    fields = payload_map_from(a.search_attributes.indexed_fields)
    return Expected(event.event_id, "change of search attributes", search_attributes=fields)


def _modified(event: HistoryEvent) -> Expected:
    a = event.workflow_properties_modified_event_attributes
    return Expected(event.event_id, "change of the memo", memo=payload_map_from(a.upserted_memo.fields))


def _accepted(event: HistoryEvent) -> Expected:
    a = event.workflow_execution_update_accepted_event_attributes
    return Expected(
        event.event_id,
        "acceptance of update",
        a.accepted_request.meta.update_id or a.protocol_instance_id,
        a.accepted_request.input.name,
    )


def _update_completed(event: HistoryEvent) -> Expected:
    a = event.workflow_execution_update_completed_event_attributes
    key = a.meta.update_id
    if a.outcome.HasField("failure"):
        return Expected(event.event_id, "failure of update", key, failure=failure_from(a.outcome.failure))
    return Expected(
        event.event_id, "result of update", key, payloads=payloads_from(a.outcome.success.payloads)
    )


_RETRY, _CRON = 2, 3

_READ: dict[Any, Callable[[HistoryEvent], Expected]] = {
    EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED: _activity,
    EventType.EVENT_TYPE_TIMER_STARTED: _timer,
    EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED: _child,
    EventType.EVENT_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED: _signal,
    EventType.EVENT_TYPE_REQUEST_CANCEL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED: _cancel,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED: _completed,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED: _failed,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED: lambda event: Expected(event.event_id, "cancellation"),
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW: _continued,
    EventType.EVENT_TYPE_ACTIVITY_TASK_CANCEL_REQUESTED: _activity_cancel,
    EventType.EVENT_TYPE_TIMER_CANCELED: _timer_cancel,
    EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES: _upserted,
    EventType.EVENT_TYPE_WORKFLOW_PROPERTIES_MODIFIED: _modified,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED: _accepted,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_COMPLETED: _update_completed,
}
