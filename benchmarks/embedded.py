"""Part `embedded`: time per activity step on one machine, workflows of five steps, 50 at a time and one at a time.

Client, worker and engine of a subject share a process of its own (but for Temporal's dev server, which is one by itself),
started anew for each measurement: `python -m benchmarks.embedded SUBJECT AT_ONCE SECONDS PORT`, which says how many
microseconds a step took, and how many of the CPU. What is durable is on the disk that holds the current directory.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from tempfile import TemporaryDirectory

from .earlier import environment, with_earlier
from .report import Row, interleave
from .server import dev_server

STEPS = 5
_AT_ONCE = (50, 1)
_WARM_UP = 0.5  # seconds


def measure(*, quick: bool) -> list[Row]:
    """All subjects, interleaved."""
    return asyncio.run(_measure(rounds=1 if quick else 3, seconds=2.0 if quick else 5.0))


async def _measure(*, rounds: int, seconds: float) -> list[Row]:
    rows: list[Row] = []
    async with dev_server() as (_, port):
        for at_once in _AT_ONCE:
            subjects = {
                shown: partial(_child, shown, name, at_once, seconds, port)
                for shown, name in with_earlier(*SUBJECTS).items()
            }
            case = f"{at_once} at a time"
            rows += await asyncio.to_thread(interleave, subjects, rounds=rounds, part="embedded", case=case)
    return rows


def _child(shown: str, subject: str, at_once: int, seconds: float, port: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.embedded", subject, str(at_once), str(seconds), str(port)]
    answer = subprocess.run(
        command, stdout=subprocess.PIPE, timeout=20 * seconds + 60, env=environment(shown)
    )
    if (
        not answer.stdout.split()
    ):  # what comes after it is not measured: temporalio's Core may abort as the process exits
        answer.check_returncode()
    took, cpu = answer.stdout.split()[-2:]
    return {"µs/step": float(took), "µs CPU/step": float(cpu)}


# --- in a process of its own ------------------------------------------------------------------------------


Steps = tuple[float, float]
"""Microseconds of a step: by the clock, and of this process's CPU."""


async def _awaited(one: Callable[[], Awaitable[int]], at_once: int, seconds: float) -> Steps:
    """What a step takes when so many workflows are awaited at a time, after a warm-up."""

    async def drive(limit: float) -> Steps:
        begun, spent, done = time.perf_counter(), time.process_time(), 0

        async def again() -> None:
            nonlocal done
            while time.perf_counter() < begun + limit:
                _check(await one())
                done += 1

        await asyncio.gather(*[again() for _ in range(at_once)])
        return _per_step(done, time.perf_counter() - begun, time.process_time() - spent)

    await drive(_WARM_UP)
    return await drive(seconds)


def _per_step(done: int, took: float, cpu: float) -> Steps:
    return took / (done * STEPS) * 1e6, cpu / (done * STEPS) * 1e6


def _in_threads(one: Callable[[], int], at_once: int, seconds: float) -> Steps:
    """The same for calls that block."""

    def drive(limit: float) -> Steps:
        begun, spent = time.perf_counter(), time.process_time()
        done: list[int] = []

        def again() -> None:
            count = 0
            while time.perf_counter() < begun + limit:
                _check(one())
                count += 1
            done.append(count)

        threads = [threading.Thread(target=again) for _ in range(at_once)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if len(done) != at_once:
            raise RuntimeError("a measured workflow failed")
        return _per_step(sum(done), time.perf_counter() - begun, time.process_time() - spent)

    drive(_WARM_UP)
    return drive(seconds)


def _check(result: int) -> None:
    if result != sum(range(STEPS)):
        raise RuntimeError(f"a measured run returned {result}")


async def _temporalio(at_once: int, seconds: float, port: int) -> Steps:
    from temporalio.client import Client
    from temporalio.worker import Worker

    from . import subjects_temporalio as subjects

    client, queue = await Client.connect(f"127.0.0.1:{port}"), f"bench-{uuid.uuid4().hex[:8]}"

    async def one() -> int:
        return await client.execute_workflow(
            subjects.Sequence.run, STEPS, id=uuid.uuid4().hex, task_queue=queue
        )

    async with Worker(client, task_queue=queue, workflows=[subjects.Sequence], activities=[subjects.echo]):
        return await _awaited(one, at_once, seconds)


def _dbos(at_once: int, seconds: float, port: int) -> Steps:
    from dbos import DBOS

    from .subjects_dbos import sequence

    with TemporaryDirectory(dir=".", prefix=".bench-") as place:
        url = f"sqlite:///{place}/dbos.sqlite"
        DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR"})
        DBOS.launch()
        try:
            return _in_threads(lambda: sequence(STEPS), at_once, seconds)
        finally:
            DBOS.destroy()


async def _hourglass(at_once: int, seconds: float, file: str) -> Steps:
    from hourglass import AsyncClient, Worker

    from . import subjects_hourglass as subjects

    async with (
        await AsyncClient.connect(f"local:{file}") as client,
        Worker(client, workflows=[subjects.sequence], activities=[subjects.echo]),
    ):

        async def one() -> int:
            return await client.execute_workflow(subjects.sequence, STEPS, id=uuid.uuid4().hex)

        return await _awaited(one, at_once, seconds)


def _in_memory(at_once: int, seconds: float, port: int) -> Steps:
    return asyncio.run(_hourglass(at_once, seconds, ""))


def _in_a_file(at_once: int, seconds: float, port: int) -> Steps:
    with TemporaryDirectory(dir=".", prefix=".bench-") as place:
        return asyncio.run(_hourglass(at_once, seconds, f"{place}/hourglass.db"))


SUBJECTS: dict[str, Callable[[int, float, int], Steps]] = {
    "temporalio, dev server": lambda *given: asyncio.run(_temporalio(*given)),
    "DBOS, SQLite": _dbos,
    "Hourglass, file": _in_a_file,
    "Hourglass, memory": _in_memory,
}

if __name__ == "__main__":
    print(*SUBJECTS[sys.argv[1]](int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])), flush=True)
