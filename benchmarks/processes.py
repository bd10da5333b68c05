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
from collections.abc import Callable, Iterator
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
    """Milliseconds from start to result, the middle one and the worst but one in a hundred; forks and takeovers."""
    from . import web

    asked = 300 if quick else 2000
    return [*(row for load in _LOADS for row in _measure(load, asked)), *web.measure(quick=quick)]


def _measure(load: str, asked: int) -> list[Row]:
    with tempfile.TemporaryDirectory() as directory, owner(Path(directory) / "bench.db", _LOADS[load]) as one:
        rows: list[Row] = []
        for subject, found in (
            ("the owner's process", one.ask(asked)),
            ("another process", _ask_from_here(one.path, asked)),
        ):
            for unit, value in (("ms p50", statistics.median(found)), ("ms p99", p99(found))):
                rows.append(Row("processes", f"{load} owner", subject, value, unit))
        return sorted(rows, key=lambda row: row.unit)


def p99(found: list[float]) -> float:
    """The worst but one in a hundred."""
    return statistics.quantiles(found, n=100)[98]


def _ask_from_here(path: Path, asked: int) -> list[float]:
    with Client.connect(f"local:{path}") as client:
        return times(client, asked)


def times(client: Client, asked: int, between: Callable[[], object] = lambda: None) -> list[float]:
    """Milliseconds from start to result, so many times."""
    found: list[float] = []
    for number in range(asked + 50):
        between()
        began = time.perf_counter()
        result = client.execute_workflow(nothing, id=uuid.uuid4().hex)
        if number >= 50:  # the first ones warm up
            found.append((time.perf_counter() - began) * 1e3)
        assert result == 7
    return found


class Owner:
    """A process with a worker on the file."""

    def __init__(self, process: subprocess.Popen[str], path: Path) -> None:
        self._process = process
        self.path = path

    @staticmethod
    def begin(path: Path, load: int) -> Owner:
        """Start one; returns when it works, or stands by."""
        command = [sys.executable, "-m", "benchmarks.processes", str(path), str(load)]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        begun = Owner(process, path)
        assert begun.line() == "ready"
        return begun

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def ask(self, asked: int) -> list[float]:
        """What the owner measures itself."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{asked}\n")
        self._process.stdin.flush()
        return [float(each) for each in self.line().split()]

    def line(self) -> str:
        """The next line that it says."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the owner has died")
        return line.strip()

    def end(self) -> None:
        """Politely."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def kill(self) -> None:
        """By SIGKILL, if it lives, and gone."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


@contextmanager
def owner(path: Path, load: int = 0) -> Iterator[Owner]:
    """One that owns the file while the block lasts."""
    begun = Owner.begin(path, load)
    try:
        yield begun
        begun.end()
    finally:
        begun.kill()


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
            print(*times(client, int(line)), flush=True)
        stopped.set()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]))
