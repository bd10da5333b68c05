"""The guardian: a small process that starts worker processes and replaces those that cannot be saved.

A worker heals itself, but for one thing: a call into C that does not return and holds the interpreter (a catastrophic regular
expression). Then no thread of it can do anything, and another process must. The guardian hears that nothing is heard any more,
has the process write where it stands, kills it, and starts the next one, which it tells which run was to blame: that run's task
is failed, and after a second time not executed any more, so that it does not stop one process after the other.

Invariants:

- The guardian loads no code of the user's, has one thread, and waits for nobody but in its one `select`.
- A process is ended at once only by a second signal, by a limit that passed, or because it stands still.
- Whatever ends the guardian ends its processes (see `guarded`).
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from hourglass._runtime.guardian_memory import HungRuns
from hourglass._runtime.guardian_policy import GiveUp, Record, Silence, after_exit, why
from hourglass._runtime.guardian_ward import Ward
from hourglass._runtime.guardian_wire import Beat, Leaving, Loaded, Ready, RunHung, RunWentOn, Said

logger = logging.getLogger("hourglass.guardian")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
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
        # Only time in which we were awake counts: if the machine slept, nobody is to blame.
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
