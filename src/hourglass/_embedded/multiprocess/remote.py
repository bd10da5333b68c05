"""A client's side of the socket: one connection to the owner of a file, with many requests in flight at once, and the
handles of this process's workers on it (`remote_handle`).

Must not know: what to do when the owner is gone (see `calls`, `shared_file`). Invariants: every request that was sent
ends, with its answer, its error, or `ConnectionLost`; the owner is told of a request whose caller gives up the wait; a
handle breaks with its connection.
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

from hourglass._contract import deployments as dp
from hourglass._contract import service as s
from hourglass._contract import workflows as wf
from hourglass._contract.handle import ActivityResult, HandleConfig
from hourglass._embedded.multiprocess import unix_socket, wire
from hourglass._embedded.multiprocess.remote_handle import RemoteHandle, encode_results
from hourglass._embedded.multiprocess.unix_socket import FRAME_LIMIT, FrameStream
from hourglass.errors import HourglassError, ServiceError

A = TypeVar("A")

_log = logging.getLogger("hourglass.embedded")

_GREETING = 5.0
_HARDLY_ANY = 0.05
"""A process that uses less than this part of a processor has nothing to do."""


class ConnectionLost(HourglassError):
    """The connection ended before the answer came."""


class ForeignProtocol(ServiceError):
    """The owner speaks another version of the protocol between processes."""


@dataclass(frozen=True)
class _Exchange:
    future: asyncio.Future[Any]
    read: Callable[[wire.AnswerMessage], Any]


class OwnerConnection:
    """A connection to the owner. Belongs to one event loop."""

    def __init__(self, protocol: int = wire.PROTOCOL, path: str = "") -> None:
        self._protocol = protocol
        self._path = path
        self.stream = FrameStream(self._heard, self._lost)
        self.lost = asyncio.Event()
        self._greeting: asyncio.Future[wire.Welcome] = asyncio.get_running_loop().create_future()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, _Exchange] = {}
        self._handles: dict[int, RemoteHandle] = {}
        self.held: set[bytes] = set()
        """The attempts that this process had of the owner when the connection ended, and those whose results are not
        known to be durable.
        """
        self.unconfirmed: dict[bytes, ActivityResult] = {}
        """Results that were sent and are not known to be durable, by token. After the owner's end the next one gets them."""
        self.responds = True
        """Whether the owner has sent something in the last `wire.SILENT_LOOKS` seconds; if not, it is stopped or hangs."""
        self._silent_looks = 0
        self._look: asyncio.TimerHandle | None = None
        self.processes: tuple[dp.WorkerProcess, ...] = ()
        """The processes that work on the file, as the owner told last."""
        self.file_lost = ""
        """Why the owner has stopped and the file must not be opened again; empty if it has not."""
        self._sign_of_life: asyncio.TimerHandle | None = None
        self._used = 0.0
        self._idle = False

    @property
    def is_open(self) -> bool:
        """Whether it can still be asked."""
        return self.stream.is_open and not self.lost.is_set()

    @property
    def in_flight(self) -> int:
        """How many answers are waited for."""
        return len(self._waiting)

    @property
    def welcome(self) -> wire.Welcome:
        """What the owner has said of itself."""
        return self._greeting.result()

    async def ask(self, request: s.Request[A], key: str) -> A:
        """Ask, and wait for the answer. Raises `ConnectionLost`, or what the owner raised."""
        number = next(self._numbers)

        def read(answer: wire.AnswerMessage) -> A:
            return wire.answer_of(request, answer)

        return await self._exchange(number, wire.ask(number, key, request), read)

    async def execute(self, request: wf.StartWorkflow, key: str) -> wf.Executed:
        """Have a workflow started, and wait for its end, as one request. Raises as `ask` does."""
        number = next(self._numbers)
        data = wire.ask(number, key, request, to_end=True)
        return await self._exchange(number, data, wire.executed_of)

    async def open_handle(self, config: HandleConfig) -> RemoteHandle:
        """A handle on the owner's engine, which works at once. Raises `ConnectionLost`, or the refusal."""
        number = next(self._numbers)
        handle = self._handles[number] = RemoteHandle(self, number, config)  # work may come with the answer
        try:
            message = wire.encode(wire.OpenHandle(number, number, config))
            await self._exchange(number, message, lambda _: None)
        except BaseException:
            self._handles.pop(number, None)
            raise
        self._live()
        return handle

    async def close_handle(self, handle: int) -> None:
        """Have the owner close a handle of ours. Raises `ConnectionLost`."""
        number = next(self._numbers)
        try:
            await self._exchange(number, wire.encode(wire.CloseHandle(number, handle)), lambda _: None)
        finally:
            self._handles.pop(handle, None)

    def tell(self, message: wire.ToOwner) -> None:
        """Send a message that has no answer."""
        self.stream.send(wire.encode(message))

    def send(self, data: bytes) -> None:
        """Send a message that is encoded already."""
        self.stream.send(data)

    def resend(self, results: dict[bytes, ActivityResult]) -> None:
        """Send results that an earlier owner has not confirmed, and keep them until this one does."""
        self.unconfirmed.update(results)
        if results:
            for data in encode_results(results.values()):
                self.send(data)

    def _look_at_owner(self) -> None:
        """Look, once a second, whether the owner has sent something. Looks are counted, not time: while this process itself
        is stopped, the owner is not to blame. Its lock stays its own: as long as it is stopped, nothing can proceed.
        """
        self._silent_looks += 1
        if self.responds and self._silent_looks > wire.SILENT_LOOKS:
            self.responds = False
            _log.warning(
                "process %d, which owns %s, has sent nothing for %d seconds: it is stopped or hangs, and no work on the file "
                "proceeds until it runs again or ends. Resume it (kill -CONT %d), or end it (kill -KILL %d): then another "
                "process takes over",
                self.welcome.pid,
                self._path,
                wire.SILENT_LOOKS,
                self.welcome.pid,
                self.welcome.pid,
            )
        self._look = asyncio.get_running_loop().call_later(wire.OWNER_SIGN, self._look_at_owner)

    def _note_sign(self) -> None:
        self._silent_looks = 0
        if not self.responds:
            self.responds = True
            _log.warning("process %d, which owns %s, responds again", self.welcome.pid, self._path)

    def _live(self) -> None:
        """Say again and again that this process runs, while it works for the owner."""
        if self._sign_of_life is not None:
            self._sign_of_life.cancel()
        self._sign_of_life = None
        if self._handles and self.is_open:
            used = process_time()
            self.tell(wire.Alive(used, thread_time()))
            self._idle = used - self._used < _HARDLY_ANY * wire.SIGN_OF_LIFE
            self._used = used
            pause = wire.SIGN_WHEN_IDLE if self._idle else wire.SIGN_OF_LIFE
            self._sign_of_life = asyncio.get_running_loop().call_later(pause, self._live)

    def close(self) -> None:
        """Hang up."""
        self.stream.abort()

    async def _exchange(self, number: int, data: bytes, read: Callable[[wire.AnswerMessage], A]) -> A:
        if not self.is_open:
            raise ConnectionLost("the connection has ended")
        if len(data) > FRAME_LIMIT:
            raise ServiceError(
                f"the request has {len(data)} bytes, more than the {FRAME_LIMIT} that can be sent",
                status="INVALID_ARGUMENT",
            )
        future: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting[number] = _Exchange(future, read)
        self.stream.send(data)
        try:
            return await future
        finally:
            if self._waiting.pop(number, None) is not None:
                self.stream.send(wire.encode(wire.GiveUpMessage(number)))

    def _heard(self, frame: bytes) -> None:
        self._note_sign()
        try:
            match wire.decode_to_client(frame):
                case wire.Welcome() as welcome:
                    if not self._greeting.done():
                        self._greeting.set_result(welcome)
                        self._look_at_owner()
                case wire.RefusedMessage(problem, protocol):
                    self._refused(problem, protocol)
                case wire.AnswerMessage() as answer:
                    self._settle(answer.number, lambda waiting: waiting.read(answer))
                case wire.Failed(number, problem):
                    self._settle(number, lambda _: _raise(wire.error_of(problem)))
                case wire.HandleWork() as work:
                    if (handle := self._handles.get(work.handle)) is not None:
                        handle.receive(work)
                    if self._idle:
                        self._live()  # from now on oftener
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
        except wire.Garbage:
            self.stream.abort()

    def _refused(self, problem: wire.Problem, protocol: int) -> None:
        error = wire.error_of(problem)
        if protocol != self._protocol:
            error = ForeignProtocol(problem.message, status="FAILED_PRECONDITION")
        if not self._greeting.done():
            self._greeting.set_exception(error)

    def _settle(self, number: int, outcome: Callable[[_Exchange], Any]) -> None:
        waiting = self._waiting.pop(number, None)
        if waiting is None or waiting.future.done():
            return  # given up
        try:
            waiting.future.set_result(outcome(waiting))
        except wire.Garbage:
            waiting.future.set_exception(ConnectionLost("the owner's answer made no sense"))
            raise
        except HourglassError as error:
            waiting.future.set_exception(error)

    def _lost(self) -> None:
        self.lost.set()
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            if not each.future.done():
                each.future.set_exception(ConnectionLost("the connection ended"))
        if not self._greeting.done():
            self._greeting.set_exception(ConnectionLost("the connection ended"))
        for timer in (self._sign_of_life, self._look):
            if timer is not None:
                timer.cancel()
        handles, self._handles = self._handles, {}
        self.held |= self.unconfirmed.keys()
        for handle in handles.values():
            self.held |= handle.attempts
            handle.fail("the connection to the process that owns the file has ended")

    async def greet(self, namespace: str) -> None:
        """Introduce ourselves. Raises `ConnectionLost`, or the refusal."""
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
            raise ConnectionLost("the owner did not answer the greeting") from None
        except BaseException:
            self.close()
            raise


async def connect(path: str, namespace: str, protocol: int = wire.PROTOCOL) -> OwnerConnection | None:
    """A connection to the owner of a file; None if there is none. Raises what the owner refuses us with."""
    reached = unix_socket.reach(path)
    if reached is None:
        return None
    remote = await _over(reached, OwnerConnection(protocol, path))
    try:
        await remote.greet(namespace)
    except ConnectionLost:
        return None
    return remote


async def _over(reached: socket.socket, remote: OwnerConnection) -> OwnerConnection:
    try:
        await asyncio.get_running_loop().create_unix_connection(lambda: remote.stream, sock=reached)
    except BaseException:
        unix_socket.close(reached)
        raise
    return remote


def _raise(error: HourglassError) -> NoReturn:
    raise error
