"""The builder of a change: writes events with their ids and times, and keeps the run consistent with them.

Must not know: how a task or an attempt starts and ends, queues, handles. A builder exists only within one transition, so
that the transition as a whole is a function of its arguments. The builder implements the one rule that all transitions
share: while a worker has the run's task, other events are held back and written after the task's completion, as Temporal
does it. So a worker's completion never conflicts with events that the worker has not seen.

Invariants: pending activities, timers and children change only by `put_*` and `drop_*`, which record the changed ids.
The original run and its tables are never changed: the builder writes on its own copy and returns the copy at the end. If
nothing has changed, it returns the original run. (Frozen runs are modified only here, before any other code has a
reference to them. A step takes a dozen changes, and creating a new object for each took a tenth of the engine's time.)
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from msgspec.structs import force_setattr, replace

from hourglass._contract.workflows import REPORTED_PROBLEMS, WorkflowStatus
from hourglass._embedded.transitions import problems
from hourglass._embedded.transitions.run import (
    JUST_BEFORE,
    RUNNING,
    ApplyClosePolicy,
    Change,
    Effect,
    NotifyParent,
    OpenActivity,
    OpenChild,
    PendingTask,
    PendingTimer,
    Run,
    is_backing_off,
)
from hourglass._evaluator.commands import EventGroupMarker
from hourglass._history import events as h
from hourglass._history.encoding import encode_events
from hourglass._history.events import ChildEnd, ChildWorkflowExecutionStarted


class ChangeBuilder:
    """The events written so far, and the current state of the run."""

    __slots__ = (
        "_before",
        "_effect_counts",
        "_effects",
        "_encoded",
        "_has_failed_activity",
        "_measured",
        "_size",
        "length",
        "now_ns",
        "run",
        "time_ns",
        "touched",
        "written",
    )

    def __init__(self, run: Run, now_ns: int) -> None:
        latest = run.latest_ns
        self.run = replace(run)
        self.now_ns = now_ns
        self.time_ns = now_ns if now_ns > latest else latest
        """The timestamp of new events: the current time, or the latest event's timestamp if the clock was set back."""
        self.length = run.length
        """The number of events of the run. `run.length` is updated only when the change is built."""
        self.touched: set[int] = set()
        self.written: list[h.HistoryEvent] = []
        """The events of this transition so far."""
        self._before = run
        self._effects: list[Effect] = []
        self._effect_counts: Counter[type[Effect]] | None = None
        self._encoded = b""
        self._has_failed_activity = False
        self._measured = 0
        self._size = run.history_size

    def update(self, **fields: Any) -> None:
        """Replace fields of the run, except its tables of pending activities, timers and children."""
        for name, value in fields.items():
            force_setattr(self.run, name, value)

    def set_task(self, task: PendingTask | None) -> None:
        """Set or remove the run's workflow task."""
        force_setattr(self.run, "task", task)

    def put_activity(self, activity: OpenActivity) -> None:
        """Add or replace a pending activity."""
        if self.run.activities is self._before.activities:
            force_setattr(self.run, "activities", self.run.activities.copy())
        self.run.activities[activity.scheduled_event_id] = activity
        self.touched.add(activity.scheduled_event_id)
        if activity.last_failure is not None:
            self._has_failed_activity = True

    def drop_activity(self, scheduled_event_id: int) -> None:
        """Remove a pending activity."""
        if scheduled_event_id in self.run.activities:
            if self.run.activities is self._before.activities:
                force_setattr(self.run, "activities", self.run.activities.copy())
            del self.run.activities[scheduled_event_id]
            self.touched.add(scheduled_event_id)

    def put_timer(self, timer: PendingTimer) -> None:
        """Add or replace a pending timer."""
        self._timers()[timer.started_event_id] = timer
        self.touched.add(timer.started_event_id)

    def drop_timer(self, started_event_id: int) -> None:
        """Remove a pending timer."""
        if started_event_id in self.run.timers:
            del self._timers()[started_event_id]
            self.touched.add(started_event_id)

    def put_child(self, child: OpenChild) -> None:
        """Add or replace a pending child."""
        self._children()[child.initiated_event_id] = child
        self.touched.add(child.initiated_event_id)

    def drop_child(self, initiated_event_id: int) -> None:
        """Remove a pending child."""
        if initiated_event_id in self.run.children:
            del self._children()[initiated_event_id]
            self.touched.add(initiated_event_id)

    def add_effect(self, effect: Effect) -> None:
        """Request an effect on another run. The effect is carried out after this transition."""
        if self._effect_counts is None:
            self._effect_counts = Counter()
        self._effects.append(effect)
        self._effect_counts[type(effect)] += 1

    def count_effects(self, kind: type[Effect]) -> int:
        """Return the number of effects of a kind that have been requested so far."""
        return 0 if self._effect_counts is None else self._effect_counts[kind]

    def _timers(self) -> dict[int, PendingTimer]:
        if self.run.timers is self._before.timers:
            force_setattr(self.run, "timers", self.run.timers.copy())
        return self.run.timers

    def _children(self) -> dict[int, OpenChild]:
        if self.run.children is self._before.children:
            force_setattr(self.run, "children", self.run.children.copy())
        return self.run.children

    def write(self, attributes: h.Attributes) -> int:
        """Write an event and return its id."""
        self.length = number = self.length + 1
        self.written.append(h.HistoryEvent(number, self.time_ns, attributes))
        return number

    def write_at(self, attributes: h.Attributes, time_ns: int) -> int:
        """Write an event with this timestamp, which may be before those of earlier events. Return the event's id."""
        self.length = number = self.length + 1
        self.written.append(h.HistoryEvent(number, time_ns, attributes))
        if time_ns > self.time_ns:
            self.time_ns = time_ns
        return number

    def group(self, first: int, groups: tuple[EventGroupMarker, ...]) -> None:
        """Add the events from index `first` onwards to these groups. The events must not have been measured yet."""
        self.written[first:] = [replace(event, event_groups=groups) for event in self.written[first:]]

    def measure(self) -> int:
        """Return the size of the run's history in bytes. The events of this transition are encoded for the measurement."""
        count = len(self.written)
        if count > self._measured:  # all events written since the last call are encoded together
            encoded = encode_events(self.written[self._measured :])
            self._encoded += encoded
            self._measured = count
            self._size += len(encoded)
        return self._size

    def write_or_hold(self, *attributes: h.Attributes, at_once: bool = False) -> None:
        """Write events that occur outside the workflow task and schedule a task. While a worker has the task, hold the
        events back.

        `at_once`: schedule the task even if the run is still waiting for its first task.
        """
        task = self.run.task
        if task is not None:
            if task.started_event_id:
                self.update(held=self.run.held + attributes)
                return
            self.drop_speculative_task()
        self.write_occurrences(attributes)
        if self.run.task is None:
            self.want_task(at_once=at_once)

    def write_occurrences(self, occurrences: tuple[h.Attributes, ...]) -> None:
        """Write events that occur outside the workflow task, without scheduling a task."""
        attributes: Any
        for attributes in occurrences:
            kind = type(attributes)
            if kind is h.ActivityTaskStarted:
                self.write_at(attributes, attributes.began_ns or self.now_ns)
            elif kind in h.ATTEMPT_ENDS:
                self.write(_placed(attributes, self.length))
            elif kind is ChildWorkflowExecutionStarted:
                self._write_child_started(attributes)
            else:
                self.write(attributes)

    def write_again(self, attributes: h.Attributes) -> None:
        """Write an event that the run had before it was reset. Skip the event if the child that it refers to is gone."""
        initiated = getattr(attributes, "initiated_event_id", 0)
        if initiated and initiated not in self.run.children:
            return
        if isinstance(attributes, ChildEnd):
            started = self.run.children[initiated].started_event_id
            attributes = replace(attributes, started_event_id=started)
        self.write_occurrences((attributes,))
        if isinstance(attributes, ChildWorkflowExecutionStarted):
            child = self.run.children[initiated]
            self.put_child(replace(child, run_id=attributes.run_id))
        elif initiated:
            self.drop_child(initiated)

    def flush(self) -> bool:
        """Write the held events. Return whether there were any."""
        held = self.run.held
        if not held:
            return False
        self.update(held=())
        for attributes in held:
            if type(attributes) is h.ActivityTaskStarted:
                self.write_at(attributes, self.now_ns)
            else:
                self.write(_placed(attributes, self.length))
        return True

    def _write_child_started(self, attributes: ChildWorkflowExecutionStarted) -> None:
        number = self.write(attributes)
        child = self.run.children.get(attributes.initiated_event_id)
        if child is not None:
            self.put_child(replace(child, started_event_id=number))

    def want_task(self, *, at_once: bool = False) -> None:
        """Schedule a task, unless the run has a task. Without `at_once`, do not schedule one if the run is still waiting
        for its first task.
        """
        run = self.run
        if run.task is not None:
            return
        if (
            run.task_count == 0
            and run.started.first_task_backoff
            and not at_once
            and is_backing_off(run, self.now_ns)
        ):
            return
        if run.paused is not None:
            self.update(paused=replace(run.paused, missed=True))
            return
        self._schedule(1, self.now_ns)

    def want_update_task(self, *, silent: bool) -> None:
        """Schedule a task for updates, which wait in memory. The task is speculative unless it is the run's first."""
        if self.run.task is None and self.run.paused is None:
            speculative = self.run.task_count > 0
            self._schedule(1, self.now_ns, speculative=speculative, silent=speculative and silent)

    def drop_speculative_task(self) -> None:
        """Remove a speculative task that no worker has received, because an event needs an ordinary task in its place.

        A Temporal server writes the speculative task's scheduled event before that event. If the preceding task was
        empty, Core takes this for a heartbeat and replays the two tasks as one, which is wrong if the update is
        rejected. Without any trace of the speculative task, Core cannot make this mistake.
        """
        task = self.run.task
        if task is not None and task.speculative and not task.started_event_id:
            self.set_task(None)

    def want_task_again(self, attempt: int, available_ns: int, *, silent: bool = False) -> None:
        """Schedule the next attempt of a task. The attempt is recorded in the history only if it succeeds."""
        self._schedule(attempt, available_ns, speculative=silent, silent=silent)

    def _schedule(
        self, attempt: int, available_ns: int, *, speculative: bool = False, silent: bool = False
    ) -> None:
        transient = attempt > 1 or speculative
        scheduled = 0
        run = self.run
        if not transient:
            started = run.started.spec
            scheduled = self.write(
                h.WorkflowTaskScheduled(task_queue=started.task_queue, task_timeout=started.task_timeout)
            )
        number = run.task_count + 1
        task = PendingTask(
            number=number,
            scheduled_event_id=scheduled,
            available_ns=available_ns,
            attempt=attempt,
            transient=transient,
            speculative=speculative,
            silent=silent,
        )
        if run.paused is None:
            force_setattr(run, "task", task)
        else:  # the next attempt of a task that a worker had when the run was paused
            force_setattr(run, "paused", replace(run.paused, task=task))
        force_setattr(run, "task_count", number)

    def close(self, final: h.Attributes, status: WorkflowStatus) -> None:
        """Write the last event and remove all pending work. The parent close policies of the run's children become
        effects.
        """
        self.write(final)
        run = self.run
        self.touched.update(run.activities, run.timers, run.children)
        # A child without a run id will never start, because the engine carries out a `StartChild` only while its run is
        # open.
        for child in run.children.values():
            if child.run_id:
                self.add_effect(ApplyClosePolicy(child))
        self.update(
            status=status,
            close_ns=self.time_ns,
            final=final,
            task=None,
            held=(),
            activities={},
            timers={},
            children={},
            paused=None,
        )

    def build(
        self,
        follower: h.WorkflowExecutionStarted | None = None,
        signals: tuple[h.WorkflowExecutionSignaled, ...] = (),
    ) -> Change:
        """Return the change. `follower` is the first event of the next run, and `signals` are the signals that the next
        run starts with.
        """
        run, before = self.run, self._before
        if self._has_failed_activity or (
            REPORTED_PROBLEMS in run.search_attributes and run.activities is not before.activities
        ):
            problems.note_activities(self, self.touched)
        written = tuple(self.written)
        if written:
            force_setattr(run, "length", self.length)
            force_setattr(run, "latest_ns", self.time_ns)
            force_setattr(run, "history_size", self.measure())
        elif run == before:
            run = before
        if (
            run.status is not RUNNING
            and before.status is RUNNING
            and follower is None
            and run.started.parent_run_id
        ):
            self.add_effect(NotifyParent())
        touched, effects = frozenset(self.touched), tuple(self._effects)
        return Change(run, written, self._encoded, touched, follower, effects, signals)


def _placed(attributes: Any, before: int) -> h.Attributes:
    """Return an event that will follow the event with the id `before`. If the returned event is the result of the
    attempt that this event started, link it to the event's id.
    """
    placed: h.Attributes = attributes
    if type(attributes) in h.ATTEMPT_ENDS and attributes.started_event_id == JUST_BEFORE:
        placed = replace(attributes, started_event_id=before)
    return placed
