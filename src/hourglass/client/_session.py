"""A session: a link and how values travel over it; it runs operations for both faces of the client.

A `ClientOperation` is written once and runs in three steps: it is built by the caller (arguments bound and
encoded), asked on the control loop, and its answer parsed by the caller again. So converters, which may be
the user's code, run in the caller's thread, a codec in a worker thread (it is the user's code and may be slow), and
only our own code on the control loop. The two faces differ in how they wait: `run` blocks, `arun` is awaited.

Invariants: a request is well formed when it leaves, whatever its caller or an interceptor made of it (`check_request`);
requests are sealed by the codec before they leave, answers unsealed when they come.
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
from hourglass.client._interception import (
    AsyncClientOutboundInterceptor,
    ClientOutboundInterceptor,
    Interceptor,
    async_client_chain,
    checked,
    client_chain,
)
from hourglass.client._options import RpcOptions, check_rpc, rpc_fields
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

# --- the link --------------------------------------------------------------------------------------------------
# The connection of a client in this process: opened when it is needed, changed while it is open, and made anew in a forked
# child, which never uses, nor frees, the connection of its parent.


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
        self.requested_updates: dict[str, UpdateWorkflow] = {}
        """Updates that this client waits for and of which no service has said yet that they were accepted, by id."""
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


# --- the codec at the client's edge ---------------------------------------------------------------


A = TypeVar("A")
S = TypeVar("S")


def sealed(request: Request[A], codec: Codec, converter: Converter, namespace: str) -> Request[A]:
    """The request as it may leave."""
    return seal(request, _codec_of(request, codec, namespace), converter)


def unsealed(answer: A, request: Request[A], codec: Codec, converter: Converter, namespace: str) -> A:
    """The answer as it can be read."""
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
        # An attempt's failure is the activity's own.
        workflow_id = answer.summary.workflow_id
        pending = tuple(
            _summary(each, _of_activity(codec, each.activity_id, workflow_id, namespace), converter)
            for each in answer.pending_activities
        )
        rest = msgspec.structs.replace(answer, pending_activities=())
        opened = unseal(rest, _of_workflow(codec, workflow_id, namespace), converter)
        return cast("A", msgspec.structs.replace(opened, pending_activities=pending))
    if isinstance(answer, ScheduleDetails):
        return unseal(answer, _of_workflow(codec, answer.schedule.action.workflow_id, namespace), converter)
    return unseal(answer, _codec_of(request, codec, namespace), converter)


def _codec_of(request: Request[Any], codec: Codec, namespace: str) -> Codec:
    """The codec for a request and its answer."""
    context = request_context(request, namespace) if wants_context(codec) else None
    return codec if context is None else in_context(codec, context)


def _of_workflow(codec: Codec, workflow_id: str, namespace: str) -> Codec:
    return in_context(codec, WorkflowSerializationContext(namespace, workflow_id))


def _of_activity(codec: Codec, activity_id: str, workflow_id: str, namespace: str) -> Codec:
    context = ActivitySerializationContext(namespace, activity_id, workflow_id=workflow_id)
    return in_context(codec, context)


def _summary(summary: S, codec: Codec, converter: Converter) -> S:
    # Lists also show runs that other programs started: one whose memo the codec refuses is shown with its memo as it
    # came.
    try:
        return unseal(summary, codec, converter)
    except DecodeError:
        return summary


# --- session --------------------------------------------------------------------------------------


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")


class ClientOperation(msgspec.Struct, Generic[T_co], frozen=True):
    """Something that a client can do: what to ask on the control loop, and how to read the answer."""

    ask: Callable[[ClientSession], Coroutine[Any, Any, Any]]
    parse: Callable[[Any], T_co]
    call: ClientCall | None = None
    """The call that this is, where interceptors are to see it first; it can be built again from that."""

    def then(self, more: Callable[[T_co], U]) -> ClientOperation[U]:
        """The same, and something made of its answer."""
        call, parse = self.call, self.parse
        if call is not None:
            proceed = call._proceed
            call = replace(call, _proceed=lambda changed: proceed(changed).then(more))
        return ClientOperation(self.ask, lambda answer: more(parse(answer)), call)


def asking(request: Request[A], parse: Callable[[A], T]) -> ClientOperation[T]:
    """The operation of one request."""
    return ClientOperation(lambda session: session.call(request), parse)


def through(session: ClientSession, call: ClientCall) -> ClientOperation[Any]:
    """The operation that a call is, to be seen by the session's interceptors if it has any."""
    operation: ClientOperation[Any] = call._proceed(call)
    return msgspec.structs.replace(operation, call=call) if session.interceptors else operation


