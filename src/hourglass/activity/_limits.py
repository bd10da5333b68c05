"""How large what an activity reports may be. Pure.

A server refuses larger payloads with an error that the workflow never sees, and retries for nothing; so the
worker measures first and fails the attempt with a text that names size and limit.
"""

from __future__ import annotations

from collections.abc import Iterable

from hourglass.converter import Payload
from hourglass.errors import EncodeError

PAYLOAD_LIMIT = 2 * 1024 * 1024
"""Temporal's limit for one payload, in bytes."""


def size_of(payloads: Iterable[Payload]) -> int:
    """How many bytes payloads take, their metadata included."""
    total = 0
    for payload in payloads:
        total += len(payload.data) + len(payload.encoding)
        if payload.metadata:
            total += sum(len(key) + len(value) for key, value in payload.metadata.items())
    return total


def check_size(payloads: Iterable[Payload], limit: int | None, what: str) -> None:
    """Raise EncodeError if the payloads are larger than the limit (None: no limit); `what` names them."""
    if limit is None:
        return
    size = size_of(payloads)
    if size > limit:
        raise EncodeError(
            f"{what} takes {size:,} bytes, more than the limit of {limit:,}: keep large data elsewhere and pass "
            f"a reference to it, or raise payload_limit where the server allows more"
        )
