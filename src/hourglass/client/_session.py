"""A session: a link and how values travel over it; it runs operations for both faces of the client.

An `Operation` is written once and runs in three steps: it is built by the caller (arguments bound and
encoded), asked on the control loop, and its answer parsed by the caller again. So converters, which may be
the user's code, run in the caller's thread, a codec in a worker thread, and only our own code on the
control loop. The two faces differ in how they wait: `run` blocks, `arun` is awaited.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, TypeVar

import msgspec

from hourglass._bridge.calls import within
from hourglass._contract.service import Connection, Request
from hourglass._contract.well_formed import check_request
from hourglass._runtime.portal import Portal
from hourglass._runtime.targets import Target, open_connection
from hourglass.client._codec_edge import sealed, unsealed
from hourglass.client._interception import (
    AsyncClientOutboundInterceptor,
    ClientCall,
    ClientOutboundInterceptor,
    Interceptor,
    async_client_chain,
    client_chain,
)
from hourglass.client._link import Link, default_identity
from hourglass.converter import Codec, Converter, default_converter

A = TypeVar("A")
T = TypeVar("T")
U = TypeVar("U")


class Operation(msgspec.Struct, Generic[T], frozen=True):
    """Something that a client can do: what to ask on the control loop, and how to read the answer."""

    ask: Callable[[Session], Coroutine[Any, Any, Any]]
    parse: Callable[[Any], T]
    call: ClientCall | None = None
    """The call that this is, where interceptors are to see it first; it can be built again from that."""

    def then(self, more: Callable[[T], U]) -> Operation[U]:
        """The same, and something made of its answer."""
        call, parse = self.call, self.parse
        if call is not None:
            proceed = call._proceed
            call = replace(call, _proceed=lambda changed: proceed(changed).then(more))
        return Operation(self.ask, lambda answer: more(parse(answer)), call)


def asking(request: Request[A], parse: Callable[[A], T]) -> Operation[T]:
    """The operation of one request."""
    return Operation(lambda session: session.call(request), parse)


def through(session: Session, call: ClientCall) -> Operation[Any]:
    """The operation that a call is, to be seen by the session's interceptors if it has any."""
    operation: Operation[Any] = call._proceed(call)
    return msgspec.structs.replace(operation, call=call) if session.interceptors else operation


def nothing(_answer: object) -> None:
    """Parse an answer that says nothing."""


@dataclass(frozen=True)
class Session:
    """A link, and how values travel over it. Safe to use from any thread or loop."""

    link: Link
    converter: Converter = default_converter
    codec: Codec | None = None
    interceptors: tuple[Interceptor, ...] = ()

    @cached_property
    def outbound(self) -> ClientOutboundInterceptor:
        """The interceptors of a blocking client, in a row."""
        return client_chain(self)

    @cached_property
    def async_outbound(self) -> AsyncClientOutboundInterceptor:
        """The interceptors of an asynchronous client, in a row."""
        return async_client_chain(self)

    @property
    def identity(self) -> str:
        """Who we say we are."""
        return self.link.identity

    def run(self, operation: Operation[T]) -> T:
        """Run an operation and block this thread until it is done; interceptors see it first."""
        if operation.call is None:
            return self.perform(operation)
        answer: T = getattr(self.outbound, operation.call._method)(operation.call)
        return answer

    def arun(self, operation: Operation[T]) -> Coroutine[Any, Any, T]:
        """Run an operation and await it, on any event loop; interceptors see it first."""
        if operation.call is None:
            return self.aperform(operation)
        answer: Coroutine[Any, Any, T] = getattr(self.async_outbound, operation.call._method)(operation.call)
        return answer

    def perform(self, operation: Operation[T]) -> T:
        """Run an operation itself, and block."""
        return operation.parse(self.link.portal.call(operation.ask(self)))

    async def aperform(self, operation: Operation[T]) -> T:
        """Run an operation itself, and await it."""
        return operation.parse(await self.link.portal.acall(operation.ask(self)))

    def within(self, seconds: float | None) -> AbstractAsyncContextManager[object]:
        """A time limit for what is awaited inside: real seconds, but for a session of another time."""
        return within(seconds)

    def now_ns(self) -> int:
        """The time, in nanoseconds since the epoch, to be compared with times that the engine tells."""
        return time.time_ns()

    def meet(self, workflow: object) -> None:
        """A workflow was named that others will start later; a session that runs workflows itself must know it."""

    def call(self, request: Request[A]) -> Coroutine[Any, Any, A]:
        """Ask the service, on the control loop, through the codec if there is one."""
        check_request(request)
        connection = self.link.at_hand
        if connection is None or self.codec is not None:
            return self._call(request)
        return connection.call(request)  # one coroutine less to wake, for each call

    async def _call(self, request: Request[A]) -> A:
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
