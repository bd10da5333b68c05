"""Task queues: what waits to be taken, and which handles (`QueuePoller`) could take it.

Must not know: what a task is. An offer that has lapsed (taken, timed out, run closed) is withdrawn when what
it is about is offered again; a poller checks what it takes. Pollers are woken by `dispatch`, which is called where an
operation has ended: a poller that waits then takes at once, so that what was done and which poller took it can become
durable together. Invariant: whenever something becomes takeable, the pollers of its queue are woken, at the
latest in the loop's next turn.

Where several handles serve a queue (`shared`: each process with a worker has one), what waits goes to the one that has
least in hand, of those that know its type and have room; a run that a handle knows waits in that handle's own queue.
So a handle never looks through what only others may take.

What waits on a queue is shared fairly (`PriorityQueue`). While the engine has more to do than it can at once, what is late or in
a long line waits, and the rest goes first.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator
from itertools import chain
from time import monotonic
from typing import Protocol

from hourglass._contract.ids import new_id
from hourglass._embedded.matching.priority_queue import PriorityQueue
from hourglass._embedded.transitions.priorities import level_of
from hourglass._embedded.transitions.run import OpenActivity, Run
from hourglass._evaluator.specs import WorkerDeploymentVersion


class QueuePoller(Protocol):
    """What the engine needs of a handle, the poller of one task queue for one worker."""

    @property
    def own_tasks(self) -> PriorityQueue[str]:
        """The runs that it knows and whose tasks wait, where other handles serve its queue, too."""
        ...

    @property
    def load(self) -> float:
        """How many tasks and attempts its worker has in hand, or will have in a moment, weighed by how fast it is."""
        ...

    @property
    def process_id(self) -> int:
        """The process that its worker is in."""
        ...

    @property
    def pid_namespace(self) -> int:
        """The PID namespace that its process is in, 0 if unknown."""
        ...

    @property
    def process_key(self) -> int:
        """Which process that is: 0 for this one, for others a number of their own."""
        ...

    @property
    def slots_used(self) -> tuple[int, int]:
        """How many slots of its worker are used: by workflow tasks, and by attempts."""
        ...

    @property
    def has_task_room(self) -> bool:
        """Whether it would take one more workflow task now."""
        ...

    @property
    def has_attempt_room(self) -> bool:
        """Whether it would take one more attempt of an activity now."""
        ...

    @property
    def workflow_types(self) -> frozenset[str] | None:
        """The workflow types that its worker knows; None: it may know any."""
        ...

    @property
    def activity_types(self) -> frozenset[str] | None:
        """The same for activities."""
        ...

    @property
    def task_queue(self) -> str:
        """The queue that it serves."""
        ...

    @property
    def identity(self) -> str:
        """The identity of its worker, as events record it."""
        ...

    @property
    def version(self) -> WorkerDeploymentVersion | None:
        """Which version it is; None for a worker without one."""
        ...

    @property
    def takes_workflows(self) -> bool:
        """Whether it takes workflow tasks now."""
        ...

    @property
    def takes_activities(self) -> bool:
        """Whether it takes attempts of activities now."""
        ...

    def is_busy(self, run_id: str) -> bool:
        """Whether an activation of this run is out."""
        ...

    def wake(self) -> None:
        """Something may be there to take."""
        ...

    def closed(self, run_id: str) -> None:
        """A run that the poller may have cached has closed."""
        ...

    def parked(self, run_id: str) -> None:
        """What the poller has of this run rests on something that cannot be stored."""
        ...

    def moved(self, run_id: str) -> None:
        """A run that the poller may have cached has gone to a worker of another version."""
        ...

    def realign(self) -> None:
        """Time has jumped: what waits for a time in the poller has to be set anew."""
        ...

    def cancel_attempt(self, token: bytes, reason: str, rests_on: int) -> None:
        """Stop an attempt that this poller holds, because of the change of this number."""
        ...


FEW_TASKS = 32
"""A handle whose worker has so many workflow tasks in hand takes no more of what can wait: tasks are short, and each more is
one that others must wait for.
"""


class TakenCount:
    """How many workflow tasks and attempts of activities the handles of a queue have taken so far."""

    __slots__ = ("attempts", "tasks")

    def __init__(self) -> None:
        self.tasks = 0
        self.attempts = 0


RATE_WINDOW = 30.0
"""Rates are of so many last seconds, as a server's are."""

