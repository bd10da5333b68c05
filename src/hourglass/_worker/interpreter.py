"""Process-wide settings of the Python interpreter that a worker changes only on request, while it runs.

Both settings affect the user's whole program, so neither is changed by default. `switch_interval` is the time
for which a computing thread keeps the GIL while other threads wait (Python's default is 5 ms). `gc_threshold`
is the number of new objects after which the garbage collector looks for cycles (Python's default is 700, and
2,000 from 3.14 on). docs/performance.md shows the effect of both settings.

Invariants: if several workers in a process set different values, the shortest interval and the largest
threshold apply. When the last worker that changed a value stops, the program's own value is restored, unless
the program has changed the value in the meantime.
"""

from __future__ import annotations

import gc
import sys
import threading
from dataclasses import dataclass

from hourglass.errors import UsageError

_LONGEST_INTERVAL = 1.0
_LARGEST_THRESHOLD = 2**31 - 1  # CPython stores it in a C int


@dataclass(frozen=True)
class InterpreterOptions:
    """The values that a worker requests. None leaves the program's value unchanged."""

    switch_interval: float | None = None
    gc_threshold: int | None = None

    def __post_init__(self) -> None:
        """Raise `UsageError` for values that Python would reject later, or accept and misinterpret."""
        interval, threshold = self.switch_interval, self.gc_threshold
        if interval is not None and not 0 < interval <= _LONGEST_INTERVAL:
            raise UsageError(f"switch_interval must be above 0 and at most 1 second, not {interval!r}")
        if threshold is not None and (type(threshold) is not int or not 0 < threshold <= _LARGEST_THRESHOLD):
            raise UsageError(f"gc_threshold must be an int above 0, not {threshold!r}")


class InterpreterSettings:
    """The combined options of all running workers of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._workers: dict[object, InterpreterOptions] = {}
        self._original_interval: float | None = None
        self._applied_interval = 0.0
        self._original_threshold: int | None = None
        self._applied_threshold = 0

    def apply(self, worker: object, options: InterpreterOptions) -> None:
        """Apply the options of a worker that starts."""
        with self._lock:
            self._workers[worker] = options
            self._update()

    def restore(self, worker: object) -> None:
        """Withdraw the options of a worker that has stopped, if it has any."""
        with self._lock:
            if self._workers.pop(worker, None) is not None:
                self._update()

    def _update(self) -> None:
        intervals = [options.switch_interval for options in self._workers.values() if options.switch_interval]
        thresholds = [options.gc_threshold for options in self._workers.values() if options.gc_threshold]
        self._update_interval(min(intervals, default=None))
        self._update_threshold(max(thresholds, default=None))

    def _update_interval(self, interval: float | None) -> None:
        original = self._original_interval
        if interval is not None:
            if original is None:
                self._original_interval = sys.getswitchinterval()
            sys.setswitchinterval(interval)
            self._applied_interval = sys.getswitchinterval()  # Python rounds it to microseconds
        elif original is not None:
            self._original_interval = None
            if sys.getswitchinterval() == self._applied_interval:
                sys.setswitchinterval(original)

    def _update_threshold(self, threshold: int | None) -> None:
        original, (current, *older) = self._original_threshold, gc.get_threshold()
        if threshold is not None:
            if original is None:
                self._original_threshold = current
            gc.set_threshold(threshold, *older)
            self._applied_threshold = threshold
        elif original is not None:
            self._original_threshold = None
            if current == self._applied_threshold:
                gc.set_threshold(original, *older)


settings = InterpreterSettings()
"""The settings of this process."""
