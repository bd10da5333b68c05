"""Part `processes`: latency from start to result on one file, for a client in the owner's process and in another process.

The owner is a separate process (`python -m benchmarks.processes PATH LOAD`), either idle or running workflows of its own. Every
step is fsynced. Workflows are started one at a time: the latency is the time that a web request would wait.
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
_WARM_UP = 50  # workflows


@workflow.defn
def nothing() -> int:
    """Return without any steps."""
    return 7


def measure(*, quick: bool) -> list[Row]:
    """Return latency percentiles, also for forked processes and after takeovers."""
    from . import web

    requests = 300 if quick else 2000
    return [*(row for load in _LOADS for row in _measure(load, requests)), *web.measure(quick=quick)]


def _measure(load: str, requests: int) -> list[Row]:
    with (
        tempfile.TemporaryDirectory() as directory,
        run_owner(Path(directory) / "bench.db", _LOADS[load]) as owner,
    ):
        rows: list[Row] = []
        for subject, latencies in (
            ("the owner's process", owner.measure(requests)),
            ("another process", _measure_here(owner.path, requests)),
        ):
            for unit, value in (("ms p50", statistics.median(latencies)), ("ms p99", p99(latencies))):
                rows.append(Row("processes", f"{load} owner", subject, value, unit))
        return sorted(rows, key=lambda row: row.unit)


def p99(latencies: list[float]) -> float:
    return statistics.quantiles(latencies, n=100)[98]


def _measure_here(path: Path, requests: int) -> list[float]:
    with Client.connect(f"local:{path}") as client:
        return measure_latencies(client, requests)


def measure_latencies(
    client: Client, requests: int, pause: Callable[[], object] = lambda: None
) -> list[float]:
    """Run workflows sequentially and return their latencies in milliseconds. `pause` is called before each."""
    latencies: list[float] = []
    for number in range(_WARM_UP + requests):
        pause()
        started = time.perf_counter()
        result = client.execute_workflow(nothing, id=uuid.uuid4().hex)
        if number >= _WARM_UP:
            latencies.append((time.perf_counter() - started) * 1e3)
        assert result == 7
    return latencies


class Owner:
    """A process with a worker on the file, which owns it or waits to take it over."""

    def __init__(self, process: subprocess.Popen[str], path: Path) -> None:
        self._process = process
        self.path = path

    @staticmethod
    def start(path: Path, load: int) -> Owner:
        """Start a process and wait until it is ready: the owner, or on standby if the file has one."""
        command = [sys.executable, "-m", "benchmarks.processes", str(path), str(load)]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        owner = Owner(process, path)
        assert owner.read_line() == "ready"
        return owner

    @property
    def pid(self) -> int:
        return self._process.pid

    def measure(self, requests: int) -> list[float]:
        """Measure latencies with a client in the owner's process."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{requests}\n")
        self._process.stdin.flush()
        return [float(latency) for latency in self.read_line().split()]

    def read_line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the owner process exited")
        return line.strip()

    def stop(self) -> None:
        """Close standard input and wait for the process to exit."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def kill(self) -> None:
        """Kill the process with SIGKILL unless it has exited, and wait for it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


@contextmanager
def run_owner(path: Path, load: int = 0) -> Iterator[Owner]:
    """Run an owner of the file inside the block."""
    owner = Owner.start(path, load)
    try:
        yield owner
        owner.stop()
    finally:
        owner.kill()


def _serve(path: str, load: int) -> None:
    """Run a worker with `load` workflows at a time, and measure latencies for each number read from standard input."""
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
            print(*measure_latencies(client, int(line)), flush=True)
        stopped.set()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]))
