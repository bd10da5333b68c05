"""A session: one open connection and how values travel over it; it runs operations for both faces of the
client.

An `Operation` is written once and runs in three steps: it is built by the caller (arguments bound and
encoded), asked on the control loop, and its answer parsed by the caller again. So converters, which may be
the user's code, run in the caller's thread, a codec in a worker thread, and only our own code on the
control loop. The two faces differ in how they wait: `run` blocks, `arun` is awaited.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from hourglass._bridge.service import Connection, Request
from hourglass._runtime.portal import Portal
from hourglass._runtime.targets import Target, open_connection
from hourglass.client._codec_edge import sealed, unsealed
from hourglass.converter import Codec, Converter
from hourglass.errors import UsageError

A = TypeVar("A")
T = TypeVar("T")


@dataclass(frozen=True)
class Operation(Generic[T]):
    """Something that a client can do: what to ask on the control loop, and how to read the answer."""

    ask: Callable[[Session], Coroutine[Any, Any, Any]]
    parse: Callable[[Any], T]


def asking(request: Request[A], parse: Callable[[A], T]) -> Operation[T]:
    """The operation of one request."""
    return Operation(lambda session: session.call(request), parse)


def nothing(_answer: object) -> None:
    """Parse an answer that says nothing."""


class Session:
    """An open connection, its portal, and how values travel over it. Safe to use from any thread or loop."""

    def __init__(
        self, portal: Portal, connection: Connection, converter: Converter, codec: Codec | None = None
    ) -> None:
        self.portal = portal
        self.connection = connection
        self.converter = converter
        self.codec = codec
        self._closed = False
        self._forget_exit = portal.at_exit(connection.close)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def run(self, operation: Operation[T]) -> T:
        """Run an operation and block this thread until it is done."""
        return operation.parse(self.portal.call(operation.ask(self)))

    async def arun(self, operation: Operation[T]) -> T:
        """Run an operation and await it, on any event loop."""
        return operation.parse(await self.portal.acall(operation.ask(self)))

    async def call(self, request: Request[A]) -> A:
        """Ask the service, on the control loop, through the codec if there is one."""
        if self._closed:
            raise UsageError("this client is closed: connect again")
        if self.codec is None:
            return await self.connection.call(request)
        sent = await asyncio.to_thread(sealed, request, self.codec, self.converter)
        answer = await self.connection.call(sent)
        return await asyncio.to_thread(unsealed, answer, self.codec, self.converter)

    async def close(self) -> None:
        """Let go of the connection, on the control loop. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self._forget_exit()
        await self.connection.close()


async def open_session(
    portal: Portal,
    target: Target,
    identity: str | None,
    timeout: float,
    converter: Converter,
    codec: Codec | None,
) -> Session:
    """Connect, on the control loop."""
    connection = await open_connection(target, identity or default_identity(), timeout)
    return Session(portal, connection, converter, codec)


def default_identity() -> str:
    """Who we say we are where nothing is said: the process and the machine."""
    return f"{os.getpid()}@{socket.gethostname()}"
