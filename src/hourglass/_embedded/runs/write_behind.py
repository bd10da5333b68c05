"""Deferred writing (`WriteBehind`): the engine is ahead of its store. Changes in memory are passed to the store in
order, each with a number, and become durable a little later. Effects wait for the number of their change (see
`outbox`).

Must not know: transitions, queues, handles. Invariants:

- The changes of a run are passed to the store in the order in which they were made.
- A deferred change is merged with the run's next change. It is flushed on its own after a delay, or when its number
  is needed.
- A request that was carried out can be found immediately, even before it is durable.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

import msgspec

from hourglass._embedded.clock import SECOND, Clock
from hourglass._embedded.runs.run import LoadedRun
from hourglass._embedded.store.store import RunChange, ScheduleChange, Store

STALL_AFTER = SECOND // 4
"""The time without a commit after which the store counts as stalled."""

MAX_UNWRITTEN = 100
"""The number of unwritten changes above which no late work is started. The changes of new requests would otherwise
wait until all changes of late work are written.
"""


class CarriedOut:
    """The runs that carried out requests, by workflow id and request id, each with the number of its change. An entry
    is kept until its change is durable and the request can be found in the store.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._is_durable = store.is_durable
        self._runs: dict[tuple[str, str], tuple[str, int]] = {}
        self._unstored: deque[tuple[int, tuple[str, str]]] = deque()

    def note(self, change: RunChange, number: int) -> None:
        """Add the requests of a change. Remove the entries whose changes are durable by now."""
        unstored = self._unstored
        for request_id in change.request_ids:
            key = (change.run.started.workflow_id, request_id)
            self._runs[key] = (change.run.run_id, number)
            unstored.append((number, key))
        while unstored and self._is_durable(unstored[0][0]):
            earlier, key = unstored.popleft()
            # If several runs in one change carry out the same request, the entry may already have been
            # removed.
            if self._runs.get(key, ("", 0))[1] == earlier:
                del self._runs[key]

    def find(self, workflow_id: str, request_id: str) -> str:
        """Return the id of the run that carried out a request; an empty string if none did."""
        run_id, number = self._runs.get((workflow_id, request_id), ("", 0))
        return self._store.find_request(workflow_id, request_id) if self._is_durable(number) else run_id


