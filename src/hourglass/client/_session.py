"""A client session: the connection, converter and codec of a client. It runs operations for both clients.

A `ClientOperation` runs in three steps. The caller builds it, with bound and encoded arguments; `ask` runs on the control
loop; and the caller parses the answer. Converters may be user code, so they run in the caller's thread. A codec is user code
that may be slow, so it runs in a worker thread. Only our own code runs on the control loop. `run` blocks; `arun` is awaited.

Invariants: every request is validated before it is sent, however its caller or an interceptor built it (`check_request`).
The codec encodes requests before they are sent, and decodes answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from time import time_ns
from typing import Any, Generic, Protocol, Self, TypeVar

import msgspec

from hourglass._contract.request_checks import check_request
from hourglass._contract.service import Request
from hourglass._contract.transport import Transport
from hourglass._contract.workflows import (
    QueryRejectCondition,
)
from hourglass._evaluator.options import INT32, choice, seconds, whole_number
from hourglass._worker.code_origin import without_our_frames
from hourglass._worker.handles.calls import within
from hourglass._worker.portal import Portal
from hourglass._worker.targets import resolve
from hourglass.client._calls import ClientCall, ListInput
from hourglass.client._codec_edge import sealed, unsealed
from hourglass.client._interception import Interceptor, async_client_chain, checked, client_chain
from hourglass.client._link import Link, open_link
from hourglass.client._options import RpcOptions, check_rpc, rpc_fields
from hourglass.client._outbound import AsyncClientOutboundInterceptor, ClientOutboundInterceptor
from hourglass.client._plugins import ClientConfig, Plugin
from hourglass.converter import (
    Codec,
    Converter,
    SerializationContext,
    WorkflowSerializationContext,
    default_converter,
    in_context,
    wants_context,
    with_headers,
)
from hourglass.errors import HourglassError

A = TypeVar("A")
S = TypeVar("S")


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")


class ClientOperation(msgspec.Struct, Generic[T_co], frozen=True):
    """A client operation: a request to send on the control loop, and a function that parses the answer. The function may
    return another operation. The result is then the result of that operation.
    """

    ask: Callable[[ClientSession], Coroutine[Any, Any, Any]]
    parse: Callable[[Any], T_co | ClientOperation[T_co]]
    call: ClientCall | None = None
    """The call that interceptors receive, from which the operation can be rebuilt; None if there are no interceptors."""

    def then(self, more: Callable[[T_co], U]) -> ClientOperation[U]:
        """Return an operation that also applies `more` to the parsed answer."""
        call, parse = self.call, self.parse
        if call is not None:
            proceed = call._proceed
            call = replace(call, _proceed=lambda changed: proceed(changed).then(more))

        def parse_more(answer: Any) -> U | ClientOperation[U]:
            parsed = parse(answer)
            return parsed.then(more) if isinstance(parsed, ClientOperation) else more(parsed)

        return ClientOperation(self.ask, parse_more, call)


def asking(request: Request[A], parse: Callable[[A], T | ClientOperation[T]]) -> ClientOperation[T]:
    """Return an operation that sends a single request."""
    return ClientOperation(lambda session: session.call(request), parse)


def through(session: ClientSession, call: ClientCall) -> ClientOperation[Any]:
    """Return the operation of a call. If the session has interceptors, the call passes through them."""
    operation: ClientOperation[Any] = call._proceed(call)
    return msgspec.structs.replace(operation, call=call) if session.interceptors else operation


def listing(
    session: ClientSession,
    called: type[ListInput],
    request: Callable[..., Request[A]],
    parse: Callable[[A], T],
    query: str,
    page_size: int,
    token: bytes,
) -> ClientOperation[T]:
    """Return an operation that fetches one page of a list."""

    def build(call: ListInput) -> ClientOperation[T]:
        size = whole_number(call.page_size, "page_size", 1, INT32)
        return asking(request(query=call.query, page_size=size, next_page_token=call.next_page_token), parse)

    call = called(query=query, page_size=page_size, next_page_token=token, _proceed=build)
    return through(session, call)


class ListPage(Protocol[T_co]):
    """A page of a list. `next_page_token` is empty on the last page."""

    @property
    def items(self) -> tuple[T_co, ...]:
        """The items of the page."""
        ...

    @property
    def next_page_token(self) -> bytes:
        """The token for fetching the next page."""
        ...


def nothing(_answer: object) -> None:
    """Ignore an empty answer."""


_PLAINLY: RpcOptions = {}


def _with_rpc(call: ClientCall, rpc: RpcOptions) -> ClientCall:
    """Return the call with these RPC options applied."""
    if rpc:
        check_rpc(rpc)
        call = replace(call, **rpc_fields(rpc))
    return call


@dataclass(frozen=True)
class ClientSession:
    """The connection, converter and codec of a client. Safe to use from any thread or event loop."""

    link: Link
    converter: Converter = default_converter
    codec: Codec | None = None
    interceptors: tuple[Interceptor, ...] = ()
    query_reject_condition: QueryRejectCondition = QueryRejectCondition.NONE
    """The default condition under which runs reject queries."""
    rpc_timeout: float | None = None
    """The default timeout of requests, in seconds."""
    rpc_metadata: dict[str, str] | None = field(default=None, repr=False)
    """Headers sent only with the calls of this session."""
    plugins: tuple[Plugin, ...] = ()
    config: ClientConfig | None = field(default=None, repr=False)  # contains the API key
    origin: ClientSession | None = field(default=None, repr=False)
    """The session from which this one was derived for the values of a particular workflow or activity."""

    @cached_property
    def outbound(self) -> ClientOutboundInterceptor:
        """The chain of interceptors of a blocking client."""
        return client_chain(self) if self.origin is None else self.origin.outbound

    @cached_property
    def async_outbound(self) -> AsyncClientOutboundInterceptor:
        """The chain of interceptors of an asynchronous client."""
        return async_client_chain(self) if self.origin is None else self.origin.async_outbound

    @cached_property
    def contextual(self) -> bool:
        """Whether the converter uses the serialization context."""
        return self.converter is not default_converter and wants_context(self.converter)

    def in_context(self, context: SerializationContext) -> ClientSession:
        """Return a session for the values of the workflow or activity in this context."""
        origin = self.origin or self
        if not origin.contextual:
            return self
        return replace(origin, converter=in_context(origin.converter, context), origin=origin)

    def of_workflow(self, workflow_id: str) -> ClientSession:
        """Return a session for the values of a workflow."""
        if self.origin is None and not self.contextual:
            return self
        return self.in_context(WorkflowSerializationContext(self.link.namespace, workflow_id))

    @property
    def identity(self) -> str:
        """The client identity."""
        return self.link.identity

    def with_rpc(self, rpc: RpcOptions) -> Self:
        """Return a session that applies these RPC options to its requests."""
        check_rpc(rpc)
        fields = rpc_fields(rpc)
        if not fields:
            return self
        if self.rpc_metadata and "rpc_metadata" in fields:
            fields["rpc_metadata"] = {**self.rpc_metadata, **fields["rpc_metadata"]}
        return replace(self, **fields)

    def run(self, operation: ClientOperation[T], rpc: RpcOptions = _PLAINLY) -> T:
        """Run an operation through the interceptors. Block the calling thread until the operation is done."""
        try:
            if operation.call is None:
                return (self.with_rpc(rpc) if rpc else self).perform(operation)
            answer: T = getattr(self.outbound, operation.call._method)(_with_rpc(operation.call, rpc))
            return answer
        except (HourglassError, KeyboardInterrupt, TimeoutError) as error:
            without_our_frames(error)
            raise

    def arun(self, operation: ClientOperation[T], rpc: RpcOptions = _PLAINLY) -> Coroutine[Any, Any, T]:
        """Run an operation through the interceptors and await it. Works on any event loop."""
        if operation.call is None:
            return (self.with_rpc(rpc) if rpc else self).aperform(operation)
        answer: Coroutine[Any, Any, T] = getattr(self.async_outbound, operation.call._method)(
            _with_rpc(operation.call, rpc)
        )
        return answer

    def perform(self, operation: ClientOperation[T]) -> T:
        """Run an operation without interceptors, and block until it is done."""
        answer = operation.parse(self.link.portal.call(operation.ask(self)))
        return self.perform(answer) if isinstance(answer, ClientOperation) else answer

    async def aperform(self, operation: ClientOperation[T]) -> T:
        """Run an operation without interceptors, and await it."""
        try:
            answer = operation.parse(await self.link.portal.acall(operation.ask(self)))
            return await self.aperform(answer) if isinstance(answer, ClientOperation) else answer
        except (HourglassError, TimeoutError) as error:
            without_our_frames(error)
            raise

    def each(
        self, page: Callable[[bytes], ClientOperation[ListPage[T]]], rpc: RpcOptions, limit: int | None = None
    ) -> Iterator[T]:
        """Yield the items of all pages of a list. Pages are fetched during iteration; `page` returns the operation for a
        page token.
        """
        left, token = limit, b""
        while left is None or left > 0:
            current = self.run(page(token), rpc)
            yield from current.items[:left]
            token = current.next_page_token
            if not token:
                return
            left = None if left is None else left - len(current.items)

    async def aeach(
        self, page: Callable[[bytes], ClientOperation[ListPage[T]]], rpc: RpcOptions, limit: int | None = None
    ) -> AsyncIterator[T]:
        """Yield the items of all pages of a list, for `async for`. Pages are fetched during iteration."""
        left, token = limit, b""
        while left is None or left > 0:
            current = await self.arun(page(token), rpc)
            for item in current.items[:left]:
                yield item
            token = current.next_page_token
            if not token:
                return
            left = None if left is None else left - len(current.items)

    def within(self, seconds: float | None) -> AbstractAsyncContextManager[object]:
        """Return a context manager with a timeout in seconds. It measures real time, except in a test environment."""
        return within(seconds)

    def now_ns(self) -> int:
        """Return the current time by the engine's clock, in nanoseconds since the epoch."""
        return time_ns()

    def register_workflow(self, workflow: object) -> None:
        """Register a workflow that a schedule will start. Only a session that runs workflows itself needs this."""

    def call(self, request: Request[A]) -> Coroutine[Any, Any, A]:
        """Send a request on the control loop, through the codec if there is one, and return the answer."""
        if self.rpc_metadata is not None or self.rpc_timeout is not None:
            request = self.travelling(request)
        check_request(request)
        connection = self.link.at_hand
        if connection is None or self.codec is not None:
            return self._call(request)
        return connection.call(request)  # returns the coroutine directly instead of wrapping it, for speed

    def travelling(self, request: Request[A]) -> Request[A]:
        """Return the request with the session's headers and, unless it has its own timeout, the session's timeout."""
        limit = self.rpc_timeout if request.rpc_timeout is None else request.rpc_timeout
        headers = self.rpc_metadata
        if headers and request.rpc_metadata:
            headers = {**headers, **request.rpc_metadata}
        return msgspec.structs.replace(
            request, rpc_timeout=limit, rpc_metadata=headers or request.rpc_metadata
        )

    async def _call(self, request: Request[A]) -> A:
        connection = await self.link.opened()
        if self.codec is None:
            return await connection.call(request)
        codec, converter, namespace = self.codec, self.converter, self.link.namespace
        sent = await asyncio.to_thread(sealed, request, codec, converter, namespace)
        answer = await connection.call(sent)
        return await asyncio.to_thread(unsealed, answer, request, codec, converter, namespace)


