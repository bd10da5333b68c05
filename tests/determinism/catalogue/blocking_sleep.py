"""A pause that stops the thread of all workflows, and is gone after a crash."""

from __future__ import annotations

from time import sleep

from hourglass import workflow

from .acts import note


@workflow.defn(name="blocking_sleep")
def bug() -> str:
    sleep(0.001)  # caught: check HG103, watch
    return note("later")
