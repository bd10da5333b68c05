"""`hourglass worker`: a production worker, in a process of its own that another one watches."""

from __future__ import annotations

import os
import sys
from typing import Annotated, TypeAlias

import typer

from hourglass._cli import logs
from hourglass._cli.options import (
    Codec,
    Level,
    Log,
    LogForm,
    LogLevel,
    Namespace,
    Sources,
    Target,
    TaskQueues,
)
from hourglass._cli.serving import WorkerOptions

StatusAddress: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT", help="For /live, /ready and /status; with several processes the first port."
    ),
]
MaxCached: TypeAlias = Annotated[
    int, typer.Option(min=0, metavar="N", help="Runs that are kept between two steps.")
]
MaxTasks: TypeAlias = Annotated[int, typer.Option(min=1, metavar="N", help="Workflow tasks at a time.")]
MaxActivities: TypeAlias = Annotated[int, typer.Option(min=1, metavar="N", help="Activities at a time.")]
MaxLocal: TypeAlias = Annotated[int, typer.Option(min=1, metavar="N", help="Local activities at a time.")]
MaxRate: TypeAlias = Annotated[
    float | None, typer.Option(metavar="N", help="Activities begun per second.  [default: no limit]")
]
Lanes: TypeAlias = Annotated[int, typer.Option(min=1, metavar="N", help="Threads that run workflow code.")]
DeadlockTimeout: TypeAlias = Annotated[
    float,
    typer.Option(
        min=0, metavar="SECONDS", help="How long workflow code may run without waiting; 0 for ever."
    ),
]
DrainTimeout: TypeAlias = Annotated[
    float,
    typer.Option(min=0, metavar="SECONDS", help="How long activities may go on after a signal to stop."),
]
Retention: TypeAlias = Annotated[
    float | None,
    typer.Option(
        min=0,
        metavar="DAYS",
        help="How long a file keeps closed workflows.  [default: 30; a server has its own]",
    ),
]
Processes: TypeAlias = Annotated[int, typer.Option(min=1, metavar="N", help="Worker processes.")]
Parent: TypeAlias = Annotated[
    bool, typer.Option("--parent/--no-parent", help="Watch the worker from a process of its own.")
]

_DAY = 86_400.0


def worker(
    sources: Sources,
    target: Target = None,
    namespace: Namespace = None,
    codec: Codec = None,
    task_queues: TaskQueues = None,
    log: Log = LogForm.pretty,
    log_level: Level = LogLevel.info,
    status_address: StatusAddress = None,
    max_cached_workflows: MaxCached = 1000,
    max_concurrent_workflow_tasks: MaxTasks = 100,
    max_concurrent_activities: MaxActivities = 100,
    max_concurrent_local_activities: MaxLocal = 100,
    max_activities_per_second: MaxRate = None,
    lanes: Lanes = 1,
    deadlock_timeout: DeadlockTimeout = 2.0,
    drain_timeout: DrainTimeout = 10.0,
    retention: Retention = None,
    processes: Processes = 1,
    parent: Parent = True,
) -> None:
    """Run a production worker.

    It serves task queues until Ctrl-C or SIGTERM, which let what is in flight finish; a second one ends at once.
    The worker runs in a process of its own. Should it crash or stand still, another one takes its place.

    \b
    Examples:
      hourglass worker app.py --target localhost:7233
      hourglass worker shop.orders shop.billing --task-queue orders --task-queue rush
    """
    logs.configure(log.value, log_level.value)
    options = WorkerOptions(
        sources=tuple(sources),
        target=target,
        namespace=namespace,
        codec=codec,
        task_queues=tuple(dict.fromkeys(task_queues or ["default"])),
        status_address=status_address,
        max_cached_workflows=max_cached_workflows,
        max_concurrent_workflow_tasks=max_concurrent_workflow_tasks,
        max_concurrent_activities=max_concurrent_activities,
        max_concurrent_local_activities=max_concurrent_local_activities,
        max_activities_per_second=max_activities_per_second,
        lanes=lanes,
        deadlock_timeout=deadlock_timeout or None,
        drain_timeout=drain_timeout,
        retention=None if retention is None else retention * _DAY,
    )
    raise typer.Exit(_run(options, processes, parent=parent and os.name == "posix"))


def _run(options: WorkerOptions, processes: int, *, parent: bool) -> int:
    from hourglass._runtime import guarded

    process = guarded.enter(os.environ)
    if process is None and parent:
        return _guard(options, processes)
    from hourglass._cli.serving import serve

    return serve(options, process)


def _guard(options: WorkerOptions, processes: int) -> int:
    from hourglass._runtime.guardian import Guardian, Plan

    # The same interpreter, with the same flags and arguments: what it becomes is decided by whether somebody guards it.
    command = (sys.executable, *sys.orig_argv[1:])
    plan = Plan(
        commands=(command,) * processes,
        deadlock_timeout=options.deadlock_timeout,
        drain_timeout=options.drain_timeout,
    )
    return Guardian(plan).run()
