"""An event for signal handlers (`StopEvent`)."""

from __future__ import annotations

import contextlib
import threading
from queue import Empty, SimpleQueue


class StopEvent(threading.Event):
    """An event that a signal handler may set.

    Python calls signal handlers in the main thread, between two instructions. If this thread is waiting for a
    plain `threading.Event`, it may already own the lock that `set` acquires, and would wait for itself forever.
    A `SimpleQueue` does not have this problem.
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_set = False
        self._bell: SimpleQueue[None] = SimpleQueue()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """Set the event, and wake all waiting threads."""
        self._is_set = True
        self._bell.put(None)

    def clear(self) -> None:
        """Reset the event."""
        self._is_set = False
        with contextlib.suppress(Empty):
            while True:
                self._bell.get_nowait()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds until the event is set. Return whether it is set."""
        if not self._is_set:
            with contextlib.suppress(Empty):
                self._bell.get(timeout=timeout)
                self._bell.put(None)  # wakes the next waiting thread
        return self._is_set
