"""What a process holds and could leak: threads, tasks of the control loop, fibers, descriptors."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from dataclasses import astuple, dataclass

from hourglass import Worker
from hourglass._evaluator.fibers import _Fiber
from hourglass._worker.portal import Portal

from .waiting import named_tasks


@dataclass(frozen=True)
class Holdings:
    """The number of threads, tasks, fibers and descriptors."""

    threads: int
    os_threads: int
    tasks: int
    fibers: int
    descriptors: int

    def within(self, before: Holdings) -> bool:
        """Return whether nothing has grown."""
        return all(now <= then for now, then in zip(astuple(self), astuple(before), strict=True))


def holdings(portal: Portal) -> Holdings:
    """Count what this process holds now."""
    gc.collect()
    return Holdings(
        threads=threading.active_count(),
        os_threads=len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 0,
        tasks=portal.call(_tasks()),
        fibers=sum(type(candidate) is _Fiber and not candidate.dead for candidate in gc.get_objects()),
        descriptors=len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0,
    )


async def _tasks() -> int:
    return len(asyncio.all_tasks())


def outstanding(worker: Worker) -> list[str]:
    """Return the pending requests and running work of an engine. Read from another thread."""
    app = worker._app
    lines = []
    for record in tuple(app.tables.records.values()):
        runs, attempts, calls = len(record.runs.open), len(record.attempts.open), len(record.calls)
        if runs or attempts or calls:
            lines.append(f"{record!r}: {runs} runs, {attempts} attempts, {calls} calls")
    for name, tasks in (("evaluations", app.evaluators), ("attempts", app.executors)):
        if tasks.children():
            lines.append(f"{len(tasks.children())} {name}")
    return lines


def left_open(worker: Worker) -> list[str]:
    """Return the handles that a closed worker has not released or had to abandon."""
    tables = worker._app.tables
    lines = [repr(record) for record in tuple(tables.records.values()) if record.queue == worker.task_queue]
    if tables.counters.abandoned:
        lines.append(f"{tables.counters.abandoned} handles were left behind")
    return lines


def leaked(portal: Portal, before: Holdings, limit: float) -> str:
    """Return what has grown, after a time to settle; an empty string if nothing has."""
    deadline = time.monotonic() + limit
    while not (now := holdings(portal)).within(before):
        if time.monotonic() > deadline:
            tasks = "\n  ".join(portal.call(named_tasks()))
            threads = ", ".join(sorted(thread.name for thread in threading.enumerate()))
            return f"leaked: before {before}\n         now {now}\n  threads: {threads}\n  {tasks}"
        time.sleep(0.1)
    return ""
