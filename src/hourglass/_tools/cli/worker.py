"""`hourglass worker`: a production worker in a separate process, monitored by a parent process.

The command starts the parent (`_worker.health.guardian`), and the parent starts the same command as the worker process
(`serve`). The worker process loads the sources, connects, and executes tasks until it is stopped. With `--no-parent` there
is only the worker process. It waits for an unreachable server, and logs each attempt. An error that a restart cannot fix
ends the worker process with a message and exit code 2, and the parent then does not restart it.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from hourglass._tools.cli import logs
from hourglass._tools.cli.connecting import DecodingEngine, Level, Log, LogForm, LogLevel, Sources, TaskQueues

if TYPE_CHECKING:
    from hourglass._worker.health.guarded import Guarded
    from hourglass.client import Client
    from hourglass.worker import Worker


logger = logging.getLogger("hourglass.worker")

_FIRST_PAUSE, _LAST_PAUSE = 0.5, 10.0


def connected(
    engine: DecodingEngine, over: threading.Event, *, retention: float | None = None
) -> Client | None:
    """Return a client as soon as the server can be reached, or None if `over` is set first."""
    from hourglass.client import Client
    from hourglass.errors import ConnectionFailedError

    codec = engine.payload_codec()
    pause = _FIRST_PAUSE
    while not over.is_set():
        try:
            return Client.connect(engine.target, namespace=engine.namespace, codec=codec, retention=retention)
        except ConnectionFailedError as error:
            logger.warning("%s. Next attempt in %g s", error, pause)
        over.wait(pause)
        pause = min(2 * pause, _LAST_PAUSE)
    return None


_SHUTDOWN_PAUSE = 0.05


StatusAddress: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="The address of /live, /ready and /status; with several processes, that of the first.",
    ),
]
MaxCached: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="N",
        help="Runs kept in memory between two steps.  [default: 1000; with a file more, as memory allows, while they are busy]",
    ),
]
MaxTasks: TypeAlias = Annotated[int, typer.Option(min=1, metavar="N", help="Concurrent workflow tasks.")]
MaxActivities: TypeAlias = Annotated[int, typer.Option(min=1, metavar="N", help="Concurrent activities.")]
MaxLocal: TypeAlias = Annotated[int, typer.Option(min=1, metavar="N", help="Concurrent local activities.")]
MaxRate: TypeAlias = Annotated[
    float | None, typer.Option(metavar="N", help="Activities started per second.  [default: no limit]")
]
Lanes: TypeAlias = Annotated[int, typer.Option(min=1, metavar="N", help="Threads that run workflow code.")]
DeadlockTimeout: TypeAlias = Annotated[
    float,
    typer.Option(
        min=0, metavar="SECONDS", help="How long workflow code may run without waiting; 0: no limit."
    ),
]
DrainTimeout: TypeAlias = Annotated[
    float,
    typer.Option(min=0, metavar="SECONDS", help="How long activities may continue after a signal to stop."),
]
Retention: TypeAlias = Annotated[
    float | None,
    typer.Option(
        min=0,
        metavar="DAYS",
        help="How long a file keeps closed workflows.  [default: 30; a server has its own setting]",
    ),
]
Processes: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Worker processes.  [default: with a file one per CPU; with a server 1]",
    ),
]
Pin: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--pin/--no-pin",
        show_default=False,
        help="Bind each process to a CPU, except for long activities.  [default: if there are as many processes as CPUs]",
    ),
]
Parent: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--parent/--no-parent", help="Run a parent process that replaces a worker that hangs or dies."
    ),
]

_DAY = 86_400.0


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """The options of the command line."""

    sources: Sources
    engine: DecodingEngine
    task_queues: TaskQueues = None
    log: Log = LogForm.pretty
    log_level: Level = LogLevel.info
    status_address: StatusAddress = None
    max_cached_workflows: MaxCached = None
    max_concurrent_workflow_tasks: MaxTasks = 100
    max_concurrent_activities: MaxActivities = 100
    max_concurrent_local_activities: MaxLocal = 100
    max_activities_per_second: MaxRate = None
    lanes: Lanes = 1
    deadlock_timeout: DeadlockTimeout = 2.0
    drain_timeout: DrainTimeout = 10.0
    retention: Retention = None
    processes: Processes = None
    pin: Pin = None
    parent: Parent = True

    @property
    def queues(self) -> tuple[str, ...]:
        """The task queues to serve."""
        return tuple(dict.fromkeys(self.task_queues or ["default"]))


def serve(options: WorkerOptions, process: Guarded | None, *, pinned: bool = False) -> int:
    """Run the worker and return the exit code."""
    from hourglass._tools.cli import console
    from hourglass._tools.cli.loading import load
    from hourglass.errors import HourglassError

    loaded = load(options.sources)
    if pinned:
        _pin_process(0 if process is None else process.number)
    for kind, names in (("workflows", loaded.workflows), ("activities", loaded.activities)):
        logger.info("%s: %s", kind, ", ".join(names) or "none")
    try:
        retention = None if options.retention is None else options.retention * _DAY
        client = connected(options.engine, threading.Event(), retention=retention)
        assert client is not None  # nothing interrupts this wait
        with client:
            if client.target == "local:":
                logger.warning(
                    "an engine in memory belongs to this process: no other process can start workflows on it"
                )
            worker = _worker(options, client, loaded.modules, process)
            if process is not None:
                process.loaded(lambda: _shut_down(worker))
            worker.run(on_started=lambda: _started(worker, options, process))
    except HourglassError as error:
        console.error(str(error))
        return 2  # transient problems are waited for, so this problem is permanent
    if process is not None:
        process.leaving()
        if process.exit_code:
            _leave(process.exit_code)
    return 0


def _pin_process(place: int) -> None:
    """Pin this process to a CPU.

    Call this after all modules were loaded, so that their threads are not pinned, and before our own threads start.
    """
    from hourglass._worker import cpus

    try:
        own = cpus.bind(place).own
    except OSError as error:
        logger.warning("this process could not be bound to a CPU and uses all CPUs: %s", error)
        return
    logger.info("bound to CPU %d, except long activities; use --no-pin to use all CPUs", own)


def _worker(
    options: WorkerOptions, client: Client, modules: tuple[object, ...], process: Guarded | None
) -> Worker:
    from hourglass.worker import Worker

    return Worker(
        client,
        options.queues[0],
        modules=modules,  # type: ignore[arg-type]
        max_cached_workflows=options.max_cached_workflows,
        max_concurrent_workflow_tasks=options.max_concurrent_workflow_tasks,
        max_concurrent_activities=options.max_concurrent_activities,
        max_concurrent_local_activities=options.max_concurrent_local_activities,
        max_activities_per_second=options.max_activities_per_second,
        lanes=options.lanes,
        deadlock_timeout=options.deadlock_timeout or None,
        graceful_shutdown_timeout=options.drain_timeout,
        status_address=_status_address(options.status_address, 0 if process is None else process.number),
    )


def _started(worker: Worker, options: WorkerOptions, process: Guarded | None) -> None:
    for queue in options.queues[1:]:
        worker.start_worker(queue)
        logger.info("a worker on task queue %r is running as well", queue)
    if process is not None:
        process.ready()


def _shut_down(worker: Worker) -> None:
    # Repeatedly, because a worker that is not running yet ignores the request.
    while worker.statistics().state != "stopped":
        worker.shutdown()
        threading.Event().wait(_SHUTDOWN_PAUSE)


def _status_address(address: str | None, number: int) -> str | None:
    if address is None or not number:
        return address
    host, colon, port = address.rpartition(":")
    return f"{host}{colon}{int(port) + number}" if port.isdigit() and int(port) else address


def _leave(code: int) -> None:
    """Exit immediately, because a normal exit would wait for hung threads."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def worker(*, options: WorkerOptions) -> None:
    """Run a production worker.

    It serves task queues until Ctrl-C or SIGTERM, and then finishes the tasks in progress; a second signal ends it at
    once. The worker runs in its own processes, which are replaced if they crash or hang. With a file, the first process
    owns the file and runs the engine, and all processes execute tasks; if the owner ends, another process takes over.

    \b
    Examples:
      hourglass worker app.py --target localhost:7233
      hourglass worker app.py --target local:orders.db --processes 4
      hourglass worker shop.orders shop.billing --task-queue orders --task-queue rush
    """
    logs.configure(options.log.value, options.log_level.value)
    if options.status_address is not None:
        os.environ.setdefault("HOURGLASS_CORE_METRICS", "status")  # before the first connection to a server
    raise typer.Exit(_run(options))


