"""Order-stressing workflows of Temporal's Python SDK, by subject."""

from __future__ import annotations

from . import (
    cancelling,
    cancelling_tasks,
    concurrency,
    failing,
    interpreted,
    later,
    primitives,
    racing,
    signalling,
    waiting,
)
from ._corpus import PROGRAMS, Program

__all__ = [
    "PROGRAMS",
    "Program",
    "cancelling",
    "cancelling_tasks",
    "concurrency",
    "failing",
    "interpreted",
    "later",
    "primitives",
    "racing",
    "signalling",
    "waiting",
]
