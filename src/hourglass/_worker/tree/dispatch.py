"""The path of an engine's item to its completion. Each item gets a job of its own: the evaluation of an activation or
an attempt of an activity.

Jobs live under the Application, outside the Subsystem, so they survive the death of a Worker or holder. There may be
ten thousand jobs per second, so a job has no coroutine: its next step is a callback. A single object represents an item
in progress, in three roles. The object is the entry in its handle's book (`HandleRecord`), which fences the completion.
It is a job in the tree, which can be seen and killed (`hourglass._supervision.process`). It receives the outcome from
its lane or executor.

Invariants:

- However a job ends, its item is completed (I3). If the job dies without completing the item, this module completes the
  item as failed.
- If no worker is registered any longer, the completion is logged and dropped, and the engine delivers the item again.
- Completions go through the current or last holder, even if that holder is dead, because the tables outlive it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from hourglass._contract.handle import (
    ActivityCancel,
    ActivityItem,
    ActivityResult,
    ActivityTask,
)
from hourglass._evaluator.commands import Completion, Succeeded
from hourglass._evaluator.events import Activation, is_eviction
from hourglass._supervision import Exit, Job, TaskSupervisor
from hourglass._worker.activities.attempts import Attempt
from hourglass._worker.activities.executors import ActivityExecutor
from hourglass._worker.activities.outcomes import failed
from hourglass._worker.activities.reporting import ResultSender
from hourglass._worker.handles.handles import HandleRecord, HandleTables
from hourglass._worker.handles.holder import BridgeHolder, WorkerNotRegistered
from hourglass._worker.handles.sending import send_completion, send_result
from hourglass._worker.health.lane_notes import LaneNote, LaneNotes, packed
from hourglass._worker.health.parked import task_failed
from hourglass._worker.lanes.evaluation import Verdict

logger = logging.getLogger("hourglass.worker")


class ActivationLanes(Protocol):
    """The lanes of a task queue, as the dispatch sees them."""

    def submit(
        self, activation: Activation, reply: Callable[[Verdict], object], *, generation: int = 0
    ) -> None:
        """Evaluate an activation and pass the verdict to `reply`."""
        ...

    def attempt_ended(self, run_id: str, activity_id: str) -> None:
        """Report that a local activity of a run has ended."""
        ...


class TaskServices(Protocol):
    """The services of a task queue, as the dispatch sees them. A worker or a test environment provides them."""

    @property
    def queue(self) -> str:
        """The name of the task queue."""
        ...

    @property
    def lanes(self) -> ActivationLanes:
        """The lanes, which evaluate activations."""
        ...

    @property
    def executor(self) -> ActivityExecutor:
        """The executor of activity attempts."""
        ...

    @property
    def sender(self) -> ResultSender:
        """The sender of results that no handle accepts."""
        ...

    @property
    def notes(self) -> LaneNotes | None:
        """The notes of the executing runs; None if no notes are kept."""
        ...

    def code_of(self, workflow_type: str) -> str:
        """Return a digest of a workflow's code."""
        ...

    def evicted(self, record: HandleRecord, run_id: str) -> None:
        """Drop a run that the engine has evicted without an activation."""
        ...


class Work(Job):
    """An engine's item in progress: an entry in its handle's book, and a job in the tree. If the job dies, a task
    completes the item instead.
    """

    __slots__ = ("completing", "dispatch", "item", "record", "services", "token")

    dispatch: Dispatch
    services: TaskServices
    record: HandleRecord
    token: int
    completing: asyncio.Task[None] | None

    is_dispatched = True

    @property
    def is_in_work(self) -> bool:
        """Whether the job, or the task that replaces a dead job, is working on the item."""
        return self.exit is None or self.completing is not None

    def forgotten(self) -> bool:
        """Return False: this answer of the engine concerns only completions of activations."""
        return False

    def _start_completing(self, answer: Coroutine[Any, Any, None]) -> None:
        self.completing = asyncio.get_running_loop().create_task(answer)
        self.dispatch.completing[self.completing] = self.services.queue
        self.completing.add_done_callback(self._stop_completing)

    def _stop_completing(self, task: asyncio.Task[None]) -> None:
        self.completing = None
        self.dispatch.completing.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            logger.error("the tasks of a failed dispatcher could not be completed", exc_info=task.exception())


