"""Heartbeats that the worker sends automatically for attempts of activities without a heartbeat timeout.

An automatic heartbeat repeats the last details that the activity reported, because a heartbeat without details
would erase them on the server.

Invariant: the time between two automatic heartbeats of an attempt in progress is at most nine eighths of the
interval.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hourglass._contract.handle import ActivityTask
from hourglass._worker.activities.attempts import Attempt, AttemptKey, TimerHandle, Timers
from hourglass.activity import ActivityDefinition
from hourglass.activity._options import LIVENESS_TIMEOUT

_CHECKS = 8  # the maximum number of checks per interval


class AutomaticHeartbeats:
    """The sender of the automatic heartbeats of all attempts of an executor, with a single timer. Must be used
    on the control loop.

    Most attempts end long before their first heartbeat, so starting an attempt does no work here while the
    timer is armed.
    """

    def __init__(
        self,
        interval: float,
        attempts: Mapping[AttemptKey, Attempt],
        definition_of: Callable[[ActivityTask], ActivityDefinition | None],
        timers: Timers,
    ) -> None:
        self.timer: TimerHandle | None = None
        self._interval = interval
        self._attempts = attempts
        self._definition_of = definition_of
        self._timers = timers

    def watch(self, attempt: Attempt) -> None:
        """Arm the timer for an attempt that has just started. Called if the timer is not armed."""
        if not attempt.over and self._is_automatic(attempt.task):
            self.timer = self._timers.call_later(self._interval, self._check)

    def stop(self) -> None:
        """Disarm the timer. Called when no attempt is in progress."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _check(self) -> None:
        self.timer = None
        now = self._timers.time()
        earliest: float | None = None
        for attempt in list(self._attempts.values()):
            if not self._is_automatic(attempt.task):
                continue
            if now - attempt.heartbeat_at >= self._interval:
                attempt.repeat_heartbeat(now)
            due = attempt.heartbeat_at + self._interval
            earliest = due if earliest is None else min(earliest, due)
        if earliest is not None and self.timer is None:
            self.timer = self._timers.call_later(max(earliest - now, self._interval / _CHECKS), self._check)

    def _is_automatic(self, task: ActivityTask) -> bool:
        """Whether the author has set no heartbeat timeout, neither for the activity nor in the call."""
        if task.is_local or task.spec.heartbeat_timeout not in (0.0, LIVENESS_TIMEOUT):
            return False
        definition = self._definition_of(task)
        return definition is None or definition.sends_heartbeats
