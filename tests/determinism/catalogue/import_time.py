"""A moment that every process takes for itself when it imports the module."""

from __future__ import annotations

import time

from hourglass import workflow

from .acts import note

STARTED = time.time_ns()


@workflow.defn(name="import_time")
def bug() -> str:
    return note(f"since {STARTED}")  # caught: check HG111, replay
