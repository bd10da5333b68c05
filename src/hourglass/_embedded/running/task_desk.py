"""Workflow tasks and queries, from the runs that want them to the handles that take them.

Must not know: activations (see `handle`, `cache`), how runs change. Invariants: a task is in the hands of one
handle at most; a run's queries wait while it has a task; a run that a handle knows goes to no other.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from hourglass._embedded.rules import tasks as tasks
from hourglass._embedded.rules import transitions
from hourglass._embedded.rules.draft import Eager
from hourglass._embedded.rules.run import Run
from hourglass._embedded.rules.updates import call_id, request_id
from hourglass._embedded.running.deployments import Deployments
from hourglass._embedded.running.ledger import Ledger
from hourglass._embedded.running.offers import Taker
from hourglass._embedded.running.queries import Query
from hourglass._embedded.running.record import Record
from hourglass._engine import commands as c
from hourglass._engine.commands import AcceptUpdate, TaskFailureCause
from hourglass._history import events as h
from hourglass.converter import Failure, Payload, ServerFailure
from hourglass.errors import HourglassError, ServiceError

logger = logging.getLogger("hourglass.embedded")


class TaskDesk:
    """Gives out tasks and questions, and takes their ends."""

    def __init__(self, ledger: Ledger, deployments: Deployments) -> None:
        self._ledger = ledger
        self._deployments = deployments
        self._asked: dict[str, Record] = {}

    def take(self, taker: Taker) -> Record | None:
        """Give a handle a run's task, if one waits on its queue that it may have."""
        for run_id in () if self._ledger.stopped else self._ledger.offers.tasks(taker.task_queue):
            record = self._ledger.in_memory(run_id)
            if record is not None and self._may_take(record, taker):
                self._start(record, taker)
                return record if record.run.task_is_started else self.take(taker)
        return None

    def _start(self, record: Record, taker: Taker) -> None:
        self._stick(record, taker)
        who, limits = taker.identity, self._ledger.limits
        target = self._deployments.elsewhere(record.run) if self._deployments.in_use else None
        self._ledger.change(record, lambda run, now: tasks.start_task(run, who, limits, now, target))

    @property
    def has_questions(self) -> bool:
        """Whether a query waits for an answer."""
        return bool(self._asked)

    def all_asked(self) -> Mapping[str, Record]:
        """The runs that have queries to answer, now and later."""
        return self._asked

    def take_queries(self, taker: Taker) -> Record | None:
        """Give a handle a run that has queries to answer and no task to be done before."""
        for record in self._asked.values():
            if record.run.task is None and self._is_for(record, taker):
                del self._asked[record.run.run_id]
                self._stick(record, taker)
                return record
        return None

    def ask(self, record: Record, query: Query) -> None:
        """A query waits for an answer."""
        record.queries.append(query)
        self._asked[record.run.run_id] = record
        self._ledger.note_hands(record)
        self._ledger.offers.wake(record.run.started.task_queue)

    def withdraw(self, record: Record, query: Query) -> None:
        """The asker of a query waits no more; if it has been answered there is nothing to do."""
        if query in record.queries:
            record.queries.remove(query)
            if not record.queries:
                self._asked.pop(record.run.run_id, None)
            self._ledger.note_hands(record)

    def take_questions(self, record: Record) -> list[Query]:
        """The queries that wait, unless a task is to be done before them; they are the caller's to answer
        now.
        """
        return [] if record.run.task is not None or not record.queries else self._questions(record)

    def take_questions_in_task(self, record: Record) -> list[Query]:
        """The queries that wait, though the run has a task, in which nothing has happened yet."""
        return self._questions(record)

    def rest(self, record: Record, resting: bool) -> None:
        """A run's task waits for a local activity, or no longer does."""
        record.resting = resting
        self._ledger.note_hands(record)

    def refuse_hopeless_queries(self, record: Record) -> None:
        """A task that fails again and again would keep queries waiting for ever."""
        task = record.run.task
        if task is not None and task.attempt > 2:
            message = "Cannot query workflow: its workflow task keeps failing"
            self.refuse_queries(record, ServiceError(message, status="FAILED_PRECONDITION"))

    def unstick(self, record: Record, taker: Taker) -> None:
        """If it was this handle that knew a run: others may take what waits of it now."""
        if record.sticky is taker:
            record.sticky = None
            if record.run.is_open:
                self._ledger.offers.wake(record.run.started.task_queue)

    def refuse_queries(self, record: Record, error: HourglassError) -> None:
        """The queries that wait cannot be answered."""
        for question in self._questions(record):
            question.refuse(error)

    def _questions(self, record: Record) -> list[Query]:
        questions, record.queries = record.queries, []
        self._asked.pop(record.run.run_id, None)
        self._ledger.note_hands(record)
        return questions

    def finish(self, record: Record, number: int, answer: tasks.Answer, eager: Eager | None = None) -> str:
        """Take the answer to a task, from somebody who may take what it asks for at once; gives why the run must be
        evicted, or "" if all is well.
        """
        if not _is_in_hand(record.run, number):
            return "TASK_NOT_FOUND"
        follower = self._ledger.new_run_id() if tasks.may_be_followed(answer) else ""
        accepted = tuple(_requests_of_updates(record, answer)) if record.updates is not None else ()
        attributes = [found for each in answer.commands if (found := _attributes(each.command))]
        try:
            for command, values in attributes:
                self._check_attributes(command, values)
            ended = self._ledger.change(
                record,
                lambda run, now: tasks.complete_task(run, answer, follower, self._ledger.limits, now, eager),
                request_ids=accepted,
            )
        except tasks.Refused as refusal:
            asked_again = refusal.cause == h.UNHANDLED_COMMAND
            failure = None if asked_again else Failure(str(refusal), ServerFailure())
            self.fail(record, number, refusal.cause, failure, answer.identity)
            if not asked_again:
                logger.warning("run %s cannot go on: %s", record.run.run_id, refusal)
            if refusal.ends_run and record.run.is_open:
                why = str(refusal)
                self._ledger.change(record, lambda run, now: transitions.end_overgrown(run, why, now))
            return refusal.reason
        for _, values in attributes:
            self._ledger.attributes.learn(values)
        return "TASK_NOT_FOUND" if ended else ""

    def _check_attributes(self, command: c.Command, attributes: Mapping[str, Payload]) -> None:
        """Raise `Refused` for a command with search attributes that cannot be. A server ends a run whose attributes are
        too large.
        """
        flaw = self._ledger.attributes.flaw(attributes)
        if flaw is None:
            return
        cause, reason, where = _ATTRIBUTES[type(command)]
        if flaw.too_large:
            raise tasks.Refused(cause, "FATAL", f"{reason}: {flaw.message}", ends_run=True)
        what = f"BadSearchAttributes: {where}{flaw.message}"
        raise tasks.Refused(h.BAD_SEARCH_ATTRIBUTES, "FATAL", what)

    def fail(
        self, record: Record, number: int, cause: int | TaskFailureCause, failure: Failure | None, who: str
    ) -> None:
        """A task could not be handled; it will be offered again."""
        if _is_in_hand(record.run, number):
            self._ledger.change(record, lambda run, now: tasks.fail_task(run, int(cause), failure, who, now))

    def _may_take(self, record: Record, taker: Taker) -> bool:
        task = record.run.task
        ready = (
            task is not None
            and not task.started_event_id
            and task.available_ns <= self._ledger.clock.now_ns()
        )
        return ready and self._is_for(record, taker)

    def _is_for(self, record: Record, taker: Taker) -> bool:
        if record.run.started.task_queue != taker.task_queue or taker.is_busy(record.run.run_id):
            return False
        sticky, versions = record.sticky, self._deployments
        if not versions.in_use:
            return sticky is None or sticky is taker
        if not versions.takes_task(taker, record.run):
            return False
        return sticky is None or sticky is taker or not versions.takes_task(sticky, record.run)

    def _stick(self, record: Record, taker: Taker) -> None:
        """From now on this handle knows the run, and no other."""
        before, record.sticky = record.sticky, taker
        if before is not None and before is not taker:
            before.moved(record.run.run_id)


