"""The updates of one run: which wait, which are accepted, which are done.

Must not know: clients, queues, the engine. What was accepted or completed follows from the history, which is read
once and then as it grows; what waits is in memory alone, as on a Temporal server: until an update is accepted the
engine has promised nothing, and the client that waits for it asks again after a crash. The exception are updates that
a reset has written into the history.

Invariants: an id is one update, whatever becomes of it but a refusal, along all runs of a chain: the id of one that
is accepted is kept as a request that the run has carried out, and so are those of the calls that asked for it; a
refused update is forgotten, and only the clients that wait for it are told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hourglass._embedded.transitions.run import Run
from hourglass._history import events as h
from hourglass.converter import ApplicationFailure, Failure


def request_id(run: Run, update_id: str) -> str:
    """The name under which a run that accepts an update is remembered as having carried it out. The runs of a chain
    share it; those of another workflow that has the id later do not, for update ids are chosen by people.
    """
    return f"update/{run.started.first_run_id}/{update_id}"


def call_id(request_id: str) -> str:
    """The name under which a call for an update is remembered, by the run that accepted it, along all runs of a
    workflow.
    """
    return f"{request_id}/update"


ABANDONED = Failure(
    "Workflow Update failed because the Workflow completed before the Update completed.",
    ApplicationFailure(type="AcceptedUpdateCompletedWorkflow", non_retryable=True),
    source="Server",
)
"""What becomes of an accepted update whose run closes before it is done."""

UNPROCESSED = Failure(
    "Workflow Update is rejected because it wasn't processed by worker. Probably, Workflow Update is not "
    "supported by the worker.",
    ApplicationFailure(type="UnprocessedUpdate", non_retryable=True),
    source="Server",
)
"""What becomes of an update that a worker was given and said nothing of."""


@dataclass(eq=False, slots=True)
class Waiting:
    """An update that is not accepted yet. `task_number` is the task that it was given to a worker with, `calls` are
    the ids of the calls that ask for it.
    """

    request: h.UpdateRequest
    task_number: int = 0
    refusal: Failure | None = None
    calls: set[str] = field(default_factory=set)


class Updates:
    """What is known of a run's updates."""

    def __init__(self) -> None:
        self.waiting: dict[str, Waiting] = {}
        self.written: dict[str, Waiting] = {}
        """Those that wait and stand in the history."""
        self.accepted: dict[str, int] = {}
        self.completed: dict[str, h.WorkflowExecutionUpdateCompleted] = {}
        self._read = 0
        self._asked: tuple[str, ...] = ()

    def read(self, events: Sequence[h.HistoryEvent]) -> None:
        """The history as it is now."""
        for event in events[self._read :] if self._read < len(events) else ():
            match event.attributes:
                case h.WorkflowExecutionUpdateAdmitted(request=request):
                    self.written[request.update_id] = Waiting(request)
                case h.WorkflowExecutionUpdateAccepted(update_id=update_id):
                    self.accepted[update_id] = event.id
                    self.waiting.pop(update_id, None)
                    self.written.pop(update_id, None)
                case h.WorkflowExecutionUpdateCompleted() as completed:
                    self.completed[completed.update_id] = completed
                case h.WorkflowTaskCompleted():
                    self._asked = tuple(self.written)
                case h.WorkflowTaskScheduled() if self._asked:
                    # What a task was asked for and did not accept, it has refused.
                    for update_id in self._asked:
                        self.written.pop(update_id, None)
                    self._asked = ()
                case _:
                    pass
        self._read = len(events)

    @property
    def in_flight(self) -> int:
        """How many are not done."""
        return len(self.waiting) + len(self.written) + len(self.accepted) - len(self.completed)

    @property
    def total(self) -> int:
        """How many there are, those that are done included."""
        return len(self.waiting) + len(self.written) + len(self.accepted)

    def knows(self, update_id: str) -> bool:
        """Whether there is an update of this id."""
        return update_id in self.accepted or self.find(update_id) is not None

    def find(self, update_id: str) -> Waiting | None:
        """The update of this id, if it waits."""
        return self.waiting.get(update_id) or self.written.get(update_id)

    def admit(self, request: h.UpdateRequest) -> Waiting:
        """A client asks for an update of a new id."""
        return self.waiting.setdefault(request.update_id, Waiting(request))

    def give(self, task_number: int) -> tuple[h.UpdateRequest, ...]:
        """Everything that waits in memory goes to a worker, with this task."""
        for each in self.waiting.values():
            each.task_number = task_number
        return tuple(each.request for each in self.waiting.values())

    def refuse(self, update_id: str, failure: Failure) -> None:
        """A worker has refused an update."""
        for table in (self.waiting, self.written):
            found = table.pop(update_id, None)
            if found is not None:
                found.refusal = failure

    def answered(self, task_number: int) -> None:
        """A task was answered: what was given with it and neither accepted nor refused never will be."""
        for update_id, each in tuple(self.waiting.items()):
            if each.task_number == task_number:
                self.refuse(update_id, UNPROCESSED)
