"""One process's part in one file: a client, the owner, or a process that works for the owner.

Must not know: how an engine works, the messages on the socket, how a request finds its engine (see `calls`). A process
tries to own a file while it has a handle on it, and only then. Invariants: an engine is open here only while this
process has the lock, and is closed before the lock is released; there is no thread: the end of the owner's connection
is the signal to try for the lock; a file that fails repeatedly is opened at growing intervals, and waiting clients get
an error if it needs a person.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from time import localtime, monotonic, strftime
from typing import Any

import msgspec

from hourglass._contract import deployments as dp
from hourglass._contract import service as s
from hourglass._contract.handle import (
    ActivityResult,
    CompletionResult,
    Handle,
    HandleBroken,
    HandleConfig,
    OnActivations,
    OnActivities,
    OnEnd,
    Shutdown,
    WorkKind,
)
from hourglass._embedded.activations.handle import EngineHandle
from hourglass._embedded.api.answering import EngineClosed
from hourglass._embedded.api.requests import answer
from hourglass._embedded.clock import Bell
from hourglass._embedded.engine import EngineFigures
from hourglass._embedded.multiprocess import wire
from hourglass._embedded.multiprocess.calls import BUSY, CHECK_INTERVAL, SHORTEST, CallRouter
from hourglass._embedded.multiprocess.open_engine import OpenEngine
from hourglass._embedded.multiprocess.ownership import FileLock
from hourglass._embedded.multiprocess.remote import ConnectionLost, ForeignProtocol, OwnerConnection
from hourglass._embedded.multiprocess.remote_handle import RemoteHandle
from hourglass._embedded.multiprocess.serving import OwnerInfo, OwnerServer
from hourglass._embedded.multiprocess.unix_socket import may_run, pid_namespace
from hourglass._embedded.runs.upkeep import DEFAULT_RETENTION
from hourglass._embedded.store.store import DiskCondition, FileLost, StoreOpener, epoch_is_over, is_permanent
from hourglass._embedded.transitions.size_limits import Limits
from hourglass._evaluator.commands import Completion
from hourglass._evaluator.specs import Payloads
from hourglass.errors import HourglassError, InternalError, StorageError

_log = logging.getLogger("hourglass.embedded")

SETTLE = 5.0
"""Seconds that opening a handle waits for the file; after that the handle's polls wait."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0
"""Seconds before a file that has failed is opened again: the first and the longest pause."""
FOREIGN = 0.2
"""Seconds between two attempts to connect to an owner with another protocol version."""
CLAIMS = 2.0
"""Seconds between two checks whether surviving processes have claimed their attempts from a new owner."""
TRIES = 3
"""Consecutive failures that need a person, after which clients get the error."""
SOUND = 10.0
"""Seconds of work after which an engine's failure no longer counts as consecutive."""


