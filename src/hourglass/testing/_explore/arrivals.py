"""Arrivals: messages and calls that reach an explored workflow from outside, at any time or in a window of virtual time.

    sometime().signal(decisions, "yes")
    sometime(after=timedelta(days=1), before=timedelta(days=3)).cancel()

Arrivals are data; the driver of an order sends them. Each arrival is sent once, unless the workflow closes first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar, TypeVarTuple, overload

from hourglass._embedded.clock import to_ns
from hourglass._evaluator.options import Duration, optional_seconds, seconds
from hourglass.client import WorkflowHandle
from hourglass.errors import ServiceError, UpdateFailedError, UsageError
from hourglass.workflow import Channel

ArrivalState: TypeAlias = Literal["early", "ready", "due"]
"""Whether an arrival may not be sent yet, may be sent, or must be sent before time passes."""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@dataclass(frozen=True)
class Arrival:
    """A message or call from outside. Times are in nanoseconds since the start of the workflow."""

    name: str
    send: Callable[[WorkflowHandle[Any]], object]
    after_ns: int = 0
    before_ns: int | None = None

    def state(self, elapsed_ns: int) -> ArrivalState:
        """Return the arrival's state at this time after the start."""
        if elapsed_ns < self.after_ns:
            return "early"
        return "due" if self.before_ns is not None and self.before_ns <= elapsed_ns else "ready"

    def __repr__(self) -> str:
        return f"<{self.name}, sometime>"


@dataclass(frozen=True)
class Sometime:
    """A window of virtual time in which a message or call arrives."""

    after_ns: int
    before_ns: int | None

    @overload
    def signal(self, signal: str, /, *args: Any) -> Arrival: ...
    @overload
    def signal(self, signal: Channel[T], value: T, /) -> Arrival: ...
    @overload
    def signal(self, signal: Callable[[*Ts], None], /, *args: *Ts) -> Arrival: ...
    def signal(self, signal: Any, /, *args: Any) -> Arrival:  # type: ignore[misc]
        """Return the arrival of a signal."""
        arguments = ", ".join(map(repr, args))
        return self._arrival(
            f"signal {_name(signal)}({arguments})", lambda handle: handle.signal(signal, *args)
        )

    @overload
    def update(self, update: str, /, *args: Any) -> Arrival: ...
    @overload
    def update(self, update: Callable[[*Ts], Any], /, *args: *Ts) -> Arrival: ...
    def update(self, update: Any, /, *args: Any) -> Arrival:  # type: ignore[misc]
        """Return the arrival of an update. Its sender waits for the result. A failed or rejected update does not violate a
        property.
        """
        arguments = ", ".join(map(repr, args))

        def send(handle: WorkflowHandle[Any]) -> None:
            with suppress(UpdateFailedError, ServiceError):
                handle.execute_update(update, *args)

        return self._arrival(f"update {_name(update)}({arguments})", send)

    def cancel(self, reason: str = "") -> Arrival:
        """Return the arrival of a cancellation request."""
        return self._arrival("a request to cancel", lambda handle: handle.cancel(reason))

    def terminate(self, reason: str = "") -> Arrival:
        """Return the arrival of a termination."""
        return self._arrival("a termination", lambda handle: handle.terminate(reason))

    def call(self, function: Callable[[WorkflowHandle[Any]], object], /) -> Arrival:
        """Return the arrival of a function call. The function receives the workflow's handle."""
        return self._arrival(f"call of {_name(function)}", function)

    def _arrival(self, name: str, send: Callable[[WorkflowHandle[Any]], object]) -> Arrival:
        return Arrival(name, send, self.after_ns, self.before_ns)


def sometime(*, after: Duration = 0, before: Duration | None = None) -> Sometime:
    """Return a time window for arrivals, by default unlimited: `sometime().signal(approve)`. `after` and `before` are
    durations since the start of the workflow.
    """
    least, most = to_ns(seconds(after, "after")), optional_seconds(before, "before")
    if most is not None and to_ns(most) < least:
        raise UsageError("sometime(after=…, before=…): the window ends before it begins")
    return Sometime(least, None if most is None else to_ns(most))


def checked_arrivals(arrivals: Sequence[object]) -> tuple[Arrival, ...]:
    """Return the arrivals as a tuple. Raise `UsageError` if an object is not an arrival."""
    for arrival in arrivals:
        if not isinstance(arrival, Arrival):
            raise UsageError(
                f"arrivals= must be a list of arrivals, such as sometime().signal(…), not {arrival!r:.80}"
            )
    return tuple(arrival for arrival in arrivals if isinstance(arrival, Arrival))


def _name(obj: object) -> str:
    name = obj if isinstance(obj, str) else getattr(obj, "name", None) or getattr(obj, "__name__", None)
    return str(name or type(obj).__name__)
