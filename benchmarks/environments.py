"""Part `testing`: duration of tests on virtual time that create an environment, retry an activity for hours and sleep 30 days.

Retries start after a minute with a backoff coefficient of 2: six retries take one hour of virtual time, eight four hours and ten
seventeen. Temporal's time-skipping test server needs a download and is not measured.
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
    """Charge an order; faked by every test."""
    raise NotImplementedError


@workflow.defn(name="Checkout")
def checkout(order: str) -> str:
    """Charge the order, sleep for a month and return the receipt."""
    receipt = charge(order)
    workflow.sleep(_MONTH)
    return receipt


def measure(*, quick: bool) -> list[Row]:
    """Measure tests with increasing numbers of retries."""
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
    elapsed, cpu = answer.stdout.split()
    return {"ms/test": float(elapsed), "ms CPU/test": float(cpu)}


def _run_tests(retries: int, count: int) -> tuple[float, float]:
    """Run `count` tests. Return the elapsed and the CPU milliseconds per test."""
    started, cpu_started = time.perf_counter(), time.process_time()
    for _ in range(count):
        with Environment() as env:
            env.fake(charge, returns="r-1", raises=[ConnectionError("down")] * retries)
            if env.execute_workflow(checkout, "o-1") != "r-1":
                raise RuntimeError("a measured test returned a wrong result")
    return (time.perf_counter() - started) / count * 1000, (time.process_time() - cpu_started) / count * 1000


if __name__ == "__main__":
    _run_tests(int(sys.argv[1]), 10)  # warm up imports and caches
    print(*_run_tests(int(sys.argv[1]), int(sys.argv[2])))
