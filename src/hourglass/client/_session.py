"""A client session: its connection, its converter and codec; it runs operations for both clients.

A `ClientOperation` runs in three steps: the caller builds it (arguments bound and encoded), `ask` runs on the control loop, and
the caller parses the answer. So converters, which may be the user's code, run in the caller's thread, a codec in a worker thread
(it is the user's code and may be slow), and only our own code on the control loop. `run` blocks, `arun` is awaited.

Invariants: every request is validated before it leaves, whatever its caller or an interceptor made of it (`check_request`); the
codec encodes requests before they leave, and decodes answers.
"""

from __future__ import annotations

import asyncio
import os
import socket
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from time import time_ns
from typing import Any, Generic, Protocol, Self, TypeAlias, TypeVar, cast

import msgspec

from hourglass._contract.schedules import ScheduleDetails, SchedulePage
from hourglass._contract.service import Connection, Remote, Request, check_request
from hourglass._contract.transport import Transport
from hourglass._contract.workflows import (
    Description,
    Page,
    QueryRejectCondition,
    UpdateWorkflow,
)
from hourglass._evaluator.options import INT32, choice, seconds, whole_number
from hourglass._forks import ForkStage, at_fork, leak
from hourglass._worker.code_origin import without_our_frames
from hourglass._worker.handles.calls import within
from hourglass._worker.handles.codec_edge import request_context
from hourglass._worker.portal import Portal
from hourglass._worker.targets import Target, check_target, open_connection, resolve
from hourglass.client._calls import ClientCall, ListInput
from hourglass.client._interception import Interceptor, async_client_chain, checked, client_chain
from hourglass.client._options import RpcOptions, check_rpc, rpc_fields
from hourglass.client._outbound import AsyncClientOutboundInterceptor, ClientOutboundInterceptor
from hourglass.client._plugins import ClientConfig, Plugin
from hourglass.converter import (
    ActivitySerializationContext,
    Codec,
    Converter,
    SerializationContext,
    WorkflowSerializationContext,
    default_converter,
    in_context,
    seal,
    unseal,
    wants_context,
    with_headers,
)
from hourglass.errors import DecodeError, HourglassError, UsageError

# The connection of a client in this process: opened on first use, changeable while it is open, and opened again in a forked
# child, which never uses, nor frees, the connection of its parent.


Opener = Callable[[Target], Coroutine[Any, Any, Connection]]


class Link:
    """The connection of a client in this process, and the portal of its loop. It is opened on first use.

    Servers that load an application and then fork (gunicorn with preload) create their clients before their children. In a child
    the parent's connection must not be used, nor freed; the link drops it and opens its own on first use. A child is a client of
    a file even if its parent owns the file. An engine in memory cannot be reached from a child: its link raises an error there.
    """

    where = Target(kind="memory")
    """The target, with its credentials."""

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
        """The task queues of workflows, and the activities, for which this client has already warned that no worker takes
        them.
        """
        self.requested_updates: dict[str, UpdateWorkflow] = {}
        """Updates that this client waits for and that no service has reported as accepted, by id."""
        self._opener = opener
        self._opening = asyncio.Lock()
        self._portal: Portal | None = portal
        self._connection: Connection | None = connection
        self._others: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._forget_exit = _nothing if connection is None else portal.at_exit(connection.close)
        _links.add(self)

    @property
    def portal(self) -> Portal:
        """The portal of this process."""
        if self._portal is None:
            self._portal = Portal.current()
        return self._portal

    @property
    def identity(self) -> str:
        """The client identity."""
        return default_identity() if self._connection is None else self._connection.identity

    @property
    def connection(self) -> Connection:
        """The open connection, for any thread except the control loop's; a forked child opens it first."""
        if self._connection is None:
            return self.portal.call(self.opened())
        return self._connection

    @property
    def at_hand(self) -> Connection | None:
        """The open connection, or None if it must be opened first or is closed. For any thread."""
        return None if self.closed else self._connection

    async def opened(self) -> Connection:
        """Return the open connection, on the control loop."""
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
        """Return another connection to the same engine, on the control loop; for an engine in memory the same one."""
        if self._opener is None:
            return await self.opened()
        connection = await self._opener(self.where)
        self._others.add(connection)  # `change` must reach it
        return connection

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
        """Close the connection, on the control loop. Safe to call twice."""
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
        """Drop the parent's connection in a forked child, without freeing it."""
        # Referenced for ever: freeing them here would close sockets and files that the parent uses.
        leak(self._portal, self._connection, *self._others)
        self._portal = None
        self._connection = None
        self._others = weakref.WeakSet()
        self._opening = asyncio.Lock()
        self._forget_exit = _nothing


