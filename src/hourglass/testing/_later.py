"""What a test puts down for later: `env.after(days=3).signal(handle, approve, "yes")`.

Each action is built and checked when it is put down, and done when virtual time has come there. One that fails
then is raised by the wait that met it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any, ParamSpec, TypeVar, TypeVarTuple, overload

from hourglass.client import _operations
from hourglass.client._faces import HandleFacts
from hourglass.client._session import Operation, Session
from hourglass.testing._choosing import Step
from hourglass.testing._driver import Driver
from hourglass.testing._virtual_time import as_datetime
from hourglass.workflow import Channel

P = ParamSpec("P")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Later:
    """A point in virtual time, at which something shall happen."""

    def __init__(self, driver: Driver, session: Session, when_ns: int) -> None:
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

    def _ask(self, operation: Operation[None]) -> None:
        self._driver.loop.run_until_complete(operation.ask(self._session))