class Evaluation(Work):
    """An activation in progress. It is evaluated on its lane, then completed."""

    __slots__ = ("_unwanted",)

    item: Activation
    _unwanted: tuple[str, ...]

    def evaluated(self, verdict: Verdict) -> None:
        """Send the completion that the lane returned."""
        if self.exit is not None:
            return  # a task has completed the item instead
        record, completion = self.record, verdict.completion
        try:
            if verdict.closed:
                record.runs.close(completion.run_id)
            self._unwanted = verdict.evict
            if record.runs.open.get(completion.run_id) is self:
                send_completion(self.dispatch.tables, record, completion, self._answered)
            else:
                self._log_unsent(
                    self.dispatch.holder.stale(f"run {completion.run_id}", record.queue, record.generation)
                )
                self._answered()
        except Exception as error:
            self.finish(error)

    def forgotten(self) -> bool:
        """Drop the run, because the engine no longer knew the run when the completion arrived. No eviction will follow."""
        self.services.evicted(self.record, self.item.run_id)
        return True

    def _answered(self) -> None:
        closed = self.record.runs.closed
        if closed and self.item.run_id in closed and is_eviction(self.item):
            self.record.runs.evicted(self.item.run_id)
        for run_id in self._unwanted:
            self.dispatch.evict(self.record, run_id)
        self.finish()

    def _log_unsent(self, error: WorkerNotRegistered) -> None:
        logger.info("the completion of run %s is not sent: %s", self.item.run_id, error)

    def on_failure(self, reason: Exit) -> None:
        """Complete the activation if the job ended without doing so."""
        run_id = self.item.run_id
        if is_eviction(self.item):
            self.record.runs.evicted(run_id)
            # An eviction is only acknowledged, so it cannot fail.
            answer: Completion = Succeeded(run_id)
        else:
            answer = task_failed(run_id, "EvaluationDied", f"the evaluation of this task ended: {reason}")
        self._start_completing(self._complete_instead(answer))

    async def _complete_instead(self, completion: Completion) -> None:
        try:
            record = self.record
            await self.dispatch.holder.complete_activation(
                record.queue, record.generation, self.token, completion
            )
        except WorkerNotRegistered as error:
            self._log_unsent(error)


class Execution(Work):
    """An activity attempt in progress. It is executed, then its result is reported."""

    __slots__ = ("_attempt",)

    item: ActivityTask
    _attempt: Attempt | None

    def begin(self) -> None:
        """Submit the attempt to the executor."""
        self._attempt = None
        try:
            self._attempt = self.services.executor.begin(self.item, self.executed, self.record.generation)
        except Exception as error:
            self.finish(error)

    def executed(self, result: ActivityResult) -> None:
        if self.exit is not None:
            return  # a task has reported the attempt instead
        record = self.record
        # Break the reference cycle with the attempt: otherwise each attempt would wait for the garbage collector.
        self._attempt = None
        try:
            if record.attempts.open.get(result.token) is self:
                send_result(self.dispatch.tables, record, result, self.finish)
                return
            resending = asyncio.get_running_loop().create_task(self._report(result))
            resending.add_done_callback(lambda done: self.finish(_error_of(done)))
            self.monitor(lambda _: resending.cancel())
        except Exception as error:
            self.finish(error)

    async def _report(self, result: ActivityResult) -> None:
        """Report the result through the handle, or through the client if the handle is gone."""
        record = self.record
        try:
            await self.dispatch.holder.complete_activity(record.queue, record.generation, result)
        except WorkerNotRegistered as error:
            await self.services.sender.send(self.item, result, error)

    def on_failure(self, reason: Exit) -> None:
        """Report the attempt as failed if the job ended without a report."""
        if self._attempt is not None:  # only this attempt: another may have arrived with the same token
            self.services.executor.abandon(self._attempt)
        result = failed(self.item, "AttemptDied", f"the process that made this attempt ended: {reason}")
        self._start_completing(self._report(result))


