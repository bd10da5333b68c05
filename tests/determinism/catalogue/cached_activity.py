"""`functools.cache` around an activity: what is remembered is not asked for, and the history asked for it."""

from __future__ import annotations

import functools

from hourglass import workflow

from .acts import charge, fetch


@functools.cache  # caught: check HG113
def size(name: str) -> int:
    return fetch(name)  # caught: replay


@workflow.defn(name="cached_activity")
def bug() -> str:
    return charge(size("lamp"))  # caught: verify


earlier_runs = 1
