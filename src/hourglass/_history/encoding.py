"""What is stored, as bytes: MessagePack.

Must not know: SQL, what is stored. The transition that writes an event encodes it, once: its length counts against
its run's limits, and the bytes are what the store keeps. Invariants: whatever has been decided can be encoded, also
with half a character in a name; bytes of values that `array` puts a head before are those of the values in a list.
What any released version wrote can be read, for years: so an event is stored flat, the fields of its specs among its
own, as before there were specs; a field that is added has a default, and a default never changes, for what equals it
was not written.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import attrgetter, or_
from types import GenericAlias
from typing import Any, get_type_hints

import msgspec

from hourglass._engine.commands import EventGroupMarker
from hourglass._engine.specs import SPECS, RetryRule
from hourglass._history import events as h

_encode = msgspec.msgpack.Encoder().encode
_FEW = [bytes((0x90 | count,)) for count in range(16)]


def encode(value: Any) -> bytes:
    """A value as bytes."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        # A lone surrogate in one name must not fail the commit that the changes of other runs share.
        return _encode(_mend(msgspec.to_builtins(value, builtin_types=(bytes,), str_keys=False)))


def array(count: int, encoded: bytes) -> bytearray:
    """So many encoded values, one after the other, as an encoded list of them."""
    if count < 16:
        head = _FEW[count]
    else:
        head = b"\xdc" + count.to_bytes(2, "big") if count < 1 << 16 else b"\xdd" + count.to_bytes(4, "big")
    return bytearray().join((head, encoded))


def plain(text: str) -> str:
    """Text that UTF-8 can hold: lone surrogates, which come from file names, are replaced."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _mend(value: Any) -> Any:
    match value:
        case str():
            return plain(value)
        case dict():
            return {_mend(key): _mend(each) for key, each in value.items()}
        case list() | tuple():
            return [_mend(each) for each in value]
        case _:
            return value


# --- events ---------------------------------------------------------------------------------------------------


class _Flat:
    """How a kind of event that holds specs is stored: as one struct of its own fields and of those of its specs.

    `names` are the fields that are called otherwise there; `defaults` are those that are not the spec's own.
    """

    def __init__(self, kind: type[h.Attributes], defaults: dict[str, Any], names: dict[str, str]) -> None:
        self.kind = kind
        hints = get_type_hints(kind)
        self._own = [name for name in kind.__struct_fields__ if hints[name] not in SPECS]
        self._specs: list[tuple[str, Any, dict[str, str]]] = []
        columns: list[tuple[str, tuple[Any, ...]]] = []  # where a value is found, and how it is stored
        for field in msgspec.structs.fields(kind):
            if field.name in self._own:
                columns.append((field.name, (field.name, hints[field.name], *stored_default(field))))
                continue
            spec = hints[field.name]
            types = get_type_hints(spec)
            fields: tuple[str, ...] = spec.__struct_fields__
            stored = {each: names.get(each, each) for each in fields}
            self._specs.append((field.name, spec, stored))
            for each in msgspec.structs.fields(spec):
                default = (defaults[each.name],) if each.name in defaults else stored_default(each)
                columns.append((f"{field.name}.{each.name}", (stored[each.name], types[each.name], *default)))
        columns.sort(key=lambda column: len(column[1]))  # what has no default comes first
        self.values = attrgetter(*[path for path, _ in columns])
        self.stored: Any = msgspec.defstruct(
            f"Stored{kind.__name__}",
            [field for _, field in columns],
            tag=kind.__name__,
            frozen=True,
            gc=False,
            omit_defaults=True,
        )

    def event_of(self, stored: Any) -> h.Attributes:
        """The event as it was."""
        fields: dict[str, Any] = {name: getattr(stored, name) for name in self._own}
        for name, spec, names in self._specs:
            fields[name] = spec(**{here: getattr(stored, there) for here, there in names.items()})
        return self.kind(**fields)


def stored_default(field: msgspec.structs.FieldInfo) -> tuple[Any, ...]:
    """What a field of a struct that is made from another has as its default, as `defstruct` wants it."""
    if field.required:
        return ()
    if field.default_factory is not msgspec.NODEFAULT:
        return (msgspec.field(default_factory=field.default_factory),)
    return (field.default,)


_TASK_TIMEOUT = {"task_timeout": 10.0}
_NOTES = {"static_summary": "summary", "static_details": "details"}

_flat: dict[type[Any], _Flat] = {
    each.kind: each
    for each in (
        _Flat(h.WorkflowExecutionStarted, _TASK_TIMEOUT, {}),
        _Flat(h.WorkflowExecutionContinuedAsNew, _TASK_TIMEOUT, {}),
        _Flat(h.ActivityTaskScheduled, {"retry_policy": RetryRule()}, {}),
        _Flat(h.StartChildWorkflowExecutionInitiated, _TASK_TIMEOUT, _NOTES),
    )
}
_by_stored: dict[type[Any], _Flat] = {each.stored: each for each in _flat.values()}

STORED_KINDS: Any = reduce(or_, [_flat[kind].stored if kind in _flat else kind for kind in h.KINDS])
"""What an event's attributes are stored as."""


_stored_event: Any = msgspec.defstruct(
    "StoredEvent",
    [
        ("id", int),
        ("time_ns", int),
        ("attributes", STORED_KINDS),
        ("event_groups", tuple[EventGroupMarker, ...], ()),
    ],
    frozen=True,
    gc=False,
    omit_defaults=True,
)
_decoder: Any = msgspec.msgpack.Decoder(GenericAlias(list, (_stored_event,)))


def encode_events(events: Sequence[h.HistoryEvent]) -> bytes:
    """Events as they are stored, one after the other: a list of them without its head."""
    stored: list[Any] = []
    for event in events:
        stored.append(_stored(event) if type(event.attributes) in _flat else event)
    count = len(stored)
    return encode(stored)[1 if count < 16 else 3 if count < 1 << 16 else 5 :]


def _stored(event: h.HistoryEvent) -> Any:
    flat = _flat[type(event.attributes)]
    attributes = flat.stored(*flat.values(event.attributes))
    return _stored_event(event.id, event.time_ns, attributes, event.event_groups)


_INTEGERS = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
"""Bytes of an unsigned integer, by its mark."""


def first_time_ns(head: bytes) -> int:
    """Return the time of the first of some stored events, of which `head` is the beginning. Raise ValueError if it has none."""
    value = head.partition(b"\xa7time_ns")[2]
    if value and value[0] < 0x80:
        return value[0]
    size = _INTEGERS.get(value[0], 0) if value else 0
    if not size or len(value) <= size:
        raise ValueError("no time of an event")
    return int.from_bytes(value[1 : 1 + size], "big")


def decode_events(data: bytes) -> list[h.HistoryEvent]:
    """Events that follow each other, as they were; raises ValueError (msgspec's) for what is none."""
    events: list[h.HistoryEvent] = []
    for stored in _decoder.decode(data):
        flat = _by_stored.get(type(stored.attributes))
        attributes = stored.attributes if flat is None else flat.event_of(stored.attributes)
        events.append(h.HistoryEvent(stored.id, stored.time_ns, attributes, stored.event_groups))
    return events
