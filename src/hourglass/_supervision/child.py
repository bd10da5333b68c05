"""A supervisor's book-keeping for one child: its spec, its present process, its restarts and its back-off."""

from __future__ import annotations

from collections.abc import Callable

from hourglass._supervision.clock import Clock, Timer
from hourglass._supervision.policy import delay_before
from hourglass._supervision.process import Process
from hourglass._supervision.spec import ChildSpec
from hourglass._supervision.states import ChildState, ChildView


class Child:
    """One place in a supervisor, which one process after another fills."""

    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self.process: Process | None = None
        self.restarts = 0
        self._up_since: float | None = None
        self._failures = 0
        self._timer: Timer | None = None

    def fill(self, process: Process) -> None:
        """A process takes the place."""
        self.stop_waiting()
        self.process = process

    def empty(self) -> None:
        """The process that filled it has died."""
        self._up_since = self.process.started_at if self.process is not None else None
        self.process = None

    def is_filled_by(self, process: Process) -> bool:
        """Whether news of this process still matters here."""
        return self.process is process

    def next_delay(self, now: float) -> float:
        """How long to wait before the place is filled again, counting this failure."""
        backoff = self.spec.backoff
        if backoff is None:
            return 0.0
        if self._up_since is not None and now - self._up_since >= backoff[1]:
            self._failures = 0
        delay = delay_before(backoff, self._failures)
        self._failures += 1
        return delay

    def wait(self, clock: Clock, delay: float, callback: Callable[[], object]) -> None:
        """Leave the place empty for a while."""
        self.stop_waiting()
        self._timer = clock.call_later(delay, callback)

    def stop_waiting(self) -> None:
        """Forget the callback of `wait`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def view(self) -> ChildView:
        """The child, as a view of the tree shows it."""
        spec, process = self.spec, self.process
        if process is None or not process.alive:
            vacant: ChildState = "ended" if self._timer is None else "waiting"
            return ChildView(spec.id, spec.type, vacant, self.restarts, None)
        return ChildView(spec.id, spec.type, process.seen, self.restarts, process)
