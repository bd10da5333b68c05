"""From a poll to an answer: one temporary task for each activation and for each attempt of an activity.

The tasks live under the Application, outside the Subsystem: a Worker or a holder that dies takes none of them along. Whatever
ends a task, what it was given is answered (I3): one that dies without an answer is answered as failed, here. If nobody is
registered any more the answer is logged and dropped, and the engine delivers again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from hourglass._bridge.handle import (
    ActivityCancel,
    ActivityFailed,
    ActivityItem,
    ActivityResult,
    ActivityTask,
)
from hourglass._bridge.holder import BridgeHolder, Ticket, WorkerNotRegistered
from hourglass._engine.commands import Completion, Succeeded, TaskFailed
from hourglass._engine.events import Activation, RunEvicted
from hourglass._runtime.services import QueueServices
from hourglass._supervision import NORMAL, Down, NotRunning, TaskSupervisor
from hourglass.converter import ApplicationFailure, Failure

logger = logging.getLogger("hourglass.worker")


class Dispatch:
    """Gives polled items to tasks. `holder` gives the holder of the moment, or raises `NotRunning`."""

    def __init__(
        self, evaluators: TaskSupervisor, executors: TaskSupervisor, holder: Callable[[], BridgeHolder]
    ) -> None:
        self._evaluators = evaluators
        self._executors = executors
        self._holder = holder
        self._mending: set[asyncio.Task[None]] = set()

    # --- workflow tasks ----------------------------------------------------------------------------------------------

    def activation(self, services: QueueServices, ticket: Ticket[Activation]) -> None:
        """Have an activation evaluated and answered. Raises `NotRunning` while the evaluators' supervisor is down."""
        process = self._evaluators.spawn(self._evaluate, services, ticket, name="evaluation")
        if not ticket.acknowledge():
            process.kill()
            return
        process.monitor(lambda down: self._evaluation_ended(services, ticket, down))

    async def _evaluate(self, services: QueueServices, ticket: Ticket[Activation]) -> None:
        verdict = await services.evaluate(ticket.item, ticket.generation)
        if verdict.closed:
            services.hold(ticket.item.run_id)
        await self._complete(ticket, verdict.completion)
        if _is_eviction(ticket.item):
            services.release(ticket.item.run_id)
        for run_id in verdict.evict:
            self._evict(services.queue, ticket.generation, run_id)

    async def _complete(self, ticket: Ticket[Activation], completion: Completion) -> None:
        try:
            await self._holder().complete_activation(ticket, completion)
        except (WorkerNotRegistered, NotRunning) as error:
            logger.info("the answer for run %s is not sent: %s", completion.run_id, error)

    def _evaluation_ended(self, services: QueueServices, ticket: Ticket[Activation], down: Down) -> None:
        if down.exit is NORMAL:
            return
        run_id = ticket.item.run_id
        if _is_eviction(ticket.item):
            services.release(run_id)
            answer: Completion = Succeeded(run_id)
        else:
            answer = TaskFailed(
                run_id, _failure("EvaluationDied", f"the evaluation of this task ended: {down.exit}")
            )
        self._mend(self._complete(ticket, answer))

    # --- activities --------------------------------------------------------------------------------------------------

    def activity(self, services: QueueServices, ticket: Ticket[ActivityItem]) -> None:
        """Have an attempt made and reported, or an attempt that runs here cancelled. Raises as `activation` does."""
        item = ticket.item
        if isinstance(item, ActivityCancel):
            if ticket.acknowledge():
                services.executor.cancel(item.token, item.reason)
            return
        process = self._executors.spawn(self._execute, services, ticket.generation, item, name="attempt")
        if not ticket.acknowledge():
            process.kill()
            return
        services.took(item.token, ticket.generation)
        process.monitor(lambda down: self._execution_ended(services, ticket.generation, item, down))

    async def _execute(self, services: QueueServices, generation: int, task: ActivityTask) -> None:
        result = await services.executor.execute(task)
        if task.is_local:
            await services.until_released(task.run_id)
        await self._report(services, generation, task, result)

    async def _report(
        self, services: QueueServices, generation: int, task: ActivityTask, result: ActivityResult
    ) -> None:
        async def complete(result: ActivityResult) -> None:
            await self._holder().complete_activity(services.queue, generation, result)

        await services.sender.send(task, result, complete)

    def _execution_ended(
        self, services: QueueServices, generation: int, task: ActivityTask, down: Down
    ) -> None:
        services.gave_back(task.token)
        if down.exit is NORMAL:
            return
        services.executor.cancel(task.token, "WORKER_SHUTDOWN")
        failed = ActivityFailed(
            task.token, _failure("AttemptDied", f"the task that made this attempt ended: {down.exit}")
        )
        self._mend(self._report(services, generation, task, failed))

    # --- what is left to do for the dead ----------------------------------------------------------------------------------

    def _mend(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._mending.add(task)
        task.add_done_callback(self._mended)

    def _mended(self, task: asyncio.Task[None]) -> None:
        self._mending.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("what a dead task left behind could not be answered", exc_info=task.exception())

    async def settle(self) -> None:
        """Wait until all that the dead left behind is answered."""
        while self._mending:
            await asyncio.wait(self._mending)

    def _evict(self, queue: str, generation: int, run_id: str) -> None:
        try:
            self._holder().request_eviction(queue, generation, run_id)
        except (WorkerNotRegistered, NotRunning):
            pass  # a handle that is gone has evicted everything


def _is_eviction(activation: Activation) -> bool:
    return any(isinstance(event, RunEvicted) for event in activation.events)


def _failure(kind: str, message: str) -> Failure:
    return Failure(message=message, info=ApplicationFailure(type=kind))
