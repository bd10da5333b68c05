"""The processors of a worker's process: how many there are, and one for each of several processes.

CPython executes one thread of a process at a time, so as many processes as processors use all of them. But the kernel
moves the threads of a process between processors: a thread that should continue when another thread of its process
stops is often queued behind a thread of another process, while the processor that its own process has just left is
idle. Bound to a processor each, two processes did 1.7 times the work of one instead of 1.4 (activities that compute
for 3 ms, two processors).

Bound are this library's threads, and activities that have turned out to be brief. The first attempt of every type,
and all attempts of a type that runs long, may use all processors, and so may the programs and threads that they
start. So may event loops and processes for activities.
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
"""An attempt is brief if its share of the time is below this number of seconds: while n attempts are in progress, the
share of each is a nth of the time, because each that needs the interpreter waits for the others."""


def available() -> int:
    """Return the number of processors that this process may use, at most the quota of its container."""
    quota = _quota()
    return len(allowed()) if quota is None else min(len(allowed()), max(1, math.ceil(quota)))


def allowed() -> frozenset[int]:
    """Return the processors on which this process may run."""
    try:
        return frozenset(os.sched_getaffinity(0))
    except AttributeError:  # not available on every system
        return frozenset(range(os.cpu_count() or 1))


def _quota() -> float | None:
    """Return the CPU quota of this process, as a number of processors: the lowest among its cgroup and the
    parent cgroups. Return None if there is none.
    """
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
            quota, period = (folder / "cpu.max").read_text().split()
            if quota != "max":
                yield int(quota) / int(period)
        except (OSError, ValueError, ZeroDivisionError):
            continue


class ProcessorBinding:
    """The processor to which this process is bound; long-running activities may use all allowed ones.
    Thread-safe.
    """

    def __init__(self, own: int, processors: frozenset[int]) -> None:
        self.own = own
        self._own_only = frozenset((own,))
        self._all = processors
        self._lock = threading.Lock()
        self._running = 0
        self._share = 0.0  # the share of time in which an attempt is in progress
        self._since = 0.0
        self._brief: set[str] = set()
        self._long: set[str] = set()
        self._thread = threading.local()

    def run(self, kind: str, job: Callable[..., object], *arguments: Any) -> None:
        """Execute a job in this thread: on the process's own processor if all jobs of its kind have been brief."""
        self._bind_thread(self._own_only if kind in self._brief else self._all)
        before = self._count(+1)
        try:
            job(*arguments)
        finally:
            self._learn(kind, self._count(-1) - before)

    def free(self) -> None:
        """Let this thread, and the threads and programs that it starts, use all processors."""
        self._bind_thread(self._all)

    def _count(self, change: int) -> float:
        """Count a job that begins or ends. Return the share of the time of each until now."""
        with self._lock:
            now = monotonic()
            if self._running:
                self._share += (now - self._since) / self._running
            self._since = now
            self._running += change
            return self._share

    def _learn(self, kind: str, share: float) -> None:
        if share >= BRIEF:
            self._long.add(kind)
            self._brief.discard(kind)
        elif kind not in self._long:
            self._brief.add(kind)

    def _bind_thread(self, processors: frozenset[int]) -> None:
        if getattr(self._thread, "processors", None) is not processors:
            # Fails if processors were taken away meanwhile, or in some sandboxes: then the thread stays where it is.
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, processors)
            self._thread.processors = processors


binding: ProcessorBinding | None = None
"""The binding of this process, None if it has none."""


def can_bind() -> bool:
    """Whether this system binds threads to processors."""
    return hasattr(os, "sched_setaffinity")


def bind(place: int) -> ProcessorBinding:
    """Bind this thread, and all threads that start from now on, to the processor at index `place`, modulo the
    number of processors. Raise `OSError` if that is not permitted.
    """
    global binding
    processors = allowed()
    own = sorted(processors)[place % len(processors)]
    os.sched_setaffinity(0, {own})
    binding = ProcessorBinding(own, processors)
    return binding


def free_thread() -> None:
    """Let this thread, and the threads and programs that it starts, use all allowed processors."""
    if binding is not None:
        binding.free()
