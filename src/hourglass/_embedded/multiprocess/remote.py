"""The client's side of the socket: one connection to the owner of a file, with concurrent requests, and the handles of
this process's workers (`remote_handle`).

Must not know: what to do when the owner ends (see `calls`, `shared_file`). Invariants: every request that was sent ends
with its answer, its error, or `ConnectionLost`; the owner is notified when a caller stops waiting; a handle breaks with
its connection.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from time import process_time, thread_time
from typing import Any, NoReturn, TypeVar

from hourglass._contract import service as s
from hourglass._contract.engine_status import WorkerProcess
from hourglass._contract.handle import ActivityResult, HandleConfig
from hourglass._embedded.multiprocess import unix_socket, wire
from hourglass._embedded.multiprocess.remote_handle import RemoteHandle, encode_results
from hourglass._embedded.multiprocess.unix_socket import FRAME_LIMIT, FrameStream
from hourglass.errors import HourglassError, ServiceError

A = TypeVar("A")

_log = logging.getLogger("hourglass.embedded")

_GREETING = 5.0
_IDLE_SHARE = 0.05
"""A process that uses less than this fraction of a CPU counts as idle."""


class ConnectionLost(HourglassError):
    """Raised if the connection ended before the answer arrived."""


class ForeignProtocol(ServiceError):
    """Raised if the owner uses another version of the protocol between processes."""


@dataclass(frozen=True)
class _Exchange:
    future: asyncio.Future[Any]
    read: Callable[[wire.AnswerMessage], Any]


class OwnerConnection:
    """A connection to the owner. Belongs to one event loop."""

    def __init__(self, protocol: int = wire.PROTOCOL, path: str = "") -> None:
        self._protocol = protocol
        self._path = path
        self.stream = FrameStream(self._received, self._lost)
        self.lost = asyncio.Event()
        self._greeting: asyncio.Future[wire.Welcome] = asyncio.get_running_loop().create_future()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, _Exchange] = {}
        self._handles: dict[int, RemoteHandle] = {}
        self.held: set[bytes] = set()
        """The attempts that this process had from this owner when the connection ended, including attempts with
        unconfirmed results.
        """
        self.unconfirmed: dict[bytes, ActivityResult] = {}
        """Results that were sent and are not confirmed as durable, by token. After this owner has ended, they are sent
        to the next owner.
        """
        self.responds = True
        """Whether the owner has sent a message within the last `wire.SILENT_CHECKS` checks; if not, the owner is
        stopped or hangs.
        """
        self._silent_checks = 0
        self._silence_timer: asyncio.TimerHandle | None = None
        self.processes: tuple[WorkerProcess, ...] = ()
        """The processes that work on the file, according to the owner's latest message."""
        self.file_lost = ""
        """The reason why the owner has stopped and the file must not be opened again; empty if the file is not lost."""
        self._alive_timer: asyncio.TimerHandle | None = None
        self._used = 0.0
        self._idle = False

    @property
    def is_open(self) -> bool:
        return self.stream.is_open and not self.lost.is_set()

    @property
    def in_flight(self) -> int:
        return len(self._waiting)

    @property
    def welcome(self) -> wire.Welcome:
        return self._greeting.result()

    async def request(self, request: s.Request[A], key: str) -> A:
        """Send a request and return its answer. Raises `ConnectionLost`, or the owner's error."""
        number = next(self._numbers)

        def read(answer: wire.AnswerMessage) -> A:
            return wire.decode_answer(request, answer)

        return await self._exchange(number, wire.encode_request(number, key, request), read)

    async def open_handle(self, config: HandleConfig) -> RemoteHandle:
        """Open a handle on the owner's engine. Raises `ConnectionLost`, or the owner's error."""
        number = next(self._numbers)
        handle = self._handles[number] = RemoteHandle(
            self, number, config
        )  # registered before the answer, because work may precede it
        try:
            message = wire.encode(wire.OpenHandle(number, number, config))
            await self._exchange(number, message, lambda _: None)
        except BaseException:
            self._handles.pop(number, None)
            raise
        self._report_alive()
        return handle

    async def close_handle(self, handle: int) -> None:
        """Close a handle at the owner. Raises `ConnectionLost`."""
        number = next(self._numbers)
        try:
            await self._exchange(number, wire.encode(wire.CloseHandle(number, handle)), lambda _: None)
        finally:
            closed = self._handles.pop(handle, None)
            if closed is not None:  # the handle's attempts have begun: no later owner may dispatch them again
                self.held |= closed.attempts

    def send(self, message: wire.ToOwner) -> None:
        """Send a message that needs no answer."""
        self.stream.send(wire.encode(message))

    def send_encoded(self, data: bytes) -> None:
        """Send a message that is encoded already."""
        self.stream.send(data)

    def resend(self, results: dict[bytes, ActivityResult]) -> None:
        """Send results that an earlier owner has not confirmed, and keep them until this owner confirms them."""
        self.unconfirmed.update(results)
        if results:
            for data in encode_results(results.values()):
                self.send_encoded(data)

    def _check_owner(self) -> None:
        """Check once a second whether the owner has sent a message.

        Checks are counted instead of time, so that the owner does not count as silent after this process itself was
        stopped. A stopped owner keeps its lock, and no work can proceed.
        """
        self._silent_checks += 1
        if self.responds and self._silent_checks > wire.SILENT_CHECKS:
            self.responds = False
            _log.warning(
                "process %d owns %s and has sent nothing for %d seconds: it is stopped or hangs. All work on the file "
                "waits for this process. Resume the process (kill -CONT %d), or end it (kill -KILL %d) so that another "
                "process takes over",
                self.welcome.pid,
                self._path,
                wire.SILENT_CHECKS,
                self.welcome.pid,
                self.welcome.pid,
            )
        self._silence_timer = asyncio.get_running_loop().call_later(
            wire.OWNER_REPORT_INTERVAL, self._check_owner
        )

    def _note_message(self) -> None:
        self._silent_checks = 0
        if not self.responds:
            self.responds = True
            _log.warning("process %d, the owner of %s, responds again", self.welcome.pid, self._path)

    def _report_alive(self) -> None:
        """Report regularly that this process is running, as long as the connection has handles."""
        if self._alive_timer is not None:
            self._alive_timer.cancel()
        self._alive_timer = None
        if self._handles and self.is_open:
            used = process_time()
            self.send(wire.Alive(used, thread_time()))
            self._idle = used - self._used < _IDLE_SHARE * wire.REPORT_INTERVAL
            self._used = used
            pause = wire.IDLE_REPORT_INTERVAL if self._idle else wire.REPORT_INTERVAL
            self._alive_timer = asyncio.get_running_loop().call_later(pause, self._report_alive)

    def close(self) -> None:
        self.stream.abort()

    async def _exchange(self, number: int, data: bytes, read: Callable[[wire.AnswerMessage], A]) -> A:
        if not self.is_open:
            raise ConnectionLost("the connection to the owner of the file is closed")
        if len(data) > FRAME_LIMIT:
            raise ServiceError(
                f"the request has {len(data)} bytes; at most {FRAME_LIMIT} bytes can be sent",
                status="INVALID_ARGUMENT",
            )
        future: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting[number] = _Exchange(future, read)
        self.stream.send(data)
        try:
            return await future
        finally:
            if self._waiting.pop(number, None) is not None:
                self.stream.send(wire.encode(wire.AbandonMessage(number)))

    def _received(self, frame: bytes) -> None:
        self._note_message()
        try:
            match wire.decode_to_client(frame):
                case wire.Welcome() as welcome:
                    if not self._greeting.done():
                        self._greeting.set_result(welcome)
                        self._check_owner()
                case wire.RejectedMessage(problem, protocol):
                    self._raise_rejection(problem, protocol)
                case wire.AnswerMessage() as answer:
                    self._settle(answer.number, lambda waiting: waiting.read(answer))
                case wire.Failed(number, problem):
                    self._settle(number, lambda _: _raise(wire.error_of(problem)))
                case wire.HandleWork() as work:
                    if (handle := self._handles.get(work.handle)) is not None:
                        handle.receive(work)
                    if self._idle:
                        self._report_alive()  # reports are more frequent from now on
                        self._idle = False
                case wire.Processes(processes):
                    self.processes = processes
                case wire.ResultsStored(tokens):
                    for token in tokens:
                        self.unconfirmed.pop(token, None)
                case wire.OwnerAlive():
                    pass
                case wire.FileLostMessage(message):
                    self.file_lost = message
                case wire.PollEnded() as end:
                    if (handle := self._handles.get(end.handle)) is not None:
                        handle.end(end)
        except wire.InvalidMessage:
            self.stream.abort()

    def _raise_rejection(self, problem: wire.ErrorMessage, protocol: int) -> None:
        error = wire.error_of(problem)
        if protocol != self._protocol:
            error = ForeignProtocol(problem.message, status="FAILED_PRECONDITION")
        if not self._greeting.done():
            self._greeting.set_exception(error)

    def _settle(self, number: int, outcome: Callable[[_Exchange], Any]) -> None:
        exchange = self._waiting.pop(number, None)
        if exchange is None or exchange.future.done():
            return  # the caller has stopped waiting
        try:
            exchange.future.set_result(outcome(exchange))
        except wire.InvalidMessage:
            exchange.future.set_exception(ConnectionLost("the owner of the file sent an invalid answer"))
            raise
        except HourglassError as error:
            exchange.future.set_exception(error)

    def _lost(self) -> None:
        self.lost.set()
        exchanges, self._waiting = self._waiting, {}
        for exchange in exchanges.values():
            if not exchange.future.done():
                exchange.future.set_exception(
                    ConnectionLost("the connection to the owner of the file was closed")
                )
        if not self._greeting.done():
            self._greeting.set_exception(ConnectionLost("the connection to the owner of the file was closed"))
        for timer in (self._alive_timer, self._silence_timer):
            if timer is not None:
                timer.cancel()
        handles, self._handles = self._handles, {}
        self.held |= self.unconfirmed.keys()
        for handle in handles.values():
            self.held |= handle.attempts
            handle.fail("the connection to the owner of the file was closed")

    async def greet(self, namespace: str) -> None:
        """Exchange greetings. Raises `ConnectionLost`, or the owner's rejection."""
        hello = wire.Hello(
            protocol=self._protocol,
            namespace=namespace,
            pid=os.getpid(),
            pid_namespace=unix_socket.pid_namespace(),
        )
        self.stream.send(wire.encode(hello))
        try:
            async with asyncio.timeout(_GREETING):
                await self._greeting
        except TimeoutError:
            self.close()
            raise ConnectionLost("the owner of the file did not answer the handshake") from None
        except BaseException:
            self.close()
            raise


async def connect(path: str, namespace: str, protocol: int = wire.PROTOCOL) -> OwnerConnection | None:
    """Connect to the owner of a file; None if no owner can be reached. Raises the owner's rejection."""
    connected = unix_socket.reach(path)
    if connected is None:
        return None
    remote = await _over(connected, OwnerConnection(protocol, path))
    try:
        await remote.greet(namespace)
    except ConnectionLost:
        return None
    return remote


async def _over(connected: socket.socket, remote: OwnerConnection) -> OwnerConnection:
    try:
        await asyncio.get_running_loop().create_unix_connection(lambda: remote.stream, sock=connected)
    except BaseException:
        unix_socket.close(connected)
        raise
    return remote


def _raise(error: HourglassError) -> NoReturn:
    raise error
