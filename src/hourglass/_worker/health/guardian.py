"""The guardian: a small process that starts worker processes and replaces those that cannot be saved.

A worker heals itself, but for one thing: a call into C that does not return and holds the interpreter (a catastrophic regular
expression). Then no thread of it can do anything, and another process must. The guardian hears that nothing is heard any more,
has the process write where it stands, kills it, and starts the next one, which it tells which run was to blame: that run's task
is failed, and after a second time not executed any more, so that it does not stop one process after the other.

Invariants: the guardian loads no code of the user's, has one thread, and waits nowhere but in its one `select` (and for a second
in `examine`, while a process writes where it stands). A process is ended at once only by a second signal, by a limit that passed,
or because it stands still. Whatever ends the guardian ends its processes (see `guarded`).
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import signal
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic

from hourglass._worker.health import guarded as wire
from hourglass._worker.health.guarded import REFUSED, REPLACE_ME, SIGNALS, Said
from hourglass._worker.health.hung import (
    RunHung,
    RunWentOn,
    encode_hangs,
    examine,
    is_stopped,
    is_suspended,
    processor_time,
)
from hourglass._worker.health.lane_notes import SIZE, read_notes
from hourglass._worker.health.parked import HungRuns

logger = logging.getLogger("hourglass.guardian")

_FIRST_DELAY, _LAST_DELAY, _HEALTHY_AFTER = 1.0, 30.0, 60.0
_MARGIN = 15.0  # for what has to end
SUSPENDED_LIMIT = 10.0
"""After how many seconds a process that a signal has stopped is replaced."""
_LONGEST = 1 << 20  # of what a process says at once
_REASONS = {
    0: "ended, though it was not asked to",
    REFUSED: "could not start (exit code 2)",
    REPLACE_ME: "asked to be replaced: too many of its threads cannot be stopped",
    **{-each.value: f"was killed by {each.name}" for each in signal.Signals},
}


@dataclass(frozen=True)
class Lifetimes:
    """How the processes in one place have done: failures in a row, and whether one ever worked."""

    failures: int = 0
    worked: bool = False


def after_exit(before: Lifetimes, code: int, worked_for: float | None) -> tuple[float, Lifetimes] | None:
    """After how many seconds a process that ended unasked is started again; None if that would change nothing. `worked_for` is
    None if it never worked.
    """
    worked = before.worked or worked_for is not None
    if code == REFUSED and not worked:
        return None
    failures = 0 if worked_for is not None and worked_for >= _HEALTHY_AFTER else before.failures
    return min(_FIRST_DELAY * 2 ** min(failures, 10), _LAST_DELAY), Lifetimes(failures + 1, worked)


def why(code: int) -> str:
    """How a process ended, for people."""
    return _REASONS.get(code) or (
        f"was killed by signal {-code}" if code < 0 else f"crashed with exit code {code}"
    )


@dataclass(frozen=True)
class SilenceLimit:
    """How long a process may be silent: twice its deadlock timeout, for ever if it has none."""

    deadlock_timeout: float | None

    def allowed(self, *, loaded: bool) -> float | None:
        """In seconds. A busy machine lets a process wait, and importing a large library may hold the interpreter for a while."""
        return max(2 * self.deadlock_timeout, 1.0 if loaded else 60.0) if self.deadlock_timeout else None

    @property
    def interval(self) -> float:
        """How often it should beat."""
        return min((self.allowed(loaded=True) or 8.0) / 8, 1.0)


class Ward:
    """One guarded process, seen from its guardian. The one that comes after it in its place is another ward."""

    def __init__(
        self, selector: selectors.BaseSelector, post: _Post, interval: float, hangs: list[RunHung]
    ) -> None:
        self.loaded = False
        self.ready_at: float | None = None
        self.leaving_at: float | None = None
        self.silent = 0.0  # for how long nothing was heard
        self.suspended = 0.0  # for how long it has been stopped by a signal
        self.sample: dict[int, int] = {}  # the processor time of its threads when that began to be long
        self.killed_for = ""
        self._heard = b""
        self._selector = selector
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        selector.register(self._socket, selectors.EVENT_READ)
        self.notes = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - both live as long as the ward
        self.stacks = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        self.notes.write(bytes(SIZE))
        self.stacks.write(encode_hangs(hangs))
        given = (theirs.fileno(), self.notes.fileno(), self.stacks.fileno())
        variable = json.dumps([*given, os.getpid(), post.number, interval])
        # It begins with these blocked, and lets them through when it can handle them: Ctrl-C at once is no traceback.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            with theirs:
                environ = {**os.environ, wire.VARIABLE: variable}
                self.process = subprocess.Popen(post.command, env=environ, pass_fds=given)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self.pid = self.process.pid

    def heard(self) -> list[Said]:
        """What it has said since."""
        try:
            chunk = self._socket.recv(_LONGEST)
        except BlockingIOError:
            return []
        except OSError:
            chunk = b""
        if not chunk:
            self._hang_up()
        *lines, rest = (self._heard + chunk).split(b"\n")
        # No message of ours is so long: code of the user's has written to the socket.
        self._heard = rest if len(rest) <= _LONGEST else b""
        return [said for line in lines if (said := wire.decode(line)) is not None]

    def ask_to_stop(self) -> None:
        """Let it finish what is in flight, and end."""
        with suppress(OSError):  # it has ended
            self._socket.send(wire.STOP)

    def kill(self, why: str = "") -> None:
        """End it at once."""
        self.killed_for = self.killed_for or why
        self.process.kill()

    def close(self) -> None:
        """It has ended: free what it used."""
        self.process.wait()
        self._hang_up()
        for each in (self._socket, self.notes, self.stacks):
            each.close()

    def _hang_up(self) -> None:
        with suppress(KeyError, ValueError):  # it was done before
            self._selector.unregister(self._socket)


@dataclass(eq=False)
class _Post:
    """Where one process after another works."""

    number: int
    command: Sequence[str]
    ward: Ward | None = None
    lifetimes: Lifetimes = Lifetimes()
    due: float = 0.0


class Guardian:
    """Keeps a process working for each command until it is told to stop. On the main thread."""

    def __init__(
        self, commands: Sequence[Sequence[str]], *, deadlock_timeout: float | None, drain_timeout: float
    ) -> None:
        self._drain_limit = drain_timeout + _MARGIN
        self._silence = SilenceLimit(deadlock_timeout)
        self._posts = [_Post(number, command) for number, command in enumerate(commands)]
        self._hung = HungRuns()
        self._selector = selectors.DefaultSelector()
        self._signals: list[int] = []
        self._asked = 0  # signals that were obeyed
        self._deadline: float | None = None
        self._code = 0
        self._looked = monotonic()

    def run(self) -> int:
        """Guard; returns the exit code."""
        bell, rope = socket.socketpair()
        rope.setblocking(False)
        self._selector.register(bell, selectors.EVENT_READ)
        before = {number: signal.signal(number, lambda n, _: self._signals.append(n)) for number in SIGNALS}
        # The interpreter writes a byte there for each signal: `select` also sees one that came just before it.
        wakeup = signal.set_wakeup_fd(rope.fileno(), warn_on_full_buffer=False)
        try:
            while self._deadline is None or self._wards():
                for key, _ in self._selector.select(self._turn(monotonic())):
                    if key.fileobj is bell:
                        bell.recv(4096)
            logger.info("ended")
            return self._code
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)
            for ward in self._wards():
                ward.kill()
                ward.close()
            for each in (self._selector, bell, rope):
                each.close()

    def _wards(self) -> list[Ward]:
        return [post.ward for post in self._posts if post.ward is not None]

    def _kill_all(self, reason: str) -> None:
        for ward in self._wards():
            ward.kill(reason)

    def _turn(self, now: float) -> float:
        """Do what is to be done; returns for how long nothing is, unless something is heard."""
        while self._signals:
            self._obey(self._signals.pop(0), now)
        # Only time in which we were awake counts: if the machine slept, no process is to blame for its silence.
        passed, self._looked = min(now - self._looked, 2 * self._silence.interval), now
        for post in self._posts:
            if post.ward is not None:
                self._tend(post, post.ward, passed, now)
            elif self._deadline is None and now >= post.due:
                post.ward = Ward(self._selector, post, self._silence.interval, self._hung.told())
                logger.info("process %d started", post.ward.pid)
        if self._deadline is not None:
            if now > self._deadline:
                self._kill_all(f"did not end within {self._drain_limit:g} s")
            return 0.1
        due = [post.due - now for post in self._posts if post.ward is None]
        return max(0.0, min([self._silence.interval, *due]))

    def _obey(self, number: int, now: float) -> None:
        self._asked += 1
        name = signal.Signals(number).name
        if self._asked == 1:
            logger.info("%s: shutting down; once more ends at once", name)
            self._stop(now)
        else:
            logger.warning("%s again: ended at once", name)
            self._code = 128 + number
            self._kill_all(f"{name} came twice")

    def _stop(self, now: float) -> None:
        if self._deadline is None:
            self._deadline = now + self._drain_limit
            for ward in self._wards():
                ward.ask_to_stop()

    def _tend(self, post: _Post, ward: Ward, passed: float, now: float) -> None:
        code = ward.process.poll()  # before we listen: then what is heard includes its last words
        for said in ward.heard():
            ward.silent, ward.sample = 0.0, {}
            match said:
                case "loaded":
                    ward.loaded = True
                case "ready":
                    ward.ready_at = now
                case "leaving":
                    ward.leaving_at = now
                case RunHung():
                    self._hung.add(said)
                case RunWentOn():
                    self._hung.forget(said.run_id)
        if code is None:
            self._watch(ward, passed, now)
        else:
            post.ward = None
            ward.close()
            self._ended(post, ward, code, now)

    def _watch(self, ward: Ward, passed: float, now: float) -> None:
        if ward.leaving_at is not None:
            if now - ward.leaving_at > _MARGIN:
                ward.kill(f"had done its work, did not end within {_MARGIN:g} s and was killed")
            return
        if ward.killed_for:
            return
        ward.silent += passed
        # Ctrl-Z stops the guardian, too: a process that is stopped alone keeps the file that it may own from all others.
        ward.suspended = ward.suspended + passed if ward.silent and is_suspended(ward.pid) else 0.0
        if ward.suspended >= SUSPENDED_LIMIT:
            ward.kill(f"was stopped by a signal for {SUSPENDED_LIMIT:g} s and was killed")
            return
        allowed = self._silence.allowed(loaded=ward.loaded)
        if allowed is None:
            return
        if ward.silent >= allowed / 2:
            if is_stopped(ward.pid):
                ward.silent, ward.sample = 0.0, {}
                return
            ward.sample = ward.sample or processor_time(ward.pid)
        if ward.silent >= allowed:
            self._replace(ward, allowed)

    def _replace(self, ward: Ward, silence: float) -> None:
        notes = [each for each in read_notes(os.pread(ward.notes.fileno(), SIZE, 0)) if each.native_id]
        stack, noted = examine(ward.pid, ward.stacks.fileno(), ward.sample, notes)
        ward.kill(f"stood still for {silence:g} s at {stack.place} and was killed")
        blamed = ", and no workflow's code is at it"
        if noted is not None:
            run = RunHung(noted.run_id, noted.workflow_type, stack.text, stack.place, costly=True, owed=True)
            often = (
                "for the first time" if (times := self._hung.add(run).times) == 1 else f"{times} times now"
            )
            blamed = f": workflow {noted.workflow_type} (run {noted.run_id}) holds the interpreter, {often}"
        logger.error("process %d stands still%s:\n%s", ward.pid, blamed, stack.text)

    def _ended(self, post: _Post, ward: Ward, code: int, now: float) -> None:
        how = ward.killed_for or why(code)
        if self._deadline is not None:
            if code != 0:
                self._code = self._code or 1
                logger.error("process %d %s while it was shutting down", ward.pid, how)
            return
        decided = after_exit(post.lifetimes, code, None if ward.ready_at is None else now - ward.ready_at)
        if decided is None:
            self._code = code
            self._stop(now)
            return
        delay, post.lifetimes = decided
        post.due = now + delay
        logger.error("process %d %s; another one starts in %g s", ward.pid, how, delay)
