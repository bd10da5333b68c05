"""`Converter`: values to payloads and back, exceptions to failures and back.

Reads and writes what Temporal's Python SDK does by default: `binary/null`, `binary/plain`, `json/protobuf`,
`binary/protobuf` (read only) and `json/plain`. Knows the encodings; how JSON is read and written is
`_json`'s affair.

Invariants: every decoding gives fresh objects; every refusal is an `EncodeError` or a `DecodeError` that
tells types, shapes and paths, never contents; a `Payload` given as a value travels as it is, raw or not, and is
what a hint of `Payload` gives.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from hourglass.converter import _failures
from hourglass.converter._data import Failure, Payload
from hourglass.converter._foreign import (
    is_message,
    is_model,
    message_class,
    message_from_binary,
    message_from_plain,
    message_name,
    message_to_plain,
    model_from_json,
    model_to_json,
)
from hourglass.converter._hints import type_name
from hourglass.converter._json import decode_json, encode_json
from hourglass.converter._mismatch import Mismatch
from hourglass.converter._raw import RawPayload
from hourglass.converter._typed import convert
from hourglass.errors import DecodeError, EncodeError

_NULL = Payload(b"", "binary/null")
_PLAIN = frozenset((str, int, float, bool, list, dict, tuple))


class Converter:
    """Turns values into payloads and back. Override `encode` and `decode` for a format of your own.

    One converter serves many threads at once: an own one must keep no state between calls.
    """

    def encode(self, value: Any) -> Payload:
        """A value as a payload. Raises EncodeError."""
        cls = type(value)
        if cls in _PLAIN:
            return Payload(encode_json(value))
        if value is None:
            return _NULL
        if cls is Payload:
            return value  # type: ignore[no-any-return]
        if cls is RawPayload:
            return value.payload  # type: ignore[no-any-return]
        if isinstance(value, (bytes, bytearray, memoryview)):
            return Payload(bytes(value), "binary/plain")
        if is_message(value):
            return _encode_message(value)
        if is_model(cls):
            return Payload(_encode_model(value))
        return Payload(encode_json(value))

    def encode_all(self, values: Iterable[Any]) -> tuple[Payload, ...]:
        """Values as payloads, in order."""
        return tuple([self.encode(value) for value in values])

    def decode(self, payload: Payload, type: Any = Any) -> Any:
        """The value of a payload, as the given type. Raises DecodeError."""
        if type is Payload:
            return payload
        try:
            if payload.encoding == "json/plain" and not is_model(type):
                return decode_json(payload.data, type)
            return _decode(payload, type)
        except Mismatch as mismatch:
            context = f"{payload.encoding[:60]} as {type_name(type)}"
            raise DecodeError(f"{mismatch} ({context})") from mismatch.__cause__

    def to_failure(self, exc: BaseException) -> Failure:
        """An exception, with its causes, as a failure. A detail that has no encoding becomes a text."""
        return _failures.to_failure(exc, self.encode)

    def from_failure(self, failure: Failure) -> BaseException:
        """A failure, with its causes, as a new exception of `hourglass.errors`."""
        return _failures.from_failure(failure, self.decode)


def _encode_message(message: Any) -> Payload:
    name = message_name(message)
    try:
        data = msgspec.json.encode(message_to_plain(message), order="sorted")
    except Exception as error:
        raise EncodeError(f"{name} cannot be written in protobuf's JSON form: {error}") from error
    return Payload(data, "json/protobuf", {"messageType": name.encode()})


def _encode_model(model: Any) -> bytes:
    try:
        return model_to_json(model)
    except Exception as error:
        raise EncodeError(f"{type(model).__name__} cannot be written as JSON by pydantic: {error}") from error


def _decode(payload: Payload, hint: Any) -> Any:
    """Everything that is not plain JSON."""
    match payload.encoding:
        case "json/plain":
            return model_from_json(payload.data, hint)
        case "binary/null":
            if payload.data:
                raise Mismatch("expected no data with null")
            return convert(None, hint)
        case "binary/plain":
            return convert(payload.data, hint)
        case "json/protobuf":
            return _decode_message_json(payload, hint)
        case "binary/protobuf":
            if (cls := _wanted_message(payload, hint)) is None:
                raise Mismatch("binary protobuf needs a message class as type hint")
            return message_from_binary(payload.data, cls)
        case "":
            raise DecodeError("the payload names no encoding")
        case unknown:
            raise DecodeError(f"unknown encoding {unknown[:60]!r}: a codec or a converter for it is missing")


def _decode_message_json(payload: Payload, hint: Any) -> Any:
    """A message where the hint is a message class, else its JSON as the hint says: a dict without one."""
    cls = _wanted_message(payload, hint)
    if cls is None:
        return decode_json(payload.data, hint)
    return message_from_plain(decode_json(payload.data, Any), cls, "$")


def _wanted_message(payload: Payload, hint: Any) -> Any:
    cls = message_class(hint)
    sent = (payload.metadata or {}).get("messageType")
    if cls is not None and sent is not None and sent != message_name(cls).encode():
        raise Mismatch(f"expected {message_name(cls)}, got {sent.decode(errors='replace')[:100]}")
    return cls


default_converter = Converter()
"""The converter that is used where none is given."""
