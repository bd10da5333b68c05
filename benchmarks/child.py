"""Worker process of one subject: `python -m benchmarks.child SUBJECT PORT QUEUE CACHE`.

Prints `ready`, then answers each line of standard input with one line: `cpu` with its CPU time so far in seconds, `rss` with its
resident memory in bytes. `stop` ends the process. Only the packages of its subject are imported.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Callable
from pathlib import Path
from resource import getpagesize


def answer_requests() -> None:
    """Answer requests from standard input until `stop`."""
    print("ready", flush=True)
    for line in sys.stdin:
        match line.strip():
            case "cpu":
                print(time.process_time(), flush=True)
            case "rss":
                gc.collect()
                print(int(Path("/proc/self/statm").read_text().split()[1]) * getpagesize(), flush=True)
            case "stop":
                return


async def _temporalio(port: int, queue: str, cached: int, *, sandboxed: bool) -> None:
    from temporalio.client import Client
    from temporalio.worker import UnsandboxedWorkflowRunner, Worker
    from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

    from . import subjects_temporalio as subjects

    worker = Worker(
        await Client.connect(f"127.0.0.1:{port}"),
        task_queue=queue,
        workflows=[subjects.Sequence, subjects.Idle],
        activities=[subjects.echo],
        max_cached_workflows=cached,
        workflow_runner=SandboxedWorkflowRunner() if sandboxed else UnsandboxedWorkflowRunner(),
    )
    async with worker:
        await asyncio.to_thread(answer_requests)


async def _core(port: int, queue: str, cached: int) -> None:
    from temporalio.client import Client

    from .core_alone import serve

    client = await Client.connect(f"127.0.0.1:{port}")
    stopped = asyncio.Event()
    serving = asyncio.create_task(serve(client, queue, stopped, cached))
    await asyncio.to_thread(answer_requests)
    stopped.set()
    await serving


def _hourglass(port: int, queue: str, cached: int) -> None:
    from hourglass import Client, Worker

    from . import subjects_hourglass as subjects

    with (
        Client.connect(f"127.0.0.1:{port}") as client,
        Worker(
            client,
            task_queue=queue,
            workflows=[subjects.sequence, subjects.Idle],
            activities=[subjects.echo_async],
            max_cached_workflows=cached,
        ),
    ):
        answer_requests()


def _on_uvloop(port: int, queue: str, cached: int) -> None:
    import uvloop

    uvloop.run(_core(port, queue, cached))


SUBJECTS: dict[str, Callable[[int, str, int], None]] = {
    "temporalio": lambda port, queue, cached: asyncio.run(_temporalio(port, queue, cached, sandboxed=True)),
    "temporalio unsandboxed": lambda port, queue, cached: asyncio.run(
        _temporalio(port, queue, cached, sandboxed=False)
    ),
    "Core alone": _on_uvloop,
    "Hourglass": _hourglass,
}

if __name__ == "__main__":
    SUBJECTS[sys.argv[1]](int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
