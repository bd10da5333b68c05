"""A link: the connection of a client in this process. Opened when it is needed, changed while it is open, and made anew in a
forked child, which never uses, nor frees, the connection of its parent.
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
from hourglass._forks import ForkStage, at_fork, leak
from hourglass._runtime.portal import Portal
from hourglass._runtime.targets import Target, check_target, open_connection
from hourglass.errors import UsageError

Opener = Callable[[Target], Coroutine[Any, Any, Connection]]


class Link:
    """The connection of this process, and the portal whose loop it lives on; a new one where the process was forked.
    Without a connection at first, it is opened when it is needed.

    Servers that load an application and then fork (gunicorn with preload) make their clients before they have
    children. In a child the parent's connection must not be used, nor freed; the link forgets it there and
    opens its own when it is first needed. To a file a child is a client, even if its parent owns it. An engine
    in memory has no other way in: its link is dead in a child, and says so.
    """

    where = Target(kind="memory")
    """What it leads to, and with which credentials."""

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
        """The workflows' task queues, and the activities, of which a client that waits has said that no worker takes them."""
        self._opener = opener
        self._opening = asyncio.Lock()
        self._portal: Portal | None = portal
        self._connection: Connection | None = connection
        self._others: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._forget_exit = _nothing if connection is None else portal.at_exit(connection.close)
        _links.add(self)

    @property
    def portal(self) -> Portal:
        """This process's portal."""
        if self._portal is None:
            self._portal = Portal.current()
        return self._portal

    @property
    def identity(self) -> str:
        """Who we say we are."""
        return default_identity() if self._connection is None else self._connection.identity

    @property
    def connection(self) -> Connection:
        """The open connection, for any thread but the control loop's; a forked child opens it first."""
        if self._connection is None:
            return self.portal.call(self.opened())
        return self._connection

    @property
    def at_hand(self) -> Connection | None:
        """The open connection, if nothing has to be opened, or refused, first. For any thread."""
        return None if self.closed else self._connection

    async def opened(self) -> Connection:
        """The open connection, on the control loop."""
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
        """A connection of its own to the same engine, on the control loop; one in memory has no other way in."""
        if self._opener is None:
            return await self.opened()
        found = await self._opener(self.where)
        self._others.add(found)  # its key may have to be changed
        return found

    def change(self, **credentials: Any) -> None:
        """Use another API key, or other headers, from the next call on: here, and in all workers of this link."""
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
        """Let go of the connection, on the control loop. Safe to call twice."""
        if self.closed:
            return
        self.closed = True
        self._forget_exit()
        if self._connection is not None:
            await self._connection.close()

    async def _open(self) -> Connection:
        if self._opener is None:
            raise UsageError(
                f"the engine of {self.target} lives in the process that connected to it, "
                "and this is a fork of that: connect again here"
            )
        return await self._opener(self.where)

    def forget(self) -> None:
        """In a forked child: let the parent's connection be, without freeing it."""
        # Held for ever: freeing them here would close sockets and files that the parent goes on using.
        leak(self._portal, self._connection, *self._others)
        self._portal = None
        self._connection = None
        self._others = weakref.WeakSet()
        self._opening = asyncio.Lock()
        self._forget_exit = _nothing


def default_identity() -> str:
    """Who we say we are where nothing is said: the process and the machine."""
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
    """Connect, on the control loop; with `lazy` when it is needed, unless the engine is in this process's memory."""

    async def open_one(where: Target) -> Connection:
        return await open_connection(where, identity or default_identity(), timeout)

    in_memory = target.kind == "memory"
    connection = None if lazy and not in_memory else await open_one(target)
    return Link(portal, connection, None if in_memory else open_one, target)
