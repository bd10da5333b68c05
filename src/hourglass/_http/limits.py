"""Limits on connections: their number, and the timeouts for the head and the body of a request.

A server shares the process's file descriptors with the engine, and idle connections could exhaust them.
Therefore, a server uses at most an eighth of the descriptors that the process may open. If all of these are in
use when a new connection arrives, the connection that has waited longest for its peer is closed. The new
connection is only closed if the server is producing a response on every other connection.

Must not know: HTTP. Must be used on one event loop.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum
from typing import Final

BACKLOG: Final = 64
"""The number of connections that the kernel queues. asyncio accepts up to this number in a single step, before
the server can reject any of them.
"""

_MOST_CONNECTIONS: Final = 128
_SHARE_OF_DESCRIPTORS: Final = 8


def most_connections() -> int:
    """Return the maximum number of connections of a server in this process."""
    try:
        import resource
    except ModuleNotFoundError:  # not a POSIX system
        return _MOST_CONNECTIONS
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return _MOST_CONNECTIONS
    return max(8, min(_MOST_CONNECTIONS, allowed // _SHARE_OF_DESCRIPTORS))


class RequestPhase(Enum):
    """The phase of a connection. In all phases except `ANSWER` the server waits for its peer."""

    HEAD = "head"
    """Waiting for the head. Also used while the server produces an immediate response that requires no login."""
    BODY = "body"
    ANSWER = "answer"
    FLUSH = "flush"
    """Waiting until the peer has read the response."""


@dataclass(frozen=True)
class Timeouts:
    """The timeouts of a server's waits for its peer, in seconds, by phase."""

    head: float = 10.0
    body: float = 30.0
    flush: float = 30.0

    def of(self, phase: RequestPhase) -> float | None:
        """Return the timeout of a phase, or None if the phase has no timeout."""
        timeouts = {
            RequestPhase.HEAD: self.head,
            RequestPhase.BODY: self.body,
            RequestPhase.FLUSH: self.flush,
        }
        return timeouts.get(phase)


class ConnectionGate:
    """A gate that admits connections to a server up to a limit, and closes connections with slow peers."""

    def __init__(self, most: int | None = None, timeouts: Timeouts | None = None) -> None:
        self._most = most_connections() if most is None else most
        self._timeouts = timeouts or Timeouts()
        self._phases: dict[asyncio.WriteTransport, RequestPhase] = {}
        # The connections that wait for their peers, with their timers, in the order in which they began to
        # wait.
        self._waiting: OrderedDict[asyncio.WriteTransport, asyncio.TimerHandle] = OrderedDict()

    def __len__(self) -> int:
        return len(self._phases)

    def admit(self, connection: asyncio.WriteTransport) -> bool:
        """Admit a new connection, or close it and return False if all are in use."""
        if len(self._phases) >= self._most:
            if not self._waiting:
                connection.abort()
                return False
            self._close(next(iter(self._waiting)))
        self.enter(connection, RequestPhase.HEAD)
        return True

    def enter(self, connection: asyncio.WriteTransport, phase: RequestPhase) -> None:
        """Record the phase of a connection. Its timeout starts with the phase."""
        if self._phases.get(connection) is phase:
            return
        self._phases[connection] = phase
        self._cancel(connection)
        timeout = self._timeouts.of(phase)
        if timeout is not None:
            loop = asyncio.get_running_loop()
            self._waiting[connection] = loop.call_later(timeout, self._close, connection)

    def leave(self, connection: asyncio.WriteTransport) -> None:
        """Remove a connection that has ended. Do nothing if it was not admitted."""
        self._cancel(connection)
        self._phases.pop(connection, None)

    def close(self) -> None:
        """Close all connections immediately."""
        for connection in list(self._phases):
            self._close(connection)

    def _close(self, connection: asyncio.WriteTransport) -> None:
        self.leave(connection)
        connection.abort()

    def _cancel(self, connection: asyncio.WriteTransport) -> None:
        timer = self._waiting.pop(connection, None)
        if timer is not None:
            timer.cancel()
