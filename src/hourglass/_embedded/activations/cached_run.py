"""A run as one worker has it (`CachedRun`): its cursor, what the worker has received of it, and what it answers to its task.

Must not know: other runs, when an activation is delivered, when a run is evicted.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from hourglass._embedded.activations.cursor import BadCommand, Cursor
from hourglass._embedded.clock import Cancel
from hourglass._embedded.matching.pollers import QueuePoller
from hourglass._embedded.runs.run import LoadedRun, WaitingQuery
from hourglass._embedded.transitions.tasks import TaskAnswer, unwritten
from hourglass._evaluator.commands import AnswerQuery, Command, Succeeded, TaskFailureCause
from hourglass._evaluator.events import RunEvicted
from hourglass._evaluator.specs import VersioningBehavior
from hourglass._history import events as h
from hourglass.converter import ApplicationFailure, Failure
from hourglass.errors import HourglassError, NondeterminismError

logger = logging.getLogger("hourglass.embedded")


class Stage(Enum):
    """The state of a run in its worker."""

    IDLE = "idle"
    """The worker has nothing of the run in progress."""
    EVENTS = "events"
    """An activation with new events is in progress."""
    QUERIES = "queries"
    """An activation with queries is in progress."""
    EVICTION = "eviction"
    """The eviction of the run is in progress."""
    RESTING = "resting"
    """The task waits for local activities; no activation is in progress."""


def _nothing() -> None:
    """Cancel no alarm."""


@dataclass(eq=False, slots=True)
class CachedRun:
    """A run in one worker. `task_number` is that of the workflow task in progress, or 0."""

    record: LoadedRun
    cursor: Cursor
    stage: Stage = Stage.IDLE
    task_number: int = 0
    used_flags: frozenset[int] = frozenset()
    behavior: VersioningBehavior = VersioningBehavior.UNSPECIFIED
    questions: Sequence[WaitingQuery] = ()
    eviction: RunEvicted | None = None
    """Why the run will be evicted as soon as no activation of it is in progress; None if it stays."""
    alarm: Cancel = _nothing
    untouched: bool = False
    """Whether no activation of the task in progress was delivered."""

    @property
    def is_idle(self) -> bool:
        """Whether the worker has nothing of the run and owes it nothing."""
        return self.stage is Stage.IDLE and not self.task_number and not self.cursor.local_outstanding

    @property
    def is_busy(self) -> bool:
        """Whether the run will soon be needed again: a task of it waits, or its activities are in progress."""
        return bool(self.record.live) or self.record.run.task is not None

    def take_task(self, record: LoadedRun, updates: Sequence[h.UpdateRequest]) -> None:
        """Begin to work on the run's task, which came with these updates."""
        task = record.run.task
        assert task is not None
        self.task_number = task.number
        tail = unwritten(record.run) if task.transient else ()
        history = [*record.events, *tail] if tail else record.events
        self.cursor.extend(history, live=True, updates=updates)
        self.untouched = True

    def note_completion(self, completion: Succeeded, default: VersioningBehavior) -> None:
        """Remember the flags and the versioning behavior that a completion names."""
        if completion.used_flags and not self.used_flags.issuperset(completion.used_flags):
            self.used_flags |= frozenset(completion.used_flags)
        self.behavior = completion.versioning_behavior or default

    def answer(self, poller: QueuePoller, again: bool) -> TaskAnswer:
        """Return the answer to the task in progress. `again` requests the next task at once."""
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
        """Pass the worker's answers to the clients that sent the queries."""
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
        """End the queries in progress with an error of the engine."""
        for question in self.questions:
            question.refuse(error)
        self.questions = ()

    def refuse_questions(self, failure: Failure) -> None:
        """End the queries in progress with a failure of the run."""
        for question in self.questions:
            question.fail(failure)
        self.questions = ()


def blame(error: Exception, cached: CachedRun) -> tuple[int, Failure, str]:
    """Return why a run cannot continue: the cause of its task's failure, the failure, and the reason of its eviction. A bug
    of the engine counts as the run's own trouble, too, so that it affects no other run.
    """
    kind = type(error).__name__
    if isinstance(error, NondeterminismError):
        failure = Failure(f"[TMPRL1100] Nondeterminism error: {error}", ApplicationFailure(kind))
        return TaskFailureCause.NON_DETERMINISTIC_ERROR, failure, "NONDETERMINISM"
    if isinstance(error, BadCommand):
        logger.error("run %s cannot continue: %s", cached.cursor.run_id, error)
        return h.FEATURE_DISABLED, Failure(str(error), ApplicationFailure(kind)), "FATAL"
    logger.error("run %s cannot continue: %s", cached.cursor.run_id, kind, exc_info=error)
    failure = Failure(f"the engine cannot continue this run: {kind}", ApplicationFailure("InternalError"))
    return TaskFailureCause.WORKFLOW_WORKER_UNHANDLED_FAILURE, failure, "FATAL"
