"""Part `embedded`: comparison of peers on workflows of five activity steps, with 50 and with one running at a time.

Client, worker and engine of a subject share one process, started for each measurement: `python -m benchmarks.embedded SUBJECT
JOB`, where JOB is JSON. Temporal's dev server and PostgreSQL are separate processes. The subject's process prints, as JSON, the
time and CPU time per step, its memory at the end, and the bytes on disk per step. Databases are created in the current directory.
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
    """Measure all subjects in interleaved rounds."""
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
    """Addresses of the servers that peers need, or the reasons why they are not available."""

    temporal: str = ""
    no_temporal: str = ""
    postgres: str = ""
    no_postgres: str = ""


@contextmanager
def peers() -> Iterator[Addresses]:
    """Start the servers that peers need, as far as they are available."""
    with ExitStack() as stack:
        fields: dict[str, str] = {}
        for name, server in (("temporal", running_server), ("postgres", postgres)):
            try:
                fields[name] = stack.enter_context(server())
            except NotHere as error:
                fields[f"no_{name}"] = str(error)
        yield Addresses(**fields)


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
    """Measure a subject in a separate process and return the values by unit.

    With a `rate`, start that many workflows per second and measure their latencies instead.
    """
    check_here(subject, addresses)
    job = json.dumps(
        asdict(addresses) | {"at_once": at_once, "seconds": seconds, "steps": steps, "rate": rate}
    )
    limit = 30 * seconds + 60
    command = [sys.executable, "-m", "benchmarks.embedded", subject, job]
    try:
        answer = subprocess.run(
            command, stdout=subprocess.PIPE, timeout=limit, env=environment(shown), text=True
        )
    except subprocess.TimeoutExpired:
        raise TooSlow(f"it did not finish within {limit:.0f} s") from None
    # The exit code is ignored once there is a result: temporalio's Core may abort while the process exits.
    lines = [line for line in answer.stdout.splitlines() if line.startswith("{")]
    if not lines:
        if shown.endswith(SUFFIX):
            raise NotHere("the earlier version does not have this subject")
        answer.check_returncode()
        raise RuntimeError(f"{subject} printed no result")
    values: dict[str, float] = json.loads(lines[-1])
    return values


@dataclass(frozen=True)
class Job:
    """Parameters of a measurement: steps per workflow, and workflows at a time (`at_once`) or per second (`rate`)."""

    at_once: int
    seconds: float
    steps: int
    rate: float
    temporal: str
    postgres: str


class Meter:
    """Meter of the time, CPU time, memory and disk space that the workflows of a job take, excluding a warm-up."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.steps = 0
        self.values: dict[str, float] = {}

    def start(self) -> None:
        """Start measuring."""
        self._cpu_started, self._started = time.process_time(), time.perf_counter()

    def stop(self, workflows: int) -> None:
        """Stop measuring after this number of workflows."""
        steps = workflows * self.job.steps
        elapsed, cpu = time.perf_counter() - self._started, time.process_time() - self._cpu_started
        gc.collect()
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * getpagesize()
        self.values |= {
            "steps/s": steps / elapsed,
            "µs/step": elapsed / steps * 1e6,
            "µs CPU/step": cpu / steps * 1e6,
            "MiB held": resident / 2**20,
        }

    def record_disk(self, size: int) -> None:
        """Record the bytes on disk after the subject was closed, of all steps including the warm-up."""
        self.values["bytes on disk/step"] = size / self.steps

    def record_latencies(self, latencies: list[float], requests: int) -> None:
        """Record percentiles of the latencies, and the share of the requests that were answered in time."""
        latencies.sort()
        self.values |= {
            f"ms p{percent:g}": latencies[min(len(latencies) - 1, int(len(latencies) * percent / 100))] * 1e3
            for percent in (50, 99, 99.9)
        }
        self.values["answered"] = len(latencies) / requests


async def measure_async(run_workflow: Callable[[], Awaitable[int]], meter: Meter) -> None:
    """Run workflows with an asynchronous client and record the results in the meter."""
    job = meter.job

    async def drive(seconds: float) -> int:
        end, completed = time.perf_counter() + seconds, 0

        async def run_repeatedly() -> None:
            nonlocal completed
            while True:
                check_result(await run_workflow(), job.steps)
                meter.steps += job.steps
                completed += 1
                if time.perf_counter() >= end:
                    return

        await asyncio.gather(*[run_repeatedly() for _ in range(job.at_once)])
        return completed

    if job.rate:
        await drive(_WARM_UP)
        await _measure_at_rate(run_workflow, meter)
        return
    await drive(_WARM_UP)
    meter.start()
    meter.stop(await drive(job.seconds))


