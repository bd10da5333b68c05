"""A task queue (`TaskQueue`), the workers that serve it (`QueuePoller`), and the choice among several workers
(`QueuePollers`).

A handle grants the slots of its worker. From then on the matcher alone decides which tasks the worker receives: it uses
a slot for each task and passes the task to the `receiver`. The matcher asks neither the handle nor the worker. The
handle returns the slot when the worker has completed the task.

Must not know: activations, how runs change, how the backlog is filled. Invariants: a worker never receives more tasks or
attempts than it has slots. A run with an activation in progress uses one slot, and so does an attempt.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, Protocol

from hourglass._contract.handle import ActivityTask, HandleBroken, HandleConfig
from hourglass._embedded.matching.priority_queue import PriorityQueue

if TYPE_CHECKING:
    from hourglass._embedded.runs.run import LoadedRun, TakenAttempt


class TaskReceiver(Protocol):
    """A worker as the matcher sees it. The worker accepts every task that is assigned and is not asked first."""

    def begin_task(self, record: LoadedRun) -> None:
        """Start working on a run's task."""
        ...

    def begin_queries(self, record: LoadedRun) -> None:
        """Start answering a run's queries."""
        ...

    def begin_attempt(self, task: ActivityTask, depends_on: int) -> None:
        """Execute an activity attempt once the change with the number `depends_on` is durable."""
        ...

    def cancel_attempt(self, token: bytes, reason: str, depends_on: int) -> None:
        """Cancel an activity attempt once the change with the number `depends_on` is durable."""
        ...

    def closed(self, run_id: str) -> None:
        """Forget a run that has closed."""
        ...

    def parked(self, run_id: str) -> None:
        """Forget a run whose latest changes cannot be stored."""
        ...

    def request_eviction(self, run_id: str) -> None:
        """Evict a run, because another worker caches it now."""
        ...

    def realign(self) -> None:
        """Rearm all timers after the clock has jumped."""
        ...

    def break_off(self, why: HandleBroken) -> None:
        """Stop receiving work because the engine has stopped or cannot assign work."""
        ...


class TaskQueue:
    """A task queue: its backlog, and the numbers of tasks and attempts that its workers have received."""

    __slots__ = ("attempts", "attempts_received", "tasks", "tasks_received")

    def __init__(self) -> None:
        self.tasks: PriorityQueue[str] = PriorityQueue()
        self.attempts: PriorityQueue[tuple[str, int]] = PriorityQueue()
        self.tasks_received = 0
        self.attempts_received = 0

    def counts(self) -> tuple[int, int, int, int]:
        """Return the backlog size and the number of received tasks, then the same two numbers for attempts."""
        return len(self.tasks), self.tasks_received, len(self.attempts), self.attempts_received


class HostProcess(NamedTuple):
    """The operating system process of a worker. `key` is 0 for the engine's own process and unique among the others:
    processes in different containers may have the same id. `namespace` is the PID namespace, 0 if unknown.
    """

    id: int
    namespace: int = 0
    key: int = 0


class QueuePoller:
    """A worker of one task queue: its identity, the types that it can execute, its slots, its work in progress, and its
    sticky backlog.

    `task_slots` and `attempt_slots` are the numbers of slots that the worker's handle has granted. They are 0 while the
    handle is paused.
    """

    def __init__(
        self, config: HandleConfig, queue: TaskQueue, process: HostProcess, receiver: TaskReceiver
    ) -> None:
        self.task_queue = config.task_queue
        self.queue = queue
        self.identity = config.identity
        self.version = config.version
        self.workflow_types = config.workflow_types
        """The workflow types that the worker can execute. None means that the types are unknown and may be all."""
        self.activity_types = config.activity_types
        self.serves_workflows = config.workflows
        self.serves_activities = config.activities and config.remote_activities
        self.process = process
        self.receiver = receiver
        self.task_limit = config.max_concurrent_workflow_tasks if self.serves_workflows else 0
        self.attempt_limit = config.max_concurrent_activities if self.serves_activities else 0
        self.task_slots = 0
        self.active_runs: set[str] = set()
        """The runs for which the worker has an activation or is about to receive one. Each run uses a slot for workflow
        tasks.
        """
        self.resting_runs: set[str] = set()
        """The runs whose workflow task waits for a local activity. These runs use no slot."""
        self.attempt_slots = 0
        self.attempts: dict[bytes, TakenAttempt] = {}
        """The attempts that the worker has or is about to receive, by token. Each attempt uses a slot for activities."""
        self.own_tasks: PriorityQueue[str] = PriorityQueue()
        """The sticky backlog: cached runs whose task is waiting. It is used only if a queue has several workers."""

    def close(self) -> None:
        """Revoke all slots, so that the worker receives no more tasks."""
        self.task_limit = self.attempt_limit = self.task_slots = self.attempt_slots = 0

    def is_busy(self, run_id: str) -> bool:
        """Whether the worker has the task or an activation of this run in progress."""
        return run_id in self.active_runs or run_id in self.resting_runs


