"""A connection to a file: the door of clients and workers, whichever process owns it.

Must not know: how a request finds its engine (see `calls`). Time limits of calls and the closed state are kept
here. All connections of a process to one file share one host; in a forked child they begin anew.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Coroutine
from typing import Any, TypeVar, cast

import msgspec

from hourglass._contract import service as s
from hourglass._contract.handle import HandleConfig
from hourglass._embedded.clients.answering import limit_of, too_late
from hourglass._embedded.clients.requests import LOOKS, PATIENT
from hourglass._embedded.sharing.engine_room import Interruption
from hourglass._embedded.sharing.file_handle import FileHandle
from hourglass._embedded.sharing.host import Host
from hourglass._embedded.store.disk_faults import Condition
from hourglass._forks import ForkStage, at_fork, leak
from hourglass.errors import ConnectionFailedError, NamespaceNotFoundError, ServiceTimeoutError, StorageError

A = TypeVar("A")

_log = logging.getLogger("hourglass.embedded")

_MARGIN = 1.0

_hosts: dict[tuple[asyncio.AbstractEventLoop, str], Host] = {}


async def connect_file(
    path: str,
    *,
    namespace: str = "default",
    identity: str = "",
    target: str = "",
    retention: float | None = None,
) -> FileConnection:
    """Connect to a file, on the running loop. Nothing is opened, nor made, before something is asked."""
    real = _checked(path)
    key = (asyncio.get_running_loop(), real)
    host = _hosts.get(key)
    if host is None:
        host = _hosts[key] = Host(real, namespace)
    if host.namespace != namespace:
        raise NamespaceNotFoundError(
            f"{path} is in use here with the namespace {host.namespace!r}, not {namespace!r}: "
            "a file has one namespace",
            status="NOT_FOUND",
        )
    if retention is not None:
        host.retention = retention
    host.users += 1
    return FileConnection(host, identity=identity, target=target or f"local:{path}")


class FileConnection:
    """Implements `hourglass._contract.service.Connection`."""

    def __init__(self, host: Host, *, identity: str, target: str) -> None:
        self._host = host
        self._identity = identity
        self._target = target
        self._handles: list[FileHandle] = []
        self._noticed = False
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
        return self._host.namespace

    @property
    def identity(self) -> str:
        """Who we say we are."""
        return self._identity

    @property
    def standing(self) -> str:
        """This process's part in the file, for people: owner, client, or standing by for which process."""
        return self._host.standing

    @property
    def condition(self) -> Condition | None:
        """How it stands with the file and its disk, if this process owns it."""
        return self._host.condition

    def call(self, request: s.Request[A]) -> Coroutine[Any, Any, A]:
        """Ask, and wait for the answer."""
        return self._look(request) if type(request) in LOOKS else self._call(request)

    async def _look(self, request: s.Request[A]) -> A:
        """Ask; where the file's disk is full the answer says so, and the log too, once."""
        answer = await self._call(request)
        notice = str(getattr(answer, "notice", ""))
        if notice and not self._noticed:
            _log.warning("%s", notice)
        self._noticed = bool(notice)
        return answer

    def _call(self, request: s.Request[A]) -> Coroutine[Any, Any, A]:
        limit = limit_of(request)
        if limit is None:
            return self._calls.run(self._host.call, request)
        return self._call_within(limit, request)

    async def _call_within(self, limit: float, request: s.Request[A]) -> A:
        # The engine ends the wait for some requests itself, with an answer.
        margin = _MARGIN if isinstance(request, PATIENT) else 0.0
        try:
            async with asyncio.timeout(limit + margin):
                return await self._calls.run(self._host.call, request)
        except TimeoutError as error:
            if isinstance(error, ServiceTimeoutError):
                raise
            if isinstance(request, s.WaitForClose):
                return cast(A, s.StillOpen(request.run_id))
            raise too_late(request, limit) from None

    async def open_handle(self, config: HandleConfig) -> FileHandle:
        """Open a handle for a task queue: it works if this process owns the file, and stands by if another does."""
        if not config.identity:
            config = msgspec.structs.replace(config, identity=self._identity)
        handle = await self._calls.run(self._host.open_handle, config)
        self._handles.append(handle)
        return handle

    async def close(self) -> None:
        """Let go of everything. Handles that are still open end. Safe to call twice."""
        if self._calls.ended:
            return
        self._calls.end()
        handles, self._handles = self._handles, []
        for handle in handles:
            await handle.finalize_shutdown()
        self._host.users -= 1
        if not self._host.users:
            _hosts.pop((asyncio.get_running_loop(), self._host.path), None)
            await self._host.close()


def _checked(path: str) -> str:
    real = os.path.realpath(path)
    directory = os.path.dirname(real)
    if os.path.isdir(real):
        raise StorageError(f"{path} is a directory: name a file", status="INVALID_ARGUMENT")
    if not os.path.isdir(directory):
        raise StorageError(f"{path}: there is no directory {directory}", status="INVALID_ARGUMENT")
    return real


def _after_fork() -> None:
    leak(dict(_hosts))
    _hosts.clear()


at_fork(ForkStage.HOSTS, in_child=_after_fork)
