"""A store that remembers in memory, for as long as it is there. Everything is durable at once. Lists are made on
demand, over the same index as a file's.

Must not know: the engine. The store keeps what it is given and shares it: runs and events are frozen. A new engine
over the same store finds what the old one left, which is what a crash looks like in tests. Invariant: a list is about
the runs as they are when it is given.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from hourglass._contract.workflows import Count, Page
from hourglass._embedded.schedules.transitions import ScheduleRecord
from hourglass._embedded.store.search_attributes import AttributeType
from hourglass._embedded.store.sqlite.listing import MemoryListing as MemoryListing
from hourglass._embedded.store.store import (
    LAST_KEY,
    Change,
    DiskCondition,
    DueRun,
    NoteChange,
    Refusal,
    ScheduleChange,
    ScheduleEntry,
    Stored,
)
from hourglass._embedded.transitions.run import RUNNING, Run
from hourglass._history import events as h
from hourglass.errors import StorageError


class MemoryStore:
    """Implements `Store`. On `real_time` long lists are made on a thread; on virtual time they take no time."""

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
        """The time of the newest event."""

    held = ""  # it can always write

    def refuses_starts(self) -> str:
        """Never: there is always room."""
        return ""

    def condition(self) -> DiskCondition | None:
        """There is no file."""
        return None

    def attribute_types(self) -> Mapping[str, AttributeType]:
        """None are kept: each engine learns them from what it is given."""
        return {}

    def append(self, change: Change | ScheduleChange) -> int:
        """Keep a change; returns its number."""
        self._number += 1
        if type(change) is Change and not change.also:  # nearly all are
            self._keep(change)
            return self._number
        for each in (change, *change.also):
            if isinstance(each, ScheduleChange):
                self._keep_schedule(each)
            else:
                self._keep(each)
        return self._number

    def _keep_schedule(self, change: ScheduleChange) -> None:
        if isinstance(change, NoteChange) and not change.data:
            self._notes.pop(change.schedule_id, None)
        elif isinstance(change, NoteChange):
            self._notes[change.schedule_id] = change.data
        elif change.record is None:
            self._schedules.pop(change.schedule_id, None)
        else:
            self._schedules[change.schedule_id] = (change.record, change.wake_ns)

    def _keep(self, change: Change) -> None:
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

    def on_refusal(self, told: Callable[[Refusal], None]) -> None:
        """Nothing is ever refused."""

    def is_durable(self, number: int) -> bool:
        """As durable as it gets."""
        return number <= self._number

    async def durable(self, number: int) -> None:
        """There is nothing to wait for."""

    def when_durable(self, number: int, told: Callable[[StorageError | None], object]) -> None:
        """It is."""
        asyncio.get_running_loop().call_soon(told, None)

    def load(self, run_id: str) -> Stored | None:
        """A run, if it was kept."""
        run = self._runs.get(run_id)
        return None if run is None else Stored(run, tuple(self._events[run_id]))

    def current(self, workflow_id: str) -> str:
        """The run id of the latest run of a workflow."""
        return self._current.get(workflow_id, "")

    def find_request(self, workflow_id: str, request_id: str) -> str:
        """The run id of the latest run of a workflow that carried out a request; empty if none did."""
        return self._requests.get((workflow_id, request_id), ("",))[-1]

    def due(
        self, until_ns: int, limit: int, after_ns: int = 0, after_key: int = LAST_KEY
    ) -> Sequence[DueRun]:
        """Runs whose wake time has come, from behind a place."""
        found = (
            DueRun(run_id, self._runs[run_id].started.spec.task_queue, wake, self._keys[run_id])
            for run_id, wake in self._wakes.items()
            if after_ns <= wake <= until_ns
        )
        behind = [due for due in found if (due.wake_ns, due.key) > (after_ns, after_key)]
        return sorted(behind, key=lambda due: (due.wake_ns, due.key))[:limit]

    def without_wake(self) -> Sequence[str]:
        """None: nothing is ever damaged."""
        return ()

    def open_runs(self) -> int:
        """How many runs are open."""
        return sum(run.is_open for run in self._runs.values())

    def next_due_ns(self, after_ns: int = 0) -> int:
        """The earliest wake time later than this."""
        return min((wake for wake in self._wakes.values() if wake > after_ns), default=0)

    async def page(self, text: str, token: bytes, limit: int, *, activities: bool = False) -> Page:
        """Runs that pass a filter, newest first, from where another page ended."""
        return await self._listing.page(text, token, limit, activities=activities)

    async def count(self, text: str, *, activities: bool = False) -> Count:
        """How many runs pass a filter, and in each of its groups, if it has any."""
        return await self._listing.count(text, activities=activities)

    def schedule(self, schedule_id: str) -> ScheduleRecord | None:
        """A schedule, if it was kept."""
        record, _ = self._schedules.get(schedule_id, (None, 0))
        return record

    def schedules(self) -> Sequence[ScheduleEntry]:
        """All schedules, in short."""
        return [
            ScheduleEntry(schedule_id, wake_ns, tuple(workflow_id for workflow_id, _ in record.running))
            for schedule_id, (record, wake_ns) in self._schedules.items()
        ]

    def note(self, name: str) -> bytes:
        """What the engine keeps for itself under a name."""
        return self._notes.get(name, b"")

    def notes(self, prefix: str) -> list[tuple[str, bytes]]:
        """All that the engine keeps for itself under names that begin so."""
        return [(name, data) for name, data in self._notes.items() if name.startswith(prefix)]

    def forget_closed(self, before_ns: int, limit: int) -> int:
        """Drop runs that closed before this time."""
        count = 0
        while count < limit and self._closed and self._closed[0][0] < before_ns:
            self._drop(self._closed.popleft()[1])
            count += 1
        return count

    def forget(self, run_id: str) -> int:
        """Drop a run that has closed."""
        self._number += 1
        if run_id in self._runs:
            self._closed = deque(each for each in self._closed if each[1] != run_id)
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
            # An earlier run of the same id is the latest one now, as it is in a file.
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
        """Nothing to write, and what was kept stays for the next engine."""
        self._listing.close()
