"""The guardian: a small process that starts worker processes and replaces those that cannot be saved.

A worker heals itself, but for one thing: a call into C that does not return and holds the interpreter (a catastrophic regular
expression). Then no thread of it can do anything, and another process must. The guardian hears that nothing is heard any more,
has the process write where it stands, kills it, and starts the next one, which it tells which run was to blame: that run's task
is failed, and after a second time not executed any more, so that it does not stop one process after the other.

Invariants:

- The guardian loads no code of the user's, has one thread, and waits nowhere but in its one `select` (and for a
  second in `Ward.examine`, while a process writes where it stands).
- What it decides about a process that ended (started again or not, when) is pure: `after_exit`, `Silence`.
- A process is ended at once only by a second signal, by a limit that passed, or because it stands still.
- Whatever ends the guardian ends its processes (see `guarded`).
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import selectors
import signal
import socket
import subprocess
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import IO, Any

from hourglass._runtime import standstill
from hourglass._runtime.guardian_wire import (
    REFUSED,
    REPLACE_ME,
    STOP,
    VARIABLE,
    Beat,
    Handover,
    Leaving,
    Loaded,
    Ready,
    RunHung,
    RunWentOn,
    Said,
    decode,
    encode_handover,
    encode_hangs,
)
from hourglass._runtime.lane_notes import SIZE, read_notes

# --- decisions -------------------------------------------------------------------------------------------------------


FIRST_DELAY, LAST_DELAY = 1.0, 30.0
HEALTHY_AFTER = 60.0
SILENCES = 2  # deadlock timeouts without a sign of life
_SHORTEST_SILENCE = 1.0  # a busy machine lets a process wait
_LOADING_LIMIT = 60.0
_BEATS = 8  # per limit
_UNWATCHED_INTERVAL = 1.0


@dataclass(frozen=True)
class Record:
    """How a process and those before it in its place have done: failures in a row, and whether one ever worked."""

    failures: int = 0
    worked: bool = False


@dataclass(frozen=True)
class Restart:
    """Start again, after so many seconds."""

    delay: float
    record: Record


@dataclass(frozen=True)
class GiveUp:
    """Starting again would change nothing."""

    code: int


def after_exit(record: Record, code: int, worked_for: float | None) -> Restart | GiveUp:
    """What to do about a process that ended unasked; `worked_for` is None if it never worked."""
    worked = record.worked or worked_for is not None
    if code == REFUSED and not worked:
        return GiveUp(REFUSED)
    healthy = worked_for is not None and worked_for >= HEALTHY_AFTER
    failures = 0 if healthy else record.failures
    delay = min(FIRST_DELAY * (1 << min(failures, 10)), LAST_DELAY)
    return Restart(delay, replace(record, failures=failures + 1, worked=worked))


def why(code: int) -> str:
    """How a process ended, for people."""
    if code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    match code:
        case 0:
            return "ended, though nobody asked for it"
        case 2:
            return "could not start (exit code 2)"
        case _ if code == REPLACE_ME:
            return "asked to be replaced: too many of its threads cannot be stopped"
    return f"crashed with exit code {code}"


@dataclass(frozen=True)
class Silence:
    """How long a process may be silent. `limit` is None if it may be for ever."""

    limit: float | None

    @staticmethod
    def of(deadlock_timeout: float | None) -> Silence:
        """From a worker's deadlock timeout."""
        return Silence(max(SILENCES * deadlock_timeout, _SHORTEST_SILENCE) if deadlock_timeout else None)

    @property
    def interval(self) -> float:
        """How often it should beat."""
        return min(self.limit / _BEATS, _UNWATCHED_INTERVAL) if self.limit else _UNWATCHED_INTERVAL

    def allowed(self, *, loaded: bool) -> float | None:
        """For how long, in seconds: importing a large library may hold the interpreter for a while."""
        if self.limit is None or loaded:
            return self.limit
        return max(self.limit, _LOADING_LIMIT)


# --- runs that hung --------------------------------------------------------------------------------------------------


_REMEMBERED = 200
_LONGEST_STACK = 16_000
_FILE = re.compile(r'^  File "(.+)", line \d+', re.MULTILINE)


@dataclass(frozen=True)
class _Remembered:
    hang: RunHung
    at: float
    code: tuple[tuple[str, str], ...]


