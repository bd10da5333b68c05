"""Runs the faults by seed and writes a report; exits with status 1 if one was not survived or a promise was broken."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from pathlib import Path

from . import testbed
from .faults import FAULTS
from .outcome import FULL, QUICK, SHORT, Row, Scale, as_json, as_text


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", metavar="FAULT", choices=sorted(FAULTS), default=sorted(FAULTS))
    parser.add_argument("--quick", action="store_true", help="fewer runs and shorter watches")
    parser.add_argument("--short", action="store_true", help="the size that the test suite runs")
    parser.add_argument(
        "--report",
        type=Path,
        default=Path("chaos-report"),
        metavar="NAME",
        help="the report is NAME.txt, and NAME.json for programs (chaos-report)",
    )
    parser.add_argument("--log", default="CRITICAL", help="the level of what is logged meanwhile")
    options = parser.parse_args(arguments)
    os.environ["HOURGLASS_STATUS_TOKEN"] = "none"  # the faults are not about the token
    logging.basicConfig(level=options.log, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    scale = SHORT if options.short else QUICK if options.quick else FULL
    rows: list[Row] = []
    try:
        for name in FAULTS:
            if name in options.only:
                rows.append(_run(name, options.seed, scale))
    finally:
        testbed.close()
    report = as_text(rows, options.seed, scale)
    print(f"\n{report}")
    options.report.with_suffix(".txt").write_text(f"{report}\n")
    options.report.with_suffix(".json").write_text(as_json(rows, options.seed, scale) + "\n")
    return 0 if all(outcome.good for _, outcome, _ in rows) else 1


def _run(name: str, seed: int, scale: Scale) -> Row:
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
