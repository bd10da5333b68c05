"""Limits on connections: their number, and the time that a server waits for the head and the body of a
request.

A server shares the process's file descriptors with the engine: connections that send nothing could exhaust
them. So a server holds at most an eighth of the descriptors that the process may open. When all are in use,
the connection that has waited longest for its peer is closed in favour of a new one. The new one is closed
only if a response is being produced on every connection.

Must not know: HTTP. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

BACKLOG: Final = 64
"""The number of connections that the kernel queues. asyncio accepts this many at once, before any of them can
be rejected.
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
    """Also while the server produces a response that needs no login, if that is immediate."""
    BODY = "body"
    ANSWER = "answer"
    FLUSH = "flush"
    """The peer must read the response."""


@dataclass(frozen=True)
class Timeouts:
    """The timeouts of a server's waits for its peer, in seconds, by phase."""

    head: float = 10.0
    body: float = 30.0
    flush: float = 30.0

    def of(self, phase: RequestPhase) -> float | None:
        """Return the timeout of a phase; None for no timeout."""
        match phase:
            case RequestPhase.HEAD:
                return self.head
            case RequestPhase.BODY:
                return self.body
            case RequestPhase.FLUSH:
                return self.flush
            case RequestPhase.ANSWER:
                return None


class Transport(Protocol):
    """An asyncio transport."""

    def abort(self) -> None:
        """Close at once, without sending queued data."""


class ConnectionGate:
    """Admits connections to a server up to a limit, and closes those whose peer is too slow."""

    def __init__(self, most: int | None = None, timeouts: Timeouts | None = None) -> None:
        self._most = most_connections() if most is None else most
        self._timeouts = timeouts or Timeouts()
        self._phases: dict[Transport, RequestPhase] = {}
        # The connections that wait for their peers, the longest first, with their timers.
        self._waiting: OrderedDict[Transport, asyncio.TimerHandle] = OrderedDict()

    def __len__(self) -> int:
        return len(self._phases)

    def admit(self, connection: Transport) -> bool:
        """Admit a new connection, or close it and return False if all are in use."""
        if len(self._phases) >= self._most:
            if not self._waiting:
                connection.abort()
                return False
            self._close(next(iter(self._waiting)))
        self.enter(connection, RequestPhase.HEAD)
        return True

    def enter(self, connection: Transport, phase: RequestPhase) -> None:
        """Record the phase of a connection. Its timeout starts with the phase."""
        if self._phases.get(connection) is phase:
            return
        self._phases[connection] = phase
        self._cancel(connection)
        timeout = self._timeouts.of(phase)
        if timeout is not None:
            loop = asyncio.get_running_loop()
            self._waiting[connection] = loop.call_later(timeout, self._close, connection)

    def leave(self, connection: Transport) -> None:
        """Remove a connection that has ended. Safe to call for one that was not admitted."""
        self._cancel(connection)
        self._phases.pop(connection, None)

    def close(self) -> None:
        """Close all connections at once."""
        for connection in list(self._phases):
            self._close(connection)

    def _close(self, connection: Transport) -> None:
        self.leave(connection)
        connection.abort()

    def _cancel(self, connection: Transport) -> None:
        timer = self._waiting.pop(connection, None)
        if timer is not None:
            timer.cancel()
