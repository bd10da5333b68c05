"""The base class of `Environment` and `AsyncEnvironment`: options, fakes, recorded calls, scheduled actions, virtual time.

A scheduled action (`Later`) is created and checked when the test schedules it, and performed when virtual time reaches its
time. If the action fails then, the current wait raises its error.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
from functools import partial
from types import ModuleType
from typing import Any, Literal, ParamSpec, TypedDict, TypeVar, TypeVarTuple, Unpack, overload

from hourglass._evaluator.options import Duration, optional_seconds
from hourglass._worker.lanes.evaluation import Verify
from hourglass._worker.lanes.watcher import Action
from hourglass.activity import Activity
from hourglass.activity._definition import ActivitySource
from hourglass.client import _operations
from hourglass.client._faces import HandleFacts
from hourglass.client._interception import Interceptor, checked
from hourglass.client._session import ClientOperation, ClientSession
from hourglass.converter import Converter, default_converter
from hourglass.errors import UsageError
from hourglass.metrics import Registry
from hourglass.testing._calls import Call
from hourglass.testing._driver import EnvironmentDriver
from hourglass.testing._fakes import UNSET, AllowedFaults, Raisable, Raises, checked_errors, make_fake
from hourglass.testing._fixture import Fixture, FixtureSettings
from hourglass.testing._guard import DEADLOCK_TIMEOUT
from hourglass.testing._steps import Chooser, InOrder, Step
from hourglass.testing._virtual_time import DurationParts, as_datetime, as_ns, span
from hourglass.workflow import Channel
from hourglass.workflow._definitions import WorkflowSource

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

HORIZON = 50 * 365 * 86400.0


class FakeOptions(TypedDict, total=False):
    """The options of a fake; see `Environment.fake`."""

    raises: Raises | None
    takes: Duration | None
    heartbeat_every: Duration | None


class EnvironmentBase:
    """The options, fakes, recorded calls, scheduled actions and virtual time of an environment."""

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
        self._settings = FixtureSettings(
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
        """Return the current virtual time."""
        return as_datetime(self._fixture.driver.clock.now_ns())

    @overload
    def fake(
        self,
        activity: Activity[P, R],
        function: Callable[P, R] | Callable[P, Coroutine[Any, Any, R]],
        /,
        **options: Unpack[FakeOptions],
    ) -> None: ...
    @overload
    def fake(
        self,
        activity: Activity[..., R],
        /,
        *,
        returns: R = ...,
        **options: Unpack[FakeOptions],
    ) -> None: ...
    @overload
    def fake(
        self,
        activity: str,
        function: Callable[..., Any] | None = None,
        /,
        *,
        returns: Any = ...,
        **options: Unpack[FakeOptions],
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
        """Replace an activity for this environment. Pass the decorated function or its name.

        `function` is called instead of the activity, with the activity's arguments. `returns` is a result. `raises` is an
        exception, or a list with an entry for each attempt (None means that the attempt succeeds). After the end of the
        list, the function or `returns` applies. `takes` is the duration of an attempt in virtual time, which counts for
        timeouts and cancellations. During that time, heartbeats are sent as by a worker for activities without a heartbeat
        timeout, or every `heartbeat_every`.
        """
        fixture = self._fixture
        name, definition = fixture.driver.registry.definition(activity)
        fixture.driver.registry.fakes[name] = make_fake(
            name,
            definition,
            function,
            self._settings.converter,
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
        """Let `explore` fail an activity only with these errors."""
        name, _ = self._fixture.driver.registry.definition(activity)
        self._fixture.driver.registry.allowed_faults[name] = AllowedFaults(checked_errors(name, with_))

    def cannot_fail(self, activity: Activity[..., Any] | str, /) -> None:
        """Let an activity always succeed eventually under `explore`. Attempts may still fail or time out if another attempt
        can follow.
        """
        name, _ = self._fixture.driver.registry.definition(activity)
        self._fixture.driver.registry.allowed_faults[name] = AllowedFaults(sure=True)

    def calls(self, activity: Activity[..., Any] | str) -> list[Call]:
        """Return all attempts of an activity so far, in order. Compare them with `call(…)`."""
        name, _ = self._fixture.driver.registry.definition(activity)
        return self._fixture.driver.stage.calls(name)

    def after(self, duration: Duration | None = None, /, **parts: Unpack[DurationParts]) -> Later:
        """Return a point in virtual time relative to now: `env.after(days=3).signal(handle, approve)`."""
        fixture = self._fixture
        when = fixture.driver.clock.now_ns() + span("after", duration, parts)
        return Later(fixture.driver, fixture.session, when)

    def at(self, time: datetime) -> Later:
        """Return a point in virtual time. A time in the past means now."""
        fixture = self._fixture
        return Later(fixture.driver, fixture.session, as_ns(time))


class Later:
    """A point in virtual time. Its methods schedule actions for that time."""

    def __init__(self, driver: EnvironmentDriver, session: ClientSession, when_ns: int) -> None:
        self._driver = driver
        self._session = session
        self._when_ns = when_ns

    @property
    def time(self) -> datetime:
        """The scheduled time."""
        return as_datetime(self._when_ns)

    @overload
    def signal(self, handle: HandleFacts[Any], signal: str, /, *args: Any) -> None: ...
    @overload
    def signal(self, handle: HandleFacts[Any], signal: Channel[T], value: T, /) -> None: ...
    @overload
    def signal(self, handle: HandleFacts[Any], signal: Callable[[*Ts], None], /, *args: *Ts) -> None: ...
    def signal(self, handle: HandleFacts[Any], signal: Any, /, *args: Any) -> None:  # type: ignore[misc]
        """Send a signal at that time."""
        operation = _operations.signal(self._session, handle._reference, signal, args)
        self._schedule(f"signal to {handle.id}", partial(self._run, operation))

    def cancel(self, handle: HandleFacts[Any], reason: str = "") -> None:
        """Request the cancellation of a workflow at that time."""
        operation = _operations.cancel(self._session, handle._reference, reason)
        self._schedule(f"cancel {handle.id}", partial(self._run, operation))

    def terminate(self, handle: HandleFacts[Any], reason: str = "") -> None:
        """Terminate a workflow at that time."""
        operation = _operations.terminate(self._session, handle._reference, reason, ())
        self._schedule(f"terminate {handle.id}", partial(self._run, operation))

    def call(self, function: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call a function at that time, on the environment's thread. The function may use the environment."""
        self._schedule(getattr(function, "__qualname__", "a function"), lambda: function(*args, **kwargs))

    def _schedule(self, name: str, do: Callable[[], object]) -> None:
        def act() -> None:
            try:
                do()
            except BaseException as error:
                error.add_note(f"raised by an action that the test scheduled for {self.time}: {name}")
                self._driver.errors.add(error)

        step = Step("action", name, act)
        self._driver.clock.call_at(self._when_ns, lambda: self._driver.add(step))

    def _run(self, operation: ClientOperation[None]) -> None:
        self._driver.loop.run_until_complete(operation.ask(self._session))
