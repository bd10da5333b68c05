"""Workflows that block their process, and a healthy one beside them."""

from __future__ import annotations

import re

from hourglass import activity, workflow


@activity.defn
def step(value: int) -> int:
    return value + 1


@workflow.defn
def neighbour(value: int) -> int:
    for _ in range(5):
        value = step(value)
    return value


@workflow.defn
def catastrophe(text: str) -> bool:
    return bool(re.match(r"(a+)+$", text))
