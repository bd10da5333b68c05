"""A run in one worker (`CachedRun`), and the processing of its workflow task there (`TaskFlow`): its activations, its
completion or failure, the queries after it, and the eviction of the run.

Must not know: which runs are cached, when an activation is delivered, activities. Invariants:

- At most one activation of a run is in progress.
- A task that was started is completed or failed exactly once, unless the engine has withdrawn it (timeout,
  termination).
- A query that was received is answered or rejected once.

A task *rests* while its run waits for local activities: it has no activation in progress. The task is completed when
the local activities have ended, or shortly before it would time out. In the second case, the completion contains the
commands so far and requests the next task immediately (a heartbeat), so that the run receives events that have
arrived since.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from hourglass._contract.handle import HandleConfig
from hourglass._embedded.activations.cursor import BadCommand, Cursor
from hourglass._embedded.activations.local_activities import HEARTBEAT_FRACTION
from hourglass._embedded.activations.local_attempts import LocalAttempts
from hourglass._embedded.clock import Cancel, later, to_ns
from hourglass._embedded.engine import Engine
from hourglass._embedded.matching.pollers import QueuePoller
from hourglass._embedded.runs.run import LoadedRun, WaitingQuery
from hourglass._embedded.transitions.run import RUNNING, Run
from hourglass._embedded.transitions.tasks import TaskCompletion, leaves_no_trace, unwritten
from hourglass._evaluator.commands import AnswerQuery, Command, Succeeded, TaskFailureCause
from hourglass._evaluator.events import Activation, RunEvicted
from hourglass._evaluator.specs import VersioningBehavior
from hourglass._history import events as h
from hourglass.converter import ApplicationFailure, Failure
from hourglass.errors import HourglassError, NondeterminismError

logger = logging.getLogger("hourglass.embedded")


class Stage(Enum):
    """The state of a run in its worker."""

    IDLE = "idle"
    """The worker has no activation of the run."""
    EVENTS = "events"
    """An activation with new events is in progress."""
    QUERIES = "queries"
    """An activation with queries is in progress."""
    EVICTION = "eviction"
    """The eviction of the run is in progress."""
    RESTING = "resting"
    """The task waits for local activities; no activation is in progress."""


def _nothing() -> None:
    """Do nothing: the initial value of `CachedRun.alarm`."""


@dataclass(eq=False, slots=True)
class CachedRun:
    """A run in one worker. `task_number` is the number of the workflow task in progress, or 0."""

    record: LoadedRun
    cursor: Cursor
    stage: Stage = Stage.IDLE
    task_number: int = 0
    used_flags: frozenset[int] = frozenset()
    behavior: VersioningBehavior = VersioningBehavior.UNSPECIFIED
    queries: Sequence[WaitingQuery] = ()
    eviction: RunEvicted | None = None
    """Why the run will be evicted once no activation is in progress; None if the run stays cached."""
    alarm: Cancel = _nothing
    untouched: bool = False
    """Whether no activation of the task in progress has been delivered yet."""

    @property
    def is_idle(self) -> bool:
        """Whether the worker has no activation, task or query of the run to complete."""
        return self.stage is Stage.IDLE and not self.task_number and not self.cursor.local_outstanding

    @property
    def is_busy(self) -> bool:
        """Whether the run will soon be needed again, because it has a pending task or activities in progress."""
        return bool(self.record.live) or self.record.run.task is not None

    def take_task(self, record: LoadedRun, updates: Sequence[h.UpdateRequest]) -> None:
        """Start working on the run's workflow task, which was assigned together with these updates."""
        task = record.run.task
        assert task is not None
        self.task_number = task.number
        tail = unwritten(record.run) if task.transient else ()
        history = [*record.events, *tail] if tail else record.events
        self.cursor.extend(history, live=True, updates=updates)
        self.untouched = True

    def note_completion(self, completion: Succeeded, default: VersioningBehavior) -> None:
        """Store the flags and the versioning behavior that a completion contains."""
        if completion.used_flags and not self.used_flags.issuperset(completion.used_flags):
            self.used_flags |= frozenset(completion.used_flags)
        self.behavior = completion.versioning_behavior or default

    def answer(self, poller: QueuePoller, again: bool) -> TaskCompletion:
        """Return the answer to the task in progress. With `again`, it requests the next task immediately."""
        cursor, used = self.cursor, self.used_flags
        return TaskCompletion(
            commands=cursor.answer(),
            flags=() if used <= cursor.flags else tuple(sorted(used - cursor.flags)),
            identity=poller.identity,
            rejected_updates=cursor.take_rejections(),
            version=poller.version,
            behavior=self.behavior if poller.version is not None else VersioningBehavior.UNSPECIFIED,
            again=again,
        )

    def answer_queries(self, commands: tuple[Command, ...]) -> None:
        """Send the worker's answers to the clients that sent the queries."""
        answers = {command.query_id: command for command in commands if isinstance(command, AnswerQuery)}
        for query in self.queries:
            answer = answers.get(query.event.id)
            if answer is None:
                query.fail(Failure("the worker did not answer the query"))
            elif answer.failure is not None:
                query.fail(answer.failure)
            else:
                query.succeed(answer.result)
        self.queries = ()

    def reject_queries(self, error: HourglassError) -> None:
        """Reject the queries in progress with an error of the engine."""
        for query in self.queries:
            query.reject(error)
        self.queries = ()

    def fail_queries(self, failure: Failure) -> None:
        """Fail the queries in progress with a failure of the run."""
        for query in self.queries:
            query.fail(failure)
        self.queries = ()


