"""The fixture: what an environment is made of, put together: engine, clock, driver, attempts, a client; and the base of
the blocking and the asynchronous environment: fakes, calls, scheduled actions, the time.

A fixture belongs to the thread that makes it. A scheduled action, `env.after(days=3).signal(handle, approve, "yes")`, is
built and checked when the test puts it down, and done when virtual time has come there. One that fails then is raised by
the wait that met it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from types import ModuleType
from typing import Any, Literal, ParamSpec, Protocol, TypeVar, TypeVarTuple, cast, overload

import msgspec

from hourglass._contract.activities import StartActivity
from hourglass._contract.request_checks import check_request
from hourglass._contract.schedules import CreateSchedule, UpdateSchedule
from hourglass._contract.service import Connection, Request
from hourglass._contract.workflows import (
    DescribeWorkflow,
    Executed,
    ExecuteWorkflow,
    QueryWorkflow,
    StartWorkflow,
    StillOpen,
    WaitForClose,
)
from hourglass._embedded import VirtualClock, connect_memory
from hourglass._embedded.clock import to_ns
from hourglass._evaluator.context import RunSettings
from hourglass._evaluator.definition import check_exceptions
from hourglass._evaluator.options import Duration, optional_seconds, seconds
from hourglass._worker.lanes.cache import CacheLimits, StateCache
from hourglass._worker.lanes.evaluation import Evaluations, LaneContext, Verify
from hourglass._worker.lanes.generations import Generations
from hourglass._worker.lanes.watcher import Action, Watcher
from hourglass._worker.portal import Portal
from hourglass._worker.tree.plan import checked_verify, checked_watch
from hourglass.activity import Activity
from hourglass.activity._context import PAYLOAD_LIMIT, Equipment, Resources
from hourglass.activity._current import in_activity
from hourglass.activity._definition import ActivitySource
from hourglass.client import Client, _operations
from hourglass.client._faces import HandleFacts
from hourglass.client._interception import Interceptor, activity_chain, checked, workflow_interceptors
from hourglass.client._link import Link
from hourglass.client._session import ClientOperation, ClientSession
from hourglass.converter import Converter, default_converter
from hourglass.errors import UsageError
from hourglass.metrics import Registry, default_registry
from hourglass.testing._calls import Call
from hourglass.testing._driver import Chooser, DriverPolicy, EnvironmentDriver, InOrder, Step
from hourglass.testing._guard import DEADLOCK_TIMEOUT, Guard
from hourglass.testing._registry import (
    UNSET,
    EnvironmentRegistry,
    Mishaps,
    Raisable,
    Raises,
    checked_errors,
    make_fake,
)
from hourglass.testing._threads import current_loop
from hourglass.testing._trouble import Troubles
from hourglass.testing._virtual_time import as_datetime, as_ns, span
from hourglass.workflow import Channel
from hourglass.workflow._definitions import WorkflowSource

# --- a client's session ----------------------------------------------------------------------------------------
#
# A client's session over an environment: the same operations, but a waiting call drives the environment.
#
# Blocking calls run in the environment's thread. An activity that runs in another thread may call too, while the test
# waits in the environment; any other thread is refused. Asynchronous calls go through a `Runner`, which has the
# environment's thread.


A = TypeVar("A")
T = TypeVar("T")

_UNLIMITED = nullcontext()


class Runner(Protocol):
    """A thread that an asynchronous environment lives in."""

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Do something there."""
        ...


class EnvironmentLink(Link):
    """The link of a client whose engine is an environment's: there is nothing to open, and no control loop."""

    def __init__(self, connection: Connection) -> None:
        self.target = connection.target
        self.namespace = connection.namespace
        self.closed = False
        self.requested_updates = {}
        self.unserved = set()
        self._connection = connection

    @property
    def portal(self) -> Portal:
        """There is none."""
        raise UsageError(
            "this client belongs to a test Environment, which runs its workflows by itself and ends with its `with` block: "
            "it is neither closed nor given to a Worker"
        )

    async def opened(self) -> Connection:
        """The open connection."""
        return self.connection


