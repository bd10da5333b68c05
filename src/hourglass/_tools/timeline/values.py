"""Payloads as short text, if the user has requested to see them. JSON is decoded. Other payloads are described by their
encoding and size.

Must not know: codecs. A codec may be passed as a function from payload to payload.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from hourglass._tools.timeline.text import clean
from hourglass.converter import Payload

Peek: TypeAlias = Callable[[Iterable[Payload]], str]
"""A function that converts payloads to the displayed text; "" displays no text."""

Decode: TypeAlias = Callable[[Payload], Payload]

SHORT = 120


def hidden(payloads: Iterable[Payload]) -> str:
    """Return "", so that payloads are not displayed."""
    return ""


def peek(decode: Decode | None = None, longest: int = SHORT) -> Peek:
    """Return a function that displays payloads in a shortened form. `decode` applies a codec."""

    def show_values(payloads: Iterable[Payload]) -> str:
        return cut(", ".join(_value(payload, decode) for payload in payloads), longest)

    return show_values


def cut(value: str, longest: int) -> str:
    """Shorten a text that is longer than `longest`."""
    return value if len(value) <= longest else f"{value[: longest - 1]}…"


def value_of(payload: Payload | None) -> Any:
    """Return the value of a payload if it is JSON, otherwise None."""
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
