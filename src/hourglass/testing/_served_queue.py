"""One task queue of an environment: its handle, the evaluations of its runs, and its activity executor.

The driver turns whatever the handle delivers into steps. A crash drops everything that a worker would lose with its process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from hourglass._contract.handle import ActivityItem, ActivityResult, ActivityTask, HandleConfig
from hourglass._contract.service import Connection
from hourglass._embedded.activations.handle import EngineHandle
from hourglass._embedded.clock import Bell
from hourglass._evaluator.commands import Completion, Succeeded
from hourglass._evaluator.events import Activation
from hourglass._evaluator.specs import Payloads
from hourglass._worker.activities.executors import ActivityExecutor
from hourglass._worker.activities.publishing import ProgressSender
from hourglass._worker.health.parked import task_failed
from hourglass._worker.lanes.evaluation import Evaluations, Verdict
from hourglass.testing._activities import (
    HEARTBEAT_INTERVAL,
    ActivityStage,
    EnvironmentMailbox,
    EnvironmentRunner,
    Mishap,
    Performance,
)
from hourglass.testing._steps import Step, StepAdder
from hourglass.testing._threads import QuietLoop

IDENTITY = "test-worker"

_UNLIMITED = 1_000_000  # nothing waits for a slot


class ServedQueue:
    """One task queue. Belongs to the environment's thread."""

    def __init__(
        self,
        name: str,
        connection: Connection,
        loop: QuietLoop,
        bell: Bell,
        make_evaluations: Callable[[str], Evaluations],
        stage: ActivityStage,
        steps: StepAdder,
    ) -> None:
        """Create the queue; on the loop."""
        self.name = name
        self._connection = connection
        self._loop = loop
        self._bell = bell
        self._make_evaluations = make_evaluations
        self._steps = steps
        self.runner = EnvironmentRunner(stage, steps)
        self.executor = ActivityExecutor(
            stage.equipment,
            self._heartbeat,
            lambda _: self.runner,
            heartbeat_interval=HEARTBEAT_INTERVAL,
            publisher=ProgressSender(connection, converter=stage.equipment.converter),
            mailbox=EnvironmentMailbox(loop),
            timers=stage.timers,
            is_quiet=True,
        )

    async def open(self) -> None:
        """Open the handle and start to serve the queue; on the loop."""
        self.evaluations = self._make_evaluations(self.name)
        config = HandleConfig(
            task_queue=self.name,
            identity=IDENTITY,
            max_cached_workflows=_UNLIMITED,
            max_concurrent_workflow_tasks=_UNLIMITED,
            max_concurrent_activities=_UNLIMITED,
            max_concurrent_local_activities=_UNLIMITED,
        )
        handle = await self._connection.open_handle(config)
        assert isinstance(handle, EngineHandle)  # an environment's engine is in this thread
        self.handle = handle
        self.attend()

    def attend(self) -> None:
        """Request that the bell be rung when the handle has items."""
        self.handle.attend(self._bell)

    def taken(self) -> Sequence[Activation | ActivityItem]:
        """Take all available items from the handle."""
        return self._loop.call(self._take)

    def _take(self) -> list[Activation | ActivityItem]:
        return [*self.handle.take_activations(), *self.handle.take_activities()]

    def refuse(self, activation: Activation, reason: str) -> None:
        """Fail the task of an activation without executing anything."""
        self._loop.call(
            self.handle.complete_workflow_task, task_failed(activation.run_id, "WorkflowParked", reason)
        )

    def evaluate(self, activation: Activation) -> Verdict:
        """Evaluate an activation, without completing it."""
        return self.evaluations.evaluate(activation)

    def complete(self, verdict: Verdict) -> None:
        """Complete the activation of a verdict."""
        self._loop.call(self.handle.complete_workflow_task, verdict.completion)
        for run_id in verdict.evict:
            self.handle.request_eviction(run_id)

    def begin(self, task: ActivityTask, mishap: Mishap | None = None) -> None:
        """Start an attempt, with a planned mishap if there is one."""
        if mishap is not None:
            self.runner.plan(task.token, mishap)
        self.executor.begin(task, self)

    def executed(self, result: ActivityResult) -> None:
        """Report the result of an attempt: now, or, if it ran on another thread, as a step of its own."""
        performance = self.runner.ended(result)
        if performance is not None and performance.is_elsewhere:
            self._steps.add(Step("ended", performance.name, partial(self._report, result, performance)))
        else:
            self._report(result, performance)

    def _report(self, result: ActivityResult, performance: Performance | None) -> None:
        if performance is None or not performance.mishap.result_lost:
            self._loop.call(self.handle.complete_activity, result)

    def _heartbeat(self, token: bytes, details: Payloads) -> None:
        self.handle.heartbeat(token, details)

    def crash(self) -> None:
        """Drop everything that a worker loses with its process, and open the queue again."""
        self._drop()
        self._loop.do(self.open())

    def close(self) -> None:
        """Drop all fibers, on their own thread, and close the handle."""
        self._drop()
        self.executor.stop()

    def _drop(self) -> None:
        for attempt in list(self.executor.attempts.values()):
            self.executor.abandon(attempt)
        self.runner.abandon()
        self.evaluations.close()
        self._loop.do(self.handle.finalize())


def queues_of(completion: Completion) -> list[str]:
    """Return the task queues that the commands of a completion name."""
    if not isinstance(completion, Succeeded):
        return []
    names: list[str] = []
    for command in completion.commands:
        name = getattr(getattr(command, "spec", None), "task_queue", "")
        if name and isinstance(name, str):
            names.append(name)
    return names
