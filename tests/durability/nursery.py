"""A process that forks workers on a file: `python -m tests.durability.nursery PATH`; and who talks to it.

Importing Hourglass takes longer than a worker lives here. The nursery itself never opens the file and has no threads.
Its lines: `fork` is answered by the child's process id, `kill PID` (by SIGKILL, and waited for) by the same. When its
input ends it kills all that are left.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType

from hourglass import Client, Worker

from . import work

ROOT = Path(__file__).resolve().parents[2]


class Nursery:
    """Its parent's side. Ends all workers when the block ends."""

    def __init__(self, path: Path, notes: Path, log: Path) -> None:
        self.alive: list[int] = []
        self._log = log.open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.durability.nursery", str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=ROOT,
            env={**os.environ, work.NOTES: str(notes)},
        )

    def fork(self) -> int:
        """Another worker, which begins to open the file."""
        pid = self._ask("fork")
        self.alive.append(pid)
        return pid

    def kill(self, pid: int) -> None:
        """By SIGKILL, and gone."""
        self.alive.remove(pid)
        assert self._ask(f"kill {pid}") == pid

    def _ask(self, line: str) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def __enter__(self) -> Nursery:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()
        self._log.close()


def _serve(path: str) -> None:
    """In a child."""
    with Client.connect(f"local:{path}") as client:
        Worker(client, workflows=work.WORKFLOWS, activities=work.ACTIVITIES, deadlock_timeout=None).start()
        threading.Event().wait()


def _fork(path: str) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 0)
            os.dup2(null, 1)
            _serve(path)
        finally:
            os._exit(1)
    return pid


def main(path: str) -> None:
    alive: set[int] = set()
    try:
        for line in sys.stdin:
            match line.split():
                case ["fork"]:
                    pid = _fork(path)
                    alive.add(pid)
                case ["kill", text]:
                    pid = int(text)
                    alive.remove(pid)
                    _end(pid)
                case _:
                    raise ValueError(line)
            print(pid, flush=True)
    finally:
        for pid in alive:
            _end(pid)


def _end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)  # a child that is not waited for keeps its number
    os.waitpid(pid, 0)


if __name__ == "__main__":
    main(sys.argv[1])
