"""Part `scale`: what an event costs in one large run, and in one four times as large: the ratio shows whether it stays the same.

    python -m benchmarks.scale CASE ENGINE N ADDRESS     one measurement, in a process of its own: microseconds for each

Ten thousand fibers, ten thousand signals, histories of more than forty thousand events. Where a history has few events and
the run many fibers, it is the cost of a fiber.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

from hourglass import AsyncClient, History, Replayer, Worker

from . import subjects_scale as subjects
from .report import Row
from .server import dev_server

_ENGINES = ("memory", "file", "server")
_WAVE = 50  # signals on their way at a time


@dataclass(frozen=True)
class Case:
    """A workflow, how many signals it gets (`each`: as many as it is large), and whether all before its first task."""

    workflow: Any
    signals: int = 0
    each: bool = False
    at_once: bool = False
    unit: str = "event"
    largest: int = 10_000
    largest_on_server: int = 10_000


CASES = {
    "fibers with an activity": Case(subjects.acting_fibers),
    "fibers asleep": Case(subjects.sleeping_fibers),
    "workflow.map": Case(subjects.mapped),
    "fibers in line": Case(subjects.waiting_fibers, 1, unit="fiber"),
    "conditions": Case(subjects.conditions, 1, unit="fiber"),
    "signals, channel": Case(subjects.channel, each=True),
    "  all at once": Case(subjects.channel, each=True, at_once=True),
    "signals, handler": Case(subjects.Handler.run, each=True),
    "  at once": Case(subjects.Handler.run, each=True, at_once=True),
    # Six events for an activity: at 51,200 a history is full. A server takes its time for each step.
    "activities in a row": Case(subjects.sequence, largest=8_000, largest_on_server=400),
    "four in a row": Case(subjects.four_ways, largest_on_server=1_600),
}


def measure(*, quick: bool) -> list[Row]:
    """Every case on every engine, at a quarter of its size and at its size."""
    return asyncio.run(_measure(quick))


async def _measure(quick: bool) -> list[Row]:
    rows: list[Row] = []
    async with dev_server() as (_, port):
        for name, case in CASES.items():
            for engine in _ENGINES:
                largest = case.largest_on_server if engine == "server" else case.largest
                sizes = _sizes(min(largest, 1_000) if quick else largest)
                rows += [await _row(name, engine, size, f"127.0.0.1:{port}", case.unit) for size in sizes]
    for size in _sizes(1_000 if quick else 8_000):
        rows.append(await _row("a long history", "replay", size, "", "event"))
    return rows


def _sizes(largest: int) -> tuple[int, int]:
    return largest // 4, largest


async def _row(name: str, engine: str, size: int, address: str, unit: str) -> Row:
    command = [sys.executable, "-m", "benchmarks.scale", name, engine, str(size), address]
    answer = await asyncio.to_thread(
        subprocess.run, command, stdout=subprocess.PIPE, timeout=900, check=True, text=True
    )
    return Row("scale", name, f"{engine}, n = {size:,}", float(answer.stdout.split()[-1]), f"µs/{unit}")


# --- in a process of its own ------------------------------------------------------------------------------


async def _run(case: Case, size: int, target: str) -> float:
    """Microseconds for each event, or fiber, of one run."""
    async with await AsyncClient.connect(target) as client:
        worker = Worker(
            client,
            "scale",
            workflows=subjects.WORKFLOWS,
            activities=[subjects.echo],
            max_concurrent_activities=200,
            verify="off",
        )
        if not case.at_once:
            await worker.__aenter__()
        begun = time.perf_counter()
        handle = await client.start_workflow(
            case.workflow, size, id=f"scale-{time.time_ns()}", task_queue="scale"
        )
        count = size if case.each else case.signals
        for sent in range(0, count, _WAVE):
            wave = [handle.signal("number", 1) for _ in range(min(_WAVE, count - sent))]
            await asyncio.gather(*wave)
        if case.at_once:
            await worker.__aenter__()
        await handle.result()
        took = time.perf_counter() - begun
        events = len(await handle.history())
        await worker.__aexit__(None, None, None)
    return took / (events if case.unit == "event" else size) * 1e6


def _replay(size: int) -> float:
    """Microseconds for each event, from JSON to the end of the replay."""
    from .made_histories import sequence_history
    from .subjects_hourglass import sequence

    text = sequence_history(size).to_json()
    with Replayer(workflows=[sequence], timeout=600) as replayer:
        replayer.replay(History.from_json(sequence_history(10).to_json()))  # what a first replay loads
        begun = time.perf_counter()
        history = History.from_json(text)
        replayer.replay(history)
        return (time.perf_counter() - begun) / len(history) * 1e6


def _one(name: str, engine: str, size: int, address: str) -> float:
    match engine:
        case "replay":
            return _replay(size)
        case "memory":
            return asyncio.run(_run(CASES[name], size, "local:"))
        case "server":
            return asyncio.run(_run(CASES[name], size, address))
        case _:
            with TemporaryDirectory(dir=".", prefix=".bench-") as place:
                return asyncio.run(_run(CASES[name], size, f"local:{place}/hourglass.db"))


if __name__ == "__main__":
    print(_one(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]), flush=True)
