"""Order-stressing workflows of Temporal's Python SDK, by subject."""

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
from ._corpus import PROGRAMS as PROGRAMS
from ._corpus import Program as Program
