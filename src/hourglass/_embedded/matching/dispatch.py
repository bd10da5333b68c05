"""Dispatch: workflow tasks and queries (`TaskDispatch`), attempts of activities (`ActivityDispatch`), and updates
(`UpdateDispatch`), from the runs that want them to the handles that take them, and back.

Must not know: activations (see `workers`), how runs change (see `rules`), which clients wait for an answer.

Invariants: a task and an attempt are with one handle at most; a run's queries wait while it has a task; a run that a
handle knows goes to no other; while an update waits, its run has a task.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

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
from hourglass._embedded.runs.lost_attempts import LOST_WITH_PROCESS, say_lost
from hourglass._embedded.runs.run import AttemptToken, LoadedRun, TakenAttempt, WaitingQuery
from hourglass._embedded.runs.runs import RunTable
from hourglass._embedded.transitions import tasks as tasks
from hourglass._embedded.transitions import transitions
from hourglass._embedded.transitions.activities import narrowest_timeout
from hourglass._embedded.transitions.change_builder import ChangeBuilder
from hourglass._embedded.transitions.command_checks import (
    SETS_ATTRIBUTES,
    AnswerRefused,
    attributes_refused,
    search_attributes_of,
)
from hourglass._embedded.transitions.priorities import with_priority_of
from hourglass._embedded.transitions.run import RUNNING, Change, OpenActivity, Run
from hourglass._embedded.transitions.task_starts import Eager
from hourglass._embedded.transitions.tasks import TaskAnswer
from hourglass._embedded.transitions.updates import Updates, Waiting, call_id, request_id
from hourglass._evaluator import commands as c
from hourglass._evaluator.commands import AcceptUpdate, TaskFailureCause
from hourglass._evaluator.specs import Payloads
from hourglass._history import events as h
from hourglass._history.events import UpdateRequest, WorkflowTaskCompleted
from hourglass.converter import ApplicationFailure, CanceledFailure, Failure, Payload, ServerFailure
from hourglass.errors import HourglassError, ServiceError

# --- attempts of activities -----------------------------------------------------------------------------------


def activity_task(namespace: str, run: Run, activity: OpenActivity, token: bytes) -> ActivityTask:
    """An attempt that has started, as a worker gets it. Pure."""
    scheduled, spec, own = activity.scheduled, activity.spec, run.started.spec
    if own.priority_key or own.fairness_key or own.fairness_weight:
        spec = with_priority_of(own, spec)
    if run.is_standalone_activity:
        return _standalone_task(namespace, run, activity, token)
    return ActivityTask(
        token=token,
        activity_id=scheduled.activity_id,
        activity_type=scheduled.activity_type,
        spec=spec,
        arguments=scheduled.arguments,
        attempt=activity.attempt - activity.earlier or 1,
        namespace=namespace,
        workflow_id=run.started.workflow_id,
        run_id=run.run_id,
        workflow_type=run.started.workflow_type,
        headers=scheduled.headers,
        heartbeat_details=activity.heartbeat_details,
        scheduled_time_ns=activity.scheduled_ns,
        current_attempt_scheduled_time_ns=activity.available_ns,
        started_time_ns=activity.started_ns,
    )


def _standalone_task(namespace: str, run: Run, activity: OpenActivity, token: bytes) -> ActivityTask:
    """The same of one that belongs to no workflow."""
    scheduled = activity.scheduled
    return ActivityTask(
        token=token,
        activity_id=scheduled.activity_id,
        activity_type=scheduled.activity_type,
        spec=activity.spec,
        arguments=scheduled.arguments,
        attempt=activity.attempt - activity.earlier or 1,
        namespace=namespace,
        activity_run_id=run.run_id,
        headers=scheduled.headers,
        heartbeat_details=activity.heartbeat_details,
        scheduled_time_ns=activity.scheduled_ns,
        current_attempt_scheduled_time_ns=activity.available_ns,
        started_time_ns=activity.started_ns,
    )


def unasked(failure: Failure) -> Failure:
    """The failure of an attempt that stopped although its run had not asked for that (its worker shuts down): worth a
    retry.
    """
    return Failure(
        failure.message or "the attempt stopped without being asked to",
        ApplicationFailure(type="WorkerShutdown"),
        cause=failure,
    )


NEGLIGIBLE = 100
"""A wait of less than one part in so many of an attempt's shortest timeout is not made up for."""


