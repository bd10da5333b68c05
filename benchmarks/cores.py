"""Part `cores`: throughput of several worker processes on one file, and recovery time after one of them is killed.

Each worker is a separate process (`python -m benchmarks.cores PATH [PLACE]`), driven by a client in this process. Each case is
measured alternately with one worker and with one worker per processor, always on a new file. Several workers are either pinned
to one processor each, like those of `hourglass worker`, or not pinned, like those of a web server. Besides the elapsed time, the
CPU time per step of the busiest process is reported: it bounds the throughput on an otherwise idle machine.
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
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from hourglass import Client, Worker, activity, workflow
from hourglass._worker import cpus

from .report import Row, interleave

CONCURRENCY = 32
STEPS = 10


def _compute(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


@activity.defn
def step(seconds: float) -> int:
    """Use the CPU for `seconds` of thread time."""
    if seconds:
        _compute(seconds)
    return os.getpid()


@workflow.defn
def computing(steps: int, in_activities: float, in_workflow: float) -> int:
    """Run sequential steps that use the CPU in the workflow, in the activity, or in neither."""
    for _ in range(steps):
        if in_workflow:
            _compute(in_workflow)
        step(in_activities)
    return steps


CASES = {
    "3 ms activities": (0.003, 0.0),
    "1 ms workflow code": (0.0, 0.001),
    "plain steps": (0.0, 0.0),
}
_WARM_UP = 2.0  # seconds


def measure(*, quick: bool) -> list[Row]:
    """Return milliseconds per step with one and several processes, and the recovery time after a process is killed."""
    several = max(2, len(os.sched_getaffinity(0)))
    rows: list[Row] = []
    for case, durations in CASES.items():
        subjects: dict[str, Callable[[], dict[str, float]]] = {
            "1 process": partial(run_steps, 1, *durations, quick=quick),
            f"{several} processes": partial(run_steps, several, *durations, bound=True, quick=quick),
            f"{several} processes, not pinned": partial(run_steps, several, *durations, quick=quick),
        }
        rows += interleave(subjects, rounds=1 if quick else 3, part="cores", case=case)
    return [*rows, *_kills(several + 1, 3 if quick else 10)]


def run_steps(
    count: int, in_activities: float, in_workflow: float, *, bound: bool = False, quick: bool = False
) -> dict[str, float]:
    """Run `CONCURRENCY` workflows at a time on `count` processes for a few seconds. Return the time per step."""
    with workers(count, bound=bound) as (path, processes), Client.connect(f"local:{path}") as client:
        finished_steps = [0] * CONCURRENCY
        stopped = threading.Event()

        def drive(number: int) -> None:
            while not stopped.is_set():
                client.execute_workflow(computing, STEPS, in_activities, in_workflow, id=uuid.uuid4().hex)
                finished_steps[number] += STEPS

        threads = [threading.Thread(target=drive, args=(number,)) for number in range(CONCURRENCY)]
        for thread in threads:
            thread.start()
        time.sleep(_WARM_UP)
        cpu_before = [_cpu_time(process.pid) for process in processes]
        steps_before, started = sum(finished_steps), time.perf_counter()
        time.sleep(4.0 if quick else 8.0)
        steps, elapsed = sum(finished_steps) - steps_before, time.perf_counter() - started
        busiest = max(
            _cpu_time(process.pid) - before for process, before in zip(processes, cpu_before, strict=True)
        )
        stopped.set()
        for thread in threads:
            thread.join()
    return {"ms/step": elapsed * 1e3 / steps, "CPU ms/step": busiest * 1e3 / steps}


def _cpu_time(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _kills(count: int, kills: int) -> list[Row]:
    """Return the longest time from killing a process under load until all workflows in progress have a result."""
    from hourglass._embedded.multiprocess.ownership import FileLock

    longest = {"another process": 0.0, "the owner": 0.0}
    with workers(count) as (path, processes), Client.connect(f"local:{path}") as client:
        stopped, intervals = threading.Event(), []

        def drive() -> None:
            while not stopped.is_set():
                started = time.monotonic()
                client.execute_workflow(computing, 3, 0.0, 0.0, id=uuid.uuid4().hex)
                intervals.append((started, time.monotonic()))

        threads = [threading.Thread(target=drive) for _ in range(8)]
        for thread in threads:
            thread.start()
        for number in range(kills):
            time.sleep(1.0)
            owner = FileLock(str(path)).note().pid
            victim = next(process for process in processes if (process.pid == owner) == bool(number % 2))
            killed_at = time.monotonic()
            victim.kill()
            victim.wait()
            processes.remove(victim)
            processes.append(_start_worker(path))
            time.sleep(1.0)
            recoveries = [end - killed_at for start, end in list(intervals) if start < killed_at < end]
            kind = "the owner" if number % 2 else "another process"
            longest[kind] = max(longest[kind], *recoveries, 0.0)
        stopped.set()
        for thread in threads:
            thread.join()
    return [
        Row("cores", "killed under load", name, value * 1e3, "ms, worst") for name, value in longest.items()
    ]


@contextmanager
def workers(count: int, *, bound: bool = False) -> Iterator[tuple[Path, list[subprocess.Popen[str]]]]:
    """Start `count` worker processes on a new file, owned by the first. With `bound`, pin each to a processor."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "bench.db"
        processes = [_start_worker(path, number if bound else None) for number in range(count)]
        try:
            yield path, processes
        finally:
            for process in processes:
                process.kill()
                process.wait()
                assert process.stdout is not None
                process.stdout.close()


def _start_worker(path: Path, place: int | None = None) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.cores", str(path), *([] if place is None else [str(place)])],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    if process.stdout.readline().strip() != "ready":
        raise RuntimeError("a worker process did not start")
    return process


if __name__ == "__main__":
    if len(sys.argv) > 2:
        cpus.bind(int(sys.argv[2]))
    with Client.connect(f"local:{sys.argv[1]}") as connected:
        Worker(connected, workflows=[computing], activities=[step]).run(
            on_started=lambda: print("ready", flush=True)
        )