@dataclass(frozen=True)
class EnvironmentSession(ClientSession):
    """Runs operations and, while it waits, the environment."""

    driver: EnvironmentDriver = field(kw_only=True)
    runner: Runner | None = field(kw_only=True, default=None)

    def perform(self, operation: ClientOperation[T]) -> T:
        """Run an operation to its end."""
        driver = self.driver
        if driver.at_home or not in_activity():
            return operation.parse(driver.run(operation.ask(self)))
        if driver.closed:
            driver.check()
        asked = asyncio.run_coroutine_threadsafe(self._from_outside(operation.ask(self)), driver.loop)
        try:
            return operation.parse(asked.result())
        except concurrent.futures.CancelledError:
            raise UsageError("the Environment was closed while an activity waited in it") from None

    async def aperform(self, operation: ClientOperation[T]) -> T:
        """Run an operation in the environment's thread, and await it."""
        return operation.parse(await self.in_thread(lambda: self.driver.run(operation.ask(self))))

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Do something in the environment's thread, and await it."""
        if self.runner is None:
            raise UsageError(
                "this environment blocks: use its handles without await, or `async with Environment()`"
            )
        future = self.runner.submit(work)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self.driver.interrupt()
            raise

    def now_ns(self) -> int:
        """The virtual time."""
        return self.driver.clock.now_ns()

    def meet(self, workflow: object) -> None:
        """A workflow that a schedule will start."""
        self.driver.registry.meet_workflow(workflow)

    async def call(self, request: Request[A]) -> A:
        """Ask the engine, on the environment's loop."""
        request = self.travelling(request)
        check_request(request)
        driver, asked = self.driver, cast(object, request)
        if isinstance(asked, ExecuteWorkflow):  # the driver must see the start and the wait separately
            started = await self.call(asked.start)
            return cast(A, Executed(started.run_id, StillOpen(started.run_id)))
        if isinstance(asked, (StartWorkflow, StartActivity)):
            await driver.serve(asked.spec.task_queue)
        elif isinstance(asked, (CreateSchedule, UpdateSchedule)):
            await driver.serve(asked.schedule.action.spec.task_queue)
        if isinstance(asked, (WaitForClose, QueryWorkflow)):
            await self._refuse_parked(asked.workflow_id, asked.run_id)
        if not isinstance(asked, WaitForClose):
            return await driver.connection.call(request)
        driver.waited_for.append(asked)
        try:
            return await driver.connection.call(request)
        finally:
            driver.waited_for.remove(asked)

    def within(self, seconds: float | None) -> AbstractAsyncContextManager[object]:
        """A time limit in virtual seconds."""
        return _UNLIMITED if seconds is None else self._within(seconds)

    @asynccontextmanager
    async def _within(self, seconds: float) -> AsyncIterator[None]:
        async with asyncio.timeout(None) as limit:
            clock = self.driver.clock
            over = asyncio.get_running_loop().time
            cancel = clock.call_at(clock.now_ns() + to_ns(seconds), lambda: limit.reschedule(over()))
            try:
                yield
            finally:
                cancel()

    async def _refuse_parked(self, workflow_id: str, run_id: str) -> None:
        """A parked run never closes and answers nothing: every call that waits for one is told why."""
        if not self.driver.troubles.any_parked:
            return
        if not run_id:
            question = DescribeWorkflow(workflow_id=workflow_id)
            run_id = (await self.driver.connection.call(question)).summary.run_id
        parked = self.driver.troubles.of_run(run_id)
        if parked is not None:
            raise parked.with_traceback(None)

    async def _from_outside(self, coro: Coroutine[Any, Any, T]) -> T:
        task = asyncio.current_task()
        assert task is not None
        self.driver.outside.add(task)
        self.driver.ring()
        try:
            return await coro
        finally:
            self.driver.outside.discard(task)
            self.driver.ring()


# --- engine, clock, driver, attempts, a client ----------------------------------------------------


IDENTITY = "test"