_SAMPLE_EVERY = 5.0


class DispatchPolicy:
    """What an engine leaves open, as every engine but that of a test environment decides it: a worker may take all that waits
    on its queue, all that is due at the same moment happens then, and ids of runs are random.
    """

    is_selective = False
    """Whether `may_take` has to be asked."""

    def may_take(self, run_id: str, scheduled_event_id: int) -> bool:
        """Whether an activity's attempt, or a run's task (event id 0), may be taken now."""
        return True

    def due_now(self, due: list[int]) -> list[int]:
        """Which of a run's timers and timeouts that are due at the same moment happen now, in this order; the others are next."""
        return due

    new_run_id: Callable[[], str] = staticmethod(new_id)


class TaskQueues:
    """The task queues: tasks and attempts that wait on each, the most urgent first, and the handles that poll it."""

    def __init__(self, policy: DispatchPolicy | None = None) -> None:
        self.policy = DispatchPolicy() if policy is None else policy
        self._pollers: dict[str, list[QueuePoller]] = defaultdict(list)
        self._tasks: dict[str, PriorityQueue[str]] = defaultdict(PriorityQueue)
        self._attempts: dict[str, PriorityQueue[tuple[str, int]]] = defaultdict(PriorityQueue)
        self._offered: dict[tuple[str, int], str] = {}
        self._taken: dict[str, TakenCount] = defaultdict(TakenCount)
        self._samples: deque[tuple[float, dict[str, tuple[int, ...]]]] = deque()
        self.to_dispatch: dict[str, None] = {}
        """The queues whose pollers are to look."""
        self._dispatching = False
        self._will_dispatch = False
        self.versioned = False
        """Whether workers have versions: then a handle may not take all that waits on its queue."""
        self.shared = False
        """Whether a queue has several handles: then it matters which of them takes what waits."""
        self.uniform = True
        """Whether the handles of each queue know the same types: then one that may not take the first may not take another."""
        self.is_behind: Callable[[], bool] | None = None
        """Says whether the engine has more to do than it can at once: then what can wait does, and the rest goes first.
        None: nothing is held back.
        """
        self.when_caught_up: Callable[[Callable[[], None]], None] = lambda told: None
        """Has a function called once it is behind no more."""
        self._held_back: dict[str, None] = {}
        self.on_join: Callable[[], None] = lambda: None
        """Called when a handle begins to serve a queue."""
        self.handicap = 1.0
        """How much heavier work weighs in the process of the engine than in others, which have all their time for it; 0: it
        weighs nothing there, and others get what there is no room for.
        """

    def join(self, poller: QueuePoller) -> None:
        """A handle begins to serve its queue."""
        self._pollers[poller.task_queue].append(poller)
        self._count()
        self.on_join()

    def leave(self, poller: QueuePoller) -> None:
        """A handle takes no more: what waited for it alone waits for the others."""
        if poller in self._pollers[poller.task_queue]:
            self._pollers[poller.task_queue].remove(poller)
            self._count()
        for run_id in tuple(poller.own_tasks):
            self.release(poller, run_id)

    def _count(self) -> None:
        several = [pollers for pollers in self._pollers.values() if len(pollers) > 1]
        self.shared = bool(several)
        self.uniform = not several or all(
            len({(poller.workflow_types, poller.activity_types) for poller in pollers}) <= 1
            for pollers in several
        )
        if not self.shared:  # from now on all that waits on a queue stands in one place
            for poller in chain(*self._pollers.values()):
                for run_id in tuple(poller.own_tasks) if poller.own_tasks else ():
                    self.release(poller, run_id)

    def release(self, poller: QueuePoller, run_id: str) -> None:
        """A handle knows a run no more: its task, if one waits, is for any handle of the queue."""
        share = poller.own_tasks.get(run_id)
        if share is not None:
            late = run_id in share.late
            poller.own_tasks.drop(run_id)
            self._tasks[poller.task_queue].put(
                run_id, share.level, share.sharer, late=late, weight=1 / share.cost
            )
            self.wake(poller.task_queue)

    # --- which of several handles ---------------------------------------------------------------------------

    def is_for_task(self, poller: QueuePoller, workflow_type: str) -> bool:
        """Whether this handle, of all that serve its queue, is to take a task that any of them may take."""
        knows, load = _knows(poller.workflow_types, workflow_type), poller.load
        for other in self._pollers[poller.task_queue]:
            if other is not poller and _knows(other.workflow_types, workflow_type):
                if not knows:
                    return False  # a worker that knows the type will come to it
                if other.load < load and other.has_task_room:
                    return False
        return True

    def is_for_attempt(self, poller: QueuePoller, activity_type: str) -> bool:
        """The same for an attempt of an activity."""
        knows, load = _knows(poller.activity_types, activity_type), poller.load
        for other in self._pollers[poller.task_queue]:
            if other is not poller and _knows(other.activity_types, activity_type):
                if not knows:
                    return False
                if other.load < load and other.has_attempt_room:
                    return False
        return True

    def is_for_type(self, poller: QueuePoller, workflow_type: str) -> bool:
        """Whether a handle knows a workflow type, or no other handle of its queue does either."""
        return _knows(poller.workflow_types, workflow_type) or not any(
            _knows(other.workflow_types, workflow_type) for other in self._pollers[poller.task_queue]
        )

    def share(self, poller: QueuePoller, room: int) -> int:
        """How many attempts a handle may take at once, ahead of those that wait: so many that it has hardly more in hand
        than the others. Work that stays with the process which asked for it needs no other.
        """
        others = [
            other.load
            for other in self._pollers[poller.task_queue]
            if other is not poller and other.has_attempt_room
        ]
        if not others or not self.handicap:  # what is light is not worth sending to another process
            return room
        return min(room, int(max(0.0, min(others)) * 1.25 - max(0.0, poller.load)) + 1)

    def pollers(self, task_queue: str) -> tuple[QueuePoller, ...]:
        """The handles that serve a queue."""
        return tuple(self._pollers[task_queue])

    def all_pollers(self) -> tuple[QueuePoller, ...]:
        """The handles of all queues."""
        return tuple(chain(*self._pollers.values()))

    def served(self) -> tuple[str, ...]:
        """The queues that a handle serves."""
        return tuple(sorted(queue for queue, pollers in self._pollers.items() if pollers))

    def tasks(self, poller: QueuePoller) -> Iterator[str]:
        """Runs whose tasks wait for this handle or for any of its queue, the most urgent first. A caller that takes one
        stops looking: the offers change under the iterator.
        """
        policy, waiting, own = self.policy, self._tasks[poller.task_queue], poller.own_tasks
        if self.is_behind is not None and (
            poller.slots_used[0] >= FEW_TASKS or self._is_held(poller.task_queue)
        ):
            return chain(own.urgent(), waiting.urgent())
        if own:
            return chain(own, waiting)
        return (
            (each for each in waiting if policy.may_take(each, 0)) if policy.is_selective else iter(waiting)
        )

    def attempts(self, task_queue: str) -> Iterator[tuple[str, int]]:
        """Activities whose attempts wait, as (run id, scheduled event id); the same holds."""
        policy, waiting = self.policy, self._attempts[task_queue]
        if self.is_behind is not None and self._is_held(task_queue):
            return waiting.urgent()
        return (each for each in waiting if policy.may_take(*each)) if policy.is_selective else iter(waiting)

    def _is_held(self, task_queue: str) -> bool:
        """Whether what can wait does so now; then it is looked for again when the engine has caught up."""
        if self.is_behind is None or not self.is_behind():
            return False
        if not self._held_back:
            self.when_caught_up(self._wake_held_back)
        self._held_back[task_queue] = None
        return True

    def _wake_held_back(self) -> None:
        queues, self._held_back = self._held_back, {}
        for queue in queues:
            self.wake(queue)

    @property
    def is_free(self) -> bool:
        """Whether things may be taken at once, without having waited here: neither the policy nor versions decide what is
        taken when, or by which handle.
        """
        return not self.versioned and not self.policy.is_selective

    def all_tasks(self, task_queue: str) -> PriorityQueue[str]:
        """The runs whose tasks wait on a queue, whatever the policy says, now and later."""
        return self._tasks[task_queue]

    def all_attempts(self, task_queue: str) -> PriorityQueue[tuple[str, int]]:
        """The same for attempts of activities."""
        return self._attempts[task_queue]

    def waiting_tasks(self) -> list[str]:
        """Runs whose tasks wait on a queue that a handle serves, whatever the policy says."""
        return [
            run_id
            for queue, pollers in self._pollers.items()
            if pollers
            for run_id in chain(self._tasks[queue], *(poller.own_tasks for poller in pollers))
        ]

    def waiting_attempts(self) -> list[tuple[str, int]]:
        """The same for attempts of activities, as (run id, scheduled event id)."""
        return [key for queue, pollers in self._pollers.items() if pollers for key in self._attempts[queue]]

    def offer(
        self,
        run: Run,
        event_ids: Collection[int],
        now_ns: int,
        sticky: QueuePoller | None = None,
        *,
        late: bool = False,
    ) -> None:
        """Bring a run's task and these of its activities up to date. `sticky` is the handle that knows the run; `late`:
        the engine brought it in, or a timer did, no client.
        """
        queue, task = run.started.spec.task_queue, run.task
        if task is not None and not task.started_event_id and task.available_ns <= now_ns:
            if sticky is None or not self.shared or self.versioned or run.run_id in self._tasks[queue]:
                waiting = self._tasks[queue]
            else:
                waiting = sticky.own_tasks
            spec = run.started.spec
            sharer = (spec.fairness_key, "" if spec.fairness_key else run.started.workflow_type, "")
            waiting.put(run.run_id, level_of(run), sharer, late=late, weight=spec.fairness_weight)
            self.wake(queue)
        elif run.run_id in self._tasks[queue]:
            self._tasks[queue].drop(run.run_id)
        elif sticky is not None and sticky.own_tasks:
            sticky.own_tasks.drop(run.run_id)
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

    def _offer_attempt(self, run: Run, activity: OpenActivity, late: bool) -> None:
        key, queue = (run.run_id, activity.scheduled_event_id), activity.spec.task_queue
        if key not in self._offered:
            self._offered[key] = queue
            own, spec = run.started.spec, activity.spec
            fairness_key = spec.fairness_key or own.fairness_key
            sharer = (fairness_key, "", "")
            if not fairness_key:
                sharer = ("", run.started.workflow_type, activity.scheduled.activity_type)
            weight = spec.fairness_weight or own.fairness_weight
            self._attempts[queue].put(key, level_of(run, activity), sharer, late=late, weight=weight)
            self.wake(queue)

    def took_attempt(self, run_id: str, event_id: int) -> None:
        """A handle has taken this: it waits no more."""
        self._withdraw_attempt((run_id, event_id))

    def offer_anew(self, run: Run, now_ns: int, sticky: QueuePoller | None) -> None:
        """How urgent a run is has changed: what waits of it takes its new place."""
        for event_id in run.activities:
            self._withdraw_attempt((run.run_id, event_id))
        self.offer(run, frozenset(run.activities), now_ns, sticky)

    def _withdraw_attempt(self, key: tuple[str, int]) -> None:
        queue = self._offered.pop(key, None)
        if queue is not None:
            self._attempts[queue].drop(key)

    # --- how busy they are ----------------------------------------------------------------------------------

    def taken(self, task_queue: str) -> TakenCount:
        """Where the handles of a queue count what they take."""
        return self._taken[task_queue]

    def oldest_tasks(self, task_queue: str) -> list[str]:
        """The runs whose tasks have waited longest: one of each priority and sharer."""
        return self._tasks[task_queue].heads()

    def oldest_attempts(self, task_queue: str) -> list[tuple[str, int]]:
        """The attempts that have waited longest: one of each priority and sharer."""
        return self._attempts[task_queue].heads()

    def late(self, task_queue: str) -> int:
        """How much waits on a queue that the engine has brought in late."""
        return self._tasks[task_queue].late() + self._attempts[task_queue].late()

    def busy(self) -> set[str]:
        """The queues that a handle serves, or on which something waits."""
        known = (self._pollers, self._tasks, self._attempts)
        return {queue for each in known for queue, waiting in each.items() if waiting}

    def sample(self) -> bool:
        """Note now and then what was taken and what waits, for `rates`. Called every second; whether it was time to."""
        now, samples = monotonic(), self._samples
        if samples and now - samples[-1][0] < _SAMPLE_EVERY:
            return False
        samples.append((now, {queue: self._counted(queue) for queue in self.busy()}))
        while len(samples) > 1 and now - samples[1][0] >= RATE_WINDOW:
            samples.popleft()
        return True

    def rates(self, task_queue: str, activities: bool) -> tuple[float, float]:
        """How many tasks a second came to a queue, and how many were taken, of late. What came is what was taken and what waits
        more than before: so nothing is counted where tasks come, and one that was withdrawn has not come.
        """
        if not self._samples:
            return 0.0, 0.0
        since, then = self._samples[0]
        lasted = max(monotonic() - since, 1.0)
        before, after = then.get(task_queue, (0, 0, 0, 0)), self._counted(task_queue)
        waiting, taken = (after[at] - before[at] for at in ((2, 3) if activities else (0, 1)))
        return max(0, waiting + taken) / lasted, taken / lasted

    def _counted(self, queue: str) -> tuple[int, ...]:
        taken = self._taken[queue]
        return len(self._tasks[queue]), taken.tasks, len(self._attempts[queue]), taken.attempts

    # --- waking ---------------------------------------------------------------------------------------------

    def wake(self, task_queue: str) -> None:
        """The handles of a queue are to look what there is, at the next `dispatch` or in the loop's next turn."""
        if not self._will_dispatch and not self._dispatching:
            self._will_dispatch = True
            asyncio.get_running_loop().call_soon(self._dispatch_later)
        self.to_dispatch[task_queue] = None

    def wake_all(self) -> None:
        """All handles are to look."""
        for queue in self._pollers:
            self.wake(queue)

    def _dispatch_later(self) -> None:
        self._will_dispatch = False
        self.dispatch()

    def dispatch(self) -> None:
        """Wake the handles that are to look, now. What they take may wake others."""
        if self._dispatching or not self.to_dispatch:
            return  # nothing to do, or called by a handle that takes: the loop below goes on
        self._dispatching = True
        try:
            while self.to_dispatch:
                queue, _ = self.to_dispatch.popitem()
                pollers = self.pollers(queue)
                for poller in pollers:
                    poller.wake()
                if len(pollers) > 1:
                    self._spread(queue, pollers)
        finally:
            self._dispatching = False

    def _spread(self, queue: str, pollers: tuple[QueuePoller, ...]) -> None:
        """Let the handles of a queue take in turns, until none takes more. A handle that was woken takes no more than
        brings it level with the others, and they with it.
        """
        load = sum(poller.load for poller in pollers)
        while self._tasks[queue] or self._attempts[queue]:
            for poller in pollers:
                poller.wake()
            before, load = load, sum(poller.load for poller in pollers)
            if load <= before:
                return


def _knows(types: frozenset[str] | None, name: str) -> bool:
    return types is None or name in types
