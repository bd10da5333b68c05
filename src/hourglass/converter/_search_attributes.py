"""Search attributes: typed keys, and the encoding of their values.

Services read search attributes, so the values are plain JSON together with their type, regardless of the program's
converter. `SearchAttributeKey.for_keyword("Region").value_set("eu")` is an update that sets a value; `value_unset()` removes
the value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeAlias, TypeVar, cast

from hourglass.converter._converter import default_converter
from hourglass.converter._data import Payload
from hourglass.errors import UsageError

T = TypeVar("T")

_VALUES: dict[str, tuple[type, ...]] = {
    "Text": (str,),
    "Keyword": (str,),
    "Int": (int,),
    "Double": (float, int),
    "Bool": (bool,),
    "Datetime": (datetime,),
    "KeywordList": (list, tuple),
}


@dataclass(frozen=True)
class SearchAttributeKey(Generic[T]):
    """The name of a search attribute and the type of its values. Create a key with the `for_…` functions."""

    name: str
    type: str

    def __post_init__(self) -> None:
        _name(self.name)
        if self.type not in _VALUES:
            raise UsageError(
                f"search attribute {self.name}: unknown type {self.type!r}; known types: {', '.join(_VALUES)}"
            )

    @staticmethod
    def for_text(name: str) -> SearchAttributeKey[str]:
        """Return a key for text, indexed by words."""
        return SearchAttributeKey(name, "Text")

    @staticmethod
    def for_keyword(name: str) -> SearchAttributeKey[str]:
        """Return a key for a str that is matched exactly."""
        return SearchAttributeKey(name, "Keyword")

    @staticmethod
    def for_int(name: str) -> SearchAttributeKey[int]:
        """Return a key for an int."""
        return SearchAttributeKey(name, "Int")

    @staticmethod
    def for_float(name: str) -> SearchAttributeKey[float]:
        """Return a key for a float."""
        return SearchAttributeKey(name, "Double")

    @staticmethod
    def for_bool(name: str) -> SearchAttributeKey[bool]:
        """Return a key for a bool."""
        return SearchAttributeKey(name, "Bool")

    @staticmethod
    def for_datetime(name: str) -> SearchAttributeKey[datetime]:
        """Return a key for a datetime with a time zone."""
        return SearchAttributeKey(name, "Datetime")

    @staticmethod
    def for_keyword_list(name: str) -> SearchAttributeKey[Sequence[str]]:
        """Return a key for a list of str, each matched exactly."""
        return SearchAttributeKey(name, "KeywordList")

    def value_set(self, value: T) -> SearchAttributeUpdate:
        """Return an update that sets this value."""
        _check_value(self.name, self.type, value)
        return SearchAttributeUpdate(self.name, self.type, value)

    def value_unset(self) -> SearchAttributeUpdate:
        """Return an update that removes the value."""
        return SearchAttributeUpdate(self.name, self.type, None)


@dataclass(frozen=True)
class SearchAttributeUpdate:
    """A new value for a search attribute. None removes the attribute."""

    name: str
    type: str
    value: Any


SearchAttributes: TypeAlias = Mapping[str, Any] | Iterable[SearchAttributeUpdate]
"""Accepted forms of search attributes: updates created by typed keys, or values by name, with types that the service
knows."""


def encode_search_attributes(attributes: SearchAttributes) -> dict[str, Payload]:
    """Encode search attributes. Raise `UsageError` for an invalid value."""
    if isinstance(attributes, Mapping):
        updates = [
            SearchAttributeUpdate(_name(name), _type_of(name, value), value)
            for name, value in cast(Mapping[str, Any], attributes).items()
        ]
    else:
        try:
            updates = list(attributes)
        except TypeError:
            raise UsageError(
                f"search attributes must be a dict of names to values, not {type(attributes).__name__}"
            ) from None
    encoded: dict[str, Payload] = {}
    for update in updates:
        if not isinstance(update, SearchAttributeUpdate):
            raise UsageError(
                "search attributes must be a dict of names to values, or a list of key.value_set(…), not "
                f"{type(update).__name__}"
            )
        encoded[update.name] = _encode(update)
    return encoded


def _name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise UsageError(f"the name of a search attribute must be a non-empty str, not {name!r:.100}")
    return name


def decode_search_attribute(payload: Payload) -> Any:
    """Return the value of a search attribute."""
    kind = (payload.metadata or {}).get("type", b"")
    return default_converter.decode(payload, datetime if kind == b"Datetime" else Any)


def _encode(update: SearchAttributeUpdate) -> Payload:
    plain = default_converter.encode(update.value)
    if not update.type:
        return plain
    return Payload(plain.data, plain.encoding, {"type": update.type.encode()})


def _type_of(name: str, value: Any) -> str:
    if value is None or isinstance(value, str):
        return ""  # Keyword or Text: only the service knows
    for kind in ("Bool", "Int", "Double", "Datetime", "KeywordList"):
        if isinstance(value, _VALUES[kind]):
            _check_value(name, kind, value)
            return kind
    raise UsageError(f"search attribute {name} cannot be of type {type(value).__name__}")


def _check_value(name: str, kind: str, value: Any) -> None:
    right = isinstance(value, _VALUES[kind]) and (kind == "Bool" or not isinstance(value, bool))
    if kind == "KeywordList":
        right = isinstance(value, (list, tuple)) and all(isinstance(member, str) for member in value)
    if not right:
        raise UsageError(
            f"search attribute {name} is of type {kind} and cannot hold a {type(value).__name__}"
        )
    if isinstance(value, datetime) and value.tzinfo is None:
        raise UsageError(f"search attribute {name} must be a datetime with a time zone")
