"""Which processors a worker's process uses: how many there are, and one for each of several processes.

CPython executes one thread of a process at a time, so as many processes as there are processors use all of them. Left to
itself, though, the kernel lets the threads of each wander: a thread that is to go on where another of its process stops is often
queued behind one of another process, while the processor that its own has just left idles. Bound to a processor each, two
processes did 1.7 times the work of one instead of 1.4 (activities that compute for 3 ms, two processors).

Bound are this library's threads, and activities that have turned out to be brief: whatever those do, it is soon over. The
first attempt of every type, and all attempts of a type that runs long, may use all processors, and so may what they start:
a program, or threads of a library in C. So may event loops for activities, and processes for activities.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from time import monotonic
from typing import Any

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")

BRIEF = 0.05
"""Seconds. An attempt is brief if its share of the time is less: while it was one of n at work, the nth part of what passed. One
that needs the interpreter waits for all of those."""


# --- how many there are ----------------------------------------------------------------------------------------------


def available() -> int:
    """How many processors' time this process may use: those it may run on, or less if its container has a quota."""
    quota = _quota()
    return len(given()) if quota is None else min(len(given()), max(1, math.ceil(quota)))


def given() -> frozenset[int]:
    """The processors on which this process may run."""
    try:
        return frozenset(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return frozenset(range(os.cpu_count() or 1))


def _quota() -> float | None:
    """Processors' worth of time that the control group of this process, or one around it, has; None: as much as there is."""
    try:
        lines = _OWN_CGROUP.read_text().splitlines()
    except OSError:
        return None
    own = next((line[3:].lstrip("/") for line in lines if line.startswith("0::")), "")
    folder = _CGROUPS / own
    return min(_quotas([folder, *folder.parents]), default=None)


def _quotas(folders: Iterable[Path]) -> Iterable[float]:
    for folder in folders:
        if folder != _CGROUPS and _CGROUPS not in folder.parents:
            return
        try:
            most, period = (folder / "cpu.max").read_text().split()
            if most != "max":
                yield int(most) / int(period)
        except (OSError, ValueError, ZeroDivisionError):
            continue


# --- one for each process --------------------------------------------------------------------------------------------


class ProcessorBinding:
    """One processor for this process, and all that it was given for what runs long. Any thread may call it."""

    def __init__(self, own: int, given: frozenset[int]) -> None:
        self.own = own
        self._mine = frozenset((own,))
        self._given = given
        self._lock = threading.Lock()
        self._running = 0
        self._shared = self._since = (
            0.0  # what one that is always at work would have had as its share, until when
        )
        self._brief: set[str] = set()
        self._long: set[str] = set()
        self._thread = threading.local()

    def run(self, kind: str, job: Callable[..., object], *arguments: Any) -> None:
        """Execute a job of this kind here: on the process's own processor if all of its kind have been brief."""
        self._place(self._mine if kind in self._brief else self._given)
        before = self._share_out(+1)
        try:
            job(*arguments)
        finally:
            self._learn(kind, self._share_out(-1) - before)

    def free(self) -> None:
        """Let this thread, and what it starts, use all processors."""
        self._place(self._given)

    def _share_out(self, change: int) -> float:
        """One begins, or ends; returns what each has had of the time until now."""
        with self._lock:
            now = monotonic()
            if self._running:
                self._shared += (now - self._since) / self._running
            self._since = now
            self._running += change
            return self._shared

    def _learn(self, kind: str, share: float) -> None:
        if share >= BRIEF:
            self._long.add(kind)
            self._brief.discard(kind)
        elif kind not in self._long:
            self._brief.add(kind)

    def _place(self, processors: frozenset[int]) -> None:
        if getattr(self._thread, "processors", None) is not processors:
            # Refused where processors were taken away meanwhile, or a sandbox forbids it: then the thread stays where it is.
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, processors)
            self._thread.processors = processors


binding: ProcessorBinding | None = None
"""What this process is bound to; None: nothing."""


def can_bind() -> bool:
    """Whether this system binds threads to processors."""
    return hasattr(os, "sched_setaffinity")


def bind(place: int) -> ProcessorBinding:
    """Keep this process, one of several, to one of its processors: this thread, and all that are started from now on.
    Raises OSError if it is not allowed to.
    """
    global binding
    processors = given()
    own = sorted(processors)[place % len(processors)]
    os.sched_setaffinity(0, {own})
    binding = ProcessorBinding(own, processors)
    return binding


def free_thread() -> None:
    """Let this thread, and what it starts, use all processors that the process was given."""
    if binding is not None:
        binding.free()
