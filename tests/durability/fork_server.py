"""A process that forks workers and clients (`python -m tests.durability.fork_server TARGET`), and its parent's interface.

Importing Hourglass takes longer than a worker lives here. The fork server itself never opens the file and has no threads. Its
commands: `fork ROLE ARGUMENT…` returns the child's process id, `kill PID` kills and reaps a child, `gone` returns the ids of
children that have died by themselves. At the end of its input it kills all children.

A worker kills one of its own parts on SIGUSR1.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import TracebackType

from hourglass import Client, Worker
from hourglass._supervision import SupervisionError

from . import campaign_workflows, work

ROOT = Path(__file__).resolve().parents[2]
JOURNAL = "HOURGLASS_TEST_JOURNAL"
"""The environment variable for the journal of clients."""


class ForkServer:
    """The parent's side. Kills all children at the end of the block."""

    def __init__(self, target: Path | str, notes: Path, log: Path, **environment: str) -> None:
        self.alive: list[int] = []
        self._log = log.open("ab")
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.durability.fork_server",
                target if isinstance(target, str) else f"local:{target}",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=ROOT,
            env={**os.environ, work.NOTES: str(notes), **environment},
        )

    def fork(self, role: str = "worker", *arguments: str) -> int:
        """Fork a child with this role."""
        (pid,) = self._ask(" ".join(["fork", role, *arguments]))
        self.alive.append(pid)
        return pid

    def kill(self, pid: int) -> None:
        """Kill a child with SIGKILL and reap it."""
        self.alive.remove(pid)
        assert self._ask(f"kill {pid}") == [pid]

    def reap(self) -> list[int]:
        """Return the children that have died by themselves since the last call."""
        gone = self._ask("gone")
        self.alive = [pid for pid in self.alive if pid not in gone]
        return gone

    def _ask(self, line: str) -> list[int]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return [int(pid) for pid in self._process.stdout.readline().split()]

    def __enter__(self) -> ForkServer:
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


# --- in the fork server ---------------------------------------------------------------------------------------


def _work(target: str, seed: str = "0", queue: str = "") -> None:
    """Run a worker in a child; each SIGUSR1 kills one of its parts."""
    chance = random.Random(f"parts {seed}")
    with Client.connect(target) as client:
        options = {"task_queue": queue} if queue else {}
        worker = Worker(
            client,
            **options,  # type: ignore[arg-type]
            workflows=[*work.WORKFLOWS, *campaign_workflows.WORKFLOWS],
            activities=campaign_workflows.ACTIVITIES,
            deadlock_timeout=None,
        )
        worker.start()
        while True:
            signal.sigwait({signal.SIGUSR1})
            try:
                worker.tree.kill(chance.choice(sorted(worker.tree.paths())))
            except SupervisionError:
                pass  # it died by itself first


def _travel(target: str, name: str) -> None:
    """Run a client in a child until SIGTERM stops it."""
    from .clients import Journal, Traveller

    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    with Client.connect(target) as client:
        Traveller(client, Journal(Path(os.environ[JOURNAL]), name), name).go_on(stopped.is_set)
    os._exit(0)


_ROLES: dict[str, Callable[..., None]] = {"worker": _work, "client": _travel}


def _fork(role: str, target: str, *arguments: str) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 0)
            os.dup2(null, 1)
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})  # a worker waits for it
            _ROLES[role](target, *arguments)
        finally:
            os._exit(1)
    return pid


def main(target: str) -> None:
    local = target.startswith("local:")
    for name in (
        "_embedded.multiprocess.connection" if local else "_temporal.connection",
        "_worker.tree.processes",
    ):
        import_module(f"hourglass.{name}")  # once, before the forks
    alive: set[int] = set()
    try:
        for line in sys.stdin:
            match line.split():
                case ["fork", role, *arguments]:
                    pids = [_fork(role, target, *arguments)]
                    alive.add(pids[0])
                case ["kill", text]:
                    pids = [int(text)]
                    alive.remove(pids[0])
                    _end(pids[0])
                case ["gone"]:
                    pids = [pid for pid in alive if os.waitpid(pid, os.WNOHANG)[0]]
                    alive.difference_update(pids)
                case _:
                    raise ValueError(line)
            print(*pids, flush=True)
    finally:
        for pid in alive:
            _end(pid)


def _end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)  # an unreaped child keeps its process id
    os.waitpid(pid, 0)


if __name__ == "__main__":
    main(sys.argv[1])
