"""A change that removes a step under open runs."""

from __future__ import annotations

from hourglass import workflow

from .acts import charge, note


@workflow.defn(name="removed_activity")
def old() -> str:
    note("begin")
    return charge(100)


@workflow.defn(name="removed_activity")
def bug() -> str:
    return charge(100)  # caught: replay
