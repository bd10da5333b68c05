"""A connection to a file: the door of clients and workers, whichever process owns it.

Must not know: how a request finds its engine (see `calls`). Time limits of calls and the closed state are kept
here. All connections of a process to one file share one host; in a forked child they begin anew.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections.abc import Coroutine
from typing import Any, TypeVar, cast

import msgspec

from hourglass._contract import deployments as dp
from hourglass._contract import service as s
from hourglass._contract import workflows as wf
from hourglass._contract.handle import HandleConfig
from hourglass._embedded.api.answering import too_late
from hourglass._embedded.engine import EngineFigures
from hourglass._embedded.multiprocess.open_engine import Interruption
from hourglass._embedded.multiprocess.shared_file import FileHandle, SharedFile
from hourglass._embedded.store.sqlite.store import SQLITE
from hourglass._embedded.store.store import DiskCondition, StoreOpener
from hourglass._embedded.transitions.size_limits import Limits
from hourglass._forks import ForkStage, at_fork, leak
from hourglass.errors import (
    ConnectionFailedError,
    HourglassError,
    NamespaceNotFoundError,
    ServiceTimeoutError,
    StorageError,
)

A = TypeVar("A")

_log = logging.getLogger("hourglass.embedded")

_MARGIN = 1.0

EXPLAINED_AFTER = 3.0
"""Seconds that a call may wait to be stored before the log says why it does, if the file cannot be written."""

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
    """Connect to a file, on the running loop. Nothing is opened, nor made, before something is asked. `opener` is the
    kind of store.
    """
    real = _checked(path)
    key = (asyncio.get_running_loop(), real)
    file = _files.get(key)
    if file is None:
        file = _files[key] = SharedFile(opener, real, namespace)
    if file.namespace != namespace:
        raise NamespaceNotFoundError(
            f"{path} is in use here with the namespace {file.namespace!r}, not {namespace!r}: "
            "a file has one namespace",
            status="NOT_FOUND",
        )
    if retention is not None:
        file.retention = retention
    if limits is not None:
        file.limits = limits
    file.users += 1
    return FileConnection(file, identity=identity, target=target or f"local:{path}")


class FileConnection:
    """Implements `hourglass._contract.service.Connection`."""

    def __init__(self, file: SharedFile, *, identity: str, target: str) -> None:
        self._file = file
        self._identity = identity
        self._target = target
        self._handles: list[FileHandle] = []
        self._noticed = False
        self._explained = False
        self._waiting: dict[int, tuple[float, str]] = {}
        """Changes that are not answered yet, by number: since when, and what was asked."""
        self._numbers = itertools.count()
        self._watch: asyncio.TimerHandle | None = None
        self._explaining: asyncio.Task[None] | None = None
        self._calls = Interruption(
            lambda: ConnectionFailedError("the connection is closed", status="CANCELLED")
        )

    @property
    def target(self) -> str:
        """What it is connected to."""
        return self._target

    @property
    def namespace(self) -> str:
        """The namespace it works in."""
        return self._file.namespace

    @property
    def identity(self) -> str:
        """Who we say we are."""
        return self._identity

    @property
    def standing(self) -> str:
        """This process's part in the file, for people: owner, client, or working for which process."""
        return self._file.standing

    @property
    def owner_trouble(self) -> str:
        """Why this process's workers get no work from the owner of the file, for people; empty where they do."""
        return self._file.owner_trouble

    @property
    def processes(self) -> tuple[dp.WorkerProcess, ...]:
        """The processes that work on the file, the owner first; empty where this one has no worker."""
        return self._file.processes

    @property
    def condition(self) -> DiskCondition | None:
        """How it stands with the file and its disk, if this process owns it."""
        return self._file.condition

    @property
    def figures(self) -> EngineFigures | None:
        """How much there is to do, if this process owns the file."""
        return self._file.figures

    def call(self, request: s.Request[A]) -> Coroutine[Any, Any, A]:
        """Ask, and wait for the answer."""
        if request.effect is s.Effect.READ:
            return self._read(request)
        if request.waits and not request.needs_worker:
            return self._call(request)
        return self._change(request)

    def execute(self, request: wf.StartWorkflow) -> Coroutine[Any, Any, wf.Executed]:
        """Start a workflow and wait for its end, as one request: its answer waits for the disk once."""
        return self._calls.run(self._file.execute, request)

    async def _read(self, request: s.Request[A]) -> A:
        """Ask; where the file's disk is full the answer says so, and the log too, once."""
        answer = await self._call(request)
        notice = str(getattr(answer, "notice", ""))
        if notice and not self._noticed:
            _log.warning("%s", notice)
        self._noticed = bool(notice)
        return answer

    async def _change(self, request: s.Request[A]) -> A:
        """Ask; where the answer takes long because the file cannot be written, the log says so, once."""
        loop = asyncio.get_running_loop()
        number = next(self._numbers)
        self._waiting[number] = loop.time(), type(request).__name__
        if self._watch is None:
            self._watch = loop.call_later(EXPLAINED_AFTER, self._look)
        try:
            return await self._call(request)
        finally:
            del self._waiting[number]

    def _look(self) -> None:
        """Look for changes that wait for long; one timer serves all calls, most of which take no time."""
        self._watch = None
        if not self._waiting or self._calls.ended:
            return
        loop = asyncio.get_running_loop()
        since, name = next(iter(self._waiting.values()))
        left = since + EXPLAINED_AFTER - loop.time()
        if left <= 0 and (self._explaining is None or self._explaining.done()):
            self._explaining = loop.create_task(self._explain(name))
        self._watch = loop.call_later(left if left > 0 else _LOOK_AGAIN, self._look)

    async def _explain(self, name: str) -> None:
        """Log why a change waits, if that is because the file cannot be written. Only its owner knows."""
        calls = self._file.calls
        if calls.engine is None and calls.owner is None:
            return
        try:
            look = wf.ListWorkflows(page_size=1, rpc_timeout=EXPLAINED_AFTER)
            notice = (await self._call(look)).notice
        except HourglassError:
            return
        if notice and not self._explained:
            _log.warning("%s waits until it can be stored: %s", name, notice.removesuffix(s.AS_STORED))
        self._explained = bool(notice)

    def _call(self, request: s.Request[A]) -> Coroutine[Any, Any, A]:
        limit = request.time_limit
        if limit is None:
            return self._calls.run(self._file.call, request)
        return self._call_within(limit, request)

    async def _call_within(self, limit: float, request: s.Request[A]) -> A:
        # The engine ends the wait for some requests itself, with an answer.
        margin = _MARGIN if request.waits else 0.0
        try:
            async with asyncio.timeout(limit + margin):
                return await self._calls.run(self._file.call, request)
        except TimeoutError as error:
            if isinstance(error, ServiceTimeoutError):
                raise
            if isinstance(request, wf.WaitForClose):
                return cast(A, wf.StillOpen(request.run_id))
            raise too_late(request, limit) from None

    async def open_handle(self, config: HandleConfig) -> FileHandle:
        """Open a handle for a task queue: it works in this process's engine, or for the process that owns the file."""
        config.refuse_tuning()
        if not config.identity:
            config = msgspec.structs.replace(config, identity=self._identity)
        handle = await self._calls.run(self._file.open_handle, config)
        self._handles.append(handle)
        return handle

    async def close(self) -> None:
        """Let go of everything. Handles that are still open end. Safe to call twice."""
        if self._calls.ended:
            return
        self._calls.end()
        if self._watch is not None:
            self._watch.cancel()
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
        raise StorageError(f"{path} is a directory: name a file", status="INVALID_ARGUMENT")
    if not os.path.isdir(directory):
        raise StorageError(f"{path}: there is no directory {directory}", status="INVALID_ARGUMENT")
    return real


def _after_fork() -> None:
    leak(dict(_files))
    _files.clear()


at_fork(ForkStage.HOSTS, in_child=_after_fork)
