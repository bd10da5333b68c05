"""The owner's side of the socket: greets clients, passes their requests to the engine, and sends the answers; serves the
workers of other processes (`worker_peer`).

Must not know: locks, stores, how a request is answered. Invariants: a change is carried out once, even if the client
sends it again because its connection ended before the answer arrived: the server remembers answers by the request's key
for a while; an invalid message ends the connection of its sender, and has no other effect; when a connection ends, its
pending reads are cancelled, but changes are completed; a wait is cancelled as soon as its client stops waiting.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import OrderedDict
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from time import process_time, thread_time
from typing import Any

import msgspec

from hourglass._contract import service as s
from hourglass._contract import workflows as wf
from hourglass._contract.engine_status import WorkerProcess
from hourglass._contract.handle import ActivityResult, HandleConfig
from hourglass._embedded.activations.handle import EngineHandle
from hourglass._embedded.api.answering import EngineClosed
from hourglass._embedded.multiprocess import unix_socket, wire
from hourglass._embedded.multiprocess.unix_socket import FRAME_LIMIT, FrameStream
from hourglass._embedded.multiprocess.worker_peer import ProcessorUse, WorkerPeer, next_handicap
from hourglass._embedded.store.store import FileLost
from hourglass.errors import NamespaceNotFoundError, ServiceError

_log = logging.getLogger("hourglass.embedded")

_REMEMBERED = 10_000
"""The number of changes whose answers are remembered."""
_GREETING = 5.0
"""Seconds within which a client must send its greeting."""
_BACKLOG = 512


@dataclass(frozen=True)
class OwnerInfo:
    """The owner of a file, and callbacks into its engine."""

    path: str
    namespace: str
    pid: int
    since_ns: int
    answer: Callable[[s.Request[Any]], Coroutine[Any, Any, Any]]
    open_handle: Callable[[int, int, int, HandleConfig], EngineHandle]
    """Opens a handle on the engine, for a worker of another process."""
    claim: Callable[[int, int, Collection[bytes]], object] = lambda *_: None
    """Called with another process's id and PID namespace, and all attempts that this process has from the previous
    owner.
    """
    lose_attempts: Callable[[Collection[bytes]], object] = lambda _: None
    """Called with the attempts of a process that has ended."""
    end_attempt: Callable[[ActivityResult], object] = lambda _: None
    """Records the result of an attempt that an earlier owner dispatched."""
    when_stored: Callable[[Callable[[], object]], object] = lambda then: then()
    """Calls a function once all changes made so far are durable."""
    processes: Callable[[], tuple[WorkerProcess, ...]] = tuple
    """Returns the processes that work on the file."""
    note_processes: Callable[[tuple[WorkerProcess, ...]], object] = lambda _: None
    """Records the processes that work on the file, for the next owner."""
    set_handicap: Callable[[float], object] = lambda _: None
    """Sets the weight of work in the owner's process, relative to work in the other processes."""


