"""Chains of failures: walking along causes, and moving texts to where a codec reaches them and back.

In loops, never by recursion: a chain may be longer than Python's stack. Must not know of exceptions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import msgspec

from hourglass.converter._data import Failure, Payload

Encode: TypeAlias = Callable[[Any], Payload]
Decode: TypeAlias = Callable[[Payload], Any]

ENCODED_MESSAGE = "Encoded failure"
"""What Temporal's SDKs show instead of a message that only a codec can read."""


def causes(failure: Failure | None) -> Iterator[Failure]:
    """A failure and its causes, outermost first."""
    while failure is not None:
        yield failure
        failure = failure.cause


def joined(links: Iterable[Failure]) -> Failure:
    """One failure whose causes are the links, in order."""
    joined: Failure | None = None
    for link in reversed(list(links)):
        joined = link if link.cause is joined else msgspec.structs.replace(link, cause=joined)
    assert joined is not None
    return joined


def encode_failure(failure: Failure, encode: Encode) -> Failure:
    """The failure with its texts, and those of its causes, moved to where a codec reaches them."""
    return joined([_sealed(link, encode) for link in causes(failure)])


def _sealed(link: Failure, encode: Encode) -> Failure:
    if link.encoded_attributes is not None:
        return link
    attributes = encode({"message": link.message, "stack_trace": link.stack_trace})
    return msgspec.structs.replace(
        link, message=ENCODED_MESSAGE, stack_trace="", encoded_attributes=attributes
    )


def decode_failure(failure: Failure, decode: Decode) -> Failure:
    """The reverse of `encode_failure`; texts that cannot be read stay where they are."""
    return joined([opened(link, decode) for link in causes(failure)])


def opened(link: Failure, decode: Decode) -> Failure:
    if link.encoded_attributes is None:
        return link
    try:
        attributes = decode(link.encoded_attributes)
        message, stack = attributes["message"], attributes.get("stack_trace", "")
    except Exception:
        return link
    if not isinstance(message, str) or not isinstance(stack, str):
        return link
    return msgspec.structs.replace(link, message=message, stack_trace=stack, encoded_attributes=None)
