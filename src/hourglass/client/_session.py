"""A session: a link and how values travel over it; it runs operations for both faces of the client.

An `Operation` is written once and runs in three steps: it is built by the caller (arguments bound and
encoded), asked on the control loop, and its answer parsed by the caller again. So converters, which may be
the user's code, run in the caller's thread, a codec in a worker thread, and only our own code on the
control loop. The two faces differ in how they wait: `run` blocks, `arun` is awaited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from hourglass._bridge.service import Connection, Request
from hourglass._runtime.portal import Portal
from hourglass._runtime.targets import Target, open_connection
from hourglass.client._codec_edge import sealed, unsealed
from hourglass.client._link import Link, default_identity
from hourglass.converter import Codec, Converter, default_converter

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


@dataclass(frozen=True)
class Session:
    """A link, and how values travel over it. Safe to use from any thread or loop."""

    link: Link
    converter: Converter = default_converter
    codec: Codec | None = None

    @property
    def identity(self) -> str:
        """Who we say we are."""
        return self.link.identity

    def run(self, operation: Operation[T]) -> T:
        """Run an operation and block this thread until it is done."""
        return operation.parse(self.link.portal.call(operation.ask(self)))

    async def arun(self, operation: Operation[T]) -> T:
        """Run an operation and await it, on any event loop."""
        return operation.parse(await self.link.portal.acall(operation.ask(self)))

    def within(self, seconds: float | None) -> AbstractAsyncContextManager[object]:
        """A time limit for what is awaited inside: real seconds, but for a session of another time."""
        return asyncio.timeout(seconds)

    def meet(self, workflow: object) -> None:
        """A workflow was named that others will start later; a session that runs workflows itself must know it."""

    async def call(self, request: Request[A]) -> A:
        """Ask the service, on the control loop, through the codec if there is one."""
        connection = await self.link.opened()
        if self.codec is None:
            return await connection.call(request)
        sent = await asyncio.to_thread(sealed, request, self.codec, self.converter)
        answer = await connection.call(sent)
        return await asyncio.to_thread(unsealed, answer, self.codec, self.converter)


async def open_link(portal: Portal, target: Target, identity: str | None, timeout: float) -> Link:
    """Connect, on the control loop."""

    async def open_one() -> Connection:
        return await open_connection(target, identity or default_identity(), timeout)

    return Link(portal, await open_one(), None if target.kind == "memory" else open_one)
