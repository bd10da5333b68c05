"""Upkeep of runs that nothing uses at the moment: opening, waking, eviction and retention. Also counts the backlog of
a store without an engine.

Must not know: transitions, requests. This module moves runs between the store and memory, and makes no decisions
about them. The work is done in slices, so that a hundred thousand runs do not block the event loop. Due runs are
loaded as fast as workers serve them (`DueRuns`), so that they fill neither the memory nor the task queues.
Invariants:

- A run that is not in memory is loaded when its wake time has come, at most a second of real time later (a clock may
  jump). It may have to wait longer if earlier runs of its task queue are still waiting for a worker.
- Some of the waiting runs are loaded every second, however many there are.
- No task queue waits for another.
- A closed run is deleted after the retention, never earlier, and never because the clock has just jumped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from asyncio import sleep
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import islice
from time import monotonic

import msgspec

from hourglass._contract.engine_status import QueueStats
from hourglass._embedded.clock import Cancel, Clock, RealClock, TrustedTime, later, to_ns
from hourglass._embedded.runs.run import LoadedRun
from hourglass._embedded.runs.runs import RunTable
from hourglass._embedded.store.store import AT_ONCE, LAST_KEY, DueRun, NoteChange, Store, Unwritable
from hourglass._embedded.transitions.run import Run
from hourglass._embedded.transitions.tasks import LONGEST_WAIT
from hourglass._embedded.transitions.transitions import is_backing_off, try_now
from hourglass.errors import StorageError

DEFAULT_RETENTION = 30 * 86_400.0
"""The time in seconds between a run's end and its deletion."""

SLICE = 200
"""The number of runs that are deleted, or evicted from memory, in one slice."""

PER_SLICE = 4
"""The number of due runs that are loaded in one slice. Each takes a fifth of a millisecond to read, and its changes
become part of the next commit. New work has to wait for both.
"""

PER_BULK_SLICE = 16
"""The number of runs per slice when runs are loaded in bulk, and the number of due runs loaded from each queue every
second regardless of room.
"""

PAUSE = 0.005
"""The time in seconds between two slices of a bulk load."""

WINDOW = 256
"""The number of late tasks of a task queue above which its remaining due runs stay in the store."""

ROOM_PAUSE = 0.01
"""The time in seconds between checks for room on full queues."""

PAGE = 100
"""The number of due run ids that are read at a time. Each takes less than a hundredth of a millisecond."""

FORGET_PAUSE = 0.02
"""The time in seconds between two slices of deletions, which leaves room for commits of work in progress."""

EVERYTHING = 1 << 40
NEVER = (1 << 63) - 1

TIME = "clock"
"""The name of the note under which the clock's time is stored."""

WRITE_TIME = 60.0
"""The time in seconds between two writes of the clock's time while the engine is working."""

_vouched = msgspec.msgpack.Decoder(TrustedTime)

TICK = 1.0

logger = logging.getLogger("hourglass.embedded")


