"""Part `scale`: cost per event in one large run and in one four times as large: the ratio shows whether it stays constant.

    python -m benchmarks.scale CASE ENGINE N ADDRESS     one measurement in a separate process: microseconds per event

The largest runs have 10,000 fibers, 10,000 signals, or histories of more than 40,000 events. In cases with many fibers and few
events the cost per fiber is measured.
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
_WAVE = 50  # concurrent signals


@dataclass(frozen=True)
class Case:
    """A workflow and its signals: a fixed number, or with `signal_per_item` N of them; `at_once` before its first task."""

    workflow: Any
    signals: int = 0
    signal_per_item: bool = False
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
    "signals, channel": Case(subjects.channel, signal_per_item=True),
    "  all at once": Case(subjects.channel, signal_per_item=True, at_once=True),
    "signals, handler": Case(subjects.Handler.run, signal_per_item=True),
    "  at once": Case(subjects.Handler.run, signal_per_item=True, at_once=True),
    # An activity takes six events, and a history is limited to 51,200. A server is slow per step.
    "activities in a row": Case(subjects.sequence, largest=8_000, largest_on_server=400),
    "four in a row": Case(subjects.four_ways, largest_on_server=1_600),
}


def measure(*, quick: bool) -> list[Row]:
    """Measure every case on every engine, at a quarter of its size and at its full size."""
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


async def _run(case: Case, size: int, target: str) -> float:
    """Run a case and return microseconds per event or fiber."""
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
        started = time.perf_counter()
        handle = await client.start_workflow(
            case.workflow, size, id=f"scale-{time.time_ns()}", task_queue="scale"
        )
        count = size if case.signal_per_item else case.signals
        for first in range(0, count, _WAVE):
            wave = [handle.signal("number", 1) for _ in range(min(_WAVE, count - first))]
            await asyncio.gather(*wave)
        if case.at_once:
            await worker.__aenter__()
        await handle.result()
        elapsed = time.perf_counter() - started
        events = len(await handle.history())
        await worker.__aexit__(None, None, None)
    return elapsed / (events if case.unit == "event" else size) * 1e6


def _replay(size: int) -> float:
    """Return microseconds per event for decoding a history from JSON and replaying it."""
    from .made_histories import sequence_history
    from .subjects_hourglass import sequence

    text = sequence_history(size).to_json()
    with Replayer(workflows=[sequence], timeout=600) as replayer:
        replayer.replay(History.from_json(sequence_history(10).to_json()))  # warm up
        started = time.perf_counter()
        history = History.from_json(text)
        replayer.replay(history)
        return (time.perf_counter() - started) / len(history) * 1e6


def _measure_one(name: str, engine: str, size: int, address: str) -> float:
    match engine:
        case "replay":
            return _replay(size)
        case "memory":
            return asyncio.run(_run(CASES[name], size, "local:"))
        case "server":
            return asyncio.run(_run(CASES[name], size, address))
        case _:
            with TemporaryDirectory(dir=".", prefix=".bench-") as folder:
                return asyncio.run(_run(CASES[name], size, f"local:{folder}/hourglass.db"))


if __name__ == "__main__":
    print(_measure_one(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]), flush=True)