async def _measure_at_rate(run_workflow: Callable[[], Awaitable[int]], meter: Meter) -> None:
    """Start workflows at a fixed rate, without waiting for earlier ones: latencies include the time in a growing backlog."""
    job, latencies = meter.job, []

    async def measure_latency(due: float) -> None:
        check_result(await run_workflow(), job.steps)
        meter.steps += job.steps
        latencies.append(time.perf_counter() - due)

    started = time.perf_counter()
    requests = max(1, int(job.rate * job.seconds))
    tasks = []
    for number in range(requests):
        due = started + number / job.rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(measure_latency(due)))
    await asyncio.wait(tasks, timeout=2 * job.seconds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    meter.record_latencies(latencies, requests)


def measure_blocking(run_workflow: Callable[[], int], meter: Meter) -> None:
    """Run workflows with a blocking client on threads and record the results in the meter."""

    async def run_in_executor() -> int:
        return await asyncio.get_running_loop().run_in_executor(None, run_workflow)

    async def measure_in_executor() -> None:
        from concurrent.futures import ThreadPoolExecutor

        pool = ThreadPoolExecutor(max(meter.job.at_once, 64 if meter.job.rate else 1))
        asyncio.get_running_loop().set_default_executor(pool)
        await measure_async(run_in_executor, meter)

    if meter.job.rate or meter.job.at_once == 1:
        asyncio.run(measure_in_executor())
        return
    job = meter.job

    def drive(seconds: float) -> int:
        end, counts = time.perf_counter() + seconds, []

        def run_repeatedly() -> None:
            count = 0
            while True:
                check_result(run_workflow(), job.steps)
                count += 1
                if time.perf_counter() >= end:
                    break
            counts.append(count)

        threads = [threading.Thread(target=run_repeatedly) for _ in range(job.at_once)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if len(counts) != job.at_once:
            raise RuntimeError("a measured workflow failed")
        meter.steps += sum(counts) * job.steps
        return sum(counts)

    drive(_WARM_UP)
    meter.start()
    meter.stop(drive(job.seconds))


def check_result(result: int, steps: int) -> None:
    """Raise unless the result shows that the workflow ran all of its steps."""
    if result != sum(range(steps)):
        raise RuntimeError(f"a measured run returned {result}")


async def _temporalio(job: Job) -> Meter:
    from temporalio.client import Client
    from temporalio.worker import Worker

    from . import subjects_temporalio as subjects

    client, queue = await Client.connect(job.temporal), f"bench-{uuid.uuid4().hex[:8]}"
    meter = Meter(job)

    async def run_workflow() -> int:
        return await client.execute_workflow(
            subjects.Sequence.run, job.steps, id=uuid.uuid4().hex, task_queue=queue
        )

    async with Worker(client, task_queue=queue, workflows=[subjects.Sequence], activities=[subjects.echo]):
        await measure_async(run_workflow, meter)
    return meter


def _dbos(job: Job, url: str) -> Meter:
    from dbos import DBOS

    from .subjects_dbos import sequence

    meter = Meter(job)
    DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR"})
    DBOS.launch()
    try:
        measure_blocking(lambda: sequence(job.steps), meter)
    finally:
        DBOS.destroy()
    return meter


def _dbos_sqlite(job: Job) -> Meter:
    with TemporaryDirectory(dir=".", prefix=".bench-") as folder:
        meter = _dbos(job, f"sqlite:///{folder}/dbos.sqlite")
        meter.record_disk(_size(folder))
        return meter


def _dbos_postgres(job: Job) -> Meter:
    before = size_of(job.postgres)
    meter = _dbos(job, job.postgres)
    meter.record_disk(size_of(job.postgres) - before)
    return meter


def _size(folder: str) -> int:
    return sum(path.stat().st_size for path in Path(folder).iterdir())


async def _hourglass(job: Job, file: str) -> Meter:
    from hourglass import AsyncClient, Worker

    from . import subjects_hourglass as subjects

    meter = Meter(job)
    async with (
        await AsyncClient.connect(f"local:{file}") as client,
        Worker(client, workflows=[subjects.sequence], activities=[subjects.echo]),
    ):

        async def run_workflow() -> int:
            return await client.execute_workflow(subjects.sequence, job.steps, id=uuid.uuid4().hex)

        await measure_async(run_workflow, meter)
    return meter


def _hourglass_memory(job: Job) -> Meter:
    return asyncio.run(_hourglass(job, ""))


def _hourglass_file(job: Job) -> Meter:
    with TemporaryDirectory(dir=".", prefix=".bench-") as folder:
        meter = asyncio.run(_hourglass(job, f"{folder}/hourglass.db"))
        meter.record_disk(_size(folder))
        return meter


SUBJECTS: dict[str, Callable[[Job], Meter]] = {
    "temporalio, dev server": lambda job: asyncio.run(_temporalio(job)),
    "DBOS, SQLite": _dbos_sqlite,
    "DBOS, PostgreSQL": _dbos_postgres,
    "Hourglass, file": _hourglass_file,
    "Hourglass, memory": _hourglass_memory,
}

if __name__ == "__main__":
    _arguments = json.loads(sys.argv[2])
    _job = Job(**{name: _arguments[name] for name in Job.__dataclass_fields__})
    print(json.dumps(SUBJECTS[sys.argv[1]](_job).values), flush=True)
