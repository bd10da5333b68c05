"""`Converter`, the conversion of values to payloads and exceptions to failures, and back.

It reads and writes the default encodings of Temporal's Python SDK: `binary/null`, `binary/plain`, `json/protobuf`,
`binary/protobuf` (read only) and `json/plain`.

Invariants: decoding creates new objects. Every rejection is an `EncodeError` or a `DecodeError` that names types, shapes and
paths, but never contents. A `Payload` passed as a value is sent unchanged, raw or not, and is returned unchanged for the
hint `Payload`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any, TypeVar, overload

import msgspec

from hourglass.converter import _failures
from hourglass.converter._data import Failure, Payload
from hourglass.converter._hints import (
    Mismatch,
    is_message,
    is_model,
    message_class,
    message_from_binary,
    message_from_plain,
    message_name,
    message_to_plain,
    model_from_json,
    type_name,
)
from hourglass.converter._to_json import encode_json, encode_model
from hourglass.converter._typed import convert
from hourglass.errors import DecodeError, EncodeError

T = TypeVar("T")

_NULL = Payload(b"", "binary/null")
_PLAIN = frozenset((str, int, float, bool, list, dict, tuple))


class Converter:
    """Converts values to payloads and back. Override `encode` and `decode` for your own format.

    Many threads use a converter simultaneously, so it must keep no state between calls.
    """

    def encode(self, value: Any) -> Payload:
        """Encode a value. Raise EncodeError."""
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
        """Encode values, in order."""
        return tuple([self.encode(value) for value in values])

    def decode(self, payload: Payload, type: Any = Any) -> Any:
        """Decode a payload as the given type. Raise DecodeError."""
        if payload.encoding == "json/plain":
            # The common case, with as few calls as possible: a type that was seen before, and a value that matches it.
            try:
                if (decoder := _decoders.get(type)) is not None:
                    return decoder.decode(payload.data)
            except Exception:
                pass  # decoded by the thorough path below, with a precise message
        if type is Payload:
            return payload
        if type is RawPayload:
            return RawPayload(payload, self)
        try:
            return _decode(payload, type)
        except Mismatch as mismatch:
            context = f"{payload.encoding[:60]} as {type_name(type)}"
            raise DecodeError(f"{mismatch} ({context})") from mismatch.__cause__

    def to_failure(self, exc: BaseException) -> Failure:
        """Convert an exception and its causes to a failure. A detail that cannot be encoded becomes a str."""
        return _failures.to_failure(exc, self.encode)

    def from_failure(self, failure: Failure) -> BaseException:
        """Convert a failure and its causes to a new exception of `hourglass.errors`."""
        return _failures.from_failure(failure, self.decode)


class RawPayload:
    """An undecoded value: an argument of a dynamic handler, or a parameter or result of this type.

    A `RawPayload` that is passed as an argument or returned is sent unchanged.
    """

    __slots__ = ("_converter", "payload")

    def __init__(self, payload: Payload, converter: Converter | None = None) -> None:
        self.payload = payload
        self._converter = default_converter if converter is None else converter

    @overload
    def decode(self) -> Any: ...
    @overload
    def decode(self, type: type[T]) -> T: ...
    @overload
    def decode(self, type: Any) -> Any: ...
    def decode(self, type: Any = Any) -> Any:
        """Decode the argument as the given type. Raise `DecodeError`."""
        return self._converter.decode(self.payload, type)

    def __repr__(self) -> str:
        return f"<RawPayload {self.payload.encoding or 'without encoding'}, {len(self.payload.data)} bytes>"


def _encode_message(message: Any) -> Payload:
    name = message_name(message)
    try:
        data = msgspec.json.encode(message_to_plain(message))
    except Exception as error:
        raise EncodeError(f"{name} cannot be written in protobuf's JSON form: {error}") from error
    return Payload(data, "json/protobuf", {"messageType": name.encode()})


def _encode_model(model: Any) -> bytes:
    try:
        return encode_model(model)
    except Exception as error:
        raise EncodeError(f"{type(model).__name__} cannot be written as JSON by pydantic: {error}") from error


def _decode(payload: Payload, hint: Any) -> Any:
    match payload.encoding:
        case "json/plain":
            return (model_from_json if is_model(hint) else decode_json)(payload.data, hint)
        case "binary/null":
            if payload.data:
                raise Mismatch("a payload with the encoding binary/null must not contain data")
            return convert(None, hint)
        case "binary/plain":
            return convert(payload.data, hint)
        case "json/protobuf":
            return _decode_message_json(payload, hint)
        case "binary/protobuf":
            if (cls := _wanted_message(payload, hint)) is None:
                raise Mismatch("binary protobuf can be decoded only with a message class as type hint")
            return message_from_binary(payload.data, cls)
        case "":
            raise DecodeError("the payload has no encoding")
        case unknown:
            raise DecodeError(
                f"unknown encoding {unknown[:60]!r}: configure a codec or a converter for this encoding"
            )


def _decode_message_json(payload: Payload, hint: Any) -> Any:
    """Return a protobuf message if the hint is a message class. Otherwise convert the message's JSON to the hint."""
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