class LocalExecution(Execution):
    """An attempt of a local activity. If the run has closed, the result is held back until the run is evicted.

    The attempt belongs to a workflow task. If the attempt kills the process, the engine sends the task again without
    counting attempts, so only the record of the run's deaths can stop the repetition.
    """

    __slots__ = ("_note",)

    _note: LaneNote | None

    def begin(self) -> None:
        """Submit the attempt to the executor."""
        services, task = self.services, self.item
        self._note = services.notes.note(is_lane=False) if services.notes is not None else None
        if self._note is not None:
            code = services.code_of(task.workflow_type)
            self._note.write(packed(task.run_id, task.workflow_type, code, task.activity_id))
        super().begin()

    def on_failure(self, reason: Exit) -> None:
        """Remove the note of the local activity, then report the attempt as failed."""
        self._release_note()
        super().on_failure(reason)

    def executed(self, result: ActivityResult) -> None:
        """Report the result of the attempt. If the run has closed, wait until the run is evicted."""
        self._release_note()
        task, report = self.item, super().executed
        self.services.lanes.attempt_ended(task.run_id, task.activity_id)
        self.record.runs.when_evicted(task.run_id, lambda: report(result))

    def _release_note(self) -> None:
        if self._note is not None:
            self._note.release()


def _error_of(task: asyncio.Task[None]) -> BaseException | None:
    return None if task.cancelled() else task.exception()


_STOP = 1.0  # seconds for a task to end after its cancellation
_SETTLE = 5.0  # seconds for the completions of dead jobs to be sent


class Dispatch:
    """Assigns each item of an engine to a job."""

    holder: BridgeHolder
    """The current or last holder. Set before the first poll."""

    def __init__(self, tables: HandleTables, evaluators: TaskSupervisor, executors: TaskSupervisor) -> None:
        self.tables = tables
        self.completing: dict[asyncio.Task[None], str] = {}
        """The tasks that complete the items of dead jobs, with their queues."""
        self._evaluators = evaluators
        self._executors = executors

    def activation(self, services: TaskServices, record: HandleRecord, item: Activation) -> None:
        """Have an activation evaluated and completed. Raises `NotRunning` while the evaluators' supervisor is down."""
        # The job first: if it cannot be created, the inbox keeps the item.
        job = self._evaluators.spawn_job(Evaluation, "evaluation")
        job.dispatch, job.services, job.record, job.item, job.completing = self, services, record, item, None
        job.token = record.next_token()
        record.runs.open[item.run_id] = job
        try:
            services.lanes.submit(item, job.evaluated, generation=record.generation)
        except Exception as error:
            job.finish(error)

    def activity(self, services: TaskServices, record: HandleRecord, item: ActivityItem) -> None:
        """Have an attempt executed and reported, or a running attempt cancelled. Raises as `activation` does."""
        if isinstance(item, ActivityCancel):
            services.executor.cancel(item.token, item.reason, record.generation)
            return
        job = self._executors.spawn_job(LocalExecution if item.is_local else Execution, "attempt")
        job.dispatch, job.services, job.record, job.item, job.completing = self, services, record, item, None
        job.token = record.next_token()
        record.attempts.open[item.token] = job
        job.begin()

    def evict(self, record: HandleRecord, run_id: str) -> None:
        """Request the eviction of a run. Do nothing if the handle is gone, because a handle that ends evicts all its
        runs.
        """
        try:
            self.holder.request_eviction(record.queue, record.generation, run_id)
        except WorkerNotRegistered:
            pass

    async def finish(self, queue: str) -> None:
        """End all jobs of a queue whose last handle is closed, and wait, within limits, until every item is completed."""
        works = [
            job
            for supervisor in (self._evaluators, self._executors)
            for job in supervisor.jobs()
            if isinstance(job, Work) and job.services.queue == queue
        ]
        for work in works:
            work.begin_stop(_STOP)
        for work in works:
            await work.wait_dead()
        completing = [task for task, whose in self.completing.items() if whose == queue]
        if completing:
            _, unanswered = await asyncio.wait(completing, timeout=_SETTLE)
            for task in unanswered:
                task.cancel()
