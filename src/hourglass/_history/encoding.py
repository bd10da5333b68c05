"""The stored form of data: MessagePack.

Must not know: SQL, or the meaning of the data. The transition that writes an event also encodes it, only once. The
encoded length counts towards the limits of the run, and the bytes are stored unchanged. Invariants: every decided change
can be encoded, even if a name contains a lone surrogate. `array` with encoded values is equal to the encoded list of
these values. Data of a released version remains readable for years: a new field has a default, and a default never
changes, because values equal to it are not written.
"""

from __future__ import annotations

from functools import reduce
from operator import attrgetter, or_
from types import GenericAlias
from typing import Any

import msgspec

from hourglass._evaluator.commands import EventGroupMarker
from hourglass._history import events as h

_encode = msgspec.msgpack.Encoder().encode
_FEW = [bytes((0x90 | count,)) for count in range(16)]


def encode(value: Any) -> bytes:
    """Encode a value."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        # A lone surrogate in a name must not fail the commit, because the commit also contains changes of other runs.
        return _encode(_repair(msgspec.to_builtins(value, builtin_types=(bytes,), str_keys=False)))


def array(count: int, encoded: bytes) -> bytearray:
    """Return an encoded list from `count` concatenated encoded values."""
    if count < 16:
        head = _FEW[count]
    else:
        head = b"\xdc" + count.to_bytes(2, "big") if count < 1 << 16 else b"\xdd" + count.to_bytes(4, "big")
    return bytearray().join((head, encoded))


def plain(text: str) -> str:
    """Return the text in a form that UTF-8 can encode. Lone surrogates, which come from file names, are replaced."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _repair(value: Any) -> Any:
    match value:
        case str():
            return plain(value)
        case dict():
            return {_repair(key): _repair(member) for key, member in value.items()}
        case list() | tuple():
            return [_repair(member) for member in value]
        case _:
            return value


def stored_default(field: msgspec.structs.FieldInfo) -> tuple[Any, ...]:
    """Return the default of a struct's field in the form that `defstruct` expects, or an empty tuple for a required
    field.
    """
    if field.required:
        return ()
    if field.default_factory is not msgspec.NODEFAULT:
        return (msgspec.field(default_factory=field.default_factory),)
    return (field.default,)


ANY_KIND: Any = reduce(or_, h.KINDS)
"""The union of all kinds of events. The decoder uses it to select the kind of each event."""

_stored_event: Any = msgspec.defstruct(
    "StoredEvent",
    [
        ("id", int),
        ("time_ns", int),
        ("attributes", ANY_KIND),
        ("event_groups", tuple[EventGroupMarker, ...], ()),
    ],
    frozen=True,
    gc=False,
)
_decoder: Any = msgspec.msgpack.Decoder(GenericAlias(list, (_stored_event,)))


def encode_events(events: list[h.HistoryEvent] | tuple[h.HistoryEvent, ...]) -> bytes:
    """Return the stored form of events: an encoded list without the list's header."""
    count = len(events)
    try:
        encoded = _encode(events)
    except UnicodeEncodeError:
        encoded = encode(events)
    return encoded[1 if count < 16 else 3 if count < 1 << 16 else 5 :]


_INTEGERS = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
"""The size of an unsigned integer in bytes, by its type byte."""


def first_time_ns(head: bytes) -> int:
    """Return the timestamp of the first stored event, given the first bytes of the stored form. Raise ValueError if
    there is no valid timestamp.
    """
    value = head.partition(b"\xa7time_ns")[2]
    if value and value[0] < 0x80:
        return value[0]
    size = _INTEGERS.get(value[0], 0) if value else 0
    if not size or len(value) <= size:
        raise ValueError("not a valid event time")
    return int.from_bytes(value[1 : 1 + size], "big")


def decode_events(data: bytes) -> list[h.HistoryEvent]:
    """Decode a list of events. Raise a ValueError of msgspec for invalid bytes."""
    return [h.HistoryEvent(*_values(event)) for event in _decoder.decode(data)]


_values = attrgetter("id", "time_ns", "attributes", "event_groups")
