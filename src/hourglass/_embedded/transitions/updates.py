"""The updates of one run: those that wait, are accepted, or are completed.

Must not know: clients, queues, the engine. Accepted and completed updates follow from the history. The history is read
completely once, and then incrementally. As on a Temporal server, waiting updates are in memory only: until an update is
accepted, the engine has promised nothing, and the client that waits for the update repeats the request after a crash.
Updates that a reset has written into the history are an exception.

Invariants: an id identifies one update in all runs of a chain, unless the update is rejected. The id of an accepted
update is stored as a request that the run has carried out, and so are the ids of the calls for the update. A rejected
update is forgotten, and only the clients that wait for it are notified.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hourglass._embedded.transitions.run import Run
from hourglass._history import events as h
from hourglass.converter import ApplicationFailure, Failure


def request_id(run: Run, update_id: str) -> str:
    """Return the request id under which the acceptance of an update is stored.

    All runs of a chain share this id. A later workflow with the same workflow id has different request ids, because
    people choose update ids and may reuse them.
    """
    return f"update/{run.started.first_run_id}/{update_id}"


def call_id(request_id: str) -> str:
    """Return the request id of a call for an update. The id is stored by the run that accepted the update, and is valid
    for all runs of the workflow.
    """
    return f"{request_id}/update"


ABANDONED = Failure(
    "Workflow Update failed because the Workflow completed before the Update completed.",
    ApplicationFailure(type="AcceptedUpdateCompletedWorkflow", non_retryable=True),
    source="Server",
)
"""The failure of an accepted update whose run closes before the update is completed."""

UNPROCESSED = Failure(
    "Workflow Update is rejected because it wasn't processed by worker. Probably, Workflow Update is not "
    "supported by the worker.",
    ApplicationFailure(type="UnprocessedUpdate", non_retryable=True),
    source="Server",
)
"""The failure of an update that a worker has received but neither accepted nor rejected."""


@dataclass(eq=False, slots=True)
class Waiting:
    """An update that has not been accepted yet. `task_number` is the workflow task with which a worker received the
    update. `calls` are the ids of the calls for the update.
    """

    request: h.UpdateRequest
    task_number: int = 0
    rejection: Failure | None = None
    calls: set[str] = field(default_factory=set)


class Updates:
    """The updates of one run."""

    def __init__(self) -> None:
        self.waiting: dict[str, Waiting] = {}
        self.written: dict[str, Waiting] = {}
        """Waiting updates whose admission is in the history."""
        self.accepted: dict[str, int] = {}
        self.completed: dict[str, h.WorkflowExecutionUpdateCompleted] = {}
        self._read = 0
        self._sent_ids: tuple[str, ...] = ()

    def read(self, events: Sequence[h.HistoryEvent]) -> None:
        """Read the events that were added since the last call."""
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
                    self._sent_ids = tuple(self.written)
                case h.WorkflowTaskScheduled() if self._sent_ids:
                    # Updates that a worker has received with a task and not accepted are rejected.
                    for update_id in self._sent_ids:
                        self.written.pop(update_id, None)
                    self._sent_ids = ()
                case _:
                    pass
        self._read = len(events)

    @property
    def in_flight(self) -> int:
        """The number of updates that have not been completed."""
        return len(self.waiting) + len(self.written) + len(self.accepted) - len(self.completed)

    @property
    def total(self) -> int:
        """The number of updates, including completed updates."""
        return len(self.waiting) + len(self.written) + len(self.accepted)

    def knows(self, update_id: str) -> bool:
        """Whether there is an update with this id, accepted or waiting."""
        return update_id in self.accepted or self.find(update_id) is not None

    def find(self, update_id: str) -> Waiting | None:
        """Return the waiting update with this id, or None if there is none."""
        return self.waiting.get(update_id) or self.written.get(update_id)

    def admit(self, request: h.UpdateRequest) -> Waiting:
        """Admit an update whose id is new."""
        return self.waiting.setdefault(request.update_id, Waiting(request))

    def give(self, task_number: int) -> tuple[h.UpdateRequest, ...]:
        """Return all updates that wait in memory, and mark them as received with this task."""
        for update in self.waiting.values():
            update.task_number = task_number
        return tuple(update.request for update in self.waiting.values())

    def reject(self, update_id: str, failure: Failure) -> None:
        """Reject an update with the failure that the worker returned."""
        for table in (self.waiting, self.written):
            update = table.pop(update_id, None)
            if update is not None:
                update.rejection = failure

    def answered(self, task_number: int) -> None:
        """Reject the updates that a worker has received with this task but neither accepted nor rejected in its
        completion.
        """
        for update_id, update in tuple(self.waiting.items()):
            if update.task_number == task_number:
                self.reject(update_id, UNPROCESSED)
