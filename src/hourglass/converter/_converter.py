"""`Converter`: values to payloads and back, exceptions to failures and back.

Reads and writes what Temporal's Python SDK does by default: `binary/null`, `binary/plain`, `json/protobuf`,
`binary/protobuf` (read only) and `json/plain`.

Invariants: every decoding gives fresh objects; every refusal is an `EncodeError` or a `DecodeError` that
tells types, shapes and paths, never contents; a `Payload` given as a value travels as it is, raw or not, and is
what a hint of `Payload` gives.
"""

from __future__ import annotations

import base64
import collections.abc
import dataclasses
import enum
import io
import json
import math
import os
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, TypeVar, overload
from uuid import UUID

import msgspec

from hourglass.converter import _failures
from hourglass.converter._data import Failure, Payload
from hourglass.converter._hints import (
    Mismatch,
    is_message,
    is_model,
    is_pydantic_type,
    message_class,
    message_from_binary,
    message_from_plain,
    message_name,
    message_to_plain,
    model_from_json,
    model_to_json,
    pydantic_to_plain,
    type_name,
)
from hourglass.converter._typed import convert
from hourglass.errors import DecodeError, EncodeError

T = TypeVar("T")

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
            # The usual case, in as few calls as can be.
            try:
                data = _encode(value)
            except Exception:
                return Payload(_encode_slowly(value))
            # `find`, for `in` tries the text as a number first, and raises and swallows an error each time.
            if data.find(b"null") < 0 or not _has_non_finite(value):
                return Payload(data)
            return Payload(_encode_slowly(value))
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
        if payload.encoding == "json/plain":
            # The usual case, in as few calls as can be: a type that was met before, and a value that fits it.
            try:
                if (decoder := _decoders.get(type)) is not None:
                    return decoder.decode(payload.data)
            except Exception:
                pass  # once more and thoroughly, where each reason has its message
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
        """An exception, with its causes, as a failure. A detail that has no encoding becomes a text."""
        return _failures.to_failure(exc, self.encode)

    def from_failure(self, failure: Failure) -> BaseException:
        """A failure, with its causes, as a new exception of `hourglass.errors`."""
        return _failures.from_failure(failure, self.decode)


class RawPayload:
    """A value that is not yet decoded: an argument of something dynamic, or a parameter or result of this type. Given as an
    argument, or returned, it travels on as it is.
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
        """The argument as the given type. Raises `DecodeError`."""
        return self._converter.decode(self.payload, type)

    def __repr__(self) -> str:
        return f"<RawPayload {self.payload.encoding or 'without encoding'}, {len(self.payload.data)} bytes>"


# --- other encodings ------------------------------------------------------------------------------


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
    match payload.encoding:
        case "json/plain":
            return (model_from_json if is_model(hint) else decode_json)(payload.data, hint)
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


# --- JSON -----------------------------------------------------------------------------------------
#
# msgspec first, and the thorough ways of `plain` and `_typed` where msgspec gives up. What is written is what `temporalio`
# writes, byte for byte where the value is plain: no blanks, keys and fields sorted. Sorting also makes sets, whose order
# differs from process to process, the same everywhere: a replay compares arguments.
#
# NaN and the infinities are written as `NaN`, `Infinity` and `-Infinity`, as `temporalio` does. JSON forbids them and other
# languages refuse them, but to refuse them here would stop workflows that Temporal's Python SDK runs, and to write null, as
# msgspec does by itself, would lose them silently.


# Enough for every type of a large program; programs that make types as they go must not grow us without end.
_MOST_DECODERS = 4096

_encode_finite = json.JSONEncoder(allow_nan=False).encode
_decoders: dict[Any, msgspec.json.Decoder[Any] | None] = {}
"""A decoder for each type that was met; None where msgspec refuses it. Models read themselves, and are not here."""


def encode_json(value: Any) -> bytes:
    """A value as JSON. Raises EncodeError that names type and path."""
    try:
        data = _encode(value)
    except Exception:
        return _encode_slowly(value)
    if data.find(b"null") >= 0 and _has_non_finite(value):
        return _encode_slowly(value)
    return data


def _has_non_finite(value: Any) -> bool:
    """Whether a `null` may stand for a NaN: the standard library's encoder, in C, can refuse those."""
    try:
        _encode_finite(msgspec.to_builtins(value, enc_hook=simplify, str_keys=True))
    except Exception:
        return True
    return False


