"""A link: a client's open connection, and a new one in its place where the process was forked.

Servers that load an application and then fork (gunicorn with preload) make their clients before they have
children. In a child the parent's connection must not be used, nor freed; the link forgets it there and
opens its own when it is first needed. To a file a child is a client, even if its parent owns it. An engine
in memory has no other way in: its link is dead in a child, and says so.
"""

from __future__ import annotations

import asyncio
import os
import socket
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

from hourglass._contract.service import Connection
from hourglass._runtime.portal import Portal
from hourglass.errors import UsageError

Opener = Callable[[], Coroutine[Any, Any, Connection]]


class Link:
    """The connection of this process, and the portal whose loop it lives on."""

    def __init__(self, portal: Portal, connection: Connection, opener: Opener | None = None) -> None:
        self.target = connection.target
        self.namespace = connection.namespace
        self.closed = False
        self._opener = opener
        self._opening = asyncio.Lock()
        self._portal: Portal | None = portal
        self._connection: Connection | None = connection
        self._forget_exit = portal.at_exit(connection.close)
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
        return await self.opened() if self._opener is None else await self._opener()

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
        return await self._opener()

    def forget(self) -> None:
        """In a forked child: let the parent's connection be, without freeing it."""
        _inherited.append((self._portal, self._connection))
        self._portal = None
        self._connection = None
        self._opening = asyncio.Lock()
        self._forget_exit = _nothing


def default_identity() -> str:
    """Who we say we are where nothing is said: the process and the machine."""
    return f"{os.getpid()}@{socket.gethostname()}"


def _nothing() -> None:
    pass


_links: weakref.WeakSet[Link] = weakref.WeakSet()
_inherited: list[object] = []


def _after_fork() -> None:
    for link in list(_links):
        link.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
