"""Workflow code that never comes back: noticed by a thread that looks now and then, interrupted, and told with its place.

One thread watches all environments of the process; it lives while there are any, and a moment longer.

Invariants: nothing is interrupted but workflow code that has been in work for too long and is not stopped in a
debugger; what waits in C, where no exception arrives, is let wait. Time in which the whole process stood still
does not count. Going in and out costs nothing that could be noticed.
"""

from __future__ import annotations

import threading
import weakref
from time import sleep
from types import TracebackType

from hourglass._forks import ForkStage, at_fork
from hourglass._worker.health.debuggers import is_debugged
from hourglass._worker.health.stacks import HungStack, frame_of, take_stack
from hourglass._worker.health.stopping import LaneStopped, may_interrupt, raise_briefly, wait_of
from hourglass.errors import WorkflowStuck

DEADLOCK_TIMEOUT = 5.0
_LOOK = 0.1
_REST = 50  # looks without anything to see, before the thread ends


class WorkflowHung(WorkflowStuck):
    """Workflow code did not come back."""


class Guard:
    """Around the workflow code of one environment: `with guard:`. A timeout of 0 or None switches it off."""

    def __init__(self, timeout: float | None) -> None:
        self._timeout = timeout or 0.0
        self._thread_id = threading.get_ident()
        self._entered = 0
        self._busy = False
        self._seen = 0
        self._seconds = 0.0
        self._attempts = 0
        self._stack: HungStack | None = None
        if self._timeout:
            _guard_thread.watch(self)

    def __enter__(self) -> None:
        self._entered += 1
        self._busy = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._busy = False
        if self._stack is not None:
            self._end_interrupted()

    def _end_interrupted(self) -> None:
        try:
            with _guard_thread.looking:  # an exception for the workflow must not arrive behind it
                pass
        except LaneStopped:
            pass
        stack, self._stack = self._stack, None
        assert stack is not None
        raise WorkflowHung(
            f"workflow code has run for {self._timeout:g} s without waiting for anything: it hangs at {stack.place}\n"
            f"{stack.text}"
        ) from None

    def look(self) -> None:
        """From the guard's thread: has it been in work for too long?"""
        if not self._busy:
            return
        if self._seen != self._entered:
            self._seen, self._seconds, self._attempts = self._entered, 0.0, 0
        self._seconds += _LOOK
        if self._seconds < self._timeout:
            return
        frame = frame_of(self._thread_id)
        if is_debugged(self._thread_id, frame):
            self._seconds = 0.0
            return
        if self._stack is None:
            self._stack = take_stack(frame)
        self._attempts += 1
        # The stack is set before `_busy` is read: `__exit__` clears `_busy` first and looks for a stack then. So
        # either it finds the stack, and waits for us, or we see that it has left, and raise nothing behind it.
        if self._busy and may_interrupt(frame, self._attempts):
            raise_briefly(self._thread_id, wait_of(self._attempts))


class _GuardThread:
    """Looks at all guards that there are."""

    def __init__(self) -> None:
        self.looking = threading.Lock()
        self._guards: weakref.WeakSet[Guard] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def watch(self, guard: Guard) -> None:
        """Look at this one, too."""
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
                if idle > _REST:
                    self._thread = None
                    return
            with self.looking:
                for guard in guards:
                    guard.look()
            del guards


def _after_fork() -> None:
    global _guard_thread
    _guard_thread = _GuardThread()  # the thread is not inherited, and its locks may be held


_guard_thread = _GuardThread()
at_fork(ForkStage.TESTING, in_child=_after_fork)