class ActivityDispatch:
    """Gives out attempts of activities to handles, and notes on the run which handle has which."""

    def __init__(self, runs: RunTable, namespace: str, deployments: Deployments) -> None:
        self._runs = runs
        self._namespace = namespace
        self._deployments = deployments

    def assign(self, poller: QueuePoller) -> None:
        """Assign attempts of its queue to a worker, until none waits for it or it has no free slot."""
        waiting, attempts = poller.queue.attempts, poller.attempts
        while waiting and len(attempts) < poller.attempt_slots:
            found = self.take(poller)
            if found is None:
                return
            self._begin(poller, *found)

    def _begin(self, poller: QueuePoller, task: ActivityTask, taken: TakenAttempt) -> None:
        poller.queue.attempts_received += 1
        poller.attempts[task.token] = taken
        poller.receiver.begin_attempt(task, taken.record.number)

    def take(self, poller: QueuePoller) -> tuple[ActivityTask, TakenAttempt] | None:
        """Start an attempt of an activity for a worker, if one waits for it."""
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
                    return None  # others have a smaller load, whatever the type
                continue
            token = AttemptToken(run_id, scheduled, activity.attempt)
            taken = record.attempts[scheduled] = TakenAttempt(token, poller, record)
            if self._start(record, activity, poller.identity):
                return self.take(poller)  # the run was ended: the queues have changed under us
            started = record.run.activities[scheduled]
            return activity_task(self._namespace, record.run, started, token.encode()), taken
        return None

    def hand_out(self, task: ActivityTask, taken: TakenAttempt) -> ActivityTask:
        """An attempt that was taken reaches its worker, and its clocks begin. The wait for a commit before that
        counts for no timeout; where it was too short to matter for any, nothing is written.
        """
        record, scheduled = taken.record, taken.token.scheduled_event_id
        activity = record.run.activities.get(scheduled)
        if activity is None or record.attempts.get(scheduled) is not taken:
            return task
        taken.handed_out = True
        late = self._runs.clock.now_ns() - activity.started_ns
        if late * NEGLIGIBLE <= narrowest_timeout(activity.spec) * SECOND:
            return task
        self._runs.change(record, lambda run, now: transitions.hand_out_attempt(run, activity, now))
        started = record.run.activities.get(scheduled)
        return task if started is None else activity_task(self._namespace, record.run, started, task.token)

    def eager(self, poller: QueuePoller) -> Eager | None:
        """Return a request to start attempts together with the completion of a workflow task of the same worker, at most as many
        as it has free slots; None if it has none, or other attempts have waited longer.
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
        """Give a worker the attempts that have started with its completion, which wrote the events from this index on."""
        run = record.run
        for event in record.events[since:] if run.activities else ():
            activity = run.activities.get(event.id)
            if activity is not None and activity.started_ns:
                token = AttemptToken(run.run_id, event.id, activity.attempt)
                taken = record.attempts[event.id] = TakenAttempt(token, poller, record)
                self._runs.in_flight.add(run.run_id)
                self._begin(poller, activity_task(self._namespace, run, activity, token.encode()), taken)

    def _start(self, record: LoadedRun, activity: OpenActivity, identity: str) -> str:
        return self._runs.change(
            record, lambda run, now: transitions.start_attempt(run, activity, identity, now)
        )

    def find(self, token: AttemptToken) -> tuple[LoadedRun, OpenActivity] | None:
        """The attempt that a token names, if it is still the one that counts."""
        record = self._runs.record(token.run_id)
        activity = record.run.activities.get(token.scheduled_event_id) if record else None
        if record is None or activity is None or activity.attempt != token.attempt or not activity.started_ns:
            return None
        return record, activity

    def complete(self, taken: TakenAttempt, result: ActivityOk, who: str, eager: Eager | None) -> bool:
        """An attempt that a handle has returned. If its worker wants the task that this leads to at once, says whether
        it has the task now.
        """
        record, scheduled, value = taken.record, taken.token.scheduled_event_id, result.result
        activity = record.run.activities.get(scheduled)
        if activity is None or activity.attempt != taken.token.attempt or not activity.started_ns:
            self.end(taken.token, result, who)  # it counts no more, or its run was parked and loaded anew
            return False
        record.attempts.pop(scheduled, None)
        self._runs.change(
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

    def end(self, token: AttemptToken, result: ActivityResult, who: str) -> None:
        """An attempt ended. The end of one that no longer counts is dropped, as a server does."""
        found = self.find(token)
        if found is None:
            self.release(token)
            return
        record, activity = found
        record.attempts.pop(token.scheduled_event_id, None)
        change = self._runs.change
        match result:
            case ActivityOk(result=value):
                change(record, transitions.complete_activity, activity, value, who, None)
            case ActivityDeferred():
                change(record, lambda run, now: transitions.defer_activity(run, activity, now))
            case AttemptCancelled() if activity.cancel_requested_event_id:
                info = result.failure.info
                details = info.details if isinstance(info, CanceledFailure) else ()
                change(record, lambda run, now: transitions.cancel_activity(run, activity, details, who, now))
            case AttemptFailed() | AttemptCancelled():
                failure = result.failure if isinstance(result, AttemptFailed) else unasked(result.failure)
                change(record, lambda run, now: transitions.fail_activity(run, activity, failure, who, now))

    def record_heartbeat(self, token: bytes, details: Payloads) -> None:
        """An attempt lives; so much is written down."""
        found = self.find(AttemptToken.decode(token))
        if found is not None:
            record, activity = found
            self._runs.change(record, lambda run, now: transitions.heartbeat(run, activity, details, now))

    def release(self, token: AttemptToken) -> None:
        """A handle has let go of an attempt: it is no longer told of timeouts and cancellations."""
        record = self._runs.in_memory(token.run_id)
        taken = record.attempts.get(token.scheduled_event_id) if record is not None else None
        if record is not None and taken is not None and taken.token == token:
            del record.attempts[token.scheduled_event_id]
            self._runs.note_in_flight(record)

    def lose(self, token: AttemptToken) -> None:
        """The process of the worker that had an attempt has ended: it is tried again, as its policy says."""
        self.release(token)
        found = self.find(token)
        if found is not None and not found[1].deferred:
            record, activity = found
            before = record.run
            self._runs.change(record, lambda run, now: transitions.lose_attempt_of(run, activity, now))
            say_lost(before, record.run, (activity.scheduled_event_id,), LOST_WITH_PROCESS)

    def give_back(self, token: AttemptToken) -> None:
        """An attempt that was taken did not reach a worker: it waits again."""
        self.release(token)
        found = self.find(token)
        if found is not None:
            record, activity = found
            self._runs.change(record, lambda run, now: transitions.give_back_attempt(run, activity, now))


# --- updates --------------------------------------------------------------------------------------------------


class UpdateDispatch:
    """Takes updates in, gives them out with tasks, and takes what became of them."""

    def __init__(self, runs: RunTable) -> None:
        self._runs = runs

    def of(self, record: LoadedRun) -> Updates:
        """The updates of a run, as its history and this process know them."""
        if record.updates is None:
            record.updates = Updates()
        record.updates.read(record.events)
        return record.updates

    def admit(self, record: LoadedRun, request: UpdateRequest) -> Waiting:
        """A client asks for an update of a new id."""
        waiting = self.of(record).admit(request)
        self.want_task(record)
        return waiting

    def give(self, record: LoadedRun) -> tuple[UpdateRequest, ...]:
        """What a worker is given together with the task that it has just taken."""
        task = record.run.task
        if record.updates is None or task is None:
            return ()
        return self.of(record).give(task.number)

    def settle(self, record: LoadedRun, number: int, answer: TaskAnswer) -> None:
        """A task was answered, and the answer was taken."""
        if record.updates is None and not answer.refused_updates:
            return
        updates = self.of(record)
        for update_id, failure in answer.refused_updates:
            updates.refuse(update_id, failure)
        if not record.run.is_open:
            updates.waiting.clear()  # a client that waits asks the run that follows, if one does
            return
        updates.answered(number)
        self.want_task(record)

    def want_task(self, record: LoadedRun) -> None:
        """See to it that a run whose updates wait has a task, unless it is paused."""
        waits = record.updates is not None and record.updates.waiting
        if waits and record.run.is_open and record.run.task is None:
            silent = isinstance(record.events[-1].attributes, WorkflowTaskCompleted)
            self._runs.change(record, lambda run, now: _want_task(run, silent, now))


def _want_task(run: Run, silent: bool, now_ns: int) -> Change:
    """A task for updates.

    Silent: the task before it was answered with nothing. A task that fails right behind such a one makes Core
    replay the latter as a heartbeat, together with what came later and at a later time.
    """
    builder = ChangeBuilder(run, now_ns)
    builder.want_update_task(silent=silent)
    return builder.build()


# --- workflow tasks and queries -------------------------------------------------------------------------------


logger = logging.getLogger("hourglass.embedded")


class TaskDispatch:
    """Gives out workflow tasks and queries to handles, and takes the answers to tasks."""

    def __init__(self, runs: RunTable, deployments: Deployments) -> None:
        self._runs = runs
        self._deployments = deployments
        self.queried: dict[str, LoadedRun] = {}
        """The runs with waiting queries, by run id."""

    def assign(self, poller: QueuePoller) -> None:
        """Assign tasks and queries to a worker, until none waits for it or it has no free slot."""
        active, tasks = poller.active_runs, poller.queue.tasks
        while len(active) < poller.task_slots and (tasks or poller.own_tasks or self.queried):
            if (tasks or poller.own_tasks) and (record := self.take(poller)) is not None:
                poller.queue.tasks_received += 1
                poller.receiver.begin_task(record)
            elif self.queried and (record := self.take_queries(poller)) is not None:
                poller.receiver.begin_queries(record)
            else:
                return

    def eager(self, poller: QueuePoller, record: LoadedRun) -> Eager | None:
        """Return a request to start a run's next task together with the end of one of its attempts, both of this worker; None if
        it has no free slot or has not cached the run, or other tasks have waited longer.
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
        """Start a run's task for a worker, if one waits for it."""
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
                        return None  # others have a smaller load, whatever the type
                    continue
                self._start(record, poller)
                # A run that has outgrown its limits was ended instead. Begin anew: the queue changed under the loop.
                task = record.run.task
                return record if task is not None and task.started_event_id else self.take(poller)
        return None

    def _start(self, record: LoadedRun, poller: QueuePoller) -> None:
        self._stick(record, poller)
        runs, who = self._runs, poller.identity
        target = self._deployments.elsewhere(record.run) if self._deployments.in_use else None
        runs.change(record, tasks.start_task, who, runs.limits, target, to_worker=True)

    def take_queries(self, poller: QueuePoller) -> LoadedRun | None:
        """Give a handle a run that has queries to answer and no task to be done before."""
        for record in self.queried.values():
            if record.run.task is None and self._is_for(record, poller) and self._knows(record, poller):
                del self.queried[record.run.run_id]
                self._stick(record, poller)
                return record
        return None

    def ask(self, record: LoadedRun, query: WaitingQuery) -> None:
        """A query waits for an answer."""
        record.queries.append(query)
        self.queried[record.run.run_id] = record
        self._runs.note_in_flight(record)
        self._runs.queues.wake(record.run.started.spec.task_queue)

    def withdraw(self, record: LoadedRun, query: WaitingQuery) -> None:
        """The client waits no more for a query; if it has been answered there is nothing to do."""
        if query in record.queries:
            record.queries.remove(query)
            if not record.queries:
                self.queried.pop(record.run.run_id, None)
            self._runs.note_in_flight(record)

    def take_questions(self, record: LoadedRun) -> list[WaitingQuery]:
        """The queries that wait, unless a task is to be done before them; they are the caller's to answer
        now.
        """
        return [] if record.run.task is not None or not record.queries else self.take_all_questions(record)

    def take_all_questions(self, record: LoadedRun) -> list[WaitingQuery]:
        """The queries that wait, also where the run has a task, in which nothing has happened yet."""
        questions, record.queries = record.queries, []
        self.queried.pop(record.run.run_id, None)
        self._runs.note_in_flight(record)
        return questions

    def rest(self, record: LoadedRun, resting: bool) -> None:
        """A run's task waits for a local activity, or no longer does."""
        record.resting = resting
        self._runs.note_in_flight(record)

    def refuse_hopeless_queries(self, record: LoadedRun) -> None:
        """A task that fails again and again would keep queries waiting for ever."""
        task = record.run.task
        if task is not None and task.attempt > 2:
            message = "Cannot query workflow: its workflow task keeps failing"
            self.refuse_queries(record, ServiceError(message, status="FAILED_PRECONDITION"))

    def unstick(self, record: LoadedRun, poller: QueuePoller) -> None:
        """If it was this handle that knew a run: others may take what waits of it now."""
        if record.sticky is poller:
            record.sticky = None
            self._runs.queues.release(poller, record.run.run_id)
            if record.run.status is RUNNING:
                self._runs.queues.wake(record.run.started.spec.task_queue)

    def refuse_queries(self, record: LoadedRun, error: HourglassError) -> None:
        """The queries that wait cannot be answered."""
        for question in self.take_all_questions(record):
            question.refuse(error)

    def finish(
        self, record: LoadedRun, number: int, answer: tasks.TaskAnswer, eager: Eager | None = None
    ) -> str:
        """Take the answer to a task; `eager`: its worker takes attempts that the answer asks for at once. Gives why
        the run must be evicted, or "" if all is well.
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
                    raise attributes_refused(command, flaw.message, too_large=flaw.too_large)
            ended = self._runs.change(
                record,
                tasks.complete_task,
                answer,
                follower,
                self._runs.limits,
                eager,
                request_ids=accepted,
            )
        except AnswerRefused as refusal:
            asked_again = refusal.cause == h.UNHANDLED_COMMAND
            failure = None if asked_again else Failure(str(refusal), ServerFailure())
            self.fail(record, number, refusal.cause, failure, answer.identity)
            if not asked_again:
                logger.warning("run %s cannot go on: %s", record.run.run_id, refusal)
            if refusal.ends_run and record.run.is_open:
                why = str(refusal)
                self._runs.change(record, lambda run, now: transitions.end_overgrown(run, why, now))
            return refusal.reason
        for _, values in attributes:
            self._runs.attributes.learn(values)
        return "TASK_NOT_FOUND" if ended else ""

    def fail(
        self, record: LoadedRun, number: int, cause: int | TaskFailureCause, failure: Failure | None, who: str
    ) -> None:
        """A task could not be handled; it will be offered again."""
        if _is_started(record.run, number):
            self._runs.change(record, lambda run, now: tasks.fail_task(run, int(cause), failure, who, now))

    def lose(self, record: LoadedRun, number: int) -> None:
        """The process of the worker that had a task has ended: it is wanted again at once."""
        if _is_started(record.run, number):
            self._runs.change(record, transitions.lose_task)

    def ask_again(self, record: LoadedRun, queries: Sequence[WaitingQuery]) -> None:
        """A worker has ended with these queries in hand: another one answers them."""
        for query in queries:
            if not query.answer.done():
                self.ask(record, query)

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
        # A worker that knows the run, and is of a version that it has left, keeps no other from taking it.
        return sticky is None or sticky is poller or not versions.takes_task(sticky, record.run)

    def _knows(self, record: LoadedRun, poller: QueuePoller) -> bool:
        """Whether a handle that could answer a run's queries knows its workflow, as well as any other of the queue."""
        pollers = self._runs.queues.pollers
        return not pollers.shared or pollers.may_replay(poller, record.run.started.workflow_type)

    def _stick(self, record: LoadedRun, poller: QueuePoller) -> None:
        """From now on this handle knows the run, and no other."""
        before, record.sticky = record.sticky, poller
        if before is not None and before is not poller:
            self._runs.queues.release(before, record.run.run_id)
            before.receiver.request_eviction(record.run.run_id)


def _requests_of_updates(record: LoadedRun, answer: tasks.TaskAnswer) -> Iterator[str]:
    """The requests that are carried out by an answer which accepts updates: by the updates' ids, and by those of the
    calls.
    """
    for sent in answer.commands:
        if sent.update is None or type(sent.command) is not AcceptUpdate:
            continue
        yield request_id(record.run, sent.update.update_id)
        waiting = record.updates.find(sent.update.update_id) if record.updates is not None else None
        if waiting is not None:
            yield from map(call_id, sorted(waiting.calls))


def _is_started(run: Run, number: int) -> bool:
    """Whether the task of this number is the run's, and a worker has it."""
    return run.task is not None and run.task.number == number and run.task.started_event_id != 0
