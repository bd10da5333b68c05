"""Part `sleeping`: what workflows cost that are open and asleep: in the memory of their worker, and on disk when it starts.

    python -m benchmarks.sleeping fill PATH COUNT CACHED     start so many, each asleep for a month; bytes held
    python -m benchmarks.sleeping open PATH                  open the file with a worker; seconds, bytes, seconds to wake some

Each is a process of its own. One in a thousand sleeps for a few seconds only, and is awaited by `open`. What is held has
SQLite's page caches in it, 24 MiB at most, which matter when there are few workflows.
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
    """Asleep from the beginning."""
    workflow.sleep(seconds)
    return 7


def measure(*, quick: bool) -> list[Row]:
    """Ten thousand in memory, a hundred thousand on disk; a tenth of it if it must be quick."""
    few, many = (1_000, 10_000) if quick else (10_000, 100_000)
    with tempfile.TemporaryDirectory() as place:
        (cached,) = _child("fill", Path(place) / "cached.db", few, few)
        (evicted,) = _child("fill", Path(place) / "evicted.db", few, 100)
        rows = [
            Row("sleeping", f"{few:,} asleep", "all in the cache", cached / few / 1024, "KiB/workflow"),
            Row("sleeping", f"{few:,} asleep", "100 in the cache", evicted / few / 1024, "KiB/workflow"),
        ]
        _child("fill", Path(place) / "many.db", many, 100)
        _, nothing, _ = _child("open", Path(place) / "none.db")
        seconds, held, woken = _child("open", Path(place) / "many.db")
        case = f"{many:,} on disk"
        return [
            *rows,
            Row("sleeping", case, "open", seconds, "s"),
            Row("sleeping", case, "held when open", (held - nothing) / 1024, "KiB in all"),
            Row("sleeping", case, f"{max(1, many // 1000)} wake and end", woken, "s"),
        ]


def _child(*arguments: object) -> list[float]:
    command = [sys.executable, "-m", "benchmarks.sleeping", *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=1800, check=True)
    return [float(each) for each in done.stdout.split()]


# --- in a process of its own ------------------------------------------------------------------------------


async def _fill(path: str, count: int, cached: int) -> int:
    """Start so many and wait until they sleep; gives the bytes that they take."""
    async with (
        await AsyncClient.connect(f"local:{path}") as client,
        Worker(client, workflows=[sleeper], max_cached_workflows=cached),
    ):
        await client.execute_workflow(sleeper, 0.0, id="warm")
        # What a first history loads is not what is measured.
        await client.get_workflow_handle("warm").history()
        before = _held()
        for begin in range(0, count, _WAVE):
            await _wave(client, range(begin, min(begin + _WAVE, count)))
        await asyncio.sleep(2.5)  # the engine drops what is idle once a second
        return _held() - before


async def _wave(client: AsyncClient, numbers: range) -> None:
    """Start some and wait until they sleep: a backlog of tasks would be measured otherwise."""

    async def start(number: int) -> None:
        short = number % 1000 == 0
        await client.start_workflow(
            sleeper, 5.0 if short else _MONTH, id=f"{_WAKING if short else 'asleep'}-{number}"
        )

    await asyncio.gather(*[start(number) for number in numbers])
    for number in numbers[-3:]:  # tasks are handled in order: the last are enough
        if number % 1000:
            await _asleep(client, f"asleep-{number}")


async def _asleep(client: AsyncClient, name: str) -> None:
    while True:
        events = (await client.get_workflow_handle(name).history()).events
        if events[-1]["eventType"] == "EVENT_TYPE_TIMER_STARTED":
            return
        await asyncio.sleep(0.01)


def _open(path: str) -> tuple[float, int, float]:
    """Seconds until a worker has the file, the bytes held then, seconds until those that were due have ended."""
    with Client.connect("local:") as client, Worker(client, workflows=[sleeper]):
        client.execute_workflow(sleeper, 0.0)  # what a first workflow loads is not what is measured
    before = _held()
    began = time.perf_counter()
    with Client.connect(f"local:{path}") as client, Worker(client, workflows=[sleeper]):
        seconds = time.perf_counter() - began
        held = _held() - before
        due = [each.id for each in client.list_workflows(f"WorkflowId STARTS_WITH '{_WAKING}'")]
        for name in due:
            assert client.get_workflow_handle(name).result(timeout=60) == 7
        return seconds, held, time.perf_counter() - began


def _held() -> int:
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
