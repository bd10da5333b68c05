"""What holds in every history that a server has written. Pure.

Core trusts histories: on some that break these rules it panics, on others it falls silent. So a history that comes from a
file is checked first, and the message names the event.

- Workflow tasks come one at a time: scheduled, started, then completed, failed or timed out.
- What a workflow asked for names the completed task in which it asked; what became of it names the event that began it,
  and ends it once.
- Nothing follows the end of the run.
"""

from __future__ import annotations

from collections.abc import Iterable

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from hourglass.errors import HistoryError

_ENDS = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW,
}

# What begins something, by the kind of thing.
_BEGINS = {
    EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED: "activity",
    EventType.EVENT_TYPE_TIMER_STARTED: "timer",
    EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED: "child workflow",
    EventType.EVENT_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED: "signal to another workflow",
    EventType.EVENT_TYPE_REQUEST_CANCEL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED: "cancel request",
}

# What follows: the kind of thing, the field that names the event that began it, and whether it is the end of it.
_FOLLOWS = {
    EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED: ("activity", "scheduled_event_id", False),
    EventType.EVENT_TYPE_ACTIVITY_TASK_CANCEL_REQUESTED: ("activity", "scheduled_event_id", False),
    EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED: ("activity", "scheduled_event_id", True),
    EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED: ("activity", "scheduled_event_id", True),
    EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT: ("activity", "scheduled_event_id", True),
    EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED: ("activity", "scheduled_event_id", True),
    EventType.EVENT_TYPE_TIMER_FIRED: ("timer", "started_event_id", True),
    EventType.EVENT_TYPE_TIMER_CANCELED: ("timer", "started_event_id", True),
    EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_FAILED: (
        "child workflow",
        "initiated_event_id",
        True,
    ),
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_STARTED: ("child workflow", "initiated_event_id", False),
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_COMPLETED: ("child workflow", "initiated_event_id", True),
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_FAILED: ("child workflow", "initiated_event_id", True),
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_CANCELED: ("child workflow", "initiated_event_id", True),
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_TIMED_OUT: ("child workflow", "initiated_event_id", True),
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_TERMINATED: ("child workflow", "initiated_event_id", True),
    EventType.EVENT_TYPE_EXTERNAL_WORKFLOW_EXECUTION_SIGNALED: (
        "signal to another workflow",
        "initiated_event_id",
        True,
    ),
    EventType.EVENT_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_FAILED: (
        "signal to another workflow",
        "initiated_event_id",
        True,
    ),
    EventType.EVENT_TYPE_EXTERNAL_WORKFLOW_EXECUTION_CANCEL_REQUESTED: (
        "cancel request",
        "initiated_event_id",
        True,
    ),
    EventType.EVENT_TYPE_REQUEST_CANCEL_EXTERNAL_WORKFLOW_EXECUTION_FAILED: (
        "cancel request",
        "initiated_event_id",
        True,
    ),
}

_TASKS = {
    EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED: "scheduled",
    EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED: "started",
    EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED: "completed",
    EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED: "failed",
    EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT: "timed out",
}


def check_rules(events: Iterable[HistoryEvent], *, of_core: bool = True) -> None:
    """Raise `HistoryError` at the first event that no server would have written there.

    A history that is not `of_core` never meets Core: which task an event names as its origin is then left alone, for servers
    that SDKs bring along for tests number it in ways of their own.
    """
    tasks = _Tasks()
    open_things: dict[int, str] = {}
    end = 0
    for event in events:
        if end:
            raise HistoryError(f"event {event.event_id} comes after the run ended with event {end}")
        kind = event.event_type
        step = _TASKS.get(kind)
        if step is not None:
            tasks.take(step, event)
        elif kind in _BEGINS:
            open_things[event.event_id] = _BEGINS[kind]
        elif kind in _FOLLOWS:
            _follow(event, open_things)
        elif kind in _ENDS:
            end = event.event_id
        elif kind not in EventType.values() and not event.worker_may_ignore:
            raise HistoryError(
                f"event {event.event_id} is of a kind ({kind}) that this version of Hourglass does not know"
            )
        if of_core:
            tasks.check_origin(event)


class _Tasks:
    """The workflow tasks of a history: one at a time."""

    def __init__(self) -> None:
        self._state = "none"
        self._scheduled = 0
        self._started = 0
        self._completed: set[int] = set()

    def take(self, step: str, event: HistoryEvent) -> None:
        """Go one step on, or say why that cannot be."""
        attributes = getattr(event, str(event.WhichOneof("attributes")))
        allowed = {
            "scheduled": ("none",),
            "started": ("scheduled",),
            "completed": ("started",),
            "failed": ("scheduled", "started"),
            "timed out": ("scheduled", "started"),
        }[step]
        if self._state not in allowed:
            where = "no workflow task is open" if self._state == "none" else f"one is {self._state}"
            raise HistoryError(f"event {event.event_id}: a workflow task cannot be {step} while {where}")
        if step == "scheduled":
            self._state, self._scheduled = "scheduled", event.event_id
            return
        if attributes.scheduled_event_id != self._scheduled:
            raise HistoryError(
                f"event {event.event_id}: the workflow task that is {step} names event "
                f"{attributes.scheduled_event_id} as its schedule, but that is event {self._scheduled}"
            )
        if step == "started":
            self._state, self._started = "started", event.event_id
            return
        if step == "completed":
            # Java's server for tests names no start, and the start where others name the completion.
            if attributes.started_event_id not in (self._started, 0):
                raise HistoryError(
                    f"event {event.event_id}: the completed workflow task names event {attributes.started_event_id} "
                    f"as its start, but that is event {self._started}"
                )
            self._completed.add(event.event_id)
            if not attributes.started_event_id:
                self._completed.add(self._started)
        self._state = "none"

    def check_origin(self, event: HistoryEvent) -> None:
        """What a workflow asked for names the task in which it did."""
        attributes = getattr(event, str(event.WhichOneof("attributes")), None)
        origin = getattr(attributes, "workflow_task_completed_event_id", None)
        if origin and origin not in self._completed:
            raise HistoryError(
                f"event {event.event_id} names event {origin} as the workflow task that asked for it, "
                "which is no completed workflow task"
            )


def _follow(event: HistoryEvent, open_things: dict[int, str]) -> None:
    thing, field, is_end = _FOLLOWS[event.event_type]
    origin = getattr(getattr(event, str(event.WhichOneof("attributes"))), field)
    if open_things.get(origin) != thing:
        raise HistoryError(
            f"event {event.event_id} tells of the {thing} of event {origin}, but no {thing} is open there"
        )
    if is_end:
        del open_things[origin]