def default_identity() -> str:
    """Return the default identity: the process and the machine."""
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
    """Connect, on the control loop; with `lazy` on first use, unless the engine is in this process's memory."""

    async def open_one(where: Target) -> Connection:
        return await open_connection(where, identity or default_identity(), timeout)

    in_memory = target.kind == "memory"
    connection = None if lazy and not in_memory else await open_one(target)
    return Link(portal, connection, None if in_memory else open_one, target)


A = TypeVar("A")
S = TypeVar("S")


def sealed(request: Request[A], codec: Codec, converter: Converter, namespace: str) -> Request[A]:
    """Return the request with its payloads encoded by the codec."""
    return seal(request, _codec_of(request, codec, namespace), converter)


def unsealed(answer: A, request: Request[A], codec: Codec, converter: Converter, namespace: str) -> A:
    """Return the answer with its payloads decoded by the codec."""
    if isinstance(answer, Page):
        workflows = tuple(
            _summary(summary, _of_workflow(codec, summary.workflow_id, namespace), converter)
            for summary in answer.workflows
        )
        return cast("A", msgspec.structs.replace(answer, workflows=workflows))
    if isinstance(answer, SchedulePage):
        schedules = tuple(_summary(summary, codec, converter) for summary in answer.schedules)
        return cast("A", msgspec.structs.replace(answer, schedules=schedules))
    if isinstance(answer, Description) and wants_context(codec):
        # An attempt's failure belongs to the activity.
        workflow_id = answer.summary.workflow_id
        pending = tuple(
            _summary(
                pending_activity,
                _of_activity(codec, pending_activity.activity_id, workflow_id, namespace),
                converter,
            )
            for pending_activity in answer.pending_activities
        )
        without_pending = msgspec.structs.replace(answer, pending_activities=())
        opened = unseal(without_pending, _of_workflow(codec, workflow_id, namespace), converter)
        return cast("A", msgspec.structs.replace(opened, pending_activities=pending))
    if isinstance(answer, ScheduleDetails):
        return unseal(answer, _of_workflow(codec, answer.schedule.action.workflow_id, namespace), converter)
    return unseal(answer, _codec_of(request, codec, namespace), converter)


def _codec_of(request: Request[Any], codec: Codec, namespace: str) -> Codec:
    """Return the codec for a request and its answer."""
    context = request_context(request, namespace) if wants_context(codec) else None
    return codec if context is None else in_context(codec, context)


def _of_workflow(codec: Codec, workflow_id: str, namespace: str) -> Codec:
    return in_context(codec, WorkflowSerializationContext(namespace, workflow_id))


def _of_activity(codec: Codec, activity_id: str, workflow_id: str, namespace: str) -> Codec:
    context = ActivitySerializationContext(namespace, activity_id, workflow_id=workflow_id)
    return in_context(codec, context)


def _summary(summary: S, codec: Codec, converter: Converter) -> S:
    # Lists also contain runs of other programs: if the codec rejects a memo, it is left encoded.
    try:
        return unseal(summary, codec, converter)
    except DecodeError:
        return summary


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")


class ClientOperation(msgspec.Struct, Generic[T_co], frozen=True):
    """An operation of a client: a request to send on the control loop, and a function that parses the answer."""

    ask: Callable[[ClientSession], Coroutine[Any, Any, Any]]
    parse: Callable[[Any], T_co]
    call: ClientCall | None = None
    """The call for interceptors, from which the operation can be built again; None if there are none."""

    def then(self, more: Callable[[T_co], U]) -> ClientOperation[U]:
        """Return an operation that also applies `more` to the parsed answer."""
        call, parse = self.call, self.parse
        if call is not None:
            proceed = call._proceed
            call = replace(call, _proceed=lambda changed: proceed(changed).then(more))
        return ClientOperation(self.ask, lambda answer: more(parse(answer)), call)


