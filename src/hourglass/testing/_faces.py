"""What the blocking and the asynchronous environment share: fakes, calls, scheduled actions, the time.

Nothing here waits. A scheduled action, `env.after(days=3).signal(handle, approve, "yes")`, is built and checked when
the test puts it down, and done when virtual time has come there. One that fails then is raised by the wait that met
it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
from functools import partial
from types import ModuleType
from typing import Any, Literal, ParamSpec, TypeVar, TypeVarTuple, overload

from hourglass._engine.options import Duration, optional_seconds
from hourglass._runtime.evaluation import Verify
from hourglass._runtime.watcher import Action
from hourglass.activity import Activity
from hourglass.client import _operations
from hourglass.client._faces import HandleFacts
from hourglass.client._interception import Interceptor, checked
from hourglass.client._session import ClientOperation, ClientSession
from hourglass.converter import Converter, default_converter
from hourglass.errors import UsageError
from hourglass.metrics import Registry
from hourglass.testing._calls import Call, as_datetime, as_ns, span
from hourglass.testing._choosing import Chooser, InOrder, Step
from hourglass.testing._driver import Driver
from hourglass.testing._explore.possible import Mishaps, checked_errors
from hourglass.testing._fakes import UNSET, Raisable, Raises, make_fake
from hourglass.testing._guard import DEADLOCK_TIMEOUT
from hourglass.testing._stage import Setting, Stage
from hourglass.workflow import Channel

# --- scheduled actions ----------------------------------------------------------------------------


P = ParamSpec("P")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Later:
    """A point in virtual time, at which something shall happen."""

    def __init__(self, driver: Driver, session: ClientSession, when_ns: int) -> None:
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
        operation = _operations.signal(self._session, handle._reference, signal, args, None)
        self._put(f"signal to {handle.id}", partial(self._ask, operation))

    def cancel(self, handle: HandleFacts[Any], reason: str = "") -> None:
        """Ask a workflow to cancel then."""
        operation = _operations.cancel(self._session, handle._reference, reason, None)
        self._put(f"cancel {handle.id}", partial(self._ask, operation))

    def terminate(self, handle: HandleFacts[Any], reason: str = "") -> None:
        """End a workflow then."""
        operation = _operations.terminate(self._session, handle._reference, reason, (), None)
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


# --- what both environments have ------------------------------------------------------------------


R = TypeVar("R")

HORIZON = 50 * 365 * 86400.0


class EnvironmentFacts:
    """An environment's set-up, and what can be said about it at any time."""

    def __init__(
        self,
        *,
        workflows: Sequence[object] = (),
        activities: Sequence[object] = (),
        modules: Sequence[str | ModuleType] = (),
        real_activities: bool = True,
        verify: Verify = "always",
        watch: Action | Literal["off"] | None = None,
        failure_exceptions: Sequence[type[BaseException]] = (),
        interceptors: Sequence[Interceptor] = (),
        metrics: Registry | None = None,
        converter: Converter = default_converter,
        start: datetime | None = None,
        horizon: Duration = HORIZON,
        chooser: Chooser | None = None,
        deadlock_timeout: Duration | None = DEADLOCK_TIMEOUT,
    ) -> None:
        self._setting = Setting(
            workflows=workflows,
            activities=activities,
            modules=modules,
            real_activities=real_activities,
            converter=converter,
            verify=verify,
            watch=watch,
            failure_exceptions=failure_exceptions,
            interceptors=checked(interceptors),
            metrics=Registry() if metrics is None else metrics,
            start=start,
            horizon=horizon,
            chooser=chooser or InOrder(),
            deadlock_timeout=optional_seconds(deadlock_timeout, "deadlock_timeout") or 0.0,
        )
        self._opened: Stage | None = None

    @property
    def _stage(self) -> Stage:
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
        return as_datetime(self._stage.driver.clock.now_ns())

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
        stage = self._stage
        name, definition = stage.driver.cast.definition(activity)
        stage.driver.cast.fakes[name] = make_fake(
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
        name, _ = self._stage.driver.cast.definition(activity)
        self._stage.driver.cast.mishaps[name] = Mishaps(checked_errors(name, with_))

    def cannot_fail(self, activity: Activity[..., Any] | str, /) -> None:
        """For `explore`: an activity succeeds in the end. Attempts still fail and time out, while another one may follow."""
        name, _ = self._stage.driver.cast.definition(activity)
        self._stage.driver.cast.mishaps[name] = Mishaps(sure=True)

    def calls(self, activity: Activity[..., Any] | str) -> list[Call]:
        """Every attempt of an activity so far, in order: compare them with `call(…)`."""
        name, _ = self._stage.driver.cast.definition(activity)
        return self._stage.attempts.calls(name)

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
        stage = self._stage
        when = stage.driver.clock.now_ns() + span(duration, weeks, days, hours, minutes, seconds)
        return Later(stage.driver, stage.session, when)

    def at(self, time: datetime) -> Later:
        """A point in virtual time; one that has passed means now."""
        stage = self._stage
        return Later(stage.driver, stage.session, as_ns(time))
