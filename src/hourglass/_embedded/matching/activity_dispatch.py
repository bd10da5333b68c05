"""Dispatch of activity attempts (`ActivityDispatch`): from the runs that schedule them to workers, and back.

Must not know: activations, how runs change (see `transitions`), which clients wait for an answer. Invariant: at most one
worker has an attempt.
"""

from __future__ import annotations

from msgspec.structs import replace

from hourglass._contract.handle import (
    ActivityDeferred,
    ActivityOk,
    ActivityResult,
    ActivityTask,
    AttemptCancelled,
    AttemptFailed,
)
from hourglass._embedded.clock import SECOND
from hourglass._embedded.matching.deployments import Deployments
from hourglass._embedded.matching.pollers import QueuePoller
from hourglass._embedded.runs.lost_attempts import LOST_WITH_PROCESS, log_lost
from hourglass._embedded.runs.run import AttemptToken, LoadedRun, TakenAttempt
from hourglass._embedded.runs.runs import RunTable
from hourglass._embedded.transitions import tasks as tasks
from hourglass._embedded.transitions import transitions
from hourglass._embedded.transitions.activities import narrowest_timeout
from hourglass._embedded.transitions.run import STANDALONE, OpenActivity, Run, with_priority_of
from hourglass._embedded.transitions.task_starts import Eager
from hourglass._evaluator.specs import Payloads
from hourglass.converter import ApplicationFailure, CanceledFailure, Failure


def activity_task(namespace: str, run: Run, activity: OpenActivity, token: bytes) -> ActivityTask:
    """Return the task that is sent to a worker for a started attempt. A pure function."""
    scheduled, spec, started, own = activity.scheduled, activity.spec, run.started, run.started.spec
    if own.priority_key or own.fairness_key or own.fairness_weight:
        spec = with_priority_of(own, spec)
    task = ActivityTask(
        token=token,
        activity_id=scheduled.activity_id,
        activity_type=scheduled.activity_type,
        spec=spec,
        arguments=scheduled.arguments,
        attempt=activity.attempt - activity.earlier or 1,
        namespace=namespace,
        workflow_id=started.workflow_id,
        run_id=run.run_id,
        workflow_type=started.workflow_type,
        headers=scheduled.headers,
        heartbeat_details=activity.heartbeat_details,
        scheduled_time_ns=activity.scheduled_ns,
        current_attempt_scheduled_time_ns=activity.available_ns,
        started_time_ns=activity.started_ns,
    )
    if started.root_run_id == STANDALONE:  # such an attempt belongs to no workflow
        return replace(
            task, spec=activity.spec, workflow_id="", run_id="", workflow_type="", activity_run_id=run.run_id
        )
    return task


def shutdown_failure(failure: Failure) -> Failure:
    """Return the failure to record for an attempt that was cancelled because its worker is shutting down. The run did
    not request the cancellation, so the attempt is retried.
    """
    return Failure(
        failure.message or "the attempt was cancelled because its worker was shutting down",
        ApplicationFailure(type="WorkerShutdown"),
        cause=failure,
    )


NEGLIGIBLE = 100
"""The wait for a commit is excluded from an attempt's timeouts only if it exceeds the shortest timeout divided by this
number.
"""


