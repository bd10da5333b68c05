"""The JSON form of values, by Temporal's conventions: numbers, strings, times, enums, payloads.

Protobuf's JSON rules apply: 64-bit integers are strings, bytes are in base64, durations are written as "1.5s" and times
as RFC 3339, and enums by name. Reading is lenient: malformed values count as unset, and payloads may have been decoded
by the web UI.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode, urlsafe_b64decode
from binascii import Error as BadBase64
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

from hourglass._history import times
from hourglass.converter import Payload

Json: TypeAlias = dict[str, Any]

_CAPITALS = re.compile(r"(?<!^)(?=[A-Z])")


class Shape(NamedTuple):
    """The functions that write and read values of a type, and the value of an unset field."""

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]
    unset: Any
    always: bool = False
    """Whether the unset value is written, too. None is never written."""


def camel(name: str) -> str:
    """Convert a field's name to the spelling in Temporal's JSON: `activityType`."""
    first, *words = name.split("_")
    return first + "".join(word.capitalize() for word in words)


def snake(name: str) -> str:
    """Convert a name in Temporal's JSON to protobuf's spelling: `activity_type`."""
    return _CAPITALS.sub("_", name).lower()


def _same(value: Any) -> Any:
    return value


def number(value: object) -> int:
    """Parse an integer, which protobuf's JSON may write as a string. Return 0 for any other value."""
    if type(value) is int:
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return 0
    try:
        return int(value)
    except (ValueError, OverflowError):
        return 0


def read_text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return 0.0
    try:
        return float(value)
    except (ValueError, OverflowError):
        return 0.0


def read_moment(value: Any) -> int:
    """Parse a time in protobuf's JSON, or an object of seconds and nanos. Return 0 for any other value."""
    if isinstance(value, str):
        return times.moment(value) or 0
    if isinstance(value, dict):
        return number(value.get("seconds")) * times.SECOND + number(value.get("nanos"))
    return 0


def read_duration(value: Any) -> int:
    """Parse a duration in protobuf's JSON, or an object of seconds and nanos. Return 0 for any other value."""
    return times.duration(value) or 0 if isinstance(value, str) else read_moment(value)


def write_seconds(seconds: float) -> str:
    rounded = int(seconds)
    return f"{rounded}s" if rounded == seconds else times.duration_text(round(seconds * times.SECOND))


def _read_seconds(value: Any) -> float:
    return read_duration(value) / times.SECOND


def write_payload(payload: Payload) -> Json:
    """Convert a payload to JSON."""
    metadata = {key: b64encode(value).decode() for key, value in (payload.metadata or {}).items()}
    if payload.encoding:
        metadata["encoding"] = b64encode(payload.encoding.encode("utf-8", "surrogateescape")).decode()
    document: Json = {"metadata": metadata} if metadata else {}
    if payload.data:
        document["data"] = b64encode(payload.data).decode()
    return document


def read_payload(value: Any) -> Payload:
    """Convert a payload from JSON. A value that the web UI has decoded is encoded as JSON again."""
    if not isinstance(value, dict) or not value.keys() <= {"metadata", "data", "externalPayloads"}:
        return Payload(json.dumps(value, ensure_ascii=False, default=str).encode("utf-8", "replace"))
    metadata = value.get("metadata")
    entries = (
        {key: _read_bytes(encoded) for key, encoded in metadata.items()} if isinstance(metadata, dict) else {}
    )
    encoding = entries.pop("encoding", b"").decode("utf-8", "surrogateescape")
    return Payload(_read_bytes(value.get("data")), encoding, entries or None)


def _read_bytes(value: Any) -> bytes:
    if not isinstance(value, str):
        return b""
    try:
        return b64decode(value, validate=True)
    except (BadBase64, ValueError):
        pass
    try:
        if "-" in value or "_" in value or len(value) % 4:
            bare = value.rstrip("=")
            return urlsafe_b64decode(bare + "=" * (-len(bare) % 4))
    except (BadBase64, ValueError):
        pass
    return value.encode("utf-8", "replace")


