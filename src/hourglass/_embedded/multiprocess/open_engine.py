"""An engine over a file, open in this process (`OpenEngine`), and the calls that are under way on it, which can be
ended together from outside, each with an error instead of a cancellation (`Interruption`).

Must not know: locks, sockets, which process may open the file, which kind of store it is. Invariant: when it closes or
fails, every call that waits on it ends with `EngineClosed`, so that its caller can ask elsewhere.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar

from hourglass._contract.deployments import WorkerProcess
from hourglass._contract.handle import HandleConfig
from hourglass._contract.service import Request
from hourglass._contract.workflows import Executed, StartWorkflow
from hourglass._embedded.activations.handle import EngineHandle
from hourglass._embedded.api.requests import answer, execute
from hourglass._embedded.engine import Engine
from hourglass._embedded.matching.task_queues import QueuePoller
from hourglass._embedded.multiprocess.unix_socket import pid_namespace
from hourglass._embedded.runs.upkeep import DEFAULT_RETENTION
from hourglass._embedded.store.store import DiskCondition, Store, StoreOpener, Unwritable
from hourglass._embedded.transitions.size_limits import Limits
from hourglass.errors import HourglassError, StorageError

A = TypeVar("A")
P = ParamSpec("P")


class EngineClosed(HourglassError):
    """The engine was closed before it answered: the same request can be asked elsewhere."""


class Interruption:
    """The calls that are under way, until their end. Belongs to one event loop.

    As `asyncio.timeout` does it: the tasks that wait are cancelled, and the cancellation becomes the error where it
    leaves the call, unless another caller cancelled the task, too.
    """

    def __init__(self, error: Callable[[], HourglassError]) -> None:
        self._error = error
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ended = False

    @property
    def ended(self) -> bool:
        """Whether it is over."""
        return self._ended

    async def run(self, call: Callable[P, Awaitable[A]], *args: P.args, **kwargs: P.kwargs) -> A:
        """Await a call, until `end`. Raises the error from then on."""
        if self._ended:
            raise self._error()
        task = asyncio.current_task()
        if task is None or task in self._tasks:  # a call within a call ends with the outer one
            return await call(*args, **kwargs)
        self._tasks.add(task)
        before = task.cancelling()
        try:
            return await call(*args, **kwargs)
        except asyncio.CancelledError:
            if self.ended and task.uncancel() <= before:  # `end` alone has cancelled it
                raise self._error() from None
            raise
        finally:
            self._tasks.discard(task)

    def end(self) -> None:
        """End all calls, and refuse new ones. Safe to call twice."""
        if not self._ended:
            self._ended = True
            for task in tuple(self._tasks):
                task.cancel()


class OpenEngine:
    """See the module. `read_only`: it answers only what changes nothing. Belongs to one event loop."""

    def __init__(self, engine: Engine, *, read_only: bool = False) -> None:
        self.engine = engine
        self.read_only = read_only
        self._calls = Interruption(lambda: EngineClosed("the engine was closed"))

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
        """Open the file to work on all of it: what was in flight is taken up. Raises `StorageError`."""
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

    @property
    def condition(self) -> DiskCondition | None:
        """How it stands with the file and its disk; None where that is not known."""
        return self.engine.store.condition()

    @property
    def failed(self) -> StorageError | None:
        """Why it must be opened anew; None while it works."""
        return self.engine.failed

    async def call(self, request: Request[A]) -> A:
        """Ask the engine. Raises `EngineClosed` if it is closed meanwhile, or dies of it."""
        try:
            return await self._calls.run(answer, self.engine, request)
        except StorageError:
            if self.engine.failed is not None:
                raise EngineClosed("the engine failed") from None
            raise

    async def execute(self, request: StartWorkflow) -> Executed:
        """Start a workflow and wait for its end. Raises as `call` does."""
        try:
            return await self._calls.run(execute, self.engine, request)
        except StorageError:
            if self.engine.failed is not None:
                raise EngineClosed("the engine failed") from None
            raise

    def check(self) -> None:
        """Notice that the store has failed, also if no call waits for it."""
        try:
            self.engine.store.next_due_ns()
        except StorageError as error:
            self.engine.doubt(error)

    def when_stored(self, then: Callable[[], object]) -> None:
        """Call `then` once all that has happened until now is durable; never if the engine ends before."""
        if self.engine.is_over:
            return

        def stored(error: StorageError | None) -> None:
            # A change that can never be written need not be sent again.
            if error is None or isinstance(error, Unwritable):
                then()

        self.engine.outbox.stage(self.engine.writes.newest, stored)

    def fail(self, error: StorageError) -> None:
        """The file is not ours any more: nothing is written from now on."""
        self.engine.die(error)

    def open_handle(self, config: HandleConfig) -> EngineHandle:
        """A handle on the engine, for a worker of this process, which collects results until they are durable."""
        handle = EngineHandle(self.engine, config, pid_namespace=pid_namespace())
        handle.unconfirmed = []
        return handle

    def open_for_other(
        self, process_id: int, pid_namespace: int, process_key: int, config: HandleConfig
    ) -> EngineHandle:
        """A handle on the engine, for a worker of another process."""
        return EngineHandle(
            self.engine, config, process_id=process_id, pid_namespace=pid_namespace, process_key=process_key
        )

    def processes(self) -> tuple[WorkerProcess, ...]:
        """The processes that work on the file, this one first."""
        by_process: dict[tuple[bool, int, int], list[QueuePoller]] = {}
        for poller in self.engine.queues.all_pollers():
            key = (poller.process_key != 0, poller.process_id, poller.process_key)
            by_process.setdefault(key, []).append(poller)
        return tuple(
            WorkerProcess(
                process_id=process_id,
                pid_namespace=pollers[0].pid_namespace,
                identities=tuple(sorted({poller.identity for poller in pollers})),
                is_owner=not is_other,
                task_queues=tuple(sorted({poller.task_queue for poller in pollers})),
                tasks=sum(poller.slots_used[0] for poller in pollers),
                attempts=sum(poller.slots_used[1] for poller in pollers),
            )
            for (is_other, process_id, _), pollers in sorted(by_process.items(), key=lambda each: each[0])
        )

    def weigh(self, handicap: float) -> None:
        """So much heavier work weighs in this process, beside the engine, than in others."""
        self.engine.queues.handicap = handicap

    def close(self) -> None:
        """Write what is queued, close the file, and end the calls. Safe to call twice."""
        if not self._calls.ended:
            self._calls.end()
            self.engine.close()


async def _open_store(opener: StoreOpener, path: str, namespace: str) -> Store:
    """In a thread: after a crash there may be a log to be read."""
    opening = concurrent.futures.Future[Store]()

    def work() -> None:
        try:
            opening.set_result(opener.open(path, namespace))
        except BaseException as error:
            opening.set_exception(error)

    asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(asyncio.wrap_future(opening))
    except asyncio.CancelledError:
        # The lock is dropped when we return: until then the file must be closed.
        if opening.exception() is None:
            opening.result().close()
        raise
