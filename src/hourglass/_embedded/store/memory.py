"""A store in memory. Every change is durable immediately. Lists are created on demand, with the same index as for a
file.

Must not know: the engine. Runs and events are frozen, so the store keeps the objects that it receives instead of
copying them. A new engine on the same store continues from the state of the old one; tests simulate a crash in this
way. Invariant: a list shows the runs in their state at the time when the list is returned.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from hourglass._contract.engine_status import DiskCondition
from hourglass._contract.workflows import Count, Page
from hourglass._embedded.schedules.transitions import ScheduleRecord
from hourglass._embedded.store.search_attributes import AttributeType
from hourglass._embedded.store.sqlite.listing import MemoryListing as MemoryListing
from hourglass._embedded.store.store import (
    LAST_KEY,
    DueRun,
    NoteChange,
    Rejection,
    RunChange,
    ScheduleChange,
    ScheduleEntry,
    Stored,
)
from hourglass._embedded.transitions.run import RUNNING, Run
from hourglass._history import events as h
from hourglass.errors import StorageError


class MemoryStore:
    """A `Store` in memory. With `real_time`, long list queries run on a thread. On virtual time all queries run on the
    control loop.
    """

    patience = 0.0

    def __init__(self, *, real_time: bool = False) -> None:
        self._runs: dict[str, Run] = {}
        self._events: dict[str, list[h.HistoryEvent]] = {}
        self._wakes: dict[str, int] = {}
        self._keys: dict[str, int] = {}
        self._next_key = 0
        self._requests: dict[tuple[str, str], list[str]] = {}
        """The runs that carried out a request, oldest first, by workflow id and request id."""
        self._request_ids: dict[str, list[str]] = {}
        self._current: dict[str, str] = {}
        self._runs_of: dict[str, dict[str, None]] = {}
        self._listing = MemoryListing(self._runs, real_time=real_time)
        self._closed: deque[tuple[int, str]] = deque()
        self._schedules: dict[str, tuple[ScheduleRecord, int]] = {}
        self._notes: dict[str, bytes] = {}
        self._number = 0
        self.latest_ns = 0
        """The timestamp of the newest event."""

    held = ""  # writes are always possible

    def start_rejection(self) -> str:
        """Return "", because memory has no disk that could be full."""
        return ""

    def condition(self) -> DiskCondition | None:
        """Return None: there is no file."""
        return None

    def attribute_types(self) -> Mapping[str, AttributeType]:
        """Return an empty mapping: each engine learns the types from use."""
        return {}

    def append(self, change: RunChange | ScheduleChange) -> int:
        self._number += 1
        if type(change) is RunChange and not change.also:  # the case for nearly all changes
            self._apply(change)
            return self._number
        for part in (change, *change.also):
            if isinstance(part, ScheduleChange):
                self._apply_to_schedule(part)
            else:
                self._apply(part)
        return self._number

    def _apply_to_schedule(self, change: ScheduleChange) -> None:
        if isinstance(change, NoteChange) and not change.data:
            self._notes.pop(change.schedule_id, None)
        elif isinstance(change, NoteChange):
            self._notes[change.schedule_id] = change.data
        elif change.record is None:
            self._schedules.pop(change.schedule_id, None)
        else:
            self._schedules[change.schedule_id] = (change.record, change.wake_ns)

    def _apply(self, change: RunChange) -> None:
        run, events = change.run, change.events
        run_id = run.run_id
        if run_id not in self._runs:
            self._keys[run_id] = self._next_key = self._next_key + 1
            self._events[run_id] = []
            self._current[run.started.workflow_id] = run_id
            self._runs_of.setdefault(run.started.workflow_id, {})[run_id] = None
        self._runs[run_id] = run
        self._listing.changed(run_id)
        if run.status is not RUNNING:
            self._closed.append((run.close_ns, run_id))
        if events:
            self._events[run_id] += events
            if events[-1].time_ns > self.latest_ns:
                self.latest_ns = events[-1].time_ns
        if change.wake_ns:
            self._wakes[run_id] = change.wake_ns
        else:
            self._wakes.pop(run_id, None)
        for request_id in change.request_ids:
            self._requests.setdefault((run.started.workflow_id, request_id), []).append(run.run_id)
            self._request_ids.setdefault(run.run_id, []).append(request_id)

    def on_rejection(self, callback: Callable[[Rejection], None]) -> None:
        """Do nothing: no change is ever rejected."""

    def is_durable(self, number: int) -> bool:
        """Whether this change was appended, and is therefore durable."""
        return number <= self._number

    async def durable(self, number: int) -> None:
        """Return immediately, because every change is durable."""

    def when_durable(self, number: int, callback: Callable[[StorageError | None], object]) -> None:
        """Schedule the callback for the next iteration of the event loop."""
        asyncio.get_running_loop().call_soon(callback, None)

    def load(self, run_id: str) -> Stored | None:
        run = self._runs.get(run_id)
        return None if run is None else Stored(run, tuple(self._events[run_id]))

    def current(self, workflow_id: str) -> str:
        return self._current.get(workflow_id, "")

    def find_request(self, workflow_id: str, request_id: str) -> str:
        return self._requests.get((workflow_id, request_id), ("",))[-1]

    def due(
        self, until_ns: int, limit: int, after_ns: int = 0, after_key: int = LAST_KEY
    ) -> Sequence[DueRun]:
        candidates = (
            DueRun(run_id, self._runs[run_id].started.spec.task_queue, wake, self._keys[run_id])
            for run_id, wake in self._wakes.items()
            if after_ns <= wake <= until_ns
        )
        after = [due for due in candidates if (due.wake_ns, due.key) > (after_ns, after_key)]
        return sorted(after, key=lambda due: (due.wake_ns, due.key))[:limit]

    def without_wake(self) -> Sequence[str]:
        """Return no runs, because a wake time in memory cannot be damaged."""
        return ()

    def open_runs(self) -> int:
        return sum(run.is_open for run in self._runs.values())

    def next_due_ns(self, after_ns: int = 0) -> int:
        return min((wake for wake in self._wakes.values() if wake > after_ns), default=0)

    async def page(self, text: str, token: bytes, limit: int, *, activities: bool = False) -> Page:
        return await self._listing.page(text, token, limit, activities=activities)

    async def count(self, text: str, *, activities: bool = False) -> Count:
        return await self._listing.count(text, activities=activities)

    def schedule(self, schedule_id: str) -> ScheduleRecord | None:
        record, _ = self._schedules.get(schedule_id, (None, 0))
        return record

    def schedules(self) -> Sequence[ScheduleEntry]:
        return [
            ScheduleEntry(schedule_id, wake_ns, tuple(workflow_id for workflow_id, _ in record.running))
            for schedule_id, (record, wake_ns) in self._schedules.items()
        ]

    def note(self, name: str) -> bytes:
        return self._notes.get(name, b"")

    def notes(self, prefix: str) -> list[tuple[str, bytes]]:
        return [(name, data) for name, data in self._notes.items() if name.startswith(prefix)]

    def forget_closed(self, before_ns: int, limit: int) -> int:
        count = 0
        while count < limit and self._closed and self._closed[0][0] < before_ns:
            self._drop(self._closed.popleft()[1])
            count += 1
        return count

    def forget(self, run_id: str) -> int:
        self._number += 1
        if run_id in self._runs:
            self._closed = deque(entry for entry in self._closed if entry[1] != run_id)
            self._drop(run_id)
        return self._number

    def _drop(self, run_id: str) -> None:
        run = self._runs.pop(run_id)
        workflow_id = run.started.workflow_id
        del self._runs_of[workflow_id][run_id]
        self._listing.changed(run_id)
        self._events.pop(run_id)
        del self._keys[run_id]
        self._forget_requests(workflow_id, run_id)
        if self._current.get(workflow_id) == run_id:
            # The previous run of the same workflow id becomes the latest, as in a file.
            earlier = self._runs_of[workflow_id]
            self._current |= {workflow_id: next(reversed(earlier))} if earlier else {}
            if not earlier:
                del self._current[workflow_id], self._runs_of[workflow_id]

    def _forget_requests(self, workflow_id: str, run_id: str) -> None:
        for request_id in self._request_ids.pop(run_id, ()):
            runs = self._requests[workflow_id, request_id]
            runs.remove(run_id)
            if not runs:
                del self._requests[workflow_id, request_id]

    def close(self) -> None:
        """Close the index. The runs remain available to the next engine."""
        self._listing.close()
