"""The parent of worker processes: starts them, and replaces those that end or hang.

A worker recovers from everything except a C call that holds the interpreter and does not return, such as a catastrophic
regular expression: no thread of the process can run during the call. The guardian notices the missing beats, makes the
process write its stack, records the run to blame (`incidents.blame`), kills the process and starts the next one. The
next process fails that run's task. After the second hang the run is quarantined.

Invariants: the guardian loads no user code, has only one thread, and waits only in its one `select` (and up to a second
in `hung_stack`). A process is killed only after a second signal, after a limit, or because it hangs. Processes do not
survive their guardian (see `guarded`).
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from time import monotonic

from hourglass._worker.health import guarded, incidents
from hourglass._worker.health.guarded import REPLACE_ME, SIGNALS, USAGE_ERROR
from hourglass._worker.health.inspection import hung_stack, is_stopped, is_suspended, processor_ticks

logger = logging.getLogger("hourglass.guardian")

_FIRST_DELAY, _LAST_DELAY, _HEALTHY_AFTER = 1.0, 30.0, 60.0
_MARGIN = 15.0  # seconds that a process has to end
_TURN = 0.2  # the longest wait for a message: a signal does not end a `select`
SUSPENDED_LIMIT = 10.0
"""The number of seconds after which a process that a signal has stopped (Ctrl-Z) is replaced."""
_REASONS = {
    0: "ended unexpectedly",
    USAGE_ERROR: "could not start (exit code 2)",
    REPLACE_ME: "requested its replacement: too many of its threads cannot be stopped",
    **{-number.value: f"was killed by {number.name}" for number in signal.Signals},
}


@dataclass(frozen=True)
class Restarts:
    """The history of one slot: the number of consecutive failures, and whether any process of the slot ever worked."""

    failures: int = 0
    worked: bool = False


def after_exit(earlier: Restarts, code: int, worked_for: float | None) -> tuple[float, Restarts] | None:
    """Return the delay before another process starts, and the slot's updated history. Return None if another process
    would fail again.

    `worked_for` is the time in seconds that the process worked; None if it never worked.
    """
    worked = earlier.worked or worked_for is not None
    if code == USAGE_ERROR and not worked:
        return None
    failures = 0 if worked_for is not None and worked_for >= _HEALTHY_AFTER else earlier.failures
    return min(_FIRST_DELAY * 2 ** min(failures, 10), _LAST_DELAY), Restarts(failures + 1, worked)


def exit_reason(code: int) -> str:
    """Return the reason for the end of a process, in words."""
    return _REASONS.get(code) or (
        f"was killed by signal {-code}" if code < 0 else f"crashed with exit code {code}"
    )


def silence_limit(deadlock_timeout: float | None, *, loaded: bool) -> float:
    """Return the maximum time between two beats. The limit is higher while the process loads, because it may import
    large libraries.
    """
    if not deadlock_timeout:
        return float("inf")
    return max(2 * deadlock_timeout, 1.0 if loaded else 60.0)


class ProcessPhase(Enum):
    """The phases in the life of a worker process."""

    LOADING = auto()
    LOADED = auto()
    READY = auto()
    LEAVING = auto()
    KILLED = auto()


_PHASES = {
    guarded.LOADED: ProcessPhase.LOADED,
    guarded.READY: ProcessPhase.READY,
    guarded.LEAVING: ProcessPhase.LEAVING,
}


class GuardedProcess:
    """One worker process, as its guardian sees it."""

    def __init__(self, command: Sequence[str], number: int, interval: float) -> None:
        self.phase = ProcessPhase.LOADING
        self.since = monotonic()  # when the phase began
        self.ready_at: float | None = None
        self.silent = 0.0  # seconds without a beat
        self.suspended = 0.0  # seconds for which a signal has stopped the process
        self.ticks: dict[int, int] = {}  # CPU ticks of each thread, taken at half of the silence limit
        self.killed_because = ""
        self.pipe, write_end = os.pipe()
        os.set_blocking(self.pipe, False)
        self._stacks = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - it is open as long as the process
        passed = (write_end, self._stacks.fileno())
        variable = json.dumps([*passed, os.getpid(), number, interval])
        # The process starts with blocked signals, and unblocks them once its handlers are set. This avoids a traceback
        # after Ctrl-C.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            environ = {**os.environ, guarded.VARIABLE: variable}
            self._process = subprocess.Popen(command, env=environ, pass_fds=passed)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.close(write_end)
        self.pid = self._process.pid

    def poll(self, now: float) -> int | None:
        """Read the messages and return the exit code; None while the process is running."""
        code = self._process.poll()  # before reading, so that no message of an ended process is missed
        messages = b""
        with suppress(BlockingIOError):
            messages = os.read(self.pipe, 1 << 16)
        if messages:
            self.silent, self.ticks = 0.0, {}
        for byte in messages:
            phase = _PHASES.get(bytes([byte]))
            if phase is not None and self.phase is not ProcessPhase.KILLED:
                self.phase, self.since = phase, now
                self.ready_at = now if phase is ProcessPhase.READY else self.ready_at
        return code

    def stop(self) -> None:
        """Ask the process to finish its tasks and end."""
        self._process.terminate()

    def kill(self, because: str = "") -> None:
        """Kill the process. `because` is the reason to log."""
        self.phase, self.killed_because = ProcessPhase.KILLED, self.killed_because or because
        self._process.kill()

    def close(self) -> None:
        """Wait until the process has ended, and free its resources."""
        self._process.wait()
        self._stacks.close()
        os.close(self.pipe)

    def check(self, passed: float, now: float, deadlock_timeout: float | None) -> None:
        """Kill the process if it hangs. `passed` is the time since the last check during which the guardian was
        awake."""
        if self.phase is ProcessPhase.KILLED:
            return
        if self.phase is ProcessPhase.LEAVING:
            if now - self.since > _MARGIN:
                self.kill(f"had finished its work, but did not exit within {_MARGIN:g} s and was killed")
            return
        self.silent += passed
        # Ctrl-Z also stops the guardian. A process that is stopped alone blocks its file for all other processes.
        self.suspended = self.suspended + passed if self.silent and is_suspended(self.pid) else 0.0
        limit = silence_limit(deadlock_timeout, loaded=self.phase is not ProcessPhase.LOADING)
        if self.suspended >= SUSPENDED_LIMIT:
            self.kill(f"was suspended by a signal for {SUSPENDED_LIMIT:g} s and was killed")
        elif self.silent >= limit / 2 and is_stopped(self.pid):
            self.silent, self.ticks = 0.0, {}
        elif self.silent >= limit:
            self._kill_hung(limit)
        elif self.silent >= limit / 2:
            self.ticks = self.ticks or processor_ticks(self.pid)

    def _kill_hung(self, limit: float) -> None:
        notes = incidents.notes_of(self.pid)
        lanes = [noted for noted in notes or () if noted.native_id]
        stack, culprit = hung_stack(self.pid, self._stacks.fileno(), self.ticks, lanes)
        incidents.blame(self.pid, culprit, stack)
        self.kill(f"hung for {limit:g} s at {stack.place} and was killed")
        blamed = "" if notes is None else ", and not in workflow code"
        if culprit is not None:
            blamed = f": workflow {culprit.workflow_type} (run {culprit.run_id}) holds the GIL"
        logger.error("process %d hangs%s:\n%s", self.pid, blamed, stack.text)


@dataclass(eq=False)
class _Slot:
    """One of the processes that the guardian keeps alive."""

    number: int
    command: Sequence[str]
    process: GuardedProcess | None = None
    restarts: Restarts = Restarts()
    due: float = 0.0


class Guardian:
    """Keeps one process running for each command until a signal stops the guardian. Runs on the main thread."""

    def __init__(
        self, commands: Sequence[Sequence[str]], *, deadlock_timeout: float | None, drain_timeout: float
    ) -> None:
        self._drain_limit = drain_timeout + _MARGIN
        self._deadlock_timeout = deadlock_timeout
        self._interval = min(silence_limit(deadlock_timeout, loaded=True) / 8, 1.0)
        self._slots = [_Slot(number, command) for number, command in enumerate(commands)]
        self._signals: list[int] = []
        self._obeyed = 0
        self._deadline: float | None = None
        self._code = 0
        self._checked = monotonic()

    def run(self) -> int:
        """Keep the processes running until a signal arrives and all processes have ended. Return the exit code."""
        handlers = {number: signal.signal(number, lambda n, _: self._signals.append(n)) for number in SIGNALS}
        try:
            while self._deadline is None or self._processes():
                self._turn(monotonic())
                select.select([process.pipe for process in self._processes()], [], [], _TURN)
            logger.info("ended")
            return self._code
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            for process in self._processes():
                process.kill()
                process.close()

    def _processes(self) -> list[GuardedProcess]:
        return [slot.process for slot in self._slots if slot.process is not None]

    def _turn(self, now: float) -> None:
        while self._signals:
            self._obey(self._signals.pop(0), now)
        # Only time during which the guardian was awake counts: if the machine slept, no process is to blame.
        passed, self._checked = min(now - self._checked, 2 * self._interval), now
        for slot in self._slots:
            if slot.process is not None:
                self._check(slot, slot.process, passed, now)
            elif self._deadline is None and now >= slot.due:
                slot.process = GuardedProcess(slot.command, slot.number, self._interval)
                logger.info("process %d started", slot.process.pid)
        if self._deadline is not None and now > self._deadline:
            self._kill_all(f"did not end within {self._drain_limit:g} s")

    def _obey(self, number: int, now: float) -> None:
        self._obeyed += 1
        name = signal.Signals(number).name
        if self._obeyed == 1:
            logger.info("%s: shutting down; a second signal ends all processes immediately", name)
            self._stop(now)
        else:
            logger.warning("%s again: ending all processes immediately", name)
            self._code = 128 + number
            self._kill_all(f"was killed after a second {name}")

    def _stop(self, now: float) -> None:
        if self._deadline is None:
            self._deadline = now + self._drain_limit
            for process in self._processes():
                process.stop()

    def _kill_all(self, because: str) -> None:
        for process in self._processes():
            process.kill(because)

    def _check(self, slot: _Slot, process: GuardedProcess, passed: float, now: float) -> None:
        code = process.poll(now)
        if code is None:
            process.check(passed, now, self._deadlock_timeout)
            return
        slot.process = None
        process.close()
        reason = process.killed_because or exit_reason(code)
        if self._deadline is not None:
            if code != 0:
                self._code = self._code or 1
                logger.error("process %d %s while it was shutting down", process.pid, reason)
            return
        restart = after_exit(
            slot.restarts, code, None if process.ready_at is None else now - process.ready_at
        )
        if restart is None:
            self._code = code
            self._stop(now)
            return
        delay, slot.restarts = restart
        slot.due = now + delay
        logger.error("process %d %s; a new process starts in %g s", process.pid, reason, delay)
