"""The `hourglass` command as a separate process: its output, its worker processes and its end. Every wait has a time
limit.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

LIMIT = 60.0
_READY = "the worker on task queue"  # of its log line, which ends with "is running"
_STARTED = re.compile(r"process (\d+) started")

SHOP = """
import os
import re
import threading
import time

from hourglass import activity, workflow


@activity.defn
def charge(order: str) -> str:
    return f"charged {order}"


@activity.defn
def slow(seconds: float) -> str:
    threading.Event().wait(seconds)
    return "done"


@workflow.defn
def checkout(order: str) -> str:
    return charge(order)


@workflow.defn
def slowly(seconds: float) -> str:
    return slow(seconds)


@activity.defn
def match_in_activity(text: str) -> bool:
    return bool(re.match(r"(a+)+$", text))


@workflow.defn
def matches(text: str) -> bool:
    return match_in_activity(text)


@workflow.defn
def naps() -> None:
    time.sleep(3600)


@workflow.defn
def aborts() -> None:
    os.abort()


@workflow.defn
def catastrophe(text: str) -> bool:
    return bool(re.match(r"(a+)+$", text))
"""


class Command:
    """A running `hourglass` command."""

    def __init__(self, *arguments: str, cwd: Path, **environment: str) -> None:
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hourglass", *arguments],
            cwd=cwd,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(10)
        assert self.process.stderr is not None
        self.process.stderr.close()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._changed:
                self.lines.append(line.rstrip("\n"))
                self._changed.notify_all()

    @property
    def text(self) -> str:
        """The lines printed so far."""
        return "\n".join(self.lines)

    def wait_for(self, text: str, times: int = 1, limit: float = LIMIT) -> None:
        """Wait until at least `times` lines contain the text."""
        with self._changed:
            if not self._changed.wait_for(lambda: sum(text in each for each in self.lines) >= times, limit):
                raise AssertionError(f"{text!r} was not said {times}× within {limit:g} s:\n{self.text}")

    def wait_running(self, times: int = 1) -> int:
        """Wait until the n-th worker process is ready. Return its process id."""
        self.wait_for(_READY, times)
        return self.pids()[-1]

    def wait_until_ready(self) -> None:
        """Wait until the process, which has no parent, is ready."""
        self.wait_for(_READY)

    def pids(self) -> list[int]:
        """Return the ids of the worker processes started so far."""
        return [int(found[1]) for each in self.lines if (found := _STARTED.search(each))]

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait_end(self, limit: float = LIMIT) -> int:
        """Wait until the command ends. Return its exit code."""
        try:
            code = self.process.wait(limit)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end within {limit:g} s:\n{self.text}") from None
        self._reader.join(10)
        return code


def run_command(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `hourglass` with these arguments to its end."""
    return subprocess.run(
        [sys.executable, "-m", "hourglass", *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )


def until(what: str, condition: Callable[[], object], limit: float = LIMIT) -> None:
    """Wait until a condition outside of this process holds."""
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {limit:g} s"
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    """Return whether a process has ended, or is a zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in ("Z", "X")
    except OSError:
        return True
