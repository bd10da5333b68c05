"""How temporalio's calls are given: arguments one by one or as `args=[…]`, and None for an option that is not given. Also
converters under its names, which dynamic handlers ask for their arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, overload

from hourglass.converter import Converter, Payload
from hourglass.errors import UsageError

T = TypeVar("T")


def given_values(given: tuple[Any, ...], args: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments, given one by one or together."""
    if args and given:
        raise UsageError("arguments are given by position or as args=[…], not both")
    return given or tuple(args)


def given_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given, in our terms: None is what they are without it."""
    said = {name: value for name, value in options.items() if value is not None}
    if "priority" in said:
        priority = said.pop("priority")
        said["priority_key"] = priority.priority_key or 0
        said["fairness_key"] = priority.fairness_key or ""
        said["fairness_weight"] = priority.fairness_weight or 0.0
    said.pop("versioning_intent", None)
    return said


class PayloadConverter:
    """How values become payloads, and back, under temporalio's names."""

    def __init__(self, converter: Converter) -> None:
        self.wrapped = converter

    def to_payload(self, value: Any) -> Payload:
        """A value as a payload."""
        return self.wrapped.encode(value)

    def to_payloads(self, values: Sequence[Any]) -> list[Payload]:
        """Values as payloads, in their order."""
        return list(self.wrapped.encode_all(values))

    @overload
    def from_payload(self, payload: Payload) -> Any: ...
    @overload
    def from_payload(self, payload: Payload, type_hint: type[T]) -> T: ...
    @overload
    def from_payload(self, payload: Payload, type_hint: Any) -> Any: ...
    def from_payload(self, payload: Payload, type_hint: Any = None) -> Any:
        """The value of a payload, as the given type. Raises `DecodeError`."""
        return self.wrapped.decode(payload, Any if type_hint is None else type_hint)

    def from_payloads(
        self, payloads: Sequence[Payload], type_hints: Sequence[Any] | None = None
    ) -> list[Any]:
        """The values of payloads; those beyond the last type are decoded without one."""
        hints = list(type_hints or ())
        hints += [None] * (len(payloads) - len(hints))
        return [self.from_payload(payload, hint) for payload, hint in zip(payloads, hints, strict=False)]
