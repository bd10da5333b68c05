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


@workflow.defn(name="Sequence")
def sequence(steps: int) -> int:
    total = 0
    for number in range(steps):
        total += echo(number)
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
