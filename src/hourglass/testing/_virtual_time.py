"""Virtual time: conversion of dates and durations, and the activity executor's timers on the virtual clock.

Tests use `datetime`, `timedelta` and `days=3`; the engine counts nanoseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict

from hourglass._embedded import VirtualClock
from hourglass._embedded.clock import SECOND, to_ns
from hourglass._evaluator.options import Duration, seconds
from hourglass.errors import UsageError


class DurationParts(TypedDict, total=False):
    """A duration as the sum of its parts."""

    weeks: float
    days: float
    hours: float
    minutes: float
    seconds: float


def span(method: str, duration: Duration | None, named_parts: DurationParts) -> int:
    """Return a duration in nanoseconds. It is passed to a method as a single value or in parts."""
    for name in named_parts.keys() - DurationParts.__annotations__.keys():
        raise TypeError(
            f"{method}() got an unexpected keyword argument {name!r}; the parts of a duration are "
            f"{', '.join(DurationParts.__annotations__)}"
        )
    parts = timedelta(**named_parts)
    if duration is not None and parts:
        raise UsageError("pass a duration, or its parts by name (days=3, hours=12), not both")
    if duration is None and not parts:
        raise UsageError("pass a duration: a timedelta, seconds, or its parts by name (days=3, hours=12)")
    chosen = parts if duration is None else duration
    if isinstance(chosen, timedelta):
        seconds(chosen)
        return (chosen // timedelta(microseconds=1)) * 1000
    return round(seconds(chosen) * SECOND)


def as_datetime(ns: int) -> datetime:
    """Convert a virtual time to a `datetime` in UTC, rounded down to microseconds."""
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=ns // 1000)


def as_ns(time: datetime) -> int:
    """Convert a `datetime` with a time zone to nanoseconds since the epoch."""
    if not isinstance(time, datetime) or time.tzinfo is None:
        raise UsageError("a time must be a datetime with a time zone")
    return ((time - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)) * 1000


class VirtualTimer:
    """A callback that the virtual clock will call."""

    __slots__ = ("_cancel",)

    def __init__(self, cancel: Callable[[], object]) -> None:
        self._cancel = cancel

    def cancel(self) -> None:
        """Cancel the callback."""
        self._cancel()


class VirtualTimers:
    """The virtual clock as the activity executor sees it (`Timers`), in seconds since the environment's start."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._start_ns = clock.now_ns()

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return (self._clock.now_ns() - self._start_ns) / SECOND

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> VirtualTimer:
        """Call `callback(*args)` after `delay` seconds of virtual time."""
        when = self._clock.now_ns() + to_ns(delay)
        return VirtualTimer(self._clock.call_at(when, _call(callback, args)))


def _call(callback: Callable[..., object], args: tuple[Any, ...]) -> Callable[[], None]:
    def call() -> None:
        callback(*args)

    return call
