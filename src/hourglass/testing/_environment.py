"""`Environment`: workflows in a test, in this process and this thread, on virtual time. `AsyncEnvironment` is the same, awaited.

    with Environment() as env:
        env.fake(charge, returns="c-1")
        assert env.execute_workflow(checkout, order) == "c-1"
        assert env.calls(charge) == [call("o-1", 1200)]

The engine, the evaluator, the converters and the calls of activities are those of production. What is missing is
what would make a test slow or chancy: real time, and threads for workflow code.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from types import TracebackType
from typing import Any, TypedDict, TypeVar, TypeVarTuple, Unpack, overload

from hourglass._evaluator.options import Duration
from hourglass._forks import ForkStage, at_fork
from hourglass.client import AsyncClient, AsyncWorkflowHandle, Client, WorkflowHandle
from hourglass.client._options import StartOptions
from hourglass.errors import UsageError, WorkflowParked
from hourglass.testing._explore.choices import chosen_sorts
from hourglass.testing._explore.explorer import Exploration, ExplorationPlan, explore, replay, start_options
from hourglass.testing._explore.possible import Arrival, checked_arrivals
from hourglass.testing._explore.properties import Properties, checked_allowed
from hourglass.testing._fixture import EnvironmentBase, Fixture, FixtureSettings
from hourglass.testing._virtual_time import span


class Environment(EnvironmentBase):
    """Workflows on virtual time, for a test: `with Environment() as env:`, or `async with`.

    Workflows and activities need no list: what is called as a decorated object is found. `workflows`, `activities`
    and `modules` are for what is called by name, and for instances whose methods are activities. With
    `real_activities=False` an activity without a fake is an error. `verify` and `watch` are a Worker's, and on.
    Time begins at `start`, moves only while the test waits in the environment, and not past `horizon`. Workflow code
    that runs for `deadlock_timeout` of real time without waiting is interrupted.
    """

    _asynchronous: AsyncEnvironment | None = None

    def open(self) -> Environment:
        """Begin; `with` does it."""
        if self._opened is not None or self._asynchronous is not None:
            raise UsageError("this Environment was opened before: make another")
        self._opened = Fixture(self._setting)
        return self

    def close(self) -> None:
        """End. Runs that are still open are executed a second time, and left as they are. Can be repeated. Raises
        `WorkflowParked` if one of them did something else the second time.
        """
        fixture = self._fixture
        if not fixture.driver.closed:
            fixture.driver.check()
            fixture.close()

    def __enter__(self) -> Environment:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except WorkflowParked:
            if error is None:  # else the test has failed already, and says why
                raise

    def open_async(self) -> AsyncEnvironment:
        """Begin an environment for asyncio; `async with` does it."""
        if self._opened is not None or self._asynchronous is not None:
            raise UsageError("this Environment was opened before: make another")
        self._asynchronous = AsyncEnvironment(self._setting)
        return self._asynchronous.open()

    async def __aenter__(self) -> AsyncEnvironment:
        return self.open_async()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._asynchronous is not None:
            try:
                self._asynchronous.close()
            except WorkflowParked:
                if error is None:
                    raise

    @property
    def client(self) -> Client:
        """A client of the environment, for everything else that a client can do."""
        return self._fixture.client

    # --- workflows ------------------------------------------------------------------------------------------

    @overload
    def start_workflow(
        self, workflow: str, /, *args: Any, result_type: type[R], **options: Unpack[StartOptions]
    ) -> WorkflowHandle[R]: ...
    @overload
    def start_workflow(
        self, workflow: str, /, *args: Any, result_type: Any = None, **options: Unpack[StartOptions]
    ) -> WorkflowHandle[Any]: ...
    @overload
    def start_workflow(
        self, workflow: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[StartOptions]
    ) -> WorkflowHandle[R]: ...
    def start_workflow(self, workflow: Any, /, *args: Any, **options: Any) -> Any:  # type: ignore[misc]
        """Start a workflow and get a handle to it, as from a client. All happens that takes no time."""
        self._fixture.driver.check()
        self._fixture.driver.registry.meet_workflow(workflow)
        return self.client.start_workflow(workflow, *args, **options)

    @overload
    def execute_workflow(
        self, workflow: str, /, *args: Any, result_type: type[R], **options: Unpack[StartOptions]
    ) -> R: ...
    @overload
    def execute_workflow(
        self, workflow: str, /, *args: Any, result_type: Any = None, **options: Unpack[StartOptions]
    ) -> Any: ...
    @overload
    def execute_workflow(
        self, workflow: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[StartOptions]
    ) -> R: ...
    def execute_workflow(self, workflow: Any, /, *args: Any, **options: Any) -> Any:  # type: ignore[misc]
        """Start a workflow and wait for its result; time passes as it needs to."""
        return self.start_workflow(workflow, *args, **options).result()

    # --- many orders ----------------------------------------------------------------------------------------

    def explore(
        self,
        workflow: Callable[[*Ts], Any],
        /,
        *args: *Ts,
        runs: int = 200,
        seed: int | None = None,
        check: Callable[[Any, Environment], object] | None = None,
        invariant: Callable[[Environment], object] | None = None,
        allowed: type[BaseException] | str | Sequence[type[BaseException] | str] | None = None,
        arrivals: Sequence[Arrival] = (),
        prepare: Callable[[Environment], object] | None = None,
        crashes: bool = True,
        failures: bool = True,
        timeouts: bool = True,
        redeliveries: bool = True,
        story: str | None = None,
        options: StartOptions | None = None,
    ) -> Exploration:
        """Run a workflow under many orders of events and mishaps; raise `ExplorationFailed`, with the story of the smallest
        order that breaks a property.

        Which ready activity runs first; which fails, times out or loses its answer; when signals come; where the worker
        crashes; what time brings first: all of it is chosen, the same for the same seed. Each order has an
        environment of its own, with the fakes of this one; `prepare` gets it before. Always forbidden: a run that is
        parked, stuck, or not deterministic. `check(result, env)` is called at the end, with what the workflow returned or the
        `WorkflowFailedError` it ended with; `invariant(env)` after every step. Both fail by raising or by returning False.
        A run may fail only as `allowed` says or, where that is not given, if something went wrong before. `story` runs
        one order again that a failure has named.
        """
        self._fixture.driver.check()
        plan = ExplorationPlan(
            workflow=workflow,
            arguments=args,
            options=start_options(options),
            setting=self._setting,
            registry=self._fixture.driver.registry,
            sorts=chosen_sorts(
                crashes=crashes, failures=failures, timeouts=timeouts, redeliveries=redeliveries
            ),
            arrivals=checked_arrivals(arrivals),
            properties=Properties(check, invariant, checked_allowed(allowed)),
            prepare=prepare,
            face=face,
        )
        return replay(plan, story) if story is not None else explore(plan, runs, seed)

    # --- time -----------------------------------------------------------------------------------------------

    def skip(
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
        driver = self._fixture.driver
        driver.skip_to(driver.clock.now_ns() + span(duration, weeks, days, hours, minutes, seconds))

    def crash(self) -> None:
        """Lose what a worker holds, as if its process had been killed: runs are rebuilt from their histories."""
        self._fixture.driver.crash()


def face(setting: FixtureSettings, fixture: Fixture) -> Environment:
    """An environment around a fixture that its caller has opened."""
    env = object.__new__(Environment)
    env._setting, env._opened = setting, fixture
    return env


# --- the asynchronous face -------------------------------------------------------------------------------------
#
# The same names, awaited. The environment itself lives in a thread, which is kept for the next one: it serves no other until
# that one has closed, because the fibers of its runs cannot leave it.


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
        self, workflow: str, /, *args: Any, result_type: type[R], **options: Unpack[StartOptions]
    ) -> AsyncWorkflowHandle[R]: ...
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
        self, workflow: str, /, *args: Any, result_type: type[R], **options: Unpack[StartOptions]
    ) -> R: ...
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
