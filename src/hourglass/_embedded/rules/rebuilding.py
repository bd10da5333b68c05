"""A run as the beginning of a history leaves it: `(run id, events, now) -> Run`. Pure.

Must not know: resets, which are what it is for. Activities that were pending are wanted anew, at their first
attempt and with all their time; timers fire when they were to. Invariant: for a history that the engine wrote,
what is pending is what the engine had pending then.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hourglass._embedded.clock import later
from hourglass._embedded.rules.relations import Ask, Child, SendCancel, SendSignal
from hourglass._embedded.rules.run import Activity, Run, Task, Timer
from hourglass._embedded.rules.versioning import PINNED, UNSPECIFIED
from hourglass._history import events as h
from hourglass._history import events as o
from hourglass._history.encoding import encode
from hourglass.converter import Payload


class _Rebuilt:
    """What the events so far leave pending."""

    def __init__(self, started: h.WorkflowExecutionStarted, now_ns: int) -> None:
        self.now_ns = now_ns
        self.memo = dict(started.memo)
        self.search_attributes = dict(started.search_attributes)
        self.activities: dict[int, Activity] = {}
        self.timers: dict[int, Timer] = {}
        self.children: dict[int, Child] = {}
        self.asks: dict[int, Ask] = {}
        self.task: Task | None = None
        self.task_count = 0
        self.cancel_requested = False
        self.version = started.inherited_pinned_version
        self.behavior = PINNED if self.version is not None else UNSPECIFIED

    def read(self, event: h.HistoryEvent) -> None:
        attributes = event.attributes
        match attributes:
            case (
                h.WorkflowTaskScheduled()
                | h.WorkflowTaskStarted()
                | h.WorkflowTaskCompleted()
                | h.WorkflowTaskFailed()
                | h.WorkflowTaskTimedOut()
            ):
                self._read_task(event)
            case h.WorkflowExecutionCancelRequested():
                self.cancel_requested = True
            case h.UpsertWorkflowSearchAttributes(search_attributes=changes):
                _merge(self.search_attributes, changes)
            case h.WorkflowPropertiesModified(memo=changes):
                _merge(self.memo, changes)
            case h.TimerStarted():
                due = later(event.time_ns, attributes.duration_ns)
                self.timers[event.id] = Timer(attributes.timer_id, event.id, due, event.time_ns)
            case h.TimerFired() | h.TimerCanceled():
                self.timers.pop(attributes.started_event_id, None)
            case _:
                self._read_activity(event)
                self._read_other(event)

    def _read_task(self, event: h.HistoryEvent) -> None:
        match event.attributes:
            case h.WorkflowTaskScheduled():
                self.task_count += 1
                self.task = Task(
                    number=self.task_count, scheduled_event_id=event.id, available_ns=event.time_ns
                )
            case h.WorkflowTaskStarted() as started if self.task is not None:
                self.task = msgspec.structs.replace(
                    self.task,
                    started_event_id=event.id,
                    started_ns=event.time_ns,
                    identity=started.identity,
                )
            case h.WorkflowTaskCompleted() as completed:
                self.task, self.version, self.behavior = None, completed.version, completed.behavior
            case _:
                self.task = None

    def _read_activity(self, event: h.HistoryEvent) -> None:
        attributes = event.attributes
        match attributes:
            case h.ActivityTaskScheduled():
                self.activities[event.id] = Activity(
                    scheduled_event_id=event.id,
                    spec=attributes,
                    scheduled_ns=self.now_ns,
                    available_ns=self.now_ns,
                )
            case h.ActivityTaskCancelRequested():
                activity = self.activities.get(attributes.scheduled_event_id)
                if activity is not None:
                    self.activities[attributes.scheduled_event_id] = msgspec.structs.replace(
                        activity, cancel_requested_event_id=event.id
                    )
            case (
                h.ActivityTaskCompleted()
                | h.ActivityTaskFailed()
                | h.ActivityTaskTimedOut()
                | h.ActivityTaskCanceled()
            ):
                self.activities.pop(attributes.scheduled_event_id, None)
            case _:
                pass

    def _read_other(self, event: h.HistoryEvent) -> None:
        attributes = event.attributes
        match attributes:
            case o.StartChildWorkflowExecutionInitiated():
                self.children[event.id] = Child(initiated_event_id=event.id, spec=attributes)
            case o.ChildWorkflowExecutionStarted(initiated_event_id=initiated):
                self.children[initiated] = msgspec.structs.replace(
                    self.children[initiated], run_id=attributes.run_id, started_event_id=event.id
                )
            case o.StartChildWorkflowExecutionFailed() | o.ChildEnd():
                self.children.pop(attributes.initiated_event_id, None)
            case o.SignalExternalWorkflowExecutionInitiated():
                self.asks[event.id] = SendSignal(event.id, attributes)
            case o.RequestCancelExternalWorkflowExecutionInitiated():
                self.asks[event.id] = SendCancel(event.id, attributes)
            case (
                o.SignalExternalWorkflowExecutionFailed()
                | o.ExternalWorkflowExecutionSignaled()
                | o.RequestCancelExternalWorkflowExecutionFailed()
                | o.ExternalWorkflowExecutionCancelRequested()
            ):
                self.asks.pop(attributes.initiated_event_id, None)
            case _:
                pass


def rebuild(run_id: str, events: Sequence[h.HistoryEvent], now_ns: int) -> tuple[Run, tuple[Ask, ...]]:
    """The run that these events lead to, and what it asked of others without having heard of the outcome."""
    started = events[0].attributes
    if not isinstance(started, h.WorkflowExecutionStarted):
        raise ValueError("the history does not begin with its start")
    rebuilt = _Rebuilt(started, now_ns)
    for event in events:
        rebuilt.read(event)
    run = Run(
        run_id=run_id,
        started=started,
        start_ns=now_ns,
        length=len(events),
        latest_ns=max(event.time_ns for event in events),
        history_size=sum(len(encode(event)) for event in events),
        task=rebuilt.task,
        task_count=rebuilt.task_count,
        activities=rebuilt.activities,
        timers=rebuilt.timers,
        children=rebuilt.children,
        memo=rebuilt.memo,
        search_attributes=rebuilt.search_attributes,
        cancel_requested=rebuilt.cancel_requested,
        version=rebuilt.version,
        behavior=rebuilt.behavior,
    )
    return run, tuple(rebuilt.asks.values())


def _merge(known: dict[str, Payload], changes: dict[str, Payload]) -> None:
    known.update(changes)
    for name in [name for name, value in known.items() if value.encoding == "binary/null"]:
        del known[name]
