"""Part `testing`: tests on virtual time: each makes an environment, retries an activity for hours and sleeps thirty days.

The first retry comes after a minute, each other one after twice as long: six take an hour of virtual time, eight four hours
and ten seventeen.
Temporal's own time-skipping server is a process that is downloaded, and is not measured here.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from functools import partial

from hourglass import RetryPolicy, activity, workflow
from hourglass.testing import Environment

from .earlier import environment, with_earlier
from .report import Row, interleave

_RETRIES = (0, 6, 8, 10)
_MONTH = 30 * 86_400.0


@activity.defn(
    start_to_close_timeout=60, retry_policy=RetryPolicy(initial_interval=60, maximum_interval=86_400)
)
def charge(order: str) -> str:
    """Faked by every test."""
    raise NotImplementedError


@workflow.defn(name="Checkout")
def checkout(order: str) -> str:
    """Charge, wait for a month, say what was charged."""
    receipt = charge(order)
    workflow.sleep(_MONTH)
    return receipt


def measure(*, quick: bool) -> list[Row]:
    """A test with so many retries."""
    rows: list[Row] = []
    for retries in _RETRIES:
        subjects = {
            shown: partial(_child, shown, retries, 50 if quick else 200)
            for shown in with_earlier("Hourglass")
        }
        rows += interleave(subjects, rounds=2 if quick else 5, part="testing", case=f"{retries} retries")
    return rows


def _child(shown: str, retries: int, count: int) -> Mapping[str, float]:
    command = [sys.executable, "-m", "benchmarks.environments", str(retries), str(count)]
    answer = subprocess.run(command, stdout=subprocess.PIPE, timeout=600, check=True, env=environment(shown))
    took, cpu = answer.stdout.split()
    return {"ms/test": float(took), "ms CPU/test": float(cpu)}


# --- in a process of its own ------------------------------------------------------------------------------


def _tests(retries: int, count: int) -> tuple[float, float]:
    """Milliseconds of a test: by the clock, and of the CPU."""
    begun, spent = time.perf_counter(), time.process_time()
    for _ in range(count):
        with Environment() as env:
            env.fake(charge, returns="r-1", raises=[ConnectionError("down")] * retries)
            if env.execute_workflow(checkout, "o-1") != "r-1":
                raise RuntimeError("a measured test failed")
    return (time.perf_counter() - begun) / count * 1000, (time.process_time() - spent) / count * 1000


if __name__ == "__main__":
    _tests(int(sys.argv[1]), 10)  # what is loaded and made once is not measured
    print(*_tests(int(sys.argv[1]), int(sys.argv[2])))
