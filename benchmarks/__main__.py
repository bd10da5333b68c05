"""`python -m benchmarks [--only PART …] [--quick] [--against FOLDER]`."""

from __future__ import annotations

import argparse
import platform
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from .earlier import set_folder
from .report import Row, table

PARTS = {
    "replay": ("replaying", "measure"),
    "evaluator": ("evaluating", "measure"),
    "live": ("workers", "measure_live"),
    "memory": ("workers", "measure_memory"),
    "embedded": ("embedded", "measure"),
    "floor": ("floor", "measure"),
    "processes": ("processes", "measure"),
    "cores": ("cores", "measure"),
    "sleeping": ("sleeping", "measure"),
    "testing": ("environments", "measure"),
    "scale": ("scale", "measure"),
}


def main() -> None:
    """Measure the parts asked for, and print one table."""
    parser = argparse.ArgumentParser(prog="benchmarks", description="Figures side by side, as ratios.")
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=", ".join(PARTS)
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller sizes")
    parser.add_argument(
        "--against", type=Path, metavar="FOLDER", help="a checkout of an earlier version, as one more subject"
    )
    given = parser.parse_args()
    set_folder(given.against)
    rows: list[Row] = []
    failed: list[str] = []
    for part in given.only:
        print(f"measuring {part} …", flush=True)
        try:
            rows += _measure(part, quick=given.quick)
        except Exception:  # hours of other figures must not be lost with it
            traceback.print_exc()
            failed.append(part)
    print(f"\nPython {platform.python_version()}, {platform.system()} {platform.machine()}")
    print("ratio: how many times better than the first subject of the case\n")
    print(table(rows))
    if failed:
        sys.exit(f"could not be measured: {', '.join(failed)}")


def _measure(part: str, *, quick: bool) -> list[Row]:
    module, name = PARTS[part]
    measure: Callable[..., list[Row]] = getattr(import_module(f"{__package__}.{module}"), name)
    return measure(quick=quick)


if __name__ == "__main__":
    main()
