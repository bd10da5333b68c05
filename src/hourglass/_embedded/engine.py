"""The in-memory engine: keeps runs and their histories, lets time pass for them, and offers tasks to handles.

Must not know: activations (see `handle`), requests (see `requests`). It decides nothing: every change is a
transition's `Step`, which `_apply` stores before anybody is told. Everything runs on one asyncio loop and
nothing here waits. Invariants: a workflow id has at most one open run; a task or an attempt is in the hands
of one handle at most.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec

from hourglass._bridge.handle import ActivityTask
from hourglass._embedded import history as h
from hourglass._embedded import task_transitions as tasks
from hourglass._embedded import transitions
from hourglass._embedded.bell import Bell
from hourglass._embedded.clock import Cancel, Clock, RealClock
from hourglass._embedded.offers import Offers, Taker
from hourglass._embedded.queries import Query
from hourglass._embedded.run import Activity, Run, Step
from hourglass._engine.commands import TaskFailureCause
from hourglass.converter import Failure
from hourglass.errors import ConnectionFailedError


class Token(msgspec.Struct, frozen=True, array_like=True):
    """Names one attempt of an activity."""

    run_id: str
    scheduled_event_id: int
    attempt: int

    def encode(self) -> bytes:
        """The token as a worker carries it."""
        return msgspec.json.encode(self)

    @staticmethod
    def decode(data: bytes) -> Token:
        """The attempt that a token names; raises ValueError for what is no token."""
        return msgspec.json.decode(data, type=Token)


@dataclass(eq=False)
class Record:
    """A run, its history, and those who deal with it now."""

    run: Run
    events: list[h.HistoryEvent] = field(default_factory=list)
    changed: Bell = field(default_factory=Bell)
    alarm: Cancel | None = None
    sticky: Taker | None = None
    attempts: dict[Token, Taker] = field(default_factory=dict)
    told_to_cancel: set[Token] = field(default_factory=set)
    queries: list[Query] = field(default_factory=list)


class MemoryEngine:
    """Runs in memory, by workflow id and run id."""

    def __init__(self, *, namespace: str = "default", clock: Clock | None = None) -> None:
        self.namespace = namespace
        self.clock: Clock = RealClock() if clock is None else clock
        self.offers = Offers()
        self._records: dict[str, Record] = {}
        self._current: dict[str, str] = {}
        self._asked: dict[str, Record] = {}

    # --- runs -----------------------------------------------------------------------------------------------

    def records(self) -> Iterator[Record]:
        """All runs, oldest first."""
        return iter(self._records.values())

    def record(self, run_id: str) -> Record | None:
        """The run of this id."""
        return self._records.get(run_id)

    def current(self, workflow_id: str) -> Record | None:
        """The latest run of a workflow."""
        return self._records.get(self._current.get(workflow_id, ""))

    def open(
        self, started: h.WorkflowExecutionStarted, signal: h.WorkflowExecutionSignaled | None = None
    ) -> Record:
        """Begin a run, by a signal or without; its id is `started.original_run_id`."""
        step = transitions.open_run(started.original_run_id, started, self.clock.now_ns(), signal)
        record = Record(step.run)
        self._records[step.run.run_id] = record
        self._current[started.workflow_id] = step.run.run_id
        self._apply(record, step)
        return record

    def change(self, record: Record, transition: Callable[[Run, int], Step]) -> None:
        """Apply a transition to a run, now."""
        self._apply(record, transition(record.run, self.clock.now_ns()))

    @staticmethod
    def new_run_id() -> str:
        """An id for a run."""
        return str(uuid.uuid4())

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in a worker's hands or could be taken by one that waits: only time can move
        things on.
        """
        return not self.offers.any_for_takers() and not any(
            record.run.task_is_started or record.attempts or record.queries
            for record in self._records.values()
        )

    def close(self) -> None:
        """Stop all alarms and refuse the queries that wait; runs stay as they are."""
        for record in self._records.values():
            if record.alarm is not None:
                record.alarm()
                record.alarm = None
            for query in record.queries:
                query.refuse(ConnectionFailedError("the connection was closed", status="UNAVAILABLE"))
            record.queries = []

    # --- workflow tasks -------------------------------------------------------------------------------------

    def take_task(self, taker: Taker) -> Record | None:
        """Give a handle a run's task, if one waits on its queue that it may have."""
        for run_id in self.offers.tasks(taker.task_queue):
            record = self._records[run_id]
            if self._may_take(record, taker):
                record.sticky = taker
                self.change(record, lambda run, now: tasks.start_task(run, taker.identity, now))
                return record
        return None

    def take_queries(self, taker: Taker) -> Record | None:
        """Give a handle a run that has queries to answer and no task to be done before."""
        for record in self._asked.values():
            if record.run.task is None and self._is_for(record, taker):
                del self._asked[record.run.run_id]
                record.sticky = taker
                return record
        return None

    def ask(self, record: Record, query: Query) -> None:
        """A query waits for an answer."""
        record.queries.append(query)
        self._asked[record.run.run_id] = record
        self.offers.wake(record.run.started.task_queue)

    def take_questions(self, record: Record) -> list[Query]:
        """The queries that wait, unless a task is to be done before them; they are the caller's to answer
        now.
        """
        if record.run.task is not None:
            return []
        questions, record.queries = record.queries, []
        self._asked.pop(record.run.run_id, None)
        return questions

    def finish_task(self, record: Record, number: int, answer: tasks.Answer) -> str:
        """Take the answer to a task; gives why the run must be evicted, or "" if all is well."""
        if not _is_in_hand(record.run, number):
            return "TASK_NOT_FOUND"
        try:
            self.change(record, lambda run, now: tasks.complete_task(run, answer, self.new_run_id(), now))
        except tasks.Unhandled:
            self.fail_task(record, number, h.UNHANDLED_COMMAND, None, answer.identity)
            return "UNHANDLED_COMMAND"
        return ""

    def fail_task(
        self, record: Record, number: int, cause: int | TaskFailureCause, failure: Failure | None, who: str
    ) -> None:
        """A task could not be handled; it will be offered again."""
        if _is_in_hand(record.run, number):
            self.change(record, lambda run, now: tasks.fail_task(run, int(cause), failure, who, now))

    def _may_take(self, record: Record, taker: Taker) -> bool:
        task = record.run.task
        ready = task is not None and not task.started_event_id and task.available_ns <= self.clock.now_ns()
        return ready and self._is_for(record, taker)

    def _is_for(self, record: Record, taker: Taker) -> bool:
        if record.run.started.task_queue != taker.task_queue or taker.is_busy(record.run.run_id):
            return False
        return record.sticky is None or record.sticky is taker

    # --- activities -----------------------------------------------------------------------------------------

    def take_attempt(self, taker: Taker) -> ActivityTask | None:
        """Give a handle an attempt of an activity, if one waits on its queue."""
        now = self.clock.now_ns()
        for run_id, scheduled in self.offers.attempts(taker.task_queue):
            record = self._records[run_id]
            activity = record.run.activities.get(scheduled)
            if activity is None or activity.started_ns or activity.available_ns > now:
                continue
            token = Token(run_id, scheduled, activity.attempt)
            record.attempts[token] = taker
            step = transitions.start_attempt(record.run, activity, taker.identity, now)
            self._apply(record, step)
            return _activity_task(self.namespace, record.run, record.run.activities[scheduled], token)
        return None

    def attempt(self, token: Token) -> tuple[Record, Activity] | None:
        """The attempt that a token names, if it is still the one that counts."""
        record = self._records.get(token.run_id)
        activity = record.run.activities.get(token.scheduled_event_id) if record else None
        if record is None or activity is None or activity.attempt != token.attempt or not activity.started_ns:
            return None
        return record, activity

    def release(self, token: Token) -> None:
        """The holder of an attempt has let go of it: there is nobody to tell any more."""
        record = self._records.get(token.run_id)
        if record is not None:
            record.attempts.pop(token, None)
            record.told_to_cancel.discard(token)

    # --- storing and telling --------------------------------------------------------------------------------

    def _apply(self, record: Record, step: Step) -> None:
        record.run = step.run
        record.events.extend(step.events)
        if step.follower is not None:
            self.open(step.follower)
        self._set_alarm(record)
        self._tell_attempts(record)
        self.offers.offer(record.run, self.clock.now_ns())
        if not record.run.is_open and record.sticky is not None:
            record.sticky.closed(record.run.run_id)
        record.changed.ring()

    def _set_alarm(self, record: Record) -> None:
        if record.alarm is not None:
            record.alarm()
            record.alarm = None
        wake = transitions.next_wake_ns(record.run, self.clock.now_ns())
        if wake:
            record.alarm = self.clock.call_at(wake, lambda: self._elapse(record))

    def _elapse(self, record: Record) -> None:
        record.alarm = None
        if record.run.is_open:
            self.change(record, lambda run, now: transitions.elapse(run, self.new_run_id(), now))

    def _tell_attempts(self, record: Record) -> None:
        """Tell the holders of attempts that no longer count, or that are to be cancelled."""
        for token, taker in tuple(record.attempts.items()):
            if self.attempt(token) is None:
                self.release(token)
                taker.cancel_attempt(token.encode(), "TIMED_OUT" if record.run.is_open else "NOT_FOUND")
            elif (
                record.run.activities[token.scheduled_event_id].cancel_requested_event_id
                and token not in record.told_to_cancel
            ):
                record.told_to_cancel.add(token)
                taker.cancel_attempt(token.encode(), "CANCELLED")


def _is_in_hand(run: Run, number: int) -> bool:
    return run.task is not None and run.task.number == number and run.task.started_event_id != 0


def _activity_task(namespace: str, run: Run, activity: Activity, token: Token) -> ActivityTask:
    spec = activity.spec
    return ActivityTask(
        token=token.encode(),
        activity_id=spec.activity_id,
        activity_type=spec.activity_type,
        arguments=spec.arguments,
        attempt=activity.attempt,
        namespace=namespace,
        task_queue=spec.task_queue,
        workflow_id=run.started.workflow_id,
        run_id=run.run_id,
        workflow_type=run.started.workflow_type,
        headers=spec.headers,
        heartbeat_details=activity.heartbeat_details,
        scheduled_time_ns=activity.scheduled_ns,
        current_attempt_scheduled_time_ns=activity.available_ns,
        started_time_ns=activity.started_ns,
        schedule_to_close_timeout=spec.schedule_to_close_timeout,
        start_to_close_timeout=spec.start_to_close_timeout,
        heartbeat_timeout=spec.heartbeat_timeout,
        retry_policy=spec.retry_policy,
        priority_key=spec.priority_key,
    )
