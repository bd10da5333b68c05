"""The attempts of activities of one worker (`WorkerAttempts`): on their way to it, and when they end with it.

Must not know: workflow tasks, local activities, which attempts a worker receives, how an attempt ends. Invariants: an attempt
uses a slot of its worker until it has ended, or was given back or up; items leave in the order in which they came, and only when
the change that they depend on is durable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from hourglass._contract.handle import ActivityCancel, ActivityItem, ActivityTask
from hourglass._embedded.engine import Engine
from hourglass._embedded.matching.pollers import QueuePoller
from hourglass._embedded.runs.outbox import OutboxQueue
from hourglass._embedded.runs.run import AttemptToken


class WorkerAttempts:
    """The attempts of one worker. `kept` has the items that have not left the engine. `changed` is called when one may leave."""

    def __init__(self, engine: Engine, poller: QueuePoller, changed: Callable[[], object]) -> None:
        self.kept: OutboxQueue[ActivityItem] = OutboxQueue(engine.outbox, changed)
        self._attempts = engine.attempts
        self._poller = poller

    def next_item(self) -> ActivityItem | None:
        """Remove and return the next attempt or cancellation that may leave now, if there is one."""
        while (item := self.kept.next()) is not None:
            attempt = self._poller.attempts.get(item.token)
            if attempt is not None:
                return self._attempts.hand_out(item, attempt) if isinstance(item, ActivityTask) else item
        return None

    def unsent(self) -> set[bytes]:
        """Return the tokens of the attempts that the worker has not received."""
        return {item.token for item, _ in self.kept.items if isinstance(item, ActivityTask)}

    def cancel(self, token: bytes, reason: str, depends_on: int) -> None:
        """Ask the worker to stop an attempt, or forget one that it has not received and that counts no more."""
        if reason != "CANCELLED" and token in self.unsent():
            self.kept.items = deque(entry for entry in self.kept.items if entry[0].token != token)
            del self._poller.attempts[token]
        else:
            self.kept.put(ActivityCancel(token, reason), depends_on)

    def stop_waiting(self, run_id: str) -> None:
        """Release the items of a run whose changes will never be durable."""
        self.kept.items = deque(
            (item, 0 if AttemptToken.decode(item.token).run_id == run_id else depends_on)
            for item, depends_on in self.kept.items
        )

    def give_back(self) -> None:
        """Offer the attempts that the worker has not received to others."""
        items, self.kept.items = self.kept.items, deque()
        for item, depends_on in items:
            if isinstance(item, ActivityTask):
                attempt = self._poller.attempts.pop(item.token, None)
                if attempt is not None:
                    self._attempts.give_back(attempt.token)
            else:
                self.kept.items.append((item, depends_on))

    def stop(self) -> None:
        """Ask the worker to stop all attempts."""
        self.kept.items.extend(
            (ActivityCancel(token, "WORKER_SHUTDOWN"), 0) for token in self._poller.attempts
        )

    def lose(self) -> None:
        """Record the loss of the attempts that the worker has, because its process has ended; offer the others again."""
        self.give_back()
        attempts = list(self._poller.attempts.values())
        self._clear()
        for attempt in attempts:
            self._attempts.lose(attempt.token)

    def give_up(self) -> None:
        """Forget all attempts, including those that the worker has."""
        for attempt in self._poller.attempts.values():
            self._attempts.release(attempt.token)
        self._clear()

    def _clear(self) -> None:
        self._poller.attempts.clear()
        self.kept.items.clear()
