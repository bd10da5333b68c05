"""Arrivals: messages and calls that reach an explored workflow from outside, at any time or in a window of virtual time.

    sometime().signal(decisions, "yes")
    sometime(after=timedelta(days=1), before=timedelta(days=3)).cancel()

They are data, sent by the driver of an order. Each arrives once, unless the workflow has closed before.
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

Standing: TypeAlias = Literal["early", "ready", "due"]
"""It cannot come yet; it may come; it must come before time goes on."""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@dataclass(frozen=True)
class Arrival:
    """Something that comes from outside. Times are nanoseconds since the workflow was started."""

    name: str
    send: Callable[[WorkflowHandle[Any]], object]
    after_ns: int = 0
    before_ns: int | None = None

    def standing(self, passed_ns: int) -> Standing:
        """Whether it may come, so long after the start."""
        if passed_ns < self.after_ns:
            return "early"
        return "due" if self.before_ns is not None and self.before_ns <= passed_ns else "ready"

    def __repr__(self) -> str:
        return f"<{self.name}, sometime>"


@dataclass(frozen=True)
class Sometime:
    """A window of virtual time, in which something comes."""

    after_ns: int
    before_ns: int | None

    @overload
    def signal(self, signal: str, /, *args: Any) -> Arrival: ...
    @overload
    def signal(self, signal: Channel[T], value: T, /) -> Arrival: ...
    @overload
    def signal(self, signal: Callable[[*Ts], None], /, *args: *Ts) -> Arrival: ...
    def signal(self, signal: Any, /, *args: Any) -> Arrival:  # type: ignore[misc]
        """A signal."""
        given = ", ".join(repr(each) for each in args)
        return self._arrival(f"signal {_name(signal)}({given})", lambda handle: handle.signal(signal, *args))

    @overload
    def update(self, update: str, /, *args: Any) -> Arrival: ...
    @overload
    def update(self, update: Callable[[*Ts], Any], /, *args: *Ts) -> Arrival: ...
    def update(self, update: Any, /, *args: Any) -> Arrival:  # type: ignore[misc]
        """An update, whose sender waits for the answer; one that is refused is no matter of the exploration's."""
        given = ", ".join(repr(each) for each in args)

        def send(handle: WorkflowHandle[Any]) -> None:
            with suppress(UpdateFailedError, ServiceError):
                handle.execute_update(update, *args)

        return self._arrival(f"update {_name(update)}({given})", send)

    def cancel(self, reason: str = "") -> Arrival:
        """A request to cancel the workflow."""
        return self._arrival("a request to cancel", lambda handle: handle.cancel(reason))

    def terminate(self, reason: str = "") -> Arrival:
        """The end of the workflow, from outside."""
        return self._arrival("a termination", lambda handle: handle.terminate(reason))

    def call(self, function: Callable[[WorkflowHandle[Any]], object], /) -> Arrival:
        """Anything else: a function that gets the workflow's handle."""
        return self._arrival(f"call of {_name(function)}", function)

    def _arrival(self, name: str, send: Callable[[WorkflowHandle[Any]], object]) -> Arrival:
        return Arrival(name, send, self.after_ns, self.before_ns)


def sometime(*, after: Duration = 0, before: Duration | None = None) -> Sometime:
    """At any time, or not before and not after so long from the workflow's start: `sometime().signal(approve)`."""
    least, most = to_ns(seconds(after, "after")), optional_seconds(before, "before")
    if most is not None and to_ns(most) < least:
        raise UsageError("sometime(after=…, before=…): the window ends before it begins")
    return Sometime(least, None if most is None else to_ns(most))


def checked_arrivals(given: Sequence[object]) -> tuple[Arrival, ...]:
    """What an author lists as arrivals."""
    for each in given:
        if not isinstance(each, Arrival):
            raise UsageError(f"arrivals= takes what sometime().signal(…) and the like make, not {each!r:.80}")
    return tuple(each for each in given if isinstance(each, Arrival))


def _name(given: object) -> str:
    name = (
        given if isinstance(given, str) else getattr(given, "name", None) or getattr(given, "__name__", None)
    )
    return str(name or type(given).__name__)
