"""All task queues (`TaskQueues`): additions to each backlog, and the moment at which tasks are assigned to workers.

Must not know: how a task is assigned, activations. An offer may become obsolete: the task was received, timed out, or
its run closed. An obsolete offer is withdrawn only when its run or activity is offered again, so every assignment checks
the task first. Invariant: an available task is assigned by the next `dispatch`, at the latest in the next iteration of
the event loop. `dispatch` is called at the end of an operation, so that the operation's changes and the start of the
task can become durable together.

If several workers serve a queue (see `pollers`), each has a separate backlog for the tasks of runs that it has cached.
So a worker never searches through tasks that only another worker may receive.

The backlog of a queue is shared fairly (`PriorityQueue`). While the engine is behind its store, late tasks and tasks of
sharers with a long backlog wait until the others have been assigned.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator
from itertools import chain
from time import monotonic
from typing import TYPE_CHECKING

from hourglass._contract.ids import new_id
from hourglass._embedded.matching.pollers import QueuePoller, QueuePollers, TaskQueue
from hourglass._embedded.matching.priority_queue import PriorityQueue
from hourglass._embedded.runs.write_behind import WriteBehind
from hourglass._embedded.transitions.run import OpenActivity, Run, level_of

if TYPE_CHECKING:
    from hourglass._embedded.runs.run import LoadedRun

FEW_TASKS = 32
"""While the engine is behind, a worker with this many workflow tasks in progress receives no more low-priority ones.
Workflow tasks are short, and each additional one would delay the others.
"""

RATE_WINDOW = 30.0
"""The period over which rates are computed, in seconds. A server uses the same period."""

_SAMPLE_EVERY = 5.0


class DispatchPolicy:
    """Decisions that only the engine of a test environment makes differently. By default a worker may receive every task
    of its queue, all timers that are due at the same time fire at that time, and run ids are random.
    """

    is_selective = False
    """Whether `may_take` must be called."""

    def may_take(self, run_id: str, scheduled_event_id: int) -> bool:
        """Whether a worker may receive an activity's attempt now, or a run's workflow task (`scheduled_event_id` 0)."""
        return True

    def due_now(self, due: list[int]) -> list[int]:
        """Return the timers and timeouts that happen now, in order, out of those due at the same time. The others happen
        next.
        """
        return due

    new_run_id: Callable[[], str] = staticmethod(new_id)


class TaskQueues:
    """All task queues. `assign` passes waiting tasks to a worker until it has no free slot."""

    def __init__(
        self, writes: WriteBehind, assign: Callable[[QueuePoller], None], policy: DispatchPolicy | None = None
    ) -> None:
        self.policy = DispatchPolicy() if policy is None else policy
        self.pollers = QueuePollers()
        self.versioned = False
        """Whether workers have versions. If so, a worker may not receive every task of its queue."""
        self.is_paced = False
        """Whether low-priority tasks wait while the engine is behind its store."""
        self._writes = writes
        self._assign = assign
        self._queues: dict[str, TaskQueue] = defaultdict(TaskQueue)
        self._waiting: dict[str, PriorityQueue[str]] = {}
        """The backlog of each waiting task, by run id."""
        self._offered: dict[tuple[str, int], str] = {}
        self._samples: deque[tuple[float, dict[str, tuple[int, ...]]]] = deque()
        self._to_dispatch: dict[str, None] = {}
        """The queues with tasks to assign."""
        self._dispatching = False
        self._will_dispatch = False
        self._held_back: dict[str, None] = {}
        self.queried: dict[str, LoadedRun] = {}
        """The runs with waiting queries, by run id."""

    def of(self, task_queue: str) -> TaskQueue:
        """Return the queue with this name."""
        return self._queues[task_queue]

    def join(self, poller: QueuePoller) -> None:
        """Add a worker to its queue."""
        self.pollers.add(poller)

    def leave(self, poller: QueuePoller) -> None:
        """Assign no more tasks to a worker. The tasks in its sticky backlog become available to the other workers."""
        self.pollers.remove(poller)
        for run_id in tuple(poller.own_tasks):
            self.release(poller, run_id)
        if not self.pollers.shared:  # no queue needs sticky backlogs any more
            for remaining in self.pollers.all():
                for run_id in tuple(remaining.own_tasks) if remaining.own_tasks else ():
                    self.release(remaining, run_id)

    def release(self, poller: QueuePoller, run_id: str) -> None:
        """Let any worker of the queue receive the waiting task of a run that this worker no longer caches."""
        share = poller.own_tasks.get(run_id)
        if share is not None:
            late = run_id in share.late
            poller.own_tasks.drop(run_id)
            tasks = self._waiting[run_id] = poller.queue.tasks
            tasks.put(run_id, share.level, share.sharer, late=late, weight=1 / share.cost)
            self.wake(poller.task_queue)

    def tasks(self, poller: QueuePoller) -> Iterator[str]:
        """Return the runs whose tasks wait for this worker or for any worker of its queue, the most urgent first.

        A caller that starts a task must stop iterating, because the backlog has changed.
        """
        policy, waiting, own = self.policy, poller.queue.tasks, poller.own_tasks
        if self.is_paced and (len(poller.active_runs) >= FEW_TASKS or self._is_held(poller.task_queue)):
            return chain(own.urgent(), waiting.urgent())
        if own:
            return chain(own, waiting)
        if policy.is_selective:
            return (run_id for run_id in waiting if policy.may_take(run_id, 0))
        return iter(waiting)

    def attempts(self, poller: QueuePoller) -> Iterator[tuple[str, int]]:
        """Return the attempts that wait in this worker's queue, as (run id, scheduled event id). See `tasks`."""
        policy, waiting = self.policy, poller.queue.attempts
        if self.is_paced and self._is_held(poller.task_queue):
            return waiting.urgent()
        return (key for key in waiting if policy.may_take(*key)) if policy.is_selective else iter(waiting)

    def _is_held(self, task_queue: str) -> bool:
        """Whether low-priority dispatch is paused because the engine is behind. Paused queues are woken once the engine
        has caught up.
        """
        if not self._writes.is_behind():
            return False
        if not self._held_back:
            self._writes.when_caught_up(self._wake_held_back)
        self._held_back[task_queue] = None
        return True

    def _wake_held_back(self) -> None:
        queues, self._held_back = self._held_back, {}
        for queue in queues:
            self.wake(queue)

    @property
    def allows_eager(self) -> bool:
        """Whether a worker may receive a task together with its completion, without a wait in the backlog. This is
        allowed only if neither the policy nor worker versions restrict the assignment of tasks.
        """
        return not self.versioned and not self.policy.is_selective

    def waiting_tasks(self) -> list[str]:
        """Return the runs whose tasks wait in a queue that has a worker, regardless of the policy."""
        return [
            run_id
            for name in self.pollers.served_queues()
            for run_id in chain(
                self._queues[name].tasks, *(poller.own_tasks for poller in self.pollers.of(name))
            )
        ]

    def waiting_attempts(self) -> list[tuple[str, int]]:
        """Return the attempts that wait in a queue that has a worker, as (run id, scheduled event id), regardless of the
        policy.
        """
        return [key for name in self.pollers.served_queues() for key in self._queues[name].attempts]

    def offer(
        self,
        run: Run,
        event_ids: Collection[int],
        now_ns: int,
        sticky: QueuePoller | None = None,
        *,
        late: bool = False,
    ) -> None:
        """Update the backlog for a run's task and for the activities with these event ids.

        `sticky` is the worker that has cached the run. `late` means that no client requested this work: the engine
        loaded the run, or a timer fired.
        """
        task = run.task
        if task is not None and not task.started_event_id and task.available_ns <= now_ns:
            self._offer_task(run, sticky, late)
        elif run.run_id in self._waiting:
            self._waiting.pop(run.run_id).drop(run.run_id)
        for event_id in sorted(event_ids) if len(event_ids) > 1 else event_ids:
            activity = run.activities.get(event_id)
            if (
                activity is not None
                and not activity.started_ns
                and activity.available_ns <= now_ns
                and run.paused is None
                and not activity.paused
            ):
                self._offer_attempt(run, activity, late)
            elif self._offered:
                self._withdraw_attempt((run.run_id, event_id))

    def _offer_task(self, run: Run, sticky: QueuePoller | None, late: bool) -> None:
        run_id, spec = run.run_id, run.started.spec
        waiting = self._queues[spec.task_queue].tasks
        if sticky is not None and self.pollers.shared and not self.versioned and run_id not in waiting:
            waiting = sticky.own_tasks
        sharer = (spec.fairness_key, "" if spec.fairness_key else run.started.workflow_type, "")
        waiting.put(run_id, level_of(run), sharer, late=late, weight=spec.fairness_weight)
        self._waiting[run_id] = waiting
        self.wake(spec.task_queue)

    def _offer_attempt(self, run: Run, activity: OpenActivity, late: bool) -> None:
        key, name = (run.run_id, activity.scheduled_event_id), activity.spec.task_queue
        if key not in self._offered:
            self._offered[key] = name
            own, spec = run.started.spec, activity.spec
            fairness_key = spec.fairness_key or own.fairness_key
            sharer = (fairness_key, "", "")
            if not fairness_key:
                sharer = ("", run.started.workflow_type, activity.scheduled.activity_type)
            weight = spec.fairness_weight or own.fairness_weight
            self._queues[name].attempts.put(key, level_of(run, activity), sharer, late=late, weight=weight)
            self.wake(name)

    def offer_again(self, run: Run, now_ns: int, sticky: QueuePoller | None) -> None:
        """Update the backlog position of the task and the attempts of a run whose priority has changed."""
        for event_id in run.activities:
            self._withdraw_attempt((run.run_id, event_id))
        self.offer(run, frozenset(run.activities), now_ns, sticky)

    def _withdraw_attempt(self, key: tuple[str, int]) -> None:
        name = self._offered.pop(key, None)
        if name is not None:
            self._queues[name].attempts.drop(key)

    def late(self, task_queue: str) -> int:
        """Return the number of late tasks and attempts in a queue's backlog."""
        queue = self._queues[task_queue]
        return queue.tasks.late() + queue.attempts.late()

    def busy(self) -> set[str]:
        """Return the queues with a worker or a backlog."""
        return {
            *self.pollers.served_queues(),
            *(name for name, queue in self._queues.items() if queue.tasks or queue.attempts),
        }

    def sample(self) -> bool:
        """Record the counts of all queues for `rates`, if the sampling interval has passed. Return whether it had.
        Called every second.
        """
        now, samples = monotonic(), self._samples
        if samples and now - samples[-1][0] < _SAMPLE_EVERY:
            return False
        samples.append((now, {name: self._queues[name].counts() for name in self.busy()}))
        while len(samples) > 1 and now - samples[1][0] >= RATE_WINDOW:
            samples.popleft()
        return True

    def rates(self, task_queue: str, activities: bool) -> tuple[float, float]:
        """Return the recent rates per second at which tasks or attempts were added to a queue, and were received by
        workers.

        Additions are computed from the growth of the backlog and the number received, so withdrawn tasks do not count.
        """
        if not self._samples:
            return 0.0, 0.0
        since, then = self._samples[0]
        elapsed = max(monotonic() - since, 1.0)
        before, after = then.get(task_queue, (0, 0, 0, 0)), self._queues[task_queue].counts()
        waiting, received = (after[at] - before[at] for at in ((2, 3) if activities else (0, 1)))
        return max(0, waiting + received) / elapsed, received / elapsed

    def wake(self, task_queue: str) -> None:
        """Mark a queue for assignment by the next `dispatch`, at the latest in the next iteration of the event loop."""
        if not self._will_dispatch and not self._dispatching:
            self._will_dispatch = True
            asyncio.get_running_loop().call_soon(self._dispatch_later)
        self._to_dispatch[task_queue] = None

    def wake_all(self) -> None:
        """Mark all queues that have a worker, as `wake` does."""
        for name in self.pollers.served_queues():
            self.wake(name)

    def _dispatch_later(self) -> None:
        self._will_dispatch = False
        self.dispatch()

    def dispatch(self, poller: QueuePoller | None = None) -> None:
        """Assign the backlogs of all queues that were marked by `wake`. Assigned tasks may mark more queues.

        `poller` is a worker that has returned a slot. It may receive a task even if its queue was not marked.
        """
        if poller is not None:
            queue = poller.queue
            if not (queue.tasks or queue.attempts or poller.own_tasks or self.queried):
                poller = None  # there is no backlog for its slot
        if self._dispatching or not (self._to_dispatch or poller is not None):
            return  # nothing to do, or called during an assignment: the loop below will handle it
        self._dispatching = True
        try:
            if poller is not None and poller.task_queue not in self._to_dispatch:
                self._assign(poller)
            while self._to_dispatch:
                name, _ = self._to_dispatch.popitem()
                pollers = self.pollers.of(name)
                for receiver in pollers:
                    self._assign(receiver)
                if len(pollers) > 1:
                    self._spread(self._queues[name], pollers)
        finally:
            self._dispatching = False

    def _spread(self, queue: TaskQueue, pollers: tuple[QueuePoller, ...]) -> None:
        """Assign tasks to the workers of a queue in rounds, until no worker receives more.

        In each round a worker receives only enough to bring its load level with that of the others.
        """
        load = sum(map(self.pollers.load, pollers))
        while queue.tasks or queue.attempts:
            for poller in pollers:
                self._assign(poller)
            before, load = load, sum(map(self.pollers.load, pollers))
            if load <= before:
                return
