"""The durable store: an engine's runs in one SQLite file.

Must not know: transitions, queues, sockets, which process may own the file (its owner opens it). Changes are numbered
on the control loop and committed by the store thread, in groups, on the one connection that writes; `Durability`
knows which number is durable and wakes the calls that wait for it. Single runs are read on the control loop, by a
second connection; lists have their own threads and connections (`list_reader`). A change is handed to the thread at
the end of the turn in which a call waits for it, or `PATIENCE` later.

Invariants: those of `store`; everything that is appended in one turn of the control loop, without a wait in between,
becomes durable together; a number is durable only when all numbers before it are, but for those that were refused;
after a failure nothing is acknowledged any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from time import monotonic

from hourglass._embedded.store.fork_safety import NO_FORK
from hourglass._embedded.store.sqlite import database, inherited, visibility
from hourglass._embedded.store.sqlite.commit_thread import Durability, StoreThread, Turn
from hourglass._embedded.store.sqlite.disk_faults import (
    DiskWatch,
    Identity,
    reason_to_hold,
    storage_error,
    storage_errors,
)
from hourglass._embedded.store.sqlite.file_reads import FileReads, ReadOnlyStore
from hourglass._embedded.store.sqlite.file_watch import (
    FileMoved,
    FileOverwritten,
    FileRestored,
    FileWatch,
    LogLost,
    LogOverwritten,
)
from hourglass._embedded.store.sqlite.writer import PAGE, Apart, Batch, BatchWriter, Numbered, Readmitted
from hourglass._embedded.store.store import DiskCondition, FileLost, Refusal, RunChange, ScheduleChange, Store
from hourglass._forks import ForkStage, at_fork
from hourglass.errors import StorageError

logger = logging.getLogger("hourglass")

# --- the store ----------------------------------------------------------------------------------------------

RESERVE_BYTES = 32 << 20
"""New workflows are refused when less is free on the disk."""

PATIENCE = 0.002
"""A change that no call waits for is handed over after so many seconds at the latest. Most are followed at once by
one that a call waits for, and share its commit: what an activity returned is written with what the workflow then asks
for.
"""

KEPT_BACK = 0.01
"""The engine may keep a change back so long that nothing waits for. An activity's end and what the workflow answers to
it are then one change, where the answer takes no longer; a row less is a fifth of a step's time. Longer would
save more where hundreds are at work, but what has ended and is not written is done again after a crash.
"""

LISTS_AT_ONCE = 2 if (os.cpu_count() or 1) > 2 else 1
"""So many lists and counts are worked on at the same time, so that one that takes long does not keep a quick one
waiting; where there are few processors, workflows come first.
"""

FORGETS_AHEAD = 2000
"""No more runs are asked to be forgotten while so many are on their way."""

FORGET_RUNS, FORGET_BYTES = 16, 512 << 10
"""A commit forgets at most as many closed runs as it has changes, or `FORGET_RUNS` if that is more, and at most `FORGET_BYTES` of
their events, or one run: the calls that wait for the commit wait for that, too.
"""

CHECKPOINT_PAGES = 4000
"""The log is moved into the file when it has grown by this many pages."""


LONG_LOG = 16_384
"""Pages of a log, 64 MiB, from which on commits wait for a moment for readers to end, so that it can begin anew."""

LOG_WAIT_MS = 200
"""How long they wait at most, in milliseconds."""

LOG_PAUSE, LOG_LONGEST_PAUSE = 1.0, 60.0
"""Seconds until that is tried again: at first, and at most."""


def _file_bytes(path: str) -> int:
    """The size of a file and of its log."""
    size = 0
    for each in (path, f"{path}-wal"):
        with contextlib.suppress(OSError):
            size += os.stat(each).st_size
    return size


class SqliteStore(FileReads):
    """A file that remembers runs. Open it with `open`; everything else is called on the control loop."""

    patience = KEPT_BACK

    def __init__(
        self, path: str, opened: database.Opened, *, reserve_bytes: int, checkpoint_pages: int, retry: float
    ) -> None:
        super().__init__(path, opened.reader, self._connect_lists, lists_at_once=LISTS_AT_ONCE)
        self.epoch = opened.epoch
        self._opened = opened
        self._surroundings = DiskWatch(path, reserve_bytes)
        self._reserve_bytes = reserve_bytes
        self._identity = Identity.of(path)
        self._durability = Durability()
        self.is_durable: Callable[[int], bool] = self._durability.has
        """Whether a change, and all before it but for those that were refused, are durable. Asked ten times per step."""
        """The ids of the runs with keys below this are not known yet; 0: all are."""
        self._turn: list[RunChange | ScheduleChange] = []
        self._is_wanted = False  # whether a call waits for it: it is handed over at the end of this turn
        self._timer: asyncio.TimerHandle | None = None
        self._forgetting: set[int] = set()
        """The keys of runs that the thread was told to forget, and has not forgotten as far as is known."""
        self._is_sound = True
        self._loss: FileLost | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._told: Callable[[Refusal], None] = lambda _: None
        self._writer = BatchWriter(opened.writer, path, opened.epoch)
        self._sink = _Sink(self._writer, path, opened.watch, checkpoint_pages, self._on_refusals)
        self._thread: StoreThread[Batch | Apart] = StoreThread(
            self._sink,
            path,
            on_commit=self._durability.committed,
            on_end=self._on_end,
            retry_seconds=retry,
        )

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        namespace: str = "default",
        reserve_bytes: int = RESERVE_BYTES,
        checkpoint_pages: int = CHECKPOINT_PAGES,
        retry_seconds: float = 0.25,
    ) -> SqliteStore:
        """Open a file, or make it. The caller owns it: no other process may have it open for writing.

        Raises `StorageError` for a file that cannot be used, which is left as it was. May be called on any
        thread.
        """
        name = os.path.abspath(os.fspath(path))
        with NO_FORK.lock:
            opened = database.open_database(name, namespace, visibility.SCHEMA)
            try:
                with storage_errors(name):
                    store = cls(
                        name,
                        opened,
                        reserve_bytes=reserve_bytes,
                        checkpoint_pages=checkpoint_pages,
                        retry=retry_seconds,
                    )
            except BaseException:
                inherited.close(opened.reader)
                inherited.close(opened.writer)
                opened.watch.close()
                raise
            _live.add(store)
        store._thread.start()
        return store

    # --- writing --------------------------------------------------------------------------------------------

    def append(self, change: RunChange | ScheduleChange) -> int:
        """Queue a change; returns its number."""
        durability = self._durability
        self._turn.append(change)
        durability.given = number = durability.given + 1
        if self._timer is None and not self._is_wanted:
            loop = asyncio._get_running_loop()
            if loop is None:  # no loop, no turns: each change for itself
                self._hand_over()
            else:
                self._loop = loop
                self._timer = loop.call_later(PATIENCE, self._hand_over)
        return number

    def on_refusal(self, told: Callable[[Refusal], None]) -> None:
        """Have `told` called, on the control loop, of each change that can never be written."""
        self._told = told

    async def durable(self, number: int) -> None:
        """Wait until this change is durable. Raises `StorageError` if it can never be."""
        self._want(number)
        await self._durability.wait(number)

    def when_durable(self, number: int, told: Callable[[StorageError | None], object]) -> None:
        """Have `told` called once this change is durable; with the error once it can never be."""
        self._want(number)
        self._durability.call(number, told)

    def forget_closed(self, before_ns: int, limit: int) -> int:
        """Drop runs that closed before this time, at most so many; says how many. They go with a later commit."""
        self._forgetting.difference_update(self._sink.take_forgotten())
        if len(self._forgetting) > FORGETS_AHEAD:
            return 0  # the thread comes first
        with self._reading():
            found = self._reads.closed(before_ns, limit + len(self._forgetting))
        keys = [key for key in found if key not in self._forgetting][:limit]
        if keys:
            self._forgetting.update(keys)
            self._sink.forget_later(keys)
            self._hand_over()
            self._thread.give(Turn((), self._durability.given))
        return len(keys)

    def forget(self, run_id: str) -> int:
        """Drop a run that has closed and is durable; returns the number of that change."""
        with self._reading():
            key = self._reads.key(run_id)
        self._hand_over()
        self._durability.given += 1
        if key is not None:
            self._forgetting.add(key)
        self._thread.give(Turn((), self._durability.given, [] if key is None else [key]))
        return self._durability.given

    def refuses_starts(self) -> str:
        """Why new workflows should be refused now; "" if they need not be."""
        if self._thread.held:
            return f"the file {self.path} cannot be written at present: {self._thread.held}"
        return self._surroundings.shortage()

    @property
    def held(self) -> str:
        """Why nothing can be written at present; "" if it can."""
        return self._thread.held

    def condition(self) -> DiskCondition:
        """How it stands with the file and its disk."""
        return DiskCondition(
            self.path, self.held, self._surroundings.free_bytes(), self._reserve_bytes, _file_bytes(self.path)
        )

    @property
    def failure(self) -> StorageError | None:
        """What ended the store, if anything has: it must be opened anew."""
        return self._durability.failure

    def close(self) -> FileLost | None:
        """Write what is queued and let go. Return the loss of the file, if there was one. Safe to call twice."""
        if self not in _live:
            return None
        _live.discard(self)
        self._lists.close()
        self._hand_over()
        self._thread.close()
        if self._is_sound:
            self._check_before_end()
        self._durability.settle()
        with NO_FORK.lock:
            self._close_file()
        return self._loss

    def _check_before_end(self) -> None:
        """Check the file once more: closing it moves the log into it, and what failed before may have failed for a loss."""
        error = self._check()
        if error is not None:
            self._is_sound = False
            logger.error("%s", error)

    def _check(self) -> StorageError | None:
        try:
            with NO_FORK.lock:
                self._sink.check()
        except Exception as error:
            fault = storage_error(self.path, error)
            if isinstance(fault, FileLost):
                self._loss = fault
            return fault
        return None

    def _close_file(self) -> None:
        connections = [self._opened.reader, self._opened.writer]
        if self._is_sound:
            # The reader first: it would keep the log from being emptied.
            inherited.close(connections.pop(0))
            self._finish()
        for connection in reversed(connections):  # the reader last: unlike the writer it does not checkpoint
            inherited.close(connection)
        self._opened.watch.close()

    def current(self, workflow_id: str) -> str:
        """The run id of the latest run of a workflow; empty if there is none."""
        with self._reading():
            return self._reads.current(workflow_id)

    # --- inside ---------------------------------------------------------------------------------------------

    def _want(self, number: int) -> None:
        """A call waits for this change: if the thread has not got it yet, it gets it at the end of this turn of the loop, so
        that all that the turn appends is one commit.
        """
        if not self._is_wanted and number > self._durability.given - len(self._turn):
            self._is_wanted = True
            asyncio.get_running_loop().call_soon(self._hand_over)

    def _hand_over(self) -> None:
        """Give the thread what was appended since the last time."""
        self._is_wanted = False
        if self._timer is not None:  # else it would wake the loop for nothing, in the middle of the commit
            self._timer.cancel()
            self._timer = None
        if self._turn and self.failure is None:
            self._thread.give(Turn(tuple(self._turn), self._durability.given))
        self._turn.clear()

    def _on_refusals(self, refusals: Sequence[Refusal]) -> None:
        """On the store thread, before the commit that leaves them out is reported."""
        for refusal in refusals:
            self._durability.refuse(refusal.number, refusal.error)
            if self._loop is not None:
                with contextlib.suppress(RuntimeError):  # the loop is closed, and the engine with it
                    self._loop.call_soon_threadsafe(self._tell, refusal)

    def _tell(self, refusal: Refusal) -> None:
        """On the control loop: what is appended from now on rests on nothing that was refused."""
        self._told(refusal)
        # What was appended before may rest on the refused change. It goes to the thread first, which refuses it too;
        # only what comes after the turn that readmits the runs is written again.
        self._hand_over()
        self._thread.give(Turn((), self._durability.given, readmitted=refusal.run_ids))

    def _connect_lists(self) -> sqlite3.Connection:
        connection = database.connect_read_only(self.path)
        if Identity.of(self.path) != self._identity:
            inherited.close(connection)
            raise StorageError(f"the file {self.path} was replaced while it was in use", status="DATA_LOSS")
        return connection

    def _reading(self) -> threading.RLock:
        """What every read is done inside of; raises `StorageError` if nothing can be read any more."""
        if self.failure is not None:
            raise type(self.failure)(str(self.failure), status=self.failure.status)
        return NO_FORK.lock

    def _on_end(self, error: Exception | None) -> None:
        """On the store thread: it ends here."""
        if error is None:
            self._durability.end(StorageError(f"the file {self.path} was closed", status="UNAVAILABLE"))
            return
        self._is_sound = False
        fault = storage_error(self.path, error)
        if isinstance(fault, FileLost):
            self._loss = fault
        elif (
            fault.status != "ABORTED" and self._check() is not None
        ):  # aborted: all is well, and another process's
            fault = self._loss or fault  # SQLite fails, too, when another program has written into the file
        # What the disk refuses is said in words; where the fault is ours, its lines are wanted.
        trace = None if isinstance(error, (sqlite3.Error, OSError, StorageError)) else error
        if not isinstance(fault, FileLost):  # that one is for the caller, who stops
            logger.error(
                "%s: the store has ended and must be opened again: %s", self.path, fault, exc_info=trace
            )
        self._durability.end(fault)

    def _finish(self) -> None:
        try:
            self._writer.checkpoint("TRUNCATE")
        except sqlite3.Error as error:  # all is in the log, which the next process that opens the file reads
            logger.warning("%s was closed without tidying up: %s", self.path, storage_error(self.path, error))

    def _after_fork(self) -> None:
        """In a child: there is no thread, and the connections are not ours."""
        self._is_sound = False
        self._durability.disown(
            StorageError(
                f"the file {self.path} was opened by the process that this one was forked from",
                status="UNAVAILABLE",
            )
        )


class SqliteOpener:
    """Opens SQLite files. Implements `StoreOpener`."""

    def check(self, path: str) -> None:
        """Raise `StorageError` where the process that this one was forked from had the file open."""
        inherited.refuse_inherited(path)

    def open(self, path: str, namespace: str, *, briefly: bool = False) -> Store:
        """Open a file, or make it; for an owner, which starts many workflows, with all their ids."""
        return SqliteStore.open(path, namespace=namespace)

    def open_read_only(self, path: str, why: StorageError) -> Store:
        """Open a file that cannot be written, for requests that only read."""
        return ReadOnlyStore(path, why)


SQLITE = SqliteOpener()


class _Sink:
    """What the store thread does with the file."""

    def __init__(
        self,
        writer: BatchWriter,
        path: str,
        watch: FileWatch,
        checkpoint_pages: int,
        on_refusals: Callable[[Sequence[Refusal]], None],
    ) -> None:
        self._on_refusals = on_refusals
        self._writer = writer
        self._watch = watch
        self._checkpoint_pages = checkpoint_pages
        self._path = path
        self._next_try = 0.0
        self._pause = LOG_PAUSE
        self._warned = 0
        self._to_forget: deque[int] = deque()
        self._forgotten: deque[int] = deque()

    def forget_later(self, keys: Sequence[int]) -> None:
        """Forget these runs with the next commits, some with each. Called on the control loop."""
        self._to_forget.extend(keys)

    def take_forgotten(self) -> list[int]:
        """Return the keys of the runs that were forgotten since the last call. Called on the control loop."""
        return [self._forgotten.popleft() for _ in range(len(self._forgotten))]

    @property
    def has_more(self) -> bool:
        return bool(self._to_forget)

    def build(self, turns: Sequence[Turn]) -> Batch | Apart:
        if self._writer.barred:
            return self.build_apart(turns)
        changes = [change for turn in turns for change in turn.changes]
        with NO_FORK.lock:
            forget = [key for turn in turns for key in turn.forget]
            if self._to_forget:
                keys = list(islice(self._to_forget, max(FORGET_RUNS, len(changes))))
                forget += self._writer.first_small(keys, FORGET_BYTES)
            return self._writer.build(changes, forget)

    def build_apart(self, turns: Sequence[Turn]) -> Apart:
        parts: list[Numbered | Readmitted] = []
        for turn in turns:
            if turn.readmitted:
                parts.append(Readmitted(turn.readmitted))
            parts += enumerate(turn.changes, turn.number - len(turn.changes) + 1)
        return Apart(parts, [key for turn in turns for key in turn.forget])

    def commit(self, batch: Batch | Apart) -> None:
        with NO_FORK.lock:
            self._raise_loss(self._watch.check_before_commit)
            try:
                self._write(batch)
            except Exception:
                # The content may have been replaced while this commit waited for the lock.
                self._raise_loss(self._watch.check_before_commit)
                raise
            self._watch.note_commit(batch.last_events, batch.forgotten)
            # After the commit: what is acknowledged was written to files that were in their place afterwards.
            self.check()
        if isinstance(batch, Apart):
            self._on_refusals(batch.refused)

    def _write(self, batch: Batch | Apart) -> None:
        if isinstance(batch, Batch):
            self._writer.write(batch)
        else:
            self._writer.write_apart(batch)

    def check(self) -> None:
        """Raise what ends the store if the file, its log or its index was exchanged, or another process owns the file."""
        self._raise_loss(self._watch.check)

    def _raise_loss(self, check: Callable[[], None]) -> None:
        try:
            check()
        except (FileMoved, FileOverwritten, FileRestored, LogLost, LogOverwritten) as loss:
            raise self._watch.save(loss) from None

    def idle(self) -> None:
        with NO_FORK.lock:
            self.check()

    def rest(self, batch: Batch | Apart) -> None:
        self._note_forgotten(batch.forgotten)
        if self._watch.log_growth < self._checkpoint_pages:
            return
        try:
            with NO_FORK.lock:
                self.check()
                pages = self._writer.checkpoint()
                self._watch.note_checkpoint()
                if pages > LONG_LOG and monotonic() >= self._next_try:
                    self._shorten_log(pages)
        except sqlite3.Error as error:
            # No room is no loss: all is in the log. Anything else is as bad as at a commit.
            if not reason_to_hold(error):
                raise

    def _note_forgotten(self, keys: Sequence[int]) -> None:
        self._forgotten.extend(keys)
        gone = set(keys)
        while self._to_forget and self._to_forget[0] in gone:
            self._to_forget.popleft()

    def _shorten_log(self, pages: int) -> None:
        """A log begins anew only at a moment at which no connection reads an older state. Where readers follow each other
        without a gap there is none, unless commits wait for the last of them; a reader that stays is another matter.
        """
        is_empty = self._writer.empty_log(LOG_WAIT_MS)
        self._watch.note_checkpoint()
        if is_empty:
            self._next_try, self._pause = 0.0, LOG_PAUSE
            return
        self._next_try = monotonic() + self._pause
        self._pause = min(2 * self._pause, LOG_LONGEST_PAUSE)
        if not self._warned or pages > 4 * self._warned:
            self._warned = pages
            logger.warning(
                "the log of %s has grown to %d MiB, because a connection has been reading an old state of the file for long (a "
                "transaction that was left open, a long query, a copy): it cannot be emptied before that ends",
                self._path,
                pages * PAGE >> 20,
            )


def _after_fork() -> None:
    for store in list(_live):
        store._after_fork()
    _live.clear()


_live: weakref.WeakSet[SqliteStore] = weakref.WeakSet()

at_fork(ForkStage.STORES, in_child=_after_fork)