class HungRuns:
    """The runs that hung, as a guardian remembers them while processes come and go, and tells each new process.

    A run is remembered until it goes on, its code changes, or many others have hung since. Its code has changed when
    one of the author's files on its stack has: the process that hung cannot tell which code it ran, and what comes
    after it has loaded its own.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._runs: OrderedDict[str, _Remembered] = OrderedDict()

    def add(self, hang: RunHung) -> RunHung:
        """A run hung; returns it with how often it has, in this code."""
        code = code_of(hang.stack)
        known = self._runs.pop(hang.run_id, None)
        times = known.hang.times + 1 if known is not None and known.code == code_of(known.hang.stack) else 1
        hang = replace(hang, times=times, stack=hang.stack[:_LONGEST_STACK])
        self._runs[hang.run_id] = _Remembered(hang, self._clock(), code)
        while len(self._runs) > _REMEMBERED:
            self._runs.popitem(last=False)
        return hang

    def forget(self, run_id: str) -> None:
        """A run went on."""
        self._runs.pop(run_id, None)

    def told(self) -> list[RunHung]:
        """All that a new process should know. Each failure is owed once: the first process that hears of it pays."""
        now = self._clock()
        for run_id, each in list(self._runs.items()):
            if each.code != code_of(each.hang.stack):
                del self._runs[run_id]
        told = [replace(each.hang, age=now - each.at) for each in self._runs.values()]
        for run_id, each in self._runs.items():
            self._runs[run_id] = replace(each, hang=replace(each.hang, owed=False))
        return told


def code_of(stack: str) -> tuple[tuple[str, str], ...]:
    """The files on a stack and what is in them now."""
    return tuple((file, _digest(Path(file))) for file in dict.fromkeys(_FILE.findall(stack)))


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


# --- one process -----------------------------------------------------------------------------------------------------


_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_CHUNK, _LONGEST_LINE = 1 << 16, 1 << 20


class Ward:
    """One guarded process, seen from its guardian: started, listened to, told to stop, examined, killed. The process
    that comes after it in its place is another ward.

    `silent` and `sample` are its guardian's: for how long nothing was heard, and a look at its threads.
    """

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        interval: float,
        hangs: list[RunHung],
        *,
        place: int,
        now: float,
    ) -> None:
        self.started = now
        self.loaded = False
        self.ready_at: float | None = None
        self.leaving_at: float | None = None
        self.silent = 0.0
        self.sample: dict[int, int] = {}
        self.killed_for = ""
        self._hung_up = False
        self._heard = b""
        self.socket, theirs = socket.socketpair()
        self.socket.setblocking(False)
        self._notes, self._stacks = _file(bytes(SIZE)), _file(b"")
        with theirs, _file(encode_hangs(hangs)) as told:
            handover = Handover(
                socket=theirs.fileno(),
                notes=self._notes.fileno(),
                stacks=self._stacks.fileno(),
                hangs=told.fileno(),
                parent=os.getpid(),
                place=place,
                interval=interval,
            )
            self._process = _start(command, {**environ, VARIABLE: encode_handover(handover)}, handover)

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """How it ended, None while it lives."""
        return self._process.poll()

    def heard(self) -> list[Said]:
        """What it has said since."""
        try:
            while len(self._heard) <= _LONGEST_LINE:
                chunk = self.socket.recv(_CHUNK)
                if not chunk:
                    self._hung_up = True
                    break
                self._heard += chunk
        except BlockingIOError:
            pass
        except OSError:
            self._hung_up = True
        *lines, self._heard = self._heard.split(b"\n")
        if len(self._heard) > _LONGEST_LINE:
            self._heard = b""  # no message of ours is so long: code of the user's has written to the socket
        return [said for line in lines if (said := decode(line)) is not None]

    def has_hung_up(self) -> bool:
        """Whether nothing more will be heard."""
        return self._hung_up

    def ask_to_stop(self) -> None:
        """Let it finish what is in flight, and end."""
        try:
            self.socket.send(STOP)
        except OSError:
            pass  # it has ended

    def kill(self, why: str = "") -> None:
        """End it at once."""
        self.killed_for = self.killed_for or why
        self._process.kill()

    def is_stopped(self) -> bool:
        """Whether it is stopped on purpose: by a signal (Ctrl-Z) or by a debugger."""
        return standstill.is_stopped(self.pid)

    def look(self) -> None:
        """Remember what its threads have used so far, if that was not done yet."""
        if not self.sample:
            self.sample = standstill.processor_time(self.pid)

    def examine(self) -> standstill.Standstill:
        """Where it stands, and at which run."""
        notes = [each for each in read_notes(os.pread(self._notes.fileno(), SIZE, 0)) if each.native_id]
        return standstill.examine(self.pid, self._stacks.fileno(), self.sample, notes)

    def close(self) -> None:
        """It has ended: free what it used."""
        self._process.wait()
        self.socket.close()
        self._notes.close()
        self._stacks.close()


def _start(command: Sequence[str], environ: Mapping[str, str], handover: Handover) -> subprocess.Popen[bytes]:
    # It begins with these blocked, and lets them through when it can handle them: Ctrl-C in its first moments is no traceback.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        return subprocess.Popen(
            command,
            env=environ,
            pass_fds=(handover.socket, handover.notes, handover.stacks, handover.hangs),
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _file(content: bytes) -> IO[bytes]:
    file = tempfile.TemporaryFile("w+b", buffering=0)  # noqa: SIM115 - lives as long as the ward
    file.write(content)
    return file


# --- the guardian ----------------------------------------------------------------------------------------------------


logger = logging.getLogger("hourglass.guardian")

_DRAIN_MARGIN = 15.0
_LEAVING_LIMIT = 15.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is guarded: a command per process, how long each may be silent, and how long they may take to drain."""

    commands: tuple[tuple[str, ...], ...]
    deadlock_timeout: float | None = 2.0
    drain_timeout: float = 10.0
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ), repr=False)