class OwnerServer:
    """The server on the socket beside a file. Belongs to one event loop. It is started and closed by the process that
    has the lock.
    """

    def __init__(self, owner: OwnerInfo) -> None:
        self.owner = owner
        self.peers: set[_Peer] = set()
        self._server: asyncio.AbstractServer | None = None
        self._listening: socket.socket | None = None
        self._identity: tuple[int, int] | None = None
        self._answers: OrderedDict[str, asyncio.Future[Any]] = OrderedDict()
        self._measure_timer: asyncio.TimerHandle | None = None
        self._sent_processes: tuple[WorkerProcess, ...] = ()

    async def start(self) -> None:
        """Begin to listen. Raises `StorageError` if the socket cannot be created."""
        listening = unix_socket.listen(self.owner.path)
        loop = asyncio.get_running_loop()
        self._listening = listening
        self._identity = unix_socket.identity(self.owner.path)
        self._server = await loop.create_unix_server(
            lambda: _Peer(self).stream, sock=listening, backlog=_BACKLOG
        )

    async def listen_again(self) -> None:
        """Create the socket again if it was deleted, so that new clients can connect. Existing connections continue.

        Raises `StorageError` if the socket cannot be created.
        """
        if self._server is None or unix_socket.identity(self.owner.path) == self._identity:
            return
        _log.warning("the socket of %s was deleted and is recreated", self.owner.path)
        self._close_listener()
        await self.start()

    def stop_listening(self) -> None:
        """Accept no new clients, and remove the socket unless another process has replaced it. Existing connections
        continue.
        """
        if self._close_listener() and self._identity is not None:
            with suppress(OSError):
                unix_socket.remove(self.owner.path, only=self._identity)

    def _close_listener(self) -> bool:
        if self._measure_timer is not None:
            self._measure_timer.cancel()
            self._measure_timer = None
        server, self._server = self._server, None
        listening, self._listening = self._listening, None
        if listening is not None:
            unix_socket.untrack(listening.fileno())
        if server is not None:
            server.close()
        return server is not None

    def measure(self) -> None:
        """Begin to measure the load of this process and of the others, and set the weight of work in this process
        accordingly.

        Workers in this process share the interpreter with the engine. They get less work while they slow the engine
        down, and more while sending work to other processes costs more than executing it here. Measuring stops when no
        other process works on the file.
        """
        if self._measure_timer is None:
            self._measure(ProcessorUse(), 1.0)

    def _measure(self, ours: ProcessorUse, handicap: float) -> None:
        self._measure_timer = None
        ours.note(process_time(), thread_time())
        uses = [peer.workers.use for peer in self.peers if peer.workers.has_handles]
        handicap = 1.0 if not uses else next_handicap(handicap, ours, uses)
        self.owner.set_handicap(handicap)
        if uses and self._server is not None:
            loop = asyncio.get_running_loop()
            self._measure_timer = loop.call_later(wire.REPORT_INTERVAL, self._measure, ours, handicap)

    def send_processes(self) -> None:
        """Send the list of processes, if it has changed, to all processes that work on the file."""
        processes = self.owner.processes()
        if processes != self._sent_processes:
            self._sent_processes = processes
            self.owner.note_processes(processes)
            message = wire.encode(wire.Processes(processes))
            for peer in self.peers:
                if peer.workers.has_handles:
                    peer.stream.send(message)

    def send_alive(self) -> None:
        """Report to all clients that this process is running. Called about once a second."""
        message = wire.encode(wire.OwnerAlive())
        for peer in self.peers:
            peer.send_alive(message)

    def send_file_lost(self, error: FileLost) -> None:
        """Notify all processes that the file was lost: none of them may open it."""
        message = wire.encode(wire.FileLostMessage(str(error)))
        for peer in self.peers:
            peer.stream.send(message)

    def disconnect_silent(self) -> None:
        """Disconnect each process with workers that has sent no message for `SILENT_CHECKS` seconds. Others get its
        work.

        Called about once a second.
        """
        for peer in tuple(self.peers):
            if peer.workers.is_silent():
                _log.warning(
                    "process %d, which has workers on %s, has sent nothing for %d seconds: its tasks are given to other "
                    "workers",
                    peer.pid,
                    self.owner.path,
                    wire.SILENT_CHECKS,
                )
                peer.stream.abort()

    def disconnect_all(self) -> None:
        """End all connections. The clients then look for the next owner."""
        for peer in tuple(self.peers):
            peer.stream.close()
        for task in self._answers.values():
            task.cancel()
        self._answers.clear()

    def begin(self, key: str, request: s.Request[Any]) -> asyncio.Future[Any]:
        """Begin to answer a request and return the future of the answer.

        A change is carried out once for each key. If a client's connection ended before the answer arrived, the client
        sends the change again and receives the first answer.
        """
        loop = asyncio.get_running_loop()
        if request.effect is not s.Effect.CHANGE or not key:
            return loop.create_task(self.owner.answer(request))
        earlier = self._answers.get(key)
        if earlier is not None:
            return earlier
        task = self._answers[key] = loop.create_task(self.owner.answer(request))
        if isinstance(request, wf.ExecuteWorkflow):
            task.add_done_callback(lambda done: self._drop_result(key, done))
        while len(self._answers) > _REMEMBERED:
            self._answers.popitem(last=False)
        return task

    def _drop_result(self, key: str, task: asyncio.Task[Any]) -> None:
        """Replace the remembered answer of `ExecuteWorkflow` by one without the result, which may be large and can be
        read again. Forget a cancelled request, because its client does not repeat it.
        """
        if self._answers.get(key) is not task:
            return
        if task.cancelled():
            del self._answers[key]
        elif task.exception() is None:
            run_id = task.result().run_id
            started = self._answers[key] = asyncio.get_running_loop().create_future()
            started.set_result(wf.Executed(run_id, wf.StillOpen(run_id)))


