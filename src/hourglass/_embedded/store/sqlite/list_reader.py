"""Lists and counts on separate threads and connections: a long query delays neither the control loop nor a commit.

Must not know: filters, runs, clients. A query waits for its turn and then runs; both together take at most
`LIST_SECONDS`, after which the caller gets a `ServiceTimeoutError`. Invariants: every query is answered or rejected
within its limit; a query whose caller has stopped waiting is dropped; a fork does not wait for queries (running queries
are interrupted, and restart after the fork); everything runs inside `NO_FORK`.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from time import monotonic
from typing import Any, Generic, TypeVar

from hourglass._embedded.store.fork_safety import NO_FORK
from hourglass._embedded.store.sqlite.disk_faults import storage_errors
from hourglass.errors import ServiceTimeoutError, StorageError

T = TypeVar("T")

LIST_SECONDS = 10.0
"""The time limit of a list or count in seconds, including the wait for earlier queries."""

CHECK_INSTRUCTIONS = 500_000
"""SQLite instructions between two checks whether a query must stop: about ten milliseconds. More checks would be
costly, because each must acquire the GIL.
"""


@dataclass(eq=False)
class _Query(Generic[T]):
    work: Callable[[sqlite3.Connection], T]
    answer: asyncio.Future[T]
    deadline: float


class ListReader:
    """A queue of list queries, and the threads that run them.

    `connect` and `disconnect` are called on the threads, `ask` and `close` on one event loop.
    """

    def __init__(
        self,
        path: str,
        connect: Callable[[], sqlite3.Connection],
        disconnect: Callable[[sqlite3.Connection], None],
        *,
        threads: int = 1,
    ) -> None:
        self._path = path
        self._connect = connect
        self._disconnect = disconnect
        self._max_threads = threads
        self._threads: list[threading.Thread] = []
        self._queue: SimpleQueue[_Query[Any] | None] = SimpleQueue()
        self._open = 0
        self._closing = False

    @property
    def is_busy(self) -> bool:
        """Whether a query is waiting or running."""
        return self._open > 0

    async def ask(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` on a connection and return its result, or raise its exception. `work` may be restarted, and must
        only read.
        """
        if self._closing:
            raise self._closed()
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._threads = [thread for thread in self._threads if thread.is_alive()]  # none after a fork
        self._open += 1
        try:
            self._queue.put(_Query(work, answer, monotonic() + LIST_SECONDS))
            if len(self._threads) < min(self._open, self._max_threads):
                thread = threading.Thread(target=self._run, name="hourglass-lists", daemon=True)
                self._threads.append(thread)
                thread.start()
            return await answer
        finally:
            self._open -= 1

    def close(self) -> None:
        """Reject waiting queries, interrupt running ones, and close the connections. Safe to call twice."""
        self._closing = True
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        self._threads = []

    def _run(self) -> None:
        connection: sqlite3.Connection | None = None
        try:
            while (query := self._queue.get()) is not None:
                try:
                    if connection is None:
                        with NO_FORK.lock:
                            connection = self._connect()
                    value, error = self._answer(query, connection), None
                except Exception as failure:
                    value, error = None, failure
                _deliver(query.answer, value, error)
        finally:
            if connection is not None:
                with NO_FORK.lock:
                    self._disconnect(connection)

    def _answer(self, query: _Query[T], connection: sqlite3.Connection) -> T | None:
        while not query.answer.done():
            self._check(query)
            with NO_FORK.lock:
                connection.set_progress_handler(lambda: self._must_stop(query), CHECK_INSTRUCTIONS)
                try:
                    with storage_errors(self._path):
                        return query.work(connection)
                except StorageError as error:
                    if not is_interrupted(error.__cause__):
                        raise
                finally:
                    connection.set_progress_handler(None, 0)
        return None  # the caller has stopped waiting

    def _must_stop(self, query: _Query[T]) -> bool:
        return NO_FORK.fork_waits or self._closing or query.answer.done() or monotonic() > query.deadline

    def _check(self, query: _Query[T]) -> None:
        if self._closing:
            raise self._closed()
        if monotonic() > query.deadline:
            raise ServiceTimeoutError(
                f"the list was aborted after {LIST_SECONDS:g} s: use a narrower filter with fewer conditions on "
                "strings, or retry when fewer lists are running",
                status="DEADLINE_EXCEEDED",
            )

    def _closed(self) -> StorageError:
        return StorageError(f"{self._path} was closed", status="UNAVAILABLE")


def is_interrupted(error: BaseException | None) -> bool:
    """Whether SQLite stopped a statement because a progress handler requested the interruption."""
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT


def _deliver(answer: asyncio.Future[T | None], value: T | None, error: BaseException | None) -> None:
    with suppress(RuntimeError):  # the loop is closed, and nobody awaits the answer
        answer.get_loop().call_soon_threadsafe(_settle, answer, value, error)


def _settle(answer: asyncio.Future[T | None], value: T | None, error: BaseException | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(value)
    else:
        answer.set_exception(error)