# Enough for all types of a large program, and a limit for programs that create types dynamically.
_MOST_DECODERS = 4096

_decoders: dict[Any, msgspec.json.Decoder[Any] | None] = {}
"""The decoder for each type that was seen; None if msgspec does not support the type. Pydantic models decode themselves and
are not included.
"""


def decode_json(data: bytes, hint: Any) -> Any:
    """Decode JSON to a new value of the given type. Raise Mismatch."""
    try:
        decoder = _decoders[hint]
    except KeyError:
        decoder = _remember(hint)
    except TypeError:  # an unhashable hint, for example Annotated with a list
        decoder = _make_decoder(hint)
    try:
        if decoder is not None:
            return decoder.decode(data)
    except RecursionError:
        raise Mismatch("nested too deeply") from None
    except Exception:
        pass
    return _decode_slowly(data, hint)


def _remember(hint: Any) -> msgspec.json.Decoder[Any] | None:
    decoder = _make_decoder(hint)
    if is_model(hint):
        return decoder
    if len(_decoders) >= _MOST_DECODERS:
        _decoders.clear()
    _decoders[hint] = decoder
    return decoder


def _make_decoder(hint: Any) -> msgspec.json.Decoder[Any] | None:
    """Return a decoder for a type, or None if msgspec does not support the type, for example a union of two dataclasses."""
    try:
        return msgspec.json.Decoder(hint, dec_hook=_dec_hook)
    except Exception:
        return None


def _dec_hook(hint: Any, value: Any) -> Any:
    return convert(value, hint)


def _decode_slowly(data: bytes, hint: Any) -> Any:
    try:
        return convert(_parse(data), hint)
    except Mismatch:
        raise
    except RecursionError:
        raise Mismatch("nested too deeply") from None
    except Exception as error:
        raise Mismatch(f"{type(error).__name__} while creating a {type_name(hint)}") from error


def _parse(data: bytes) -> Any:
    """Parse JSON that may contain NaN, infinities and lone surrogates, as `temporalio` and the standard library write it."""
    try:
        return json.loads(data.decode("utf-8"), parse_float=_finite)
    except UnicodeDecodeError as error:
        raise Mismatch(f"not valid UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        problem = f"not valid JSON at character {error.pos}" if data else "empty, expected JSON"
        raise Mismatch(problem) from None
    except Mismatch:
        raise
    except ValueError:  # Python's limit on the digits of an integer
        raise Mismatch("a number with too many digits") from None


def _finite(text: str) -> float:
    """Return the number. Raise `Mismatch` if it is too large for a float, because infinity would be a different value."""
    number = float(text)
    if math.isinf(number):
        raise Mismatch("a number out of range")
    return number


default_converter = Converter()
"""The converter used by default."""
