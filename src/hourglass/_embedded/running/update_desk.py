"""Updates between those who ask and the workers that answer: what waits, and the tasks that are wanted for it.

Must not know: activations (see `cache`), how runs change, who waits for an answer. Invariant: while an update
waits, its run has a task.
"""

from __future__ import annotations

from hourglass._embedded.rules.draft import Draft
from hourglass._embedded.rules.run import Run, Step
from hourglass._embedded.rules.tasks import Answer
from hourglass._embedded.rules.updates import Updates, Waiting
from hourglass._embedded.running.ledger import Ledger
from hourglass._embedded.running.record import Record
from hourglass._history.events import UpdateRequest, WorkflowTaskCompleted


class UpdateDesk:
    """Takes updates in, gives them out with tasks, and takes what became of them."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def of(self, record: Record) -> Updates:
        """The updates of a run, as its history and this process know them."""
        if record.updates is None:
            record.updates = Updates()
        record.updates.read(record.events)
        return record.updates

    def admit(self, record: Record, request: UpdateRequest) -> Waiting:
        """Somebody asks for an update of a new id."""
        waiting = self.of(record).admit(request)
        self._want_task(record)
        return waiting

    def give(self, record: Record) -> tuple[UpdateRequest, ...]:
        """What a worker is given together with the task that it has just taken."""
        task = record.run.task
        if record.updates is None or task is None:
            return ()
        return self.of(record).give(task.number)

    def settle(self, record: Record, number: int, answer: Answer) -> None:
        """A task was answered, and the answer was taken."""
        if record.updates is None and not answer.refused_updates:
            return
        updates = self.of(record)
        for update_id, failure in answer.refused_updates:
            updates.refuse(update_id, failure)
        if not record.run.is_open:
            updates.waiting.clear()  # whoever waits asks the run that follows, if one does
            return
        updates.answered(number)
        self._want_task(record)

    def _want_task(self, record: Record) -> None:
        waits = record.updates is not None and record.updates.waiting
        if waits and record.run.is_open and record.run.task is None:
            silent = isinstance(record.events[-1].attributes, WorkflowTaskCompleted)
            self._ledger.change(record, lambda run, now: _want_task(run, silent, now))


def _want_task(run: Run, silent: bool, now_ns: int) -> Step:
    """A task for updates.

    Silent: the task before it was answered with nothing. A task that fails right behind such a one makes Core
    replay the latter as a heartbeat, together with what came later and at a later time.
    """
    draft = Draft(run, now_ns)
    draft.want_update_task(silent=silent)
    return draft.step()