def asking(request: Request[A], parse: Callable[[A], T]) -> ClientOperation[T]:
    """Return the operation of one request."""
    return ClientOperation(lambda session: session.call(request), parse)


def through(session: ClientSession, call: ClientCall) -> ClientOperation[Any]:
    """Return the operation of a call, which passes through the session's interceptors, if any."""
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
    """Return the operation for one page of a list."""

    def build(call: ListInput) -> ClientOperation[T]:
        size = whole_number(call.page_size, "page_size", 1, INT32)
        return asking(request(query=call.query, page_size=size, next_page_token=call.next_page_token), parse)

    call = called(query=query, page_size=page_size, next_page_token=token, _proceed=build)
    return through(session, call)


Steps: TypeAlias = Generator[ClientOperation[Any], Any, None]
"""Operations, one after the other; each result is sent back into the generator."""


class ListPage(Protocol[T_co]):
    """A page of a list; `next_page_token` is empty at the end."""

    @property
    def items(self) -> tuple[T_co, ...]:
        """The items of the page."""
        ...

    @property
    def next_page_token(self) -> bytes:
        """The token for the next page."""
        ...


def nothing(_answer: object) -> None:
    """Parse an empty answer."""


_PLAINLY: RpcOptions = {}


def _told(call: ClientCall, rpc: RpcOptions) -> ClientCall:
    """Return a call with these RPC options."""
    if rpc:
        check_rpc(rpc)
        call = replace(call, **rpc_fields(rpc))
    return call


