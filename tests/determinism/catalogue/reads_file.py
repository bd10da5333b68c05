"""A price list on the disk of whatever machine the run is on."""

from __future__ import annotations

from pathlib import Path

from hourglass import workflow

from .acts import charge


@workflow.defn(name="reads_file")
def bug(folder: str) -> str:
    prices = Path(folder) / "prices.txt"
    cents = int(prices.read_text())  # caught: check HG106, watch
    return charge(cents)  # caught: replay


arguments = ("{folder}",)