def _run(options: WorkerOptions) -> int:
    from hourglass._worker.health import guarded

    has_parent = options.parent and os.name == "posix"
    process = guarded.enter(os.environ)
    count = _process_count(options) if process is not None or has_parent else 1
    pinned = _is_pinned(options.pin, count)
    if process is None and has_parent:
        return _guard(options, count)
    return serve(options, process, pinned=pinned)


def _is_pinned(pin: bool | None, processes: int) -> bool:
    """Whether each process is pinned to a CPU. Without the option, processes are pinned if there is a CPU for each."""
    from hourglass._worker import cpus

    if pin and not cpus.can_bind():
        raise typer.BadParameter("this system does not bind processes to CPUs", param_hint="--pin")
    if pin is not None:
        return pin
    return cpus.can_bind() and processes > 1 and processes == len(cpus.allowed())


def _process_count(options: WorkerOptions) -> int:
    """Return the number of worker processes. For a file, the default is the number of CPUs.

    All processes of a file share the file's queues, and each process uses one CPU. An engine in memory belongs to a single
    process. A server may have other workers, so more than one process must be requested explicitly.
    """
    from hourglass._worker import cpus
    from hourglass._worker.targets import resolve

    kind, processes = resolve(options.engine.target).kind, options.processes
    if kind == "memory":
        if processes is not None and processes > 1:
            raise typer.BadParameter(
                "an engine in memory supports only one process: use a file, such as local:orders.db, or a server",
                param_hint="--processes",
            )
        return 1
    if processes is not None:
        return processes
    return cpus.available() if kind == "file" else 1


def _guard(options: WorkerOptions, processes: int) -> int:
    from hourglass._tools.cli.loading import check_sources
    from hourglass._worker.health.guardian import Guardian

    check_sources(options.sources)  # reported once here, not by each process
    # The same interpreter, flags and arguments. Environment variables make it the worker process.
    command = (sys.executable, *sys.orig_argv[1:])
    guardian = Guardian(
        (command,) * processes,
        deadlock_timeout=options.deadlock_timeout or None,
        drain_timeout=options.drain_timeout,
    )
    return guardian.run()
