"""`RawPayload`: an argument that was not decoded, because no type was given for it.

Dynamic workflows, activities and handlers take whatever comes. It can be decoded here, or given on as it is: encoding one
gives its payload back. Its `repr` never shows the data.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin, overload

from hourglass.converter._data import Payload
from hourglass.errors import DefinitionError

if TYPE_CHECKING:
    from hourglass.converter._converter import Converter
    from hourglass.converter._signature import Signature

T = TypeVar("T")

_TAKES_ALL = (list, Sequence, Collection, Iterable)


class RawPayload:
    """An argument of something dynamic, not yet decoded. Given as an argument it travels on as it is."""

    __slots__ = ("_converter", "payload")

    def __init__(self, payload: Payload, converter: Converter) -> None:
        self.payload = payload
        self._converter = converter

    @overload
    def decode(self) -> Any: ...
    @overload
    def decode(self, type: type[T]) -> T: ...
    @overload
    def decode(self, type: Any) -> Any: ...
    def decode(self, type: Any = Any) -> Any:
        """The argument as the given type. Raises `DecodeError`."""
        return self._converter.decode(self.payload, type)

    def __repr__(self) -> str:
        return f"<RawPayload {self.payload.encoding or 'without encoding'}, {len(self.payload.data)} bytes>"


def raw_payloads(payloads: Sequence[Payload], converter: Converter) -> list[RawPayload]:
    """Arguments, not decoded."""
    return [RawPayload(payload, converter) for payload in payloads]


def check_dynamic(signature: Signature, what: str) -> None:
    """Refuse a function that cannot be dynamic: it takes all arguments as one, a sequence of `RawPayload`."""
    wanted = f"{what} is dynamic: it takes one parameter, a Sequence[RawPayload] of all arguments"
    if len(signature.parameters) != 1 or not signature.takes_exactly_one:
        given = ", ".join(signature.parameters) or "none"
        raise DefinitionError(f"{wanted}; its parameters are: {given}")
    (hint,) = signature.types
    of = get_args(hint)
    if hint is not Any and (
        (get_origin(hint) or hint) not in _TAKES_ALL or of not in ((), (Any,), (RawPayload,))
    ):
        raise DefinitionError(f"{wanted}; {signature.parameters[0]!r} is annotated with something else")
