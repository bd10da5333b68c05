"""A change of what an activity is given: the same command, with other data."""

from __future__ import annotations

from hourglass import workflow

from .acts import charge


@workflow.defn(name="changed_argument")
def old() -> str:
    return charge(100)


@workflow.defn(name="changed_argument")
def bug() -> str:
    return charge(120)  # caught: replay
