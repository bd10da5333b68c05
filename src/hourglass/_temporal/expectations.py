"""What a history says that a workflow asked for, in order, as data: the other side of a comparison with its commands. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import History, HistoryEvent

from hourglass._engine.events import Payloads
from hourglass._temporal.dialect import Dialect, dialect_of
from hourglass._temporal.payloads import payloads_from


class Expected(msgspec.Struct, frozen=True):
    """One thing a run asked for, as its history tells it. `key` tells those of one kind apart."""

    event_id: int
    kind: str
    key: str = ""
    name: str = ""
    payloads: Payloads = ()
    duration_ns: int | None = None


class Facts(msgspec.Struct, frozen=True):
    """What a replay needs to know of a history before it begins."""

    workflow_type: str
    workflow_id: str
    run_id: str
    task_queue: str
    events: int
    expected: tuple[Expected, ...]
    is_settled: bool = False
    """Whether the run is open and its last workflow task was completed: then all that it asked for is on record."""
    dialect: Dialect = Dialect.PYTHON


def read_facts(history: bytes) -> Facts:
    """Read an encoded History message that has been checked."""
    message = History.FromString(history)
    first = message.events[0].workflow_execution_started_event_attributes
    expected = []
    for event in message.events:
        read = _READ.get(event.event_type)
        if read is not None:
            expected.append(read(event))
    return Facts(
        workflow_type=first.workflow_type.name,
        workflow_id=first.workflow_id,
        run_id=first.original_execution_run_id,
        task_queue=first.task_queue.name,
        events=len(message.events),
        expected=tuple(expected),
        is_settled=_is_settled(message),
        dialect=dialect_of(message.events),
    )


def _is_settled(history: History) -> bool:
    for event in reversed(history.events):
        if event.event_type in _TASKS:
            return bool(event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED)
        if event.event_type in _CLOSED:
            return False
    return False


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
        event.event_id, "child workflow", a.workflow_id, a.workflow_type.name, payloads_from(a.input.payloads)
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


def _continued(event: HistoryEvent) -> Expected:
    a = event.workflow_execution_continued_as_new_event_attributes
    return Expected(
        event.event_id, "continue-as-new", name=a.workflow_type.name, payloads=payloads_from(a.input.payloads)
    )


_TASKS = (
    EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT,
)
_CLOSED = (
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW,
)

_READ: dict[Any, Callable[[HistoryEvent], Expected]] = {
    EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED: _activity,
    EventType.EVENT_TYPE_TIMER_STARTED: _timer,
    EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED: _child,
    EventType.EVENT_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED: _signal,
    EventType.EVENT_TYPE_REQUEST_CANCEL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED: _cancel,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED: _completed,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED: lambda event: Expected(event.event_id, "failure"),
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED: lambda event: Expected(event.event_id, "cancellation"),
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW: _continued,
}
