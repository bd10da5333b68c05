"""Converters composed of others: one for each encoding, and one for each type that JSON does not support.

    Client.connect("local:", converter=CompositeConverter(Parquet(), json_types=[Money()]))

A `CompositeConverter` tries its parts in order, and the default converter for all other values. So a custom format is a
class with two methods, and all other values are encoded as usual.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from hourglass.converter._context import SerializationContext, in_context, wants_context
from hourglass.converter._converter import Converter, default_converter
from hourglass.converter._data import Payload
from hourglass.converter._hints import Mismatch, type_name
from hourglass.converter._to_json import JsonEncoder, simplify
from hourglass.converter._typed import convert
from hourglass.errors import DecodeError, EncodeError, UsageError


class EncodingConverter(ABC):
    """Conversion of values in one encoding, for example `binary/parquet`. Many threads use an object simultaneously."""

    @property
    @abstractmethod
    def encoding(self) -> str:
        """The name of the encoding, stored in each payload."""

    @abstractmethod
    def encode(self, value: Any) -> Payload | None:
        """Return the value as a payload of this encoding. Return None to leave the value to another converter."""

    @abstractmethod
    def decode(self, payload: Payload, type: Any) -> Any:
        """Return the value of a payload in this encoding, as the given type."""


class JSONTypeConverterUnhandled:
    """The class of `Unhandled`, the result of a `JSONTypeConverter` for a type that it does not handle."""

    def __repr__(self) -> str:
        return "JSONTypeConverter.Unhandled"


class JSONTypeConverter:
    """Conversion of a type that JSON does not support, at any depth: in arguments, lists, or fields of dataclasses."""

    Unhandled: ClassVar[JSONTypeConverterUnhandled] = JSONTypeConverterUnhandled()

    def to_json(self, value: Any) -> Any:
        """Return the JSON form of a value (str, numbers, list, dict …), or `Unhandled`."""
        return self.Unhandled

    def to_typed_value(self, hint: Any, value: Any) -> Any:
        """Return a value of the hinted type, created from its JSON form, or `Unhandled`."""
        return self.Unhandled


class CompositeConverter(Converter):
    """A converter that tries its encodings in order, then the JSON types, then `rest`, by default the default converter."""

    def __init__(
        self,
        *encodings: EncodingConverter,
        json_types: Sequence[JSONTypeConverter] = (),
        rest: Converter = default_converter,
    ) -> None:
        for part in encodings:
            if not isinstance(part, EncodingConverter):
                raise UsageError(
                    f"encodings must contain EncodingConverter objects, not {type(part).__name__}"
                )
        for json_type in json_types:
            if not isinstance(json_type, JSONTypeConverter):
                raise UsageError(
                    f"json_types must contain JSONTypeConverter objects, not {type(json_type).__name__}"
                )
        self._encodings = encodings
        self._by_name = {part.encoding: part for part in encodings}
        if len(self._by_name) < len(encodings):
            raise UsageError(
                "two converters have the same encoding; each encoding needs exactly one converter"
            )
        self._json_types = tuple(json_types)
        self._rest = rest
        self._decoders: dict[Any, msgspec.json.Decoder[Any]] = {}

    @property
    def wants_context(self) -> bool:
        """Whether any part of the converter depends on the serialization context."""
        return any(map(wants_context, (*self._encodings, *self._json_types, self._rest)))

    def with_context(self, context: SerializationContext) -> CompositeConverter:
        """Return a copy with all parts bound to the context."""
        return CompositeConverter(
            *(in_context(part, context) for part in self._encodings),
            json_types=[in_context(json_type, context) for json_type in self._json_types],
            rest=in_context(self._rest, context),
        )

    def encode(self, value: Any) -> Payload:
        """Encode a value. Raise EncodeError."""
        for part in self._encodings:
            payload = _call_part(part, "encode", EncodeError, value)
            if payload is not None:
                return _checked(payload, part)
        try:
            return self._rest.encode(value)
        except EncodeError:
            if not self._json_types:
                raise
            return self._encode_types(value)

    def _encode_types(self, value: Any) -> Payload:
        """Encode a value that all other converters have rejected, by converting custom types to JSON."""

        def hook(unsupported: Any) -> Any:
            for part in self._json_types:
                made = _call_part(part, "to_json", EncodeError, unsupported)
                if made is not JSONTypeConverter.Unhandled:
                    return made
            return simplify(unsupported)

        return Payload(JsonEncoder(hook).encode(value))

    def decode(self, payload: Payload, type: Any = Any) -> Any:
        """Decode a payload as the given type. Raise DecodeError."""
        part = self._by_name.get(payload.encoding)
        if part is not None and type is not Payload:
            return _call_part(part, "decode", DecodeError, payload, type)
        if self._json_types and payload.encoding == "json/plain" and type is not Any and type is not Payload:
            return self._decode_types(payload, type)
        return self._rest.decode(payload, type)

    def _decode_types(self, payload: Payload, hint: Any) -> Any:
        try:
            if (decoder := self._decoders.get(hint)) is None:
                decoder = self._decoders[hint] = msgspec.json.Decoder(hint, dec_hook=self._typed)
            return decoder.decode(payload.data)
        except (TypeError, msgspec.MsgspecError):  # a hint or a value that the fast path does not support
            converted = self._typed(hint, self._rest.decode(payload), DecodeError)
            return self._rest.decode(payload, hint) if converted is JSONTypeConverter.Unhandled else converted

    def _typed(self, hint: Any, value: Any, otherwise: Any = None) -> Any:
        for part in self._json_types:
            made = _call_part(part, "to_typed_value", DecodeError, hint, value)
            if made is not JSONTypeConverter.Unhandled:
                return made
        if otherwise is not None:
            return JSONTypeConverter.Unhandled
        try:
            return convert(value, hint)
        except Mismatch as mismatch:
            raise DecodeError(f"{mismatch} (json/plain as {type_name(hint)})") from None


def _call_part(part: Any, method: str, error: type[EncodeError | DecodeError], *arguments: Any) -> Any:
    """Call a method of an author's part. Report an exception without its message, because that may include payload
    contents."""
    try:
        return getattr(part, method)(*arguments)
    except (EncodeError, DecodeError):
        raise
    except Exception as raised:
        raise error(f"{type(part).__name__}.{method} raised {type(raised).__name__}") from raised


def _checked(payload: Any, part: EncodingConverter) -> Payload:
    if not isinstance(payload, Payload):
        raise EncodeError(f"{type(part).__name__}.encode returned a {type(payload).__name__}, not a Payload")
    if payload.encoding != part.encoding:
        raise EncodeError(
            f"{type(part).__name__} must create payloads with the encoding {part.encoding}, not {payload.encoding[:60]}"
        )
    return payload
