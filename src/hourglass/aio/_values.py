"""The conversion of temporalio's arguments and options: a single argument as `arg`, several as `args=[…]`, and None for an
unset option. Also payload converters with temporalio's names, for dynamic handlers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, Required, TypedDict, TypeVar, overload

from hourglass.converter import Converter, Payload
from hourglass.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")
T = TypeVar("T")


class _Unset:
    def __repr__(self) -> str:
        return "UNSET"


UNSET: Any = _Unset()
"""The default of parameters for which None is a valid value."""


def positional_values(arg: Any, more: tuple[Any, ...], args: Sequence[Any] | None) -> tuple[Any, ...]:
    """Return the arguments of a call. They are passed individually (`arg` and `more`) or together (`args`)."""
    if arg is UNSET:
        return tuple(args or ())
    if args:
        raise UsageError("pass arguments by position or as args=[…], not both")
    return (arg, *more)


def takes(options: type | Iterable[str]) -> Callable[[F], F]:
    """Decorate a function with `**options`: list the names, or the options of a `TypedDict`, in its signature, for `help` and
    editors.
    """
    names = options.__annotations__ if isinstance(options, type) else options

    def name_options(function: F) -> F:
        signature = inspect.signature(function)
        own = [
            parameter
            for parameter in signature.parameters.values()
            if parameter.kind is not parameter.VAR_KEYWORD
        ]
        keyword = inspect.Parameter.KEYWORD_ONLY
        more = [
            inspect.Parameter(name, keyword, default=None)
            for name in dict.fromkeys(names)
            if name not in signature.parameters
        ]
        function.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
        return function

    return name_options


def overloaded(options: type) -> Callable[[Any], Any]:
    """Like `takes`, for the implementation of an overloaded function. Type checkers then do not compare it with the
    overloads.
    """
    return takes(options)


def chosen_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are set, under our names. None means unset."""
    chosen = {name: value for name, value in options.items() if value is not None}
    reject_intent(chosen.pop("versioning_intent", None))
    if "priority" in chosen:
        chosen |= chosen.pop("priority").options()
    return chosen


def reject_intent(versioning_intent: object) -> None:
    """Raise `UsageError` if temporalio's older method of selecting a worker version is used."""
    if versioning_intent is not None:
        raise UsageError(
            "versioning_intent is not supported: set a worker's version by deployment_config=WorkerDeploymentConfig(…)"
        )


def reject_option(value: object, name: str, why: str) -> None:
    """Raise `UsageError` if an unsupported option of temporalio is set."""
    if value:
        raise UsageError(f"{name} is not supported: {why}")


def without_defaults(options: Mapping[str, Any], defaults: Mapping[str, object]) -> dict[str, Any]:
    """Return the options that differ from temporalio's defaults, so that only options set deliberately are rejected."""
    return {
        name: value
        for name, value in options.items()
        if value is not None and not (name in defaults and value == defaults[name])
    }


class Named(TypedDict, total=False):
    """The arguments of a call by name, and the type of its result."""

    arg: Any
    args: Sequence[Any]
    result_type: Any


class NamedAs(TypedDict, Generic[R], total=False):
    """The arguments of a call by name with a typed result."""

    arg: Any
    args: Sequence[Any]
    result_type: Required[type[R]]


class Listed(TypedDict):
    """The arguments of a call as one sequence."""

    args: Sequence[Any]


class Single(TypedDict, Generic[T]):
    """The only argument of a call, by keyword."""

    arg: T


class PayloadConverter:
    """Converts values to payloads and payloads to values, with temporalio's names."""

    def __init__(self, converter: Converter) -> None:
        self.wrapped = converter

    def to_payload(self, value: Any) -> Payload:
        """Convert a value to a payload."""
        return self.wrapped.encode(value)

    def to_payloads(self, values: Sequence[Any]) -> list[Payload]:
        """Convert values to payloads, in order."""
        return list(self.wrapped.encode_all(values))

    @overload
    def from_payload(self, payload: Payload) -> Any: ...
    @overload
    def from_payload(self, payload: Payload, type_hint: type[T]) -> T: ...
    @overload
    def from_payload(self, payload: Payload, type_hint: Any) -> Any: ...
    def from_payload(self, payload: Payload, type_hint: Any = None) -> Any:
        """Decode a payload as this type. Raise `DecodeError` if that fails."""
        return self.wrapped.decode(payload, Any if type_hint is None else type_hint)

    def from_payloads(
        self, payloads: Sequence[Payload], type_hints: Sequence[Any] | None = None
    ) -> list[Any]:
        """Decode payloads. Payloads without a type hint are decoded without a type."""
        hints = list(type_hints or ())
        hints += [None] * (len(payloads) - len(hints))
        return [self.from_payload(payload, hint) for payload, hint in zip(payloads, hints, strict=False)]
