"""One process's part in one file: its client, its owner, or one that works for its owner.

Must not know: how an engine works, what is said over the socket, how a request finds its engine (see `calls`).
A process wants to own a file while it has a handle open on it, and only then. Invariants: an engine is open here
only while the lock is ours, and is closed before the lock is dropped; there is no thread: the end of the owner's
connection is the sign to try for the lock; a file that fails again and again is opened less and less often, and where
it needs a person the clients that wait are told so.
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
from hourglass._embedded.clock import Bell
from hourglass._embedded.engine import EngineFigures
from hourglass._embedded.multiprocess import wire
from hourglass._embedded.multiprocess.calls import BUSY, LOOK, SHORTEST, CallRouter
from hourglass._embedded.multiprocess.open_engine import EngineClosed, OpenEngine
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
"""How long opening a handle waits for the file; after that it waits in its polls."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0
"""How long a file that has failed is left alone, in seconds: at first, and at most."""
FOREIGN = 0.2
"""How often, in seconds, an owner that speaks another version of the protocol is looked for."""
CLAIMS = 2.0
"""How long, in seconds, workers that outlived an owner have to find the next one and claim their attempts."""
TRIES = 3
"""So often in a row a file fails for a reason that only a person can mend before clients that ask are told."""
SOUND = 10.0
"""An engine that has worked for so many seconds has not failed in a row with the one before."""


