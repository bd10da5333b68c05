"""Part `processes`: from start to result on one file, asked by the owner's own process and by another, over its socket.

The owner is a process of its own (`python -m benchmarks.processes PATH LOAD`), idle or busy with runs of its own;
every step is fsynced. One run at a time is asked for: what is measured is how long a web request would wait.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hourglass import Client, Worker, workflow

from .report import Row
from .subjects_hourglass import echo, sequence

_LOADS = {"idle": 0, "busy": 4}


@workflow.defn
def nothing() -> int:
    """No step: start and result are all there is."""
    return 7


def measure(*, quick: bool) -> list[Row]:
    """Milliseconds from start to result, the middle one and the worst but one in a hundred."""
    asked = 300 if quick else 2000
    return [row for load in _LOADS for row in _measure(load, asked)]


def _measure(load: str, asked: int) -> list[Row]:
    with tempfile.TemporaryDirectory() as directory, _owner(Path(directory) / "bench.db", load) as owner:
        rows: list[Row] = []
        for subject, times in (
            ("the owner's process", owner.ask(asked)),
            ("another process", _ask_from_here(owner.path, asked)),
        ):
            for unit, value in (("ms p50", statistics.median(times)), ("ms p99", _p99(times))):
                rows.append(Row("processes", f"{load} owner", subject, value, unit))
        return sorted(rows, key=lambda row: row.unit)


def _p99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[98]


def _ask_from_here(path: Path, asked: int) -> list[float]:
    with Client.connect(f"local:{path}") as client:
        return _times(client, asked)


def _times(client: Client, asked: int) -> list[float]:
    found: list[float] = []
    for number in range(asked + 50):
        began = time.perf_counter()
        result = client.execute_workflow(nothing, id=uuid.uuid4().hex)
        if number >= 50:  # the first ones warm up
            found.append((time.perf_counter() - began) * 1e3)
        assert result == 7
    return found


class _Owner:
    def __init__(self, process: subprocess.Popen[str], path: Path) -> None:
        self._process = process
        self.path = path

    def ask(self, asked: int) -> list[float]:
        """What the owner measures itself."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{asked}\n")
        self._process.stdin.flush()
        return [float(each) for each in self.line().split()]

    def line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the owner has died")
        return line.strip()


@contextmanager
def _owner(path: Path, load: str) -> Iterator[_Owner]:
    command = [sys.executable, "-m", "benchmarks.processes", str(path), str(_LOADS[load])]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        owner = _Owner(process, path)
        assert owner.line() == "ready"
        yield owner
        assert process.stdin is not None
        process.stdin.close()
        process.wait(60)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _serve(path: str, load: int) -> None:
    """The owner's process: works, keeps itself busy, and measures when it is told how often."""
    stopped = threading.Event()

    def keep_busy(client: Client) -> None:
        while not stopped.is_set():
            client.execute_workflow(sequence, 5, id=uuid.uuid4().hex)

    with (
        Client.connect(f"local:{path}") as client,
        Worker(client, workflows=[nothing, sequence], activities=[echo]),
    ):
        threads = [threading.Thread(target=keep_busy, args=(client,)) for _ in range(load)]
        for thread in threads:
            thread.start()
        print("ready", flush=True)
        for line in sys.stdin:
            print(*_times(client, int(line)), flush=True)
        stopped.set()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]))
