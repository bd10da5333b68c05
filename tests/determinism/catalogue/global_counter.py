"""A number for each order, counted in a global: other runs and other processes count, too."""

from __future__ import annotations

from hourglass import workflow

from .acts import note

counter = 0


@workflow.defn(name="global_counter")
def bug() -> str:
    global counter
    counter += 1  # caught: check HG110
    return note(f"order {counter}")  # caught: check HG110, verify, replay


earlier_runs = 1
