"""The states of a `Worker` object, which any thread may start and shut down: new → starting → running → stopping → stopped, and
again from stopped. It knows nothing of what is started. Each change is one step: of two that meet, one wins.
"""

from __future__ import annotations

import threading
from typing import Literal, TypeAlias

from hourglass.errors import UsageError

State: TypeAlias = Literal["new", "starting", "running", "stopping", "stopped"]


class WorkerLife:
    """Where a worker is in its life. `over` is set from the end of a shutdown to the next start, or by a signal."""

    def __init__(self) -> None:
        self.state: State = "new"
        self.over = threading.Event()
        self._lock = threading.Lock()

    def begin(self) -> None:
        """It starts."""
        with self._lock:
            if self.state not in ("new", "stopped"):
                raise UsageError(f"this worker is {self.state} already")
            self.state = "starting"
            self.over.clear()

    def check_wanted(self) -> None:
        """Raise if it was shut down while it was starting."""
        if self.state != "starting":
            raise UsageError("this worker was shut down while it was starting")

    def started(self) -> bool:
        """It has started; False if it was shut down meanwhile."""
        with self._lock:
            if self.state != "starting":
                return False
            self.state = "running"
            return True

    def failed(self) -> None:
        """It could not be started."""
        with self._lock:
            if self.state == "starting":
                self.state = "stopped"

    def stop(self) -> State | None:
        """It is to end; the state it was in, None if there is nothing to end."""
        with self._lock:
            if self.state not in ("starting", "running"):
                return None
            before, self.state = self.state, "stopping"
            return before

    def stopped(self) -> None:
        """It has ended."""
        with self._lock:
            self.state = "stopped"
        self.over.set()
