"""Detection and interruption of workflow code that does not return, on the thread of an environment.

The worker's `HangDetector` decides whether code hangs. Only its caller differs: no control loop runs beside the code, so a
single thread checks all environments of the process. The thread ends after a while without environments.

Invariants:

- Only workflow code is interrupted, and never while it is stopped in a debugger.
- Code that waits in C is not interrupted, because no exception reaches it.
- An exception for workflow code is not raised after that code has returned.
"""

from __future__ import annotations

import threading
import weakref
from time import monotonic, sleep
from types import TracebackType

from hourglass._forks import ForkStage, at_fork
from hourglass._worker.health.stacks import HungStack, frame_of, take_stack
from hourglass._worker.health.stopping import LaneStopped, cpu_time, may_interrupt, raise_briefly, wait_of
from hourglass._worker.lanes.evaluation import Evaluations
from hourglass._worker.lanes.hang_detector import HangDetector
from hourglass._worker.lanes.lane import Chore, Work
from hourglass.errors import WorkflowStuck

DEADLOCK_TIMEOUT = 5.0
_LOOK = 0.1
_IDLE_LOOKS = 50  # after which the thread ends


class WorkflowHung(WorkflowStuck):
    """Raised in a test if workflow code has not returned within the deadlock timeout."""


class Guard:
    """Watches the workflow code of an environment: `with guard.watching(evaluations):`. Implements `ObservedLane`.

    A timeout of 0 or None disables the guard.
    """

    evaluations: Evaluations

    def __init__(self, timeout: float | None) -> None:
        self.busy: Work | None = None
        self.thread_id = threading.get_ident()
        self._timeout = timeout or 0.0
        self._detector: HangDetector[Guard] = HangDetector(timeout, monotonic)
        self._hung: Work | None = None
        self._attempts = 0
        self._stack: HungStack | None = None
        if self._timeout:
            _watcher.add(self)

    def watching(self, evaluations: Evaluations) -> Guard:
        """Return the guard as a context manager for a call of these evaluations."""
        self.evaluations = evaluations
        return self

    def __enter__(self) -> None:
        work = Chore(_unused)
        work.since = monotonic()
        self.busy = work

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.busy = None
        if self._stack is not None:
            self._raise_hung()

    def _raise_hung(self) -> None:
        try:
            with (
                _watcher.looking
            ):  # wait, so that no exception is raised in this thread after the workflow's code has returned
                pass
        except LaneStopped:
            pass
        stack, self._stack = self._stack, None
        assert stack is not None
        raise WorkflowHung(
            f"workflow code has run for {self._timeout:g} s without waiting: it hangs at {stack.place}\n"
            f"{stack.text}"
        ) from None

    def cpu_time(self) -> float | None:
        """Return the CPU time of the thread in seconds; None if unknown."""
        return cpu_time(self.thread_id)

    def check(self) -> None:
        """Interrupt the workflow code if it hangs. Called on the watcher thread."""
        if self.busy is None:
            self._detector.pause()
            return
        for _, work in self._detector.check((self,)).hung:
            self._interrupt(work)

    def _interrupt(self, work: Work) -> None:
        if work is not self._hung:
            self._hung, self._attempts = work, 0
        self._attempts += 1
        frame = frame_of(self.thread_id)
        if self._stack is None:
            self._stack = take_stack(frame)
        # `__exit__` resets `busy` before it reads `_stack`, and we set `_stack` before we read `busy`. Therefore, either
        # `__exit__` finds the stack and waits for us, or we see that the code has returned.
        if self.busy is work and may_interrupt(frame, self._attempts):
            raise_briefly(self.thread_id, wait_of(self._attempts))


def _unused(evaluations: Evaluations) -> None:
    """Do nothing. This chore represents the work of a lane, but the environment's thread does that work itself."""


class _Watcher:
    """The thread that checks all guards."""

    def __init__(self) -> None:
        self.looking = threading.Lock()
        """A lock that is held during a check."""
        self._guards: weakref.WeakSet[Guard] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, guard: Guard) -> None:
        """Check this guard regularly until it is garbage-collected."""
        with self._lock:
            self._guards.add(guard)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="hourglass-test-guard", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        idle = 0
        while True:
            sleep(_LOOK)
            with self._lock:
                guards = list(self._guards)
                idle = 0 if guards else idle + 1
                if idle > _IDLE_LOOKS:
                    self._thread = None
                    return
            with self.looking:
                for guard in guards:
                    guard.check()
            del guards


def _after_fork() -> None:
    global _watcher
    _watcher = _Watcher()  # the thread is not inherited, and the locks may be held


_watcher = _Watcher()
at_fork(ForkStage.TESTING, in_child=_after_fork)
