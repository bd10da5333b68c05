"""Ids of spans that a run emits: the same however often, and wherever, the run is executed.

A span is emitted once, but what the run does later must go on from it, also on another worker, after a crash, years later. So
its id is not drawn: it follows from the run's id and from what the span is. For that the tracer's provider must ask us.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from opentelemetry.trace import INVALID_SPAN_ID, INVALID_TRACE_ID, Tracer

_wanted: ContextVar[tuple[int, int] | None] = ContextVar("hourglass_span_ids", default=None)


class RunIdGenerator:
    """For `TracerProvider(id_generator=RunIdGenerator())`: ids that follow from the run for spans of workflows, and are drawn
    for all others. Without it a run that is executed again goes on from the span that started it.
    """

    def __init__(self) -> None:
        self._random = random.SystemRandom()

    def generate_span_id(self) -> int:
        """The id of a new span."""
        wanted = _wanted.get()
        return self._drawn(64, INVALID_SPAN_ID) if wanted is None else wanted[1]

    def generate_trace_id(self) -> int:
        """The id of a new trace."""
        wanted = _wanted.get()
        return self._drawn(128, INVALID_TRACE_ID) if wanted is None else wanted[0]

    def is_trace_id_random(self) -> bool:
        """Whether samplers may take the id for randomness: those of runs are hashes, which is as good."""
        return True

    def _drawn(self, bits: int, invalid: int) -> int:
        number = invalid
        while number == invalid:
            number = self._random.getrandbits(bits)
        return number


def is_stable(tracer: Tracer) -> bool:
    """Whether the tracer asks us for ids."""
    return isinstance(getattr(tracer, "id_generator", None), RunIdGenerator)


def ids_of(run_id: str, key: str) -> tuple[int, int]:
    """The ids of a span of a run: of its trace, should it begin one, and its own."""
    trace = hashlib.sha256(f"hourglass trace {run_id}".encode()).digest()
    span = hashlib.sha256(f"hourglass span {run_id} {key}".encode()).digest()
    return int.from_bytes(trace[:16], "big") or 1, int.from_bytes(span[:8], "big") or 1


@contextmanager
def wanting(ids: tuple[int, int] | None) -> Iterator[None]:
    """While a span with these ids is made."""
    token = _wanted.set(ids)
    try:
        yield
    finally:
        _wanted.reset(token)
