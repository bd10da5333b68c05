"""The connection of clients and workers to a file, whichever process owns the file.

Must not know: how a request finds its engine (see `calls`). Enforces the timeouts of calls, and the closed state. All connections
of a process to one file share one `SharedFile`; a forked child starts without any.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from types import TracebackType
from typing import Any, TypeVar, cast

import msgspec

from hourglass._contract import service as s
from hourglass._contract import workflows as wf
from hourglass._contract.engine_status import EngineStatus
from hourglass._contract.handle import HandleConfig
from hourglass._embedded.api.answering import too_late
from hourglass._embedded.multiprocess.file_handle import FileHandle
from hourglass._embedded.multiprocess.shared_file import SharedFile
from hourglass._embedded.store.sqlite.store import SQLITE
from hourglass._embedded.store.store import StoreOpener
from hourglass._embedded.transitions.size_limits import Limits
from hourglass._forks import ForkStage, at_fork, leak
from hourglass.errors import (
    ConnectionFailedError,
    HourglassError,
    NamespaceNotFoundError,
    ServiceTimeoutError,
    StorageError,
)
from hourglass.metrics import Family

A = TypeVar("A")

_log = logging.getLogger("hourglass.embedded")

_MARGIN = 1.0

EXPLAINED_AFTER = 3.0
"""Seconds that a change may wait before the log explains why, if the file cannot be written."""

_LOOK_AGAIN = 10.0

_files: dict[tuple[asyncio.AbstractEventLoop, str], SharedFile] = {}


async def connect_file(
    path: str,
    *,
    namespace: str = "default",
    identity: str = "",
    target: str = "",
    retention: float | None = None,
    limits: Limits | None = None,
    opener: StoreOpener = SQLITE,
) -> FileConnection:
    """Connect to a file, on the running loop. Nothing is opened or created before the first request.

    `opener` opens the store, and so determines the kind of store.
    """
    real = _checked(path)
    key = (asyncio.get_running_loop(), real)
    file = _files.get(key)
    if file is None:
        file = _files[key] = SharedFile(opener, real, namespace)
    if file.namespace != namespace:
        raise NamespaceNotFoundError(
            f"{path} is already open in this process with the namespace {file.namespace!r}, not {namespace!r}: a file "
            "has only one namespace",
            status="NOT_FOUND",
        )
    if retention is not None:
        file.retention = retention
    if limits is not None:
        file.limits = limits
    file.users += 1
    return FileConnection(file, identity=identity, target=target or f"local:{path}")


class _OpenCalls:
    """The calls in progress on a connection. `close` ends them with an error instead of a cancellation.

    Like `asyncio.timeout`: the waiting tasks are cancelled, and the cancellation is replaced by the error at the end of
    the `with` block, unless the caller has cancelled the task, too. Calls must not be nested.
    """

    def __init__(self) -> None:
        self.closed = False
        self._cancellations: dict[asyncio.Task[Any], int] = {}
        """The number of cancellations that each call's task had received before the call began."""

    def __enter__(self) -> None:
        if self.closed:
            raise _closed()
        task = asyncio.current_task()
        assert task is not None
        self._cancellations[task] = task.cancelling()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        before = self._cancellations.pop(task)
        if isinstance(error, asyncio.CancelledError) and self.closed and task.uncancel() <= before:
            raise _closed() from None

    def close(self) -> None:
        """End all calls and reject new ones. Safe to call twice."""
        if not self.closed:
            self.closed = True
            for task in tuple(self._cancellations):
                task.cancel()


def _closed() -> ConnectionFailedError:
    return ConnectionFailedError("the connection is closed", status="CANCELLED")


