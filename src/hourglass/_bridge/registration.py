"""A registration: somebody wants a task queue served. It points to the handle that serves it now, if there is
one.

Must not know: how handles are opened and ended. Invariants: a registration that has ended never begins again,
and says why it ended to whoever still waits on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hourglass._bridge.bell import Bell
from hourglass._bridge.handle_record import HandleRecord
from hourglass._contract.handle import HandleConfig
from hourglass.errors import HourglassError


class AlreadyRegistered(HourglassError):
    """Somebody serves this task queue already, or is about to."""


class WorkerNotRegistered(HourglassError):
    """Nobody is registered for this task queue, or the handle that was meant is gone."""


class StaleCompletion(WorkerNotRegistered):
    """A completion for something that is no longer open under this generation and token; it was not sent."""


class Registration:
    """See the module."""

    def __init__(self, config: HandleConfig) -> None:
        self.queue = config.task_queue
        self.config = config
        self.current: HandleRecord | None = None
        self.opening: asyncio.Task[None] | None = None
        self.was_active = False
        self.setbacks = 0
        self.bell = Bell()
        self.unwatch: Callable[[], object] | None = None
        self._end: tuple[type[HourglassError], str] | None = None

    def __repr__(self) -> str:
        return f"<Registration {self.queue!r}{' ended' if self.has_ended() else ''}>"

    def has_ended(self) -> bool:
        """Whether nobody wants this queue served any more."""
        return self._end is not None

    def check(self) -> None:
        """Raise what its end means to those who wait on it."""
        if self._end is not None:
            kind, message = self._end
            raise kind(message)

    def finish(self, kind: type[HourglassError], message: str) -> HandleRecord | None:
        """Nobody wants it any more; returns the handle that served it."""
        if self._end is not None:
            return None
        self._end = (kind, message)
        if self.unwatch is not None:
            self.unwatch()
        record, self.current = self.current, None
        self.bell.ring()
        return record

    def serve(self, record: HandleRecord) -> None:
        """From now on this handle serves it."""
        self.current, self.was_active = record, True
        self.bell.ring()
