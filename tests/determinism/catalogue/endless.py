"""A workflow that calls itself to go on: each run waits for a child, and none ever ends."""

from __future__ import annotations

from hourglass import workflow

from .acts import note


@workflow.defn(name="endless")
def bug(day: int = 0) -> str:
    note(f"day {day}")
    return bug(day + 1)  # caught: check HG117
