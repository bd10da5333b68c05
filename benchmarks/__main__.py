"""`python -m benchmarks [--only PART … | --all] [--quick] [--against FOLDER] [--publish] [--compare]`."""

from __future__ import annotations

import argparse
import platform
import sys
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from .earlier import set_folder
from .report import LEFT_OUT, Row, table

PARTS = {
    "replay": ("replaying", "measure"),
    "evaluator": ("evaluating", "measure"),
    "live": ("workers", "measure_live"),
    "memory": ("workers", "measure_memory"),
    "embedded": ("embedded", "measure"),
    "latency": ("latency", "measure"),
    "growth": ("growth", "measure"),
    "floor": ("floor", "measure"),
    "processes": ("processes", "measure"),
    "cores": ("cores", "measure"),
    "sleeping": ("sleeping", "measure"),
    "testing": ("environments", "measure"),
    "scale": ("scale", "measure"),
    "load": ("load", "measure"),
}


DEFAULT = (
    "embedded",
    "latency",
    "growth",
    "live",
    "memory",
    "replay",
    "evaluator",
    "processes",
    "sleeping",
    "testing",
)
"""What is measured unless parts are named: about a quarter of an hour on two quiet processors, five minutes with `--quick`."""


def main() -> None:
    """Measure the parts asked for, print one table, and keep what was measured if that is asked for."""
    given = _parser().parse_args()
    if given.compare is not None:
        print(_compare(given.compare))
        return
    set_folder(given.against)
    parts = given.only or (list(PARTS) if given.all else list(DEFAULT))
    rows: list[Row] = []
    failed: list[str] = []
    for part in parts:
        print(f"measuring {part} …", flush=True)
        began = time.monotonic()
        try:
            rows += _measure(part, quick=given.quick)
        except Exception:  # hours of other figures must not be lost with it
            traceback.print_exc()
            failed.append(part)
        print(f"  {time.monotonic() - began:.0f} s", flush=True)
    print(f"\nPython {platform.python_version()}, {platform.system()} {platform.machine()}")
    print("ratio: how many times better than the first subject of the case\n")
    print(table(rows))
    for name, why in LEFT_OUT.items():
        print(f"not measured: {name}: {why}")
    if given.publish:
        _publish(rows)
    if failed:
        sys.exit(f"could not be measured: {', '.join(failed)}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Figures side by side, as ratios."
    )
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, metavar="PART", help=f"these parts: {', '.join(PARTS)}"
    )
    parser.add_argument("--all", action="store_true", help="all parts, those that take long included")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller sizes")
    parser.add_argument(
        "--against", type=Path, metavar="FOLDER", help="a checkout of an earlier version, as one more subject"
    )
    parser.add_argument(
        "--publish",
        action="store_true",
        help="write benchmarks/results/VERSION.json, and the tables and plots of docs/performance.md",
    )
    parser.add_argument(
        "--compare",
        nargs="*",
        metavar="VERSION",
        help="measure nothing: compare two releases that were kept, by default the last two",
    )
    return parser


def _publish(rows: list[Row]) -> None:
    from . import publish

    # Where the earlier checkout lies on this machine is no reader's concern.
    before = ["", *sys.argv[1:-1]]
    arguments = " ".join(
        "FOLDER" if last == "--against" else each for last, each in zip(before, sys.argv[1:], strict=True)
    )
    publish.save(publish.results_of(rows, f"python -m benchmarks {arguments}".strip()))
    whole = publish.load(publish.results_of(rows, "").path)
    written = publish.write_manual(whole)
    print(f"\nkept in {whole.path.relative_to(publish.ROOT)}; sections written: {', '.join(written)}")


def _compare(versions: list[str]) -> str:
    from . import publish

    paths = [publish.RESULTS / f"{each}.json" for each in versions] or publish.kept()[-2:]
    missing = [str(each) for each in paths if not each.exists()]
    if missing or len(paths) != 2:
        there = ", ".join(each.stem for each in publish.kept()) or "none"
        sys.exit(f"two releases are needed, and these were kept: {there}")
    return publish.compared(*map(publish.load, paths))


def _measure(part: str, *, quick: bool) -> list[Row]:
    module, name = PARTS[part]
    measure: Callable[..., list[Row]] = getattr(import_module(f"{__package__}.{module}"), name)
    return measure(quick=quick)


if __name__ == "__main__":
    main()
