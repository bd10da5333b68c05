"""One run as a worker has it: its cursor, what is out of it, what it was asked, and what it answers to its task.

Must not know: other runs, the engine, when anything is given out or forgotten; the cache decides that.
Invariant: a question that was taken is answered or refused, and then no longer here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from hourglass._embedded.clock import Cancel
from hourglass._embedded.engine.run import Query, Record
from hourglass._embedded.engine.task_queues import Taker
from hourglass._embedded.rules.tasks import Answer, unwritten
from hourglass._embedded.workers.cursor import Cursor
from hourglass._engine.commands import AnswerQuery, Command, Succeeded
from hourglass._engine.events import RunEvicted
from hourglass._engine.versions import VersioningBehavior
from hourglass._history.events import UpdateRequest
from hourglass.converter import Failure
from hourglass.errors import HourglassError


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
    """A run that a worker knows."""

    record: Record
    cursor: Cursor
    out: Out = Out.NOTHING
    task_number: int = 0
    used_flags: frozenset[int] = frozenset()
    behavior: VersioningBehavior = VersioningBehavior.UNSPECIFIED
    questions: Sequence[Query] = ()
    eviction: RunEvicted | None = None
    resting: bool = False
    alarm: Cancel = _nothing
    untouched: bool = False
    """Whether nothing has been given out of the task in hand."""

    @property
    def is_idle(self) -> bool:
        """Whether the worker has nothing of the run and owes nothing to it."""
        return self.out is Out.NOTHING and not self.task_number and not self.cursor.local_outstanding

    def take_task(self, record: Record, updates: Sequence[UpdateRequest]) -> None:
        """Have a task in hand, which came with these updates."""
        task = record.run.task
        assert task is not None
        self.task_number = task.number
        tail = unwritten(record.run) if task.transient else ()
        history = [*record.events, *tail] if tail else record.events
        self.cursor.extend(history, live=True, updates=updates)
        self.untouched = True

    def hear(self, completion: Succeeded, behavior: VersioningBehavior) -> None:
        """The worker answered; this behaviour holds where its workflow says nothing."""
        if not self.used_flags.issuperset(completion.used_flags):
            self.used_flags |= frozenset(completion.used_flags)
        self.behavior = completion.versioning_behavior or behavior

    def answer(self, taker: Taker, again: bool) -> Answer:
        """What is said to the task in hand; `again` asks for another at once."""
        cursor, used = self.cursor, self.used_flags
        return Answer(
            commands=cursor.answer(),
            flags=() if used <= cursor.flags else tuple(sorted(used - cursor.flags)),
            identity=taker.identity,
            refused_updates=cursor.take_refusals(),
            version=taker.version,
            behavior=self.behavior if taker.version is not None else VersioningBehavior.UNSPECIFIED,
            again=again,
        )

    def answer_questions(self, commands: tuple[Command, ...]) -> None:
        """Give those who asked what the worker answered."""
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
        """Tell those who asked that the engine is over."""
        for question in self.questions:
            question.refuse(error)
        self.questions = ()

    def refuse_questions(self, failure: Failure) -> None:
        """Tell those who asked why there is no answer."""
        for question in self.questions:
            question.fail(failure)
        self.questions = ()
