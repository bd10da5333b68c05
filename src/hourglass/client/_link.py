"""The connection of a client in this process. It is opened on first use, and its credentials can be changed while it is
open. A forked child opens its own connection, and never uses or frees its parent's.
"""

from __future__ import annotations

import asyncio
import os
import socket
import weakref
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from hourglass._contract.service import Connection, Remote
from hourglass._contract.workflows import (
    UpdateWorkflow,
)
from hourglass._forks import ForkStage, at_fork, leak
from hourglass._worker.portal import Portal
from hourglass._worker.targets import Target, check_target, open_connection
from hourglass.errors import UsageError

Opener = Callable[[Target], Coroutine[Any, Any, Connection]]


class WaitList:
    """The current waits of a client, and one timer for all of them: most waits end before their timer would fire. Must be used
    on the control loop.
    """

    def __init__(self) -> None:
        self._due: dict[Callable[[], None], float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, begin_checks: Callable[[], None], due: float) -> None:
        """Call the function at this time of the loop, unless it is removed first. The times never decrease."""
        self._due[begin_checks] = due
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(due, self._on_time)

    def remove(self, begin_checks: Callable[[], None]) -> None:
        """Remove the function of a wait that is over."""
        self._due.pop(begin_checks, None)

    def _on_time(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        for begin_checks, due in list(self._due.items()):
            if due > loop.time() + 0.01:
                self._timer = loop.call_at(due, self._on_time)
                return
            del self._due[begin_checks]
            begin_checks()


class Link:
    """The connection of a client in this process, and the portal of its loop. The connection is opened on first use.

    Servers that load an application and then fork (gunicorn with preload) create their clients before their children. A
    child must neither use nor free its parent's connection, so the link drops it and opens a new one on first use. A child
    is a client of a file even if its parent owns the file. An in-memory engine cannot be reached from a child, and the link
    raises an error there.
    """

    where = Target(kind="memory")
    """The target, including its credentials."""

    def __init__(
        self,
        portal: Portal,
        connection: Connection | None,
        opener: Opener | None = None,
        where: Target | None = None,
    ) -> None:
        self.where = where or self.where
        self.target = str(self.where) if connection is None else connection.target
        self.namespace = self.where.namespace if connection is None else connection.namespace
        self.closed = False
        self.unserved: set[tuple[str, ...]] = set()
        """The workflow task queues and the activities for which this client has already warned that no worker receives them."""
        self.requested_updates: dict[str, UpdateWorkflow] = {}
        """Updates that this client waits for and that no service has yet reported as accepted, by id."""
        self.waits = WaitList()
        self._opener = opener
        self._opening = asyncio.Lock()
        self._portal: Portal | None = portal
        self._connection: Connection | None = connection
        self._others: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._forget_exit = _nothing if connection is None else portal.at_exit(connection.close)
        _links.add(self)

    @property
    def portal(self) -> Portal:
        """The portal of the control loop in this process."""
        if self._portal is None:
            self._portal = Portal.current()
        return self._portal

    @property
    def identity(self) -> str:
        """The client identity."""
        return default_identity() if self._connection is None else self._connection.identity

    @property
    def connection(self) -> Connection:
        """The open connection, for any thread except the control loop's. In a forked child it is opened first."""
        if self._connection is None:
            return self.portal.call(self.opened())
        return self._connection

    @property
    def at_hand(self) -> Connection | None:
        """The open connection, or None if it is closed or has not been opened. Safe to use from any thread."""
        return None if self.closed else self._connection

    async def opened(self) -> Connection:
        """Return the open connection. Must be called on the control loop."""
        if self.closed:
            raise UsageError("this client is closed: connect again")
        if self._connection is not None:
            return self._connection
        async with self._opening:
            if self._connection is None:
                self._connection = await self._open()
                self._forget_exit = self.portal.at_exit(self._connection.close)
        return self._connection

    async def another(self) -> Connection:
        """Return another connection to the same engine, or the same connection for an in-memory engine. Must be called on
        the control loop.
        """
        if self._opener is None:
            return await self.opened()
        connection = await self._opener(self.where)
        self._others.add(connection)  # so that `change` reaches it
        return connection

    def change(self, **credentials: Any) -> None:
        """Use another API key or other headers from the next call on, here and in all workers of this link."""
        where = check_target(replace(self.where, **credentials))
        opened: list[Any] = [self._connection, *self._others]
        for connection in opened:
            if isinstance(connection, Remote):
                if "api_key" in credentials:
                    connection.set_api_key(where.api_key)
                else:
                    connection.set_rpc_metadata(where.metadata)
        self.where = where

    async def close(self) -> None:
        """Close the connection. Must be called on the control loop. Safe to call twice."""
        if self.closed:
            return
        self.closed = True
        self._forget_exit()
        if self._connection is not None:
            await self._connection.close()

    async def _open(self) -> Connection:
        if self._opener is None:
            raise UsageError(
                "this client was connected before the process forked and cannot be used in the child process: connect to "
                f"{self.target} again in the child"
            )
        return await self._opener(self.where)

    def forget(self) -> None:
        """Drop the parent's connection in a forked child, without freeing it."""
        # Referenced permanently: freeing these objects here would close sockets and files that the parent uses.
        leak(self._portal, self._connection, *self._others)
        self._portal = None
        self._connection = None
        self._others = weakref.WeakSet()
        self._opening = asyncio.Lock()
        self.waits = WaitList()
        self._forget_exit = _nothing


def default_identity() -> str:
    """Return the default identity: the process id and the host name."""
    return f"{os.getpid()}@{socket.gethostname()}"


def _nothing() -> None:
    pass


_links: weakref.WeakSet[Link] = weakref.WeakSet()


def _after_fork() -> None:
    for link in list(_links):
        link.forget()


at_fork(ForkStage.CLIENTS, in_child=_after_fork)


async def open_link(
    portal: Portal, target: Target, identity: str | None, timeout: float, lazy: bool = False
) -> Link:
    """Open a link on the control loop. With `lazy`, connect on first use, unless the engine is in this process's memory."""

    async def open_one(where: Target) -> Connection:
        return await open_connection(where, identity or default_identity(), timeout)

    in_memory = target.kind == "memory"
    connection = None if lazy and not in_memory else await open_one(target)
    return Link(portal, connection, None if in_memory else open_one, target)
