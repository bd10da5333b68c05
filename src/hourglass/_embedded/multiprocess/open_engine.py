"""An engine over a file that is open in this process, as the owner of the file or for one transaction without an owner.

Must not know: locks, sockets, which process may open the file, which kind of store it is.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
from collections.abc import Callable

from hourglass._contract.engine_status import EngineStatus, WorkerProcess
from hourglass._contract.handle import HandleConfig
from hourglass._embedded.activations.handle import EngineHandle
from hourglass._embedded.engine import Engine
from hourglass._embedded.matching.pollers import HostProcess, QueuePoller
from hourglass._embedded.multiprocess.unix_socket import pid_namespace
from hourglass._embedded.runs.upkeep import DEFAULT_RETENTION
from hourglass._embedded.store.store import Store, StoreOpener, Unwritable
from hourglass._embedded.transitions.size_limits import Limits
from hourglass.errors import StorageError


class OpenEngine:
    """An open engine and its store. `read_only`: the engine answers only requests that read. Belongs to one event loop."""

    def __init__(self, engine: Engine, *, read_only: bool = False) -> None:
        self.engine = engine
        self.read_only = read_only

    @staticmethod
    async def open(
        opener: StoreOpener,
        path: str,
        namespace: str,
        retention: float = DEFAULT_RETENTION,
        *,
        limits: Limits | None = None,
        took_over: bool = False,
        living: frozenset[str] = frozenset(),
    ) -> OpenEngine:
        """Open the file and recover the runs. Raises `StorageError`."""
        store = await _open_store(opener, path, namespace)
        try:
            engine = Engine(store=store, namespace=namespace, retention=retention, limits=limits)
        except BaseException:
            store.close()
            raise
        try:
            await engine.open_existing(took_over=took_over, living=living)
        except BaseException:
            engine.close()
            raise
        return OpenEngine(engine)

    def status(self) -> EngineStatus:
        return EngineStatus(
            role="owner",
            processes=self.processes(),
            disk=self.engine.store.condition(),
            figures=self.engine.figures,
        )

    @property
    def failed(self) -> StorageError | None:
        """The error for which the engine must be reopened; None while the engine works."""
        return self.engine.failed

    def check(self) -> None:
        """Detect a failure of the store, even if no call waits for it."""
        try:
            self.engine.store.next_due_ns()
        except StorageError as error:
            self.engine.stop_if_unreadable(error)

    def when_stored(self, then: Callable[[], object]) -> None:
        """Call `then` once all changes made so far are durable. `then` is never called if the engine ends first."""
        if self.engine.is_over:
            return

        def stored(error: StorageError | None) -> None:
            # A change that can never be written need not be sent again.
            if error is None or isinstance(error, Unwritable):
                then()

        self.engine.outbox.stage(self.engine.writes.newest, stored)

    def open_handle(self, config: HandleConfig) -> EngineHandle:
        """Open a handle for a worker of this process. The handle collects results until they are durable."""
        process = HostProcess(os.getpid(), pid_namespace())
        return EngineHandle(self.engine, config, process=process, collects_results=True)

    def open_for_other(
        self, process_id: int, pid_namespace: int, process_key: int, config: HandleConfig
    ) -> EngineHandle:
        return EngineHandle(self.engine, config, process=HostProcess(process_id, pid_namespace, process_key))

    def processes(self) -> tuple[WorkerProcess, ...]:
        """Return the processes that work on the file, this process first."""
        by_process: dict[tuple[bool, int, int], list[QueuePoller]] = {}
        for poller in self.engine.queues.pollers.all():
            key = (poller.process.key != 0, poller.process.id, poller.process.key)
            by_process.setdefault(key, []).append(poller)
        return tuple(
            WorkerProcess(
                process_id=process_id,
                pid_namespace=pollers[0].process.namespace,
                identities=tuple(sorted({poller.identity for poller in pollers})),
                is_owner=not is_other,
                task_queues=tuple(sorted({poller.task_queue for poller in pollers})),
                tasks=sum(len(poller.active_runs) for poller in pollers),
                attempts=sum(len(poller.attempts) for poller in pollers),
            )
            for (is_other, process_id, _), pollers in sorted(by_process.items(), key=lambda item: item[0])
        )

    def set_handicap(self, handicap: float) -> None:
        """Set the weight of work in the engine's process, relative to work in other processes."""
        self.engine.queues.pollers.handicap = handicap

    def close(self) -> None:
        """Write queued changes, close the file, and end all calls with `EngineClosed`. Safe to call twice."""
        self.engine.close()


async def _open_store(opener: StoreOpener, path: str, namespace: str) -> Store:
    """Open the store on a thread, because after a crash it may first have to recover a long WAL."""
    opening = concurrent.futures.Future[Store]()

    def work() -> None:
        try:
            opening.set_result(opener.open(path, namespace))
        except BaseException as error:
            opening.set_exception(error)

    # The threads of the loop's executor are daemons: a file system that hangs must not keep the process from exiting.
    asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(asyncio.wrap_future(opening))
    except asyncio.CancelledError:
        # The caller then releases the lock, and the file must be closed before that.
        if opening.exception() is None:
            opening.result().close()
        raise
