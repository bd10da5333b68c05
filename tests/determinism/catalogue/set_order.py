"""Names without duplicates, in whatever order the process's hash seed gives."""

from __future__ import annotations

from hourglass import workflow

from .acts import note

NAMES = [f"name-{number}" for number in range(20)]


@workflow.defn(name="set_order")
def bug() -> list[str]:
    results = []
    for name in set(NAMES):  # caught: check HG104
        results.append(note(name))  # caught: replay
    return results