class DueRuns:
    """The ids of due runs that are not in memory, by task queue, as far as they have been read from the store.

    Each queue has as many runs in memory as its workers need. More runs are loaded as workers serve these. On a queue
    without workers, a few runs are loaded every second, because workflows can also time out there.
    """

    def __init__(self, runs: RunTable) -> None:
        self._runs = runs
        self._waiting: dict[str, dict[str, None]] = {}
        self._read_to = (0, LAST_KEY)

    def __contains__(self, due: DueRun) -> bool:
        return due.run_id in self._waiting.get(due.task_queue, ())

    @property
    def is_served(self) -> bool:
        """Whether due runs are waiting for room on a queue that has a worker."""
        return any(self._runs.queues.pollers.of(queue) for queue in self._waiting)

    def count(self, task_queue: str) -> int:
        """Return the number of due runs that are waiting for room on a queue."""
        return len(self._waiting.get(task_queue, ()))

    def read(self, now_ns: int, is_known: Callable[[str], bool]) -> bool:
        """Read the next page of ids from the store. Return whether there may be more."""
        page = self._runs.store.due(now_ns, PAGE, *self._read_to)
        for due in page:
            if not is_known(due.run_id) and due not in self:
                self._waiting.setdefault(due.task_queue, {})[due.run_id] = None
        if page:
            self._read_to = (page[-1].wake_ns, page[-1].key)
        return len(page) == PAGE

    def read_again(self) -> None:
        """Restart reading from the beginning after the clock has jumped."""
        self._waiting.clear()
        self._read_to = (AT_ONCE, LAST_KEY)

    def take(self, limit: int, *, in_any_case: int = 0) -> list[str]:
        """Remove and return at most `limit` runs to load now, from each task queue in turn. Each queue provides as
        many runs as fit into its window, or `in_any_case` runs if that is not 0.
        """
        taken: list[str] = []
        for queue in tuple(self._waiting):
            waiting = self._waiting.pop(queue)
            room = in_any_case or max(0, WINDOW - self._runs.queues.late(queue))
            some = list(islice(waiting, min(room, limit - len(taken))))
            for run_id in some:
                del waiting[run_id]
            if waiting:
                self._waiting[queue] = waiting  # move the queue to the end of the order
            taken += some
        return taken


class StoredBacklog:
    """The backlog of a store without an engine, counted from its stored runs without changing them. An instance
    serves only a few requests, because the store is open only for a moment.

    At most `MOST` runs are read. If more are due because no worker has served a queue for a long time, each further
    run counts as one workflow task.
    """

    MOST = 500

    def __init__(self, store: Store, now_ns: int) -> None:
        self._now = now_ns
        self._waiting: dict[tuple[str, bool], tuple[int, int]] = {}
        place: tuple[int, int] = (0, LAST_KEY)
        looked_at = 0
        while page := store.due(now_ns, PAGE, *place):
            place = (page[-1].wake_ns, page[-1].key)
            for due in page:
                looked_at += 1
                if looked_at > self.MOST:
                    self._count(due.task_queue, False, max(due.wake_ns, AT_ONCE))
                    continue
                with contextlib.suppress(StorageError):  # the other runs are still counted
                    stored = store.load(due.run_id)
                    if stored is not None:
                        self._count_waiting(stored.run)
            if len(page) < PAGE:
                break

    def stats(self, task_queue: str, *, activities: bool) -> QueueStats:
        """Return the backlog size of a queue and the age of its oldest task. The rates are unknown."""
        count, since = self._waiting.get((task_queue, activities), (0, self._now))
        return QueueStats(count, max(0, self._now - since) / 1e9)

    def _count_waiting(self, run: Run) -> None:
        """Count the tasks of a run that the next worker would receive: its workflow task, including one for a due
        timer, and its activity attempts.
        """
        if run.paused is not None or not run.is_open:
            return
        task = run.task
        due = [timer.due_ns for timer in run.timers.values() if timer.due_ns <= self._now]
        if task is not None and task.available_ns <= self._now:
            self._count(run.started.spec.task_queue, False, task.available_ns)
        elif task is None and due:
            self._count(run.started.spec.task_queue, False, min(due))
        for activity in run.activities.values():
            if activity.available_ns <= self._now and not activity.deferred and not activity.paused:
                self._count(activity.spec.task_queue, True, activity.available_ns)

    def _count(self, task_queue: str, activities: bool, since_ns: int) -> None:
        count, oldest = self._waiting.get((task_queue, activities), (0, self._now))
        self._waiting[task_queue, activities] = (
            count + 1,
            oldest if since_ns == AT_ONCE else min(oldest, since_ns),
        )


