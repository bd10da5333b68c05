"""Shows where a process stands that stands still: a call into C that holds the interpreter stops every thread.

A catastrophic regular expression is the usual one. Nothing in Python can run then, so nothing here mends it:
`faulthandler`'s thread, which needs no interpreter, writes the stacks to stderr unless it is fed in time, and whoever watches
the process replaces it. Feeding costs some 40 microseconds and happens a few times per limit, from the control loop;
arming it around each evaluation would cost more than most evaluations.

There is one such thread in a process, and others may want it (pytest does): so this is for processes of ours, and off
unless asked for. Belongs to the control loop.
"""

from __future__ import annotations

import faulthandler
import sys
import time
from collections.abc import Callable
from typing import TextIO

_FEEDS = 4  # per limit


class GilWatchdog:
    """Writes all stacks to a file, again and again, while nobody feeds it for `limit` seconds."""

    def __init__(
        self, limit: float, *, file: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit = limit
        self._file = file
        self._clock = clock
        self._fed: float | None = None

    @property
    def armed(self) -> bool:
        """Whether it waits to be fed."""
        return self._fed is not None

    def feed(self) -> None:
        """All is well, and shall be for the next `limit` seconds."""
        now = self._clock()
        if self._fed is None or now - self._fed >= self._limit / _FEEDS:
            self._fed = now
            faulthandler.dump_traceback_later(
                self._limit, repeat=True, file=self._file or sys.__stderr__ or sys.stderr
            )

    def rest(self) -> None:
        """There is nothing to do: nobody feeds it for a while."""
        if self._fed is not None:
            self._fed = None
            faulthandler.cancel_dump_traceback_later()
