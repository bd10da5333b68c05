"""The CPUs of a worker's process: their number, and the binding of each of several processes to a CPU.

CPython executes only one thread of a process at a time, so one process per CPU uses all CPUs. But the kernel
moves the threads of a process between CPUs. When a thread stops, the next thread of its process is often queued
behind a thread of another process, while the CPU that its own process has just left is idle. With each process
bound to a CPU, two processes did 1.7 times the work of one process, instead of 1.4 times (activities that
compute for 3 ms, two CPUs).

Only the threads of Hourglass, and activities that have turned out to be brief, are bound. The first attempt of
every activity type, and all attempts of long-running types, may use all CPUs, as may the programs and threads
that they start. Event loops and processes for activities may also use all CPUs.
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
"""An attempt is brief if its share of the time is below this number of seconds. While n attempts are in
progress, the share of each is 1/n of the time, because attempts that need the GIL wait for each other.
"""


def available() -> int:
    """Return the number of CPUs that this process may use, limited by the quota of its container."""
    quota = _quota()
    return len(allowed()) if quota is None else min(len(allowed()), max(1, math.ceil(quota)))


def allowed() -> frozenset[int]:
    """Return the numbers of the CPUs on which this process may run."""
    try:
        return frozenset(os.sched_getaffinity(0))
    except AttributeError:  # not available on every system
        return frozenset(range(os.cpu_count() or 1))


def _quota() -> float | None:
    """Return the CPU quota of this process, as a number of CPUs: the lowest among its cgroup and the parent
    cgroups. Return None if there is none.
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


class CPUBinding:
    """The CPU to which this process is bound. Long-running activities may use all allowed CPUs. Thread-safe."""

    def __init__(self, own: int, cpus: frozenset[int]) -> None:
        self.own = own
        self._own_only = frozenset((own,))
        self._all = cpus
        self._lock = threading.Lock()
        self._running = 0
        self._share = 0.0  # the sum of an attempt's share of the time since the start
        self._since = 0.0
        self._brief: set[str] = set()
        self._long: set[str] = set()
        self._thread = threading.local()

    def run(self, kind: str, job: Callable[..., object], *arguments: Any) -> None:
        """Execute a job in this thread. If all jobs of its kind have been brief, use only the process's own CPU."""
        self._bind_thread(self._own_only if kind in self._brief else self._all)
        before = self._count(+1)
        try:
            job(*arguments)
        finally:
            self._learn(kind, self._count(-1) - before)

    def free(self) -> None:
        """Allow this thread, and the threads and programs that it starts, to use all CPUs."""
        self._bind_thread(self._all)

    def _count(self, change: int) -> float:
        """Count a job that begins or ends. Return the sum of the time shares of a job so far."""
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

    def _bind_thread(self, cpus: frozenset[int]) -> None:
        if getattr(self._thread, "cpus", None) is not cpus:
            # This fails if CPUs were removed from the process in the meantime, and in some sandboxes. The
            # affinity of the thread is then unchanged.
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, cpus)
            self._thread.cpus = cpus


binding: CPUBinding | None = None
"""The binding of this process, or None if it is not bound."""


def can_bind() -> bool:
    """Whether this system can bind threads to CPUs."""
    return hasattr(os, "sched_setaffinity")


def bind(place: int) -> CPUBinding:
    """Bind this thread, and all threads that are started later, to the CPU at index `place`, modulo the number
    of CPUs. Raise `OSError` if this is not permitted.
    """
    global binding
    cpus = allowed()
    own = sorted(cpus)[place % len(cpus)]
    os.sched_setaffinity(0, {own})
    binding = CPUBinding(own, cpus)
    return binding


def free_thread() -> None:
    """Allow this thread, and the threads and programs that it starts, to use all allowed CPUs."""
    if binding is not None:
        binding.free()
