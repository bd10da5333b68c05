"""Part `cores`: what several processes that work on one file are worth, and what the death of one costs.

Workers are processes of their own (`python -m benchmarks.cores PATH [PLACE]`); the driver is a client in this one. Each case is
measured with one worker and with as many as there are processors, in turn, each time on a new file. Several keep to a
processor each, as those of `hourglass worker` do, or not, as those of a web server. Beside the time that
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
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from hourglass import Client, Worker, activity, workflow
from hourglass._worker import processors

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
    "3 ms activities": (0.003, 0.0),
    "1 ms workflow code": (0.0, 0.001),
    "plain steps": (0.0, 0.0),
}
_WARM_UP = 2.0  # seconds


def measure(*, quick: bool) -> list[Row]:
    """Milliseconds per step with one process and with several; seconds until work goes on after a process was killed."""
    several = max(2, len(os.sched_getaffinity(0)))
    rows: list[Row] = []
    for case, computing_for in CASES.items():
        subjects: dict[str, Callable[[], dict[str, float]]] = {
            "1 process": partial(run_steps, 1, *computing_for, quick=quick),
            f"{several} processes": partial(run_steps, several, *computing_for, bound=True, quick=quick),
            f"{several} processes, not pinned": partial(run_steps, several, *computing_for, quick=quick),
        }
        rows += interleave(subjects, rounds=1 if quick else 3, part="cores", case=case)
    return [*rows, *_kills(several + 1, 3 if quick else 10)]


def run_steps(
    count: int, in_activities: float, in_workflow: float, *, bound: bool = False, quick: bool = False
) -> dict[str, float]:
    """Steps of workflows, always so many at a time, that end while some seconds pass."""
    with workers(count, bound=bound) as (path, processes), Client.connect(f"local:{path}") as client:
        ended = [0] * AT_A_TIME
        stopped = threading.Event()

        def drive(number: int) -> None:
            while not stopped.is_set():
                client.execute_workflow(computing, STEPS, in_activities, in_workflow, id=uuid.uuid4().hex)
                ended[number] += STEPS

        threads = [threading.Thread(target=drive, args=(number,)) for number in range(AT_A_TIME)]
        for thread in threads:
            thread.start()
        time.sleep(_WARM_UP)
        used = [_processor_time(each.pid) for each in processes]
        before, began = sum(ended), time.perf_counter()
        time.sleep(4.0 if quick else 8.0)
        steps, passed = sum(ended) - before, time.perf_counter() - began
        busiest = max(
            _processor_time(each.pid) - before for each, before in zip(processes, used, strict=True)
        )
        stopped.set()
        for thread in threads:
            thread.join()
    return {"ms/step": passed * 1e3 / steps, "CPU ms/step": busiest * 1e3 / steps}


def _processor_time(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _kills(count: int, kills: int) -> list[Row]:
    """From the death of a process under load until all that was under way then has its result: the longest of some."""
    from hourglass._embedded.multiprocess.ownership import FileLock

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
def workers(count: int, *, bound: bool = False) -> Iterator[tuple[Path, list[subprocess.Popen[str]]]]:
    """So many processes at work on a new file; the first owns it. `bound`: each keeps to a processor."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "bench.db"
        processes = [_begin(path, number if bound else None) for number in range(count)]
        try:
            yield path, processes
        finally:
            for each in processes:
                each.kill()
                each.wait()
                assert each.stdout is not None
                each.stdout.close()


def _begin(path: Path, place: int | None = None) -> subprocess.Popen[str]:
    begun = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.cores", str(path), *([] if place is None else [str(place)])],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert begun.stdout is not None
    if begun.stdout.readline().strip() != "ready":
        raise RuntimeError("a worker did not begin")
    return begun


if __name__ == "__main__":
    if len(sys.argv) > 2:
        processors.bind(int(sys.argv[2]))
    with Client.connect(f"local:{sys.argv[1]}") as connected:
        Worker(connected, workflows=[computing], activities=[step]).run(
            on_started=lambda: print("ready", flush=True)
        )
