"""Part `sleeping`: cost of sleeping workflows: memory of their worker, and startup time with many of them on disk.

    python -m benchmarks.sleeping fill PATH COUNT CACHED     start workflows that sleep for a month; print the memory growth
    python -m benchmarks.sleeping open PATH                  open the file with a worker; print startup time, memory growth,
                                                             and time until due workflows have completed

Each command runs in a separate process. One workflow in a thousand sleeps for only a few seconds; `open` waits for those. The
memory includes SQLite's page caches, at most 24 MiB, which is significant when there are few workflows.
"""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from resource import getpagesize

from hourglass import AsyncClient, Client, Worker, workflow

from .report import Row

_MONTH = 30 * 86_400.0
_WAVE = 250
_WAKING = "waking"


@workflow.defn(name="Sleeper")
def sleeper(seconds: float) -> int:
    """Sleep, then return."""
    workflow.sleep(seconds)
    return 7


def measure(*, quick: bool) -> list[Row]:
    """Measure 10,000 workflows in memory and 100,000 on disk; with `quick` a tenth."""
    few, many = (1_000, 10_000) if quick else (10_000, 100_000)
    with tempfile.TemporaryDirectory() as folder:
        (cached,) = _child("fill", Path(folder) / "cached.db", few, few)
        (evicted,) = _child("fill", Path(folder) / "evicted.db", few, 100)
        rows = [
            Row("sleeping", f"{few:,} asleep", "all in the cache", cached / few / 1024, "KiB/workflow"),
            Row("sleeping", f"{few:,} asleep", "100 in the cache", evicted / few / 1024, "KiB/workflow"),
        ]
        _child("fill", Path(folder) / "many.db", many, 100)
        _, nothing, _ = _child("open", Path(folder) / "none.db")
        seconds, held, woken = _child("open", Path(folder) / "many.db")
        case = f"{many:,} on disk"
        return [
            *rows,
            Row("sleeping", case, "open", seconds, "s"),
            Row("sleeping", case, "held when open", (held - nothing) / 1024, "KiB in all"),
            Row("sleeping", case, f"{max(1, many // 1000)} wake and end", woken, "s"),
        ]


def _child(*arguments: object) -> list[float]:
    command = [sys.executable, "-m", "benchmarks.sleeping", *map(str, arguments)]
    process = subprocess.run(command, stdout=subprocess.PIPE, timeout=1800, check=True)
    return [float(value) for value in process.stdout.split()]


async def _fill(path: str, count: int, cached: int) -> int:
    """Start workflows, wait until they sleep, and return the memory growth in bytes."""
    async with (
        await AsyncClient.connect(f"local:{path}") as client,
        Worker(client, workflows=[sleeper], max_cached_workflows=cached),
    ):
        await client.execute_workflow(sleeper, 0.0, id="warm")
        # Warm up reading a history.
        await client.get_workflow_handle("warm").history()
        before = _resident_bytes()
        for first in range(0, count, _WAVE):
            await _start_wave(client, range(first, min(first + _WAVE, count)))
        await asyncio.sleep(2.5)  # the engine evicts idle runs once per second
        return _resident_bytes() - before


async def _start_wave(client: AsyncClient, numbers: range) -> None:
    """Start workflows and wait until they sleep, so that no backlog of tasks is measured."""

    async def start(number: int) -> None:
        short = number % 1000 == 0
        await client.start_workflow(
            sleeper, 5.0 if short else _MONTH, id=f"{_WAKING if short else 'asleep'}-{number}"
        )

    await asyncio.gather(*[start(number) for number in numbers])
    for number in numbers[-3:]:  # tasks are processed in order, so it suffices to wait for the last
        if number % 1000:
            await _wait_until_asleep(client, f"asleep-{number}")


async def _wait_until_asleep(client: AsyncClient, name: str) -> None:
    while True:
        events = (await client.get_workflow_handle(name).history()).events
        if events[-1]["eventType"] == "EVENT_TYPE_TIMER_STARTED":
            return
        await asyncio.sleep(0.01)


def _open(path: str) -> tuple[float, int, float]:
    """Return the startup time of a worker, its memory growth, and the time until due workflows have completed."""
    with Client.connect("local:") as client, Worker(client, workflows=[sleeper]):
        client.execute_workflow(sleeper, 0.0)  # warm up
    before = _resident_bytes()
    started = time.perf_counter()
    with Client.connect(f"local:{path}") as client, Worker(client, workflows=[sleeper]):
        seconds = time.perf_counter() - started
        growth = _resident_bytes() - before
        due = [execution.id for execution in client.list_workflows(f"WorkflowId STARTS_WITH '{_WAKING}'")]
        for name in due:
            assert client.get_workflow_handle(name).result(timeout=60) == 7
        return seconds, growth, time.perf_counter() - started


def _resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * getpagesize()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["fill", path, count, cached]:
            print(asyncio.run(_fill(path, int(count), int(cached))))
        case ["open", path]:
            print(*_open(path))
        case _:
            sys.exit(__doc__)