def blame(error: Exception, cached: CachedRun) -> tuple[int, Failure, str]:
    """Return why a run cannot continue: the cause of its task failure, the failure, and the eviction reason.

    A bug in the engine is also treated as a failure of the run, so that it affects no other run.
    """
    kind = type(error).__name__
    if isinstance(error, NondeterminismError):
        failure = Failure(f"[TMPRL1100] Nondeterminism error: {error}", ApplicationFailure(kind))
        return TaskFailureCause.NON_DETERMINISTIC_ERROR, failure, "NONDETERMINISM"
    if isinstance(error, BadCommand):
        logger.error("run %s cannot continue: %s", cached.cursor.run_id, error)
        return h.FEATURE_DISABLED, Failure(str(error), ApplicationFailure(kind)), "FATAL"
    logger.error("run %s cannot continue: %s", cached.cursor.run_id, kind, exc_info=error)
    failure = Failure(
        f"the engine cannot continue this run ({kind}); the worker's log contains the traceback",
        ApplicationFailure("InternalError"),
    )
    return TaskFailureCause.WORKFLOW_WORKER_UNHANDLED_FAILURE, failure, "FATAL"


CLOSED = RunEvicted("WORKFLOW_EXECUTION_ENDING", "the run has closed")


def _latest_answer(run: Run) -> int:
    """Return the time by which a resting task must be answered so that it does not time out."""
    started = 0 if run.task is None else run.task.started_ns
    return later(started, to_ns(run.started.spec.task_timeout * HEARTBEAT_FRACTION))


