"""A process that has a guardian (see `guardian`): what it does for that, and what the two tell each other.

The process beats, from a thread of its own: whenever the interpreter can be had, so a beat that does not come means that
another thread holds it. It notes which run each lane is at, and writes where it stands when a signal asks, for which
it needs no interpreter. It tells of runs that hung, and learns of those that stopped the processes before it. All over a pair of
sockets, one JSON document per line; the guardian says one thing: `STOP`.

Invariants: it does not outlive its guardian: the kernel kills it (Linux), or it sees that the socket has ended. Signals that a
terminal or a service manager sends to the whole group ask for the same as the guardian does; however many come, only the guardian
ends it at once. A process that it forks is not guarded, and never speaks to the guardian.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import logging
import os
import selectors
import signal
import socket
import sys
import threading
from collections.abc import Callable, MutableMapping
from dataclasses import asdict
from typing import Final, Literal, TypeAlias, cast, get_args

from hourglass._forks import ForkStage, at_fork
from hourglass._worker.health.hung import (
    SHOWS_THREADS,
    STACK_SIGNAL,
    HungStack,
    RunHung,
    RunWentOn,
    decode_hangs,
)
from hourglass._worker.health.lane_notes import LaneNotes

logger = logging.getLogger("hourglass.guardian")

VARIABLE = "HOURGLASS_GUARDED"
"""What a process is given, as a list: the descriptors of its socket, of its lanes' notes and of the file for its stacks, which
begins with the hangs that it should know; its parent's number; its place among others; how often it should beat.
"""
STOP = b"stop\n"
REFUSED = 2
"""The exit code of a process for which starting again would change nothing: a wrong option, a module that does not load."""
REPLACE_ME = 75  # the exit code of a process that is not healthy and knows it
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

Word: TypeAlias = Literal["beat", "loaded", "ready", "leaving"]
Said: TypeAlias = Word | RunHung | RunWentOn
"""It lives: a thread of it had the interpreter. All is loaded, and work may come. It works. Its work is done: what is left is
the interpreter's end, in which no thread can beat. A run hung, and its lane was replaced; it went on after all.
"""


def encode(said: Said) -> bytes:
    """One line."""
    return json.dumps(said if isinstance(said, str) else {type(said).__name__: asdict(said)}).encode() + b"\n"


def decode(line: bytes) -> Said | None:
    """What a line says; None if it is nothing that we know. It is checked: a process that says it runs the user's code."""
    try:
        match json.loads(line):
            case str(word) if word in get_args(Word):
                return cast("Word", word)
            case {"RunHung": fields}:
                return RunHung(**fields)
            case {"RunWentOn": fields}:
                return RunWentOn(**fields)
    except (ValueError, TypeError):
        pass
    return None


_REPLACE_LIMIT = 5.0  # for what is in flight, in a process that is not healthy
_PR_SET_PDEATHSIG = 1


class Guarded:
    """This process, as its guardian sees it. Any thread may speak; one listens."""

    def __init__(self, channel: int, notes: int, stacks: int, place: int, interval: float) -> None:
        self.exit_code = 0
        self.number = place
        self.on_stop: Callable[[], object] | None = None
        self.hangs = decode_hangs(os.pread(stacks, os.fstat(stacks).st_size, 0))
        self.notes = LaneNotes(notes)
        self._interval = interval
        self._socket = socket.socket(fileno=channel)
        self._socket.setblocking(False)
        self._lock, self._unsent = threading.Lock(), b""
        self._stopping = threading.Event()
        self._stacks = os.fdopen(stacks, "wb", buffering=0)
        faulthandler.register(STACK_SIGNAL, file=self._stacks, all_threads=not SHOWS_THREADS, chain=False)
        threading.Thread(target=self._live, name="hourglass-guarded", daemon=True).start()

    def say(self, said: Said) -> None:
        """Tell the guardian. Never waits: what does not fit is sent with the next beat."""
        with self._lock:
            self._unsent += encode(said)
            try:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
            except BlockingIOError:
                pass  # the guardian is stopped
            except OSError:
                os._exit(1)

    def hung(self, run_id: str, workflow_type: str, stack: HungStack) -> None:
        """A run hung, and its lane was replaced."""
        self.say(RunHung(run_id, workflow_type, stack.text, stack.place))

    def went_on(self, run_id: str) -> None:
        """A run that hung has moved."""
        self.say(RunWentOn(run_id))

    def replace(self) -> None:
        """This process is not healthy: finish what can be finished soon, and end, so that another one takes its place."""
        logger.error("this process is to be replaced: too many of its threads cannot be stopped")
        self.exit_code = REPLACE_ME
        self._ask_to_stop()
        leaving = threading.Timer(_REPLACE_LIMIT, os._exit, (REPLACE_ME,))
        leaving.daemon = True
        leaving.start()

    def _live(self) -> None:
        selector = selectors.DefaultSelector()
        selector.register(self._socket, selectors.EVENT_READ)
        while True:
            self.say("beat")
            try:
                heard = self._socket.recv(len(STOP) * 8) if selector.select(self._interval) else b" "
            except BlockingIOError:
                continue
            except OSError:
                heard = b""
            if not heard:
                os._exit(1)  # the guardian is gone
            if STOP in heard:
                self._ask_to_stop()

    def _ask_to_stop(self) -> None:
        if not self._stopping.is_set():
            self._stopping.set()
            if self.on_stop is None:
                os._exit(0)  # nothing has begun yet
            threading.Thread(target=self.on_stop, name="hourglass-stopping", daemon=True).start()


_guarded: Guarded | None = None


def current() -> Guarded | None:
    """This process as a guarded one; None if it has no guardian."""
    return _guarded


def enter(environ: MutableMapping[str, str]) -> Guarded | None:
    """If a guardian has started this process: take what it hands over, and begin to beat. On the main thread, early."""
    global _guarded
    value = environ.pop(VARIABLE, None)  # not for the programs that activities start
    if value is None:
        return None
    channel, notes, stacks, parent, place, interval = json.loads(value)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before we asked to be told
        os._exit(1)
    for descriptor in (channel, notes, stacks):
        os.set_inheritable(descriptor, False)
    for number in SIGNALS:  # handled, not ignored: programs that are started inherit what is ignored
        signal.signal(number, lambda number, frame: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    _guarded = Guarded(channel, notes, stacks, place, interval)
    return _guarded


def _after_fork() -> None:
    global _guarded
    _guarded = None


at_fork(ForkStage.GUARDIAN, in_child=_after_fork)
