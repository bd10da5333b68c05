"""The runs that one worker knows (`Cache`): the cursor of each, what is out for it (`CachedRun`), and when it is
forgotten.

Must not know: polls, activities, requests. This is the part of Core that stands between a task and its
activations. Invariants: one activation per run is out at most; a run is forgotten only when its eviction has
been answered, or, once it is closed, with its last answer if the worker is told so at once; a task that is begun is
finished or failed exactly once, unless the engine took it back (timeout, termination); an activation comes with the
number of the change before which it may not be given out; a query that was taken is answered or refused, and then no
longer here.

A task whose run waits for local activities rests: nothing of it is out. It is answered when they have ended, and in
time before it would time out: with what there is, and asked for again at once (a heartbeat), so that the run hears
of what happened meanwhile.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice

from hourglass._contract.handle import HandleConfig
from hourglass._embedded.activations.activity_slots import ActivitySlots
from hourglass._embedded.activations.cursor import BadCommand, Cursor
from hourglass._embedded.activations.local_activities import HEARTBEAT_FRACTION, LocalResult
from hourglass._embedded.activations.local_attempts import LocalAttempts
from hourglass._embedded.clock import Cancel, later, to_ns
from hourglass._embedded.engine import Engine
from hourglass._embedded.matching.task_queues import QueuePoller
from hourglass._embedded.runs.run import LoadedRun, WaitingQuery
from hourglass._embedded.transitions.run import RUNNING, Run
from hourglass._embedded.transitions.tasks import TaskAnswer, leaves_no_trace, unwritten
from hourglass._evaluator.commands import (
    AnswerQuery,
    Command,
    Completion,
    Succeeded,
    TaskFailed,
    TaskFailureCause,
)
from hourglass._evaluator.events import Activation, RunEvicted
from hourglass._evaluator.specs import VersioningBehavior
from hourglass._history import events as h
from hourglass.converter import ApplicationFailure, Failure
from hourglass.errors import HourglassError, NondeterminismError

# --- one run --------------------------------------------------------------------------------------------------


class Out(Enum):
    """What a worker has of a run."""

    NOTHING = 0
    EVENTS = 1
    QUERIES = 2
    EVICTION = 3


def _nothing() -> None:
    """Cancels no alarm."""


@dataclass(eq=False, slots=True)
class CachedRun:
    """A run as a worker has it: its cursor, what is out of it, what it was asked, and what it answers to its task.
    When anything is given out or forgotten is decided by the cache.
    """

    record: LoadedRun
    cursor: Cursor
    out: Out = Out.NOTHING
    task_number: int = 0
    used_flags: frozenset[int] = frozenset()
    behavior: VersioningBehavior = VersioningBehavior.UNSPECIFIED
    questions: Sequence[WaitingQuery] = ()
    eviction: RunEvicted | None = None
    resting: bool = False
    alarm: Cancel = _nothing
    untouched: bool = False
    """Whether nothing has been given out of the task in hand."""

    @property
    def is_idle(self) -> bool:
        """Whether the worker has nothing of the run and owes nothing to it."""
        return self.out is Out.NOTHING and not self.task_number and not self.cursor.local_outstanding

    @property
    def is_busy(self) -> bool:
        """Whether the run will be back soon: a task of it waits, or its activities are under way."""
        return bool(self.record.live) or self.record.run.task is not None

    def take_task(self, record: LoadedRun, updates: Sequence[h.UpdateRequest]) -> None:
        """Have a task in hand, which came with these updates."""
        task = record.run.task
        assert task is not None
        self.task_number = task.number
        tail = unwritten(record.run) if task.transient else ()
        history = [*record.events, *tail] if tail else record.events
        self.cursor.extend(history, live=True, updates=updates)
        self.untouched = True

    def answer(self, poller: QueuePoller, again: bool) -> TaskAnswer:
        """What is said to the task in hand; `again` asks for another at once."""
        cursor, used = self.cursor, self.used_flags
        return TaskAnswer(
            commands=cursor.answer(),
            flags=() if used <= cursor.flags else tuple(sorted(used - cursor.flags)),
            identity=poller.identity,
            refused_updates=cursor.take_refusals(),
            version=poller.version,
            behavior=self.behavior if poller.version is not None else VersioningBehavior.UNSPECIFIED,
            again=again,
        )

    def answer_questions(self, commands: tuple[Command, ...]) -> None:
        """Give the clients that asked what the worker answered."""
        answers = {command.query_id: command for command in commands if isinstance(command, AnswerQuery)}
        for question in self.questions:
            answer = answers.get(question.event.id)
            if answer is None:
                question.fail(Failure("the worker did not answer the query"))
            elif answer.failure is not None:
                question.fail(answer.failure)
            else:
                question.succeed(answer.result)
        self.questions = ()

    def refuse_because(self, error: HourglassError) -> None:
        """Tell the clients that asked that the engine is over."""
        for question in self.questions:
            question.refuse(error)
        self.questions = ()

    def refuse_questions(self, failure: Failure) -> None:
        """Tell the clients that asked why there is no answer."""
        for question in self.questions:
            question.fail(failure)
        self.questions = ()


# --- all runs of a worker -------------------------------------------------------------------------------------


logger = logging.getLogger("hourglass.embedded")


AHEAD = 1000
"""An activation is given out before what it tells is durable: workflow code has no effect but its answer, and all
that the answer leads to waits for both. So a step costs one commit, not two. This many changes may be on their way
then: while the disk is full, no worker runs ahead for ever.
"""


LOOKED_AT = 32
"""So many of the least recently used runs are looked at for one that may be evicted."""

_CLOSED = RunEvicted("WORKFLOW_EXECUTION_ENDING", "the run has closed")
_SHUT_DOWN = Failure("the worker was shut down", ApplicationFailure(type="WorkerShutdown"))


def _blame(error: Exception, cached: CachedRun) -> tuple[int, Failure, str]:
    """Why a run cannot go on: the cause of its task's failure, the failure, and the reason for its eviction. What is
    a bug of ours is that run's trouble, too, and no other run's.
    """
    kind = type(error).__name__
    if isinstance(error, NondeterminismError):
        failure = Failure(f"[TMPRL1100] Nondeterminism error: {error}", ApplicationFailure(kind))
        return TaskFailureCause.NON_DETERMINISTIC_ERROR, failure, "NONDETERMINISM"
    if isinstance(error, BadCommand):
        logger.error("run %s cannot go on: %s", cached.cursor.run_id, error)
        return h.FEATURE_DISABLED, Failure(str(error), ApplicationFailure(kind)), "FATAL"
    logger.error("run %s cannot go on: %s", cached.cursor.run_id, kind, exc_info=error)
    failure = Failure(f"the engine cannot go on with this run: {kind}", ApplicationFailure("InternalError"))
    return TaskFailureCause.WORKFLOW_WORKER_UNHANDLED_FAILURE, failure, "FATAL"


def _latest_answer(run: Run) -> int:
    """When a task that rests must be answered, not to time out."""
    started = 0 if run.task is None else run.task.started_ns
    return later(started, to_ns(run.started.spec.task_timeout * HEARTBEAT_FRACTION))


class Cache:
    """Cached runs, least recently used first, and the activations that wait for a poll."""

    def __init__(
        self,
        engine: Engine,
        poller: QueuePoller,
        config: HandleConfig,
        activity_slots: ActivitySlots,
        changed: Callable[[], object],
    ) -> None:
        self.ready: deque[tuple[Activation, int]] = deque()
        self._engine = engine
        self._poller = poller
        self._activity_slots = activity_slots
        self._size = config.max_cached_workflows
        self._most = max(self._size, config.max_busy_workflows)
        self._behavior = config.default_behavior
        self._runs: dict[str, CachedRun] = {}
        self._letting_go = False
        self.outstanding = 0  # runs that have an activation out, those not yet polled included
        self.local = LocalAttempts(
            engine.clock,
            config,
            engine.namespace,
            is_durable=engine.is_durable,
            ended=self.local_ended,
            stalled=self.hand_over,
            changed=changed,
        )

    def is_busy(self, run_id: str) -> bool:
        """Whether an activation of this run is out, or its task rests."""
        cached = self._runs.get(run_id)
        return cached is not None and (cached.out is not Out.NOTHING or cached.resting)

    @property
    def any_rests(self) -> bool:
        """Whether the task of some run rests."""
        return any(cached.resting for cached in self._runs.values())

    def begin_task(self, record: LoadedRun) -> None:
        """Work on a task that the engine gave us."""
        cached = self._cached(record)
        cached.take_task(record, () if record.updates is None else self._engine.updates.give(record))
        self._advance(cached)

    def begin_queries(self, record: LoadedRun) -> None:
        """Answer queries, after replaying the run if we do not know it."""
        cached = self._cached(record)
        cached.cursor.extend(record.events, live=False)
        self._advance(cached)

    def complete(self, completion: Completion) -> bool:
        """Take the answer to an activation; False if none is out for that run."""
        cached = self._runs.get(completion.run_id)
        if cached is None or cached.out is Out.NOTHING:
            return False
        out, cached.out = cached.out, Out.NOTHING
        self.outstanding -= 1
        if out is Out.EVENTS and type(completion) is Succeeded:
            self._accept(cached, completion)
        elif out is Out.EVICTION:
            self._forget(cached)
        elif isinstance(completion, TaskFailed):
            self._fail(cached, completion.cause, completion.failure, "LANG_FAIL")
        else:
            cached.answer_questions(completion.commands)
            (self._advance if cached.task_number else self._rest)(cached)
        return True

    def request_eviction(self, run_id: str) -> None:
        """Evict a run as soon as nothing is out for it."""
        self._want_eviction(run_id, RunEvicted("LANG_REQUESTED", "the worker asked for it"))

    def closed(self, run_id: str) -> None:
        """A run has closed; if it was from outside, the worker must hear of it to forget it."""
        self._want_eviction(run_id, _CLOSED)

    def parked(self, run_id: str) -> None:
        """What a run did last cannot be stored: the worker forgets the run, and nothing of it waits for the store."""
        for place, (activation, _) in enumerate(self.ready):
            if activation.run_id == run_id:
                self.ready[place] = (activation, 0)
        self.local.forget(run_id)
        self._want_eviction(run_id, RunEvicted("FATAL", "what this run did cannot be stored"))

    def forget_closed(self, run_id: str) -> bool:
        """Forget a closed run whose eviction is the newest activation: the worker is told otherwise. False if it is
        not.
        """
        newest = self.ready[-1][0] if self.ready else None
        if newest is None or newest.run_id != run_id or newest.events[0] is not _CLOSED:
            return False
        self.ready.pop()
        self.outstanding -= 1
        self._forget(self._runs[run_id])
        return True

    def let_go(self) -> None:
        """Let other handles have the runs that we know."""
        self._letting_go = True
        for cached in tuple(self._runs.values()):
            if cached.is_idle:
                self._engine.tasks.unstick(cached.record, self._poller)
            else:
                self.hand_over(cached.cursor.run_id)

    def abandon(self) -> None:
        """Give up everything that is out."""
        cause, who = TaskFailureCause.WORKFLOW_WORKER_UNHANDLED_FAILURE, self._poller.identity
        for cached in tuple(self._runs.values()):
            if cached.task_number:
                self._engine.tasks.fail(cached.record, cached.task_number, cause, _SHUT_DOWN, who)
            self._forget(cached)
        self._clear()

    def lose(self) -> None:
        """The worker's process has ended: its tasks are wanted again at once, its queries are asked of others."""
        tasks = self._engine.tasks
        for cached in tuple(self._runs.values()):
            record, number, questions = cached.record, cached.task_number, cached.questions
            cached.task_number, cached.questions = 0, ()
            self._forget(cached)
            if number:
                tasks.lose(record, number)
            if questions:
                tasks.ask_again(record, questions)
        self._clear()

    def _clear(self) -> None:
        self.local.abandon()
        self.ready.clear()
        self.outstanding = 0

    def refuse_questions(self, error: HourglassError) -> None:
        """The engine is over: queries that a worker has in hand will not be answered."""
        for cached in self._runs.values():
            cached.refuse_because(error)

    # --- local activities -----------------------------------------------------------------------------------

    def local_ended(self, run_id: str, result: LocalResult) -> None:
        """A local activity of a run ended."""
        cached = self._runs.get(run_id)
        if cached is not None:
            cached.cursor.resolve_local(result)
            if cached.resting:
                self._advance(cached)

    def hand_over(self, run_id: str) -> None:
        """We are leaving: if no attempt of a run that rests is in our worker's hands, another worker makes them."""
        cached = self._runs.get(run_id)
        if cached is not None and cached.resting and not self.local.goes_on_here(run_id):
            self._finish(cached, again=True)
            self.local.forget(run_id)

    def _let_rest(self, cached: CachedRun) -> None:
        """Nothing is to be done for a task before a local activity has ended, but it may not last too long."""
        record = cached.record
        if cached.untouched:  # all that the run has done is in its history: this is the time to ask it
            cached.untouched = False
            cached.questions = self._engine.tasks.take_all_questions(record)
            if cached.questions:
                self._ask(cached)
                return
        cached.resting = True
        self._engine.tasks.rest(record, True)
        if self._letting_go and not self.local.goes_on_here(cached.cursor.run_id):
            self.hand_over(cached.cursor.run_id)
        else:
            self._limit_rest(cached)

    def _limit_rest(self, cached: CachedRun) -> None:
        latest = _latest_answer(cached.record.run)
        cached.alarm = self._engine.clock.call_at(latest, lambda: self._finish(cached, again=True))

    def realign(self) -> None:
        """Time has jumped: set all alarms anew."""
        self.local.realign()
        for cached in [each for each in self._runs.values() if each.resting]:
            cached.alarm()
            self._limit_rest(cached)

    def _rouse(self, cached: CachedRun) -> None:
        """Resume a task that was resting."""
        cached.resting = False
        self._engine.tasks.rest(cached.record, False)
        cached.alarm()

    # --- the way of a task ----------------------------------------------------------------------------------

    def _cached(self, record: LoadedRun) -> CachedRun:
        run_id = record.run.run_id
        cached = self._runs.pop(run_id, None)
        if cached is None:
            cached = CachedRun(record, Cursor(run_id, self._engine.namespace, self._poller.version))
            self._engine.runs.hold(record)
            self._make_room()
        self._runs[run_id] = cached  # now the most recently used
        return cached

    def _advance(self, cached: CachedRun) -> None:
        """Give out the next activation, or end the task."""
        if cached.resting:
            self._rouse(cached)
        cursor = cached.cursor
        try:
            if cursor.local is not None:
                cursor.walk_on()  # into the task in hand, in which what has no marker is asked for
                requests = cursor.take_local_requests()
                for result in self.local.carry_out(
                    cached.record.run, requests, self._engine.writes.number_of(cached.record)
                ):
                    cursor.resolve_local(result)
            activation = cursor.next_activation()
        except Exception as error:
            self._fail(cached, *_blame(error, cached))
            return
        if activation is not None:
            cached.untouched = False
            self._give(cached, activation, Out.EVENTS)
        elif cached.task_number and cursor.local_outstanding:
            self._let_rest(cached)
        else:
            self._finish(cached)

    def _accept(self, cached: CachedRun, completion: Succeeded) -> None:
        if completion.used_flags and not cached.used_flags.issuperset(completion.used_flags):
            cached.used_flags |= frozenset(completion.used_flags)
        cached.behavior = completion.versioning_behavior or self._behavior
        try:
            more = cached.cursor.accept(completion.commands, self._engine.clock.now_ns)
        except Exception as error:
            self._fail(cached, *_blame(error, cached))
            return
        (self._advance if more else self._finish)(cached)

    def _finish(self, cached: CachedRun, *, again: bool = False) -> None:
        if cached.resting:
            self._rouse(cached)
        if cached.task_number:
            try:
                self._answer_task(cached, cached.task_number, again)
            except Exception as error:
                self._fail(cached, *_blame(error, cached))
                return
            cached.task_number = 0  # only now: that the run closes meanwhile must not evict it yet
        self._rest(cached)

    def _answer_task(self, cached: CachedRun, number: int, again: bool) -> None:
        record, task = cached.record, cached.record.run.task
        answer = cached.answer(self._poller, again)
        eager, since = self._activity_slots.wanted() if answer.commands else None, len(record.events)
        refusal = self._engine.tasks.finish(record, number, answer, eager)
        if refusal:
            cached.eviction = RunEvicted(refusal, "the engine did not take the task's completion")
            return
        if eager is not None:
            self._activity_slots.took(record, since)
        if task is not None and task.speculative and leaves_no_trace(task, answer):
            cached.cursor.step_back(record.events)
        elif record.run.status is RUNNING:
            cached.cursor.step_over(record.events)
        if record.updates is not None or answer.refused_updates:
            self._engine.updates.settle(record, number, answer)

    def _fail(self, cached: CachedRun, cause: int, failure: Failure, reason: str) -> None:
        if cached.resting:
            self._rouse(cached)
        number, cached.task_number = cached.task_number, 0
        cached.refuse_questions(failure)
        cached.eviction = RunEvicted(reason, failure.message)
        if number:
            self._engine.tasks.fail(cached.record, number, cause, failure, self._poller.identity)
        else:  # replayed for queries alone: the clients that asked must hear why there is no answer
            cached.questions = self._engine.tasks.take_questions(cached.record)
            cached.refuse_questions(failure)
        self._engine.tasks.refuse_hopeless_queries(cached.record)
        self._rest(cached)

    def _rest(self, cached: CachedRun) -> None:
        """Nothing is out: evict, ask, or wait for the next task."""
        if cached.record.queries and cached.eviction in (None, _CLOSED):  # one that is broken answers none
            cached.questions = self._engine.tasks.take_questions(cached.record)
        if cached.questions:
            self._ask(cached)
            return
        if cached.eviction is None and cached.record.run.status is not RUNNING:
            cached.eviction = _CLOSED
        if cached.eviction is None and self._size == 0 and not cached.cursor.local_outstanding:
            cached.eviction = RunEvicted("CACHE_FULL", "nothing is cached")
        if cached.eviction is not None:
            self._evict(cached)
        elif self._letting_go:
            self._engine.tasks.unstick(cached.record, self._poller)

    def _ask(self, cached: CachedRun) -> None:
        events = tuple(question.event for question in cached.questions)
        self._give(cached, cached.cursor.query_activation(events), Out.QUERIES)

    # --- forgetting -----------------------------------------------------------------------------------------

    def _make_room(self) -> None:
        """Evict runs, least recently used first, as many as are too many; two at most, for one comes. Those that are busy
        stay as long as there is memory: they cost a replay otherwise.
        """
        if not self._size or len(self._runs) < self._size:
            return
        evicted, over = 0, len(self._runs) > self._size
        for run_id, cached in list(islice(self._runs.items(), LOOKED_AT)):
            if cached.is_idle and not cached.is_busy:
                self._evict_for_room(cached)
                evicted += 1
                if evicted > over:
                    return
            elif cached.out is not Out.EVICTION:
                self._runs[run_id] = self._runs.pop(run_id)  # in use: others are looked at next time
        if len(self._runs) >= self._most and not evicted:
            idle = next((cached for cached in self._runs.values() if cached.is_idle), None)
            if idle is not None:
                self._evict_for_room(idle)

    def _evict_for_room(self, cached: CachedRun) -> None:
        cached.eviction = RunEvicted("CACHE_FULL", "the cache is full")
        self._evict(cached)

    def _want_eviction(self, run_id: str, eviction: RunEvicted) -> None:
        cached = self._runs.get(run_id)
        if cached is None or cached.out is Out.EVICTION:
            return
        cached.eviction = cached.eviction or eviction
        if cached.resting:
            if not cached.record.run.is_open:
                cached.task_number = 0  # its task is gone with it
            self._finish(cached, again=True)
        elif cached.out is Out.NOTHING and not cached.task_number:
            self._rest(cached)

    def _evict(self, cached: CachedRun) -> None:
        assert cached.eviction is not None
        if self.local.in_use:
            self.local.forget(cached.cursor.run_id)
        self._give(cached, Activation(run_id=cached.cursor.run_id, events=(cached.eviction,)), Out.EVICTION)

    def _forget(self, cached: CachedRun) -> None:
        self._engine.tasks.unstick(cached.record, self._poller)
        if cached.resting:
            self._rouse(cached)
        if self.local.in_use:
            self.local.forget(cached.cursor.run_id)
        if self._runs.pop(cached.cursor.run_id, None) is not None:
            self._engine.runs.let_go(cached.record)

    def _give(self, cached: CachedRun, activation: Activation, out: Out) -> None:
        cached.out = out
        self.outstanding += 1
        # Not what it tells must be durable, but the change AHEAD before the newest. Nothing can be lost by that:
        # workflow code only computes, and what comes of its answer (an activity, a result for a client) leaves the
        # engine when the answer's own change is durable, which is written after all that the activation told.
        self.ready.append((activation, self._engine.writes.appended - AHEAD))
