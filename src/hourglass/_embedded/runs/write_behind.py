"""The engine is ahead of its store (`WriteBehind`): what has changed in memory goes to the store as changes, each with a number,
and is durable a while later. What leaves the engine waits for the number of the change that it rests on.

Must not know: transitions, queues, handles. Invariants: the changes of a run go to the store in the order in which they
happened; what was kept back of a run is in its next change, or goes as one when its number is asked for, or after a moment;
a request that was carried out is found from then on, durable or not.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

import msgspec

from hourglass._embedded.clock import SECOND, Clock
from hourglass._embedded.runs.run import LoadedRun
from hourglass._embedded.store.store import RunChange, ScheduleChange, Store

STANDSTILL = SECOND // 4
"""A store that has not written a change for so long stands still."""

MANY = 100
"""While so many changes are on their way to the disk nothing more is begun of what is late already: what clients ask for now
would wait for all of it to be written.
"""

_NOTHING: frozenset[int] = frozenset()


class CarriedOut:
    """The runs that carried out requests, by workflow id and request id, each with the number of the change: until
    that is durable, and the store knows them.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._is_durable = store.is_durable
        self._runs: dict[tuple[str, str], tuple[str, int]] = {}
        self._unstored: deque[tuple[int, tuple[str, str]]] = deque()

    def note(self, change: RunChange, number: int) -> None:
        """A change carries out requests. Of earlier ones the store knows by now; they need not be kept here."""
        unstored = self._unstored
        for request_id in change.request_ids:
            key = (change.run.started.workflow_id, request_id)
            self._runs[key] = (change.run.run_id, number)
            unstored.append((number, key))
        while unstored and self._is_durable(unstored[0][0]):
            earlier, key = unstored.popleft()
            # Several runs of one change may carry out the same request: then it is gone already.
            if self._runs.get(key, ("", 0))[1] == earlier:
                del self._runs[key]

    def find(self, workflow_id: str, request_id: str) -> str:
        """The run id of the run that carried out a request; empty if none did."""
        run_id, number = self._runs.get((workflow_id, request_id), ("", 0))
        return self._store.find_request(workflow_id, request_id) if self._is_durable(number) else run_id