def write_payloads(payloads: tuple[Payload, ...]) -> Json:
    """Convert a tuple of payloads to JSON."""
    return {"payloads": [write_payload(payload) for payload in payloads]} if payloads else {}


def read_payloads(value: Any) -> tuple[Payload, ...]:
    """Convert a tuple of payloads from JSON."""
    documents = value.get("payloads") if isinstance(value, dict) else None
    return tuple([read_payload(document) for document in documents]) if isinstance(documents, list) else ()


def _read_first(value: Any) -> Payload | None:
    payloads = read_payloads(value)
    return payloads[0] if payloads else None


def _named(inner: str) -> Shape:
    """Return the shape of payloads by name, nested under the key `inner`."""
    in_protobuf = snake(inner)

    def read(value: Any) -> dict[str, Payload]:
        documents = value.get(inner, value.get(in_protobuf)) if isinstance(value, dict) else None
        return (
            {key: read_payload(payload) for key, payload in documents.items()}
            if isinstance(documents, dict)
            else {}
        )

    return Shape(
        lambda fields: {inner: {key: write_payload(payload) for key, payload in fields.items()}}, read, {}
    )


def list_of(of: type[Any]) -> Shape:
    return Shape(list, lambda value: tuple(map(of, value)) if isinstance(value, list) else (), ())


def enum_from(prefix: str, names: Mapping[int, str], make: Callable[[int], Any], otherwise: int = 0) -> Shape:
    """Return the shape of an enum that is written by name. The unset value is not written. An unknown name is read as
    `otherwise`.
    """
    texts = {value: f"{prefix}{name}" for value, name in names.items()}
    values: dict[Any, Any] = {}
    for value, text in texts.items():
        bare = text.removeprefix(prefix)
        old = "".join(word.capitalize() for word in bare.split("_"))
        values[text] = values[bare] = values[old] = values[value] = make(value)
    fallback = make(otherwise)
    return Shape(lambda value: texts[value], lambda value: _known(values, value, fallback), fallback)


def _known(table: Mapping[Any, Any], key: Any, otherwise: Any) -> Any:
    return table.get(key, otherwise) if isinstance(key, (str, int)) else otherwise


def enum_of(kind: type[IntEnum], prefix: str) -> Shape:
    return enum_from(prefix, {member.value: member.name for member in kind}, kind, min(kind).value)


TEXT = Shape(_same, read_text, "")
FLAG = Shape(_same, lambda value: value is True, False)
INT64 = Shape(str, number, 0)
INT32 = Shape(_same, number, 0)
NUMBER = Shape(_same, _float, 0.0)
SECONDS = Shape(write_seconds, _read_seconds, 0.0, always=True)
SOME_SECONDS = Shape(write_seconds, _read_seconds, 0.0)
MAYBE_SECONDS = Shape(write_seconds, _read_seconds, None, always=True)
NANOSECONDS = Shape(times.duration_text, read_duration, 0, always=True)
MOMENT = Shape(times.moment_text, read_moment, 0)
NAME = Shape(
    lambda name: {"name": name},
    lambda value: read_text(value.get("name")) if isinstance(value, dict) else "",
    "",
)
QUEUE = Shape(lambda name: {"name": name, "kind": "TASK_QUEUE_KIND_NORMAL"}, NAME.read, "")
PAYLOADS = Shape(write_payloads, read_payloads, ())
FIRST = Shape(lambda payload: write_payloads((payload,)), _read_first, None)
PAYLOAD = Shape(write_payload, read_payload, None)
DETAILS = Shape(
    lambda details: {key: write_payloads(value) for key, value in details.items()},
    lambda value: (
        {key: read_payloads(payloads) for key, payloads in value.items()} if isinstance(value, dict) else {}
    ),
    {},
)
HEADER = _named("fields")
INDEXED = _named("indexedFields")