@dataclass(frozen=True)
class _Pending:
    """A client's request in progress.

    `is_change`: the request continues when the connection ends. `is_wait`: the request is cancelled when the client
    stops waiting for the answer.
    """

    task: asyncio.Future[Any]
    is_change: bool
    is_wait: bool


class _Peer:
    """The connection of one client."""

    def __init__(self, server: OwnerServer) -> None:
        self._server = server
        self.stream = FrameStream(self._received, self._lost, on_made=self._connected, fair=True)
        self._greeted = False
        self.pid = self._pid_namespace = 0
        self.workers = WorkerPeer(self._open_engine_handle, self.stream.send, server.owner)
        self._pending: dict[int, _Pending] = {}
        self._greeting_timer: asyncio.TimerHandle | None = None

    def _connected(self) -> None:
        self._server.peers.add(self)
        if not self.stream.is_trusted(unix_socket.trusted_peers()):
            _log.warning(
                "a connection to %s from a process of another user was rejected", self._server.owner.path
            )
            self.stream.abort()
            return
        self._greeting_timer = asyncio.get_running_loop().call_later(_GREETING, self.stream.abort)

    def _lost(self) -> None:
        self._server.peers.discard(self)
        self._stop_greeting_timer()
        if self.workers.has_handles:
            self.workers.lose()
            self._server.send_processes()
        if self.workers.held:
            self._server.owner.lose_attempts(self.workers.held)
        pending, self._pending = self._pending, {}
        for entry in pending.values():
            if (
                not entry.is_change
            ):  # a change continues: the client will repeat the request to get the answer
                entry.task.cancel()

    def send_alive(self, message: bytes) -> None:
        if self._greeted:
            self.stream.send(message)

    def _stop_greeting_timer(self) -> None:
        if self._greeting_timer is not None:
            self._greeting_timer.cancel()
            self._greeting_timer = None

    def _received(self, frame: bytes) -> None:
        try:
            message = wire.decode_to_owner(frame)
            if not self._greeted and not isinstance(message, wire.Hello):
                raise wire.InvalidMessage("the first message was not a handshake")
            self.workers.note_message()
            match message:
                case wire.WorkAnswers():
                    self.workers.answer(message)
                case wire.RequestMessage():
                    self._begin_request(message)
                case wire.Hello():
                    self._greet(message)
                case wire.OpenHandle():
                    self._begin_call(message.number, self._open_handle(message))
                case wire.ShutDownHandle():
                    self.workers.shut_down(message.handle)
                case wire.CloseHandle():
                    self._begin_call(message.number, self.workers.close(message.handle))
                case wire.AbandonMessage():
                    self._abandon(message.number)
                case wire.Holding():
                    self._hold(message)
                case wire.Alive():
                    self.workers.use.note(message.processor_time, message.control_time)
        except wire.InvalidMessage as error:
            _log.warning(
                "a client of %s was disconnected because it sent an invalid message: %s",
                self._server.owner.path,
                error,
            )
            self.stream.abort()

    def _greet(self, hello: wire.Hello) -> None:
        self._stop_greeting_timer()
        owner = self._server.owner
        problem: ServiceError | None = None
        if hello.protocol != wire.PROTOCOL:
            problem = ServiceError(
                f"process {owner.pid}, the owner of {owner.path}, uses version {wire.PROTOCOL} of Hourglass's protocol "
                f"between processes, but this process uses version {hello.protocol}: run the same release of Hourglass "
                "in both",
                status="FAILED_PRECONDITION",
            )
        elif hello.namespace != owner.namespace:
            problem = NamespaceNotFoundError(
                f"{owner.path} contains the namespace {owner.namespace!r}, not {hello.namespace!r}",
                status="NOT_FOUND",
            )
        if problem is not None:
            self.stream.send(wire.encode(wire.RejectedMessage(wire.problem_of(problem))))
            self.stream.close()
            return
        self._greeted = True
        self.pid, self._pid_namespace = hello.pid, hello.pid_namespace
        welcome = wire.Welcome(protocol=wire.PROTOCOL, pid=owner.pid, since_ns=owner.since_ns)
        self.stream.send(wire.encode(welcome))

    def _begin_request(self, message: wire.RequestMessage) -> None:
        request = wire.decode_request(message)
        task = self._server.begin(message.key, request)
        is_change = request.effect is s.Effect.CHANGE
        self._add_pending(message.number, _Pending(task, is_change, is_wait=request.waits or not is_change))

    async def _open_handle(self, message: wire.OpenHandle) -> None:
        self.workers.open(message)
        self._server.measure()
        self._server.send_processes()

    def _hold(self, message: wire.Holding) -> None:
        self.workers.held = frozenset(message.tokens)
        try:
            self._server.owner.claim(self.pid, self._pid_namespace, message.tokens)
        except ValueError:
            raise wire.InvalidMessage("the task token is malformed") from None

    def _open_engine_handle(self, config: HandleConfig) -> EngineHandle:
        return self._server.owner.open_handle(self.pid, self._pid_namespace, id(self), config)

    def _begin_call(self, number: int, call: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(call)
        self._add_pending(number, _Pending(task, is_change=True, is_wait=False))

    def _add_pending(self, number: int, entry: _Pending) -> None:
        if number in self._pending:
            raise wire.InvalidMessage("the id of the request is already in use")
        self._pending[number] = entry
        entry.task.add_done_callback(lambda done: self._answer(number, done))

    def _abandon(self, number: int) -> None:
        entry = self._pending.pop(number, None)
        if entry is not None and entry.is_wait:
            # The task is cancelled after its first turn, in which `ExecuteWorkflow` starts the workflow: a start that
            # was sent is carried out even if no client waits for it.
            asyncio.get_running_loop().call_soon(entry.task.cancel)

    def _answer(self, number: int, task: asyncio.Future[Any]) -> None:
        error = (
            None if task.cancelled() else task.exception()
        )  # asyncio logs exceptions that are never retrieved
        if self._pending.pop(number, None) is None or task.cancelled():
            return  # the client no longer waits, or this process stops and the client will ask the next owner
        if isinstance(error, EngineClosed):
            return  # the connection will end, and the client will ask the next owner
        if error is None:
            self._send_answer(number, s.Nothing() if task.result() is None else task.result())
        else:
            if not isinstance(error, ServiceError):
                _log.debug("a request failed: %s", type(error).__name__)
            self.stream.send(wire.encode(wire.Failed(number, wire.problem_of(error))))

    def _send_answer(self, number: int, value: msgspec.Struct) -> None:
        data = wire.encode_answer(number, value)
        if len(data) > FRAME_LIMIT:
            too_large = ServiceError(
                f"the answer has {len(data)} bytes; at most {FRAME_LIMIT} bytes can be sent",
                status="RESOURCE_EXHAUSTED",
            )
            data = wire.encode(wire.Failed(number, wire.problem_of(too_large)))
        self.stream.send(data)
