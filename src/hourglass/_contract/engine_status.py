"""The state of an engine that a process can read without a request, for `/status`, `/ready` and the worker metrics."""

from __future__ import annotations

import msgspec

FULL_BYTES = 1 << 20
"""A disk with less free space counts as full, even before a write fails."""


class WorkerProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that uses a file, and its work in progress. `is_owner` is whether the engine runs in this process.
    `pid_namespace` is the PID namespace of its process id, or 0 if unknown.
    """

    process_id: int
    pid_namespace: int = 0
    identities: tuple[str, ...] = ()
    is_owner: bool = False
    task_queues: tuple[str, ...] = ()
    tasks: int = 0
    attempts: int = 0


class QueueStats(msgspec.Struct, frozen=True):
    """Statistics of a task queue: backlog size, age of the oldest task, and recent add and dispatch rates per second."""

    backlog: int = 0
    backlog_age: float = 0.0  # seconds
    add_rate: float = 0.0
    dispatch_rate: float = 0.0


class DiskCondition(msgspec.Struct, frozen=True):
    """The condition of a file and its disk.

    `held` describes the fault that prevents writes, or is "". `free_bytes` is None if the system does not report the free
    space; below `reserve_bytes` new workflows are rejected. `file_bytes` is the size of the file and its log.
    """

    path: str
    held: str
    free_bytes: int | None
    reserve_bytes: int
    file_bytes: int = 0

    @property
    def is_full(self) -> bool:
        """Whether the disk is full, or nearly full."""
        return bool(self.held) or (self.free_bytes is not None and self.free_bytes < FULL_BYTES)


class EngineFigures(msgspec.Struct, frozen=True):
    """Statistics of an engine: the number of open runs, and the workflow tasks and activity attempts of each queue,
    in this order.
    """

    open_runs: int | None = None
    queues: dict[str, tuple[QueueStats, QueueStats]] = {}


class EngineStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of an engine. The defaults are those of a server.

    `role` is the role of this process for a file, as text: owner, client, or worker for another process. `trouble` is a
    fault of the owner that stops the work of this process, or "". `processes` use the file, the owner first. `disk` and
    `figures` are None unless this process runs the engine.
    """

    role: str = ""
    trouble: str = ""
    processes: tuple[WorkerProcess, ...] = ()
    disk: DiskCondition | None = None
    figures: EngineFigures | None = None