class WriteBehind:
    """See the module."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self.is_durable: Callable[[int], bool] = store.is_durable
        """Whether what rests on this change may leave the engine."""
        self.appended = 0
        """The number of the newest change that the store was given."""
        self.patience = store.patience
        """Seconds that a change may be kept back for; 0: none is."""
        self._stopped = False
        self._kept_back: dict[str, LoadedRun] = {}
        self._kept_long: list[LoadedRun] = []
        self._timer_runs = False
        self._schedules: dict[tuple[type[ScheduleChange], str], ScheduleChange] = {}
        self._requests = CarriedOut(store)
        self.find_request: Callable[[str, str], str] = self._requests.find
        """The run id of the run that carried out a request, by workflow id and request id; empty if none did."""
        self._watched = 0  # a change whose commit is watched for, and since when it is on its way
        self._watched_since_ns = 0
        self._still_since_ns = 0

    def stop(self) -> None:
        """Nothing is given to the store any more by itself."""
        self._stopped = True

    # --- changes ----------------------------------------------------------------------------------------------

    def change_of(self, record: LoadedRun, request_ids: tuple[str, ...], now: int) -> RunChange:
        """What the store has not got yet of a run; from now on it has."""
        if self._kept_back:
            self._kept_back.pop(record.run.run_id, None)
        events, begin = record.events, record.stored_events
        change = RunChange(
            run=record.run,
            events=tuple(events[begin:] if begin else events),
            encoded=record.unstored,
            touched=record.touched,
            wake_ns=record.wake_ns(now),
            request_ids=request_ids,
        )
        record.stored_events, record.unstored, record.touched = len(events), b"", _NOTHING
        return change

    def append(self, record: LoadedRun, request_ids: tuple[str, ...], now: int) -> None:
        """Append a run's unsaved changes to the store's queue. These requests were carried out by them."""
        change = self.change_of(record, request_ids, now)
        self.appended = record.number = number = self._store.append(change)
        record.stored_wake_ns = change.wake_ns
        if request_ids:
            self._requests.note(change, number)
        if not self._still_since_ns and self.is_durable(self._watched):
            self._watched, self._watched_since_ns = number, now

    def append_whole(self, changes: Iterable[tuple[RunChange, LoadedRun]]) -> None:
        """Give the store what several runs became together, and the schedules that were kept, as one change."""
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
        """A schedule is stored with the next `append_whole`."""
        self._schedules[type(change), change.schedule_id] = change

    @property
    def has_schedules(self) -> bool:
        """Whether a schedule waits to be stored."""
        return bool(self._schedules)

    def forget(self, run_id: str) -> int:
        """Have the store forget a run that has closed; gives the number of the change."""
        self._kept_back.pop(run_id, None)
        self.appended = self._store.forget(run_id)
        return self.appended

    def forget_newest(self) -> None:
        """The newest change will never be written: a wait for all changes need not wait for it."""
        self.appended -= 1

    def is_behind(self) -> bool:
        """Whether `MANY` changes are on their way."""
        return not self.is_durable(self.appended - MANY)

    def when_caught_up(self, told: Callable[[], None]) -> None:
        """Have `told` called once that is no longer so."""
        self._store.when_durable(self.appended - MANY, lambda _: told())

    # --- changes that are kept back -------------------------------------------------------------------------

    def keep_back(self, record: LoadedRun) -> None:
        """A worker has the run's task, and nothing else waits for what led to that: it is stored together with the
        answer, as one change; or when a call asks for its number; or after a moment. A crash before that loses no
        more than one before a commit does.
        """
        self._kept_back[record.run.run_id] = record
        if not self._timer_runs:
            self._timer_runs = True
            asyncio.get_running_loop().call_later(self.patience, self._store_what_waits_long)

    def _store_what_waits_long(self) -> None:
        for record in self._kept_long:
            if self._kept_back.get(record.run.run_id) is record and not self._stopped:
                self.append(record, (), self._clock.now_ns())
        self._kept_long = list(self._kept_back.values())
        self._timer_runs = bool(self._kept_long)
        if self._timer_runs:
            asyncio.get_running_loop().call_later(self.patience, self._store_what_waits_long)

    def drop(self, run_id: str) -> None:
        """What was kept back of a run is not to be stored."""
        self._kept_back.pop(run_id, None)

    def number_of(self, record: LoadedRun) -> int:
        """The number of the newest change of a run: the store is given what was kept back of it."""
        if record.run.run_id in self._kept_back:
            self.append(record, (), self._clock.now_ns())
        return record.number

    def is_stored(self, record: LoadedRun) -> bool:
        """Whether all changes of a run are durable, so that it can be loaded again. Deferred changes are given to the store."""
        return self.is_durable(self.number_of(record))

    def is_all_stored(self) -> bool:
        """Whether all changes of all runs are durable. Deferred changes are given to the store."""
        return self.is_durable(self.newest)

    @property
    def newest(self) -> int:
        """The number of the newest change of all: the store is given all that was kept back."""
        if self._kept_back:
            self.store_all()
        return self.appended

    def store_all(self) -> None:
        """Give the store all that was kept back."""
        for record in tuple(self._kept_back.values()):
            self.append(record, (), self._clock.now_ns())

    # --- a store that stands still --------------------------------------------------------------------------

    @property
    def stands_still(self) -> bool:
        """Whether the store has written nothing for a while though there is something to write, as far as was noticed."""
        return self._still_since_ns != 0

    def look(self) -> int:
        """Look whether the store moves; if it stood still until now, gives since when."""
        now = self._clock.now_ns()
        since = 0
        if self.is_durable(self._watched):
            since, self._still_since_ns = self._still_since_ns, 0
            if not self.is_durable(self.appended):
                self._watched, self._watched_since_ns = self.appended, now
        elif not self._still_since_ns and now - self._watched_since_ns > STANDSTILL:
            self._still_since_ns = self._watched_since_ns
        return since
