"""Part `embedded`: peers side by side on one machine: workflows of five activity steps, 50 at a time and one at a time.

Client, worker and engine of a subject share a process of its own (but for Temporal's dev server and PostgreSQL, which are
processes by themselves), started anew for each measurement: `python -m benchmarks.embedded SUBJECT AT_ONCE SECONDS ADDRESSES`,
which says how many microseconds a step took, how many of the CPU of its own process, how much memory that held at the end,
and how many bytes a step left on the disk. What is durable is on the disk that holds the current directory.
"""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from resource import getpagesize
from tempfile import TemporaryDirectory

from .earlier import SUFFIX, environment, with_earlier
from .postgres import postgres, size_of
from .report import NotHere, Row, TooSlow, interleave
from .server import running_server

STEPS = 5
_AT_ONCE = (50, 1)
_WARM_UP = 0.5  # seconds


def measure(*, quick: bool) -> list[Row]:
    """All subjects, interleaved."""
    rounds, seconds = (3, 1.5) if quick else (7, 2.0)
    rows: list[Row] = []
    with peers() as addresses:
        for at_once in _AT_ONCE:
            subjects = {
                shown: partial(child, shown, name, at_once, seconds, addresses)
                for shown, name in with_earlier(*SUBJECTS).items()
            }
            rows += interleave(subjects, rounds=rounds, part="embedded", case=f"{at_once} at a time")
    return rows


@dataclass(frozen=True)
class Addresses:
    """Where the servers are that peers need; why not, where they are not."""

    temporal: str = ""
    no_temporal: str = ""
    postgres: str = ""
    no_postgres: str = ""


@contextmanager
def peers() -> Iterator[Addresses]:
    """The servers that peers need, as far as they can be had."""
    with ExitStack() as stack:
        found: dict[str, str] = {}
        for name, server in (("temporal", running_server), ("postgres", postgres)):
            try:
                found[name] = stack.enter_context(server())
            except NotHere as why:
                found[f"no_{name}"] = str(why)
        yield Addresses(**found)


def check_here(subject: str, addresses: Addresses) -> None:
    """Raise `NotHere` if the subject cannot be measured."""
    if subject.startswith("DBOS") and find_spec("dbos") is None:
        raise NotHere("dbos is not installed (pip install --group bench)")
    if "PostgreSQL" in subject and not addresses.postgres:
        raise NotHere(addresses.no_postgres)
    if subject.startswith("temporalio") and not addresses.temporal:
        raise NotHere(addresses.no_temporal)


def child(
    shown: str,
    subject: str,
    at_once: int,
    seconds: float,
    addresses: Addresses,
    steps: int = STEPS,
    rate: float = 0.0,
) -> dict[str, float]:
    """One measurement of a subject, in a process of its own: values by unit. With a `rate` so many are started a second, and
    what is measured is how long each took.
    """
    check_here(subject, addresses)
    told = json.dumps(
        asdict(addresses) | {"at_once": at_once, "seconds": seconds, "steps": steps, "rate": rate}
    )
    limit = 30 * seconds + 60
    command = [sys.executable, "-m", "benchmarks.embedded", subject, told]
    try:
        answer = subprocess.run(
            command, stdout=subprocess.PIPE, timeout=limit, env=environment(shown), text=True
        )
    except subprocess.TimeoutExpired:
        raise TooSlow(f"it takes more than {limit:.0f} s") from None
    # What comes after the answer is not measured: temporalio's Core may abort as the process exits.
    lines = [line for line in answer.stdout.splitlines() if line.startswith("{")]
    if not lines:
        if shown.endswith(SUFFIX):
            raise NotHere("the earlier version has no such subject")
        answer.check_returncode()
        raise RuntimeError(f"{subject} says nothing")
    found: dict[str, float] = json.loads(lines[-1])
    return found


# --- in a process of its own ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """What is to be measured: workflows of so many steps, so many at a time, or started at a rate."""

    at_once: int
    seconds: float
    steps: int
    rate: float
    temporal: str
    postgres: str