class QueuePollers:
    """The workers of each task queue. If there are several, a task goes to the least loaded one that can execute its
    type and has a free slot.
    """

    def __init__(self) -> None:
        self.shared = False
        """Whether any queue has several workers, so that the matcher must choose one for each task."""
        self.uniform = True
        """Whether all workers of a queue can execute the same types. If so, a worker that is not the best choice for the
        first waiting task need not be checked against the next ones.
        """
        self.handicap = 1.0
        """The weight of work in the engine's own process, relative to work in other processes.

        The other processes spend all their time on work, and the engine's process does not. With 0, work in the engine's
        process has no weight: other processes receive only tasks for which the engine's process has no slot.
        """
        self._by_queue: dict[str, list[QueuePoller]] = defaultdict(list)

    def add(self, poller: QueuePoller) -> None:
        """Add a worker."""
        self._by_queue[poller.task_queue].append(poller)
        self._compare()

    def remove(self, poller: QueuePoller) -> None:
        """Remove a worker. Has no effect if the worker was never added."""
        if poller in self._by_queue[poller.task_queue]:
            self._by_queue[poller.task_queue].remove(poller)
            self._compare()

    def _compare(self) -> None:
        several = [pollers for pollers in self._by_queue.values() if len(pollers) > 1]
        self.shared = bool(several)
        self.uniform = all(
            len({(poller.workflow_types, poller.activity_types) for poller in pollers}) <= 1
            for pollers in several
        )

    def of(self, task_queue: str) -> tuple[QueuePoller, ...]:
        """Return the workers of a queue."""
        return tuple(self._by_queue[task_queue])

    def all(self) -> tuple[QueuePoller, ...]:
        """Return the workers of all queues."""
        return tuple(chain(*self._by_queue.values()))

    def served_queues(self) -> tuple[str, ...]:
        """Return the queues that have a worker."""
        return tuple(sorted(queue for queue, pollers in self._by_queue.items() if pollers))

    def load(self, poller: QueuePoller) -> float:
        """Return the number of tasks and attempts that a worker has in progress, multiplied by the handicap for the
        engine's own process.

        An idle worker in the engine's process is preferred to all others, because no data must be sent to it.
        """
        load = len(poller.active_runs) + len(poller.attempts)
        return load if poller.process.key else (load * self.handicap or -1.0)

    def is_best_for_task(self, poller: QueuePoller, workflow_type: str) -> bool:
        """Whether this worker is the best choice in its queue for a task that is not bound to a worker."""
        knows, load = _knows(poller.workflow_types, workflow_type), self.load(poller)
        for rival in self._by_queue[poller.task_queue]:
            if rival is not poller and _knows(rival.workflow_types, workflow_type):
                if not knows:
                    return False  # a worker that can execute the type will receive it
                if self.load(rival) < load and len(rival.active_runs) < rival.task_slots:
                    return False
        return True

    def is_best_for_attempt(self, poller: QueuePoller, activity_type: str) -> bool:
        """Whether this worker is the best choice in its queue for an attempt."""
        knows, load = _knows(poller.activity_types, activity_type), self.load(poller)
        for rival in self._by_queue[poller.task_queue]:
            if rival is not poller and _knows(rival.activity_types, activity_type):
                if not knows:
                    return False
                if self.load(rival) < load and len(rival.attempts) < rival.attempt_slots:
                    return False
        return True

    def may_replay(self, poller: QueuePoller, workflow_type: str) -> bool:
        """Whether a worker may replay this workflow type: it can execute the type, or no worker of its queue can."""
        return _knows(poller.workflow_types, workflow_type) or not any(
            _knows(rival.workflow_types, workflow_type) for rival in self._by_queue[poller.task_queue]
        )

    def share(self, poller: QueuePoller, slots: int) -> int:
        """Return how many attempts a worker may receive together with its completion, ahead of waiting attempts.

        The limit keeps the worker's load close to that of the others. Some excess is allowed, because an attempt that
        stays in the process that scheduled it need not be sent.
        """
        loads = [
            self.load(rival)
            for rival in self._by_queue[poller.task_queue]
            if rival is not poller and len(rival.attempts) < rival.attempt_slots
        ]
        if not loads or not self.handicap:  # small tasks are not worth sending to another process
            return slots
        return min(slots, int(max(0.0, min(loads)) * 1.25 - max(0.0, self.load(poller))) + 1)


def _knows(types: frozenset[str] | None, name: str) -> bool:
    return types is None or name in types