class Upkeep:
    """The upkeep of one engine's runs. `open` starts it."""

    _runs: RunTable
    _due: DueRuns
    _durable: Callable[[int], Awaitable[None]]
    _fail: Callable[[StorageError], None]
    _sample: Callable[[], None]

    def __init__(self, retention: float) -> None:
        self._retention_ns = to_ns(retention)
        self._unreadable: set[str] = set()
        self._open = False
        self._ticker: asyncio.TimerHandle | None = None
        self._forgetting: asyncio.TimerHandle | None = None
        self._alarm: Cancel | None = None
        self._alarm_ns = 0
        self._next_slice: asyncio.TimerHandle | None = None
        self._is_paced = True
        self._watch: asyncio.Task[None] | None = None
        self._retries: asyncio.Task[None] | None = None
        self._jumps = 0
        self._short_of_room = False
        self._sweep: asyncio.Task[None] | None = None
        self._time_written = 0.0
        self._newest_then = -1

    def resume_clock(self, clock: Clock, store: Store) -> None:
        """Resume a clock from the time that the last process stored. Raise `StorageError` if the store cannot be read."""
        data = store.note(TIME)
        try:
            trusted_time = _vouched.decode(data) if data else None
        except msgspec.MsgspecError:
            trusted_time = None  # treated as a new file of unknown age
        # Up to a tenth of the retention is accepted as time in which no process was running. If the wall
        # clock was wrong, closed runs are deleted too early by at most that much.
        clock.resume(store.latest_ns, trusted_time, self._retention_ns // 10)

    def _keep_time(self) -> None:
        """Store the clock's time periodically, and less often while nothing changes."""
        idle = self._newest_then == self._runs.writes.newest
        if monotonic() >= self._time_written + (WRITE_TIME * 60 if idle else WRITE_TIME):
            self._write_time()

    def end(self) -> None:
        """Store the clock's time for the next process before the engine is closed."""
        if self._open:
            self._write_time()

    def _write_time(self) -> None:
        runs = self._runs
        trusted_time = runs.clock.trusted_time()
        if runs.stopped or trusted_time is None:
            return
        runs.keep_schedule(NoteChange(schedule_id=TIME, data=msgspec.msgpack.encode(trusted_time)))
        self._time_written, self._newest_then = monotonic(), runs.writes.newest

    async def open(
        self,
        runs: RunTable,
        *,
        durable: Callable[[int], Awaitable[None]],
        fail: Callable[[StorageError], None],
        sample: Callable[[], None],
    ) -> None:
        """Load the runs that were in progress or are due, and start the periodic upkeep.

        `durable`, `fail` and `sample` are functions of the engine. `sample` is called every few seconds.
        """
        self._runs, self._durable, self._fail, self._sample = runs, durable, fail, sample
        self._due, self._is_paced = DueRuns(runs), isinstance(runs.clock, RealClock)
        await self._in_slices(runs.store.without_wake(), self._load_run)
        # With a real clock, the remaining runs are loaded later, as workers serve the first runs, because
        # reading many due runs may take long.
        for _ in range(2 * WINDOW // PER_SLICE if self._is_paced else EVERYTHING):
            if runs.stopped or not self._load_due(runs.clock.now_ns()):
                break
            await sleep(0)
        if runs.stopped:
            return
        self._open = True
        runs.queues.is_paced = self._is_paced
        # Store the time with the first tick, in case this process is killed.
        self._time_written = float("-inf")
        self.tick()
        if runs.store.latest_ns > runs.clock.now_ns():
            self._load_all()
        self._retries = asyncio.create_task(self._try_parked())

    async def _in_slices(self, run_ids: Sequence[str], act: Callable[[str], None]) -> None:
        """Call `act` for each run, in slices, until all are done or the engine stops."""
        for begin in range(0, len(run_ids), PER_BULK_SLICE):
            for run_id in run_ids[begin : begin + PER_BULK_SLICE]:
                act(run_id)
            self._runs.queues.dispatch()
            await sleep(PAUSE if self._is_paced else 0)
            if self._runs.stopped:
                return

    def close(self) -> None:
        """Stop the upkeep."""
        self._open = False
        for stop in (self._ticker, self._forgetting, self._watch, self._retries, self._sweep):
            if stop is not None:
                stop.cancel()
        self._ticker = self._forgetting = self._watch = self._retries = self._sweep = None
        self._silence()

    def due(self, task_queue: str) -> int:
        """Return the number of due runs in the store that are waiting for room on a queue."""
        return self._due.count(task_queue) if self._open else 0

    def tick(self) -> None:
        """Do the upkeep of this second, and schedule the next call."""
        if not self._open:
            return
        self._ticker = asyncio.get_running_loop().call_later(TICK, self.tick)
        self._follow_jumps()
        self._keep_time()
        if self._runs.queues.sample():
            self._guarded(self._sample)
        self._runs.timers.store_is_stalled()
        self._watch_room()
        self._drop_idle()
        self._guarded(self._load_some)
        self.wake_sleepers()
        if self._open:
            if self._forgetting is None:
                self._guarded(self._forget_closed)
            self._watch_store()

    def _guarded(self, read: Callable[[], None]) -> None:
        """Call `read`. If it raises `StorageError`, report the store's failure to the engine."""
        try:
            read()
        except StorageError as error:
            self._fail(error)

    def _watch_room(self) -> None:
        """Log when the disk becomes nearly full, and when it has space again."""
        trouble = self._runs.store.start_rejection()
        if trouble and not self._short_of_room:
            logger.warning("%s", trouble)
        elif self._short_of_room and not trouble:
            logger.info("the disk has enough free space again: new workflows are accepted")
        self._short_of_room = bool(trouble)

    def _follow_jumps(self) -> None:
        clock = self._runs.clock
        clock.now_ns()  # reads the wall clock
        if clock.jumps != self._jumps:
            self._jumps = clock.jumps
            self._runs.realign()
            self._due.read_again()
            self._write_time()  # in case this process is killed
            self._load_all()

    def _load_all(self) -> None:
        """Load all waiting runs once. Runs that were stored while the clock was ahead would otherwise wake too late."""
        if self._sweep is None or self._sweep.done():
            self._sweep = asyncio.get_running_loop().create_task(self._load_in_slices())

    async def _load_in_slices(self) -> None:
        def realign(run_id: str) -> None:
            record = self._loaded(run_id)
            if record is not None:
                self._runs.idle[run_id] = record

        try:
            waiting = self._runs.store.due(NEVER, EVERYTHING, self._runs.clock.now_ns())
            await self._in_slices([due.run_id for due in waiting], realign)
        except StorageError as error:
            self._fail(error)

    def _drop_idle(self) -> None:
        idle, self._runs.idle = self._runs.idle, {}
        self._drop_some(iter(idle.items()))

    def _drop_some(self, idle: Iterator[tuple[str, LoadedRun]]) -> None:
        runs = self._runs
        some = list(islice(idle, SLICE if self._is_paced else None))
        for run_id, record in some:
            if not runs.drop(record) and not runs.writes.is_stored(record):
                runs.idle[run_id] = record
        if self._is_paced and len(some) == SLICE:
            asyncio.get_running_loop().call_soon(self._drop_some, idle)

    async def _try_parked(self) -> None:
        """Retry the tasks of parked runs immediately: their code may have been fixed since they failed in the
        previous process.
        """
        now = self._runs.clock.now_ns()

        def try_at_once(run_id: str) -> None:
            record = self._loaded(run_id)
            if record is not None and is_backing_off(record.run, now):
                self._runs.change(record, try_now)
            elif record is not None:
                self._runs.idle[run_id] = record

        try:
            waiting = self._runs.store.due(later(now, to_ns(LONGEST_WAIT)), EVERYTHING, now)
            await self._in_slices([due.run_id for due in waiting], try_at_once)
        except StorageError as error:
            self._fail(error)

    def wake_sleepers(self) -> None:
        """Load a slice of the runs whose wake time has come, and schedule the next call."""
        if self._open:
            self._guarded(self._wake_due)

    def _wake_due(self) -> None:
        now = self._runs.clock.now_ns()
        more = self._load_due(now)
        if not self._open:
            return
        if self._is_paced and (more or self._due.is_served):
            self._silence()
            pause = 0.0 if more else ROOM_PAUSE  # lets other work run in between
            self._next_slice = asyncio.get_running_loop().call_later(pause, self._wake)
        else:
            self._call_at(now if more else self._runs.store.next_due_ns(now))

    def _load_due(self, now: int) -> bool:
        """Load a slice of the due runs if there is room. Return whether more can be loaded immediately."""
        # Always read the next page: the next run of one queue may come long after those of another.
        more = self._due.read(now, self._is_known)
        some = (
            self._due.take(PER_SLICE)
            if self._is_paced
            else self._due.take(EVERYTHING, in_any_case=EVERYTHING)
        )
        self._load_each(some)
        return more or bool(some)

    def _load_some(self) -> None:
        """Load a few runs of each queue even if there is no room, because timeouts also expire on queues without
        workers.
        """
        self._load_each(self._due.take(EVERYTHING, in_any_case=PER_BULK_SLICE))

    def _load_each(self, run_ids: Iterable[str]) -> None:
        for run_id in run_ids:
            self._load_run(run_id)
        self._runs.queues.dispatch()

    def _is_known(self, run_id: str) -> bool:
        if run_id in self._unreadable or run_id in self._runs.parked:
            return True
        return self._runs.in_memory(run_id) is not None

    def _loaded(self, run_id: str) -> LoadedRun | None:
        self._load_run(run_id)
        return self._runs.in_memory(run_id)

    def _load_run(self, run_id: str) -> None:
        if self._is_known(run_id):
            return
        # A run that cannot be read must not keep other runs from being loaded.
        try:
            if self._runs.record(run_id, late=True) is None:
                self._unreadable.add(run_id)
                logger.error("run %r cannot be loaded and does not continue: its id is damaged", run_id)
        except StorageError as error:
            self._unreadable.add(run_id)
            logger.error("run %s cannot be loaded and does not continue: %s", run_id, error)

    def _silence(self) -> None:
        if self._alarm is not None:
            self._alarm()
            self._alarm = None
        if self._next_slice is not None:
            self._next_slice.cancel()
            self._next_slice = None

    def _call_at(self, when_ns: int) -> None:
        if self._alarm is not None and when_ns == self._alarm_ns and self._next_slice is None:
            return
        self._silence()
        if when_ns:
            self._alarm_ns = when_ns
            self._alarm = self._runs.clock.call_at(when_ns, self._wake)

    def _wake(self) -> None:
        self._alarm = self._next_slice = None
        self.wake_sleepers()

    def _forget_closed(self) -> None:
        """Delete all closed runs older than the retention, in slices."""
        self._forgetting = None
        before = self._runs.clock.trusted_ns - self._retention_ns
        if self._runs.store.forget_closed(before, SLICE) == SLICE:
            loop = asyncio.get_running_loop()
            self._forgetting = loop.call_later(FORGET_PAUSE, self._guarded, self._forget_closed)

    def _watch_store(self) -> None:
        """Detect a failure of the store while no handle and no request is waiting for a commit."""
        runs = self._runs
        if self._watch is None and not runs.writes.is_all_stored():
            self._watch = asyncio.get_running_loop().create_task(self._await_durable(runs.writes.newest))

    async def _await_durable(self, number: int) -> None:
        try:
            await self._durable(number)
        except Unwritable:
            pass  # the engine is notified separately
        except StorageError as error:
            logger.error("the store has failed: %s", error)
        finally:
            self._watch = None
            # If the store writes again, this extends the timeouts of waiting activities.
            self._runs.timers.store_is_stalled()
