"""Payloads as short text, where the person at the command line asked to see them. Decoded as JSON where they are
JSON, else named by encoding and size.

Must not know codecs: one is given as a function from payload to payload, or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from hourglass._story.text import clean
from hourglass.converter import Payload

Peek: TypeAlias = Callable[[Iterable[Payload]], str]
"""From payloads to the text that is shown; empty shows nothing."""

Decode: TypeAlias = Callable[[Payload], Payload]

SHORT = 120


def hidden(payloads: Iterable[Payload]) -> str:
    """Nothing is shown."""
    return ""


def peek(decode: Decode | None = None, longest: int = SHORT) -> Peek:
    """Shows payloads, short; through a codec only if one is given."""

    def look(payloads: Iterable[Payload]) -> str:
        return cut(", ".join(_value(payload, decode) for payload in payloads), longest)

    return look


def cut(value: str, longest: int) -> str:
    """The beginning of a text that is too long."""
    return value if len(value) <= longest else f"{value[: longest - 1]}…"


def value_of(payload: Payload | None) -> Any:
    """The value of a payload that is JSON, or None."""
    try:
        return None if payload is None else json.loads(payload.data)
    except (ValueError, RecursionError):
        return None


def _value(payload: Payload, decode: Decode | None) -> str:
    shown = decode(payload) if decode else payload
    if shown.encoding == "binary/null":
        return "null"
    if shown.encoding.startswith("json/"):
        try:
            return clean(json.dumps(json.loads(shown.data), ensure_ascii=False))
        except (ValueError, RecursionError):
            pass
    return f"<{clean(shown.encoding) or 'unknown encoding'}, {len(shown.data)} bytes>"
