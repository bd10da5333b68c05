"""One task queue of an environment: its handle, its runs, and its two polls.

Must not know: time, activities. What its polls bring becomes a step.
A crash drops all that a worker would lose with its process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from hourglass._contract.handle import ActivityItem, ActivityResult, Handle, HandleConfig, Shutdown
from hourglass._contract.service import Connection
from hourglass._engine.commands import Completion, Succeeded
from hourglass._engine.events import Activation
from hourglass._runtime.evaluation import Evaluations, Verdict
from hourglass._runtime.parked import task_failed
from hourglass.testing._bench import Poll, QuietLoop

IDENTITY = "test-worker"

_MANY = 1_000_000  # nothing is to wait for a slot


class Queue:
    """What serves one task queue. In the environment's thread."""

    def __init__(
        self, name: str, connection: Connection, loop: QuietLoop, evaluations: Callable[[str], Evaluations]
    ) -> None:
        self.name = name
        self._connection = connection
        self._loop = loop
        self._make = evaluations

    async def open(self) -> None:
        """Begin to serve; on the loop."""
        self.evaluations = self._make(self.name)
        config = HandleConfig(
            task_queue=self.name,
            identity=IDENTITY,
            max_cached_workflows=_MANY,
            max_concurrent_workflow_tasks=_MANY,
            max_concurrent_activities=_MANY,
            max_concurrent_local_activities=_MANY,
        )
        self.handle: Handle = await self._connection.open_handle(config)
        door = self.handle.in_process
        assert door is not None  # an environment's engine is in this thread
        self._door = door
        self._activations = Poll(self.handle.poll_activation)
        self._activities = Poll(self.handle.poll_activity)

    def polled(self) -> list[Activation | ActivityItem]:
        """All that the polls bring now."""
        task, attempt = self._activations.waits, self._activities.waits
        tasks, attempts = task is None or task.done(), attempt is None or attempt.done()
        return self._loop.call(self._take, tasks, attempts) if tasks or attempts else []

    def _take(self, tasks: bool, attempts: bool) -> list[Activation | ActivityItem]:
        found: list[Activation | ActivityItem] = []
        try:
            # What is there is taken first: a poll that was woken then only waits on, which is cheaper than a new one.
            if tasks:
                found += self._door.take_activations()
                while (activation := self._activations.take()) is not None:
                    found.append(activation)
            if attempts:
                found += self._door.take_activities()
                while (item := self._activities.take()) is not None:
                    found.append(item)
        except Shutdown:
            pass
        return found

    def waits(self) -> set[asyncio.Future[Any]]:
        """What the polls wait for."""
        polls = (self._activations.waits, self._activities.waits)
        return {each for each in polls if each is not None}

    def refuse(self, activation: Activation, why: str) -> None:
        """Fail the task of an activation without executing anything."""
        self._loop.call(self._door.answer_activation, task_failed(activation.run_id, "WorkflowParked", why))

    def judge(self, activation: Activation) -> Verdict:
        """Have an activation evaluated; the driver sees to the answer."""
        return self.evaluations.evaluate(activation)

    def answer(self, verdict: Verdict) -> None:
        """Answer the activation of a verdict."""
        self._loop.call(self._door.answer_activation, verdict.completion)
        for run_id in verdict.evict:
            self.handle.request_eviction(run_id)

    def report(self, result: ActivityResult) -> None:
        """Answer for an attempt."""
        self._loop.call(self._door.answer_activity, result)

    def crash(self) -> None:
        """Lose everything that a worker knows, as if its process had died, and begin anew."""
        self.close()
        self._loop.do(self.open())

    def close(self) -> None:
        """Drop all fibers, in their own thread, and let go of the handle."""
        self.evaluations.close()
        self._activations.close()
        self._activities.close()
        self._loop.do(self.handle.finalize_shutdown())


def queues_of(completion: Completion) -> list[str]:
    """The task queues that the commands of a completion name."""
    if not isinstance(completion, Succeeded):
        return []
    named: list[str] = []
    for command in completion.commands:
        name = getattr(getattr(command, "spec", None), "task_queue", "")
        if name and isinstance(name, str):
            named.append(name)
    return named
