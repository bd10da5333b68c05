"""Scheduled actions: `env.after(days=3).signal(handle, approve, "yes")`.

An action is created and checked when the test schedules it, and performed when virtual time reaches its time. If the action
fails then, the current wait raises its error.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any, ParamSpec, TypeVar, TypeVarTuple, overload

from hourglass.client import _operations
from hourglass.client._faces import HandleFacts
from hourglass.client._session import ClientOperation, ClientSession
from hourglass.testing._driver import EnvironmentDriver
from hourglass.testing._steps import Step
from hourglass.testing._virtual_time import as_datetime
from hourglass.workflow import Channel

P = ParamSpec("P")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


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
