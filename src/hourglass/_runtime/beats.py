"""Heartbeats that were left to us: an attempt that promised no progress of its own is said to live, from time to time.

One timer looks at all attempts a few times in an interval, for most are over long before their first beat: an attempt costs
nothing here. Belongs to the control loop. Invariant: while attempts are in flight none of those left to us goes without a
beat for longer than an interval and a look.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from hourglass._contract.handle import ActivityTask
from hourglass._runtime.attempts import Attempt
from hourglass._runtime.resolver import Resolver
from hourglass.activity._options import LIVENESS_TIMEOUT

_LOOKS = 8  # in an interval


class Beats:
    """Beats for the attempts in a table that is somebody else's."""

    def __init__(self, interval: float, attempts: Mapping[Any, Attempt], resolver: Resolver) -> None:
        self.timer: asyncio.TimerHandle | None = None
        self._interval = interval
        self._attempts = attempts
        self._resolver = resolver

    def begin(self) -> None:
        """Somebody is in flight: look from now on, until nobody is."""
        self.timer = asyncio.get_running_loop().call_later(self._interval / _LOOKS, self._look)

    def _look(self) -> None:
        self.timer = None
        if self._attempts:
            self.begin()
        now = time.monotonic()
        for attempt in list(self._attempts.values()):
            if now - attempt.told_at >= self._interval and self._is_left_to_us(attempt.task):
                attempt.beat_again(now)

    def _is_left_to_us(self, task: ActivityTask) -> bool:
        """Whether the author promised no progress, here or in the call."""
        if task.is_local or task.heartbeat_timeout not in (0.0, LIVENESS_TIMEOUT):
            return False
        definition = self._resolver.known_activity(task.activity_type)
        return definition is None or definition.beats_by_itself
