"""The recorded calls of activities: `env.calls(charge) == [call("o-1", 1200)]`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from hourglass._contract.handle import ActivityTask
from hourglass.converter import Converter
from hourglass.errors import HourglassError
from hourglass.testing._fakes import Fake
from hourglass.testing._virtual_time import as_datetime


@dataclass(frozen=True, eq=False)
class Call:
    """An attempt of an activity: its arguments, its attempt number, and its time.

    Two calls are equal if their arguments are equal, whether the arguments are passed by position, by name, or as defaults.
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
        """Whether the function returned, even if its result was lost on the way to the engine."""
        return "returned" in self.outcome

    @property
    def time(self) -> datetime:
        """The virtual time of the call."""
        return as_datetime(self.time_ns)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Call):
            return NotImplemented
        signature = _signature(self.function or other.function)
        return self._bound(signature) == other._bound(signature)

    __hash__ = None  # type: ignore[assignment]  # arguments may be of any type

    def __repr__(self) -> str:
        arguments = [repr(value) for value in self.args] + [
            f"{key}={value!r}" for key, value in self.kwargs.items()
        ]
        attempt = f" (attempt {self.attempt})" if self.attempt > 1 else ""
        return f"call({', '.join(arguments)}){attempt}"

    def _bound(self, signature: inspect.Signature | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if signature is None:
            return self.args, self.kwargs
        try:
            bound = signature.bind(*self.args, **self.kwargs)
        except TypeError:  # not a valid call of this function, so it equals no recorded call
            return self.args, self.kwargs
        bound.apply_defaults()
        return bound.args, bound.kwargs


@dataclass(slots=True, eq=False)
class RecordedAttempt:
    """An attempt that was started. Its arguments are decoded only when the test reads them, because few tests do."""

    task: ActivityTask
    fake: Fake
    time_ns: int
    outcome: list[str] = field(default_factory=list)
    _call: Call | None = None
    _is_decoded: bool = False

    def call(self, converter: Converter) -> Call | None:
        """Return the call. Return None if its arguments cannot be decoded; the attempt has then failed with that error."""
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
        return None  # some callables written in C have no signature


def call(*args: Any, **kwargs: Any) -> Call:
    """Return a call to compare with recorded calls."""
    return Call(args, kwargs)
