"""The measured workflows as plain functions: the same types, the same commands."""

from __future__ import annotations

from hourglass import activity, workflow


@activity.defn(start_to_close_timeout=30)
def echo(value: int) -> int:
    return value


@activity.defn(name="echo", start_to_close_timeout=30)
async def echo_async(value: int) -> int:
    """As the peers have it: on the event loop, without a thread."""
    return value


A_HISTORY = 5_000
"""A run that has come so far continues as new: each step has six events, and a history takes 51,200."""


@workflow.defn(name="Sequence")
def sequence(steps: int, begin: int = 0, total: int = 0) -> int:
    end = min(steps, begin + A_HISTORY)
    for number in range(begin, end):
        total += echo(number)
    if end < steps:
        workflow.continue_as_new(steps, end, total)
    return total


@workflow.defn(name="Idle")
class Idle:
    def __init__(self) -> None:
        self.finished = False

    @workflow.run
    def run(self) -> None:
        workflow.wait_condition(lambda: self.finished)

    @workflow.signal
    def finish(self) -> None:
        self.finished = True
