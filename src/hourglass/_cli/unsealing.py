"""Histories in Temporal's JSON form through a codec: payloads for those who asked to see them, messages of failures for all.

What a codec refuses stays as it is: a history may hold values from before the codec, or of somebody else's.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from hourglass._story.reading import Event
    from hourglass.converter import Codec

Decode: TypeAlias = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def decoder(codec: Codec) -> Decode:
    """From a payload in JSON form to what it was before the codec."""
    from hourglass.converter import Payload

    def decode(payload: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            entries = {name: base64.b64decode(text) for name, text in payload["metadata"].items()}
            encoding = entries.pop("encoding", b"").decode()
            sealed = Payload(base64.b64decode(payload.get("data", "")), encoding, entries or None)
            (opened,) = codec.decode([sealed])
        except Exception:  # authors' code, and data of anybody
            return payload
        named = {"encoding": opened.encoding.encode(), **(opened.metadata or {})}
        return {
            "metadata": {name: base64.b64encode(each).decode() for name, each in named.items()},
            "data": base64.b64encode(opened.data).decode(),
        }

    return decode


def unsealed(events: tuple[Event, ...], decode: Decode) -> tuple[Event, ...]:
    """The same events, with the messages and stacks of failures that were encoded."""
    return tuple(replace(each, attributes=_opened(each.attributes, decode)) for each in events)


def _opened(node: Any, decode: Decode) -> Any:
    if isinstance(node, list):
        return [_opened(each, decode) for each in node]
    if not isinstance(node, dict):
        return node
    found = {name: _opened(each, decode) for name, each in node.items()}
    return _with_message(found, decode) if "encodedAttributes" in found else found


def _with_message(failure: dict[str, Any], decode: Decode) -> dict[str, Any]:
    try:
        said = json.loads(base64.b64decode(decode(failure["encodedAttributes"]).get("data", "")))
        told = {"message": str(said["message"]), "stackTrace": str(said.get("stack_trace", ""))}
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error):
        return failure
    rest = {name: each for name, each in failure.items() if name != "encodedAttributes"}
    return {**rest, **told}
