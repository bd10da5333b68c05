"""Second half of part `processes`: web processes forked after connecting, and the duration of a takeover.

    python -m benchmarks.web PATH REQUESTS PAUSE     connect, fork, run workflows in each child; print all latencies in ms

In the case `flat out` each process sends the next request immediately, and shares the cores with the owner; in the case `paced`
it pauses between requests, like web processes that are not overloaded.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

from hourglass import Client
from hourglass._embedded.multiprocess.ownership import FileLock

from .processes import Owner, measure_latencies, nothing, p99, run_owner
from .report import Row

_PROCESSES = 4
_LOADS = {"paced": 0.02, "flat out": 0.0}


def measure(*, quick: bool) -> list[Row]:
    """Return latencies of four forked processes, and the time from killing the owner to the next result."""
    requests, kills = (200, 5) if quick else (1500, 40)
    return [*_measure_forked(requests), *_measure_takeovers(kills)]


def _measure_forked(requests: int) -> list[Row]:
    rows = []
    for load, pause in _LOADS.items():
        with tempfile.TemporaryDirectory() as directory, run_owner(Path(directory) / "bench.db") as owner:
            command = [sys.executable, "-m", "benchmarks.web", str(owner.path), str(requests), str(pause)]
            process = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=600, check=True)
            latencies = [float(latency) for latency in process.stdout.split()]
        if len(latencies) != _PROCESSES * requests:
            raise RuntimeError(f"{len(latencies)} of {_PROCESSES * requests} requests were answered")
        for unit, value in (("ms p50", statistics.median(latencies)), ("ms p99", p99(latencies))):
            rows.append(Row("processes", "4 forked processes", load, value, unit))
    return sorted(rows, key=lambda row: row.unit)


def _measure_takeovers(kills: int) -> list[Row]:
    """Repeatedly kill the owner while another process is on standby."""
    durations = []
    with tempfile.TemporaryDirectory() as directory, Client.connect(f"local:{directory}/bench.db") as client:
        path = Path(directory) / "bench.db"
        alive = [Owner.start(path, 0)]
        try:
            for _ in range(kills):
                alive.append(Owner.start(path, 0))  # ready once it is on standby
                client.execute_workflow(nothing, id=uuid.uuid4().hex)
                durations.append(_measure_takeover(client, path, alive))
        finally:
            for process in alive:
                process.kill()
    case, subject = "the owner is killed", "next result"
    return [
        Row("processes", case, subject, statistics.median(durations), "ms, median"),
        Row("processes", case, subject, max(durations), "ms, worst"),
    ]


def _measure_takeover(client: Client, path: Path, alive: list[Owner]) -> float:
    owner_pid = FileLock(str(path)).note().pid
    (victim,) = [process for process in alive if process.pid == owner_pid]
    alive.remove(victim)
    started = time.perf_counter()
    victim.kill()
    client.execute_workflow(nothing, id=uuid.uuid4().hex)
    return (time.perf_counter() - started) * 1e3


def _serve_web(path: str, requests: int, pause: float) -> None:
    client = Client.connect(f"local:{path}")
    # Connect before the fork, like gunicorn with --preload.
    client.execute_workflow(nothing, id=uuid.uuid4().hex)
    children = []
    for _ in range(_PROCESSES):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            _run_child(client, requests, pause, writing)
        os.close(writing)
        children.append((child, reading))
    for child, reading in children:
        with os.fdopen(reading) as output:
            print(output.read(), flush=True)
        os.waitpid(child, 0)
    client.close()


def _run_child(client: Client, requests: int, pause: float, writing: int) -> None:
    try:
        rng = random.Random(os.getpid())
        latencies = measure_latencies(
            client, requests, lambda: time.sleep(rng.expovariate(1 / pause)) if pause else None
        )
        with os.fdopen(writing, "w") as output:
            print(*latencies, file=output)
    finally:
        os._exit(0)


if __name__ == "__main__":
    _serve_web(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
