"""An event for signal handlers (`StopEvent`)."""

from __future__ import annotations

import contextlib
import threading
from queue import Empty, SimpleQueue


class StopEvent(threading.Event):
    """An event that a signal handler may set. Python calls handlers between two steps of the main thread: one that waits for
    a plain event may just then hold the lock that `set` needs, and would wait for itself for ever. A `SimpleQueue` has none.
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_set = False
        self._bell: SimpleQueue[None] = SimpleQueue()

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Set it, and wake all that wait."""
        self._is_set = True
        self._bell.put(None)

    def clear(self) -> None:
        """Set it back."""
        self._is_set = False
        with contextlib.suppress(Empty):
            while True:
                self._bell.get_nowait()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, or so long at most; whether it is."""
        if not self._is_set:
            with contextlib.suppress(Empty):
                self._bell.get(timeout=timeout)
                self._bell.put(None)  # for the next one that waits
        return self._is_set