_ATTRIBUTES: dict[type[c.Command], tuple[int, str, str]] = {
    c.UpsertSearchAttributes: (h.BAD_SEARCH_ATTRIBUTES, "BadSearchAttributes", ""),
    c.StartChildWorkflow: (
        h.BAD_START_CHILD,
        "BadStartChildExecutionAttributes",
        "invalid SearchAttributes on StartChildWorkflowCommand: ",
    ),
    c.ContinueAsNew: (
        h.BAD_CONTINUE_AS_NEW,
        "BadContinueAsNewAttributes",
        "invalid SearchAttributes on ContinueAsNewWorkflowExecutionCommand: ",
    ),
}
"""Commands with search attributes: with what cause and in which words they are refused."""


def _attributes(command: c.Command) -> tuple[c.Command, Mapping[str, Payload]] | None:
    """A command with the search attributes that it sets; None if it sets none."""
    match command:
        case c.UpsertSearchAttributes(changes):
            return (command, changes) if changes else None
        case c.StartChildWorkflow() | c.ContinueAsNew() if command.search_attributes:
            return command, command.search_attributes
        case _:
            return None


def _requests_of_updates(record: Record, answer: tasks.Answer) -> Iterator[str]:
    """The requests that are carried out by an answer which accepts updates: by the updates' ids, and by those of the calls."""
    for sent in answer.commands:
        if sent.update is None or type(sent.command) is not AcceptUpdate:
            continue
        yield request_id(record.run, sent.update.update_id)
        waiting = record.updates.find(sent.update.update_id) if record.updates is not None else None
        if waiting is not None:
            yield from map(call_id, sorted(waiting.calls))


def _is_in_hand(run: Run, number: int) -> bool:
    return run.task is not None and run.task.number == number and run.task.started_event_id != 0