class FileConnection:
    """A connection to a file. Implements `hourglass._contract.service.Connection`."""

    def __init__(self, file: SharedFile, *, identity: str, target: str) -> None:
        self._file = file
        self._router = file.calls
        self.target = target
        """The address of the engine."""
        self.namespace = file.namespace
        self.identity = identity
        self._handles: list[FileHandle] = []
        self._noticed = False
        self._explained = False
        self._waiting: dict[int, tuple[float, str]] = {}
        """Unanswered changes by number: the time at which each was sent, and the name of its class."""
        self._numbers = itertools.count(1)
        self._waiting_timer: asyncio.TimerHandle | None = None
        self._explaining: asyncio.Task[None] | None = None
        self._calls = _OpenCalls()

    def status(self) -> EngineStatus:
        return self._file.status()

    def metrics(self) -> list[Family]:
        """Return an empty list, because the engine has no metrics of its own."""
        return []

    async def call(self, request: s.Request[A]) -> A:
        """Send a request to the file's engine, in this process or another, and return the answer."""
        is_read = request.effect is s.Effect.READ
        is_long_poll = request.waits and not request.needs_worker
        number = 0 if is_read or is_long_poll else self._begin_change(request)
        limit = request.time_limit
        try:
            with self._calls:
                if limit is None:
                    answer = await self._router.call(request)
                else:
                    answer = await self._call_within(limit, request)
        finally:
            self._waiting.pop(number, None)
        if is_read:
            self._log_notice(answer)
        return answer

    async def _call_within(self, limit: float, request: s.Request[A]) -> A:
        # The engine itself ends some requests at their time limit, with an answer.
        margin = _MARGIN if request.waits else 0.0
        try:
            async with asyncio.timeout(limit + margin):
                return await self._router.call(request)
        except TimeoutError as error:
            if isinstance(error, ServiceTimeoutError):
                raise
            if isinstance(request, wf.WaitForClose):
                return cast(A, wf.StillOpen(request.run_id))
            raise too_late(request, limit) from None

    def _log_notice(self, answer: object) -> None:
        """Log the notice in an answer, such as that the disk is full, unless the previous answer also had one."""
        notice = answer.notice if isinstance(answer, s.ReadAnswer) else ""
        if notice and not self._noticed:
            _log.warning("%s", notice)
        self._noticed = bool(notice)

    def _begin_change(self, request: s.Request[Any]) -> int:
        """Record that a change waits for its answer, so that the log can explain a long wait. Return a number for the
        wait.
        """
        loop = asyncio.get_running_loop()
        number = next(self._numbers)
        self._waiting[number] = loop.time(), type(request).__name__
        if self._waiting_timer is None:
            self._waiting_timer = loop.call_later(EXPLAINED_AFTER, self._check_waiting)
        return number

    def _check_waiting(self) -> None:
        """Check for changes that have waited too long. One timer serves all calls, because most calls end immediately."""
        self._waiting_timer = None
        if not self._waiting or self._calls.closed:
            return
        loop = asyncio.get_running_loop()
        since, name = next(iter(self._waiting.values()))
        remaining = since + EXPLAINED_AFTER - loop.time()
        if remaining <= 0 and (self._explaining is None or self._explaining.done()):
            self._explaining = loop.create_task(self._explain(name))
        self._waiting_timer = loop.call_later(
            remaining if remaining > 0 else _LOOK_AGAIN, self._check_waiting
        )

    async def _explain(self, name: str) -> None:
        """Log the reason if a change waits because the file cannot be written. Only the owner of the file knows this."""
        if self._router.engine is None and self._router.owner is None:
            return
        try:
            listing = wf.ListWorkflows(page_size=1, rpc_timeout=EXPLAINED_AFTER)
            notice = (await self.call(listing)).notice
        except HourglassError:
            return
        if notice and not self._explained:
            _log.warning("%s cannot be stored yet and waits: %s", name, notice.removesuffix(s.AS_STORED))
        self._explained = bool(notice)

    async def open_handle(self, config: HandleConfig) -> FileHandle:
        """Open a handle for a task queue, on this process's engine or on the engine of the file's owner."""
        config.reject_tuning()
        if not config.identity:
            config = msgspec.structs.replace(config, identity=self.identity)
        with self._calls:
            handle = await self._file.open_handle(config)
        self._handles.append(handle)
        return handle

    async def close(self) -> None:
        """Close the connection and its open handles. Safe to call twice."""
        if self._calls.closed:
            return
        self._calls.close()
        if self._waiting_timer is not None:
            self._waiting_timer.cancel()
        handles, self._handles = self._handles, []
        for handle in handles:
            await handle.finalize()
        self._file.users -= 1
        if not self._file.users:
            _files.pop((asyncio.get_running_loop(), self._file.path), None)
            await self._file.close()


def _checked(path: str) -> str:
    real = os.path.realpath(path)
    directory = os.path.dirname(real)
    if os.path.isdir(real):
        raise StorageError(f"{path} is a directory: pass the path of a file", status="INVALID_ARGUMENT")
    if not os.path.isdir(directory):
        raise StorageError(
            f"{path} cannot be created: the directory {directory} does not exist", status="INVALID_ARGUMENT"
        )
    return real


def _after_fork() -> None:
    leak(dict(_files))
    _files.clear()


at_fork(ForkStage.HOSTS, in_child=_after_fork)
