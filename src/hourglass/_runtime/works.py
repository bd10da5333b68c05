"""A piece of work, from the ticket that brought it to its answer: the evaluation of an activation, an attempt of an activity.

There may be ten thousand of them in a second, so they have no coroutine: what is next is a callback, one object carries it all
the way, and a job in the tree (see `hourglass._supervision.job`) is what can be seen and killed. Whatever ends the job, what it
was given is answered (I3): where it dies without an answer, it is answered as failed, here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Hashable
from typing import TYPE_CHECKING, Any

from hourglass._bridge.handle import ActivityFailed, ActivityResult, ActivityTask
from hourglass._bridge.handle_record import is_eviction
from hourglass._bridge.holder import Ticket, WorkerNotRegistered
from hourglass._engine.commands import Completion, Succeeded, TaskFailed
from hourglass._engine.events import Activation
from hourglass._runtime.evaluation import Verdict
from hourglass._runtime.services import QueueServices
from hourglass._supervision import NORMAL, Exit, Job, NotRunning
from hourglass.converter import ApplicationFailure, Failure

if TYPE_CHECKING:
    from hourglass._runtime.dispatch import Dispatch

logger = logging.getLogger("hourglass.worker")


class Work:
    """Somebody is at it: a job, and after its death the task that answers in its place."""

    __slots__ = ("dispatch", "job", "key", "mending", "services")

    def __init__(self, dispatch: Dispatch, services: QueueServices, key: Hashable) -> None:
        self.dispatch = dispatch
        self.services = services
        self.key = key
        self.job: Job
        self.mending: asyncio.Task[None] | None = None

    def _mend(self, answer: Coroutine[Any, Any, None]) -> None:
        self.mending = asyncio.get_running_loop().create_task(answer)
        self.mending.add_done_callback(self._mended)

    def _mended(self, task: asyncio.Task[None]) -> None:
        self.dispatch.strike(self)
        if not task.cancelled() and task.exception() is not None:
            logger.error("what a dead task left behind could not be answered", exc_info=task.exception())


class Evaluation(Work):
    """An activation: evaluated on its lane, and completed."""

    __slots__ = ("_evicts", "_ticket", "_verdict")

    def __init__(self, dispatch: Dispatch, services: QueueServices, ticket: Ticket[Activation]) -> None:
        super().__init__(dispatch, services, ticket.token)
        self._ticket = ticket
        self._evicts = is_eviction(ticket.item)
        self._verdict: Verdict | None = None

    def begin(self) -> None:
        """Have it evaluated."""
        try:
            self.services.evaluate(self._ticket.item, self._ticket.generation, self._evaluated)
        except Exception as error:
            self.job.finish(error)

    def _evaluated(self, verdict: Verdict) -> None:
        if not self.job.alive:
            return  # it was answered in its place
        try:
            if verdict.closed:
                self.services.hold(self._ticket.generation, self._ticket.item.run_id)
            self._verdict = verdict
            self._complete(verdict.completion, self._answered)
        except Exception as error:
            self.job.finish(error)

    def _answered(self) -> None:
        generation, verdict = self._ticket.generation, self._verdict
        if self._evicts:
            self.services.release(generation, self._ticket.item.run_id)
        for unwanted in verdict.evict if verdict is not None else ():
            self.dispatch.evict(self.services.queue, generation, unwanted)
        self.job.finish()

    def _complete(self, completion: Completion, then: Callable[[], object]) -> None:
        try:
            self.dispatch.holder().send_completion(self._ticket, completion, then)
        except (WorkerNotRegistered, NotRunning) as error:
            logger.info("the answer for run %s is not sent: %s", completion.run_id, error)
            then()

    def ended(self, reason: Exit) -> None:
        """Its job is over: done, or dead."""
        if reason is NORMAL:
            self.dispatch.strike(self)
            return
        run_id = self._ticket.item.run_id
        if self._evicts:
            self.services.release(self._ticket.generation, run_id)
            answer: Completion = Succeeded(run_id)
        else:
            answer = TaskFailed(
                run_id, _failure("EvaluationDied", f"the evaluation of this task ended: {reason}")
            )
        self._mend(self._complete_instead(answer))

    async def _complete_instead(self, completion: Completion) -> None:
        through = asyncio.Event()
        self._complete(completion, through.set)
        await through.wait()


class Execution(Work):
    """An attempt of an activity: made, and reported."""

    __slots__ = ("_generation", "_task")

    def __init__(
        self, dispatch: Dispatch, services: QueueServices, generation: int, task: ActivityTask
    ) -> None:
        super().__init__(dispatch, services, (generation, task.token))
        self._generation = generation
        self._task = task

    def begin(self) -> None:
        """Have it made."""
        self.services.took(self._task.token, self._generation)
        try:
            self.services.executor.begin(self._task, self._executed)
        except Exception as error:
            self.job.finish(error)

    def _executed(self, result: ActivityResult) -> None:
        if self._task.is_local:
            self.services.when_released(self._generation, self._task.run_id, lambda: self._report(result))
        else:
            self._report(result)

    def _report(self, result: ActivityResult) -> None:
        job = self.job
        if not job.alive:
            return  # it was reported in its place
        try:
            self.dispatch.holder().send_result(self.services.queue, self._generation, result, job.finish)
        except (WorkerNotRegistered, NotRunning):
            resending = asyncio.get_running_loop().create_task(self._report_somehow(result))
            resending.add_done_callback(lambda done: job.finish(_error_of(done)))
            job.monitor(lambda _: resending.cancel())
        except Exception as error:
            job.finish(error)

    async def _report_somehow(self, result: ActivityResult) -> None:
        """By the handle if it takes it, else by the client."""

        async def complete(result: ActivityResult) -> None:
            await self.dispatch.holder().complete_activity(self.services.queue, self._generation, result)

        await self.services.sender.send(self._task, result, complete)

    def ended(self, reason: Exit) -> None:
        """Its job is over: done, or dead."""
        token = self._task.token
        self.services.gave_back(token)
        if reason is NORMAL:
            self.dispatch.strike(self)
            return
        self.services.executor.abandon(token)
        failed = _failure("AttemptDied", f"the process that made this attempt ended: {reason}")
        self._mend(self._report_somehow(ActivityFailed(token, failed)))


def _error_of(task: asyncio.Task[None]) -> BaseException | None:
    return None if task.cancelled() else task.exception()


def _failure(kind: str, message: str) -> Failure:
    return Failure(message=message, info=ApplicationFailure(type=kind))
