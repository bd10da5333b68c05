"""A supervisor's book-keeping for one child: its spec, its present process, its restarts and its back-off."""

from __future__ import annotations

from collections.abc import Callable

from hourglass._supervision.clock import Clock, Timer
from hourglass._supervision.policy import delay_before
from hourglass._supervision.process import ChildView, Process
from hourglass._supervision.spec import ChildSpec


class Child:
    """One place in a supervisor, which one process after another fills."""

    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self.process: Process | None = None
        self.restarts = 0
        self._filled_at = 0.0
        self._failures = 0
        self._timer: Timer | None = None

    def fill(self, process: Process, now: float) -> None:
        """A process takes the place."""
        self.stop_waiting()
        self.process = process
        self._filled_at = now

    def is_filled_by(self, process: Process) -> bool:
        """Whether news of this process still matters here."""
        return self.process is process

    def next_delay(self, now: float) -> float:
        """How long to wait before the place is filled again, counting this failure."""
        backoff = self.spec.backoff
        if backoff is None:
            return 0.0
        if now - self._filled_at >= backoff[1]:
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
        """The child, for those who look at the tree."""
        spec, process = self.spec, self.process
        if process is not None and process.alive:
            state = process.state.value
        else:
            state, process = ("ended" if self._timer is None else "waiting"), None
        return ChildView(spec.id, spec.type, state, self.restarts, process)