_LIMITS = CacheLimits(live=1_000_000, states=1_000_000)


_GENERATIONS = 1000
"""So many children below each other are refused: as many as Python allows for calls."""

_FIRST_CHECK = 4
"""Most runs of a test close, and are executed a second time then: those that live longer also before, and those that are
open when their environment ends, there.
"""


class FixtureSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What an environment was asked to be."""

    workflows: Sequence[object]
    activities: Sequence[object]
    modules: Sequence[str | ModuleType]
    real_activities: bool
    converter: Converter
    verify: Verify
    watch: Action | Literal["off"] | None
    failure_exceptions: Sequence[type[BaseException]]
    start: datetime | None
    horizon: Duration
    chooser: Chooser
    deadlock_timeout: float
    verify_on_demand: bool = False
    interceptors: tuple[Interceptor, ...] = ()
    resources: Sequence[Any] = ()
    metrics: Registry = default_registry

    def registry(self) -> EnvironmentRegistry:
        """Those who play; refuses what is no workflow and no activity."""
        return EnvironmentRegistry(self.workflows, self.activities, self.modules, self.real_activities)

    def clock(self) -> VirtualClock:
        """A clock that stands at the start."""
        return VirtualClock() if self.start is None else VirtualClock(as_ns(self.start))

    def evaluations(
        self, registry: EnvironmentRegistry, namespace: str
    ) -> Callable[[str, Troubles], Evaluations]:
        """How the runs of a queue are evaluated: as in production."""
        verify, watch = checked_verify(self.verify), checked_watch(self.watch, self.verify)
        if sys.getprofile() is not None:
            watch = None  # this thread is being profiled, and has one place for that
        exceptions = check_exceptions(self.failure_exceptions)
        generations = Generations(most=_GENERATIONS)
        return lambda queue, troubles: Evaluations(
            LaneContext(
                registry.workflow,
                RunSettings(
                    task_queue=queue,
                    namespace=namespace,
                    converter=self.converter,
                    failure_exceptions=exceptions,
                    interceptors=workflow_interceptors(self.interceptors),
                    metrics=self.metrics,
                    on_activity=registry.meet_activity,
                    steps=registry.steps,
                ),
                verify=verify,
                watcher=Watcher(watch) if watch is not None else None,
                cache=StateCache(_LIMITS),
                parked=troubles,
                first_check=_FIRST_CHECK,
                on_demand=self.verify_on_demand,
                generations=generations,
            )
        )


class Fixture:
    """An open environment."""

    def __init__(
        self,
        setting: FixtureSettings,
        runner: Runner | None = None,
        *,
        registry: EnvironmentRegistry | None = None,
        make_driver: Callable[..., EnvironmentDriver] = EnvironmentDriver,
    ) -> None:
        loop, clock = current_loop(), setting.clock()
        registry = setting.registry() if registry is None else registry
        policy = DriverPolicy()
        self.resources = Resources(setting.resources)
        connection = loop.do(connect_memory(identity=IDENTITY, clock=clock, policy=policy))
        self.driver = make_driver(
            connection,
            clock,
            loop,
            registry,
            setting.chooser,
            setting.evaluations(registry, connection.namespace),
            to_ns(seconds(setting.horizon, "horizon")),
            Guard(setting.deadlock_timeout),
            policy,
            Equipment(
                converter=setting.converter,
                client=lambda: self.client,
                payload_limit=PAYLOAD_LIMIT,
                inbound=activity_chain(setting.interceptors),
                registry=setting.metrics,
                resources=self.resources,
            ),
        )
        link = EnvironmentLink(connection)
        self.session = EnvironmentSession(
            link, setting.converter, None, setting.interceptors, driver=self.driver, runner=runner
        )
        self.client = Client(self.session)
        self.resources.open()

    def close(self) -> None:
        """End it, in its own thread. Raises `WorkflowParked` for an open run that did something else when it was executed a
        second time.
        """
        try:
            self.driver.close()
        finally:
            self.session.link.closed = True
            self.resources.close()


# --- scheduled actions ----------------------------------------------------------------------------


P = ParamSpec("P")
Ts = TypeVarTuple("Ts")


class Later:
    """A point in virtual time, at which something shall happen."""

    def __init__(self, driver: EnvironmentDriver, session: ClientSession, when_ns: int) -> None:
        self._driver = driver
        self._session = session
        self._when_ns = when_ns

    @property
    def time(self) -> datetime:
        """When."""
        return as_datetime(self._when_ns)

    @overload
    def signal(self, handle: HandleFacts[Any], signal: str, /, *args: Any) -> None: ...
    @overload
    def signal(self, handle: HandleFacts[Any], signal: Channel[T], value: T, /) -> None: ...
    @overload
    def signal(self, handle: HandleFacts[Any], signal: Callable[[*Ts], None], /, *args: *Ts) -> None: ...
    def signal(self, handle: HandleFacts[Any], signal: Any, /, *args: Any) -> None:  # type: ignore[misc]
        """Send a signal then."""
        operation = _operations.signal(self._session, handle._reference, signal, args)
        self._put(f"signal to {handle.id}", partial(self._ask, operation))

    def cancel(self, handle: HandleFacts[Any], reason: str = "") -> None:
        """Ask a workflow to cancel then."""
        operation = _operations.cancel(self._session, handle._reference, reason)
        self._put(f"cancel {handle.id}", partial(self._ask, operation))

    def terminate(self, handle: HandleFacts[Any], reason: str = "") -> None:
        """End a workflow then."""
        operation = _operations.terminate(self._session, handle._reference, reason, ())
        self._put(f"terminate {handle.id}", partial(self._ask, operation))

    def call(self, function: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call a function then, in the environment's thread; it may use the environment."""
        self._put(getattr(function, "__qualname__", "a function"), lambda: function(*args, **kwargs))

    def _put(self, name: str, do: Callable[[], object]) -> None:
        def act() -> None:
            try:
                do()
            except BaseException as error:
                error.add_note(f"raised by what the test put down for {self.time}: {name}")
                self._driver.troubles.add(error)

        step = Step("action", name, act)
        self._driver.clock.call_at(self._when_ns, lambda: self._driver.add(step))

    def _ask(self, operation: ClientOperation[None]) -> None:
        self._driver.loop.run_until_complete(operation.ask(self._session))


