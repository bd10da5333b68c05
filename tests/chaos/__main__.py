"""Runs the faults and prints their table; ends with status 1 if one was not survived."""

from __future__ import annotations

import argparse
import logging
import sys
import time

from . import arena
from .faults import FAULTS
from .outcome import FULL, QUICK, SHORT, Outcome, Scale, table


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", metavar="FAULT", choices=sorted(FAULTS), default=sorted(FAULTS))
    parser.add_argument("--quick", action="store_true", help="fewer runs and shorter watches")
    parser.add_argument("--short", action="store_true", help="the size that the test suite runs")
    parser.add_argument("--log", default="CRITICAL", help="the level of what is logged meanwhile")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=given.log, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    scale = SHORT if given.short else QUICK if given.quick else FULL
    rows = []
    try:
        for name in FAULTS:
            if name in given.only:
                rows.append(_run(name, given.seed, scale))
    finally:
        arena.close()
    print(f"\nseed {given.seed}, {scale.name}\n\n{table(rows)}")
    return 0 if all(outcome.good for _, outcome, _ in rows) else 1


def _run(name: str, seed: int, scale: Scale) -> tuple[str, Outcome, float]:
    print(f"{name} …", flush=True)
    began = time.monotonic()
    outcome = FAULTS[name](seed, scale)
    took = time.monotonic() - began
    print(f"{name}: {outcome.survived} of {outcome.tries} in {took:.0f} s", flush=True)
    for trouble in outcome.troubles:
        print(f"  not survived: {trouble}", flush=True)
    return name, outcome, took


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
