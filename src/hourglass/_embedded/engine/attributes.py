"""Search attributes as the engine takes them: which names are whose, of which type each is, how large a value may be.

Must not know: requests, commands, filters. A server has its attributes registered by an operator; here one is known from
its first use, with the type that it had then, as in the index (see `visibility`). From then on it is checked as on a
server: the value counts, not the type that its sender wrote beside it. Refusals are worded as a server words them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from hourglass._embedded.rules.limits import Limits
from hourglass._embedded.store.search_attributes import SETTABLE, SYSTEM, AttributeType, fits, type_of
from hourglass._embedded.store.store import Store
from hourglass.converter import Payload


class Flaw(NamedTuple):
    """Why search attributes are refused; `too_large`: a server ends a run that asks for such ones."""

    message: str
    too_large: bool = False


class AttributeTypes:
    """The types of the search attributes of one engine."""

    def __init__(self, store: Store, limits: Limits) -> None:
        self._store = store
        self._limits = limits
        self._known: dict[str, AttributeType] | None = None

    def flaw(self, attributes: Mapping[str, Payload]) -> Flaw | None:
        """What is wrong with these; None if nothing is."""
        limits = self._limits
        if len(attributes) > limits.attributes:
            return Flaw(f"number of search attributes {len(attributes)} exceeds limit {limits.attributes}")
        for name, payload in attributes.items():
            wrong = self._flaw(name, payload)
            if wrong:
                return Flaw(wrong)
        total = 0
        for name, payload in attributes.items():
            size = len(payload.data)
            total += len(name.encode()) + size
            if size > limits.attribute_bytes:
                what = (
                    f"search attribute {name} value size {size} exceeds size limit {limits.attribute_bytes}"
                )
                return Flaw(what, too_large=True)
        if total > limits.attributes_bytes:
            what = f"total size of search attributes {total} exceeds size limit {limits.attributes_bytes}"
            return Flaw(what, too_large=True)
        return None

    def learn(self, attributes: Mapping[str, Payload]) -> None:
        """These are in use now."""
        known = self._types()
        for name, payload in attributes.items():
            if name not in known and name not in SYSTEM and (kind := type_of(payload)) is not None:
                known[name] = kind

    def _flaw(self, name: str, payload: Payload) -> str:
        if not name:
            return "a search attribute must have a name"
        if name in SYSTEM and name not in SETTABLE:
            return f"{name} attribute can't be set in SearchAttributes"
        kind = SYSTEM.get(name) or self._types().get(name) or type_of(payload)
        if fits(payload, kind or AttributeType.KEYWORD):
            return ""
        what = "of no known type" if kind is None else f"of type {kind.value}"
        hint = "" if name in SYSTEM else " (here its type is that of its first use)"
        return f"invalid value for search attribute {name} {what}: {_shown(payload)}{hint}"

    def _types(self) -> dict[str, AttributeType]:
        if self._known is None:
            self._known = dict(self._store.attribute_types())
        return self._known


def _shown(payload: Payload) -> str:
    try:
        return _text(msgspec.json.decode(payload.data))[:200]
    except msgspec.DecodeError:
        return f"{len(payload.data)} bytes that are no JSON"


def _text(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case [*values]:
            return f"[{' '.join(map(_text, values))}]"
        case _:
            return str(value)
