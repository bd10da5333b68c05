"""The programs as plain functions, file by file and name by name."""

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
from ._corpus import TWINS

__all__ = [
    "TWINS",
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