# --- the base of both environments ----------------------------------------------------------------


R = TypeVar("R")

HORIZON = 50 * 365 * 86400.0


class EnvironmentBase:
    """An environment's set-up, and what can be said about it at any time."""

    def __init__(
        self,
        *,
        workflows: Sequence[WorkflowSource | type] = (),
        activities: Sequence[ActivitySource] = (),
        modules: Sequence[str | ModuleType] = (),
        real_activities: bool = True,
        verify: Verify = "always",
        watch: Action | Literal["off"] | None = None,
        failure_exceptions: Sequence[type[BaseException]] = (),
        interceptors: Sequence[Interceptor] = (),
        resources: Sequence[Any] = (),
        metrics: Registry | None = None,
        converter: Converter = default_converter,
        start: datetime | None = None,
        horizon: Duration = HORIZON,
        chooser: Chooser | None = None,
        deadlock_timeout: Duration | None = DEADLOCK_TIMEOUT,
    ) -> None:
        self._setting = FixtureSettings(
            workflows=workflows,
            activities=activities,
            modules=modules,
            real_activities=real_activities,
            converter=converter,
            verify=verify,
            watch=watch,
            failure_exceptions=failure_exceptions,
            interceptors=checked(interceptors),
            resources=resources,
            metrics=Registry() if metrics is None else metrics,
            start=start,
            horizon=horizon,
            chooser=chooser or InOrder(),
            deadlock_timeout=optional_seconds(deadlock_timeout, "deadlock_timeout") or 0.0,
        )
        self._opened: Fixture | None = None

    @property
    def _fixture(self) -> Fixture:
        if self._opened is None:
            name = type(self).__name__
            raise UsageError(f"this {name} is not open: use it inside its `with` block")
        return self._opened

    def __repr__(self) -> str:
        if self._opened is None:
            return f"<{type(self).__name__}, not open>"
        state = "closed" if self._opened.driver.closed else f"at {self.now():%Y-%m-%d %H:%M:%S}"
        return f"<{type(self).__name__} {state}>"

    def now(self) -> datetime:
        """The virtual time."""
        return as_datetime(self._fixture.driver.clock.now_ns())

    # --- fakes ----------------------------------------------------------------------------------------------

    @overload
    def fake(
        self,
        activity: Activity[P, R],
        function: Callable[P, R] | Callable[P, Coroutine[Any, Any, R]],
        /,
        *,
        raises: Raises | None = None,
        takes: Duration | None = None,
        heartbeat_every: Duration | None = None,
    ) -> None: ...
    @overload
    def fake(
        self,
        activity: Activity[..., R],
        /,
        *,
        returns: R = ...,
        raises: Raises | None = None,
        takes: Duration | None = None,
        heartbeat_every: Duration | None = None,
    ) -> None: ...
    @overload
    def fake(
        self,
        activity: str,
        function: Callable[..., Any] | None = None,
        /,
        *,
        returns: Any = ...,
        raises: Raises | None = None,
        takes: Duration | None = None,
        heartbeat_every: Duration | None = None,
    ) -> None: ...
    def fake(
        self,
        activity: Any,
        function: Callable[..., Any] | None = None,
        /,
        *,
        returns: Any = UNSET,
        raises: Raises | None = None,
        takes: Duration | None = None,
        heartbeat_every: Duration | None = None,
    ) -> None:
        """Have something else happen for an activity, given as the decorated function or by name.

        A `function` is called in its place and takes what it takes; `returns` is a result; `raises` an exception, or
        a list with one for each attempt (None: this attempt succeeds), after which the function or `returns` counts.
        `takes` is how long an attempt lasts, in virtual time: timeouts and cancellation see it. Heartbeats come during
        it as a worker sends them for activities that leave them to it, or `heartbeat_every` so often.
        """
        fixture = self._fixture
        name, definition = fixture.driver.registry.definition(activity)
        fixture.driver.registry.fakes[name] = make_fake(
            name,
            definition,
            function,
            self._setting.converter,
            returns=returns,
            raises=raises,
            takes=takes,
            heartbeat_every=heartbeat_every,
        )

    def may_fail(
        self,
        activity: Activity[..., Any] | str,
        /,
        *,
        with_: Raisable | Sequence[Raisable],
    ) -> None:
        """For `explore`: an activity fails with these errors, and no others."""
        name, _ = self._fixture.driver.registry.definition(activity)
        self._fixture.driver.registry.mishaps[name] = Mishaps(checked_errors(name, with_))

    def cannot_fail(self, activity: Activity[..., Any] | str, /) -> None:
        """For `explore`: an activity succeeds in the end. Attempts still fail and time out, while another one may follow."""
        name, _ = self._fixture.driver.registry.definition(activity)
        self._fixture.driver.registry.mishaps[name] = Mishaps(sure=True)

    def calls(self, activity: Activity[..., Any] | str) -> list[Call]:
        """Every attempt of an activity so far, in order: compare them with `call(…)`."""
        name, _ = self._fixture.driver.registry.definition(activity)
        return self._fixture.driver.stage.calls(name)

    # --- later ----------------------------------------------------------------------------------------------

    def after(
        self,
        duration: Duration | None = None,
        /,
        *,
        weeks: float = 0,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
    ) -> Later:
        """A point in virtual time, so long from now: `env.after(days=3).signal(handle, approve)`."""
        fixture = self._fixture
        when = fixture.driver.clock.now_ns() + span(duration, weeks, days, hours, minutes, seconds)
        return Later(fixture.driver, fixture.session, when)

    def at(self, time: datetime) -> Later:
        """A point in virtual time; one that has passed means now."""
        fixture = self._fixture
        return Later(fixture.driver, fixture.session, as_ns(time))
