"""Dispatch of workflow tasks and queries (`TaskDispatch`): from runs to workers, and back.

Must not know: activations, how runs change (see `transitions`), which clients wait for an answer. Invariants: at most
one worker has a run's task. The queries of a run wait while the run has a task. A run that a worker has cached goes to
no other worker.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

from hourglass._embedded.matching.deployments import Deployments
from hourglass._embedded.matching.pollers import QueuePoller
from hourglass._embedded.runs.run import LoadedRun, WaitingQuery
from hourglass._embedded.runs.runs import RunTable
from hourglass._embedded.transitions import tasks as tasks
from hourglass._embedded.transitions import transitions
from hourglass._embedded.transitions.command_checks import (
    SETS_ATTRIBUTES,
    CompletionRejected,
    invalid_attributes,
    search_attributes_of,
)
from hourglass._embedded.transitions.run import RUNNING, Run
from hourglass._embedded.transitions.task_starts import Eager
from hourglass._embedded.transitions.updates import call_id, request_id
from hourglass._evaluator import commands as c
from hourglass._evaluator.commands import AcceptUpdate, TaskFailureCause
from hourglass._history import events as h
from hourglass.converter import Failure, Payload, ServerFailure
from hourglass.errors import HourglassError, ServiceError

logger = logging.getLogger("hourglass.embedded")


class TaskDispatch:
    """Assigns workflow tasks and queries to workers, and applies the completions of tasks."""

    def __init__(self, runs: RunTable, deployments: Deployments) -> None:
        self._runs = runs
        self._deployments = deployments
        self._queried = runs.queues.queried

    def assign(self, poller: QueuePoller) -> None:
        """Assign tasks and queries to a worker until none is left or the worker has no free slot."""
        active, tasks = poller.active_runs, poller.queue.tasks
        while len(active) < poller.task_slots and (tasks or poller.own_tasks or self._queried):
            if (tasks or poller.own_tasks) and (record := self.take(poller)) is not None:
                poller.queue.tasks_received += 1
                poller.receiver.begin_task(record)
            elif self._queried and (record := self.take_queries(poller)) is not None:
                poller.receiver.begin_queries(record)
            else:
                return

    def eager(self, poller: QueuePoller, record: LoadedRun) -> Eager | None:
        """Return a request to start a run's next workflow task in the same change as the completion of one of its
        attempts, on the same worker.

        Return None if the worker has no free slot or has not cached the run, or if other tasks have waited longer.
        """
        run, task = record.run, record.run.task
        if record.sticky is not poller or len(poller.active_runs) >= poller.task_slots:
            return None
        if poller.queue.tasks or poller.own_tasks or not self._runs.queues.allows_eager:
            return None
        if (task is not None and task.started_event_id) or run.started.spec.task_queue != poller.task_queue:
            return None
        return (
            None
            if poller.is_busy(run.run_id)
            else Eager(poller.identity, poller.task_queue, self._runs.limits)
        )

    def take(self, poller: QueuePoller) -> LoadedRun | None:
        """Start a waiting task for a worker. Return its run, or None if the backlog has no task for this worker."""
        queues = self._runs.queues
        pollers = queues.pollers
        for run_id in () if self._runs.stopped else queues.tasks(poller):
            record = self._runs.in_memory(run_id)
            if record is not None and self._may_take(record, poller):
                if (
                    pollers.shared
                    and record.sticky is not poller
                    and not pollers.is_best_for_task(poller, record.run.started.workflow_type)
                ):
                    if pollers.uniform:
                        return None  # a less loaded worker receives it, and that holds for every type
                    continue
                self._start(record, poller)
                # If the run exceeded its limits, it was ended instead of started. Then search again, because the queue
                # has changed during the iteration.
                task = record.run.task
                return record if task is not None and task.started_event_id else self.take(poller)
        return None

    def _start(self, record: LoadedRun, poller: QueuePoller) -> None:
        self._stick(record, poller)
        runs, who = self._runs, poller.identity
        target = self._deployments.unpinned_target(record.run) if self._deployments.in_use else None
        runs.change(record, tasks.start_task, who, runs.limits, target, to_worker=True)

    def take_queries(self, poller: QueuePoller) -> LoadedRun | None:
        """Return a run with waiting queries that this worker can answer. Return None if there is none, or if each such
        run has a task that must be completed first.
        """
        for record in self._queried.values():
            if record.run.task is None and self._is_for(record, poller) and self._knows(record, poller):
                del self._queried[record.run.run_id]
                self._stick(record, poller)
                return record
        return None

    def add_query(self, record: LoadedRun, query: WaitingQuery) -> None:
        """Add a query to a run's waiting queries."""
        record.queries.append(query)
        self._queried[record.run.run_id] = record
        self._runs.queues.wake(record.run.started.spec.task_queue)

    def remove_query(self, record: LoadedRun, query: WaitingQuery) -> None:
        """Remove a query whose client no longer waits for the answer. Has no effect if the query is no longer waiting."""
        if query in record.queries:
            record.queries.remove(query)
            if not record.queries:
                self._queried.pop(record.run.run_id, None)

    def take_waiting_queries(self, record: LoadedRun) -> list[WaitingQuery]:
        """Remove and return the waiting queries of a run, which the caller must answer. Return none if the run has a
        task, which must be completed first.
        """
        return [] if record.run.task is not None or not record.queries else self.take_all_queries(record)

    def take_all_queries(self, record: LoadedRun) -> list[WaitingQuery]:
        """Remove and return the waiting queries of a run, even if the run has a task. The caller must answer them."""
        queries, record.queries = record.queries, []
        self._queried.pop(record.run.run_id, None)
        return queries

    def reject_unanswerable_queries(self, record: LoadedRun) -> None:
        """Reject the queries of a run whose task keeps failing, because they would never be answered."""
        task = record.run.task
        if task is not None and task.attempt > 2:
            message = "Cannot query workflow: its workflow task keeps failing"
            self.reject_queries(record, ServiceError(message, status="FAILED_PRECONDITION"))

    def unstick(self, record: LoadedRun, poller: QueuePoller) -> None:
        """Let other workers receive the tasks of a run that this worker no longer caches."""
        if record.sticky is poller:
            record.sticky = None
            self._runs.queues.release(poller, record.run.run_id)
            if record.run.status is RUNNING:
                self._runs.queues.wake(record.run.started.spec.task_queue)

    def reject_queries(self, record: LoadedRun, error: HourglassError) -> None:
        """Reject the waiting queries of a run."""
        for query in self.take_all_queries(record):
            query.reject(error)

    def finish(
        self, record: LoadedRun, number: int, answer: tasks.TaskCompletion, eager: Eager | None = None
    ) -> str:
        """Apply the completion of a workflow task. Return the reason for evicting the run, or "" if it stays cached.

        `eager` requests that the worker immediately receives attempts that the completion schedules.
        """
        task = record.run.task
        if task is None or task.number != number or not task.started_event_id:
            return "TASK_NOT_FOUND"
        follower = self._runs.new_run_id() if tasks.may_be_followed(answer) else ""
        accepted = tuple(_requests_of_updates(record, answer)) if record.updates is not None else ()
        attributes: list[tuple[c.Command, Mapping[str, Payload]]] = []
        for sent in answer.commands:
            command = sent.command
            if type(command) in SETS_ATTRIBUTES and (values := search_attributes_of(command)):
                attributes.append((command, values))
        try:
            for command, values in attributes:
                if (flaw := self._runs.attributes.flaw(values)) is not None:
                    raise invalid_attributes(command, flaw.message, too_large=flaw.too_large)
            ended = self._runs.change(
                record,
                tasks.complete_task,
                answer,
                follower,
                self._runs.limits,
                eager,
                request_ids=accepted,
            )
        except CompletionRejected as rejection:
            asked_again = rejection.cause == h.UNHANDLED_COMMAND
            failure = None if asked_again else Failure(str(rejection), ServerFailure())
            self.fail(record, number, rejection.cause, failure, answer.identity)
            if not asked_again:
                logger.warning("run %s cannot continue: %s", record.run.run_id, rejection)
            if rejection.ends_run and record.run.is_open:
                why = str(rejection)
                self._runs.change(record, transitions.end_overgrown, why)
            return rejection.reason
        for _, values in attributes:
            self._runs.attributes.learn(values)
        return "TASK_NOT_FOUND" if ended else ""

    def fail(
        self, record: LoadedRun, number: int, cause: int | TaskFailureCause, failure: Failure | None, who: str
    ) -> None:
        """Fail a workflow task. The task will be retried."""
        if _is_started(record.run, number):
            self._runs.change(record, tasks.fail_task, int(cause), failure, who)

    def lose(self, record: LoadedRun, number: int) -> None:
        """Return a workflow task to the backlog immediately, because its worker's process has ended."""
        if _is_started(record.run, number):
            self._runs.change(record, transitions.lose_task)

    def return_queries(self, record: LoadedRun, queries: Sequence[WaitingQuery]) -> None:
        """Let another worker answer these queries, because their worker has ended."""
        for query in queries:
            if not query.answer.done():
                self.add_query(record, query)

    def _may_take(self, record: LoadedRun, poller: QueuePoller) -> bool:
        task = record.run.task
        ready = (
            task is not None and not task.started_event_id and task.available_ns <= self._runs.clock.now_ns()
        )
        return ready and self._is_for(record, poller)

    def _is_for(self, record: LoadedRun, poller: QueuePoller) -> bool:
        if record.run.started.spec.task_queue != poller.task_queue or poller.is_busy(record.run.run_id):
            return False
        sticky, versions = record.sticky, self._deployments
        if not versions.in_use:
            return sticky is None or sticky is poller
        if not versions.takes_task(poller, record.run):
            return False
        # If a worker caches the run but may no longer receive its tasks because of its version, other workers may
        # receive them.
        return sticky is None or sticky is poller or not versions.takes_task(sticky, record.run)

    def _knows(self, record: LoadedRun, poller: QueuePoller) -> bool:
        """Whether a worker that might answer a run's queries can execute the workflow type, or no other worker of the
        queue can.
        """
        pollers = self._runs.queues.pollers
        return not pollers.shared or pollers.may_replay(poller, record.run.started.workflow_type)

    def _stick(self, record: LoadedRun, poller: QueuePoller) -> None:
        """Record that this worker alone caches the run. The previous worker must evict it."""
        before, record.sticky = record.sticky, poller
        if before is not None and before is not poller:
            self._runs.queues.release(before, record.run.run_id)
            before.receiver.request_eviction(record.run.run_id)


def _requests_of_updates(record: LoadedRun, answer: tasks.TaskCompletion) -> Iterator[str]:
    """Return the ids of the requests that a completion carries out by accepting updates: the ids of the updates and of
    the calls that wait for them.
    """
    for sent in answer.commands:
        if sent.update is None or type(sent.command) is not AcceptUpdate:
            continue
        yield request_id(record.run, sent.update.update_id)
        waiting = record.updates.find(sent.update.update_id) if record.updates is not None else None
        if waiting is not None:
            yield from map(call_id, sorted(waiting.calls))


def _is_started(run: Run, number: int) -> bool:
    """Whether the run's task has this number and a worker has received it."""
    return run.task is not None and run.task.number == number and run.task.started_event_id != 0
