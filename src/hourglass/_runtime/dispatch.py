"""From a poll to an answer: gives each polled item to a job of its own, and knows who is at what.

Jobs live under the Application, outside the Subsystem: a Worker or a holder that dies takes none of them along. If nobody is
registered any more the answer is logged and dropped, and the engine delivers again. Answers go through the holder that was last
in charge, also while it is dead: the tables that it works on outlive it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable

from hourglass._bridge.handle import ActivityCancel, ActivityItem
from hourglass._bridge.holder import BridgeHolder, Ticket, WorkerNotRegistered
from hourglass._engine.events import Activation
from hourglass._runtime.services import QueueServices
from hourglass._runtime.works import Evaluation, Execution, Work
from hourglass._supervision import NotRunning, TaskSupervisor

_STOP = 1.0  # for a task that is told to end
_SETTLE = 10.0  # for the answers that the dead owe


class Dispatch:
    """Gives polled items to jobs. `holder` gives the holder that was last in charge, or raises `NotRunning`."""

    def __init__(
        self, evaluators: TaskSupervisor, executors: TaskSupervisor, holder: Callable[[], BridgeHolder]
    ) -> None:
        self.holder = holder
        self._evaluators = evaluators
        self._executors = executors
        self._works: dict[Hashable, Work] = {}

    def activation(self, services: QueueServices, ticket: Ticket[Activation]) -> None:
        """Have an activation evaluated and answered. Raises `NotRunning` while the evaluators' supervisor is down."""
        evaluation = Evaluation(self, services, ticket)
        evaluation.job = job = self._evaluators.spawn_job("evaluation", evaluation.ended)
        if not ticket.acknowledge():
            job.drop()
            return
        self._works[ticket.token] = evaluation
        evaluation.begin()

    def activity(self, services: QueueServices, ticket: Ticket[ActivityItem]) -> None:
        """Have an attempt made and reported, or an attempt that runs here cancelled. Raises as `activation` does."""
        item = ticket.item
        if isinstance(item, ActivityCancel):
            if ticket.acknowledge():
                services.executor.cancel(item.token, item.reason)
            return
        execution = Execution(self, services, ticket.generation, item)
        execution.job = job = self._executors.spawn_job("attempt", execution.ended)
        if not ticket.acknowledge():
            job.drop()
            return
        self._works[execution.key] = execution
        execution.begin()

    # --- what works ask for ------------------------------------------------------------------------------------------

    def strike(self, work: Work) -> None:
        """It is answered."""
        if self._works.get(work.key) is work:
            del self._works[work.key]

    def evict(self, queue: str, generation: int, run_id: str) -> None:
        """Have a run evicted; a handle that is gone has evicted everything."""
        try:
            self.holder().request_eviction(queue, generation, run_id)
        except (WorkerNotRegistered, NotRunning):
            pass

    # --- looking, and the end ----------------------------------------------------------------------------------------

    def has_activation(self, token: int) -> bool:
        """Whether somebody is at the activation that was handed out under this token."""
        return token in self._works

    def has_attempt(self, generation: int, token: bytes) -> bool:
        """Whether somebody is at this attempt."""
        return (generation, token) in self._works

    async def finish(self, queue: str) -> None:
        """No handle of this queue is left: end what still works for it, and wait, but not for ever, until all is answered."""
        for work in self._of(queue):
            work.job.begin_stop(_STOP)
        for work in self._of(queue):
            await work.job.wait_dead()
        mending = [work.mending for work in self._of(queue) if work.mending is not None]
        if mending:
            _, unanswered = await asyncio.wait(mending, timeout=_SETTLE)
            for task in unanswered:
                task.cancel()

    def _of(self, queue: str) -> list[Work]:
        return [work for work in self._works.values() if work.services.queue == queue]
