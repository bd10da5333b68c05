"""Processes started, controlled and killed by a test."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

PATIENCE = 40.0


class Child:
    """A process of `program`, killed when the block ends. `within` is a command that starts it."""

    def __init__(self, role: str, *arguments: object, within: Sequence[str] = ()) -> None:
        program = [sys.executable, "-m", "tests.embedded.multiprocess.program", role, *map(str, arguments)]
        command = [*within, *program]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd=Path(__file__).parents[3],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.log: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, daemon=True),
            threading.Thread(target=self._read_log, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            os.killpg(self.pid, signal.SIGKILL)  # with its children
        except ProcessLookupError:
            pass
        self.process.wait()
        for reader in self._readers:
            reader.join(PATIENCE)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            try:
                stream.close()
            except BrokenPipeError:
                pass

    def line(self) -> str:
        """Return its next line of output."""
        try:
            return self._lines.get(timeout=PATIENCE)
        except queue.Empty:
            raise AssertionError(f"the process printed nothing; its log: {''.join(self.log)}") from None

    def tell(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()

    def ask(self, text: str) -> str:
        self.tell(text)
        return self.line()

    def kill(self) -> None:
        """Kill it by SIGKILL, and wait for its end."""
        os.kill(self.pid, signal.SIGKILL)
        self.process.wait()

    def ended(self) -> int:
        """Wait until it ends, and return its exit status."""
        return self.process.wait(PATIENCE)

    def _read(self) -> None:
        assert self.process.stdout is not None
        try:
            for line in self.process.stdout:
                self._lines.put(line.rstrip("\n"))
        except ValueError:
            pass  # closed

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        try:
            for line in self.process.stderr:
                self.log.append(line)
        except ValueError:
            pass


def ready_worker(path: Path, *queues: str) -> Child:
    """Start a process and wait until its worker serves these queues."""
    child = Child("worker", path, *queues)
    assert child.line() == "ready"
    return child
