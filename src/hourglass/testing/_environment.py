"""`Environment`: workflows in a test, in this process and this thread, on virtual time; `AsyncEnvironment` for `async def`
tests.

    with Environment() as env:
        env.fake(charge, returns="c-1")
        assert env.execute_workflow(checkout, order) == "c-1"
        assert env.calls(charge) == [call("o-1", 1200)]

The engine, the evaluator, the activity executor and the converters are those used in production. Only real time and the
threads for workflow code are replaced, because they would make a test slow or nondeterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, TypedDict, TypeVar, TypeVarTuple, Unpack, overload

from hourglass._evaluator.options import Duration
from hourglass._worker.daemon_executor import DaemonExecutor
from hourglass.client import AsyncClient, AsyncWorkflowHandle, Client, WorkflowHandle
from hourglass.client._options import StartOptions
from hourglass.errors import UsageError, WorkflowParked
from hourglass.testing._environment_base import EnvironmentBase
from hourglass.testing._explore.arrivals import Arrival, checked_arrivals
from hourglass.testing._explore.choices import chosen_sorts
from hourglass.testing._explore.explorer import Exploration, ExplorationPlan, explore, replay, start_options
from hourglass.testing._explore.properties import Properties, checked_allowed
from hourglass.testing._fixture import Fixture, FixtureSettings
from hourglass.testing._shared_threads import borrow_runner, return_runner
from hourglass.testing._virtual_time import DurationParts, span

R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Environment(EnvironmentBase):
    """Workflows on virtual time, for a test: `with Environment() as env:`, or `async with`.

    Workflows and activities that are called as decorated objects need not be listed. `workflows`, `activities` and `modules`
    list workflows and activities that are called by name, and instances with activity methods. With `real_activities=False`,
    calling an activity without a fake is an error. `verify` and `watch` are the options of `Worker`, and on by default.

    Virtual time begins at `start`, passes only while the test waits in the environment, and ends at `horizon`. Workflow code
    that runs for `deadlock_timeout` of real time without waiting is interrupted.
    """

    _asynchronous: AsyncEnvironment | None = None

    def open(self) -> Environment:
        """Open the environment, like `with`."""
        if self._opened is not None or self._asynchronous is not None:
            raise UsageError("this Environment was already opened: create another one")
        self._opened = Fixture(self._settings)
        return self

    def close(self) -> None:
        """Close the environment. Runs that are still open are executed a second time. Raise `WorkflowParked` if a run then
        issues different commands. May be called repeatedly.
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
            if error is None:  # otherwise the test has already failed, with that error
                raise

    def open_async(self) -> AsyncEnvironment:
        """Open an environment for asyncio, like `async with`."""
        if self._opened is not None or self._asynchronous is not None:
            raise UsageError("this Environment was already opened: create another one")
        self._asynchronous = AsyncEnvironment(self._settings)
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
        """A client of the environment, for all other client operations."""
        return self._fixture.client

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
        """Start a workflow and return a handle to it, like `start_workflow` of a client. All steps that need no virtual time
        are done before the method returns.
        """
        self._fixture.driver.check()
        self._fixture.driver.registry.register_workflow(workflow)
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
        """Start a workflow and return its result. Virtual time passes as needed."""
        return self.start_workflow(workflow, *args, **options).result()

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
        """Run a workflow under many orders of events and faults. Raise `ExplorationFailed`, with the story of the smallest
        order that violates a property.

        An order determines the sequence of ready activities and of timers that are due together, when activities fail, time
        out or lose their results, when signals arrive, and when the worker crashes. The same seed tries the same orders.
        Each order runs in its own environment with the fakes of this one; `prepare` is called first with that environment.

        A run that is parked, stuck or nondeterministic always violates a property. `check(result, env)` is called at the
        end, with the result of the workflow or its `WorkflowFailedError`. `invariant(env)` is called after every step. Both
        report a violation by raising or by returning False. A run may fail only with the errors in `allowed` or, if
        `allowed` is not set, only after a fault. `story` repeats a single order; pass the token from a failure message.
        """
        self._fixture.driver.check()
        plan = ExplorationPlan(
            workflow=workflow,
            arguments=args,
            options=start_options(options),
            settings=self._settings,
            registry=self._fixture.driver.registry,
            sorts=chosen_sorts(
                crashes=crashes, failures=failures, timeouts=timeouts, redeliveries=redeliveries
            ),
            arrivals=checked_arrivals(arrivals),
            properties=Properties(check, invariant, checked_allowed(allowed)),
            prepare=prepare,
            make_environment=environment_of,
        )
        return replay(plan, story) if story is not None else explore(plan, runs, seed)

    def skip(self, duration: Duration | None = None, /, **parts: Unpack[DurationParts]) -> None:
        """Advance virtual time by this duration, and do all steps that become due."""
        driver = self._fixture.driver
        driver.skip_to(driver.clock.now_ns() + span("skip", duration, parts))

    def crash(self) -> None:
        """Drop the worker's state, as if its process had been killed. Runs are rebuilt from their histories."""
        self._fixture.driver.crash()


