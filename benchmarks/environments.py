"""Part `testing`: tests on virtual time: each makes an environment, retries an activity for hours and sleeps thirty days.

The first retry comes after a minute, each other one after twice as long: six take an hour of virtual time, eight four hours
and ten seventeen.
Temporal's own time-skipping server is a process that is downloaded, and is not measured here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial

from hourglass import RetryPolicy, activity, workflow
from hourglass.testing import Environment

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
    subjects = {f"{retries} retries": partial(_tests, retries, 50 if quick else 200) for retries in _RETRIES}
    return interleave(subjects, rounds=2 if quick else 5, part="testing", case="sleeps thirty days")


def _tests(retries: int, count: int) -> Mapping[str, float]:
    begun = time.perf_counter()
    for _ in range(count):
        with Environment() as env:
            env.fake(charge, returns="r-1", raises=[ConnectionError("down")] * retries)
            if env.execute_workflow(checkout, "o-1") != "r-1":
                raise RuntimeError("a measured test failed")
    return {"ms/test": (time.perf_counter() - begun) / count * 1000}