@dataclass(eq=False)
class _Place:
    """Where one process after another works."""

    command: tuple[str, ...]
    ward: Ward | None = None
    record: Record = field(default_factory=Record)
    due: float = 0.0


class Guardian:
    """Keeps processes working until it is told to stop. On the main thread."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._silence = Silence.of(plan.deadlock_timeout)
        self._places = [_Place(command) for command in plan.commands]
        self._hung = HungRuns()
        self._selector = selectors.DefaultSelector()
        self._signals: list[int] = []
        self._asked = 0  # signals that were obeyed
        self._deadline: float | None = None
        self._code = 0
        self._looked: float | None = None

    def run(self) -> int:
        """Guard; returns the exit code."""
        bell, rope = socket.socketpair()
        for end in (bell, rope):
            end.setblocking(False)
        self._selector.register(bell, selectors.EVENT_READ)
        before = {number: signal.signal(number, self._signalled) for number in (*_SIGNALS, signal.SIGCHLD)}
        # The interpreter writes a byte there for each signal: `select` also sees one that came just before it.
        wakeup = signal.set_wakeup_fd(rope.fileno(), warn_on_full_buffer=False)
        try:
            while self._deadline is None or any(place.ward for place in self._places):
                self._turn(bell)
            logger.info("ended")
            return self._code
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)
            for place in self._places:
                if place.ward is not None:
                    place.ward.kill()
                    self._let_go(place, place.ward)
            self._selector.close()
            bell.close()
            rope.close()

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            self._signals.append(number)

    # --- one turn ----------------------------------------------------------------------------------------------------

    def _turn(self, bell: socket.socket) -> None:
        now = time.monotonic()
        while self._signals:
            self._obey(self._signals.pop(0), now)
        for place in self._places:
            self._tend(place, now)
        self._watch(now)
        for key, _ in self._selector.select(self._pause(now)):
            if key.fileobj is bell:
                _drain(bell)
            else:
                self._listen(key.data)

    def _pause(self, now: float) -> float:
        due = [place.due - now for place in self._places if place.ward is None]
        return max(0.0, min([self._silence.interval, *due]) if self._deadline is None else 0.1)

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
            self._deadline = now + self._plan.drain_timeout + _DRAIN_MARGIN
            for place in self._places:
                if place.ward is not None:
                    place.ward.ask_to_stop()

    def _kill_all(self, reason: str) -> None:
        for place in self._places:
            if place.ward is not None:
                place.ward.kill(reason)

    # --- life and death ----------------------------------------------------------------------------------------------

    def _tend(self, place: _Place, now: float) -> None:
        ward = place.ward
        if ward is None:
            if self._deadline is None and now >= place.due:
                self._start(place, now)
            return
        code = ward.exit_code()
        if code is not None:
            self._listen(place)  # its last words
            self._let_go(place, ward)
            self._ended(place, ward, code, now)

    def _start(self, place: _Place, now: float) -> None:
        ward = place.ward = Ward(
            place.command,
            self._plan.environ,
            self._silence.interval,
            self._hung.told(),
            place=self._places.index(place),
            now=now,
        )
        self._selector.register(ward.socket, selectors.EVENT_READ, place)
        logger.info("process %d started", ward.pid)

    def _let_go(self, place: _Place, ward: Ward) -> None:
        place.ward = None
        if not ward.has_hung_up():
            self._selector.unregister(ward.socket)
        ward.close()

    def _ended(self, place: _Place, ward: Ward, code: int, now: float) -> None:
        if self._deadline is not None:
            if code != 0:
                self._code = self._code or 1
                logger.error(
                    "process %d %s while it was shutting down", ward.pid, ward.killed_for or why(code)
                )
            return
        worked_for = None if ward.ready_at is None else now - ward.ready_at
        decision = after_exit(place.record, code, worked_for)
        if isinstance(decision, GiveUp):
            self._code = decision.code
            self._stop(now)
            return
        place.record, place.due = decision.record, now + decision.delay
        logger.error(
            "process %d %s; another one starts in %g s",
            ward.pid,
            ward.killed_for or why(code),
            decision.delay,
        )

    # --- listening ---------------------------------------------------------------------------------------------------

    def _listen(self, place: _Place) -> None:
        ward = place.ward
        if ward is None or ward.has_hung_up():
            return
        for said in ward.heard():
            self._take(ward, said)
        if ward.has_hung_up():
            self._selector.unregister(ward.socket)

    def _take(self, ward: Ward, said: Said) -> None:
        ward.silent, ward.sample = 0.0, {}
        match said:
            case Beat():
                pass
            case Loaded():
                ward.loaded = True
            case Ready():
                ward.ready_at = time.monotonic()
            case Leaving():
                ward.leaving_at = time.monotonic()
            case RunHung():
                self._hung.add(said)
            case RunWentOn():
                self._hung.forget(said.run_id)

    def _watch(self, now: float) -> None:
        # Only time in which we were awake counts: if the machine slept, no process is to blame for its silence.
        passed = 0.0 if self._looked is None else min(now - self._looked, 2 * self._silence.interval)
        self._looked = now
        for place in self._places:
            if place.ward is not None:
                self._listen(place)
                self._watch_one(place.ward, passed, now)
        if self._deadline is not None and now > self._deadline:
            self._kill_all(f"did not end within {self._plan.drain_timeout + _DRAIN_MARGIN:g} s")

    def _watch_one(self, ward: Ward, passed: float, now: float) -> None:
        if ward.leaving_at is not None:
            if now - ward.leaving_at > _LEAVING_LIMIT:
                ward.kill(f"had done its work, did not end within {_LEAVING_LIMIT:g} s and was killed")
            return
        allowed = self._silence.allowed(loaded=ward.loaded)
        if allowed is None or ward.killed_for:
            return
        ward.silent += passed
        if ward.silent >= allowed / 2:
            if ward.is_stopped():
                ward.silent, ward.sample = 0.0, {}
                return
            ward.look()
        if ward.silent >= allowed:
            self._replace(ward, allowed)

    def _replace(self, ward: Ward, silence: float) -> None:
        found = ward.examine()
        noted, stack = found.noted, found.stack
        ward.kill(f"stood still for {silence:g} s at {stack.place} and was killed")
        if noted is None:
            logger.error(
                "process %d stands still, and no workflow's code is at it:\n%s", ward.pid, stack.text
            )
            return
        hang = self._hung.add(
            RunHung(noted.run_id, noted.workflow_type, stack.text, stack.place, costly=True, owed=True)
        )
        logger.error(
            "process %d stands still: workflow %s (run %s) holds the interpreter, %s:\n%s",
            ward.pid,
            noted.workflow_type,
            noted.run_id,
            "for the first time" if hang.times == 1 else f"{hang.times} times now",
            stack.text,
        )


def _drain(bell: Any) -> None:
    try:
        while bell.recv(4096):
            pass
    except BlockingIOError:
        pass
