"""Workflows that a process cannot survive, and a neighbour that should not notice."""

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
