"""Part `latency`: time from start to result of workflows of one step, at fixed start rates.

Workflows are started at fixed times whether or not earlier ones are done (an open loop), so that time in the backlog counts. The
unit `answered` is the share of the workflows that had a result within a grace period: a subject well below 1 cannot keep up.
"""

from __future__ import annotations

from functools import partial

from .earlier import with_earlier
from .embedded import SUBJECTS, child, peers
from .report import Row, interleave

_RATES = (20, 100, 400)
_MIN_ANSWERED = 0.95
"""Minimum share of answered workflows: a subject below it is not measured at higher rates."""


def measure(*, quick: bool) -> list[Row]:
    """Measure each rate in turn, with the subjects that kept up with the previous one."""
    seconds = 2.0 if quick else 8.0
    rows: list[Row] = []
    slow: set[str] = set()
    with peers() as addresses:
        for rate in _RATES[:2] if quick else _RATES:
            subjects = {
                shown: partial(child, shown, name, 1, seconds, addresses, 1, float(rate))
                for shown, name in with_earlier(*SUBJECTS).items()
                if shown not in slow
            }
            results = interleave(subjects, rounds=1, part="latency", case=f"{rate} a second")
            slow |= {row.subject for row in results if row.unit == "answered" and row.value < _MIN_ANSWERED}
            rows += results
    return rows