@dataclass(frozen=True)
class ClientSession:
    """The connection, converter and codec of a client. Safe to use from any thread or loop."""

    link: Link
    converter: Converter = default_converter
    codec: Codec | None = None
    interceptors: tuple[Interceptor, ...] = ()
    query_reject_condition: QueryRejectCondition = QueryRejectCondition.NONE
    """The states of a run in which queries are rejected by default."""
    rpc_timeout: float | None = None
    """The default timeout of requests, in seconds."""
    rpc_metadata: dict[str, str] | None = field(default=None, repr=False)
    """Headers of the calls of this session only."""
    plugins: tuple[Plugin, ...] = ()
    config: ClientConfig | None = field(default=None, repr=False)  # it contains the key
    origin: ClientSession | None = field(default=None, repr=False)
    """The session from which this one was derived for the values of one workflow or activity."""

    @cached_property
    def outbound(self) -> ClientOutboundInterceptor:
        """The interceptors of a blocking client, as a chain."""
        return client_chain(self) if self.origin is None else self.origin.outbound

    @cached_property
    def async_outbound(self) -> AsyncClientOutboundInterceptor:
        """The interceptors of an asynchronous client, as a chain."""
        return async_client_chain(self) if self.origin is None else self.origin.async_outbound

    @cached_property
    def contextual(self) -> bool:
        """Whether the converter uses the context of values."""
        return self.converter is not default_converter and wants_context(self.converter)

    def in_context(self, context: SerializationContext) -> ClientSession:
        """Return the session for the values of a workflow or an activity."""
        origin = self.origin or self
        if not origin.contextual:
            return self
        return replace(origin, converter=in_context(origin.converter, context), origin=origin)

    def of_workflow(self, workflow_id: str) -> ClientSession:
        """Return the session for the values of a workflow."""
        if self.origin is None and not self.contextual:
            return self
        return self.in_context(WorkflowSerializationContext(self.link.namespace, workflow_id))

    @property
    def identity(self) -> str:
        """The client identity."""
        return self.link.identity

    def with_rpc(self, rpc: RpcOptions) -> Self:
        """Return the session with these RPC options for its requests."""
        check_rpc(rpc)
        fields = rpc_fields(rpc)
        if not fields:
            return self
        if self.rpc_metadata and "rpc_metadata" in fields:
            fields["rpc_metadata"] = {**self.rpc_metadata, **fields["rpc_metadata"]}
        return replace(self, **fields)

    def run(self, operation: ClientOperation[T], rpc: RpcOptions = _PLAINLY) -> T:
        """Run an operation through the interceptors and block this thread until it is done."""
        try:
            if operation.call is None:
                return (self.with_rpc(rpc) if rpc else self).perform(operation)
            answer: T = getattr(self.outbound, operation.call._point.method)(_told(operation.call, rpc))
            return answer
        except (HourglassError, KeyboardInterrupt, TimeoutError) as error:
            without_our_frames(error)
            raise

    def arun(self, operation: ClientOperation[T], rpc: RpcOptions = _PLAINLY) -> Coroutine[Any, Any, T]:
        """Run an operation through the interceptors and await it, on any event loop."""
        if operation.call is None:
            return (self.with_rpc(rpc) if rpc else self).aperform(operation)
        answer: Coroutine[Any, Any, T] = getattr(self.async_outbound, operation.call._point.method)(
            _told(operation.call, rpc)
        )
        return answer

    def perform(self, operation: ClientOperation[T]) -> T:
        """Run an operation without interceptors, and block."""
        return operation.parse(self.link.portal.call(operation.ask(self)))

    async def aperform(self, operation: ClientOperation[T]) -> T:
        """Run an operation without interceptors, and await it."""
        try:
            return operation.parse(await self.link.portal.acall(operation.ask(self)))
        except (HourglassError, TimeoutError) as error:
            without_our_frames(error)
            raise

    def run_steps(self, call: ClientCall, rpc: RpcOptions = _PLAINLY) -> None:
        """Run a call that consists of several operations, with the caller's code in between; interceptors see it as one call."""
        if self.interceptors:
            getattr(self.outbound, call._point.method)(_told(call, rpc))
        else:
            self.with_rpc(rpc).perform_steps(call._proceed(call))

    async def arun_steps(self, call: ClientCall, rpc: RpcOptions = _PLAINLY) -> None:
        """Run a call that consists of several operations, and await it."""
        if self.interceptors:
            await getattr(self.async_outbound, call._point.method)(_told(call, rpc))
        else:
            await self.with_rpc(rpc).aperform_steps(call._proceed(call))

    def perform_steps(self, steps: Steps) -> None:
        """Run operations one after the other."""
        answer: Any = None
        while True:
            try:
                operation = steps.send(answer)
            except StopIteration:
                return
            answer = self.run(operation)

    async def aperform_steps(self, steps: Steps) -> None:
        """Run operations one after the other, and await them."""
        answer: Any = None
        while True:
            try:
                operation = steps.send(answer)
            except StopIteration:
                return
            answer = await self.arun(operation)

    def each(
        self, page: Callable[[bytes], ClientOperation[ListPage[T]]], rpc: RpcOptions, limit: int | None = None
    ) -> Iterator[T]:
        """Yield the items of all pages of a list, fetched during iteration; `page` returns the operation for a token."""
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
        """Yield the items of all pages of a list, fetched during iteration, for `async for`."""
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
        """Return a context manager with a timeout in seconds: real time, except in a test environment."""
        return within(seconds)

    def now_ns(self) -> int:
        """Return the time in nanoseconds since the epoch, by the clock of the engine's timestamps."""
        return time_ns()

    def meet(self, workflow: object) -> None:
        """Register a workflow that a schedule will start; only a session that runs workflows itself needs it."""

    def call(self, request: Request[A]) -> Coroutine[Any, Any, A]:
        """Send a request on the control loop, through the codec, if any, and return the answer."""
        if self.rpc_metadata is not None or self.rpc_timeout is not None:
            request = self.travelling(request)
        check_request(request)
        connection = self.link.at_hand
        if connection is None or self.codec is not None:
            return self._call(request)
        return connection.call(request)  # returned without a coroutine of its own, for speed

    def travelling(self, request: Request[A]) -> Request[A]:
        """Return the request with the session's timeout, unless it has one, and with the session's headers."""
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
    """Check the settings of a client now. The returned coroutine connects, on the control loop, and returns the session."""
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
