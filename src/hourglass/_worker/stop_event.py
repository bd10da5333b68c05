"""An event for signal handlers (`StopEvent`)."""

from __future__ import annotations

import contextlib
import threading
from queue import Empty, SimpleQueue


class StopEvent(threading.Event):
    """An event that a signal handler may set.

    Python calls handlers between two steps of the main thread. If the thread waits for a plain event, it may hold the
    lock that `set` needs, and would wait for itself forever. A `SimpleQueue` has no such lock.
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_set = False
        self._bell: SimpleQueue[None] = SimpleQueue()

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Set it, and wake all threads that wait."""
        self._is_set = True
        self._bell.put(None)

    def clear(self) -> None:
        """Reset it."""
        self._is_set = False
        with contextlib.suppress(Empty):
            while True:
                self._bell.get_nowait()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, at most `timeout` seconds. Return whether it is set."""
        if not self._is_set:
            with contextlib.suppress(Empty):
                self._bell.get(timeout=timeout)
                self._bell.put(None)  # for the next thread that waits
        return self._is_set