def environment_of(settings: FixtureSettings, fixture: Fixture) -> Environment:
    """Return an environment that uses an open fixture."""
    env = object.__new__(Environment)
    env._settings, env._opened = settings, fixture
    return env


class ExploreOptions(TypedDict, total=False):
    """The options of `explore`; see `Environment.explore`."""

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


class AsyncEnvironment(EnvironmentBase):
    """Workflows on virtual time, for an `async def` test: `async with Environment(…) as env:`."""

    def __init__(self, settings: FixtureSettings) -> None:
        self._settings = settings
        self._opened = None
        self._runner: DaemonExecutor | None = None

    def open(self) -> AsyncEnvironment:
        """Open the environment, like `async with`. Blocks for less than a millisecond."""
        if self._opened is not None:
            raise UsageError("this Environment was already opened: create another one")
        self._runner = runner = borrow_runner()
        self._opened = runner.submit(lambda: Fixture(self._settings, runner)).result()
        return self

    def close(self) -> None:
        """Close the environment. Runs that are still open are executed a second time. Raise `WorkflowParked` if a run then
        issues different commands. May be called repeatedly.
        """
        runner, self._runner = self._runner, None
        if runner is not None:
            try:
                if self._opened is not None:
                    self._opened.driver.interrupt()
                    runner.submit(self._opened.close).result()
            finally:
                return_runner(runner)

    @property
    def client(self) -> AsyncClient:
        """A client of the environment, for all other client operations."""
        return AsyncClient(self._fixture.session)

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
        """Start a workflow and return a handle to it, like `start_workflow` of a client. All steps that need no virtual time
        are done before the method returns.
        """
        self._check_open()
        self._fixture.driver.registry.register_workflow(workflow)
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
        """Start a workflow and return its result. Virtual time passes as needed."""
        handle = await self.start_workflow(workflow, *args, **options)
        return await handle.result()

    async def explore(
        self, workflow: Callable[[*Ts], Any], /, *args: *Ts, **options: Unpack[ExploreOptions]
    ) -> Exploration:
        """Run a workflow under many orders of events and faults, with the behavior and options of `Environment.explore`.

        The orders run on this environment's thread, so `check`, `invariant` and `prepare` are plain functions. They receive
        a blocking `Environment`.
        """
        self._check_open()
        blocking = environment_of(self._settings, self._fixture)
        return await self._fixture.session.in_thread(lambda: blocking.explore(workflow, *args, **options))

    async def skip(self, duration: Duration | None = None, /, **parts: Unpack[DurationParts]) -> None:
        """Advance virtual time by this duration, and do all steps that become due."""
        self._check_open()
        driver = self._fixture.driver
        length = span("skip", duration, parts)
        await self._fixture.session.in_thread(lambda: driver.skip_to(driver.clock.now_ns() + length))

    async def crash(self) -> None:
        """Drop the worker's state, as if its process had been killed. Runs are rebuilt from their histories."""
        self._check_open()
        await self._fixture.session.in_thread(self._fixture.driver.crash)

    def _check_open(self) -> None:
        if self._fixture.driver.closed:
            raise UsageError("this Environment is closed: use it inside its `with` block")