def opening(
    portal: Portal, config: ClientConfig, plugins: tuple[Plugin, ...]
) -> Coroutine[Any, Any, ClientSession]:
    """Check the settings of a client immediately. The returned coroutine connects on the control loop and returns the
    session.
    """
    retention = config["retention"]
    target = resolve(
        config["target"],
        namespace=config["namespace"],
        tls=config["tls"],
        api_key=config["api_key"],
        metadata=config["rpc_metadata"],
        retention=None if retention is None else seconds(retention, "retention"),
        transport=Transport(
            retry=config["retry_config"],
            keep_alive=config["keep_alive_config"],
            proxy=config["http_connect_proxy_config"],
            dns_load_balancing=config["dns_load_balancing_config"],
            compression=config["grpc_compression"],
            payload_limits=config["payload_limits"],
        ),
    )
    timeout, interceptors = seconds(config["timeout"], "timeout"), checked(config["interceptors"])
    codec = with_headers(config["codec"], config["header_codec_behavior"])
    rejects = choice(
        QueryRejectCondition, config["default_query_reject_condition"], "default_query_reject_condition"
    )

    async def connect() -> ClientSession:
        link = await open_link(portal, target, config["identity"], timeout, config["lazy"])
        return ClientSession(
            link, config["converter"], codec, interceptors, rejects, plugins=plugins, config=config
        )

    return connect()