class TaskFlow:
    """The processing of one worker's workflow tasks. `deliver` is called with each activation and its kind."""

    def __init__(
        self,
        engine: Engine,
        poller: QueuePoller,
        config: HandleConfig,
        local: LocalAttempts,
        deliver: Callable[[CachedRun, Activation, Stage], None],
    ) -> None:
        self._engine = engine
        self._poller = poller
        self._local = local
        self._deliver = deliver
        self._behavior = config.default_behavior
        self._caches_nothing = config.max_cached_workflows == 0
        self.is_leaving = False
        """Whether this handle is shutting down. Its runs are released to other workers once they have no activation
        in progress.
        """

    def advance(self, cached: CachedRun) -> None:
        """Deliver the next activation, or finish the task if there is none."""
        if cached.stage is Stage.RESTING:
            self.resume(cached)
        cursor = cached.cursor
        try:
            if cursor.local is not None:
                # Continue in the task in progress. Local activities without a marker are requested here.
                cursor.walk_on()
                requests = cursor.take_local_requests()
                for result in self._local.carry_out(
                    cached.record.run, requests, self._engine.writes.number_of(cached.record)
                ):
                    cursor.resolve_local(result)
            activation = cursor.next_activation()
        except Exception as error:
            self.fail(cached, *blame(error, cached))
            return
        if activation is not None:
            cached.untouched = False
            self._deliver(cached, activation, Stage.EVENTS)
        elif cached.task_number and cursor.local_outstanding:
            self._rest(cached)
        else:
            self.finish(cached)

    def accept(self, cached: CachedRun, completion: Succeeded) -> None:
        """Accept the commands of a completion and continue the task."""
        cached.note_completion(completion, self._behavior)
        try:
            more = cached.cursor.accept(completion.commands, self._engine.clock.now_ns)
        except Exception as error:
            self.fail(cached, *blame(error, cached))
            return
        (self.advance if more else self.finish)(cached)

    def finish(self, cached: CachedRun, *, again: bool = False) -> None:
        """Answer the task in progress, if any, with the commands so far. `again` requests the next task immediately."""
        if cached.stage is Stage.RESTING:
            self.resume(cached)
        if cached.task_number:
            try:
                self._answer(cached, cached.task_number, again)
            except Exception as error:
                self.fail(cached, *blame(error, cached))
                return
            # Reset only now: if the answer closes the run, the run must not be evicted before this point.
            cached.task_number = 0
        self.settle(cached)

    def _answer(self, cached: CachedRun, number: int, again: bool) -> None:
        record, task = cached.record, cached.record.run.task
        answer = cached.answer(self._poller, again)
        attempts, since = self._engine.attempts, len(record.events)
        eager = attempts.eager(self._poller) if answer.commands else None
        rejection = self._engine.tasks.finish(record, number, answer, eager)
        if rejection:
            cached.eviction = RunEvicted(rejection, "the engine rejected the completion of the task")
            return
        if eager is not None:
            attempts.begin_eager(self._poller, record, since)
        if task is not None and task.speculative and leaves_no_trace(task, answer):
            cached.cursor.step_back(record.events)
        elif record.run.status is RUNNING:
            cached.cursor.step_over(record.events)
        if record.updates is not None or answer.rejected_updates:
            self._engine.updates.settle(record, number, answer)

    def fail(self, cached: CachedRun, cause: int, failure: Failure, reason: str) -> None:
        """Fail the task and the queries in progress, and evict the run for this reason."""
        if cached.stage is Stage.RESTING:
            self.resume(cached)
        number, cached.task_number = cached.task_number, 0
        cached.fail_queries(failure)
        cached.eviction = RunEvicted(reason, failure.message)
        if number:
            self._engine.tasks.fail(cached.record, number, cause, failure, self._poller.identity)
        else:
            # The run was replayed only for queries, and their clients must receive the failure.
            cached.queries = self._engine.tasks.take_waiting_queries(cached.record)
            cached.fail_queries(failure)
        self._engine.tasks.reject_unanswerable_queries(cached.record)
        self.settle(cached)

    def settle(self, cached: CachedRun) -> None:
        """Evict the run, deliver its queries, or leave it idle. The run must have neither a task nor an activation in
        progress.
        """
        record = cached.record
        if record.queries and cached.eviction in (None, CLOSED):  # a broken run cannot answer queries
            cached.queries = self._engine.tasks.take_waiting_queries(record)
        if cached.queries:
            self._query(cached)
            return
        if cached.eviction is None and record.run.status is not RUNNING:
            cached.eviction = CLOSED
        if cached.eviction is None and self._caches_nothing and not cached.cursor.local_outstanding:
            cached.eviction = RunEvicted("CACHE_FULL", "the workflow cache is disabled")
        if cached.eviction is not None:
            self.evict(cached)
        elif self.is_leaving:
            self._engine.tasks.unstick(record, self._poller)

    def evict(self, cached: CachedRun) -> None:
        """Deliver the eviction of a run."""
        assert cached.eviction is not None
        run_id = cached.cursor.run_id
        if self._local.in_use:
            self._local.forget(run_id)
        self._deliver(cached, Activation(run_id=run_id, events=(cached.eviction,)), Stage.EVICTION)

    def _query(self, cached: CachedRun) -> None:
        events = tuple(query.event for query in cached.queries)
        self._deliver(cached, cached.cursor.query_activation(events), Stage.QUERIES)

    def hand_over(self, cached: CachedRun) -> None:
        """Answer a resting task so that another worker executes its local activities. Do nothing if this worker has
        an attempt of one.
        """
        run_id = cached.cursor.run_id
        if cached.stage is Stage.RESTING and not self._local.has_attempts_of(run_id):
            self.finish(cached, again=True)
            self._local.forget(run_id)

    def _rest(self, cached: CachedRun) -> None:
        """Let the task rest until a local activity ends, or until shortly before the task would time out."""
        record = cached.record
        if cached.untouched:  # the run has reached the end of its history, so it can answer queries
            cached.untouched = False
            cached.queries = self._engine.tasks.take_all_queries(record)
            if cached.queries:
                self._query(cached)
                return
        cached.stage = Stage.RESTING
        self._poller.resting_runs.add(cached.cursor.run_id)
        record.resting = True
        if self.is_leaving and not self._local.has_attempts_of(cached.cursor.run_id):
            self.hand_over(cached)
        else:
            self.limit_rest(cached)

    def limit_rest(self, cached: CachedRun) -> None:
        """Arm the alarm that answers a resting task before it times out."""
        cached.alarm()
        latest = _latest_answer(cached.record.run)
        cached.alarm = self._engine.clock.call_at(latest, lambda: self.finish(cached, again=True))

    def resume(self, cached: CachedRun) -> None:
        """End the resting of a task."""
        cached.stage = Stage.IDLE
        self._poller.resting_runs.discard(cached.cursor.run_id)
        cached.record.resting = False
        cached.alarm()
