"""Deadlines of a run: when its pending activities and timers, its task and the run itself must be looked at again
(`Wakes`).

The functions that compute a deadline are pure; `Wakes` keeps the earliest deadlines in a heap, so that a change costs the
same however much is pending. An entry may be earlier than the current deadline (a heartbeat has arrived): this is noted,
and corrected when the entry comes up, which is cheaper than keeping all entries exact. Invariants: for each pending
deadline there is an entry at that time or before; a deadline is computed once per change.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from hourglass._embedded.clock import later, storable, to_ns
from hourglass._embedded.transitions import activities
from hourglass._embedded.transitions.run import RUNNING, OpenActivity, Run, first_task_ns


def timer_wake_ns(run: Run, event_id: int) -> int:
    """Return when a timer fires; 0 if it does not run."""
    timer = run.timers.get(event_id)
    return 0 if timer is None else timer.due_ns


def activity_wake_ns(activity: OpenActivity, now_ns: int) -> int:
    """Return when an activity times out or may be received; 0: never."""
    when = activities.deadline(activity)[0]
    if not activity.started_ns and activity.available_ns > now_ns:
        available = storable(activity.available_ns)
        return min(when, available) if when else available
    return when


def run_wake_ns(run: Run, now_ns: int) -> int:
    """Return when something is due that concerns the run as a whole; 0: never."""
    if run.status is not RUNNING:
        return 0
    when, task = 0, run.task
    if task is not None and task.started_event_id:
        when = later(task.started_ns, to_ns(run.started.spec.task_timeout))
    elif task is not None and task.available_ns > now_ns:
        when = task.available_ns
    elif run.needs_first_task:
        when = first_task_ns(run)
    started = run.started
    deadline = storable(run.deadline_ns) if started.spec.run_timeout or started.expiration_ns else 0
    return min(when, deadline) if when and deadline else when or deadline


class Wakes:
    """The deadlines of the pending activities and timers of one run."""

    __slots__ = ("_at", "_heap", "_later")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        self._at: dict[int, int] = {}
        self._later = _NONE

    def enter(self, event_id: int, when: int) -> None:
        """Set the deadline of an activity or timer that has changed; 0: none."""
        at = self._at.get(event_id)
        if not when:
            if at is not None:
                self._forget(event_id)
        elif at is None:
            self._at[event_id] = when
            heapq.heappush(self._heap, (when, event_id))
        elif when < at:
            self._enter(when, event_id)
        elif when > at:
            self._put_off(when, event_id)
        elif self._later:
            self._later.pop(event_id, None)

    def put_off(self, event_ids: Iterable[int], until_ns: int) -> None:
        """Postpone these, which were due and cannot be handled now, until this time or their next change."""
        for event_id in event_ids:
            self._enter(until_ns, event_id)

    def next_ns(self, run: Run, now_ns: int) -> int:
        """Return the next deadline of the run; 0: none."""
        if run.status is not RUNNING:
            return 0
        item = self._first(now_ns) if self._heap else 0
        run_wake = run_wake_ns(run, now_ns)
        return min(item, run_wake) if item and run_wake else item or run_wake

    def due(self, now_ns: int) -> list[int]:
        """Remove and return the ids of those whose deadline has come. The caller handles each, and enters it again by
        `enter` or `put_off`.
        """
        event_ids: list[int] = []
        while self._heap and self._heap[0][0] <= now_ns:
            when, event_id = heapq.heappop(self._heap)
            if self._at.get(event_id) == when:
                self._forget(event_id)
                event_ids.append(event_id)
        return sorted(event_ids)

    def _first(self, now_ns: int) -> int:
        heap = self._heap
        while heap:
            when, event_id = heap[0]
            counts = self._at.get(event_id) == when
            if counts and (when <= now_ns or event_id not in self._later):
                return when
            heapq.heappop(heap)
            if counts:
                self._enter(self._later[event_id], event_id)
        return 0

    def _enter(self, when: int, event_id: int) -> None:
        self._at[event_id] = when
        heapq.heappush(self._heap, (when, event_id))
        if self._later:
            self._later.pop(event_id, None)

    def _put_off(self, when: int, event_id: int) -> None:
        if self._later is _NONE:
            self._later = {}
        self._later[event_id] = when

    def _forget(self, event_id: int) -> None:
        del self._at[event_id]
        if self._later:
            self._later.pop(event_id, None)
        if not self._at:
            self._heap.clear()  # entries that no longer count would stay until their time


_NONE: dict[int, int] = {}
"""The `_later` of all `Wakes` without later deadlines: one empty table for all, never written to."""
