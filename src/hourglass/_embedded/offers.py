"""Task queues: what waits to be taken, and who could take it.

Must not know: what a task is. An offer that has lapsed (taken, timed out, run closed) is withdrawn when its
run is offered again; a taker checks what it takes. Invariant: whenever something becomes takeable, the takers
of its queue are woken.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Protocol

from hourglass._embedded.run import Run


class Taker(Protocol):
    """What the engine needs of a handle."""

    @property
    def task_queue(self) -> str:
        """The queue that it serves."""
        ...

    @property
    def identity(self) -> str:
        """Who it is."""
        ...

    @property
    def takes_workflows(self) -> bool:
        """Whether it takes workflow tasks now."""
        ...

    @property
    def has_out(self) -> bool:
        """Whether its worker has something in hand."""
        ...

    def is_busy(self, run_id: str) -> bool:
        """Whether an activation of this run is out."""
        ...

    def wake(self) -> None:
        """Something may be there to take."""
        ...

    def closed(self, run_id: str) -> None:
        """A run that the taker may have cached has closed."""
        ...

    def cancel_attempt(self, token: bytes, reason: str) -> None:
        """Stop an attempt that this taker holds."""
        ...


class Offers:
    """What waits, by queue, in order of arrival."""

    def __init__(self) -> None:
        self._takers: dict[str, list[Taker]] = defaultdict(list)
        self._tasks: dict[str, dict[str, None]] = defaultdict(dict)
        self._attempts: dict[str, dict[tuple[str, int], None]] = defaultdict(dict)
        self._offered: dict[str, set[tuple[str, int]]] = {}

    def join(self, taker: Taker) -> None:
        """A handle begins to serve its queue."""
        self._takers[taker.task_queue].append(taker)

    def leave(self, taker: Taker) -> None:
        """A handle takes no more."""
        if taker in self._takers[taker.task_queue]:
            self._takers[taker.task_queue].remove(taker)

    def takers(self, task_queue: str) -> tuple[Taker, ...]:
        """Who serves a queue."""
        return tuple(self._takers[task_queue])

    def tasks(self, task_queue: str) -> Iterator[str]:
        """Runs whose tasks wait. Whoever takes one stops looking: the offers change under the iterator."""
        return iter(self._tasks[task_queue])

    def attempts(self, task_queue: str) -> Iterator[tuple[str, int]]:
        """Activities whose attempts wait, as (run id, scheduled event id); the same holds."""
        return iter(self._attempts[task_queue])

    def any_for_takers(self) -> bool:
        """Whether something waits on a queue that somebody serves, or is in a worker's hands."""
        return any(
            self._tasks[queue] or self._attempts[queue] or any(taker.has_out for taker in takers)
            for queue, takers in self._takers.items()
            if takers
        )

    def offer(self, run: Run, now_ns: int) -> None:
        """Bring the offers of a run up to date."""
        queue = run.started.task_queue
        task = run.task
        if task is not None and not task.started_event_id and task.available_ns <= now_ns:
            self._tasks[queue][run.run_id] = None
        else:
            self._tasks[queue].pop(run.run_id, None)
        self._offer_attempts(run, now_ns)
        self.wake(queue)

    def wake(self, task_queue: str) -> None:
        """Wake those who serve a queue."""
        for taker in self.takers(task_queue):
            taker.wake()

    def _offer_attempts(self, run: Run, now_ns: int) -> None:
        wanted = {
            (activity.spec.task_queue, scheduled)
            for scheduled, activity in run.activities.items()
            if not activity.started_ns and activity.available_ns <= now_ns
        }
        offered = self._offered.get(run.run_id, set())
        for queue, scheduled in offered - wanted:
            self._attempts[queue].pop((run.run_id, scheduled), None)
        for queue, scheduled in sorted(wanted - offered, key=lambda each: each[1]):
            self._attempts[queue][run.run_id, scheduled] = None
            self.wake(queue)
        if wanted:
            self._offered[run.run_id] = wanted
        else:
            self._offered.pop(run.run_id, None)
