"""The durable store: an engine's runs in one SQLite file.

Must not know: transitions, queues, sockets, which process may own the file (the owner opens the store). Changes are
numbered on the control loop and committed by the store thread, in groups, on the only connection that writes;
`Durability` knows which changes are durable and ends the waits for them. Single runs are read on the control loop, over
a second connection; lists have their own threads and connections (`list_reader`). A change is passed to the thread at
the end of the turn in which a call begins to wait for it, or `PATIENCE` seconds later.

Invariants: those of `store`; all changes that are appended in one turn of the control loop, without a wait in between,
become durable together; a change is durable only when all changes before it are, except rejected ones; after a failure
nothing is acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Sequence

from hourglass._contract.engine_status import DiskCondition
from hourglass._embedded.store.fork_safety import NO_FORK
from hourglass._embedded.store.sqlite import database, inherited, visibility
from hourglass._embedded.store.sqlite.commit_sink import CHECKPOINT_PAGES, FileSink
from hourglass._embedded.store.sqlite.commit_thread import StoreThread, Turn
from hourglass._embedded.store.sqlite.disk_faults import (
    DiskWatch,
    Identity,
    storage_error,
    storage_errors,
)
from hourglass._embedded.store.sqlite.durability import Durability
from hourglass._embedded.store.sqlite.file_reads import FileReads, ReadOnlyStore
from hourglass._embedded.store.sqlite.writer import BatchWriter
from hourglass._embedded.store.store import (
    FileLost,
    Rejection,
    RunChange,
    ScheduleChange,
    Store,
)
from hourglass._forks import ForkStage, at_fork
from hourglass.errors import StorageError

logger = logging.getLogger("hourglass")

RESERVE_BYTES = 32 << 20
"""Bytes of free disk space below which new workflows are rejected."""

PATIENCE = 0.002
"""Seconds after which a change that no call waits for is passed to the store thread. Most of these changes are soon
followed by one that a call waits for, and share its commit: an activity's result is committed together with the
workflow's next commands.
"""

DEFER_SECONDS = 0.01
"""Seconds for which the engine may defer a change that no call waits for. An activity's result is then merged with the
workflow's response if that arrives in time; one row less saves a fifth of the time of a step. A longer time would save
more with hundreds of concurrent runs, but more activities would be executed again after a crash.
"""

LISTS_AT_ONCE = 2 if (os.cpu_count() or 1) > 2 else 1
"""The number of list and count requests that run at the same time, so that a long one does not delay a short one. On a
machine with few CPUs, workflows have precedence.
"""

FORGETS_AHEAD = 2000
"""The number of queued deletions above which no further ones are queued."""


def _file_bytes(path: str) -> int:
    """Return the size of a file and its WAL."""
    size = 0
    for name in (path, f"{path}-wal"):
        with contextlib.suppress(OSError):
            size += os.stat(name).st_size
    return size


class SqliteStore(FileReads):
    """The store of an engine in a file. `open` may be called on any thread, all other methods on the control loop."""

    patience = DEFER_SECONDS

    def __init__(
        self, path: str, opened: database.Opened, *, reserve_bytes: int, checkpoint_pages: int, retry: float
    ) -> None:
        self._durability = Durability()
        super().__init__(path, opened.reader, self._connect_lists, lists_at_once=LISTS_AT_ONCE)
        self.epoch = opened.epoch
        self._opened = opened
        self._disk = DiskWatch(path, reserve_bytes)
        self._reserve_bytes = reserve_bytes
        self._identity = Identity.of(path)
        self.is_durable: Callable[[int], bool] = self._durability.has
        """Whether a change and all earlier ones, except rejected ones, are durable. Called about ten times per step."""
        self._turn: list[RunChange | ScheduleChange] = []
        self._will_hand_over = (
            False  # whether a call waits for this turn's changes: they are passed on at its end
        )
        self._timer: asyncio.TimerHandle | None = None
        self._forgetting: set[int] = set()
        """The keys of runs whose deletion is queued and has not been reported yet."""
        self._is_sound = True
        self._loss: FileLost | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._report: Callable[[Rejection], None] = lambda _: None
        self._writer = BatchWriter(opened.writer, path, opened.epoch)
        self._sink = FileSink(self._writer, path, opened.watch, checkpoint_pages, self._on_rejections)
        self._thread = StoreThread(
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
        """Open a file, or create it. The caller must own the file: no other process may have it open for writing.

        Raises `StorageError` for a file that cannot be used, and leaves it unchanged. May be called on any thread.
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

    def append(self, change: RunChange | ScheduleChange) -> int:
        """Queue a change and return its number."""
        durability = self._durability
        self._turn.append(change)
        durability.newest = number = durability.newest + 1
        if self._timer is None and not self._will_hand_over:
            loop = asyncio._get_running_loop()
            if loop is None:  # without a loop there are no turns: each change is a turn of its own
                self._hand_over()
            else:
                self._loop = loop
                self._timer = loop.call_later(PATIENCE, self._hand_over)
        return number

    def on_rejection(self, callback: Callable[[Rejection], None]) -> None:
        self._report = callback

    async def durable(self, number: int) -> None:
        self._hand_over_soon(number)
        await self._durability.wait(number)

    def when_durable(self, number: int, callback: Callable[[StorageError | None], object]) -> None:
        self._hand_over_soon(number)
        self._durability.call(number, callback)

    def forget_closed(self, before_ns: int, limit: int) -> int:
        """Queue the deletion of at most `limit` runs that closed before this time. Return the number of these runs."""
        self._forgetting.difference_update(self._sink.take_forgotten())
        if len(self._forgetting) > FORGETS_AHEAD:
            return 0  # the thread must catch up first
        closed = self.closed_keys(before_ns, limit + len(self._forgetting))
        keys = [key for key in closed if key not in self._forgetting][:limit]
        if keys:
            self._forgetting.update(keys)
            self._sink.forget_later(keys)
            self._hand_over()
            self._thread.put(Turn((), self._durability.newest))
        return len(keys)

    def forget(self, run_id: str) -> int:
        key = self.closed_key(run_id)
        self._hand_over()
        self._durability.newest += 1
        if key is not None:
            self._forgetting.add(key)
        self._thread.put(Turn((), self._durability.newest, [] if key is None else [key]))
        return self._durability.newest

    def start_rejection(self) -> str:
        if self._thread.held:
            return f"the file {self.path} cannot be written at present: {self._thread.held}"
        return self._disk.shortage()

    @property
    def held(self) -> str:
        return self._thread.held

    def condition(self) -> DiskCondition:
        return DiskCondition(
            self.path, self.held, self._disk.free_bytes(), self._reserve_bytes, _file_bytes(self.path)
        )

    @property
    def failure(self) -> StorageError | None:
        """The error that stopped the store, which must then be reopened; None while the store works."""
        return self._durability.failure

    def close(self) -> FileLost | None:
        if self not in _live:
            return None
        _live.discard(self)
        self._lists.close()
        self._hand_over()
        self._thread.close()
        if self._is_sound and (error := self._check()) is not None:  # closing moves the WAL into the file
            self._is_sound = False
            logger.error("%s", error)
        self._durability.settle()
        with NO_FORK.lock:
            self._close_file()
        return self._loss

    def _check(self) -> StorageError | None:
        try:
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
            # The reader is closed first, because the WAL cannot be emptied while the reader is open.
            inherited.close(connections.pop(0))
            self._checkpoint_at_end()
        # After a failure the reader is closed last. SQLite checkpoints when the last connection is closed, unless that
        # connection is read-only, and the WAL must not be moved into a file that may not be ours.
        for connection in reversed(connections):
            inherited.close(connection)
        self._opened.watch.close()

    def _hand_over_soon(self, number: int) -> None:
        """Pass the queued changes to the store thread at the end of this turn if they include this change, because a
        call waits for it.

        The changes are not passed earlier, so that all changes of the turn share one commit.
        """
        if not self._will_hand_over and number > self._durability.newest - len(self._turn):
            self._will_hand_over = True
            asyncio.get_running_loop().call_soon(self._hand_over)

    def _hand_over(self) -> None:
        """Pass the changes made since the last call to the store thread."""
        self._will_hand_over = False
        if self._timer is not None:  # otherwise the timer would needlessly wake the loop during the commit
            self._timer.cancel()
            self._timer = None
        if self._turn and self._durability.failure is None:
            self._thread.put(Turn(tuple(self._turn), self._durability.newest))
        self._turn.clear()

    def _on_rejections(self, rejections: Sequence[Rejection]) -> None:
        """Record rejected changes. Called on the store thread, before the commit that omits them is reported."""
        for rejection in rejections:
            self._durability.reject(rejection.number, rejection.error)
            if self._loop is not None:
                with contextlib.suppress(RuntimeError):  # the loop and the engine are closed
                    self._loop.call_soon_threadsafe(self._report_rejection, rejection)

    def _report_rejection(self, rejection: Rejection) -> None:
        """Report a rejected change to the engine, and readmit its runs for later changes. Called on the control loop."""
        self._report(rejection)
        # Changes that were appended before may depend on the rejected one. They are passed to the thread first, and
        # rejected, too; only changes after the turn that readmits the runs are written again.
        self._hand_over()
        self._thread.put(Turn((), self._durability.newest, readmitted=rejection.run_ids))

    def _connect_lists(self) -> sqlite3.Connection:
        connection = database.connect_read_only(self.path)
        if Identity.of(self.path) != self._identity:
            inherited.close(connection)
            raise StorageError(f"the file {self.path} was replaced while it was in use", status="DATA_LOSS")
        return connection

    def _reading(self) -> threading.RLock:
        """Return the lock for a read. Raises `StorageError` if reading is no longer possible."""
        failure = self._durability.failure
        if failure is not None:
            raise type(failure)(str(failure), status=failure.status)
        return NO_FORK.lock

    def _on_end(self, error: Exception | None) -> None:
        """Record the end of the store thread and its error. Called on that thread."""
        if error is None:
            self._durability.end(StorageError(f"the file {self.path} was closed", status="UNAVAILABLE"))
            return
        self._is_sound = False
        fault = storage_error(self.path, error)
        if isinstance(fault, FileLost):
            self._loss = fault
        elif (
            fault.status != "ABORTED" and self._check() is not None
        ):  # aborted: the file is intact, but another process owns it
            fault = self._loss or fault  # SQLite also fails when another program has written into the file
        # The message suffices for an error of the disk; an error in our code needs its traceback.
        trace = None if isinstance(error, (sqlite3.Error, OSError, StorageError)) else error
        if not isinstance(fault, FileLost):  # a loss is reported by the caller, which stops
            logger.error(
                "%s: the store has failed and must be reopened: %s", self.path, fault, exc_info=trace
            )
        self._durability.end(fault)

    def _checkpoint_at_end(self) -> None:
        try:
            self._writer.checkpoint("TRUNCATE")
        except (
            sqlite3.Error
        ) as error:  # everything is in the WAL, and the next process that opens the file reads it
            logger.warning(
                "%s was closed without a final checkpoint: %s", self.path, storage_error(self.path, error)
            )

    def _after_fork(self) -> None:
        """Disable the store in a forked child, which has no store thread and must not use the parent's connections."""
        self._is_sound = False
        self._durability.disown(
            StorageError(
                f"the file {self.path} was opened by the parent process, from which this process was forked; reconnect "
                "after the fork",
                status="UNAVAILABLE",
            )
        )


class SqliteOpener:
    """The `StoreOpener` for SQLite files."""

    def check(self, path: str) -> None:
        """Raise `StorageError` if a process from which this one was forked had the file open."""
        inherited.reject_inherited(path)

    def open(self, path: str, namespace: str, *, briefly: bool = False) -> Store:
        return SqliteStore.open(path, namespace=namespace)

    def open_read_only(self, path: str, why: StorageError) -> Store:
        return ReadOnlyStore(path, why)


SQLITE = SqliteOpener()


def _after_fork() -> None:
    for store in list(_live):
        store._after_fork()
    _live.clear()


_live: weakref.WeakSet[SqliteStore] = weakref.WeakSet()

at_fork(ForkStage.STORES, in_child=_after_fork)
