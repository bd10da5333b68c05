"""A second store, as simple as possible: a log of changes, and reads that scan it.

It uses only `Store`, and keeps two promises that need no effort in memory: a change becomes durable some iterations of
the loop after it was appended, and a crash loses what was not durable. If an engine needed more than the interface, it
would be missing here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hourglass._contract.engine_status import DiskCondition
from hourglass._contract.workflows import Count, Page
from hourglass._embedded.schedules.transitions import ScheduleRecord
from hourglass._embedded.store.memory import MemoryListing
from hourglass._embedded.store.search_attributes import AttributeType
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
from hourglass._embedded.transitions.run import Run
from hourglass.errors import StorageError

Entry = RunChange | ScheduleChange | str
"""A change, or the id of a run that was dropped."""


@dataclass
class Disk:
    """What a crash leaves: the durable entries in order."""

    log: list[Entry] = field(default_factory=list)


class SimpleStore:
    patience = 0.0
    held = ""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self._queue: list[Entry] = []
        self._number = self._committed = 0
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._callbacks: set[asyncio.Future[None]] = set()
        self._crashed = False
        self.latest_ns = max(
            (event.time_ns for change in self._changes() for event in change.events), default=0
        )

    # --- writing ------------------------------------------------------------------------------------------------

    def append(self, change: RunChange | ScheduleChange) -> int:
        return self._queued(change)

    def forget(self, run_id: str) -> int:
        return self._queued(run_id)

    def _queued(self, entry: Entry) -> int:
        self._queue.append(entry)
        self._number += 1
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # outside of a loop nothing is ahead of anything
            self._commit()
        else:
            loop.call_soon(loop.call_soon, self._commit)
        return self._number

    def _commit(self) -> None:
        if self._crashed:
            return
        self.disk.log += self._queue
        self._committed += len(self._queue)
        self._queue.clear()
        for number, waiter in self._waiters:
            if number <= self._committed and not waiter.done():
                waiter.set_result(None)

    def is_durable(self, number: int) -> bool:
        return number <= self._committed

    async def durable(self, number: int) -> None:
        if self._crashed:
            raise StorageError("the store is gone", status="UNAVAILABLE")
        if not self.is_durable(number):
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append((number, waiter))
            await waiter

    def when_durable(self, number: int, callback: Callable[[StorageError | None], object]) -> None:
        waiting = asyncio.ensure_future(self.durable(number))
        self._callbacks.add(waiting)
        waiting.add_done_callback(lambda done: (self._callbacks.discard(waiting), callback(_failure(done))))

    def on_rejection(self, callback: Callable[[Rejection], None]) -> None:
        pass

    def forget_closed(self, before_ns: int, limit: int) -> int:
        self._commit()
        old = [run.run_id for run in self._runs().values() if not run.is_open and run.close_ns < before_ns]
        for run_id in old[:limit]:
            self._queued(run_id)
        self._commit()
        return len(old[:limit])

    def crash(self) -> None:
        """Drop the process with its queue."""
        self._crashed = True
        self._queue.clear()

    def close(self) -> None:
        self._commit()

    # --- reading ------------------------------------------------------------------------------------------------

    def _entries(self) -> Iterator[Entry]:
        for entry in self.disk.log:
            yield entry
            if not isinstance(entry, str):
                yield from entry.also

    def _changes(self) -> Iterator[RunChange]:
        dropped = {entry for entry in self.disk.log if isinstance(entry, str)}
        for entry in self._entries():
            if isinstance(entry, RunChange) and entry.run.run_id not in dropped:
                yield entry

    def _last(self) -> dict[str, RunChange]:
        """Return the last change of each run, in the order of their starts."""
        return {change.run.run_id: change for change in self._changes()}

    def _runs(self) -> dict[str, Run]:
        return {run_id: each.run for run_id, each in self._last().items()}

    def load(self, run_id: str) -> Stored | None:
        changes = [change for change in self._changes() if change.run.run_id == run_id]
        events = tuple(event for change in changes for event in change.events)
        return Stored(changes[-1].run, events) if changes else None

    def current(self, workflow_id: str) -> str:
        matches = [run.run_id for run in self._runs().values() if run.started.workflow_id == workflow_id]
        return matches[-1] if matches else ""

    def find_request(self, workflow_id: str, request_id: str) -> str:
        matches = [
            change.run.run_id
            for change in self._changes()
            if change.run.started.workflow_id == workflow_id and request_id in change.request_ids
        ]
        return matches[-1] if matches else ""

    def due(
        self, until_ns: int, limit: int, after_ns: int = 0, after_key: int = LAST_KEY
    ) -> Sequence[DueRun]:
        matches = [
            DueRun(run_id, each.run.started.spec.task_queue, each.wake_ns, key)
            for key, (run_id, each) in enumerate(self._last().items(), 1)
            if each.wake_ns and (each.wake_ns, key) > (after_ns, after_key) and each.wake_ns <= until_ns
        ]
        return sorted(matches, key=lambda due: (due.wake_ns, due.key))[:limit]

    def next_due_ns(self, after_ns: int = 0) -> int:
        wakes = [each.wake_ns for each in self._last().values()]
        return min((wake for wake in wakes if wake > after_ns), default=0)

    def without_wake(self) -> Sequence[str]:
        return ()

    def open_runs(self) -> int:
        return sum(run.is_open for run in self._runs().values())

    async def page(self, text: str, token: bytes, limit: int) -> Page:
        return await MemoryListing(self._runs()).page(text, token, limit)

    async def count(self, text: str) -> Count:
        return await MemoryListing(self._runs()).count(text)

    def attribute_types(self) -> Mapping[str, AttributeType]:
        return {}

    # --- schedules and notes --------------------------------------------------------------------------------------

    def _schedules(self) -> dict[str, ScheduleChange]:
        changes = [entry for entry in self._entries() if isinstance(entry, ScheduleChange)]
        last = {change.schedule_id: change for change in changes if not isinstance(change, NoteChange)}
        return {name: each for name, each in last.items() if each.record is not None}

    def schedule(self, schedule_id: str) -> ScheduleRecord | None:
        schedule = self._schedules().get(schedule_id)
        return None if schedule is None else schedule.record

    def schedules(self) -> Sequence[ScheduleEntry]:
        return [
            ScheduleEntry(name, each.wake_ns, tuple(workflow_id for workflow_id, _ in each.record.running))
            for name, each in self._schedules().items()
            if each.record is not None
        ]

    def note(self, name: str) -> bytes:
        notes = [
            entry for entry in self._entries() if isinstance(entry, NoteChange) and entry.schedule_id == name
        ]
        return notes[-1].data if notes else b""

    def notes(self, prefix: str) -> Sequence[tuple[str, bytes]]:
        last = {entry.schedule_id: entry.data for entry in self._entries() if isinstance(entry, NoteChange)}
        return [(name, data) for name, data in last.items() if name.startswith(prefix) and data]

    # --- not supported ----------------------------------------------------------------------------------------

    def start_rejection(self) -> str:
        return ""

    def condition(self) -> DiskCondition | None:
        return None


def _failure(done: asyncio.Future[None]) -> StorageError | None:
    error = None if done.cancelled() else done.exception()
    return error if isinstance(error, StorageError) else None