class SharedFile:
    """A process's part in a file (see the module). Belongs to one event loop."""

    def __init__(self, opener: StoreOpener, path: str, namespace: str) -> None:
        self.path = path
        self.namespace = namespace
        self._opener = opener
        self.retention = DEFAULT_RETENTION
        """Seconds for which closed runs are kept when this process owns the file."""
        self.limits: Limits | None = None
        """Size limits when this process owns the file; None for the defaults."""
        self.users = 0
        self._lock = FileLock(path)
        self._changed = Bell()
        self.calls = CallRouter(opener, path, namespace, self._changed)
        self._handles: set[FileHandle] = set()
        self._task: asyncio.Task[None] | None = None
        self._failures = 0
        self._identity: tuple[int, int] | None = None
        """Device and inode of the file that this process has worked on."""
        self._lost: FileLost | None = None
        """Why this process never opens the file again: it was replaced or overwritten."""
        self._not_before = 0.0
        self._former: OwnerConnection | None = None
        self._took_over = False
        self._wanted_until = 0.0
        self._survivors: list[dp.WorkerProcess] = []
        """Processes that worked for an earlier owner and may be alive, while this process, as the new owner, awaits
        their claims."""
        self._claimed: set[tuple[int, int]] = set()
        """The survivors that have claimed their attempts, by process id and PID namespace."""
        self._held: set[bytes] = set()
        """The attempts that this process has from earlier owners, or from its own earlier engine."""
        self._results: dict[bytes, ActivityResult] = {}
        """Results that are not confirmed as durable, by token, for the next owner."""
        self._ended_identities: frozenset[str] = frozenset()
        """The identities of workers that ended with the last owner or before."""
        self._claims: asyncio.TimerHandle | None = None
        self._ownerless_since = 0.0
        """The time since which neither the lock nor its holder is available; 0 if one of them is."""
        self._warned = False

    @property
    def _unsettled(self) -> set[bytes]:
        """The attempts to claim from the next owner: those that may still run here, and those whose results are not
        confirmed as durable. An attempt that is not claimed is given to another worker."""
        return self._held | self._results.keys()

    @property
    def standing(self) -> str:
        """The part of this process, as text."""
        if self.calls.engine is not None:
            return "owner"
        if not self._handles:
            return "client"
        if self.calls.owner is not None and self.calls.owner.is_open:
            silent = "" if self.calls.owner.responds else ", which does not respond"
            return f"working for process {self.calls.owner.welcome.pid}{silent}"
        return "waiting for the file"

    @property
    def owner_trouble(self) -> str:
        """Why this process's workers get no work from the owner, for people; empty if they do."""
        if self.calls.engine is not None or not self._handles:
            return ""
        owner = self.calls.owner
        if owner is not None and owner.is_open:
            if owner.responds:
                return ""
            return f"process {owner.welcome.pid}, which owns {self.path}, does not respond: it is stopped or hangs"
        waited = monotonic() - self._ownerless_since
        if not self._ownerless_since or waited < wire.SILENT_CHECKS:
            return ""
        return f"{self.path} is held by another process, which does not respond, for {waited:.0f} seconds"

    @property
    def processes(self) -> tuple[dp.WorkerProcess, ...]:
        """The processes that work on the file, as far as this process knows. Empty unless it works on the file itself."""
        if self.calls.engine is not None:
            return self.calls.engine.processes()
        return () if self.calls.owner is None or not self.calls.owner.is_open else self.calls.owner.processes

    @property
    def condition(self) -> DiskCondition | None:
        """The condition of the file and its disk; None unless this process owns the file."""
        engine = self.calls.engine
        return None if engine is None else engine.condition

    @property
    def figures(self) -> EngineFigures | None:
        """The engine's figures; None unless this process owns the file."""
        engine = self.calls.engine
        return None if engine is None else engine.engine.figures

    async def open_handle(self, config: HandleConfig) -> FileHandle:
        """Open a handle that works as soon as an engine is available. Raises the error of the owner or of the file."""
        self._opener.check(self.path)
        self._check_file()
        handle = FileHandle(config, died=self._died, released=self._release)
        self._handles.add(handle)
        self._wanted_until = (
            0.0  # the worker is back: its handles determine from now on whether the file is wanted
        )
        try:
            if self.calls.engine is not None:
                handle.attach(self.calls.engine)
            if self._task is None or self._task.done():
                self._task = asyncio.get_running_loop().create_task(self._own_while_wanted())
            self._changed.ring()
            await asyncio.wait({handle.settled}, timeout=SETTLE)
            if handle.settled.done():
                handle.settled.result()
            elif self._lock.held:
                _log.warning("%s takes long to open; this worker waits", self.path)
            else:
                _log.warning("%s is held by %s, which does not answer; waiting", self.path, self._holder())
        except BaseException:
            self._release(handle)
            raise
        return handle

    def _died(self, handle: FileHandle) -> None:
        self._collect(handle)
        self._changed.ring()

    def _collect(self, handle: FileHandle) -> None:
        """Keep the attempts of a handle on our engine, and its results that are not confirmed as durable."""
        results, attempts = handle.take_unfinished()
        self._results.update((result.token, result) for result in results)
        self._held |= attempts | {result.token for result in results}

    def _release(self, handle: FileHandle) -> None:
        self._collect(handle)
        self._handles.discard(handle)
        self._changed.ring()

    @property
    def _is_wanted(self) -> bool:
        """Whether this process has workers on the file, or will soon have them again.

        The latter is the case when their handles broke with the owner and new ones are being opened.
        """
        return bool(self._handles) or monotonic() < self._wanted_until

    async def _own_while_wanted(self) -> None:
        """While this process has a handle: own the file if its lock is free, else work for its owner."""
        pause = SHORTEST
        while self._is_wanted:
            try:
                remaining = self._not_before - monotonic()
                self._check_file()
                if remaining > 0:
                    await self._changed.wait(remaining)
                elif self._owner_lives():
                    await self._work_for_owner()
                elif self._lock.try_take():
                    await self._own()
                    pause = SHORTEST
                elif await self._work_for_owner():
                    pause = SHORTEST
                else:
                    self._wait_ownerless()
                    await self._changed.wait(pause)
                    pause = min(2 * pause, BUSY)
                    continue
                self._ownerless_since, self._warned = 0.0, False
            except HourglassError as error:
                self._fail_all(error)
            except Exception as error:
                _log.exception("%s could not be owned", self.path)
                self._fail_all(InternalError(f"{self.path} could not be owned: {type(error).__name__}"))
            finally:
                self._lock.drop()

    def _wait_ownerless(self) -> None:
        """Record that neither the lock nor its holder is available, and log it once after a while."""
        now = monotonic()
        self._ownerless_since = self._ownerless_since or now
        if now - self._ownerless_since > wire.SILENT_CHECKS and not self._warned:
            self._warned = True
            _log.warning(
                "%s is held by %s, which has not responded for %d seconds: it is stopped or hangs, and no work on the file "
                "proceeds until it runs again or ends",
                self.path,
                self._holder(),
                wire.SILENT_CHECKS,
            )

    async def _own(self) -> None:
        """Open the engine and serve this process's handles and other processes. The caller has the lock.

        Returns when this process has no handles left, or the engine fails.
        """
        self._check_file()
        self._leave_owner()
        self._find_survivors()
        took_over = self._took_over
        try:
            engine = await OpenEngine.open(
                self._opener,
                self.path,
                self.namespace,
                self.retention,
                limits=self.limits,
                took_over=took_over,
                living=frozenset().union(*(survivor.identities for survivor in self._survivors)),
            )
        except StorageError as error:
            self._failed(error)
            raise
        server = self._make_server(engine)
        try:
            await server.start()
            self.calls.own(engine)
            self._claim(engine, os.getpid(), pid_namespace(), self._unsettled)
            self._apply_kept_results(engine)
            self._await_claims(engine, monotonic())
            self._took_over = False
            _log.log(
                logging.WARNING if took_over else logging.INFO,
                "this process %s %s (queues: %s)",
                "took over" if took_over else "owns",
                self.path,
                ", ".join(sorted({handle.queue for handle in self._handles})),
            )
            self._changed.ring()
            self._identity = self._identity or _identity(self.path)
            await self._serve(engine, server)
        finally:
            if self._claims is not None:
                self._claims.cancel()
            # In this order: a process that gets the lock must find the file closed, with all queued changes in it.
            self.calls.engine = None
            server.stop_listening()
            for handle in self._handles:
                if handle.engine is engine:
                    self._collect(handle)
            engine.close()
            self._record_end(engine)
            if isinstance(engine.failed, FileLost):
                server.send_file_lost(engine.failed)
            self._lock.drop()
            server.disconnect_all()  # last: disconnecting makes the other processes try for the lock, which is free now
            self._changed.ring()
        if engine.failed is not None:
            if isinstance(engine.failed, FileLost):
                self._give_up(engine.failed)
            else:
                _log.error("the engine of %s ended and is opened again: %s", self.path, engine.failed)
                self._failed(engine.failed)
            self._fail_all(engine.failed, of=engine)

    def _record_end(self, engine: OpenEngine) -> None:
        """Record that this process is no longer the owner. If its engine failed, its attempts continue."""
        own = (os.getpid(), pid_namespace())
        others = [worker for worker in self._lock.workers if _key(worker) != own]
        if engine.failed is None:
            self._results.clear()  # all are durable
            self._lock.note_workers(others)
        else:
            ours = [worker for worker in self._lock.workers if _key(worker) == own]
            self._lock.note_workers(
                (*(msgspec.structs.replace(worker, is_owner=False) for worker in ours), *others)
            )

    def _claim(self, engine: OpenEngine, process_id: int, namespace: int, tokens: Collection[bytes]) -> None:
        """Keep the attempts that a process has from an earlier owner, and lose all others of its workers.

        What the process had returned, or not yet received, is gone with that owner. If workers of several processes
        share an identity, their attempts are lost only when all these processes have claimed theirs, or the time for
        claims is over.
        """
        engine.engine.claim(tokens)
        key = (process_id, namespace)
        claimants = [survivor for survivor in self._survivors if _key(survivor) == key]
        if len(claimants) == 1 and key not in self._claimed:
            self._claimed.add(key)
            waiting = (survivor for survivor in self._survivors if _key(survivor) not in self._claimed)
            complete = frozenset(claimants[0].identities).difference(
                *(survivor.identities for survivor in waiting)
            )
            engine.engine.lose_unclaimed(complete, alive=complete - self._ended_identities)

    def _apply_kept_results(self, engine: OpenEngine) -> None:
        """Apply the results that this process has kept since an earlier owner, and forget them once they are durable."""
        for result in tuple(self._results.values()):
            engine.engine.end_attempt(result)
        self._forget_when_stored(engine)

    def _confirm_results(self, engine: OpenEngine) -> None:
        """Forget the results of our workers once they are durable."""
        for handle in self._handles:
            if handle.engine is engine:
                results, _ = handle.take_unfinished()
                self._results.update((result.token, result) for result in results)
        self._forget_when_stored(engine)

    def _forget_when_stored(self, engine: OpenEngine) -> None:
        tokens = tuple(self._results)

        def forget() -> None:
            for token in tokens:
                self._results.pop(token, None)

        if tokens:
            engine.when_stored(forget)

    def _await_claims(self, engine: OpenEngine, since: float) -> None:
        """Wait until the processes that survived the last owner have claimed their attempts.

        Waits while they are alive, at most `wire.SILENT_CHECKS` seconds. Attempts without a claim are then lost.
        """

        def check() -> None:
            waiting = any(
                _key(survivor) not in self._claimed and _may_run(survivor) for survivor in self._survivors
            )
            if waiting and monotonic() < since + wire.SILENT_CHECKS:
                self._await_claims(engine, since)
            else:
                self._survivors.clear()
                engine.engine.lose_unclaimed()

        self._claims = asyncio.get_running_loop().call_later(CLAIMS, check)

    def _make_server(self, engine: OpenEngine) -> OwnerServer:
        """Return the server through which other processes reach the engine."""
        return OwnerServer(
            OwnerInfo(
                path=self.path,
                namespace=self.namespace,
                pid=os.getpid(),
                since_ns=self._lock.since_ns,
                answer=partial(self._answer, engine),
                open_handle=engine.open_for_other,
                claim=partial(self._claim, engine),
                lose_attempts=engine.engine.lose_attempts,
                end_attempt=engine.engine.end_attempt,
                when_stored=engine.when_stored,
                processes=engine.processes,
                note_processes=self._note_processes,
                weigh=engine.weigh,
            )
        )

    async def _serve(self, engine: OpenEngine, server: OwnerServer) -> None:
        """Attach new handles, and check every second that the lock and the socket are still ours."""
        started_at = checked_at = monotonic()
        while self._is_wanted and engine.failed is None:
            for handle in self._handles:
                handle.attach(engine)
            server.send_processes()
            await self._changed.wait(CHECK_INTERVAL)
            engine.check()
            if not self._lock.still_held():
                engine.fail(epoch_is_over(self.path))
                return
            await server.listen_again()
            if monotonic() >= checked_at + CHECK_INTERVAL:
                checked_at = monotonic()
                self._confirm_results(engine)
                server.send_alive()
                server.disconnect_silent()
            if self._failures and monotonic() > started_at + SOUND:
                self._failures, self.calls.broken = 0, None

    def _failed(self, error: StorageError) -> None:
        """Pause after a failure of the file; after several permanent ones, make clients fail with the error."""
        self._failures += 1
        pause = min(FIRST_PAUSE * 2 ** min(self._failures - 1, 20), LONGEST_PAUSE)
        self._not_before = monotonic() + pause
        if self._failures >= TRIES and is_permanent(error):
            self.calls.broken = error

    def _check_file(self) -> None:
        """Raise `FileLost` if the file was replaced, or if its owner has found that it was overwritten."""
        if self._lost is None:
            self._detect_loss()
        if self._lost is not None:
            self._wanted_until = 0.0  # opening handles again would be rejected
            raise FileLost(str(self._lost), status=self._lost.status)

    def _detect_loss(self) -> None:
        if self._former is not None and self._former.file_lost:
            message = f"the process that owned {self.path} found that {self._former.file_lost}"
        elif self._identity is not None and _identity(self.path) != self._identity:
            message = (
                f"the file {self.path} was replaced or moved away while this process worked on it. This process has stopped and "
                f"does not open it again. Put the file that is wanted at {self.path}, and restart all workers"
            )
        else:
            return
        self._give_up(FileLost(message, status="DATA_LOSS"))

    def _give_up(self, error: FileLost) -> None:
        """Never open the file again, and make all workers and calls of this process fail with the error."""
        self._lost = self.calls.broken = error
        _log.error("%s", error)

    async def _answer(self, engine: OpenEngine, request: s.Request[Any]) -> Any:
        """Answer a request of another process."""
        try:
            return await answer(engine.engine, request)
        except EngineClosed:
            self.calls.check_sound()
            raise

    def _fail_all(self, error: HourglassError, of: OpenEngine | None = None) -> None:
        for handle in tuple(self._handles):
            if of is None or handle.engine is of:
                handle.fail(error)
                self._handles.discard(handle)

    async def _work_for_owner(self) -> bool:
        """Let this process's handles receive work from the owner, until it ends or something changes here.

        Returns False if no owner can be reached.
        """
        try:
            owner = await self.calls.reach()
        except ForeignProtocol as error:
            for handle in self._handles:
                if handle.owner is None:
                    _log.warning("this worker waits for %s: %s", self.path, error)
                    handle.wait_for(error)
            await self._changed.wait(FOREIGN)  # there is no notification of its end
            return False
        if owner is None:
            return False
        if owner is not self._former:
            self._leave_owner()
            self._former = owner
            self._identity = self._identity or _identity(self.path)
            owner.send(wire.Holding(tuple(self._unsettled)))
            results, self._results = self._results, {}
            owner.resend(results)
        try:
            for handle in tuple(self._handles):
                await self._open_at(owner, handle)
        except ConnectionLost:
            return True
        await _first(owner.lost.wait(), self._changed.wait(CHECK_INTERVAL))
        if owner.is_open and self._lock.is_abandoned(owner.welcome.since_ns):
            owner.close()
        return True

    def _leave_owner(self) -> None:
        """Take over the attempts and results from the connection to an owner that has ended."""
        former, self._former = self._former, None
        if former is not None:
            self._took_over = True
            self._wanted_until = monotonic() + CHECK_INTERVAL
            self._held |= former.held
            self._results.update(former.unconfirmed)

    def _find_survivors(self) -> None:
        """Determine which processes that worked for an earlier owner may still run. The caller has the lock."""
        others = [worker for worker in self._lock.workers if not worker.is_owner]
        self._survivors = [worker for worker in others if _may_run(worker)]
        self._claimed.clear()
        ended = (worker for worker in self._lock.workers if worker not in self._survivors)
        self._ended_identities = frozenset().union(*(worker.identities for worker in ended))

    def _note_processes(self, processes: tuple[dp.WorkerProcess, ...]) -> None:
        """Record for which processes the next owner must wait."""
        listed = {_key(process) for process in processes}
        self._lock.note_workers(
            (*processes, *(survivor for survivor in self._survivors if _key(survivor) not in listed))
        )

    def _owner_lives(self) -> bool:
        """Whether another process owns the file, according to the connection to it and the lock."""
        owner = self.calls.owner
        return owner is not None and owner.is_open and not self._lock.is_abandoned(owner.welcome.since_ns)

    async def _open_at(self, owner: OwnerConnection, handle: FileHandle) -> None:
        if not handle.is_new:
            return
        try:
            handle.attach_remote(owner, await owner.open_handle(handle.config))
        except ConnectionLost:
            raise
        except HourglassError as refusal:
            handle.fail(refusal)
            self._handles.discard(handle)
            return
        _log.info(
            "the worker of queue %r gets its work from process %d, which owns %s since %s",
            handle.queue,
            owner.welcome.pid,
            self.path,
            _clock(owner.welcome.since_ns),
        )

    def _holder(self) -> str:
        note = self._lock.note()
        return f"process {note.pid} since {_clock(note.since_ns)}" if note.pid else "another process"

    async def close(self) -> None:
        """Close the handles, the engine and the connections, in order."""
        for handle in tuple(self._handles):
            await handle.finalize()
        if not self._results and (self._former is None or not self._former.unconfirmed):
            self._wanted_until = 0.0  # otherwise the next owner gets the results first, if there is one soon
        self._changed.ring()
        if self._task is not None:
            await asyncio.wait({self._task})
        await self.calls.close()


