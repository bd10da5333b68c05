"""From a poll to an answer: one temporary process for each activation and for each attempt of an activity.

There may be ten thousand of them in a second, so they have no coroutine: what is next is a callback, and the process is what
can be seen and killed. They live under the Application, outside the Subsystem: a Worker or a holder that dies takes none of
them along. Whatever ends one, what it was given is answered (I3): one that dies without an answer is answered as failed, here.
If nobody is registered any more the answer is logged and dropped, and the engine delivers again.

Answers go through the holder that was last in charge, also while it is dead: the tables that it works on outlive it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any

from hourglass._bridge.handle import (
    ActivityCancel,
    ActivityFailed,
    ActivityItem,
    ActivityResult,
    ActivityTask,
)
from hourglass._bridge.handle_record import is_eviction
from hourglass._bridge.holder import BridgeHolder, Ticket, WorkerNotRegistered
from hourglass._engine.commands import Completion, Succeeded, TaskFailed
from hourglass._engine.events import Activation
from hourglass._runtime.evaluation import Verdict
from hourglass._runtime.services import QueueServices
from hourglass._supervision import NORMAL, Down, NotRunning, Process, TaskSupervisor
from hourglass.converter import ApplicationFailure, Failure

logger = logging.getLogger("hourglass.worker")

_STOP = 1.0  # for a task that is told to end
_SETTLE = 10.0  # for the answers that the dead owe


@dataclass(slots=True)
class _Work:
    """Somebody is at it: a task, and after its death the one that answers in its place."""

    queue: str
    process: Process
    mending: asyncio.Task[None] | None = None


class Dispatch:
    """Gives polled items to tasks. `holder` gives the holder that was last in charge, or raises `NotRunning`."""

    def __init__(
        self, evaluators: TaskSupervisor, executors: TaskSupervisor, holder: Callable[[], BridgeHolder]
    ) -> None:
        self._evaluators = evaluators
        self._executors = executors
        self._holder = holder
        self._works: dict[Hashable, _Work] = {}

    # --- workflow tasks ----------------------------------------------------------------------------------------------

    def activation(self, services: QueueServices, ticket: Ticket[Activation]) -> None:
        """Have an activation evaluated and answered. Raises `NotRunning` while the evaluators' supervisor is down."""
        process = self._evaluators.spawn_job("evaluation")
        if not ticket.acknowledge():
            process.kill()
            return
        self._works[ticket.token] = _Work(services.queue, process)
        process.monitor(lambda down: self._evaluation_ended(services, ticket, down))
        try:
            services.evaluate(
                ticket.item, ticket.generation, partial(self._evaluated, process, services, ticket)
            )
        except Exception as error:
            process.finish(error)

    def _evaluated(
        self, process: Process, services: QueueServices, ticket: Ticket[Activation], verdict: Verdict
    ) -> None:
        if not process.alive:
            return  # it was answered in its place
        try:
            if verdict.closed:
                services.hold(ticket.generation, ticket.item.run_id)
            self._complete(
                ticket, verdict.completion, partial(self._answered, process, services, ticket, verdict)
            )
        except Exception as error:
            process.finish(error)

    def _answered(
        self, process: Process, services: QueueServices, ticket: Ticket[Activation], verdict: Verdict
    ) -> None:
        if is_eviction(ticket.item):
            services.release(ticket.generation, ticket.item.run_id)
        for unwanted in verdict.evict:
            self._evict(services.queue, ticket.generation, unwanted)
        process.finish()

    def _complete(
        self, ticket: Ticket[Activation], completion: Completion, then: Callable[[], object]
    ) -> None:
        try:
            self._holder().send_completion(ticket.claim, completion, then)
        except (WorkerNotRegistered, NotRunning) as error:
            logger.info("the answer for run %s is not sent: %s", completion.run_id, error)
            then()

    def _evaluation_ended(self, services: QueueServices, ticket: Ticket[Activation], down: Down) -> None:
        if down.exit is NORMAL:
            self._works.pop(ticket.token, None)
            return
        run_id = ticket.item.run_id
        if is_eviction(ticket.item):
            services.release(ticket.generation, run_id)
            answer: Completion = Succeeded(run_id)
        else:
            answer = TaskFailed(
                run_id, _failure("EvaluationDied", f"the evaluation of this task ended: {down.exit}")
            )
        self._mend(ticket.token, self._complete_instead(ticket, answer))

    async def _complete_instead(self, ticket: Ticket[Activation], completion: Completion) -> None:
        through = asyncio.Event()
        self._complete(ticket, completion, through.set)
        await through.wait()

    # --- activities --------------------------------------------------------------------------------------------------

    def activity(self, services: QueueServices, ticket: Ticket[ActivityItem]) -> None:
        """Have an attempt made and reported, or an attempt that runs here cancelled. Raises as `activation` does."""
        item = ticket.item
        if isinstance(item, ActivityCancel):
            if ticket.acknowledge():
                services.executor.cancel(item.token, item.reason)
            return
        generation = ticket.generation
        process = self._executors.spawn_job("attempt")
        if not ticket.acknowledge():
            process.kill()
            return
        services.took(item.token, generation)
        self._works[generation, item.token] = _Work(services.queue, process)
        process.monitor(lambda down: self._execution_ended(services, generation, item, down))
        try:
            services.executor.begin(item, partial(self._executed, process, services, generation, item))
        except Exception as error:
            process.finish(error)

    def _executed(
        self,
        process: Process,
        services: QueueServices,
        generation: int,
        task: ActivityTask,
        result: ActivityResult,
    ) -> None:
        report = partial(self._report, process, services, generation, task, result)
        if task.is_local:
            services.when_released(generation, task.run_id, report)
        else:
            report()

    def _report(
        self,
        process: Process,
        services: QueueServices,
        generation: int,
        task: ActivityTask,
        result: ActivityResult,
    ) -> None:
        if not process.alive:
            return  # it was reported in its place
        try:
            self._holder().send_result(services.queue, generation, result, process.finish)
        except (WorkerNotRegistered, NotRunning):
            resending = asyncio.get_running_loop().create_task(
                self._report_somehow(services, generation, task, result)
            )
            resending.add_done_callback(lambda done: process.finish(_error_of(done)))
            process.monitor(lambda _: resending.cancel())
        except Exception as error:
            process.finish(error)

    async def _report_somehow(
        self, services: QueueServices, generation: int, task: ActivityTask, result: ActivityResult
    ) -> None:
        """By the handle if it takes it, else by the client."""

        async def complete(result: ActivityResult) -> None:
            await self._holder().complete_activity(services.queue, generation, result)

        await services.sender.send(task, result, complete)

    def _execution_ended(
        self, services: QueueServices, generation: int, task: ActivityTask, down: Down
    ) -> None:
        services.gave_back(task.token)
        if down.exit is NORMAL:
            self._works.pop((generation, task.token), None)
            return
        services.executor.abandon(task.token)
        failed = ActivityFailed(
            task.token, _failure("AttemptDied", f"the process that made this attempt ended: {down.exit}")
        )
        self._mend((generation, task.token), self._report_somehow(services, generation, task, failed))

    # --- what is left to do for the dead -----------------------------------------------------------------------------

    def _mend(self, key: Hashable, answer: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(answer)
        self._works[key].mending = task
        task.add_done_callback(lambda _: self._mended(key, task))

    def _mended(self, key: Hashable, task: asyncio.Task[None]) -> None:
        work = self._works.get(key)
        if work is not None and work.mending is task:
            del self._works[key]
        if not task.cancelled() and task.exception() is not None:
            logger.error("what a dead task left behind could not be answered", exc_info=task.exception())

    def _evict(self, queue: str, generation: int, run_id: str) -> None:
        try:
            self._holder().request_eviction(queue, generation, run_id)
        except (WorkerNotRegistered, NotRunning):
            pass  # a handle that is gone has evicted everything

    # --- looking, and the end ----------------------------------------------------------------------------------------

    def has_activation(self, token: int) -> bool:
        """Whether somebody is at the activation that was handed out under this token."""
        return token in self._works

    def has_attempt(self, generation: int, token: bytes) -> bool:
        """Whether somebody is at this attempt."""
        return (generation, token) in self._works

    async def finish(self, queue: str) -> None:
        """No handle of this queue is left: end what still works for it, and wait, but not for ever, until all is answered."""
        for work in self._of(queue):
            work.process.begin_stop(_STOP)
        for work in self._of(queue):
            await work.process.wait_dead()
        mending = [work.mending for work in self._of(queue) if work.mending is not None]
        if mending:
            _, unanswered = await asyncio.wait(mending, timeout=_SETTLE)
            for task in unanswered:
                task.cancel()

    def _of(self, queue: str) -> list[_Work]:
        return [work for work in self._works.values() if work.queue == queue]


def _error_of(task: asyncio.Task[None]) -> BaseException | None:
    return None if task.cancelled() else task.exception()


def _failure(kind: str, message: str) -> Failure:
    return Failure(message=message, info=ApplicationFailure(type=kind))
