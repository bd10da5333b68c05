"""One term of this process as the owner of a file: from the opening of the engine to the release of the lock.

Must not know: when the file is needed, how often a failed file is reopened (see `shared_file`). Invariants: an engine
is open only while this process has the lock; a process that gets the lock next finds the file closed, with all queued
changes in it; attempts of processes that survived the last owner are lost only if they are not claimed in time.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Collection, Iterable
from time import monotonic
from typing import Any

import msgspec

from hourglass._contract import service as s
from hourglass._contract.engine_status import WorkerProcess
from hourglass._embedded.api.answering import EngineClosed
from hourglass._embedded.api.requests import answer
from hourglass._embedded.multiprocess import wire
from hourglass._embedded.multiprocess.calls import CHECK_INTERVAL
from hourglass._embedded.multiprocess.file_context import FileContext
from hourglass._embedded.multiprocess.open_engine import OpenEngine
from hourglass._embedded.multiprocess.ownership import FileLock
from hourglass._embedded.multiprocess.serving import OwnerInfo, OwnerServer
from hourglass._embedded.multiprocess.unix_socket import may_run, pid_namespace
from hourglass._embedded.store.store import FileLost, StoreOpener, epoch_is_over
from hourglass._embedded.transitions.size_limits import Limits

_log = logging.getLogger("hourglass.embedded")

CLAIMS = 2.0
"""Seconds between two checks whether surviving processes have claimed their attempts from a new owner."""

ProcessKey = tuple[int, int]
"""The identity of a process: its id and PID namespace."""


class Claims:
    """The attempts that processes have from earlier owners, and claim from this owner.

    `_survivors` are the processes that worked for an earlier owner and may be alive. Their claims are awaited while
    they are alive, for at most `wire.SILENT_CHECKS` seconds; unclaimed attempts are then lost.
    """

    def __init__(self, lock: FileLock) -> None:
        """Determine which processes that worked for an earlier owner may still run. The caller must have the lock."""
        candidates = [worker for worker in lock.workers if not worker.is_owner]
        self._survivors = [worker for worker in candidates if _may_run(worker)]
        self._claimed: set[ProcessKey] = set()
        ended = (worker for worker in lock.workers if worker not in self._survivors)
        self._ended_identities = _identities(ended)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def living_identities(self) -> frozenset[str]:
        """The identities of workers that may be alive."""
        return _identities(self._survivors)

    def add(self, engine: OpenEngine, process: ProcessKey, tokens: Collection[bytes]) -> None:
        """Keep the attempts that a process has from an earlier owner. All other attempts of its workers are lost.

        The lost attempts are those that the process had already returned, or not yet received. If workers of several
        processes share an identity, their attempts are lost only when all these processes have claimed theirs, or the
        time for claims is over.
        """
        engine.engine.claim(tokens)
        claimants = [survivor for survivor in self._survivors if _key(survivor) == process]
        if len(claimants) == 1 and process not in self._claimed:
            self._claimed.add(process)
            waiting = (survivor for survivor in self._survivors if _key(survivor) not in self._claimed)
            complete = frozenset(claimants[0].identities) - _identities(waiting)
            engine.engine.lose_unclaimed(complete, alive=complete - self._ended_identities)

    def wait(self, engine: OpenEngine) -> None:
        self._wait(engine, monotonic() + wire.SILENT_CHECKS)

    def _wait(self, engine: OpenEngine, until: float) -> None:
        def check() -> None:
            is_waiting = any(
                _key(survivor) not in self._claimed and _may_run(survivor) for survivor in self._survivors
            )
            if is_waiting and monotonic() < until:
                self._wait(engine, until)
            else:
                self._survivors.clear()
                engine.engine.lose_unclaimed()

        self._timer = asyncio.get_running_loop().call_later(CLAIMS, check)

    def awaited(self, listed: Iterable[WorkerProcess]) -> list[WorkerProcess]:
        """Return the survivors that are not in this list of processes."""
        keys = {_key(process) for process in listed}
        return [survivor for survivor in self._survivors if _key(survivor) not in keys]

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class OwnerTerm:
    """One term of this process as the owner of a file.

    Call `open`, `begin`, then `turn` while `works` is true. Always call `end` if `open` has succeeded.
    """

    def __init__(self, file: FileContext, *, took_over: bool) -> None:
        """`took_over`: this process worked for the last owner. The caller must have the lock."""
        self._file = file
        self._took_over = took_over
        self._claims = Claims(file.lock)
        self.engine: OpenEngine
        self._server: OwnerServer
        self._checked_at = 0.0

    async def open(self, opener: StoreOpener, retention: float, limits: Limits | None) -> None:
        """Open the engine. Raises `StorageError`."""
        file = self._file
        self.engine = await OpenEngine.open(
            opener,
            file.path,
            file.namespace,
            retention,
            limits=limits,
            took_over=self._took_over,
            living=self._claims.living_identities,
        )
        self._server = OwnerServer(self._owner_info())

    def _owner_info(self) -> OwnerInfo:
        file, engine = self._file, self.engine
        return OwnerInfo(
            path=file.path,
            namespace=file.namespace,
            pid=os.getpid(),
            since_ns=file.lock.since_ns,
            answer=self._answer,
            open_handle=engine.open_for_other,
            claim=lambda process_id, namespace, tokens: self._claims.add(
                engine, (process_id, namespace), tokens
            ),
            lose_attempts=engine.engine.lose_attempts,
            end_attempt=engine.engine.end_attempt,
            when_stored=engine.when_stored,
            processes=engine.processes,
            note_processes=self._note_processes,
            set_handicap=engine.set_handicap,
        )

    async def begin(self) -> None:
        """Begin to serve this process's handles and the other processes."""
        file, engine = self._file, self.engine
        await self._server.start()
        file.calls.own(engine)
        self._claims.add(engine, (os.getpid(), pid_namespace()), file.kept_work.unsettled)
        for result in file.kept_work.results:
            engine.engine.end_attempt(result)
        file.kept_work.forget_when_stored(engine)
        self._claims.wait(engine)
        _log.log(
            logging.WARNING if self._took_over else logging.INFO,
            "this process %s %s (queues: %s)",
            "took over" if self._took_over else "owns",
            file.path,
            ", ".join(sorted({handle.queue for handle in file.handles})),
        )
        file.changed.ring()
        file.identity.note()
        self._checked_at = monotonic()

    @property
    def works(self) -> bool:
        return self.engine.failed is None

    async def turn(self) -> None:
        """Attach new handles, wait for a change, and check about once a second that the lock and the socket are still ours."""
        file, engine, server = self._file, self.engine, self._server
        for handle in file.handles:
            handle.attach(engine)
        server.send_processes()
        await file.changed.wait(CHECK_INTERVAL)
        engine.check()
        if not file.lock.still_held():
            engine.engine.fail(epoch_is_over(file.path))
            return
        await server.listen_again()
        if monotonic() >= self._checked_at + CHECK_INTERVAL:
            self._checked_at = monotonic()
            for handle in file.handles:
                if handle.engine is engine:
                    file.kept_work.collect(handle, with_attempts=False)
            file.kept_work.forget_when_stored(engine)
            server.send_alive()
            server.disconnect_silent()

    def end(self) -> None:
        """Close the engine, release the lock, and disconnect the other processes."""
        file, engine, server = self._file, self.engine, self._server
        self._claims.stop()
        # In this order: a process that gets the lock must find the file closed, with all queued changes in it.
        file.calls.engine = None
        server.stop_listening()
        for handle in file.handles:
            if handle.engine is engine:
                file.kept_work.collect(handle)
        engine.close()
        self._record_end()
        if isinstance(engine.failed, FileLost):
            server.send_file_lost(engine.failed)
        file.lock.drop()
        server.disconnect_all()  # last: disconnected processes try to acquire the lock, which is free now
        file.changed.ring()

    def _record_end(self) -> None:
        """Record that this process is no longer the owner. If its engine failed, its attempts continue."""
        lock, own = self._file.lock, (os.getpid(), pid_namespace())
        peers = [worker for worker in lock.workers if _key(worker) != own]
        if self.engine.failed is None:
            self._file.kept_work.take_results()  # all results are durable
            lock.note_workers(peers)
        else:
            ours = [worker for worker in lock.workers if _key(worker) == own]
            lock.note_workers((*(msgspec.structs.replace(worker, is_owner=False) for worker in ours), *peers))

    def _note_processes(self, processes: tuple[WorkerProcess, ...]) -> None:
        """Record in the lock's note the processes for which the next owner must wait."""
        self._file.lock.note_workers((*processes, *self._claims.awaited(processes)))

    async def _answer(self, request: s.Request[Any]) -> Any:
        """Answer a request of another process."""
        try:
            return await answer(self.engine.engine, request)
        except EngineClosed:
            self._file.calls.check_sound()
            raise


def _may_run(process: WorkerProcess) -> bool:
    return may_run(process.process_id, process.pid_namespace)


def _key(process: WorkerProcess) -> ProcessKey:
    return process.process_id, process.pid_namespace


def _identities(workers: Iterable[WorkerProcess]) -> frozenset[str]:
    return frozenset().union(*(worker.identities for worker in workers))