class SharedFile:
    """See the module. Belongs to one event loop."""

    def __init__(self, opener: StoreOpener, path: str, namespace: str) -> None:
        self.path = path
        self.namespace = namespace
        self._opener = opener
        self.retention = DEFAULT_RETENTION
        """How long closed runs are kept, in seconds, whenever this process comes to own the file."""
        self.limits: Limits | None = None
        """The same for how large things may grow; None: as usual."""
        self.users = 0
        self._lock = FileLock(path)
        self._changed = Bell()
        self.calls = CallRouter(opener, path, namespace, self._changed)
        self.call = self.calls.call
        self.execute = self.calls.execute
        self._handles: set[FileHandle] = set()
        self._keeper: asyncio.Task[None] | None = None
        self._failures = 0
        self._identity: tuple[int, int] | None = None
        """Device and inode of the file that this process has worked on."""
        self._lost: FileLost | None = None
        """Why this process never opens the file again: it is not the one that it worked on."""
        self._not_before = 0.0
        self._former: OwnerConnection | None = None
        self._took_over = False
        self._wanted_until = 0.0
        self._survivors: list[dp.WorkerProcess] = []
        """The processes that worked for an earlier owner and may be alive, while this process, which owns the file now, waits
        for them to claim their attempts.
        """
        self._claimed: set[tuple[int, int]] = set()
        """Those of the survivors that have, by process id and PID namespace."""
        self._held: set[bytes] = set()
        """The attempts that this process has of owners before the one that it works for, or before itself."""
        self._results: dict[bytes, ActivityResult] = {}
        """Results that are not known to be durable, by token: for the next owner."""
        self._ended_identities: frozenset[str] = frozenset()
        """The identities of workers that ended with the last owner, or before."""
        self._claims: asyncio.TimerHandle | None = None
        self._ownerless_since = 0.0
        """Since when neither the lock nor its holder could be had; 0 while that is not so."""
        self._warned = False

    @property
    def standing(self) -> str:
        """This process's part, for people."""
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
        """Why this process's workers get no work from the owner, for people; empty where they do."""
        if self.calls.engine is not None or not self._handles:
            return ""
        owner = self.calls.owner
        if owner is not None and owner.is_open:
            if owner.responds:
                return ""
            return f"process {owner.welcome.pid}, which owns {self.path}, does not respond: it is stopped or hangs"
        waited = monotonic() - self._ownerless_since
        if not self._ownerless_since or waited < wire.SILENT_LOOKS:
            return ""
        return f"{self.path} is held by another process, which does not respond, for {waited:.0f} seconds"

    @property
    def processes(self) -> tuple[dp.WorkerProcess, ...]:
        """The processes that work on the file, as far as this one, which works on it, knows."""
        if self.calls.engine is not None:
            return self.calls.engine.processes()
        return () if self.calls.owner is None or not self.calls.owner.is_open else self.calls.owner.processes

    @property
    def condition(self) -> DiskCondition | None:
        """How it stands with the file and its disk, if this process owns it."""
        engine = self.calls.engine
        return None if engine is None else engine.condition

    @property
    def figures(self) -> EngineFigures | None:
        """How much there is to do, if this process owns the file."""
        engine = self.calls.engine
        return None if engine is None else engine.engine.figures

    # --- owning ---------------------------------------------------------------------------------------------

    async def open_handle(self, config: HandleConfig) -> FileHandle:
        """A handle that works as soon as the file is ours. Raises what the owner, or the file, refuses."""
        self._opener.check(self.path)
        self._check_file()
        handle = FileHandle(config, died=self._died, released=self._release)
        self._handles.add(handle)
        self._wanted_until = (
            0.0  # the worker is back: from here on its handles say whether the file is wanted
        )
        try:
            if self.calls.engine is not None:
                handle.attach(self.calls.engine)
            if self._keeper is None or self._keeper.done():
                self._keeper = asyncio.get_running_loop().create_task(self._own_while_wanted())
            self._changed.ring()
            await asyncio.wait({handle.settled}, timeout=SETTLE)
            if handle.settled.done():
                handle.settled.result()
            elif self._lock.held:
                _log.warning("%s takes long to open; this worker waits", self.path)
            else:
                _log.warning("%s is held by %s, who does not answer; waiting", self.path, self._holder())
        except BaseException:
            self._release(handle)
            raise
        return handle

    def _died(self, handle: FileHandle) -> None:
        self._collect(handle)
        self._changed.ring()

    def _collect(self, handle: FileHandle) -> None:
        """Keep what the worker of a handle on our engine still has, and its results that are not known to be durable."""
        results, attempts = handle.take_unfinished()
        self._results.update((result.token, result) for result in results)
        self._held |= attempts | {result.token for result in results}

    def _release(self, handle: FileHandle) -> None:
        self._collect(handle)
        self._handles.discard(handle)
        self._changed.ring()

    @property
    def _is_wanted(self) -> bool:
        """Whether this process has workers on the file, or will have them again in a moment: their handles broke with the
        owner, and others are being opened.
        """
        return bool(self._handles) or monotonic() < self._wanted_until

    async def _own_while_wanted(self) -> None:
        """While this process has a handle: own the file if its lock is free, else work for its owner."""
        pause = SHORTEST
        while self._is_wanted:
            try:
                left = self._not_before - monotonic()
                self._check_file()
                if left > 0:
                    await self._changed.wait(left)
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
        """Note that neither the lock nor its holder can be had; log it once when that has lasted long."""
        now = monotonic()
        self._ownerless_since = self._ownerless_since or now
        if now - self._ownerless_since > wire.SILENT_LOOKS and not self._warned:
            self._warned = True
            _log.warning(
                "%s is held by %s, which has not responded for %d seconds: it is stopped or hangs, and no work on the file "
                "proceeds until it runs again or ends",
                self.path,
                self._holder(),
                wire.SILENT_LOOKS,
            )

    async def _own(self) -> None:
        """Open the engine, serve this process's handles and other processes, until this process has no handle any
        more or it fails. The lock is ours.
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
        server = self._server_of(engine)
        try:
            await server.start()
            self.calls.own(engine)
            self._claim(engine, os.getpid(), pid_namespace(), self._held)
            self._end_kept(engine)
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
            # In this order: a process that takes the lock must find the file closed, and all that was queued in it.
            self.calls.engine = None
            server.stop_listening()
            for handle in self._handles:
                if handle.engine is engine:
                    self._collect(handle)
            engine.close()
            self._note_end(engine)
            if isinstance(engine.failed, FileLost):
                server.tell_lost(engine.failed)
            self._lock.drop()
            server.hang_up()  # last: its end tells processes with workers to try for the lock, which is free now
            self._changed.ring()
        if engine.failed is not None:
            if isinstance(engine.failed, FileLost):
                self._give_up(engine.failed)
            else:
                _log.error("the engine of %s ended and is opened anew: %s", self.path, engine.failed)
                self._failed(engine.failed)
            self._fail_all(engine.failed, of=engine)

    def _note_end(self, engine: OpenEngine) -> None:
        """Write down that this process is not the owner any more. If its engine failed, its attempts go on."""
        own = (os.getpid(), pid_namespace())
        others = [worker for worker in self._lock.workers if _key(worker) != own]
        if engine.failed is None:
            self._results.clear()  # they are durable
            self._lock.note_workers(others)
        else:
            ours = [worker for worker in self._lock.workers if _key(worker) == own]
            self._lock.note_workers(
                (*(msgspec.structs.replace(worker, is_owner=False) for worker in ours), *others)
            )

    def _claim(self, engine: OpenEngine, process_id: int, namespace: int, tokens: Collection[bytes]) -> None:
        """Keep the attempts that a process still has of the owner before. The others of its workers are lost: what it had
        returned, or had not received yet, is gone with that owner. Workers of several processes may have one identity: then the
        attempts wait until all these processes have claimed theirs, or their time is over.
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

    def _end_kept(self, engine: OpenEngine) -> None:
        """Give the engine the results that its process has kept since an earlier owner; forget them once they are durable."""
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
        kept = tuple(self._results)

        def forget() -> None:
            for token in kept:
                self._results.pop(token, None)

        if kept:
            engine.when_stored(forget)

    def _await_claims(self, engine: OpenEngine, since: float) -> None:
        """Wait for the processes that outlived the last owner to claim their attempts, as long as they live and at most
        `wire.SILENT_LOOKS` seconds; what they have not claimed by then is lost.
        """

        def look() -> None:
            waiting = any(
                _key(survivor) not in self._claimed and _may_run(survivor) for survivor in self._survivors
            )
            if waiting and monotonic() < since + wire.SILENT_LOOKS:
                self._await_claims(engine, since)
            else:
                self._survivors.clear()
                engine.engine.lose_unclaimed()

        self._claims = asyncio.get_running_loop().call_later(CLAIMS, look)

    def _server_of(self, engine: OpenEngine) -> OwnerServer:
        """What other processes reach the engine by."""
        return OwnerServer(
            OwnerInfo(
                path=self.path,
                namespace=self.namespace,
                pid=os.getpid(),
                since_ns=self._lock.since_ns,
                answer=partial(self._answer, engine.call),
                open_handle=engine.open_for_other,
                execute=partial(self._answer, engine.execute),
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
        """Let handles work as they come, and see every second that the lock and the socket are still ours."""
        began = looked = monotonic()
        while self._is_wanted and engine.failed is None:
            for handle in self._handles:
                handle.attach(engine)
            server.tell_processes()
            await self._changed.wait(LOOK)
            engine.check()
            if not self._lock.still_held():
                engine.fail(epoch_is_over(self.path))
                return
            await server.listen_again()
            if monotonic() >= looked + LOOK:
                looked = monotonic()
                self._confirm_results(engine)
                server.tell_alive()
                server.cut_off_silent()
            if self._failures and monotonic() > began + SOUND:
                self._failures, self.calls.broken = 0, None

    def _failed(self, error: StorageError) -> None:
        """The file has failed: it is left alone for a while, and clients that ask are told if that will not help."""
        self._failures += 1
        pause = min(FIRST_PAUSE * 2 ** min(self._failures - 1, 20), LONGEST_PAUSE)
        self._not_before = monotonic() + pause
        if self._failures >= TRIES and is_permanent(error):
            self.calls.broken = error

    def _check_file(self) -> None:
        """Raise `FileLost` if the file is not the one that this process has worked on, or its owner has found that it was
        overwritten.
        """
        if self._lost is None:
            self._look_for_loss()
        if self._lost is not None:
            self._wanted_until = 0.0  # opening handles again is refused
            raise FileLost(str(self._lost), status=self._lost.status)

    def _look_for_loss(self) -> None:
        if self._former is not None and self._former.file_lost:
            why = f"the process that owned {self.path} found that {self._former.file_lost}"
        elif self._identity is not None and _identity(self.path) != self._identity:
            why = (
                f"the file {self.path} was replaced or moved away while this process worked on it. This process has stopped and "
                f"does not open it again. Put the file that is wanted at {self.path}, and restart all workers"
            )
        else:
            return
        self._give_up(FileLost(why, status="DATA_LOSS"))

    def _give_up(self, error: FileLost) -> None:
        """Never open the file again: all workers and calls of this process are told why."""
        self._lost = self.calls.broken = error
        _log.error("%s", error)

    async def _answer(self, call: Callable[[Any], Awaitable[Any]], request: s.Request[Any]) -> Any:
        """Answer another process."""
        try:
            return await call(request)
        except EngineClosed:
            self.calls.check_sound()
            raise

    def _fail_all(self, error: HourglassError, of: OpenEngine | None = None) -> None:
        for handle in tuple(self._handles):
            if of is None or handle.engine is of:
                handle.fail(error)
                self._handles.discard(handle)

    # --- working for another process ------------------------------------------------------------------------

    async def _work_for_owner(self) -> bool:
        """Have the owner send this process's handles their share of the work, until it ends, or something changes here;
        False if there is none to be reached.
        """
        try:
            owner = await self.calls.reach()
        except ForeignProtocol as error:
            for handle in self._handles:
                if handle.owner is None:
                    _log.warning("this worker waits for %s: %s", self.path, error)
                    handle.wait_for(error)
            await self._changed.wait(FOREIGN)  # nothing tells of its end
            return False
        if owner is None:
            return False
        if owner is not self._former:
            self._leave_owner()
            self._former = owner
            self._identity = self._identity or _identity(self.path)
            owner.tell(wire.Holding(tuple(self._held)))
            results, self._results = self._results, {}
            owner.resend(results)
        try:
            for handle in tuple(self._handles):
                await self._open_at(owner, handle)
        except ConnectionLost:
            return True
        await _first(owner.lost.wait(), self._changed.wait(LOOK))
        if owner.is_open and self._lock.is_abandoned(owner.welcome.since_ns):
            owner.close()
        return True

    def _leave_owner(self) -> None:
        """The owner that this process worked for has ended: what is known of it, and of the others that worked for it."""
        former, self._former = self._former, None
        if former is not None:
            self._took_over = True
            self._wanted_until = monotonic() + LOOK
            self._held |= former.held
            self._results.update(former.unconfirmed)

    def _find_survivors(self) -> None:
        """Find out which processes that worked for an earlier owner may still run. The lock is ours."""
        others = [worker for worker in self._lock.workers if not worker.is_owner]
        self._survivors = [worker for worker in others if _may_run(worker)]
        self._claimed.clear()
        ended = (worker for worker in self._lock.workers if worker not in self._survivors)
        self._ended_identities = frozenset().union(*(worker.identities for worker in ended))

    def _note_processes(self, processes: tuple[dp.WorkerProcess, ...]) -> None:
        """Write down which processes the next owner must wait for."""
        listed = {_key(process) for process in processes}
        self._lock.note_workers(
            (*processes, *(survivor for survivor in self._survivors if _key(survivor) not in listed))
        )

    def _owner_lives(self) -> bool:
        """Whether another process owns the file, as far as the connection to it and the lock tell."""
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

    # --- the end --------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Let go of everything, in order."""
        for handle in tuple(self._handles):
            await handle.finalize()
        if not self._results and (self._former is None or not self._former.unconfirmed):
            self._wanted_until = 0.0  # else the next owner gets them first, if it comes soon
        self._changed.ring()
        if self._keeper is not None:
            await asyncio.wait({self._keeper})
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
    tasks = [asyncio.ensure_future(each) for each in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def _clock(since_ns: int) -> str:
    return strftime("%Y-%m-%d %H:%M:%S", localtime(since_ns / 1e9))


# --- a worker's handle --------------------------------------------------------------------------------------


class FileHandle:
    """A worker's handle on a file: the handle of the engine here, or of the engine in the process that owns the file, as
    soon as there is one. Implements `hourglass._contract.handle.Handle`.

    Must not know: locks, sockets. Until it has an engine it delivers nothing. Invariants: it is attached to one engine in
    its life; when that engine or its process ends, or when it can never have one, it ends with `HandleBroken` and the
    worker's tree opens another.
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
        """Done once it works, or knows what it waits for; fails with what it is refused with."""
        self.owner: object = None
        """The connection over which it works, or what it waits for."""
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
        """The queue it serves, or would."""
        return self.config.task_queue

    def attach(self, engine: OpenEngine) -> None:
        """The file is ours: begin to work, unless it does already or is over."""
        if not self.is_new:
            return
        self.engine = engine
        self._attach(engine.open_handle(self.config))

    def attach_remote(self, owner: OwnerConnection, handle: RemoteHandle) -> None:
        """Another process owns the file, and sends us work."""
        self.owner = owner
        if not self.is_new:  # shut down meanwhile
            owner.tell(wire.ShutDownHandle(handle.number))
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
        """Whether it has no engine yet, and may have one."""
        return self._inner is None and self._end is None

    def take_unfinished(self) -> tuple[list[ActivityResult], set[bytes]]:
        """Return the results that its worker gave to the engine here since the last call, and the attempts that it has."""
        if not isinstance(self._inner, EngineHandle) or self._inner.unconfirmed is None:
            return [], set()
        results, self._inner.unconfirmed = self._inner.unconfirmed, []
        return results, self._inner.attempts

    def wait_for(self, why: object) -> None:
        """Another process owns the file, and cannot give us work."""
        self.owner = why
        self._settle(None)

    def fail(self, error: HourglassError) -> None:
        """It can never work, or does not any more."""
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
        """Report that an attempt lives."""
        self._working().heartbeat(token, details)

    def request_eviction(self, run_id: str) -> None:
        """Ask that a run be evicted."""
        self._working().request_eviction(run_id)

    def initiate_shutdown(self) -> None:
        """Take no new work; one that has no engine yet ends at once."""
        if self._inner is not None:
            self._inner.initiate_shutdown()
        elif self._end is None:
            self._end_without_engine(Shutdown("the handle is shut down"))
            self._settle(HandleBroken("the handle was shut down before it worked"))

    async def finalize(self) -> None:
        """Free everything: the file is ours no longer if this was its last handle."""
        self.initiate_shutdown()
        try:
            if self._inner is not None:
                await self._inner.finalize()
        finally:
            self._released(self)

    def _working(self) -> Handle:
        if self._inner is None:
            raise HandleBroken("this handle has no engine yet and has given nothing out")
        return self._inner
