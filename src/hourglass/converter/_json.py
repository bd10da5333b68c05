"""JSON, typed and fast: msgspec first, the thorough ways of `_plain` and `_typed` where msgspec gives up.

What is written is what `temporalio` writes, byte for byte where the value is plain: no blanks, keys and
fields sorted. Sorting also makes sets, whose order differs from process to process, the same everywhere: a
replay compares arguments.

NaN and the infinities are written as `NaN`, `Infinity` and `-Infinity`, as `temporalio` does. JSON forbids
them and other languages refuse them, but to refuse them here would stop workflows that Temporal's Python
SDK runs, and to write null, as msgspec does by itself, would lose them silently.

Must not know of payloads, encodings or failures. Raises `Mismatch` and `EncodeError`.
"""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec

from hourglass.converter._hints import type_name
from hourglass.converter._mismatch import Mismatch
from hourglass.converter._plain import plain, simplify
from hourglass.converter._typed import convert
from hourglass.errors import EncodeError

# Enough for every type of a large program; programs that make types as they go must not grow us without end.
_MOST_DECODERS = 4096

_encode = msgspec.json.Encoder(enc_hook=simplify, order="sorted").encode
_encode_finite = json.JSONEncoder(allow_nan=False).encode
_decoders: dict[Any, msgspec.json.Decoder[Any] | None] = {}


def encode_json(value: Any) -> bytes:
    """A value as JSON. Raises EncodeError that names type and path."""
    try:
        data = _encode(value)
    except Exception:
        return _encode_slowly(value)
    # `find`, for `in` tries the text as a number first, and raises and swallows an error each time.
    if data.find(b"null") >= 0 and value is not None and _has_non_finite(value):
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
    if len(_decoders) >= _MOST_DECODERS:
        _decoders.clear()
    _decoders[hint] = decoder = _make_decoder(hint)
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
