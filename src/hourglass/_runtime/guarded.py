"""The guarded side: what a process does that has a guardian (see `guardian`).

It beats, from a thread of its own: whenever the interpreter can be had, so a beat that does not come means that
another thread holds it. It notes which run each lane is at, and writes where it stands when a signal asks, for which
it needs no interpreter. It tells of runs that hung, and learns of those that stopped the processes before it.

Invariants:

- It does not outlive its guardian: the kernel kills it (Linux), or it sees that the socket has ended.
- Signals that a terminal or a service manager sends to the whole group ask for the same as the guardian does; however many
  come, only the guardian ends it at once.
- A process that it forks is not guarded, and never speaks to the guardian.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import selectors
import signal
import socket
import sys
import threading
from collections.abc import Callable, MutableMapping
from typing import Final

from hourglass._forks import ForkStage, at_fork
from hourglass._runtime.guardian_wire import (
    REPLACE_ME,
    STACK_SIGNAL,
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
    decode_handover,
    decode_hangs,
    encode,
)
from hourglass._runtime.hung import HungStack
from hourglass._runtime.lane_notes import LaneNotes
from hourglass._runtime.standstill import SHOWS_THREADS, GilWatchdog

logger = logging.getLogger("hourglass.guardian")

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_REPLACE_LIMIT = 5.0  # for what is in flight, in a process that is not healthy
_PR_SET_PDEATHSIG = 1


class Guarded:
    """This process, as its guardian sees it. Any thread may speak; one listens."""

    def __init__(self, handover: Handover) -> None:
        self.exit_code = 0
        self.number = handover.place
        self.on_stop: Callable[[], object] | None = None
        self.hangs = decode_hangs(_read_all(handover.hangs))
        self.notes = LaneNotes(handover.notes)
        self._interval = handover.interval
        self._socket = socket.socket(fileno=handover.socket)
        self._socket.setblocking(False)
        self._lock = threading.Lock()
        self._unsent = b""
        self._stopping = threading.Event()
        self._stacks = os.fdopen(handover.stacks, "wb", buffering=0)
        faulthandler.register(STACK_SIGNAL, file=self._stacks, all_threads=not SHOWS_THREADS, chain=False)

    def start(self) -> None:
        """Begin to beat and to listen."""
        threading.Thread(target=self._live, name="hourglass-guarded", daemon=True).start()

    # --- for the worker ----------------------------------------------------------------------------------------------

    def say(self, said: Said) -> None:
        """Tell the guardian. Never waits: what does not fit is sent with the next beat."""
        with self._lock:
            self._unsent += encode(said)
            self._flush()

    def loaded(self) -> None:
        """Work may come."""
        self.say(Loaded())

    def ready(self) -> None:
        """The worker works."""
        self.say(Ready())

    def hung(self, run_id: str, workflow_type: str, stack: HungStack) -> None:
        """A run hung, and its lane was replaced."""
        self.say(RunHung(run_id, workflow_type, stack.text, stack.place))

    def went_on(self, run_id: str) -> None:
        """A run that hung has moved."""
        self.say(RunWentOn(run_id))

    def leaving(self) -> None:
        """The work is done."""
        self.say(Leaving())

    def replace(self) -> None:
        """This process is not healthy: finish what can be finished soon, and end, so that another one takes its place."""
        logger.error("this process is to be replaced: too many of its threads cannot be stopped")
        self.exit_code = REPLACE_ME
        threading.Thread(target=self._leave, name="hourglass-leaving", daemon=True).start()

    # --- its own threads ---------------------------------------------------------------------------------------------

    def _live(self) -> None:
        selector = selectors.DefaultSelector()
        selector.register(self._socket, selectors.EVENT_READ)
        while True:
            self.say(Beat())
            if selector.select(self._interval) and not self._heard():
                os._exit(1)  # the guardian is gone

    def _heard(self) -> bool:
        try:
            heard = self._socket.recv(len(STOP) * 8)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if STOP in heard:
            self._ask_to_stop()
        return bool(heard)

    def _ask_to_stop(self) -> None:
        if not self._stopping.is_set():
            self._stopping.set()
            if self.on_stop is None:
                os._exit(0)  # nothing has begun yet
            threading.Thread(target=self.on_stop, name="hourglass-stopping", daemon=True).start()

    def _leave(self) -> None:
        self._ask_to_stop()
        threading.Event().wait(_REPLACE_LIMIT)
        os._exit(self.exit_code)

    def _flush(self) -> None:
        try:
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            pass  # the guardian is stopped
        except OSError:
            os._exit(1)


class _Process:
    """What this process is; forked children are not."""

    guarded: Guarded | None = None
    watchdog: GilWatchdog | None = None


def current() -> Guarded | None:
    """This process as a guarded one; None if it has no guardian."""
    return _Process.guarded


def watchdog() -> GilWatchdog | None:
    """The watchdog that shows on stderr where this process stands, if that was asked for."""
    return _Process.watchdog


def show_standstills(limit: float) -> None:
    """Have the stacks written to stderr when this process stands still for so long: for one without a guardian."""
    _Process.watchdog = GilWatchdog(limit)


def enter(environ: MutableMapping[str, str]) -> Guarded | None:
    """If a guardian has started this process: take what it hands over, and begin to beat. On the main thread, early."""
    value = environ.pop(VARIABLE, None)  # not for the programs that activities start
    if value is None:
        return None
    handover = decode_handover(value)
    _die_with(handover.parent)
    for descriptor in (handover.socket, handover.notes, handover.stacks, handover.hangs):
        os.set_inheritable(descriptor, False)
    for number in SIGNALS:  # handled, not ignored: programs that are started inherit what is ignored
        signal.signal(number, _nothing)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    guarded = _Process.guarded = Guarded(handover)
    guarded.start()
    return guarded


def _nothing(number: int, frame: object) -> None:
    pass


def _read_all(descriptor: int) -> bytes:
    try:
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    finally:
        os.close(descriptor)


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before we asked to be told
        os._exit(1)


def _after_fork() -> None:
    _Process.guarded = _Process.watchdog = None


at_fork(ForkStage.GUARDIAN, in_child=_after_fork)
