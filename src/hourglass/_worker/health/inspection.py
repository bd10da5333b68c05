"""The state of another process, as its parent sees it: whether the process is stopped, and the stack of its hung
thread.

A process in which a call into C holds the interpreter can execute no Python. `faulthandler` writes a stack from a
signal handler, without the interpreter.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import sleep

from hourglass._worker.health.lane_notes import NotedRun
from hourglass._worker.health.stacks import DumpedStack, HungStack, author_stack, parse_dump

_REAL_TIME: int | None = getattr(signal, "SIGRTMIN", None)
# Programs use SIGUSR1 and SIGUSR2 themselves; hardly any uses the real-time signals.
STACK_SIGNAL = signal.SIGUSR2 if _REAL_TIME is None else _REAL_TIME + 7
"""The signal that makes a worker process write its stack, with `faulthandler`."""
SHOWS_THREADS = sys.platform == "linux"
"""Whether a process can see the threads of another process, and send a signal to a single thread."""
_LONGEST_DUMP = 1 << 20
_WRITE_LIMIT = 1.0
_WRITE_POLL = 0.01


def hung_stack(
    pid: int, dumps: int, ticks_before: Mapping[int, int], notes: Sequence[NotedRun]
) -> tuple[HungStack, NotedRun | None]:
    """Return the stack of the thread that holds the interpreter of a process, and the run that the thread is executing.

    All other threads wait, so the busy thread is the one that has used CPU time since `ticks_before`. That thread is
    made to write its stack to the file `dumps`. If the system does not show the threads of another process, the stack
    is found only if exactly one lane is executing: all threads then write their stacks.
    """
    if SHOWS_THREADS:
        lanes = {noted.native_id: noted for noted in notes}
        used = {thread: ticks - ticks_before.get(thread, 0) for thread, ticks in processor_ticks(pid).items()}
        busiest = sorted((thread for thread in used if used[thread] > 0), key=lambda thread: -used[thread])
        for thread in busiest[:3] or list(lanes):
            for dumped in _dump(pid, thread, dumps):
                if dumped.frames:
                    return author_stack(dumped.frames), lanes.get(thread)
    elif len(notes) == 1:
        for dumped in _dump(pid, None, dumps):
            if dumped.ident == notes[0].ident and dumped.frames:
                return author_stack(dumped.frames), notes[0]
    return HungStack(), None


def processor_ticks(pid: int) -> dict[int, int]:
    """Return the CPU time of each thread of a process, in clock ticks; empty if the system does not report it."""
    used: dict[int, int] = {}
    # A thread may end meanwhile, and some systems have no /proc.
    with suppress(OSError, IndexError, ValueError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            fields = _fields(f"/proc/{pid}/task/{thread}/stat")
            used[int(thread)] = int(fields[11]) + int(fields[12])  # in user mode, and in the kernel
    return used


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped on purpose, by a signal (Ctrl-Z) or by a debugger."""
    return _state(pid) in ("T", "t")


def is_suspended(pid: int) -> bool:
    """Whether a process is stopped by a signal, not by a debugger."""
    return _state(pid) == "T"


def _state(pid: int) -> str:
    with suppress(OSError, IndexError, ValueError):
        return _fields(f"/proc/{pid}/stat")[0]
    return ""


def _fields(path: str) -> list[str]:
    text = Path(path).read_text()
    return text[text.rindex(")") + 2 :].split()  # a name may contain spaces and parentheses


def _dump(pid: int, thread: int | None, dumps: int) -> list[DumpedStack]:
    start = size = os.fstat(dumps).st_size
    try:
        if thread is None:
            os.kill(pid, STACK_SIGNAL)
        elif ctypes.CDLL(None).tgkill(pid, thread, int(STACK_SIGNAL)):
            return []
    except (OSError, AttributeError):  # the process has ended, or the C library has no tgkill
        return []
    for _ in range(round(_WRITE_LIMIT / _WRITE_POLL)):
        sleep(_WRITE_POLL)
        size, previous = os.fstat(dumps).st_size, size
        if size == previous > start:
            break  # complete
    return parse_dump(os.pread(dumps, min(size - start, _LONGEST_DUMP), start).decode("ascii", "replace"))
