"""The asynchronous face of an environment: the same names, awaited. The environment itself lives in a thread.

The threads are kept for the next environment: the thread of an asynchronous environment serves no other until that
one has closed, because the fibers of its runs cannot leave it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, TypeVarTuple, Unpack, overload

from hourglass._engine.options import Duration
from hourglass._forks import ForkStage, at_fork
from hourglass.client import AsyncClient, AsyncWorkflowHandle
from hourglass.client._options import StartOptions
from hourglass.errors import UsageError
from hourglass.testing._attempts import span
from hourglass.testing._explore.explorer import Exploration
from hourglass.testing._explore.possible import Arrival
from hourglass.testing._fixture import EnvironmentBase, Fixture, FixtureSettings

if TYPE_CHECKING:
    from hourglass.testing._environment import Environment

R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class ExploreOptions(TypedDict, total=False):
    """What `explore` can be told; `Environment.explore` says what it means."""

    runs: int
    seed: int | None
    check: Callable[[Any, Environment], object] | None
    invariant: Callable[[Environment], object] | None
    allowed: type[BaseException] | str | Sequence[type[BaseException] | str] | None
    arrivals: Sequence[Arrival]
    prepare: Callable[[Environment], object] | None
    crashes: bool
    failures: bool
    timeouts: bool
    redeliveries: bool
    story: str | None
    options: StartOptions | None


class RunnerThread:
    """A daemon thread that does one thing after another."""

    def __init__(self) -> None:
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        threading.Thread(target=self._run, name="hourglass-test", daemon=True).start()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Do something there, in its turn."""
        future: Future[T] = Future()
        self._work.put((future, work))
        return future

    def _run(self) -> None:
        while True:
            future, work = self._work.get()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as error:
                    future.set_exception(error)
            del future, work


_idle: list[RunnerThread] = []
_lock = threading.Lock()


def _borrow() -> RunnerThread:
    with _lock:
        return _idle.pop() if _idle else RunnerThread()


def _give_back(runner: RunnerThread) -> None:
    with _lock:
        _idle.append(runner)


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _idle.clear()


at_fork(ForkStage.TESTING, in_child=_after_fork)


class AsyncEnvironment(EnvironmentBase):
    """Workflows on virtual time, for an `async def` test. Made by `async with Environment(…) as env:`."""

    def __init__(self, setting: FixtureSettings) -> None:
        self._setting = setting
        self._opened = None
        self._runner: RunnerThread | None = None

    def open(self) -> AsyncEnvironment:
        """Begin, in a moment and without awaiting; `async with` does it."""
        if self._opened is not None:
            raise UsageError("this Environment was opened before: make another")
        self._runner = runner = _borrow()
        self._opened = runner.submit(lambda: Fixture(self._setting, runner)).result()
        return self

    def close(self) -> None:
        """End. Runs that are still open are executed a second time, and left as they are. Can be repeated. Raises
        `WorkflowParked` if one of them did something else the second time.
        """
        runner, self._runner = self._runner, None
        if runner is not None:
            try:
                if self._opened is not None:
                    self._opened.driver.interrupt()
                    runner.submit(self._opened.close).result()
            finally:
                _give_back(runner)

    @property
    def client(self) -> AsyncClient:
        """A client of the environment, for everything else that a client can do."""
        return AsyncClient(self._fixture.session)

    # --- workflows ------------------------------------------------------------------------------------------

    @overload
    async def start_workflow(
        self, workflow: str, /, *args: Any, result_type: Any = None, **options: Unpack[StartOptions]
    ) -> AsyncWorkflowHandle[Any]: ...
    @overload
    async def start_workflow(
        self, workflow: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[StartOptions]
    ) -> AsyncWorkflowHandle[R]: ...
    async def start_workflow(self, workflow: Any, /, *args: Any, **options: Any) -> Any:  # type: ignore[misc]
        """Start a workflow and get a handle to it, as from a client. All happens that takes no time."""
        self._check_open()
        self._fixture.driver.registry.meet_workflow(workflow)
        return await self.client.start_workflow(workflow, *args, **options)

    @overload
    async def execute_workflow(
        self, workflow: str, /, *args: Any, result_type: Any = None, **options: Unpack[StartOptions]
    ) -> Any: ...
    @overload
    async def execute_workflow(
        self, workflow: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[StartOptions]
    ) -> R: ...
    async def execute_workflow(self, workflow: Any, /, *args: Any, **options: Any) -> Any:  # type: ignore[misc]
        """Start a workflow and wait for its result; time passes as it needs to."""
        handle = await self.start_workflow(workflow, *args, **options)
        return await handle.result()

    # --- many orders ----------------------------------------------------------------------------------------

    async def explore(
        self, workflow: Callable[[*Ts], Any], /, *args: *Ts, **options: Unpack[ExploreOptions]
    ) -> Exploration:
        """Run a workflow under many orders of events and mishaps, as `Environment.explore` does, with its options.

        It happens in this environment's thread: `check`, `invariant` and `prepare` are plain functions, and get a
        blocking environment.
        """
        from hourglass.testing._environment import face

        self._check_open()
        blocking = face(self._setting, self._fixture)
        return await self._fixture.session.in_thread(lambda: blocking.explore(workflow, *args, **options))

    # --- time -----------------------------------------------------------------------------------------------

    async def skip(
        self,
        duration: Duration | None = None,
        /,
        *,
        weeks: float = 0,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
    ) -> None:
        """Let so much virtual time pass, and all happen that is due on the way."""
        self._check_open()
        driver = self._fixture.driver
        length = span(duration, weeks, days, hours, minutes, seconds)
        await self._fixture.session.in_thread(lambda: driver.skip_to(driver.clock.now_ns() + length))

    async def crash(self) -> None:
        """Lose what a worker holds, as if its process had been killed: runs are rebuilt from their histories."""
        self._check_open()
        await self._fixture.session.in_thread(self._fixture.driver.crash)

    def _check_open(self) -> None:
        if self._fixture.driver.closed:
            raise UsageError("this Environment is closed: what happens in it happens inside its `with` block")