def _may_run(process: dp.WorkerProcess) -> bool:
    return may_run(process.process_id, process.pid_namespace)


def _key(process: dp.WorkerProcess) -> tuple[int, int]:
    return process.process_id, process.pid_namespace


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


async def _first(*waits: Awaitable[object]) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def _clock(since_ns: int) -> str:
    return strftime("%Y-%m-%d %H:%M:%S", localtime(since_ns / 1e9))


class FileHandle:
    """A worker's handle on a file. It delegates to a handle of the engine here, or of the owner's, once there is one.

    Implements `hourglass._contract.handle.Handle`. Must not know: locks, sockets. Until it has an engine it delivers
    nothing. Invariants: it is attached to only one engine in its life; when that engine or its process ends, or when it
    can never have one, it ends with `HandleBroken`, and the worker's tree opens another handle.
    """

    def __init__(
        self,
        config: HandleConfig,
        *,
        died: Callable[[FileHandle], object],
        released: Callable[[FileHandle], object],
    ) -> None:
        config.check()
        loop = asyncio.get_running_loop()
        self.config = config
        self.settled: asyncio.Future[None] = loop.create_future()
        """Done once the handle works, or knows what it waits for; fails with the error that rejects it."""
        self.owner: object = None
        """The connection over which it works, or the error for which it waits."""
        self.engine: OpenEngine | None = None
        self._died = died
        self._released = released
        self._inner: Handle | None = None
        self._receivers: tuple[OnActivations, OnActivities, OnEnd] | None = None
        self._paused: set[WorkKind] = set()
        self._end: Shutdown | HandleBroken | None = None
        """Why it has ended without an engine."""
        self._broken: HandleBroken | None = None

    @property
    def queue(self) -> str:
        """The name of its task queue."""
        return self.config.task_queue

    def attach(self, engine: OpenEngine) -> None:
        """Attach the engine of this process, unless the handle is attached or has ended."""
        if not self.is_new:
            return
        self.engine = engine
        self._attach(engine.open_handle(self.config))

    def attach_remote(self, owner: OwnerConnection, handle: RemoteHandle) -> None:
        """Attach a handle on the owner's engine."""
        self.owner = owner
        if not self.is_new:  # shut down while it was being opened
            owner.send(wire.ShutDownHandle(handle.number))
            return
        self._attach(handle)

    def _attach(self, handle: EngineHandle | RemoteHandle) -> None:
        self._inner = handle
        self._start_inner()
        self._settle(None)

    def _start_inner(self) -> None:
        """Have the engine deliver, once there are both an engine and receivers."""
        if self._inner is None or self._receivers is None:
            return
        on_activations, on_activities, _ = self._receivers
        self._inner.start(on_activations, on_activities, self._ended)
        for kind in self._paused:
            self._inner.pause(kind)

    @property
    def is_new(self) -> bool:
        """Whether it has no engine yet, and may get one."""
        return self._inner is None and self._end is None

    def take_unfinished(self) -> tuple[list[ActivityResult], set[bytes]]:
        """Return the worker's results for the engine here since the last call, and its attempts."""
        if not isinstance(self._inner, EngineHandle) or self._inner.unconfirmed is None:
            return [], set()
        results, self._inner.unconfirmed = self._inner.unconfirmed, []
        return results, self._inner.attempts

    def wait_for(self, why: object) -> None:
        """Record why the owner cannot send work."""
        self.owner = why
        self._settle(None)

    def fail(self, error: HourglassError) -> None:
        """Break the handle: it can never work, or no longer."""
        self._settle(error)
        self._broken = HandleBroken(str(error))
        if self._inner is not None:
            self._inner.initiate_shutdown()
        elif self._end is None:
            self._end_without_engine(self._broken)

    def _settle(self, error: HourglassError | None) -> None:
        if self.settled.done():
            return
        if error is None:
            self.settled.set_result(None)
        else:
            self.settled.set_exception(error)
            self.settled.exception()  # read, for asyncio: the caller that opened it may have given up

    def _end_without_engine(self, why: Shutdown | HandleBroken) -> None:
        self._end = why
        if self._receivers is not None:
            asyncio.get_running_loop().call_soon(self._report_end)

    def _report_end(self) -> None:
        assert self._end is not None
        for kind in WorkKind:
            self._ended(kind, self._end)

    def _ended(self, kind: WorkKind, why: Exception) -> None:
        assert self._receivers is not None
        if isinstance(why, HandleBroken):
            self._died(self)
        elif self._broken is not None:
            why = self._broken
        self._receivers[2](kind, why)

    def start(self, on_activations: OnActivations, on_activities: OnActivities, on_end: OnEnd) -> None:
        """Begin to deliver, as soon as there is an engine."""
        self._receivers = on_activations, on_activities, on_end
        self._start_inner()
        if self._end is not None:
            asyncio.get_running_loop().call_soon(self._report_end)

    def pause(self, kind: WorkKind) -> None:
        """Take no new work of this kind."""
        self._paused.add(kind)
        if self._inner is not None:
            self._inner.pause(kind)

    def resume(self, kind: WorkKind) -> None:
        """Take new work of this kind again."""
        self._paused.discard(kind)
        if self._inner is not None:
            self._inner.resume(kind)

    def complete_workflow_task(
        self, completion: Completion
    ) -> CompletionResult | asyncio.Future[CompletionResult]:
        """Complete an activation."""
        return (self._inner or self._working()).complete_workflow_task(completion)

    def complete_activity(self, result: ActivityResult) -> asyncio.Future[None] | None:
        """Report the end of an attempt."""
        return (self._inner or self._working()).complete_activity(result)

    def heartbeat(self, token: bytes, details: Payloads) -> None:
        """Record a heartbeat of an attempt."""
        self._working().heartbeat(token, details)

    def request_eviction(self, run_id: str) -> None:
        """Request the eviction of a run."""
        self._working().request_eviction(run_id)

    def initiate_shutdown(self) -> None:
        """Stop receiving work. A handle without an engine ends at once."""
        if self._inner is not None:
            self._inner.initiate_shutdown()
        elif self._end is None:
            self._end_without_engine(Shutdown("the handle is shut down"))
            self._settle(HandleBroken("the handle was shut down before it worked"))

    async def finalize(self) -> None:
        """Close the handle. The file is released with this process's last handle."""
        self.initiate_shutdown()
        try:
            if self._inner is not None:
                await self._inner.finalize()
        finally:
            self._released(self)

    def _working(self) -> Handle:
        if self._inner is None:
            raise HandleBroken("this handle has no engine yet, so it has no work in progress")
        return self._inner
