"""A change of how long a run waits: open runs have a timer of the old length."""

from __future__ import annotations

from datetime import timedelta

from hourglass import workflow

from .acts import note


@workflow.defn(name="changed_timer")
def old() -> str:
    workflow.sleep(timedelta(days=30))
    return note("a month")


@workflow.defn(name="changed_timer")
def bug() -> str:
    workflow.sleep(timedelta(days=7))  # caught: replay
    return note("a month")
