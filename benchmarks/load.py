"""Part `load`: latency of new workflows under heavy load, and growth of memory, files and startup time.

Each case runs in a separate process: `python -m benchmarks.load CASE SIZE FOLDER` prints one line of JSON, the values by unit.

timers      SIZE workflows sleep until the same time: latency of new workflows when the timers fire, memory of the process
due         SIZE workflows are in the backlog when a worker opens the file: the same values
flood       SIZE workflows of one type are in the backlog of a task queue: latency of others on the same and on another queue
retention   workflows close as fast as possible for SIZE seconds with a retention of one second: deletions per second
opening     a worker opens a file with SIZE closed workflows: elapsed time, CPU time, memory
schedules   SIZE schedules are listed: duration, and latency of new workflows meanwhile
active      SIZE concurrent workflows with the worker's default options: steps per second
ownerless   four processes start workflows for SIZE seconds in a file without an owner: starts per second
history     a history of SIZE megabytes is loaded: memory growth of the process as a multiple of its size
reader      other processes read the file for SIZE seconds while workflows run: maximum size of the write-ahead log
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from resource import getpagesize
from tempfile import TemporaryDirectory

from hourglass import AsyncClient, Client, Worker, activity, workflow
from hourglass.client import Schedule, ScheduleActionStartWorkflow, ScheduleIntervalSpec, ScheduleSpec

from .earlier import environment, with_earlier
from .report import Row, interleave

SIZES = {
    "timers": (100_000, 5_000),
    "due": (100_000, 5_000),
    "flood": (100_000, 5_000),
    "retention": (20, 5),
    "opening": (1_000_000, 50_000),
    "schedules": (5_000, 500),
    "active": (2_000, 2_000),
    "ownerless": (10, 3),
    "history": (38, 10),
    "reader": (20, 5),
}
"""Size of each case, by default and with `--quick`."""

_WAVE = 500
Values = dict[str, float]


def measure(*, quick: bool) -> list[Row]:
    """Measure every case, of this version and of an earlier one if one is set."""
    rows: list[Row] = []
    for case, sizes in SIZES.items():
        size = sizes[quick]
        subjects = {shown: partial(_child, shown, case, size) for shown in with_earlier("Hourglass, file")}
        rows += interleave(subjects, rounds=1, part="load", case=f"{case} {size:,}")
    return rows


def _child(shown: str, case: str, size: int) -> Values:
    with TemporaryDirectory(dir=".", prefix=".bench-") as folder:
        command = [sys.executable, "-m", "benchmarks.load", case, str(size), folder]
        process = subprocess.run(
            command, stdout=subprocess.PIPE, timeout=3600, check=True, text=True, env=environment(shown)
        )
        values: Values = json.loads(process.stdout.splitlines()[-1])
        return values


_completed = 0


@activity.defn(name="Echo", start_to_close_timeout=600)
def echo(number: int) -> int:
    """Return the argument."""
    return number


@workflow.defn(name="Quick")
def quick(number: int) -> int:
    """Run one activity: the new work whose latency is measured."""
    return echo(number)


@workflow.defn(name="Sleeper")
def sleeper(until: float) -> int:
    """Sleep until a Unix time."""
    global _completed
    workflow.sleep(max(0.0, until - workflow.now().timestamp()))
    _completed += 1
    return 7


@workflow.defn(name="Waiting")
def waiting(number: int) -> int:
    """Run one activity: the work in the backlog."""
    global _completed
    echo(number)
    _completed += 1
    return number


@workflow.defn(name="Steps")
def steps(count: int) -> int:
    """Run sequential activities."""
    return sum(echo(number) for number in range(count))


@activity.defn(name="Load", start_to_close_timeout=600)
def load(size: int) -> str:
    """Return a `str` of this length."""
    return "x" * size


_go = workflow.Channel("go", bool)


@workflow.defn(name="Large")
def large(megabytes: int) -> int:
    """Record a history of this size, then wait for a signal."""
    loaded = sum(len(load(1_000_000)) for _ in range(megabytes))
    _go.receive()
    return loaded


WORKFLOWS = [quick, sleeper, waiting, steps]


def _resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * getpagesize()


class Peak:
    """Peak resident memory of the process since creation, sampled on a thread."""

    def __init__(self) -> None:
        self.before = self.peak = _resident_bytes()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self._stopped.wait(0.05):
            self.peak = max(self.peak, int(Path("/proc/self/statm").read_text().split()[1]) * getpagesize())

    def stop(self) -> tuple[float, float]:
        """Return the initial and the peak memory in MiB."""
        self._stopped.set()
        self._thread.join()
        return self.before / 2**20, self.peak / 2**20


Latencies = list[tuple[float, float]]
"""Elapsed time and CPU time of this process from start to result, per workflow. The CPU time estimates the latency on an idle
machine with one core, without disk waits; it hardly depends on other processes.
"""


async def _probe(client: AsyncClient, is_loaded: Callable[[], bool], queue: str | None = None) -> Latencies:
    """Start new workflows every 20 ms while there is other load, and return their latencies."""
    latencies: Latencies = []
    pending: set[asyncio.Task[None]] = set()

    async def run_probe() -> None:
        started, cpu_started = time.perf_counter(), time.process_time()
        options = {} if queue is None else {"task_queue": queue}
        await client.execute_workflow(quick, 1, id=f"new-{uuid.uuid4().hex}", **options)
        latencies.append((time.perf_counter() - started, time.process_time() - cpu_started))

    while is_loaded():
        task = asyncio.create_task(run_probe())
        pending.add(task)
        task.add_done_callback(pending.discard)
        await asyncio.sleep(0.02)
    await asyncio.gather(*pending)
    return latencies


def _percentiles(latencies: Latencies, name: str = "new") -> Values:
    percentiles: Values = {}
    for values, unit in zip(zip(*latencies, strict=True), ("ms", "CPU ms"), strict=True):
        ordered = sorted(values)
        for share in (0.5, 0.99):
            index = min(len(ordered) - 1, int(len(ordered) * share))
            percentiles[f"{unit} {name} p{share * 100:.0f}"] = ordered[index] * 1e3
    return percentiles


async def _start_many(start: Callable[[int], Awaitable[object]], count: int) -> None:
    for first in range(0, count, _WAVE):
        await asyncio.gather(*[start(number) for number in range(first, min(first + _WAVE, count))])


async def _timers(count: int, folder: str) -> Values:
    async with (
        await AsyncClient.connect(f"local:{folder}/hourglass.db") as client,
        Worker(client, workflows=WORKFLOWS, activities=[echo]),
    ):
        await client.execute_workflow(quick, 1, id="warm")
        until = time.time() + 10.0 + count / 400

        async def start(number: int) -> object:
            return await client.start_workflow(sleeper, until, id=f"sleeper-{number}")

        await _start_many(start, count)
        late = time.time() - until
        if late > 0:
            raise RuntimeError(
                f"this machine is too slow: the timers fired {late:.0f} s before all were started"
            )
        await asyncio.sleep(until - time.time() - 1)
        peak, started, cpu_started = Peak(), time.perf_counter(), time.process_time()
        latencies = await _probe(client, lambda: _completed < count)
        seconds, cpu = time.perf_counter() - started - 1, time.process_time() - cpu_started
        before, largest = peak.stop()
    return _percentiles(latencies) | {
        "s until all ended": seconds,
        "CPU s": cpu,
        "MiB before": before,
        "MiB at most": largest,
        "new": len(latencies),
    }


async def _fill_waiting(count: int, path: str) -> None:
    async with (
        await AsyncClient.connect(f"local:{path}") as client,
        Worker(client, "other", workflows=WORKFLOWS, activities=[echo]),
    ):

        async def start(number: int) -> object:
            return await client.start_workflow(waiting, number, id=f"waiting-{number}", task_queue="default")

        await _start_many(start, count)


def _due(count: int, folder: str) -> Values:
    path = f"{folder}/hourglass.db"
    subprocess.run([sys.executable, "-m", "benchmarks.load", "fill", str(count), path], check=True)
    return asyncio.run(_serve_due(count, path))


async def _serve_due(count: int, path: str) -> Values:
    async with (
        await AsyncClient.connect("local:") as client,
        Worker(client, workflows=WORKFLOWS, activities=[echo]),
    ):
        await client.execute_workflow(quick, 1, id="warm")
    peak, started, cpu_started = Peak(), time.perf_counter(), time.process_time()
    async with (
        await AsyncClient.connect(f"local:{path}") as client,
        Worker(client, "default", workflows=WORKFLOWS, activities=[echo]),
    ):
        opened = time.perf_counter() - started
        latencies = await _probe(client, lambda: _completed < count, "default")
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu_started
        before, largest = peak.stop()
    return _percentiles(latencies) | {
        "s to open": opened,
        "s until all ended": seconds,
        "CPU s": cpu,
        "MiB before": before,
        "MiB at most": largest,
        "new": len(latencies),
    }


async def _flood(count: int, folder: str) -> Values:
    async with (
        await AsyncClient.connect(f"local:{folder}/hourglass.db") as client,
        Worker(client, "default", workflows=WORKFLOWS, activities=[echo]),
        Worker(client, "other", workflows=WORKFLOWS, activities=[echo]),
    ):
        await client.execute_workflow(quick, 1, id="warm", task_queue="default")
        peak, started, cpu_started = Peak(), time.perf_counter(), time.process_time()

        async def start(number: int) -> object:
            return await client.start_workflow(waiting, number, id=f"waiting-{number}", task_queue="default")

        flood = asyncio.create_task(_start_many(start, count))
        latencies, others = await asyncio.gather(
            _probe(client, lambda: _completed < count, "default"),
            _probe(client, lambda: _completed < count, "other"),
        )
        await flood
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu_started
        before, largest = peak.stop()
    return (
        _percentiles(latencies, "same queue")
        | _percentiles(others, "other queue")
        | {"s until all ended": seconds, "CPU s": cpu, "MiB before": before, "MiB at most": largest}
    )


async def _retention(seconds: int, folder: str) -> Values:
    async with (
        await AsyncClient.connect(f"local:{folder}/hourglass.db", retention=1.0) as client,
        Worker(client, workflows=WORKFLOWS, activities=[echo]),
    ):
        started, closed = time.perf_counter(), 0

        async def run_repeatedly() -> None:
            nonlocal closed
            while time.perf_counter() < started + seconds:
                await client.execute_workflow(sleeper, 0.0, id=uuid.uuid4().hex)
                closed += 1

        await asyncio.gather(*[run_repeatedly() for _ in range(50)])
        left = (await client.count_workflows()).count
        await asyncio.sleep(3)
        later = (await client.count_workflows()).count
    return {"closed/s": closed / seconds, "forgotten/s": (closed - left) / (seconds - 1), "left": later}


def _opening(count: int, folder: str) -> Values:
    path = f"{folder}/hourglass.db"
    with Client.connect(f"local:{path}") as client, Worker(client, workflows=WORKFLOWS, activities=[echo]):
        client.execute_workflow(quick, 1, id="one")
    copy_closed_workflow(path, count)
    started, cpu_started, before = time.perf_counter(), time.process_time(), _resident_bytes()
    with Client.connect(f"local:{path}") as client, Worker(client, workflows=WORKFLOWS, activities=[echo]):
        opened, cpu = time.perf_counter() - started, time.process_time() - cpu_started
        client.execute_workflow(quick, 1, id="two")
        first = time.perf_counter() - started
        time.sleep(3)
        grown = _resident_bytes() - before
    return {"s to open": opened, "CPU s to open": cpu, "s first result": first, "MiB more": grown / 2**20}


def copy_closed_workflow(path: str, count: int) -> None:
    """Insert `count` copies of the only closed run in a file, with other ids."""
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        key = db.execute("SELECT max(key) FROM runs").fetchone()[0]
        numbers = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count}) "
        db.execute(
            numbers + "INSERT INTO runs (key, run_id, workflow_id, wake_ns, close_ns, state) SELECT key + i, "
            f"run_id || i, workflow_id || i, wake_ns, close_ns, state FROM runs, n WHERE key = {key}"
        )
        db.execute(
            numbers
            + "INSERT INTO events (run, first_id, data) SELECT run + i, first_id, data FROM events, n "
            f"WHERE run = {key}"
        )
        names = [row[1] for row in db.execute("PRAGMA table_info(visibility)") if row[1] != "id"]
        values = [f"{name} || i" if name in ("run_id", "workflow_id") else name for name in names]
        db.execute(
            numbers
            + f"INSERT INTO visibility ({', '.join(names)}) SELECT {', '.join(values)} FROM visibility, n"
        )


async def _schedules(count: int, folder: str) -> Values:
    spec = ScheduleSpec(intervals=[ScheduleIntervalSpec(every=timedelta(days=300))])
    async with (
        await AsyncClient.connect(f"local:{folder}/hourglass.db") as client,
        Worker(client, workflows=WORKFLOWS, activities=[echo]),
    ):
        await client.execute_workflow(quick, 1, id="warm")

        async def start(number: int) -> object:
            action = ScheduleActionStartWorkflow("Quick", 1, id=f"started-{number}", task_queue="default")
            return await client.create_schedule(f"schedule-{number}", Schedule(action=action, spec=spec))

        await _start_many(start, count)
        listed, cpu_started, started = 0, time.process_time(), time.perf_counter()

        async def list_all() -> None:
            nonlocal listed
            async for _ in client.list_schedules():
                listed += 1

        task = asyncio.create_task(list_all())
        latencies = await _probe(client, lambda: not task.done())
        await task
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu_started
    assert listed == count, listed
    return _percentiles(latencies) | {"s to list": seconds, "µs CPU/schedule": cpu / count * 1e6}


async def _active(count: int, folder: str) -> Values:
    values: Values = {}
    for at_once in (count // 8, count):
        async with (
            await AsyncClient.connect(f"local:{folder}/{at_once}.db") as client,
            Worker(client, workflows=WORKFLOWS, activities=[echo]),
        ):
            await client.execute_workflow(quick, 1, id="warm")
            cpu_started, started = time.process_time(), time.perf_counter()
            count_per_workflow = 10
            await asyncio.gather(
                *[client.execute_workflow(steps, count_per_workflow, id=f"steps-{n}") for n in range(at_once)]
            )
            seconds, cpu = time.perf_counter() - started, time.process_time() - cpu_started
            values |= {
                f"steps/s at {at_once}": at_once * count_per_workflow / seconds,
                f"µs CPU/step at {at_once}": cpu / (at_once * count_per_workflow) * 1e6,
            }
    return values


def _ownerless(seconds: int, folder: str) -> Values:
    path = f"{folder}/hourglass.db"
    command = [sys.executable, "-m", "benchmarks.load", "starter", str(seconds), path]
    started = time.perf_counter()
    clients = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    counts = [int(process.communicate()[0].split()[-1]) for process in clients]
    values: Values = {"starts/s": sum(counts) / seconds}
    return values | {"s in all": time.perf_counter() - started, "fewest of one": min(counts)}


def _starter(seconds: int, path: str) -> int:
    """Start workflows sequentially for this time and return their number."""
    with Client.connect(f"local:{path}") as client:
        started, count = time.perf_counter(), 0
        while time.perf_counter() < started + seconds:
            client.start_workflow(quick, 1, id=uuid.uuid4().hex, task_queue="q")
            count += 1
        return count


def _history(megabytes: int, folder: str) -> Values:
    path = f"{folder}/hourglass.db"
    subprocess.run([sys.executable, "-m", "benchmarks.load", "large", str(megabytes), path], check=True)
    with Client.connect(f"local:{path}") as client:
        client.list_workflows()
        peak = Peak()
        handle = client.get_workflow_handle("large")
        handle.signal("go")
        before, loaded = peak.stop()
    return {"times its size": (loaded - before) / megabytes}


def _fill_large(megabytes: int, path: str) -> None:
    with (
        Client.connect(f"local:{path}") as client,
        Worker(client, "default", workflows=[large], activities=[load]),
    ):
        client.start_workflow(large, megabytes, id="large", task_queue="default")
        handle = client.get_workflow_handle("large")
        while handle.describe().history_length < 3 + 6 * megabytes:
            time.sleep(0.1)


def _reader(seconds: int, folder: str) -> Values:
    values: Values = {}
    for kind in ("none", "again", "held"):
        path = f"{folder}/{kind}.db"
        command = [sys.executable, "-m", "benchmarks.load", f"read-{kind}"]
        readers = [subprocess.Popen([*command, str(n), path]) for n in range(0 if kind == "none" else 2)]
        try:
            largest, done = asyncio.run(_run_with_readers(seconds, path))
        finally:
            for reader in readers:
                reader.kill()
                reader.wait()
        values |= {
            f"MiB of log, {kind}": largest / 2**20,
            f"MiB/1000 steps, {kind}": largest / 2**20 / done * 1e3,
        }
    return values


async def _run_with_readers(seconds: int, path: str) -> tuple[int, int]:
    """Run workflows for this time. Return the maximum size of the write-ahead log and the number of steps."""
    started, largest, done = time.perf_counter(), 0, 0
    async with (
        await AsyncClient.connect(f"local:{path}") as client,
        Worker(client, workflows=WORKFLOWS, activities=[echo]),
    ):

        async def run_repeatedly() -> None:
            nonlocal done, largest
            while time.perf_counter() < started + seconds:
                await client.execute_workflow(steps, 10, id=uuid.uuid4().hex)
                done += 10
                largest = max(largest, os.stat(f"{path}-wal").st_size)

        await asyncio.gather(*[run_repeatedly() for _ in range(50)])
    return largest, done


def _read(path: str, *, again: bool, number: int) -> None:
    """Read like a tool attached to the file: one snapshot held forever, or short ones in sequence (`again`)."""
    while not os.path.exists(path):
        time.sleep(0.1)
    time.sleep(1)
    db = sqlite3.connect(path, isolation_level=None)
    while True:
        db.execute("BEGIN")
        db.execute("SELECT count(*) FROM runs").fetchall()
        time.sleep(0.1 + 0.05 * number if again else 3600)
        db.execute("COMMIT")


CASES: dict[str, Callable[[int, str], Values]] = {
    "timers": lambda *arguments: asyncio.run(_timers(*arguments)),
    "due": _due,
    "flood": lambda *arguments: asyncio.run(_flood(*arguments)),
    "retention": lambda *arguments: asyncio.run(_retention(*arguments)),
    "opening": _opening,
    "schedules": lambda *arguments: asyncio.run(_schedules(*arguments)),
    "active": lambda *arguments: asyncio.run(_active(*arguments)),
    "ownerless": _ownerless,
    "history": _history,
    "reader": _reader,
}

if __name__ == "__main__":
    match sys.argv[1:]:
        case ["fill", size, path]:
            asyncio.run(_fill_waiting(int(size), path))
        case ["large", size, path]:
            _fill_large(int(size), path)
        case ["starter", size, path]:
            print(_starter(int(size), path))
        case ["read-again" | "read-held" as kind, number, path]:
            _read(path, again=kind == "read-again", number=int(number))
        case [case, size, folder]:
            print(json.dumps(CASES[case](int(size), folder)), flush=True)
        case _:
            sys.exit(__doc__)
