"""A process that stands still: which of its threads keeps it, and where in its code. Seen from outside, by its
guardian (`examine`), or without one, by a watchdog inside it (`GilWatchdog`).

A call into C that does not return and holds the interpreter stops every thread; a catastrophic regular expression is
the usual one. Nothing in Python can run then, so nothing here mends it.

From outside: one thread holds the interpreter, all others wait for it: the one that uses the processor is it. A
signal to just that thread makes `faulthandler` write its stack, for which it needs no interpreter. Where the system
does not show the threads of another process, the signal goes to the process, all stacks are written, and the lanes'
notes tell which is the one.

Loaded by the guardian. Knows nothing of restarts; changes nothing in the process.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TextIO

from hourglass._runtime.guardian_wire import STACK_SIGNAL
from hourglass._runtime.hung import Dumped, HungStack, parse_dump, told
from hourglass._runtime.lane_notes import Noted

# --- from inside -----------------------------------------------------------------------------------------------------


_FEEDS = 4  # per limit


class GilWatchdog:
    """Writes all stacks to a file, stderr by default, again and again, when the control loop has not fed it for
    `limit` seconds.

    `faulthandler`'s thread, which needs no interpreter, does it; a service manager, or a person, then replaces the
    process. Feeding costs some 40 microseconds and happens a few times per limit, from the control loop; arming it
    around each evaluation would cost more than most evaluations.

    There is one such thread in a process, and other libraries may want it (pytest does): so this is for processes of
    ours, and off unless asked for. Belongs to the control loop.
    """

    def __init__(
        self, limit: float, *, file: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit = limit
        self._file = file
        self._clock = clock
        self._fed: float | None = None

    @property
    def armed(self) -> bool:
        """Whether it waits to be fed."""
        return self._fed is not None

    def feed(self) -> None:
        """All is well, and shall be for the next `limit` seconds."""
        now = self._clock()
        if self._fed is None or now - self._fed >= self._limit / _FEEDS:
            self._fed = now
            faulthandler.dump_traceback_later(
                self._limit, repeat=True, file=self._file or sys.__stderr__ or sys.stderr
            )

    def rest(self) -> None:
        """There is nothing to do: the control loop does not feed it for a while, and nothing is written."""
        if self._fed is not None:
            self._fed = None
            faulthandler.cancel_dump_traceback_later()


# --- from outside ----------------------------------------------------------------------------------------------------


SHOWS_THREADS = sys.platform == "linux"

_STOPPED = ("T", "t")  # by Ctrl-Z, by a debugger
_DUMP_LIMIT, _DUMP_LOOK = 1.0, 0.01
_LONGEST_DUMP = 1 << 20
_MOST_TRIED = 3


@dataclass(frozen=True)
class Standstill:
    """What keeps a process: the stack, and the run that it is at; None if no workflow's code is to blame, or that is
    not known.
    """

    stack: HungStack
    noted: Noted | None


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped on purpose: by a signal (Ctrl-Z) or by a debugger."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return _fields(file.read())[0] in _STOPPED
    except (OSError, IndexError, ValueError):
        return False


def processor_time(pid: int) -> dict[int, int]:
    """The ticks that each thread of a process has used; empty where the system does not tell."""
    used: dict[int, int] = {}
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/stat") as file:
                fields = _fields(file.read())
            used[int(task)] = int(fields[11]) + int(fields[12])  # in user code, and in the kernel for it
    except (OSError, IndexError, ValueError):
        pass  # a thread has ended meanwhile, or there is no such thing here
    return used


def examine(pid: int, stacks: int, before: Mapping[int, int], notes: list[Noted]) -> Standstill:
    """Have the process write where it stands. `stacks` is the file it writes to, `before` its processor time a while ago."""
    if not SHOWS_THREADS:
        return _among(_dump(pid, None, stacks), notes)
    by_thread = {each.native_id: each for each in notes}
    for thread in _busiest(before, processor_time(pid)) or list(by_thread):
        for dumped in _dump(pid, thread, stacks):
            if dumped.frames:
                return Standstill(told(dumped.frames), by_thread.get(thread))
    return Standstill(HungStack(), None)


def _busiest(before: Mapping[int, int], after: Mapping[int, int]) -> list[int]:
    used = {thread: ticks - before.get(thread, 0) for thread, ticks in after.items()}
    return sorted((each for each in used if used[each] > 0), key=lambda each: -used[each])[:_MOST_TRIED]


def _among(dumped: list[Dumped], notes: list[Noted]) -> Standstill:
    """All stacks are there, and nothing tells which thread holds the interpreter: only where a single lane is at
    work, it is that one's.
    """
    for noted in notes if len(notes) == 1 else ():
        for each in dumped:
            if each.ident == noted.ident and each.frames:
                return Standstill(told(each.frames), noted)
    return Standstill(HungStack(), None)


def _dump(pid: int, thread: int | None, stacks: int) -> list[Dumped]:
    begin = os.fstat(stacks).st_size
    if not _send(pid, thread):
        return []
    seen, deadline = begin, time.monotonic() + _DUMP_LIMIT
    while time.monotonic() < deadline:
        time.sleep(_DUMP_LOOK)
        size = os.fstat(stacks).st_size
        if size == seen > begin:
            break  # written, and nothing more comes
        seen = size
    return parse_dump(os.pread(stacks, min(seen - begin, _LONGEST_DUMP), begin).decode("ascii", "replace"))


def _send(pid: int, thread: int | None) -> bool:
    try:
        if thread is None:
            os.kill(pid, STACK_SIGNAL)
            return True
        return bool(ctypes.CDLL(None).tgkill(pid, thread, int(STACK_SIGNAL)) == 0)
    except (OSError, AttributeError):  # gone; a C library without it
        return False


def _fields(stat: str) -> list[str]:
    return stat[stat.rindex(")") + 2 :].split()  # a name may hold spaces and parentheses
