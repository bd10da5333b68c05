"""From a poll to an answer: gives each polled item to a job of its own (the evaluation of an activation, an attempt
of an activity), and knows which job has what.

Jobs live under the Application, outside the Subsystem: a Worker or a holder that dies takes none of them along. There
may be ten thousand of them in a second, so they have no coroutine: what is next is a callback, and one object, a job
in the tree that can be seen and killed (`hourglass._supervision.process`), carries it from the ticket to the answer.

Invariants: whatever ends a job, what it was given is answered (I3); where it dies without an answer, it is answered
as failed, here. If no worker is registered any more the answer is logged and dropped, and the engine delivers again.
Answers go through the holder that was last in charge, also while it is dead: the tables that it works on outlive it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from hourglass._bridge.handles import is_eviction
from hourglass._bridge.holder import BridgeHolder, Ticket, WorkerNotRegistered
from hourglass._contract.handle import (
    ActivityCancel,
    ActivityFailed,
    ActivityItem,
    ActivityResult,
    ActivityTask,
)
from hourglass._engine.commands import Completion, Succeeded, TaskFailed
from hourglass._engine.events import Activation
from hourglass._runtime.attempts import Attempt
from hourglass._runtime.evaluation import Verdict
from hourglass._runtime.lane_notes import LaneNote, packed
from hourglass._runtime.services import QueueServices
from hourglass._supervision import NORMAL, Exit, Job, TaskSupervisor
from hourglass.converter import ApplicationFailure, Failure

# --- jobs ---------------------------------------------------------------------------------------------------


logger = logging.getLogger("hourglass.worker")


class Work(Job):
    """A polled item in work: held by this job, and after its death by the task that answers in its place."""

    __slots__ = ("_ticket", "dispatch", "mending", "services")

    dispatch: Dispatch
    services: QueueServices
    _ticket: Ticket[Any]
    mending: asyncio.Task[None] | None

    def _mend(self, answer: Coroutine[Any, Any, None]) -> None:
        self.mending = asyncio.get_running_loop().create_task(answer)
        self.mending.add_done_callback(self._mended)

    def _mended(self, task: asyncio.Task[None]) -> None:
        self.dispatch.works.pop(self._ticket.token, None)
        if not task.cancelled() and task.exception() is not None:
            logger.error("what a dead task left behind could not be answered", exc_info=task.exception())


class Evaluation(Work):
    """An activation: evaluated on its lane, and completed."""

    __slots__ = ("_unwanted",)

    def begin(self, dispatch: Dispatch, services: QueueServices, ticket: Ticket[Activation]) -> None:
        """Have the activation evaluated on its run's lane."""
        self.dispatch, self.services, self._ticket, self.mending = dispatch, services, ticket, None
        self._unwanted: tuple[str, ...] = ()
        try:
            services.lanes.submit(ticket.item, self._evaluated, generation=ticket.generation)
        except Exception as error:
            self.finish(error)

    def _evaluated(self, verdict: Verdict) -> None:
        if self.exit is not None:
            return  # it was answered in its place
        try:
            if verdict.closed:
                self.services.hold(self._ticket.generation, self._ticket.item.run_id)
            self._unwanted = verdict.evict
            try:
                self.dispatch.holder.send_completion(self._ticket, verdict.completion, self._answered)
            except WorkerNotRegistered as error:
                self._say_unsent(error)
                self._answered()
        except Exception as error:
            self.finish(error)

    def _answered(self) -> None:
        if is_eviction(self._ticket.item):
            self.services.release(self._ticket.generation, self._ticket.item.run_id)
        for run_id in self._unwanted:
            self.dispatch.evict(self.services.queue, self._ticket.generation, run_id)
        self.finish()

    def _say_unsent(self, error: WorkerNotRegistered) -> None:
        logger.info("the answer for run %s is not sent: %s", self._ticket.item.run_id, error)

    def on_death(self, reason: Exit) -> None:
        """The job has ended: it has answered, or an answer is sent in its place."""
        if reason is NORMAL:
            self.dispatch.works.pop(self._ticket.token, None)
            return
        run_id = self._ticket.item.run_id
        if is_eviction(self._ticket.item):
            self.services.release(self._ticket.generation, run_id)
            # An eviction is only acknowledged: there is nothing in it that could fail.
            answer: Completion = Succeeded(run_id)
        else:
            answer = TaskFailed(
                run_id, _failure("EvaluationDied", f"the evaluation of this task ended: {reason}")
            )
        self._mend(self._complete_instead(answer))

    async def _complete_instead(self, completion: Completion) -> None:
        try:
            await self.dispatch.holder.complete_activation(self._ticket, completion)
        except WorkerNotRegistered as error:
            self._say_unsent(error)