class WriteBehind:
    """The queue of an engine's changes for its store, and the changes that are deferred."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self.is_durable: Callable[[int], bool] = store.is_durable
        """Whether the change with this number is durable."""
        self.appended = 0
        """The number of the newest change that was passed to the store."""
        self.patience = store.patience
        """The time in seconds for which a change may be deferred. With 0, changes are not deferred."""
        self._stopped = False
        self._deferred: dict[str, LoadedRun] = {}
        self._deferred_long: list[LoadedRun] = []
        self._timer_runs = False
        self._schedules: dict[tuple[type[ScheduleChange], str], ScheduleChange] = {}
        self._requests = CarriedOut(store)
        self.find_request: Callable[[str, str], str] = self._requests.find
        """Return the id of the run that carried out a request, given the workflow id and the request id. Return an
        empty string if no run has carried it out.
        """
        self._watched = 0  # the number of a change whose commit is awaited since `_watched_since_ns`
        self._watched_since_ns = 0
        self._still_since_ns = 0

    def stop(self) -> None:
        """Stop flushing deferred changes."""
        self._stopped = True

    def change_of(self, record: LoadedRun, request_ids: tuple[str, ...], now: int) -> RunChange:
        """Return the run's unsaved changes and mark them as passed to the store."""
        if self._deferred:
            self._deferred.pop(record.run.run_id, None)
        run, wake_ns, unsaved = record.run, record.wake_ns(now), record.unsaved
        if unsaved is None:
            return RunChange(run=run, wake_ns=wake_ns, request_ids=request_ids)
        record.unsaved = None
        return RunChange(
            run=run,
            events=unsaved.events,
            encoded=unsaved.encoded,
            touched=unsaved.touched,
            wake_ns=wake_ns,
            request_ids=request_ids,
        )

    def append(self, record: LoadedRun, request_ids: tuple[str, ...], now: int) -> None:
        """Append a run's unsaved changes to the store's queue. `request_ids` are the requests that the changes carry
        out.
        """
        change = self.change_of(record, request_ids, now)
        self.appended = record.number = number = self._store.append(change)
        record.stored_wake_ns = change.wake_ns
        if request_ids:
            self._requests.note(change, number)
        if not self._still_since_ns and self.is_durable(self._watched):
            self._watched, self._watched_since_ns = number, now

    def append_together(self, changes: Iterable[tuple[RunChange, LoadedRun]]) -> None:
        """Append the changes of several runs and the pending schedules to the store's queue as one change."""
        schedules, self._schedules = self._schedules, {}
        pairs = list(changes)
        parts: list[RunChange | ScheduleChange] = [*(change for change, _ in pairs), *schedules.values()]
        first = parts[0]
        if len(parts) > 1:
            first = msgspec.structs.replace(first, also=tuple(parts[1:]))
        self.appended = number = self._store.append(first)
        if not self._still_since_ns and self.is_durable(self._watched):
            self._watched, self._watched_since_ns = number, self._clock.now_ns()
        for change, record in pairs:
            record.number = number
            record.stored_wake_ns = change.wake_ns
            if change.request_ids:
                self._requests.note(change, number)

    def keep_schedule(self, change: ScheduleChange) -> None:
        """Store a schedule with the next `append_together`."""
        self._schedules[type(change), change.schedule_id] = change

    @property
    def has_schedules(self) -> bool:
        """Whether a schedule is waiting to be stored."""
        return bool(self._schedules)

    def forget(self, run_id: str) -> int:
        """Delete a closed run from the store. Return the number of the change."""
        self._deferred.pop(run_id, None)
        self.appended = self._store.forget(run_id)
        return self.appended

    def forget_newest(self) -> None:
        """Exclude the newest change, which can never be written, from waits for all changes."""
        self.appended -= 1

    def is_behind(self) -> bool:
        """Whether at least `MAX_UNWRITTEN` changes have not been written yet."""
        return not self.is_durable(self.appended - MAX_UNWRITTEN)

    def when_caught_up(self, callback: Callable[[], None]) -> None:
        """Call `callback` once fewer than `MAX_UNWRITTEN` of the current changes remain unwritten."""
        self._store.when_durable(self.appended - MAX_UNWRITTEN, lambda _: callback())

    def defer(self, record: LoadedRun) -> None:
        """Defer the write of a run whose task a worker has, because nothing else waits for the change.

        The change is merged with the worker's completion. It is flushed on its own after `patience` seconds, or when
        its number is needed. A crash in the meantime loses no more than a crash before a commit would.
        """
        self._deferred[record.run.run_id] = record
        if not self._timer_runs:
            self._timer_runs = True
            asyncio.get_running_loop().call_later(self.patience, self._flush_overdue)

    def _flush_overdue(self) -> None:
        for record in self._deferred_long:
            if self._deferred.get(record.run.run_id) is record and not self._stopped:
                self.append(record, (), self._clock.now_ns())
        self._deferred_long = list(self._deferred.values())
        self._timer_runs = bool(self._deferred_long)
        if self._timer_runs:
            asyncio.get_running_loop().call_later(self.patience, self._flush_overdue)

    def drop(self, run_id: str) -> None:
        """Discard the deferred changes of a run."""
        self._deferred.pop(run_id, None)

    def number_of(self, record: LoadedRun) -> int:
        """Return the number of the newest change of a run, after flushing its deferred changes."""
        if record.run.run_id in self._deferred:
            self.append(record, (), self._clock.now_ns())
        return record.number

    def is_stored(self, record: LoadedRun) -> bool:
        """Whether all changes of a run are durable, so that the run can be reloaded. Flush its deferred changes."""
        return self.is_durable(self.number_of(record))

    def is_all_stored(self) -> bool:
        """Whether all changes of all runs are durable. Flush deferred changes."""
        return self.is_durable(self.newest)

    @property
    def newest(self) -> int:
        """The number of the newest change of any run, after flushing deferred changes."""
        if self._deferred:
            self.store_all()
        return self.appended

    def store_all(self) -> None:
        """Flush all deferred changes."""
        for record in tuple(self._deferred.values()):
            self.append(record, (), self._clock.now_ns())

    @property
    def is_stalled(self) -> bool:
        """Whether the store has written nothing for a while although changes were pending, as of the last check."""
        return self._still_since_ns != 0

    def check_stall(self) -> int:
        """Check whether the store is writing. If it has just recovered from a stall, return the start of the stall;
        otherwise 0.
        """
        now = self._clock.now_ns()
        since = 0
        if self.is_durable(self._watched):
            since, self._still_since_ns = self._still_since_ns, 0
            if not self.is_durable(self.appended):
                self._watched, self._watched_since_ns = self.appended, now
        elif not self._still_since_ns and now - self._watched_since_ns > STALL_AFTER:
            self._still_since_ns = self._watched_since_ns
        return since
