"""Part `load`: what much work does to other work, and what grows with what. Each case is a process of its own:

python -m benchmarks.load CASE SIZE FOLDER     prints one line of JSON: values by unit

timers      so many workflows sleep until one moment; new ones meanwhile, how long each takes, and the memory of the process
due         so many workflows wait for a worker when it opens the file; the same
flood       so many of one type wait on a queue; new ones of another type on it, and others on a queue of their own
retention   workflows close as fast as they can, and are kept for a second: how many are forgotten a second
opening     a file with so many closed workflows: opened by a worker, in seconds of the clock and of the CPU
schedules   so many schedules: listed, and how long a new workflow takes meanwhile
active      so many workflows at work at a time with a worker's own settings: steps a second
ownerless   four processes start workflows in a file that no process owns: starts a second
history     a history of so many megabytes comes into memory: by how much the process grows, in times its size
reader      a process that reads, again and again or once, beside workflows: how long the write-ahead log becomes
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
"""How large each case is, and how large if it must be quick."""

_WAVE = 500
Values = dict[str, float]


def measure(*, quick: bool) -> list[Row]:
    """Every case, of this version and of an earlier one if there is one."""
    rows: list[Row] = []
    for case, sizes in SIZES.items():
        size = sizes[quick]
        subjects = {shown: partial(_child, shown, case, size) for shown in with_earlier("Hourglass, file")}
        rows += interleave(subjects, rounds=1, part="load", case=f"{case} {size:,}")
    return rows


def _child(shown: str, case: str, size: int) -> Values:
    with TemporaryDirectory(dir=".", prefix=".bench-") as place:
        command = [sys.executable, "-m", "benchmarks.load", case, str(size), place]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, timeout=3600, check=True, text=True, env=environment(shown)
        )
        found: Values = json.loads(done.stdout.splitlines()[-1])
        return found


# --- what is run ------------------------------------------------------------------------------------------

_ended = 0


@activity.defn(name="Echo", start_to_close_timeout=600)
def echo(number: int) -> int:
    """Gives back what it gets."""
    return number


@workflow.defn(name="Quick")
def quick(number: int) -> int:
    """One activity: the new work that must not wait."""
    return echo(number)


@workflow.defn(name="Sleeper")
def sleeper(until: float) -> int:
    """Asleep until a moment."""
    global _ended
    workflow.sleep(max(0.0, until - workflow.now().timestamp()))
    _ended += 1
    return 7


@workflow.defn(name="Waiting")
def waiting(number: int) -> int:
    """One of those that wait for a worker."""
    global _ended
    echo(number)
    _ended += 1
    return number


@workflow.defn(name="Steps")
def steps(count: int) -> int:
    """At work for a while."""
    return sum(echo(each) for each in range(count))


@activity.defn(name="Load", start_to_close_timeout=600)
def load(size: int) -> str:
    """Some text."""
    return "x" * size


_go = workflow.Channel("go", bool)


@workflow.defn(name="Large")
def large(megabytes: int) -> int:
    """A history of so many megabytes, which then waits for a signal."""
    got = sum(len(load(1_000_000)) for _ in range(megabytes))
    _go.receive()
    return got


WORKFLOWS = [quick, sleeper, waiting, steps]


def _held() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * getpagesize()


class Peak:
    """The most memory that the process has had since."""

    def __init__(self) -> None:
        self.before = self.most = _held()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(0.05):
            self.most = max(self.most, int(Path("/proc/self/statm").read_text().split()[1]) * getpagesize())

    def end(self) -> tuple[float, float]:
        self._over.set()
        self._thread.join()
        return self.before / 2**20, self.most / 2**20


Took = list[tuple[float, float]]
"""How long each of some workflows took from its start to its result: by the clock, and of this process's CPU. The latter is what
an idle machine with one core would need, disk aside, and says the same on a busy one.
"""


async def _probe(client: AsyncClient, go_on: Callable[[], bool], queue: str | None = None) -> Took:
    """New workflows, a few a second, while there is other work."""
    took: Took = []
    pending: set[asyncio.Task[None]] = set()

    async def one() -> None:
        begun, spent = time.perf_counter(), time.process_time()
        more = {} if queue is None else {"task_queue": queue}
        await client.execute_workflow(quick, 1, id=f"new-{uuid.uuid4().hex}", **more)
        took.append((time.perf_counter() - begun, time.process_time() - spent))

    while go_on():
        task = asyncio.create_task(one())
        pending.add(task)
        task.add_done_callback(pending.discard)
        await asyncio.sleep(0.02)
    await asyncio.gather(*pending)
    return took


def _spread(took: Took, name: str = "new") -> Values:
    found: Values = {}
    for values, unit in zip(zip(*took, strict=True), ("ms", "CPU ms"), strict=True):
        in_order = sorted(values)
        for part in (0.5, 0.99):
            at = min(len(in_order) - 1, int(len(in_order) * part))
            found[f"{unit} {name} p{part * 100:.0f}"] = in_order[at] * 1e3
    return found


async def _start_many(one: Callable[[int], Awaitable[object]], count: int) -> None:
    for begin in range(0, count, _WAVE):
        await asyncio.gather(*[one(each) for each in range(begin, min(begin + _WAVE, count))])


# --- the cases --------------------------------------------------------------------------------------------


async def _timers(count: int, place: str) -> Values:
    async with (
        await AsyncClient.connect(f"local:{place}/hourglass.db") as client,
        Worker(client, workflows=WORKFLOWS, activities=[echo]),
    ):
        await client.execute_workflow(quick, 1, id="warm")
        until = time.time() + 10.0 + count / 400

        async def one(number: int) -> object:
            return await client.start_workflow(sleeper, until, id=f"sleeper-{number}")

        await _start_many(one, count)
        late = time.time() - until
        if late > 0:
            raise RuntimeError(f"this machine is too slow: the timers fire {late:.0f} s too early")
        await asyncio.sleep(until - time.time() - 1)
        peak, begun, spent = Peak(), time.perf_counter(), time.process_time()
        took = await _probe(client, lambda: _ended < count)
        seconds, cpu = time.perf_counter() - begun - 1, time.process_time() - spent
        before, most = peak.end()
    return _spread(took) | {
        "s until all ended": seconds,
        "CPU s": cpu,
        "MiB before": before,
        "MiB at most": most,
        "new": len(took),
    }


async def _fill_waiting(count: int, path: str) -> None:
    async with (
        await AsyncClient.connect(f"local:{path}") as client,
        Worker(client, "other", workflows=WORKFLOWS, activities=[echo]),
    ):

        async def one(number: int) -> object:
            return await client.start_workflow(waiting, number, id=f"waiting-{number}", task_queue="default")

        await _start_many(one, count)


def _due(count: int, place: str) -> Values:
    path = f"{place}/hourglass.db"
    subprocess.run([sys.executable, "-m", "benchmarks.load", "fill", str(count), path], check=True)
    return asyncio.run(_serve_due(count, path))


async def _serve_due(count: int, path: str) -> Values:
    async with (
        await AsyncClient.connect("local:") as client,
        Worker(client, workflows=WORKFLOWS, activities=[echo]),
    ):
        await client.execute_workflow(quick, 1, id="warm")
    peak, begun, spent = Peak(), time.perf_counter(), time.process_time()
    async with (
        await AsyncClient.connect(f"local:{path}") as client,
        Worker(client, "default", workflows=WORKFLOWS, activities=[echo]),
    ):
        opened = time.perf_counter() - begun
        took = await _probe(client, lambda: _ended < count, "default")
        seconds, cpu = time.perf_counter() - begun, time.process_time() - spent
        before, most = peak.end()
    return _spread(took) | {
        "s to open": opened,
        "s until all ended": seconds,
        "CPU s": cpu,
        "MiB before": before,
        "MiB at most": most,
        "new": len(took),
    }


async def _flood(count: int, place: str) -> Values:
    async with (
        await AsyncClient.connect(f"local:{place}/hourglass.db") as client,
        Worker(client, "default", workflows=WORKFLOWS, activities=[echo]),
        Worker(client, "other", workflows=WORKFLOWS, activities=[echo]),
    ):
        await client.execute_workflow(quick, 1, id="warm", task_queue="default")
        peak, begun, spent = Peak(), time.perf_counter(), time.process_time()

        async def one(number: int) -> object:
            return await client.start_workflow(waiting, number, id=f"waiting-{number}", task_queue="default")

        flood = asyncio.create_task(_start_many(one, count))
        took, others = await asyncio.gather(
            _probe(client, lambda: _ended < count, "default"), _probe(client, lambda: _ended < count, "other")
        )
        await flood
        seconds, cpu = time.perf_counter() - begun, time.process_time() - spent
        before, most = peak.end()
    return (
        _spread(took, "same queue")
        | _spread(others, "other queue")
        | {"s until all ended": seconds, "CPU s": cpu, "MiB before": before, "MiB at most": most}
    )


async def _retention(seconds: int, place: str) -> Values:
    async with (
        await AsyncClient.connect(f"local:{place}/hourglass.db", retention=1.0) as client,
        Worker(client, workflows=WORKFLOWS, activities=[echo]),
    ):
        begun, closed = time.perf_counter(), 0

        async def again() -> None:
            nonlocal closed
            while time.perf_counter() < begun + seconds:
                await client.execute_workflow(sleeper, 0.0, id=uuid.uuid4().hex)
                closed += 1

        await asyncio.gather(*[again() for _ in range(50)])
        left = (await client.count_workflows()).count
        await asyncio.sleep(3)
        later = (await client.count_workflows()).count
    return {"closed/s": closed / seconds, "forgotten/s": (closed - left) / (seconds - 1), "left": later}


def _opening(count: int, place: str) -> Values:
    path = f"{place}/hourglass.db"
    with Client.connect(f"local:{path}") as client, Worker(client, workflows=WORKFLOWS, activities=[echo]):
        client.execute_workflow(quick, 1, id="one")
    _multiply(path, count)
    begun, spent, before = time.perf_counter(), time.process_time(), _held()
    with Client.connect(f"local:{path}") as client, Worker(client, workflows=WORKFLOWS, activities=[echo]):
        opened, cpu = time.perf_counter() - begun, time.process_time() - spent
        client.execute_workflow(quick, 1, id="two")
        first = time.perf_counter() - begun
        time.sleep(3)
        grown = _held() - before
    return {"s to open": opened, "CPU s to open": cpu, "s first result": first, "MiB more": grown / 2**20}


def _multiply(path: str, count: int) -> None:
    """Have the one closed run of a file there so many times, under other ids."""
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        key = db.execute("SELECT max(key) FROM runs").fetchone()[0]
        each = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count}) "
        db.execute(
            each + "INSERT INTO runs (key, run_id, workflow_id, wake_ns, close_ns, state) SELECT key + i, "
            f"run_id || i, workflow_id || i, wake_ns, close_ns, state FROM runs, n WHERE key = {key}"
        )
        db.execute(
            each + "INSERT INTO events (run, first_id, data) SELECT run + i, first_id, data FROM events, n "
            f"WHERE run = {key}"
        )
        names = [row[1] for row in db.execute("PRAGMA table_info(visibility)") if row[1] != "id"]
        values = [f"{name} || i" if name in ("run_id", "workflow_id") else name for name in names]
        db.execute(
            each
            + f"INSERT INTO visibility ({', '.join(names)}) SELECT {', '.join(values)} FROM visibility, n"
        )


async def _schedules(count: int, place: str) -> Values:
    spec = ScheduleSpec(intervals=[ScheduleIntervalSpec(every=timedelta(days=300))])
    async with (
        await AsyncClient.connect(f"local:{place}/hourglass.db") as client,
        Worker(client, workflows=WORKFLOWS, activities=[echo]),
    ):
        await client.execute_workflow(quick, 1, id="warm")

        async def one(number: int) -> object:
            action = ScheduleActionStartWorkflow("Quick", 1, id=f"started-{number}", task_queue="default")
            return await client.create_schedule(f"schedule-{number}", Schedule(action=action, spec=spec))

        await _start_many(one, count)
        listed, spent, begun = 0, time.process_time(), time.perf_counter()

        async def list_all() -> None:
            nonlocal listed
            async for _ in client.list_schedules():
                listed += 1

        task = asyncio.create_task(list_all())
        took = await _probe(client, lambda: not task.done())
        await task
        seconds, cpu = time.perf_counter() - begun, time.process_time() - spent
    assert listed == count, listed
    return _spread(took) | {"s to list": seconds, "µs CPU/schedule": cpu / count * 1e6}


async def _active(count: int, place: str) -> Values:
    found: Values = {}
    for at_once in (count // 8, count):
        async with (
            await AsyncClient.connect(f"local:{place}/{at_once}.db") as client,
            Worker(client, workflows=WORKFLOWS, activities=[echo]),
        ):
            await client.execute_workflow(quick, 1, id="warm")
            spent, begun = time.process_time(), time.perf_counter()
            each = 10
            await asyncio.gather(
                *[client.execute_workflow(steps, each, id=f"steps-{n}") for n in range(at_once)]
            )
            seconds, cpu = time.perf_counter() - begun, time.process_time() - spent
            found |= {
                f"steps/s at {at_once}": at_once * each / seconds,
                f"µs CPU/step at {at_once}": cpu / (at_once * each) * 1e6,
            }
    return found


def _ownerless(seconds: int, place: str) -> Values:
    path = f"{place}/hourglass.db"
    command = [sys.executable, "-m", "benchmarks.load", "starter", str(seconds), path]
    begun = time.perf_counter()
    clients = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    counts = [int(each.communicate()[0].split()[-1]) for each in clients]
    found: Values = {"starts/s": sum(counts) / seconds}
    return found | {"s in all": time.perf_counter() - begun, "fewest of one": min(counts)}


def _starter(seconds: int, path: str) -> int:
    """One client that starts one workflow after the other."""
    with Client.connect(f"local:{path}") as client:
        begun, count = time.perf_counter(), 0
        while time.perf_counter() < begun + seconds:
            client.start_workflow(quick, 1, id=uuid.uuid4().hex, task_queue="q")
            count += 1
        return count


def _history(megabytes: int, place: str) -> Values:
    path = f"{place}/hourglass.db"
    subprocess.run([sys.executable, "-m", "benchmarks.load", "large", str(megabytes), path], check=True)
    with Client.connect(f"local:{path}") as client:
        client.list_workflows()
        peak = Peak()
        handle = client.get_workflow_handle("large")
        handle.signal("go")
        before, loaded = peak.end()
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


def _reader(seconds: int, place: str) -> Values:
    found: Values = {}
    for kind in ("none", "again", "held"):
        path = f"{place}/{kind}.db"
        command = [sys.executable, "-m", "benchmarks.load", f"read-{kind}"]
        readers = [subprocess.Popen([*command, str(n), path]) for n in range(0 if kind == "none" else 2)]
        try:
            longest, done = asyncio.run(_beside(seconds, path))
        finally:
            for each in readers:
                each.kill()
                each.wait()
        found |= {
            f"MiB of log, {kind}": longest / 2**20,
            f"MiB/1000 steps, {kind}": longest / 2**20 / done * 1e3,
        }
    return found


async def _beside(seconds: int, path: str) -> tuple[int, int]:
    """The longest that the log was, and how many steps there were."""
    begun, longest, done = time.perf_counter(), 0, 0
    async with (
        await AsyncClient.connect(f"local:{path}") as client,
        Worker(client, workflows=WORKFLOWS, activities=[echo]),
    ):

        async def again() -> None:
            nonlocal done, longest
            while time.perf_counter() < begun + seconds:
                await client.execute_workflow(steps, 10, id=uuid.uuid4().hex)
                done += 10
                longest = max(longest, os.stat(f"{path}-wal").st_size)

        await asyncio.gather(*[again() for _ in range(50)])
    return longest, done


def _read(path: str, *, again: bool, number: int) -> None:
    """Read as a tool beside the engine would: one snapshot for ever, or one after the other, never none."""
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
    "timers": lambda *given: asyncio.run(_timers(*given)),
    "due": _due,
    "flood": lambda *given: asyncio.run(_flood(*given)),
    "retention": lambda *given: asyncio.run(_retention(*given)),
    "opening": _opening,
    "schedules": lambda *given: asyncio.run(_schedules(*given)),
    "active": lambda *given: asyncio.run(_active(*given)),
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
        case [case, size, place]:
            print(json.dumps(CASES[case](int(size), place)), flush=True)
        case _:
            sys.exit(__doc__)
