"""`python -m benchmarks [--only PART …] [--quick]`."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable
from importlib import import_module
from typing import Any

from .report import Row, table

PARTS = {
    "replay": ("replaying", "measure"),
    "evaluator": ("evaluating", "measure"),
    "live": ("workers", "measure_live"),
    "memory": ("workers", "measure_memory"),
    "embedded": ("embedded", "measure"),
    "processes": ("processes", "measure"),
    "sleeping": ("sleeping", "measure"),
    "scale": ("scale", "measure"),
}


def main() -> None:
    """Measure the parts asked for, and print one table."""
    parser = argparse.ArgumentParser(prog="benchmarks", description="Figures side by side, as ratios.")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller sizes")
    given = parser.parse_args()
    rows: list[Row] = []
    for part in given.only:
        module, name = PARTS[part]
        measure: Callable[..., Any] = getattr(import_module(f"{__package__}.{module}"), name)
        print(f"measuring {part} …", flush=True)
        rows += measure(quick=given.quick)
    print(f"\nPython {platform.python_version()}, {platform.system()} {platform.machine()}")
    print("ratio: how many times better than the first subject of the case\n")
    print(table(rows))


if __name__ == "__main__":
    main()
