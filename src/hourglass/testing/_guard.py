"""Workflow code that never comes back: noticed by a thread that looks now and then, interrupted, and told with its place.

One thread watches all environments of the process; it lives while something is in work, and a moment longer.

Invariants: nothing is interrupted but workflow code that has been in work for too long and that nobody looks at with a
debugger; what waits in C, where no exception arrives, is let wait. Time in which the whole process stood still
does not count.
"""

from __future__ import annotations

import os
import threading
import time
from types import TracebackType

from hourglass._runtime.hung_stack import HungStack, frame_of, is_debugged, take_stack
from hourglass._runtime.lane_stopping import may_interrupt, moment, raise_briefly
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
        self._thread_id = 0
        self._entered = 0
        self._seen = 0
        self._seconds = 0.0
        self._attempts = 0
        self._stack: HungStack | None = None

    def __enter__(self) -> None:
        if self._timeout:
            self._thread_id = threading.get_ident()
            self._entered += 1
            _watchman.watch(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._timeout:
            return
        _watchman.forget(self)
        stack, self._stack = self._stack, None
        if stack is not None:
            raise WorkflowHung(
                f"workflow code has run for {self._timeout:g} s without waiting for anything: it hangs at {stack.place}\n"
                f"{stack.text}"
            ) from None

    def look(self) -> None:
        """From the watchman: has it been in work for too long?"""
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
        if may_interrupt(frame, self._attempts):
            raise_briefly(self._thread_id, moment(self._attempts))


class _Watchman:
    """Looks at the guards that are in work."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy: dict[int, Guard] = {}
        self._thread: threading.Thread | None = None

    def watch(self, guard: Guard) -> None:
        """Something is in work."""
        self._busy[id(guard)] = guard
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._run, name="hourglass-test-guard", daemon=True
                    )
                    self._thread.start()

    def forget(self, guard: Guard) -> None:
        """It is done."""
        # While the watchman looks nobody leaves: an exception for the workflow must not arrive behind it.
        with self._lock:
            self._busy.pop(id(guard), None)

    def _run(self) -> None:
        idle = 0
        while True:
            time.sleep(_LOOK)
            idle = 0 if self._busy else idle + 1
            for guard in tuple(self._busy.values()):
                with self._lock:
                    if id(guard) in self._busy:
                        guard.look()
            if idle > _REST:
                self._thread = None
                if not self._busy:  # else somebody came just before: he has not seen that we are gone
                    return
                self._thread = threading.current_thread()


def _after_fork() -> None:
    global _watchman
    _watchman = _Watchman()


_watchman = _Watchman()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
