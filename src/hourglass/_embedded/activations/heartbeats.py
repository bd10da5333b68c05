"""Throttled heartbeats (`Heartbeats`). A loop may report a thousand heartbeats per second, but only a few reach the
engine.

Must not know: how a heartbeat is recorded. The rules are Core's. Invariants:

- The first heartbeat of an attempt is sent immediately. After that, the newest heartbeat is sent once per interval.
- The interval is shorter than the attempt's heartbeat timeout.
- An unsent heartbeat is not lost if the attempt fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hourglass._contract.handle import HandleConfig
from hourglass._embedded.clock import Cancel, Clock, to_ns
from hourglass._evaluator.specs import Payloads

_PART_OF_TIMEOUT = 0.8


@dataclass(slots=True)
class _Pause:
    end: Cancel
    newest: Payloads | None = None


class Heartbeats:
    """A throttle for heartbeats. It calls `send` at most once per attempt and interval."""

    def __init__(self, clock: Clock, config: HandleConfig, send: Callable[[bytes, Payloads], None]) -> None:
        self._clock = clock
        self._longest = config.heartbeat_throttle
        self._without_timeout = min(config.default_heartbeat_throttle, self._longest)
        self._send = send
        self.pauses: dict[bytes, _Pause] = {}
        """The attempts whose next heartbeat must wait, by token."""

    def beat(self, token: bytes, details: Payloads, timeout: float) -> None:
        """Send or keep a heartbeat of an attempt. `timeout` is its heartbeat timeout in seconds; 0 for none."""
        pause = self.pauses.get(token)
        if pause is not None:
            pause.newest = details
            return
        interval = min(self._longest, timeout * _PART_OF_TIMEOUT) if timeout else self._without_timeout
        if interval > 0:
            end = self._clock.call_after(to_ns(interval), lambda: self._resume(token, timeout))
            self.pauses[token] = _Pause(end)
        self._send(token, details)

    def end(self, token: bytes, *, flush: bool) -> None:
        """Discard the state of an attempt that has ended. With `flush`, first send its newest unsent heartbeat."""
        pause = self.pauses.pop(token, None)
        if pause is not None:
            pause.end()
            if flush and pause.newest is not None:
                self._send(token, pause.newest)

    def close(self) -> None:
        """Discard the state of all attempts."""
        for token in tuple(self.pauses):
            self.end(token, flush=False)

    def _resume(self, token: bytes, timeout: float) -> None:
        pause = self.pauses.pop(token, None)
        if pause is not None and pause.newest is not None:
            self.beat(token, pause.newest, timeout)
