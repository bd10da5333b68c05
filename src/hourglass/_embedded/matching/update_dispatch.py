"""Dispatch of updates (`UpdateDispatch`): from clients to workers, together with the tasks of the runs, and back.

Must not know: activations, how runs change (see `transitions`), which clients wait for an answer. Invariant: while an
update waits, its run has a workflow task.
"""

from __future__ import annotations

from hourglass._embedded.runs.run import LoadedRun
from hourglass._embedded.runs.runs import RunTable
from hourglass._embedded.transitions import tasks as tasks
from hourglass._embedded.transitions.change_builder import ChangeBuilder
from hourglass._embedded.transitions.run import Change, Run
from hourglass._embedded.transitions.tasks import TaskCompletion
from hourglass._embedded.transitions.updates import Updates, Waiting
from hourglass._history.events import UpdateRequest, WorkflowTaskCompleted


class UpdateDispatch:
    """Admits updates, passes them to workers together with tasks, and records their outcomes."""

    def __init__(self, runs: RunTable) -> None:
        self._runs = runs

    def of(self, record: LoadedRun) -> Updates:
        """Return the updates of a run: those in its history and those that wait in memory."""
        if record.updates is None:
            record.updates = Updates()
        record.updates.read(record.events)
        return record.updates

    def admit(self, record: LoadedRun, request: UpdateRequest) -> Waiting:
        """Admit a client's update whose id is new."""
        waiting = self.of(record).admit(request)
        self.want_task(record)
        return waiting

    def give(self, record: LoadedRun) -> tuple[UpdateRequest, ...]:
        """Return the updates to send to the worker that has just received the run's task."""
        task = record.run.task
        if record.updates is None or task is None:
            return ()
        return self.of(record).give(task.number)

    def settle(self, record: LoadedRun, number: int, answer: TaskCompletion) -> None:
        """Record the outcomes of updates after the completion of a task has been applied."""
        if record.updates is None and not answer.rejected_updates:
            return
        updates = self.of(record)
        for update_id, failure in answer.rejected_updates:
            updates.reject(update_id, failure)
        if not record.run.is_open:
            updates.waiting.clear()  # waiting clients send the update to the next run, if there is one
            return
        updates.answered(number)
        self.want_task(record)

    def want_task(self, record: LoadedRun) -> None:
        """Schedule a task for a run with waiting updates, unless the run has a task or is paused."""
        waits = record.updates is not None and record.updates.waiting
        if waits and record.run.is_open and record.run.task is None:
            silent = isinstance(record.events[-1].attributes, WorkflowTaskCompleted)
            self._runs.change(record, _want_task, silent)


def _want_task(run: Run, silent: bool, now_ns: int) -> Change:
    """Schedule a task for updates.

    `silent`: the preceding task was completed without commands. If the new task then fails, Core replays the preceding
    task as a heartbeat, together with later events and at a later time.
    """
    builder = ChangeBuilder(run, now_ns)
    builder.want_update_task(silent=silent)
    return builder.build()