class ActivityDispatch:
    """Assigns activity attempts to workers, and records on each run which worker has which attempt."""

    def __init__(self, runs: RunTable, namespace: str, deployments: Deployments) -> None:
        self._runs = runs
        self._namespace = namespace
        self._deployments = deployments

    def assign(self, poller: QueuePoller) -> None:
        """Assign attempts from a worker's queue to this worker until the queue is empty or the worker has no free slot."""
        waiting, attempts = poller.queue.attempts, poller.attempts
        while waiting and len(attempts) < poller.attempt_slots:
            started = self.take(poller)
            if started is None:
                return
            self._begin(poller, *started)

    def _begin(self, poller: QueuePoller, task: ActivityTask, attempt: TakenAttempt) -> None:
        poller.queue.attempts_received += 1
        poller.attempts[task.token] = attempt
        poller.receiver.begin_attempt(task, attempt.record.number)

    def take(self, poller: QueuePoller) -> tuple[ActivityTask, TakenAttempt] | None:
        """Start a waiting attempt for a worker. Return its task, or None if the backlog has no attempt for this worker."""
        runs = self._runs
        now, pollers = runs.clock.now_ns(), runs.queues.pollers
        for run_id, scheduled in () if runs.stopped else runs.queues.attempts(poller):
            record = runs.in_memory(run_id)
            activity = None if record is None else record.run.activities.get(scheduled)
            if record is None or activity is None or activity.started_ns or activity.available_ns > now:
                continue
            if record.run.paused is not None or activity.paused:
                continue
            versions = self._deployments
            if versions.in_use and not versions.takes_attempt(poller, record.run, activity):
                continue
            if pollers.shared and not pollers.is_best_for_attempt(poller, activity.scheduled.activity_type):
                if pollers.uniform:
                    return None  # a less loaded worker receives it, and that holds for every type
                continue
            token = AttemptToken(run_id, scheduled, activity.attempt)
            attempt = record.attempts[scheduled] = TakenAttempt(token, poller, record)
            if self._start(record, activity, poller.identity):
                return self.take(poller)  # the start ended the run, which changed the queues
            started = record.run.activities[scheduled]
            return activity_task(self._namespace, record.run, started, token.encode()), attempt
        return None

    def hand_out(self, task: ActivityTask, attempt: TakenAttempt) -> ActivityTask:
        """Start the timeouts of an attempt that is now being sent to its worker, and return its task.

        The time that the attempt waited for a commit does not count toward its timeouts. If the wait was negligible,
        nothing is written.
        """
        record, scheduled = attempt.record, attempt.token.scheduled_event_id
        activity = record.run.activities.get(scheduled)
        if activity is None or record.attempts.get(scheduled) is not attempt:
            return task
        attempt.handed_out = True
        late = self._runs.clock.now_ns() - activity.started_ns
        if late * NEGLIGIBLE <= narrowest_timeout(activity.spec) * SECOND:
            return task
        self._runs.change(record, transitions.hand_out_attempt, activity)
        started = record.run.activities.get(scheduled)
        return task if started is None else activity_task(self._namespace, record.run, started, task.token)

    def eager(self, poller: QueuePoller) -> Eager | None:
        """Return a request to start new attempts in the same change as the completion of a workflow task on this worker.

        The request is limited to the worker's free slots. Return None if there are no free slots, or if other attempts
        have waited longer.
        """
        queues, slots, types = self._runs.queues, poller.attempt_slots - len(poller.attempts), None
        if slots <= 0 or poller.queue.attempts or not queues.allows_eager:
            return None
        if queues.pollers.shared:
            slots, types = queues.pollers.share(poller, slots), poller.activity_types
            if slots <= 0:
                return None
        return Eager(poller.identity, poller.task_queue, self._runs.limits, slots, types)

    def begin_eager(self, poller: QueuePoller, record: LoadedRun, since: int) -> None:
        """Pass to a worker the attempts that its completion has started. The events of the completion begin at index
        `since`.
        """
        run = record.run
        for event in record.events[since:] if run.activities else ():
            activity = run.activities.get(event.id)
            if activity is not None and activity.started_ns:
                token = AttemptToken(run.run_id, event.id, activity.attempt)
                attempt = record.attempts[event.id] = TakenAttempt(token, poller, record)
                self._begin(poller, activity_task(self._namespace, run, activity, token.encode()), attempt)

    def _start(self, record: LoadedRun, activity: OpenActivity, identity: str) -> str:
        return self._runs.change(record, transitions.start_attempt, activity, identity)

    def find(self, token: AttemptToken) -> tuple[LoadedRun, OpenActivity] | None:
        """Return the run and the activity of a token, or None if the token's attempt is no longer the current one."""
        record = self._runs.record(token.run_id)
        activity = record.run.activities.get(token.scheduled_event_id) if record else None
        if record is None or activity is None or activity.attempt != token.attempt or not activity.started_ns:
            return None
        return record, activity

    def end(self, token: AttemptToken, result: ActivityResult, who: str, eager: Eager | None = None) -> bool:
        """Apply the result of an attempt. Return whether the worker received the run's next task in the same change
        (`eager`).

        As on a server, the result of an attempt that is no longer the current one is dropped.
        """
        current = self.find(token)
        if current is None:
            self.release(token)
            return False
        record, activity = current
        if record.attempts.pop(token.scheduled_event_id, None) is None:
            eager = None  # the run was reloaded, so no worker has this attempt
        change = self._runs.change
        match result:
            case ActivityOk(result=value):
                change(
                    record,
                    transitions.complete_activity,
                    activity,
                    value,
                    who,
                    eager,
                    to_worker=eager is not None,
                )
                task = record.run.task
                return eager is not None and task is not None and task.started_event_id != 0
            case ActivityDeferred():
                change(record, transitions.defer_activity, activity)
            case AttemptCancelled() if activity.cancel_requested_event_id:
                info = result.failure.info
                details = info.details if isinstance(info, CanceledFailure) else ()
                change(record, transitions.cancel_activity, activity, details, who)
            case AttemptFailed() | AttemptCancelled():
                failure = (
                    result.failure if isinstance(result, AttemptFailed) else shutdown_failure(result.failure)
                )
                change(record, transitions.fail_activity, activity, failure, who)
        return False

    def record_heartbeat(self, token: bytes, details: Payloads) -> None:
        """Record a heartbeat of an attempt, with the heartbeat details."""
        current = self.find(AttemptToken.decode(token))
        if current is not None:
            record, activity = current
            self._runs.change(record, transitions.heartbeat, activity, details)

    def release(self, token: AttemptToken) -> None:
        """Forget which worker has an attempt. The worker is no longer notified of the attempt's timeouts and
        cancellation.
        """
        record = self._runs.in_memory(token.run_id)
        attempt = record.attempts.get(token.scheduled_event_id) if record is not None else None
        if record is not None and attempt is not None and attempt.token == token:
            del record.attempts[token.scheduled_event_id]

    def lose(self, token: AttemptToken) -> None:
        """Fail an attempt because its worker's process has ended. The attempt is retried according to its retry policy."""
        self.release(token)
        current = self.find(token)
        if current is not None and not current[1].deferred:
            record, activity = current
            before = record.run
            self._runs.change(record, transitions.lose_attempt_of, activity)
            log_lost(before, record.run, (activity.scheduled_event_id,), LOST_WITH_PROCESS)

    def give_back(self, token: AttemptToken) -> None:
        """Return to the backlog an attempt that was not sent to its worker."""
        self.release(token)
        current = self.find(token)
        if current is not None:
            record, activity = current
            self._runs.change(record, transitions.give_back_attempt, activity)
