"""Payloads as short text, where the person at the command line asked to see them. Decoded as JSON where they are
JSON, else named by encoding and size.

Must not know codecs: one is given as a function from payload to payload, or not at all.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from hourglass._story.reading import clean, inner

Peek: TypeAlias = Callable[[Any], str]
"""From payloads in Temporal's JSON form to the text that is shown; empty shows nothing."""

Decode: TypeAlias = Callable[[Mapping[str, Any]], Mapping[str, Any]]

SHORT = 120


def hidden(payloads: Any) -> str:
    """Nothing is shown."""
    return ""


def peek(decode: Decode | None = None, longest: int = SHORT) -> Peek:
    """Shows payloads, short; through a codec only if one is given."""

    def look(payloads: Any) -> str:
        listed = inner(payloads, "payloads")
        if not isinstance(listed, list):
            return ""
        return cut(", ".join(_value(each, decode) for each in listed), longest)

    return look


def cut(value: str, longest: int) -> str:
    """The beginning of a text that is too long."""
    return value if len(value) <= longest else f"{value[: longest - 1]}…"


def value_of(payload: Any) -> Any:
    """The value of a payload that is JSON, or None."""
    try:
        return json.loads(_data(payload))
    except (ValueError, RecursionError):
        return None


def _value(payload: Any, decode: Decode | None) -> str:
    if not isinstance(payload, Mapping) or "metadata" not in payload:
        return clean(json.dumps(payload, ensure_ascii=False, default=str))  # the web UI has decoded it
    shown = decode(payload) if decode else payload
    encoding, data = _encoding(shown), _data(shown)
    if encoding == "binary/null":
        return "null"
    if encoding.startswith("json/"):
        try:
            return clean(json.dumps(json.loads(data), ensure_ascii=False))
        except (ValueError, RecursionError):
            pass
    return f"<{encoding or 'unknown encoding'}, {len(data)} bytes>"


def _encoding(payload: Any) -> str:
    return clean(_bytes(inner(payload, "metadata", "encoding")).decode("utf-8", "replace"))


def _data(payload: Any) -> bytes:
    return _bytes(inner(payload, "data"))


def _bytes(value: Any) -> bytes:
    if not isinstance(value, str):
        return b""
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return value.encode()
