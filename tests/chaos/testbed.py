"""The setting of faults: the shared dev server, workers, runs, and worker programs in processes of their own."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from hourglass import Client, Worker, WorkflowHandle
from hourglass.testing import DevServer, dev_server

from . import work
from .waiting import Stuck, describe

STOP_LIMIT = 60.0

ROOT = Path(__file__).resolve().parents[2]

# By itself a server fires timers up to a second late, which would blur the figures.
QUICK_TIMERS = ["--dynamic-config-value", 'history.timerProcessorMaxTimeShift="1ms"']

_numbers = itertools.count(1)
_shared: list[DevServer] = []
_stack = ExitStack()
_lock = threading.Lock()


def server() -> DevServer:
    """Return the dev server shared by the faults that do not harm it; start it on first use."""
    with _lock:
        if not _shared:
            _shared.append(_stack.enter_context(dev_server(extra_args=QUICK_TIMERS)))
        return _shared[0]


def close() -> None:
    """Stop the shared server."""
    _shared.clear()
    _stack.close()


def name(kind: str) -> str:
    """Return a name that is unique in this process, for queues and workflows."""
    return f"{kind}-{os.getpid()}-{next(_numbers)}"


@contextmanager
def working(client: Client, queue: str, **options: Any) -> Iterator[Worker]:
    """Run a worker with the usual workflows."""
    options = {"workflows": work.WORKFLOWS, "activities": work.ACTIVITIES} | options
    worker = Worker(client, queue, **options).start()
    try:
        yield worker
    finally:
        stop(worker)


def stop(worker: Worker, limit: float = STOP_LIMIT) -> float:
    """Shut a worker down; return the seconds it took, or report what is open if it does not end."""
    began = time.monotonic()
    stopping = threading.Thread(target=worker.shutdown, daemon=True)
    stopping.start()
    stopping.join(limit)
    if stopping.is_alive():
        raise Stuck(f"the worker's shutdown did not end within {limit:g} s\n{describe(worker)}")
    return time.monotonic() - began


def start_chains(client: Client, queue: str, count: int) -> list[WorkflowHandle[int]]:
    """Start this many runs of five activities; the result of each is its index plus five."""
    prefix = name("chain")
    return [
        client.start_workflow(work.chain, place, id=f"{prefix}-{place}", task_queue=queue)
        for place in range(count)
    ]


def right(values: list[int]) -> int:
    """Count the correct results of chains."""
    return sum(value == place + work.STEPS for place, value in enumerate(values))


class Program:
    """A program in a process of its own, whose output is read continuously."""

    def __init__(self, module: str, *arguments: str, **environment: str) -> None:
        self.lines: list[str] = []
        self.errors: list[str] = []
        self._changed = threading.Condition()
        package = __package__ or ""
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-X",
                "faulthandler",
                "-m",
                f"tests.{package.split('.')[-1]}.{module}",
                *arguments,
            ],
            cwd=ROOT,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        self._readers = [
            threading.Thread(target=self._read, args=(self.process.stdout, self.lines), daemon=True),
            threading.Thread(target=self._read, args=(self.process.stderr, self.errors), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.wait_readers()
        if any(reader.is_alive() for reader in self._readers):  # a grandchild still has its pipes
            os.killpg(self.process.pid, signal.SIGKILL)
            for reader in self._readers:
                reader.join()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()

    def _read(self, pipe: Any, lines: list[str]) -> None:
        for line in pipe:
            with self._changed:
                lines.append(line.rstrip("\n"))
                self._changed.notify_all()

    def wait_line(self, text: str, limit: float = 60.0) -> None:
        """Wait until it has printed this."""
        with self._changed:
            if not self._changed.wait_for(lambda: text in self.lines, limit):
                raise Stuck(f"{self.process.args!r} did not say {text!r} within {limit:g} s\n{self.output()}")

    def kill(self) -> None:
        """Kill it with SIGKILL if it is alive; wait for its end."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def end(self, how: signal.Signals | None, limit: float = 60.0) -> tuple[int, float]:
        """Return its exit status, after a signal if one is given, and the seconds it took."""
        began = time.monotonic()
        if how is not None:
            self.process.send_signal(how)
        try:
            return self.process.wait(limit), time.monotonic() - began
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)  # faulthandler tells where it stands
            self.process.wait(10)
            self.wait_readers()
            raise Stuck(f"{self.process.args!r} did not end within {limit:g} s\n{self.output()}") from None

    def wait_readers(self) -> None:
        """Wait until its output is read; do not wait for a grandchild that still holds the pipes."""
        for reader in self._readers:
            reader.join(5)

    def output(self) -> str:
        """Return its latest output."""
        return "\n".join([*self.lines[-20:], *self.errors[-80:]])


def worker_program(target: str, queue: str, **environment: str) -> Program:
    """Run a worker in a process of its own."""
    program = Program("worker_program", target, queue, **environment)
    program.wait_line("ready")
    return program
