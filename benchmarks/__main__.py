"""Command line: `python -m benchmarks [--only PART … | --all] [--quick] [--against FOLDER] [--publish] [--compare]`."""

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
"""Parts measured by default: about 15 minutes on two idle processors, 5 minutes with `--quick`."""


def main() -> None:
    """Measure the requested parts, print one table, and save the results with `--publish`."""
    options = _parser().parse_args()
    if options.compare is not None:
        print(_compare(options.compare))
        return
    set_folder(options.against)
    parts = options.only or (list(PARTS) if options.all else list(DEFAULT))
    rows: list[Row] = []
    failed: list[str] = []
    for part in parts:
        print(f"measuring {part} …", flush=True)
        started = time.monotonic()
        try:
            rows += _measure(part, quick=options.quick)
        except Exception:  # keep the results of the other parts, which may have taken hours
            traceback.print_exc()
            failed.append(part)
        print(f"  {time.monotonic() - started:.0f} s", flush=True)
    print(f"\nPython {platform.python_version()}, {platform.system()} {platform.machine()}")
    print("ratio: improvement over the first subject of the case\n")
    print(table(rows))
    for name, reason in LEFT_OUT.items():
        print(f"not measured: {name}: {reason}")
    if options.publish:
        _publish(rows)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Compare Hourglass with other engines, as ratios."
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=PARTS,
        metavar="PART",
        help=f"measure only these parts: {', '.join(PARTS)}",
    )
    parser.add_argument("--all", action="store_true", help="measure all parts, including the slow ones")
    parser.add_argument("--quick", action="store_true", help="use fewer rounds and smaller sizes")
    parser.add_argument(
        "--against", type=Path, metavar="FOLDER", help="also measure this checkout of an earlier version"
    )
    parser.add_argument(
        "--publish",
        action="store_true",
        help="write benchmarks/results/VERSION.json and update the tables and plots of docs/performance.md",
    )
    parser.add_argument(
        "--compare",
        nargs="*",
        metavar="VERSION",
        help="compare two saved releases (default: the last two) without measuring",
    )
    return parser


def _publish(rows: list[Row]) -> None:
    from . import publish

    # Replace the local path of the earlier checkout by a placeholder.
    preceding = ["", *sys.argv[1:-1]]
    arguments = " ".join(
        "FOLDER" if previous == "--against" else argument
        for previous, argument in zip(preceding, sys.argv[1:], strict=True)
    )
    publish.save(publish.results_of(rows, f"python -m benchmarks {arguments}".strip()))
    merged = publish.load(publish.results_of(rows, "").path)
    sections = publish.write_manual(merged)
    print(f"\nsaved to {merged.path.relative_to(publish.ROOT)}; updated sections: {', '.join(sections)}")


def _compare(versions: list[str]) -> str:
    from . import publish

    paths = [publish.RESULTS / f"{version}.json" for version in versions] or publish.result_files()[-2:]
    if len(paths) != 2 or not all(path.exists() for path in paths):
        saved = ", ".join(path.stem for path in publish.result_files()) or "none"
        sys.exit(f"--compare needs two saved releases; saved releases: {saved}")
    return publish.compare(*map(publish.load, paths))


def _measure(part: str, *, quick: bool) -> list[Row]:
    module, name = PARTS[part]
    measure: Callable[..., list[Row]] = getattr(import_module(f"{__package__}.{module}"), name)
    return measure(quick=quick)


if __name__ == "__main__":
    main()