def listing(
    session: ClientSession,
    called: type[ListInput],
    asked: Callable[..., Request[A]],
    parse: Callable[[A], T],
    query: str,
    page_size: int,
    token: bytes,
) -> ClientOperation[T]:
    """The operation that asks for one page of what matches."""

    def build(call: ListInput) -> ClientOperation[T]:
        size = whole_number(call.page_size, "page_size", 1, INT32)
        return asking(asked(query=call.query, page_size=size, next_page_token=call.next_page_token), parse)

    call = called(query=query, page_size=page_size, next_page_token=token, _proceed=build)
    return through(session, call)


Steps: TypeAlias = Generator[ClientOperation[Any], Any, None]
"""Operations, one after the other; each result is sent back in before the next is asked for."""


class ListPage(Protocol[T_co]):
    """A page of a list, and where to go on (empty at the end)."""

    @property
    def items(self) -> tuple[T_co, ...]:
        """What it holds."""
        ...

    @property
    def next_page_token(self) -> bytes:
        """What the next one is asked for with."""
        ...


def nothing(_answer: object) -> None:
    """Parse an answer that says nothing."""


_PLAINLY: RpcOptions = {}


def _told(call: ClientCall, rpc: RpcOptions) -> ClientCall:
    """A call that is told how to travel."""
    if rpc:
        check_rpc(rpc)
        call = replace(call, **rpc_fields(rpc))
    return call