class Execution(Work):
    """An attempt of an activity: made, and reported."""

    __slots__ = ("_attempt", "_task")

    def begin(
        self, dispatch: Dispatch, services: QueueServices, ticket: Ticket[ActivityItem], task: ActivityTask
    ) -> None:
        """Have the attempt made."""
        self.dispatch, self.services, self._ticket, self.mending = dispatch, services, ticket, None
        self._task = task
        self._attempt: Attempt | None = None
        try:
            self._attempt = services.executor.begin(task, self, ticket.generation)
        except Exception as error:
            self.finish(error)

    def executed(self, result: ActivityResult) -> None:
        """The attempt has ended: report it."""
        if self.exit is not None:
            return  # it was reported in its place
        ticket = self._ticket
        try:
            self.dispatch.holder.send_result(ticket.queue, ticket.generation, result, self.finish)
        except WorkerNotRegistered:
            resending = asyncio.get_running_loop().create_task(self._report_somehow(result))
            resending.add_done_callback(lambda done: self.finish(_error_of(done)))
            self.monitor(lambda _: resending.cancel())
        except Exception as error:
            self.finish(error)

    async def _report_somehow(self, result: ActivityResult) -> None:
        """By the handle if it takes it, else by the client."""

        async def complete(result: ActivityResult) -> None:
            ticket = self._ticket
            await self.dispatch.holder.complete_activity(ticket.queue, ticket.generation, result)

        await self.services.sender.send(self._task, result, complete)

    def on_death(self, reason: Exit) -> None:
        """The job has ended: it has answered, or an answer is sent in its place."""
        if reason is NORMAL:
            self.dispatch.works.pop(self._ticket.token, None)
            return
        if self._attempt is not None:  # this one: another may have come under the same token
            self.services.executor.abandon(self._attempt)
        failed = _failure("AttemptDied", f"the process that made this attempt ended: {reason}")
        self._mend(self._report_somehow(ActivityFailed(self._task.token, failed)))


class LocalExecution(Execution):
    """The same of a local activity, whose end is held back while its run is closed. It belongs to a workflow task: should it
    kill the process, the task comes again, and nothing counts its attempts but the run's deaths.
    """

    __slots__ = ("_note",)

    _note: LaneNote | None

    def begin(
        self, dispatch: Dispatch, services: QueueServices, ticket: Ticket[ActivityItem], task: ActivityTask
    ) -> None:
        """Have the attempt made."""
        self._note = services.notes.note(is_lane=False) if services.notes is not None else None
        if self._note is not None:
            code = services.code_of(task.workflow_type)
            self._note.take(packed(task.run_id, task.workflow_type, code, task.activity_id))
        super().begin(dispatch, services, ticket, task)

    def on_death(self, reason: Exit) -> None:
        """The job has ended: the note of what was executing goes, then as for every attempt."""
        if self._note is not None:
            self._note.release()
        super().on_death(reason)

    def executed(self, result: ActivityResult) -> None:
        """The attempt has ended: report it when its run, if it has closed, is evicted."""
        self.services.lanes.attempt_ended(self._task.run_id, self._task.activity_id)
        report = super().executed
        self.services.when_released(self._ticket.generation, self._task.run_id, lambda: report(result))


def _error_of(task: asyncio.Task[None]) -> BaseException | None:
    return None if task.cancelled() else task.exception()


def _failure(kind: str, message: str) -> Failure:
    return Failure(message=message, info=ApplicationFailure(type=kind))


# --- dispatch -----------------------------------------------------------------------------------------------


_STOP = 1.0  # for a task that is told to end
_SETTLE = 5.0  # for the answers that the dead owe


class Dispatch:
    """Gives polled items to jobs."""

    holder: BridgeHolder
    """The holder that was last in charge, dead or alive; set before anything is polled from it."""

    def __init__(self, evaluators: TaskSupervisor, executors: TaskSupervisor) -> None:
        self.works: dict[int, Work] = {}
        """What is handed out and not answered, by its ticket's token; a job that has answered removes itself."""
        self._evaluators = evaluators
        self._executors = executors

    def activation(self, services: QueueServices, ticket: Ticket[Activation]) -> None:
        """Have an activation evaluated and answered. Raises `NotRunning` while the evaluators' supervisor is down."""
        # The job first: if it cannot be made the ticket is not acknowledged, and the poll line keeps the item.
        evaluation = self._evaluators.spawn_job(Evaluation, "evaluation")
        if not ticket.acknowledge():
            evaluation.drop()
            return
        self.works[ticket.token] = evaluation
        evaluation.begin(self, services, ticket)

    def activity(self, services: QueueServices, ticket: Ticket[ActivityItem]) -> None:
        """Have an attempt made and reported, or an attempt that runs here cancelled. Raises as `activation` does."""
        item = ticket.item
        if isinstance(item, ActivityCancel):
            if ticket.acknowledge():
                services.executor.cancel(item.token, item.reason, ticket.generation)
            return
        kind = LocalExecution if item.is_local else Execution
        execution = self._executors.spawn_job(kind, "attempt")
        if not ticket.acknowledge():
            execution.drop()
            return
        self.works[ticket.token] = execution
        execution.begin(self, services, ticket, item)

    def evict(self, queue: str, generation: int, run_id: str) -> None:
        """Have a run evicted; a handle that is gone has evicted everything."""
        try:
            self.holder.request_eviction(queue, generation, run_id)
        except WorkerNotRegistered:
            pass

    # --- looking, and the end ----------------------------------------------------------------------------------------

    async def finish(self, queue: str) -> None:
        """No handle of this queue is left: end what still works for it, and wait, but not for ever, until all is answered."""
        for work in self._of(queue):
            work.begin_stop(_STOP)
        for work in self._of(queue):
            await work.wait_dead()
        mending = [work.mending for work in self._of(queue) if work.mending is not None]
        if mending:
            _, unanswered = await asyncio.wait(mending, timeout=_SETTLE)
            for task in unanswered:
                task.cancel()

    def _of(self, queue: str) -> list[Work]:
        return [work for work in self.works.values() if work.services.queue == queue]