class Meter:
    """What one run after the other took, after a warm-up: of the clock, and of this process's CPU; and what all left on disk."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.steps = 0
        self.found: dict[str, float] = {}

    def begin(self) -> None:
        """From here on it counts."""
        self._spent, self._begun = time.process_time(), time.perf_counter()

    def end(self, done: int) -> None:
        """So many workflows have ended."""
        steps = done * self.job.steps
        took, cpu = time.perf_counter() - self._begun, time.process_time() - self._spent
        gc.collect()
        held = int(Path("/proc/self/statm").read_text().split()[1]) * getpagesize()
        self.found |= {
            "steps/s": steps / took,
            "µs/step": took / steps * 1e6,
            "µs CPU/step": cpu / steps * 1e6,
            "MiB held": held / 2**20,
        }

    def on_disk(self, size: int) -> None:
        """All that was done, the warm-up too, has left so many bytes, its subject closed."""
        self.found["bytes on disk/step"] = size / self.steps

    def spread(self, took: list[float], asked: int) -> None:
        """How long each of those took that were started at a rate; those that were not done in time count as unanswered."""
        took.sort()
        self.found |= {
            f"ms p{share:g}": took[min(len(took) - 1, int(len(took) * share / 100))] * 1e3
            for share in (50, 99, 99.9)
        }
        self.found["answered"] = len(took) / asked


async def awaited(one: Callable[[], Awaitable[int]], meter: Meter) -> None:
    """Drive calls that are awaited."""
    job = meter.job

    async def drive(limit: float) -> int:
        end, done = time.perf_counter() + limit, 0

        async def again() -> None:
            nonlocal done
            while True:
                check(await one(), job.steps)
                meter.steps += job.steps
                done += 1
                if time.perf_counter() >= end:
                    return

        await asyncio.gather(*[again() for _ in range(job.at_once)])
        return done

    if job.rate:
        await drive(_WARM_UP)
        await _at_a_rate(one, meter)
        return
    await drive(_WARM_UP)
    meter.begin()
    meter.end(await drive(job.seconds))


async def _at_a_rate(one: Callable[[], Awaitable[int]], meter: Meter) -> None:
    """Started by the clock, whether or not those before are done: a queue that grows shows."""
    job, took = meter.job, []

    async def timed(due: float) -> None:
        check(await one(), job.steps)
        meter.steps += job.steps
        took.append(time.perf_counter() - due)

    begun = time.perf_counter()
    asked = max(1, int(job.rate * job.seconds))
    tasks = []
    for number in range(asked):
        due = begun + number / job.rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(timed(due)))
    await asyncio.wait(tasks, timeout=2 * job.seconds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    meter.spread(took, asked)


def in_threads(one: Callable[[], int], meter: Meter) -> None:
    """The same for calls that block."""

    async def call() -> int:
        return await asyncio.get_running_loop().run_in_executor(None, one)

    async def body() -> None:
        from concurrent.futures import ThreadPoolExecutor

        pool = ThreadPoolExecutor(max(meter.job.at_once, 64 if meter.job.rate else 1))
        asyncio.get_running_loop().set_default_executor(pool)
        await awaited(call, meter)

    if meter.job.rate or meter.job.at_once == 1:
        asyncio.run(body())
        return
    job = meter.job

    def drive(limit: float) -> int:
        end, done = time.perf_counter() + limit, []

        def again() -> None:
            count = 0
            while True:
                check(one(), job.steps)
                count += 1
                if time.perf_counter() >= end:
                    break
            done.append(count)

        threads = [threading.Thread(target=again) for _ in range(job.at_once)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if len(done) != job.at_once:
            raise RuntimeError("a measured workflow failed")
        meter.steps += sum(done) * job.steps
        return sum(done)

    drive(_WARM_UP)
    meter.begin()
    meter.end(drive(job.seconds))


def check(result: int, steps: int) -> None:
    """A workflow has done all of its steps."""
    if result != sum(range(steps)):
        raise RuntimeError(f"a measured run returned {result}")


async def _temporalio(job: Job) -> Meter:
    from temporalio.client import Client
    from temporalio.worker import Worker

    from . import subjects_temporalio as subjects

    client, queue = await Client.connect(job.temporal), f"bench-{uuid.uuid4().hex[:8]}"
    meter = Meter(job)

    async def one() -> int:
        return await client.execute_workflow(
            subjects.Sequence.run, job.steps, id=uuid.uuid4().hex, task_queue=queue
        )

    async with Worker(client, task_queue=queue, workflows=[subjects.Sequence], activities=[subjects.echo]):
        await awaited(one, meter)
    return meter


def _dbos(job: Job, url: str) -> Meter:
    from dbos import DBOS

    from .subjects_dbos import sequence

    meter = Meter(job)
    DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR"})
    DBOS.launch()
    try:
        in_threads(lambda: sequence(job.steps), meter)
    finally:
        DBOS.destroy()
    return meter


def _dbos_sqlite(job: Job) -> Meter:
    with TemporaryDirectory(dir=".", prefix=".bench-") as place:
        meter = _dbos(job, f"sqlite:///{place}/dbos.sqlite")
        meter.on_disk(_size(place))
        return meter


def _dbos_postgres(job: Job) -> Meter:
    before = size_of(job.postgres)
    meter = _dbos(job, job.postgres)
    meter.on_disk(size_of(job.postgres) - before)
    return meter


def _size(place: str) -> int:
    return sum(each.stat().st_size for each in Path(place).iterdir())


async def _hourglass(job: Job, file: str) -> Meter:
    from hourglass import AsyncClient, Worker

    from . import subjects_hourglass as subjects

    meter = Meter(job)
    async with (
        await AsyncClient.connect(f"local:{file}") as client,
        Worker(client, workflows=[subjects.sequence], activities=[subjects.echo]),
    ):

        async def one() -> int:
            return await client.execute_workflow(subjects.sequence, job.steps, id=uuid.uuid4().hex)

        await awaited(one, meter)
    return meter


def _in_memory(job: Job) -> Meter:
    return asyncio.run(_hourglass(job, ""))


def _in_a_file(job: Job) -> Meter:
    with TemporaryDirectory(dir=".", prefix=".bench-") as place:
        meter = asyncio.run(_hourglass(job, f"{place}/hourglass.db"))
        meter.on_disk(_size(place))
        return meter


SUBJECTS: dict[str, Callable[[Job], Meter]] = {
    "temporalio, dev server": lambda job: asyncio.run(_temporalio(job)),
    "DBOS, SQLite": _dbos_sqlite,
    "DBOS, PostgreSQL": _dbos_postgres,
    "Hourglass, file": _in_a_file,
    "Hourglass, memory": _in_memory,
}

if __name__ == "__main__":
    _given = json.loads(sys.argv[2])
    _job = Job(**{name: _given[name] for name in Job.__dataclass_fields__})
    print(json.dumps(SUBJECTS[sys.argv[1]](_job).found), flush=True)
