"""Part `cores`: what several processes that work on one file are worth, and what the death of one costs.

Workers are processes of their own (`python -m benchmarks.cores PATH`); the driver is a client in this one. Each case is
measured with one worker and with as many as there are processors, in turn, each time on a new file. Beside the time that
passed stands the processor time that the busiest process used for a step: on a machine that does other things, too, that
is what would bound it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from hourglass import Client, Worker, activity, workflow

from .report import Row, interleave

AT_A_TIME = 32
STEPS = 10


def _compute(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


@activity.defn
def step(seconds: float) -> int:
    """An activity that computes in Python."""
    if seconds:
        _compute(seconds)
    return os.getpid()


@workflow.defn
def computing(steps: int, in_activities: float, in_workflow: float) -> int:
    """So many steps, one after the other, which compute here or there."""
    for _ in range(steps):
        if in_workflow:
            _compute(in_workflow)
        step(in_activities)
    return steps


CASES = {
    "3 ms activities": (0.003, 0.0, 40),
    "1 ms workflow code": (0.0, 0.001, 80),
    "plain steps": (0.0, 0.0, 400),
}


def measure(*, quick: bool) -> list[Row]:
    """Milliseconds per step with one process and with several; seconds until work goes on after a process was killed."""
    several = max(2, len(os.sched_getaffinity(0)))
    rows: list[Row] = []
    for case, (in_activities, in_workflow, runs) in CASES.items():
        subjects: dict[str, Callable[[], dict[str, float]]] = {
            f"{count} process{'es' if count > 1 else ''}": partial(
                run_steps, count, runs // 4 if quick else runs, in_activities, in_workflow
            )
            for count in (1, several)
        }
        rows += interleave(subjects, rounds=1 if quick else 3, part="cores", case=case)
    return [*rows, *_kills(several + 1, 3 if quick else 10)]


def run_steps(count: int, runs: int, in_activities: float, in_workflow: float) -> dict[str, float]:
    with workers(count) as (path, processes), Client.connect(f"local:{path}") as client:

        def one(number: int) -> None:
            done = client.execute_workflow(
                computing, STEPS, in_activities, in_workflow, id=f"{number}-{uuid.uuid4().hex}"
            )
            assert done == STEPS

        with ThreadPoolExecutor(AT_A_TIME) as pool:
            list(pool.map(one, range(AT_A_TIME)))  # the first ones warm up
            used = [_processor_time(each.pid) for each in processes]
            began = time.perf_counter()
            list(pool.map(one, range(runs)))
            passed = time.perf_counter() - began
        busiest = max(
            _processor_time(each.pid) - before for each, before in zip(processes, used, strict=True)
        )
    return {"ms/step": passed * 1e3 / (runs * STEPS), "CPU ms/step": busiest * 1e3 / (runs * STEPS)}


def _processor_time(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _kills(count: int, kills: int) -> list[Row]:
    """From the death of a process under load until all that was under way then has its result: the longest of some."""
    from hourglass._embedded.sharing.ownership import FileLock

    longest = {"another process": 0.0, "the owner": 0.0}
    with workers(count) as (path, processes), Client.connect(f"local:{path}") as client:
        stopped, spans = threading.Event(), []

        def drive() -> None:
            while not stopped.is_set():
                began = time.monotonic()
                client.execute_workflow(computing, 3, 0.0, 0.0, id=uuid.uuid4().hex)
                spans.append((began, time.monotonic()))

        threads = [threading.Thread(target=drive) for _ in range(8)]
        for thread in threads:
            thread.start()
        for number in range(kills):
            time.sleep(1.0)
            owner = FileLock(str(path)).note().pid
            victim = next(each for each in processes if (each.pid == owner) == bool(number % 2))
            died = time.monotonic()
            victim.kill()
            victim.wait()
            processes.remove(victim)
            processes.append(_begin(path))
            time.sleep(1.0)
            under_way = [end - died for begin, end in list(spans) if begin < died < end]
            kind = "the owner" if number % 2 else "another process"
            longest[kind] = max(longest[kind], *under_way, 0.0)
        stopped.set()
        for thread in threads:
            thread.join()
    return [
        Row("cores", "killed under load", name, value * 1e3, "ms, worst") for name, value in longest.items()
    ]


@contextmanager
def workers(count: int) -> Iterator[tuple[Path, list[subprocess.Popen[str]]]]:
    """So many processes at work on a new file; the first owns it."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "bench.db"
        processes = [_begin(path) for _ in range(count)]
        try:
            yield path, processes
        finally:
            for each in processes:
                each.kill()
                each.wait()
                assert each.stdout is not None
                each.stdout.close()


def _begin(path: Path) -> subprocess.Popen[str]:
    begun = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.cores", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert begun.stdout is not None
    if begun.stdout.readline().strip() != "ready":
        raise RuntimeError("a worker did not begin")
    return begun


if __name__ == "__main__":
    with Client.connect(f"local:{sys.argv[1]}") as connected:
        Worker(connected, workflows=[computing], activities=[step]).run(
            on_started=lambda: print("ready", flush=True)
        )
