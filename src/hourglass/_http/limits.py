"""Limits on connections: how many a server holds, and for how long it waits for the head and the body of a request.

A server shares the process's file descriptors with the engine: connections that send nothing would stop both. So a server holds
at most an eighth of the descriptors that the process may open. When all are in use, the connection that has waited longest for
its peer is closed in favour of a new one. Only if every connection is answering a request, the new one is closed.

Must not know: HTTP. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

BACKLOG: Final = 64
"""Connections that the kernel queues. asyncio accepts so many at once, before any of them can be refused."""

_MOST_CONNECTIONS: Final = 128
_SHARE_OF_DESCRIPTORS: Final = 8


def most_connections() -> int:
    """Return how many connections a server may hold in this process."""
    try:
        import resource
    except ModuleNotFoundError:  # not a POSIX system
        return _MOST_CONNECTIONS
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return _MOST_CONNECTIONS
    return max(8, min(_MOST_CONNECTIONS, allowed // _SHARE_OF_DESCRIPTORS))


class Phase(Enum):
    """What a connection does. In all but `ANSWER` the server waits for its peer."""

    HEAD = "head"
    """Also while the server answers requests that anybody may make, if that takes no time."""
    BODY = "body"
    ANSWER = "answer"
    FLUSH = "flush"
    """The peer must read what was sent to it."""


@dataclass(frozen=True)
class Timeouts:
    """How long a server waits for its peer, in seconds, by phase."""

    head: float = 10.0
    body: float = 30.0
    flush: float = 30.0

    def of(self, phase: Phase) -> float | None:
        """Return the timeout of a phase; None for no timeout."""
        match phase:
            case Phase.HEAD:
                return self.head
            case Phase.BODY:
                return self.body
            case Phase.FLUSH:
                return self.flush
            case Phase.ANSWER:
                return None


class Connection(Protocol):
    """A transport of asyncio."""

    def abort(self) -> None:
        """Close at once, without sending what is queued."""


class ConnectionGate:
    """Admits connections to a server up to a limit, and closes those whose peer is too slow."""

    def __init__(self, most: int | None = None, timeouts: Timeouts | None = None) -> None:
        self._most = most_connections() if most is None else most
        self._timeouts = timeouts or Timeouts()
        self._phases: dict[Connection, Phase] = {}
        # Those that wait for their peers, the longest first, with their deadlines.
        self._waiting: OrderedDict[Connection, asyncio.TimerHandle] = OrderedDict()

    def __len__(self) -> int:
        return len(self._phases)

    def admit(self, connection: Connection) -> bool:
        """Take a new connection, or close it and return False if all are in use."""
        if len(self._phases) >= self._most:
            if not self._waiting:
                connection.abort()
                return False
            self._close(next(iter(self._waiting)))
        self.enter(connection, Phase.HEAD)
        return True

    def enter(self, connection: Connection, phase: Phase) -> None:
        """Record that a connection is in a phase. Its deadline counts from the beginning of the phase."""
        if self._phases.get(connection) is phase:
            return
        self._phases[connection] = phase
        self._cancel(connection)
        timeout = self._timeouts.of(phase)
        if timeout is not None:
            loop = asyncio.get_running_loop()
            self._waiting[connection] = loop.call_later(timeout, self._close, connection)

    def leave(self, connection: Connection) -> None:
        """Forget a connection that has ended. Safe to call for one that was not admitted."""
        self._cancel(connection)
        self._phases.pop(connection, None)

    def _close(self, connection: Connection) -> None:
        self.leave(connection)
        connection.abort()

    def _cancel(self, connection: Connection) -> None:
        timer = self._waiting.pop(connection, None)
        if timer is not None:
            timer.cancel()
