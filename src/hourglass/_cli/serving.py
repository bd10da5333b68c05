"""The worker of `hourglass worker`: loads what was named, connects, and works until it is told to stop.

Runs in the guarded process, or in the only one. What will not pass by starting again ends with exit code 2 and a message; a
server that cannot be reached is waited for.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hourglass._cli.waiting import connected

if TYPE_CHECKING:
    from hourglass._runtime.guarded import Guarded
    from hourglass.client import Client
    from hourglass.worker import Worker

logger = logging.getLogger("hourglass.worker")

_ASK_AGAIN = 0.05
_STANDSTILLS = 2  # deadlock timeouts


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """What was asked for on the command line."""

    sources: tuple[str, ...]
    target: str | None
    namespace: str | None
    codec: str | None
    task_queues: tuple[str, ...]
    status_address: str | None
    max_cached_workflows: int
    max_concurrent_workflow_tasks: int
    max_concurrent_activities: int
    max_concurrent_local_activities: int
    max_activities_per_second: float | None
    lanes: int
    deadlock_timeout: float | None
    drain_timeout: float
    retention: float | None


def serve(options: WorkerOptions, process: Guarded | None) -> int:
    """Work; returns the exit code."""
    from hourglass._cli import console
    from hourglass._cli.loading import load
    from hourglass.errors import HourglassError

    if process is None and options.deadlock_timeout is not None:
        from hourglass._runtime.guarded import show_standstills

        show_standstills(_STANDSTILLS * options.deadlock_timeout)
    loaded = load(options.sources)
    for kind, names in (("workflows", loaded.workflows), ("activities", loaded.activities)):
        logger.info("%s: %s", kind, ", ".join(names) or "none")
    try:
        with _connected(options) as client:
            if client.target == "local:":
                logger.warning(
                    "an engine in memory is this process's own: nobody else can start workflows here"
                )
            worker = _worker(options, client, loaded.modules, process)
            if process is not None:
                process.on_stop = lambda: _shut_down(worker)
                process.loaded()
            worker.run(on_started=lambda: _started(worker, options, process))
    except HourglassError as error:
        console.error(str(error))
        return 2  # what passes was waited for
    if process is not None:
        process.leaving()
        if process.exit_code:
            _leave(process.exit_code)
    return 0


def _connected(options: WorkerOptions) -> Client:
    """A client; waits for a server that is not there yet."""
    client = connected(
        options.target, options.namespace, options.codec, threading.Event(), retention=options.retention
    )
    assert client is not None  # nothing ends this wait
    return client


def _worker(
    options: WorkerOptions, client: Client, modules: tuple[object, ...], process: Guarded | None
) -> Worker:
    from hourglass.worker import Worker

    return Worker(
        client,
        options.task_queues[0],
        modules=modules,  # type: ignore[arg-type]
        max_cached_workflows=options.max_cached_workflows,
        max_concurrent_workflow_tasks=options.max_concurrent_workflow_tasks,
        max_concurrent_activities=options.max_concurrent_activities,
        max_concurrent_local_activities=options.max_concurrent_local_activities,
        max_activities_per_second=options.max_activities_per_second,
        lanes=options.lanes,
        deadlock_timeout=options.deadlock_timeout,
        graceful_shutdown_timeout=options.drain_timeout,
        status_address=_status_address(options.status_address, 0 if process is None else process.number),
    )


def _started(worker: Worker, options: WorkerOptions, process: Guarded | None) -> None:
    for queue in options.task_queues[1:]:
        worker.start_worker(queue)
        logger.info("worker on task queue %r runs, too", queue)
    if process is not None:
        process.ready()


def _shut_down(worker: Worker) -> None:
    # One that is not running yet does not hear it.
    while worker.statistics().state != "stopped":
        worker.shutdown()
        threading.Event().wait(_ASK_AGAIN)


def _status_address(address: str | None, number: int) -> str | None:
    if address is None or not number:
        return address
    host, colon, port = address.rpartition(":")
    return f"{host}{colon}{int(port) + number}" if port.isdigit() and int(port) else address


def _leave(code: int) -> None:
    """Threads are stuck: do not wait for them as the interpreter would."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
