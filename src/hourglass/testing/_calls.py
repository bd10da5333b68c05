"""What was called: `env.calls(charge) == [call("o-1", 1200)]`; and virtual times and durations. Pure.

Times and durations are `datetime`, `timedelta`, `days=3` where a test writes them, and nanoseconds inside.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from hourglass._contract.handle import ActivityTask
from hourglass._embedded.clock import SECOND
from hourglass._engine.options import Duration, seconds
from hourglass.converter import Converter
from hourglass.errors import HourglassError, UsageError
from hourglass.testing._fakes import Fake

# --- virtual time ---------------------------------------------------------------------------------


def span(
    duration: Duration | None, weeks: float, days: float, hours: float, minutes: float, seconds_: float
) -> int:
    """A duration, given as one or in parts, as nanoseconds."""
    parts = timedelta(weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds_)
    if duration is not None and parts:
        raise UsageError("give a duration, or its parts by name (days=3, hours=12), not both")
    if duration is None and not parts:
        raise UsageError("give a duration: a timedelta, seconds, or its parts by name (days=3, hours=12)")
    chosen = parts if duration is None else duration
    if isinstance(chosen, timedelta):
        seconds(chosen)
        return (chosen // timedelta(microseconds=1)) * 1000
    return round(seconds(chosen) * SECOND)


def as_datetime(ns: int) -> datetime:
    """A virtual time as a `datetime` in UTC, to the microsecond."""
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=ns // 1000)


def as_ns(time: datetime) -> int:
    """A `datetime` as nanoseconds since the epoch; it must know its time zone."""
    if not isinstance(time, datetime) or time.tzinfo is None:
        raise UsageError("a time must be a datetime with a time zone")
    return ((time - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)) * 1000


# --- calls ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Call:
    """One attempt of an activity: with what it was called, the how-manieth attempt it was, and when.

    Equal to another, or to `call(…)`, if the arguments are, however they were given: by position, by name or by
    default.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    activity: str = ""
    attempt: int = 0
    time_ns: int = field(default=0, repr=False)
    workflow_id: str = ""
    function: Callable[..., Any] | None = field(default=None, repr=False)
    outcome: list[str] = field(default_factory=list, repr=False)

    @property
    def returned(self) -> bool:
        """Whether it did its work and returned, be it that its answer was lost."""
        return "returned" in self.outcome

    @property
    def time(self) -> datetime:
        """When, in virtual time."""
        return as_datetime(self.time_ns)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Call):
            return NotImplemented
        signature = _signature(self.function or other.function)
        return self._bound(signature) == other._bound(signature)

    __hash__ = None  # type: ignore[assignment]  # arguments may be anything

    def __repr__(self) -> str:
        given = [repr(each) for each in self.args] + [
            f"{key}={value!r}" for key, value in self.kwargs.items()
        ]
        again = f" (attempt {self.attempt})" if self.attempt > 1 else ""
        return f"call({', '.join(given)}){again}"

    def _bound(self, signature: inspect.Signature | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if signature is None:
            return self.args, self.kwargs
        try:
            bound = signature.bind(*self.args, **self.kwargs)
        except TypeError:  # not a call of this function: equal to none that is
            return self.args, self.kwargs
        bound.apply_defaults()
        return bound.args, bound.kwargs


@dataclass(slots=True, eq=False)
class Recorded:
    """An attempt that was begun, as it came. What it was called with is decoded when the test asks: few do."""

    task: ActivityTask
    fake: Fake
    time_ns: int
    outcome: list[str] = field(default_factory=list)
    _call: Call | None = None
    _is_decoded: bool = False

    def call(self, converter: Converter) -> Call | None:
        """The call; None where its arguments cannot be decoded: the attempt has failed with that."""
        if not self._is_decoded:
            self._is_decoded = True
            try:
                arguments = self.fake.definition.arguments(converter, self.task.arguments)
            except HourglassError:
                return None
            self._call = Call(
                tuple(arguments),
                activity=self.task.activity_type,
                attempt=self.task.attempt,
                time_ns=self.time_ns,
                workflow_id=self.task.workflow_id,
                function=self.fake.shown,
                outcome=self.outcome,
            )
        return self._call


def _signature(function: Callable[..., Any] | None) -> inspect.Signature | None:
    try:
        return None if function is None else inspect.signature(function)
    except (TypeError, ValueError):
        return None  # some callables of C do not say what they take


def call(*args: Any, **kwargs: Any) -> Call:
    """What a call is compared with."""
    return Call(args, kwargs)
