"""A deadline from the wall clock: executed again, another time is sent."""

from __future__ import annotations

import time

from hourglass import workflow

from .acts import note


@workflow.defn(name="wall_clock")
def bug() -> str:
    deadline = time.time() + 3600  # caught: check HG101, watch
    return note(f"until {deadline}")  # caught: verify, replay
