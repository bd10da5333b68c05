"""Work from a handle one item at a time (`Stepper`), for whoever chooses the order: a slot is granted for each call alone.

Must not know: which item is chosen, and why.
"""

from __future__ import annotations

from hourglass._contract.handle import ActivityItem
from hourglass._embedded.activations.handle import EngineHandle
from hourglass._evaluator.events import Activation


class Stepper:
    """Takes single items from a handle that was neither started nor attended."""

    def __init__(self, handle: EngineHandle) -> None:
        self._handle = handle
        self._engine = handle.engine
        self._poller = handle.poller

    def next_activation(self) -> Activation | None:
        """Take one activation that may leave now, if there is one. Raises `HandleBroken`."""
        while (activation := self._handle.next_activation()) is None and self._assign_task():
            pass
        return activation

    def next_activity(self) -> ActivityItem | None:
        """Take one activity task or cancellation that may leave now, if there is one. Raises `HandleBroken`."""
        while (item := self._handle.next_activity()) is None and self._assign_attempt():
            pass
        return item

    def _assign_task(self) -> bool:
        """Assign at most one task, or the queries of one run. Return whether one was assigned."""
        poller = self._poller
        before = poller.queue.tasks_received, len(poller.active_runs)
        granted, poller.task_slots = poller.task_slots, min(before[1] + 1, poller.task_limit)
        try:
            self._engine.tasks.assign(poller)
        finally:
            poller.task_slots = granted
        return (poller.queue.tasks_received, len(poller.active_runs)) != before

    def _assign_attempt(self) -> bool:
        """Assign at most one attempt. Return whether one was assigned."""
        poller = self._poller
        before = len(poller.attempts)
        granted, poller.attempt_slots = poller.attempt_slots, min(before + 1, poller.attempt_limit)
        try:
            self._engine.attempts.assign(poller)
        finally:
            poller.attempt_slots = granted
        return len(poller.attempts) != before
