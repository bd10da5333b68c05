"""Measured workflows for Hourglass, with the same types and commands as those for Temporal's SDK."""

from __future__ import annotations

from hourglass import activity, workflow


@activity.defn(start_to_close_timeout=30)
def echo(value: int) -> int:
    return value


@activity.defn(name="echo", start_to_close_timeout=30)
async def echo_async(value: int) -> int:
    """Return the argument on the event loop, without a thread, like the peers."""
    return value


STEPS_PER_RUN = 5_000
"""Steps after which a run continues as new: a step takes six events, and a history is limited to 51,200."""


@workflow.defn(name="Sequence")
def sequence(steps: int, begin: int = 0, total: int = 0) -> int:
    end = min(steps, begin + STEPS_PER_RUN)
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
