"""Measured workflows for Temporal's Python SDK: a sequence of activities, and a wait for a signal."""

from __future__ import annotations

from datetime import timedelta

from temporalio import activity, workflow


@activity.defn
async def echo(value: int) -> int:
    return value


@workflow.defn
class Sequence:
    @workflow.run
    async def run(self, steps: int) -> int:
        total = 0
        for number in range(steps):
            total += await workflow.execute_activity(
                echo, number, start_to_close_timeout=timedelta(seconds=30)
            )
        return total


@workflow.defn
class Idle:
    def __init__(self) -> None:
        self.finished = False

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: self.finished)

    @workflow.signal
    def finish(self) -> None:
        self.finished = True
