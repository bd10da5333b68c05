"""Parts `live` and `memory`: CPU time and memory of worker processes, which measure themselves."""

from __future__ import annotations

import asyncio
import statistics
import sys
import uuid
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from temporalio.client import Client, WorkflowHandle

from .child import SUBJECTS
from .earlier import environment, with_earlier
from .report import Row, in_turn
from .server import dev_server

_AT_ONCE = 50


class Child:
    """Connection to a worker process."""

    def __init__(self, process: Process, queue: str) -> None:
        self._process = process
        self.queue = queue

    async def request(self, name: str) -> float:
        """Send a request, `cpu` or `rss`, and return the value."""
        assert self._process.stdin is not None
        self._process.stdin.write(name.encode() + b"\n")
        return float(await self._line())

    async def _line(self) -> bytes:
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), 120)
        if not line:
            raise RuntimeError(f"the worker process on {self.queue} exited")
        return line


@asynccontextmanager
async def _children(port: int, cached: int) -> AsyncIterator[dict[str, Child]]:
    async with AsyncExitStack() as stack:
        yield {
            shown: await stack.enter_async_context(_child(shown, name, port, cached))
            for shown, name in with_earlier(*SUBJECTS).items()
        }


@asynccontextmanager
async def _child(shown: str, subject: str, port: int, cached: int) -> AsyncIterator[Child]:
    queue = f"bench-{uuid.uuid4().hex[:8]}"
    command = [sys.executable, "-m", "benchmarks.child", subject, str(port), queue, str(cached)]
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, env=environment(shown))
    child = Child(process, queue)
    try:
        assert (await child._line()).strip() == b"ready"
        yield child
        assert process.stdin is not None
        process.stdin.write(b"stop\n")
        await asyncio.wait_for(process.wait(), 60)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def measure_live(*, quick: bool) -> list[Row]:
    """Measure the CPU time of the worker process per activity step."""
    return asyncio.run(_live(runs=20 if quick else 60, steps=10, rounds=3 if quick else 9))


async def _live(*, runs: int, steps: int, rounds: int) -> list[Row]:
    cpu_per_step: dict[str, list[float]] = {shown: [] for shown in with_earlier(*SUBJECTS)}
    async with dev_server() as (client, port), _children(port, 1000) as children:
        for child in children.values():
            await _sequences(client, child.queue, runs=5, steps=steps)
        for number in range(rounds):
            for name, child in in_turn(children, number):
                before = await child.request("cpu")
                await _sequences(client, child.queue, runs=runs, steps=steps)
                cpu_per_step[name].append((await child.request("cpu") - before) / (runs * steps) * 1e6)
    return [
        Row("live", f"{steps} steps a run", name, statistics.median(samples), "µs CPU/step")
        for name, samples in cpu_per_step.items()
    ]


async def _sequences(client: Client, queue: str, *, runs: int, steps: int) -> None:
    slots = asyncio.Semaphore(_AT_ONCE)

    async def run_one() -> None:
        async with slots:
            result = await client.execute_workflow(
                "Sequence", steps, id=uuid.uuid4().hex, task_queue=queue, result_type=int
            )
            if result != sum(range(steps)):
                raise RuntimeError(f"a measured run returned {result}")

    await asyncio.gather(*[run_one() for _ in range(runs)])


def measure_memory(*, quick: bool) -> list[Row]:
    """Measure the memory of the worker process per idle cached run."""
    return asyncio.run(_memory(runs=300 if quick else 1000, rounds=1))


async def _memory(*, runs: int, rounds: int) -> list[Row]:
    kib_per_run: dict[str, list[float]] = {shown: [] for shown in with_earlier(*SUBJECTS)}
    for _ in range(rounds):
        async with dev_server() as (client, port), _children(port, runs + 500) as children:
            for name, child in children.items():
                await _idle(client, child.queue, 200)  # warm up
                before = await child.request("rss")
                await _idle(client, child.queue, runs)
                kib_per_run[name].append((await child.request("rss") - before) / runs / 1024)
    return [
        Row("memory", f"{runs} idle runs", name, statistics.median(samples), "KiB/run")
        for name, samples in kib_per_run.items()
    ]


async def _idle(client: Client, queue: str, number: int) -> None:
    """Start `Idle` workflows and wait until each has completed its first workflow task."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def run_one() -> None:
        async with slots:
            handle: WorkflowHandle[None, None] = await client.start_workflow(
                "Idle", id=uuid.uuid4().hex, task_queue=queue
            )
            while (await handle.describe()).history_length < 4:  # noqa: ASYNC110 - the server has no notification for it
                await asyncio.sleep(0.05)

    await asyncio.gather(*[run_one() for _ in range(number)])
