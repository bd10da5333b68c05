"""The rest of part `processes`: web processes that were forked after connecting, and how long a takeover takes.

    python -m benchmarks.web PATH ASKED PAUSE     connects, forks, asks from each child; prints all milliseconds

Flat out the processes ask as fast as they are answered, and share the machine's cores with the owner; paced they pause
between requests, as web processes do that are not overloaded.
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

from .processes import Owner, nothing, owner, p99, times
from .report import Row

_PROCESSES = 4
_LOADS = {"paced": 0.02, "flat out": 0.0}


def measure(*, quick: bool) -> list[Row]:
    """Start to result from four forked processes; from the owner's death to the next result."""
    asked, kills = (200, 5) if quick else (1500, 40)
    return [*_forked(asked), *_takeovers(kills)]


def _forked(asked: int) -> list[Row]:
    rows = []
    for load, pause in _LOADS.items():
        with tempfile.TemporaryDirectory() as directory, owner(Path(directory) / "bench.db") as one:
            command = [sys.executable, "-m", "benchmarks.web", str(one.path), str(asked), str(pause)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=600, check=True)
            found = [float(each) for each in done.stdout.split()]
        if len(found) != _PROCESSES * asked:
            raise RuntimeError(f"{len(found)} of {_PROCESSES * asked} requests were answered")
        for unit, value in (("ms p50", statistics.median(found)), ("ms p99", p99(found))):
            rows.append(Row("processes", "4 forked processes", load, value, unit))
    return sorted(rows, key=lambda row: row.unit)


def _takeovers(kills: int) -> list[Row]:
    """An owner is killed beside one that stands by, again and again."""
    found = []
    with tempfile.TemporaryDirectory() as directory, Client.connect(f"local:{directory}/bench.db") as client:
        path = Path(directory) / "bench.db"
        alive = [Owner.begin(path, 0)]
        try:
            for _ in range(kills):
                alive.append(Owner.begin(path, 0))  # says that it is ready when it stands by
                client.execute_workflow(nothing, id=uuid.uuid4().hex)
                found.append(_takeover(client, path, alive))
        finally:
            for each in alive:
                each.kill()
    case, subject = "the owner is killed", "next result"
    return [
        Row("processes", case, subject, statistics.median(found), "ms, median"),
        Row("processes", case, subject, max(found), "ms, worst"),
    ]


def _takeover(client: Client, path: Path, alive: list[Owner]) -> float:
    owning = FileLock(str(path)).note().pid
    (victim,) = [each for each in alive if each.pid == owning]
    alive.remove(victim)
    began = time.perf_counter()
    victim.kill()
    client.execute_workflow(nothing, id=uuid.uuid4().hex)
    return (time.perf_counter() - began) * 1e3


# --- in a process of its own ------------------------------------------------------------------------------


def _serve_web(path: str, asked: int, pause: float) -> None:
    client = Client.connect(f"local:{path}")
    client.execute_workflow(
        nothing, id=uuid.uuid4().hex
    )  # connected before the fork, as with gunicorn's preload
    children = []
    for _ in range(_PROCESSES):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            _ask(client, asked, pause, writing)
        os.close(writing)
        children.append((child, reading))
    for child, reading in children:
        with os.fdopen(reading) as said:
            print(said.read(), flush=True)
        os.waitpid(child, 0)
    client.close()


def _ask(client: Client, asked: int, pause: float, writing: int) -> None:
    try:
        chance = random.Random(os.getpid())
        found = times(client, asked, lambda: time.sleep(chance.expovariate(1 / pause)) if pause else None)
        with os.fdopen(writing, "w") as out:
            print(*found, file=out)
    finally:
        os._exit(0)


if __name__ == "__main__":
    _serve_web(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