def _encode_slowly(value: Any) -> bytes:
    try:
        return json.dumps(plain(value), sort_keys=True, separators=(",", ":")).encode("ascii")
    except EncodeError:
        raise
    except RecursionError:
        raise EncodeError(f"{type(value).__name__} is nested too deeply for JSON") from None
    except Exception as error:
        raise EncodeError(f"{type(value).__name__} cannot be encoded as JSON: {error}") from error


def decode_json(data: bytes, hint: Any) -> Any:
    """A fresh value of the given type out of JSON. Raises Mismatch."""
    try:
        decoder = _decoders[hint]
    except KeyError:
        decoder = _remember(hint)
    except TypeError:  # a hint that cannot be hashed, such as Annotated with a list
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
    """None for a type that msgspec refuses, such as a union of two dataclasses, or cannot look into."""
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
        raise Mismatch(f"{type(error).__name__} while making a {type_name(hint)}") from error


def _parse(data: bytes) -> Any:
    """JSON with NaN, infinities and lone surrogates, as `temporalio` and the standard library write it."""
    try:
        return json.loads(data.decode("utf-8"), parse_float=_finite)
    except UnicodeDecodeError as error:
        raise Mismatch(f"not UTF-8 from byte {error.start}") from None
    except json.JSONDecodeError as error:
        found = f"not JSON from character {error.pos}" if data else "empty: no JSON at all"
        raise Mismatch(found) from None
    except Mismatch:
        raise
    except ValueError:  # Python's limit on the digits of an integer
        raise Mismatch("a number with too many digits") from None


def _finite(text: str) -> float:
    """A number, unless it is beyond what a float can hold: infinity would be another value."""
    number = float(text)
    if math.isinf(number):
        raise Mismatch("a number out of range")
    return number


# --- JSON, the slow and thorough way --------------------------------------------------------------
#
# What the fast encoder does not know, and says little of. This walk takes what it can (keys that are no strings, sets of
# mixed members, NaN) and names type and path of what it cannot. The same value gives the same result in every process,
# for sets are sorted by their JSON text; the value itself is never changed.


_SCALARS = frozenset((str, int, float, bool, type(None)))
_BINARY = (bytes, bytearray, memoryview)
_TEXTUAL = (datetime, date, time, timedelta, UUID, Decimal)
_UNSUPPORTED = object()


def simplify(value: Any) -> Any:
    """One step from a class that msgspec does not know to one that it does. Raises NotImplementedError."""
    result = _step(value)
    if result is _UNSUPPORTED:
        raise NotImplementedError(f"{type(value).__name__} has no JSON form")
    return result


def _step(value: Any) -> Any:
    """The order matters: enums are also ints, models and messages are also iterable."""
    if isinstance(value, (type, collections.abc.Iterator)):
        # An iterator can be read once only: encoding it twice, as verification does, would give two results.
        return _UNSUPPORTED
    if isinstance(value, enum.Enum):
        return value.value
    if is_message(value):
        return message_to_plain(value)
    if is_pydantic_type(type(value)):
        return pydantic_to_plain(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__index__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, collections.abc.Iterable):
        return list(value)
    return _UNSUPPORTED