@dataclass(frozen=True)
class ClientSession:
    """A link, and how values travel over it. Safe to use from any thread or loop."""

    link: Link
    converter: Converter = default_converter
    codec: Codec | None = None
    interceptors: tuple[Interceptor, ...] = ()
    query_reject_condition: QueryRejectCondition = QueryRejectCondition.NONE
    """Which runs questions are not put to, where a question says nothing of it."""
    rpc_timeout: float | None = None
    """Seconds for each request of this session that says nothing of it."""
    rpc_metadata: dict[str, str] | None = field(default=None, repr=False)
    """Headers of the calls of this session alone."""
    plugins: tuple[Plugin, ...] = ()
    config: ClientConfig | None = field(default=None, repr=False)  # it holds the key
    origin: ClientSession | None = field(default=None, repr=False)
    """The session that this one is of, where it is for the values of one workflow or activity."""

    @cached_property
    def outbound(self) -> ClientOutboundInterceptor:
        """The interceptors of a blocking client, in a row."""
        return client_chain(self) if self.origin is None else self.origin.outbound

    @cached_property
    def async_outbound(self) -> AsyncClientOutboundInterceptor:
        """The interceptors of an asynchronous client, in a row."""
        return async_client_chain(self) if self.origin is None else self.origin.async_outbound

    @cached_property
    def contextual(self) -> bool:
        """Whether the converter wants to know whose values it has."""
        return self.converter is not default_converter and wants_context(self.converter)

    def in_context(self, context: SerializationContext) -> ClientSession:
        """The same for the values of a workflow or an activity."""
        origin = self.origin or self
        if not origin.contextual:
            return self
        return replace(origin, converter=in_context(origin.converter, context), origin=origin)

    def of_workflow(self, workflow_id: str) -> ClientSession:
        """The same for the values of a workflow."""
        if self.origin is None and not self.contextual:
            return self
        return self.in_context(WorkflowSerializationContext(self.link.namespace, workflow_id))

    @property
    def identity(self) -> str:
        """Who we say we are."""
        return self.link.identity

    def with_rpc(self, rpc: RpcOptions) -> Self:
        """The same session, whose requests travel so."""
        check_rpc(rpc)
        fields = rpc_fields(rpc)
        if not fields:
            return self
        if self.rpc_metadata and "rpc_metadata" in fields:
            fields["rpc_metadata"] = {**self.rpc_metadata, **fields["rpc_metadata"]}
        return replace(self, **fields)

    def run(self, operation: ClientOperation[T], rpc: RpcOptions = _PLAINLY) -> T:
        """Run an operation and block this thread until it is done; interceptors see it first."""
        try:
            if operation.call is None:
                return (self.with_rpc(rpc) if rpc else self).perform(operation)
            answer: T = getattr(self.outbound, operation.call._point.method)(_told(operation.call, rpc))
            return answer
        except (HourglassError, KeyboardInterrupt, TimeoutError) as error:
            without_our_frames(error)
            raise

    def arun(self, operation: ClientOperation[T], rpc: RpcOptions = _PLAINLY) -> Coroutine[Any, Any, T]:
        """Run an operation and await it, on any event loop; interceptors see it first."""
        if operation.call is None:
            return (self.with_rpc(rpc) if rpc else self).aperform(operation)
        answer: Coroutine[Any, Any, T] = getattr(self.async_outbound, operation.call._point.method)(
            _told(operation.call, rpc)
        )
        return answer

    def perform(self, operation: ClientOperation[T]) -> T:
        """Run an operation itself, and block."""
        return operation.parse(self.link.portal.call(operation.ask(self)))

    async def aperform(self, operation: ClientOperation[T]) -> T:
        """Run an operation itself, and await it."""
        try:
            return operation.parse(await self.link.portal.acall(operation.ask(self)))
        except (HourglassError, TimeoutError) as error:
            without_our_frames(error)
            raise

    def run_steps(self, call: ClientCall, rpc: RpcOptions = _PLAINLY) -> None:
        """Run a call that is several operations, with the caller's code in between; interceptors see it first, as one."""
        if self.interceptors:
            getattr(self.outbound, call._point.method)(_told(call, rpc))
        else:
            self.with_rpc(rpc).perform_steps(call._proceed(call))

    async def arun_steps(self, call: ClientCall, rpc: RpcOptions = _PLAINLY) -> None:
        """The same, awaited."""
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
        """The same, awaited."""
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
        """What the pages of a list hold, fetched as it is asked for; `page` makes the operation of one from its token."""
        left, token = limit, b""
        while left is None or left > 0:
            found = self.run(page(token), rpc)
            yield from found.items[:left]
            token = found.next_page_token
            if not token:
                return
            left = None if left is None else left - len(found.items)

    async def aeach(
        self, page: Callable[[bytes], ClientOperation[ListPage[T]]], rpc: RpcOptions, limit: int | None = None
    ) -> AsyncIterator[T]:
        """The same, awaited."""
        left, token = limit, b""
        while left is None or left > 0:
            found = await self.arun(page(token), rpc)
            for item in found.items[:left]:
                yield item
            token = found.next_page_token
            if not token:
                return
            left = None if left is None else left - len(found.items)

    def within(self, seconds: float | None) -> AbstractAsyncContextManager[object]:
        """A time limit for what is awaited inside: real seconds, but for a session of another time."""
        return within(seconds)

    def now_ns(self) -> int:
        """The time, in nanoseconds since the epoch, to be compared with times that the engine tells."""
        return time_ns()

    def meet(self, workflow: object) -> None:
        """A workflow was named that a schedule will start; a session that runs workflows itself must know it."""

    def call(self, request: Request[A]) -> Coroutine[Any, Any, A]:
        """Ask the service, on the control loop, through the codec if there is one."""
        if self.rpc_metadata is not None or self.rpc_timeout is not None:
            request = self.travelling(request)
        check_request(request)
        connection = self.link.at_hand
        if connection is None or self.codec is not None:
            return self._call(request)
        return connection.call(request)  # one coroutine less to wake, for each call

    def travelling(self, request: Request[A]) -> Request[A]:
        """The request with the session's time limit, unless it has one, and with its headers."""
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
    """Check what a client is to be connected with, here; the coroutine connects, on the control loop, and gives its session."""
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
