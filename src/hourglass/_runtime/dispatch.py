"""From a poll to an answer: gives each polled item to a job of its own, and knows who is at what.

Jobs live under the Application, outside the Subsystem: a Worker or a holder that dies takes none of them along. If nobody is
registered any more the answer is logged and dropped, and the engine delivers again. Answers go through the holder that was last
in charge, also while it is dead: the tables that it works on outlive it.
"""

from __future__ import annotations

import asyncio

from hourglass._bridge.holder import BridgeHolder, Ticket, WorkerNotRegistered
from hourglass._contract.handle import ActivityCancel, ActivityItem
from hourglass._engine.events import Activation
from hourglass._runtime.services import QueueServices
from hourglass._runtime.works import Evaluation, Execution, LocalExecution, Work
from hourglass._supervision import TaskSupervisor

_STOP = 1.0  # for a task that is told to end
_SETTLE = 5.0  # for the answers that the dead owe


class Dispatch:
    """Gives polled items to jobs."""

    holder: BridgeHolder
    """The holder that was last in charge, dead or alive; set before anything is polled from it."""

    def __init__(self, evaluators: TaskSupervisor, executors: TaskSupervisor) -> None:
        self.works: dict[int, Work] = {}
        """Who is at what was handed out, by the token of its ticket; whoever has answered strikes itself out."""
        self._evaluators = evaluators
        self._executors = executors

    def activation(self, services: QueueServices, ticket: Ticket[Activation]) -> None:
        """Have an activation evaluated and answered. Raises `NotRunning` while the evaluators' supervisor is down."""
        evaluation = self._evaluators.spawn_job(Evaluation, "evaluation")
        if not ticket.acknowledge():
            evaluation.drop()
            return
        self.works[ticket.token] = evaluation
        evaluation.begin(self, services, ticket)

    def activity(self, services: QueueServices, ticket: Ticket[ActivityItem]) -> None:
        """Have an attempt made and reported, or an attempt that runs here cancelled. Raises as `activation` does."""
        item = ticket.item
        if isinstance(item, ActivityCancel):
            if ticket.acknowledge():
                services.executor.cancel(item.token, item.reason, ticket.generation)
            return
        kind = LocalExecution if item.is_local else Execution
        execution = self._executors.spawn_job(kind, "attempt")
        if not ticket.acknowledge():
            execution.drop()
            return
        self.works[ticket.token] = execution
        execution.begin(self, services, ticket, item)

    def evict(self, queue: str, generation: int, run_id: str) -> None:
        """Have a run evicted; a handle that is gone has evicted everything."""
        try:
            self.holder.request_eviction(queue, generation, run_id)
        except WorkerNotRegistered:
            pass

    # --- looking, and the end ----------------------------------------------------------------------------------------

    async def finish(self, queue: str) -> None:
        """No handle of this queue is left: end what still works for it, and wait, but not for ever, until all is answered."""
        for work in self._of(queue):
            work.begin_stop(_STOP)
        for work in self._of(queue):
            await work.wait_dead()
        mending = [work.mending for work in self._of(queue) if work.mending is not None]
        if mending:
            _, unanswered = await asyncio.wait(mending, timeout=_SETTLE)
            for task in unanswered:
                task.cancel()

    def _of(self, queue: str) -> list[Work]:
        return [work for work in self.works.values() if work.services.queue == queue]