def plain(value: Any, path: str = "$", above: tuple[int, ...] = ()) -> Any:
    """The value as str, int, float, bool, None, list and dict. `above` holds the ids of what contains it."""
    cls = type(value)
    if cls in _SCALARS:
        return value
    if id(value) in above:
        raise EncodeError(f"{cls.__name__} at {path} contains itself")
    inside = (*above, id(value))
    if isinstance(value, _BINARY):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, enum.Enum):
        return plain(value.value, path, inside)
    if isinstance(value, _TEXTUAL):
        return msgspec.to_builtins(value)
    if isinstance(value, dict):
        return _plain_dict(value, path, inside)
    if isinstance(value, (set, frozenset)):
        return sorted((plain(item, f"{path}[...]", inside) for item in value), key=_json_text)
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{path}[{index}]", inside) for index, item in enumerate(value)]
    if (fields := _fields(value)) is not None:
        return _plain_record(fields, value, path, inside)
    simpler = _step(value)
    if simpler is _UNSUPPORTED:
        raise EncodeError(_unsupported(value, path))
    return plain(simpler, path, inside)


def _json_text(item: Any) -> str:
    return json.dumps(item, sort_keys=True)


def _fields(value: Any) -> dict[str, Any] | None:
    """The fields of a struct or a dataclass, under their names on the wire; None for everything else."""
    if isinstance(value, msgspec.Struct):
        pairs = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        found = {wire: getattr(value, name) for wire, name in pairs}
        config = value.__struct_config__
        if config.tag is not None and config.tag_field is not None:
            found = {config.tag_field: config.tag, **found}
        return {name: field for name, field in found.items() if field is not msgspec.UNSET}
    if is_pydantic_type(type(value)) or not dataclasses.is_dataclass(value):
        return None
    names = (field.name for field in dataclasses.fields(value))
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def _plain_record(fields: dict[str, Any], value: Any, path: str, inside: tuple[int, ...]) -> Any:
    result = {name: plain(field, f"{path}.{name}", inside) for name, field in fields.items()}
    if isinstance(value, msgspec.Struct) and value.__struct_config__.array_like:
        return list(result.values())
    return result


def _plain_dict(value: dict[Any, Any], path: str, inside: tuple[int, ...]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, item in value.items():
        text = _key(key, path)
        if text in result:
            raise EncodeError(f"two keys of the dict at {path} are the same text in JSON")
        result[text] = plain(item, f"{path}[...]", inside)
    return result


def _key(key: Any, path: str) -> str:
    """A key of a dict as JSON's text: numbers, true, false and null as `json.dumps` writes them."""
    if isinstance(key, enum.Enum):
        key = key.value
    if isinstance(key, str):
        return str.__str__(key)
    if isinstance(key, (int, float)) or key is None:
        return json.dumps(key)
    if isinstance(key, _TEXTUAL):
        return str(msgspec.to_builtins(key))
    raise EncodeError(f"a key of the dict at {path} is a {type(key).__name__}: JSON's keys are text")


def _unsupported(value: Any, path: str) -> str:
    if isinstance(value, collections.abc.Iterator) and not isinstance(value, io.IOBase):
        return f"{type(value).__name__} at {path} can be read only once: make it a list"
    cls = value.__name__ if isinstance(value, type) else type(value).__name__
    what = f"the class {cls}" if isinstance(value, type) else f"an object of class {cls}"
    return f"{what} at {path} has no JSON form: {_instead(value)}"


def _instead(value: Any) -> str:
    """What to pass in place of a value that has no JSON form. Only a class is asked what it has: a value may be anything."""
    cls = type(value)
    if isinstance(value, os.PathLike):
        return "pass str(path), and make a Path of it where it is used"
    if isinstance(value, io.IOBase):
        return "open files do not travel, pass the path"
    if isinstance(value, BaseException):
        return "pass what is to be known of it, such as str(error)"
    if hasattr(cls, "tolist"):
        return "pass value.tolist(), or where it is large a reference to it"
    return "use a dataclass, or a converter of your own"


_encode = msgspec.json.Encoder(enc_hook=simplify, order="sorted").encode
default_converter = Converter()
"""The converter that is used where none is given."""
