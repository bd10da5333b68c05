"""Heartbeats of a handle's attempts, thinned out: what a loop reports a thousand times a second is stored now and
then.

Must not know: runs, the store. These are Core's rules. Invariants: the first heartbeat of an attempt passes at
once, and then one per interval, the newest; the interval is shorter than the attempt's heartbeat timeout; what
is kept back is not lost when the attempt fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hourglass._embedded.clock import Cancel, Clock, to_ns
from hourglass._engine.events import Payloads

_PART_OF_TIMEOUT = 0.8


@dataclass(slots=True)
class _Pause:
    end: Cancel
    newest: Payloads | None = None


class Heartbeats:
    """Lets heartbeats pass to `send`, at most one per attempt and interval."""

    def __init__(self, clock: Clock, longest: float, send: Callable[[bytes, Payloads], None]) -> None:
        self._clock = clock
        self._longest = longest
        self._send = send
        self._pauses: dict[bytes, _Pause] = {}

    def beat(self, token: bytes, details: Payloads, timeout: float) -> None:
        """An attempt with this heartbeat timeout (0: none) lives."""
        pause = self._pauses.get(token)
        if pause is not None:
            pause.newest = details
            return
        interval = min(self._longest, timeout * _PART_OF_TIMEOUT) if timeout else self._longest
        if interval > 0:
            end = self._clock.call_after(to_ns(interval), lambda: self._resume(token, timeout))
            self._pauses[token] = _Pause(end)
        self._send(token, details)

    def end(self, token: bytes, *, flush: bool) -> None:
        """An attempt is over; what was kept back is sent before, or dropped."""
        pause = self._pauses.pop(token, None)
        if pause is not None:
            pause.end()
            if flush and pause.newest is not None:
                self._send(token, pause.newest)

    def close(self) -> None:
        """No attempt is ours any more."""
        for token in tuple(self._pauses):
            self.end(token, flush=False)

    def _resume(self, token: bytes, timeout: float) -> None:
        pause = self._pauses.pop(token, None)
        if pause is not None and pause.newest is not None:
            self.beat(token, pause.newest, timeout)
