"""The programs as plain functions, file by file and name by name."""

from __future__ import annotations

from . import (  # noqa: F401
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
from ._corpus import TWINS as TWINS
