"""Code that does not come back: where its thread stands, in the author's frames; how the thread is told to stop, and
what becomes of one that does not; the debugger, which is allowed to take its time; and a process of which no thread comes back.

A thread is told by an exception that Python raises in it at its next bytecode (`PyThreadState_SetAsyncExc`). That
ends a loop in a millisecond; it does not reach a call into C, and code that catches everything swallows it. So the
thread is told again and again, ever more rarely, while it lives (`Stopper`); one that does not listen is *stuck*:
counted, reported when there are too many, and forgotten when it ends after all.

Two dangers, and how they are met:

- An exception that arrives between a lock's `acquire` and the `try` behind it leaves the lock held for ever: a thread
  is not interrupted while its innermost frame is one of the standard library's (`may_interrupt`).
- While an exception waits for a thread that is in C, Python 3.11 keeps the whole interpreter's alarm raised, and a
  thread that is profiled or traced then spins at its next call until it is delivered. So it never waits: what has not
  arrived after a moment is taken back (`raise_briefly`).

Runs on the control loop, once something is wrong: nothing here costs while all is well, but for the hook of
`breakpoint()`. The guardian looks at its processes with `examine`. Must not know: workflows, lanes' queues, restarts.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import json
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import get_ident
from time import monotonic, sleep
from traceback import FrameSummary, StackSummary, walk_stack
from types import FrameType
from typing import Any, Protocol, TextIO

from hourglass._evaluator.context import current_run
from hourglass._forks import ForkStage, at_fork
from hourglass._worker.code_origin import STDLIB, is_library, is_ours
from hourglass._worker.health.lane_notes import Noted

__all__ = ["HungStack", "frame_of", "is_debugged", "take_stack"]


# --- breakpoints -----------------------------------------------------------------------------------------------------


_lock = threading.Lock()
_installed: Callable[..., Any] | None = None
stopped_threads: set[int] = set()


def install() -> None:
    """Take part in `breakpoint()`, so that workflow code may stop at one for as long as a developer likes. The hook
    that is there now is called where we let it through.

    An engine waits a few seconds for a workflow task, people think longer. When the answer comes too late the engine
    sends the whole run again, and the code would stop at the same place for ever. So a breakpoint that this process
    has passed before, on the same events, is passed silently; and a lane that stands at one does not count as hung.
    """
    global _installed
    with _lock:
        if _installed is None or sys.breakpointhook is not _installed:
            _installed = _hook(sys.breakpointhook)
            sys.breakpointhook = _installed


def is_debugging(thread_id: int) -> bool:
    """Whether the activation that a thread evaluates has stopped at a breakpoint."""
    return thread_id in stopped_threads


def left(thread_id: int) -> None:
    """An activation is over, and with it a stop at a breakpoint in it."""
    stopped_threads.discard(thread_id)


def _hook(original: Callable[..., Any]) -> Callable[..., Any]:
    def at_breakpoint(*args: Any, **kwargs: Any) -> Any:
        run = current_run()
        if run is not None and run.quiet:
            return None
        thread_id = threading.get_ident()
        if run is not None:
            # pdb's set_trace returns at once and traces from then on: the mark stays until the activation is over.
            stopped_threads.add(thread_id)
        if original is sys.__breakpointhook__ and os.environ.get("PYTHONBREAKPOINT", "") == "":
            # pdb stops in the frame it is given: the author's, not this one.
            import pdb

            pdb.Pdb().set_trace(sys._getframe(1))
            return None
        return original(*args, **kwargs)

    return at_breakpoint


# --- stacks as text --------------------------------------------------------------------------------------------------


MOST_FRAMES = 50

_HEADER = re.compile(r"(?:Current thread|Thread) 0x([0-9a-f]+)|Stack \(most recent call first\)")
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")


@dataclass(frozen=True)
class HungStack:
    """A stack as text, the newest frame last, and the place of the newest one, such as `orders.py:12 in wait`."""

    text: str = ""
    place: str = "an unknown place"


@dataclass(frozen=True)
class Dumped:
    """The stack of one thread, the newest frame first. `ident` is Python's number of it, None where only one was asked for."""

    ident: int | None
    frames: tuple[FrameSummary, ...]


@dataclass(frozen=True)
class RunHung:
    """A run hung in workflow code: `stack` is the author's frames, `place` the innermost. `costly`: it stopped the whole process.

    `times` and `age` (seconds since the last time) are what a guardian knows; `owed`: its failure has not been told yet.
    `died`: the process died while the run's code was executing, which has no stack, but says which `code` it was;
    `activity` is the id of a local activity that was at it instead.
    """

    run_id: str
    workflow_type: str
    stack: str
    place: str
    costly: bool = False
    times: int = 1
    age: float = 0.0
    owed: bool = False
    died: bool = False
    code: str = ""
    activity: str = ""


@dataclass(frozen=True)
class RunWentOn:
    """A run that hung has moved."""

    run_id: str


def encode_hangs(hangs: list[RunHung]) -> bytes:
    """All hangs that the next process should know."""
    return json.dumps([asdict(each) for each in hangs]).encode()


def decode_hangs(content: bytes) -> list[RunHung]:
    """The same, read by that process."""
    return [RunHung(**each) for each in json.loads(content or b"[]")]


def told(frames: Sequence[FrameSummary]) -> HungStack:
    """The author's frames of a stack that is given newest first; where there are none, the innermost frame of all."""
    if not frames:
        return HungStack()
    own = [each for each in frames if not is_ours(each.filename) and not is_library(each.filename)]
    shown = (own or list(frames[:1]))[:MOST_FRAMES]
    shown.reverse()
    last = shown[-1]
    return HungStack(
        "".join(StackSummary.from_list(shown).format()), f"{last.filename}:{last.lineno} in {last.name}"
    )


def parse_dump(text: str) -> list[Dumped]:
    """The stacks in what `faulthandler` wrote; whatever else stands there is passed over."""
    found: list[tuple[int | None, list[FrameSummary]]] = []
    for line in text.splitlines():
        if header := _HEADER.match(line):
            found.append((int(header[1], 16) if header[1] else None, []))
        elif found and (frame := _FRAME.fullmatch(line)):
            number = int(frame[2]) if frame[2].isdigit() else 0
            found[-1][1].append(FrameSummary(_unescaped(frame[1]), number, _unescaped(frame[3])))
    return [Dumped(ident, tuple(frames)) for ident, frames in found]


def _unescaped(text: str) -> str:
    # It writes ASCII, and has no room for more than 500 characters of a name.
    return _ESCAPE.sub(lambda each: chr(int(each[1] or each[2] or each[3], 16)), text)


# --- looking at a thread ---------------------------------------------------------------------------------------------


_DEBUGGERS = ("bdb", "pdb", "pydevd", "_pydevd", "debugpy")


def frame_of(thread_id: int | None) -> FrameType | None:
    """The frame that a thread executes now, None if there is no such thread."""
    return sys._current_frames().get(thread_id) if thread_id is not None else None


def take_stack(frame: FrameType | None) -> HungStack:
    """The author's frames of a stack; where there are none, the innermost frame of all."""
    if frame is None:
        return HungStack()
    # Positions first, source lines later: the thread may be running on while it is looked at.
    return told(StackSummary.extract(walk_stack(frame), limit=MOST_FRAMES * 4, lookup_lines=False))


def is_debugged(thread_id: int, frame: FrameType | None) -> bool:
    """Whether a debugger holds a thread: at a breakpoint, or stepping through its code."""
    if is_debugging(thread_id) or _is_debugger(threading.gettrace()):
        return True
    monitoring: Any = getattr(sys, "monitoring", None)
    if monitoring is not None and monitoring.get_tool(monitoring.DEBUGGER_ID) is not None:
        return True
    each = frame
    while each is not None:
        if _is_debugger(each.f_trace) or _names_debugger(each.f_globals.get("__name__", "")):
            return True
        each = each.f_back
    return False


def _is_debugger(tracer: object) -> bool:
    # Coverage traces, too, and stops nowhere.
    if tracer is None:
        return False
    return _names_debugger(getattr(tracer, "__module__", "")) or _names_debugger(type(tracer).__module__)


def _names_debugger(module: object) -> bool:
    return isinstance(module, str) and module.startswith(_DEBUGGERS)


# --- stopping a thread -----------------------------------------------------------------------------------------------


logger = logging.getLogger("hourglass.worker")

STUCK_AFTER = 8  # attempts: about a quarter of a second
_FIRST_DELAY, _LAST_DELAY = 0.001, 5.0
_UNWINDING_DELAY = 0.25  # what a thread that moves may take for each of its runs
_FIRST_MOMENT, _LAST_MOMENT = 0.001, 0.01
_PATIENCE = 12  # attempts before library code that holds no lock of the whole process is interrupted, too

# Their locks are shared by all threads: held for ever, they would stop the process.
_NEVER = tuple(
    f"{base}{name}" for base in STDLIB for name in ("logging/", "threading.py", "queue.py", "importlib/")
)

_set_async_exc = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ulong, ctypes.py_object)(
    ("PyThreadState_SetAsyncExc", ctypes.pythonapi)
)
_clear_async_exc = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p)(
    ("PyThreadState_SetAsyncExc", ctypes.pythonapi)
)


class LaneStopped(BaseException):
    """This lane has been abandoned: its thread must end. Not an error, and not to be caught."""


class Stoppable(Protocol):
    """A thread that was abandoned."""

    name: str

    @property
    def ended(self) -> bool:
        """Whether the thread has left all code of ours and the author's."""
        ...

    @property
    def progress(self) -> int:
        """A number that moves while the thread cleans up."""
        ...

    def interrupt(self, attempt: int) -> None:
        """Raise `LaneStopped` in the thread, if that is safe now and can help."""
        ...

    def wait_ended(self, timeout: float) -> bool:
        """Wait for the thread's end; not on the control loop."""
        ...


class _Settled(BaseException):
    pass


def raise_briefly(thread_id: int, seconds: float) -> None:
    """Raise `LaneStopped` in a thread if it takes it within so many seconds. It must not end meanwhile: its number may go
    to another one.

    In one frame, and calling nothing but C: with the alarm raised, a traced thread does not get through its next call, and that
    thread may be this one. Only delivering an exception silences the alarm, so we raise one for ourselves at the end.
    """
    try:
        _set_async_exc(thread_id, LaneStopped)
        sleep(seconds)
        _clear_async_exc(thread_id, None)
        _set_async_exc(get_ident(), _Settled)
        for _ in (1, 2):  # a backward jump: there at the latest the interpreter delivers it
            pass
    except _Settled:
        pass


def cpu_time(thread_id: int) -> float | None:
    """The processor time of a living thread in seconds, None where the system does not tell."""
    clock_of: Any = getattr(time, "pthread_getcpuclockid", None)
    return float(time.clock_gettime(clock_of(thread_id))) if clock_of is not None else None


def may_interrupt(frame: FrameType | None, attempt: int) -> bool:
    """Whether an exception may be raised where a thread stands."""
    if frame is None:
        return True
    file = frame.f_code.co_filename
    if file.startswith(("<frozen importlib", *_NEVER)):
        return False
    return attempt > _PATIENCE or not file.startswith(STDLIB)


def moment(attempt: int) -> float:
    """For how long an attempt waits to be heard: longer each time, should many threads want the interpreter."""
    return min(_FIRST_MOMENT * (1 << min(attempt - 1, 10)), _LAST_MOMENT)


@dataclass(eq=False)
class _Abandoned:
    lane: Stoppable
    progress: int
    attempts: int = 0
    delay: float = _FIRST_DELAY

    @property
    def stuck(self) -> bool:
        return self.attempts > STUCK_AFTER


class Stopper:
    """Tells abandoned threads to stop until they do, and counts those that do not."""

    def __init__(self, max_stuck: int, on_too_many: Callable[[], object] | None) -> None:
        self._max_stuck = max_stuck
        self._on_too_many = on_too_many
        self._told: list[_Abandoned] = []
        self._reported = False

    @property
    def too_many(self) -> bool:
        """Whether more threads are stuck than may be."""
        return sum(each.stuck for each in self._told) > self._max_stuck

    def stuck(self, name: str | None = None) -> int:
        """How many threads do not stop, of the lane with this name or at all."""
        self._forget_ended()
        return sum(each.stuck for each in self._told if name is None or each.lane.name == name)

    def abandoned(self) -> list[Stoppable]:
        """The threads that were told to stop and have not ended yet."""
        self._forget_ended()
        return [each.lane for each in self._told]

    def tell(self, lane: Stoppable, loop: asyncio.AbstractEventLoop) -> None:
        """Tell a thread to stop, now and until it does."""
        # From 0: a thread that unwinds already has a larger number, and is seen to move at the first look.
        told = _Abandoned(lane, progress=0)
        self._told.append(told)
        self._attempt(told, loop)

    def _attempt(self, told: _Abandoned, loop: asyncio.AbstractEventLoop) -> None:
        self._forget_ended()
        if told.lane.ended:
            return
        progress = told.lane.progress
        if progress != told.progress:
            told.progress, told.delay = progress, _UNWINDING_DELAY  # it listens, and unwinds its runs
        else:
            told.attempts += 1
            told.lane.interrupt(told.attempts)
            told.delay = min(told.delay * 2, _LAST_DELAY)
            if told.attempts == STUCK_AFTER + 1:
                self._report(told)
        loop.call_later(told.delay, self._attempt, told, loop)

    def _report(self, told: _Abandoned) -> None:
        logger.error(
            "a thread of %s cannot be stopped and is left behind; %d of them in this worker",
            told.lane.name,
            self.stuck(),
        )
        if self.too_many and not self._reported:
            self._reported = True
            logger.error("more than %d threads are stuck: this worker is not healthy", self._max_stuck)
            if self._on_too_many is not None:
                self._on_too_many()

    def _forget_ended(self) -> None:
        self._told = [each for each in self._told if not each.lane.ended]
        if self._reported and not self.too_many:
            self._reported = False


# --- a process that stands still, seen by another ------------------------------------------------------------

_REAL_TIME: int | None = getattr(signal, "SIGRTMIN", None)
# Programs use SIGUSR1 and SIGUSR2 themselves; hardly any uses the real-time signals.
STACK_SIGNAL = signal.SIGUSR2 if _REAL_TIME is None else _REAL_TIME + 7
"""Makes a process write where it stands, by `faulthandler`."""
SHOWS_THREADS = sys.platform == "linux"
"""Whether a process sees the threads of another, and can signal one of them."""
_LONGEST_DUMP = 1 << 20


def examine(
    pid: int, stacks: int, before: Mapping[int, int], notes: list[Noted]
) -> tuple[HungStack, Noted | None]:
    """Have a process write where it stands, to the file `stacks`: its stack, and what the lane to blame has noted, if one is.

    One thread holds the interpreter, all others wait for it: the one that has used the processor since `before` is it. A
    signal to just that thread makes `faulthandler` write its stack, for which it needs no interpreter. Where the system
    does not show the threads of another process, all stacks are written, and a lane that is alone at work is the one.
    """
    if SHOWS_THREADS:
        lanes = {each.native_id: each for each in notes}
        used = {thread: ticks - before.get(thread, 0) for thread, ticks in processor_time(pid).items()}
        busiest = sorted((each for each in used if used[each] > 0), key=lambda each: -used[each])[:3]
        for thread in busiest or list(lanes):
            for dumped in _dump(pid, thread, stacks):
                if dumped.frames:
                    return told(dumped.frames), lanes.get(thread)
    elif len(notes) == 1:
        for dumped in _dump(pid, None, stacks):
            if dumped.ident == notes[0].ident and dumped.frames:
                return told(dumped.frames), notes[0]
    return HungStack(), None


def _dump(pid: int, thread: int | None, stacks: int) -> list[Dumped]:
    begin = seen = os.fstat(stacks).st_size
    try:
        if thread is None:
            os.kill(pid, STACK_SIGNAL)
        elif ctypes.CDLL(None).tgkill(pid, thread, int(STACK_SIGNAL)):
            return []
    except (OSError, AttributeError):  # gone; a C library without it
        return []
    for _ in range(100):  # a second
        sleep(0.01)
        size = os.fstat(stacks).st_size
        if size == seen > begin:
            break  # written, and nothing more comes
        seen = size
    return parse_dump(os.pread(stacks, min(seen - begin, _LONGEST_DUMP), begin).decode("ascii", "replace"))


def processor_time(pid: int) -> dict[int, int]:
    """The ticks that each thread of a process has used; empty where the system does not tell."""
    used: dict[int, int] = {}
    # A thread has ended meanwhile, or there is no such thing here.
    with suppress(OSError, IndexError, ValueError):
        for task in os.listdir(f"/proc/{pid}/task"):
            fields = _stat(f"/proc/{pid}/task/{task}/stat")
            used[int(task)] = int(fields[11]) + int(fields[12])  # in user code, and in the kernel for it
    return used


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped on purpose: by a signal (Ctrl-Z) or by a debugger."""
    with suppress(OSError, IndexError, ValueError):
        return _stat(f"/proc/{pid}/stat")[0] in ("T", "t")
    return False


def is_suspended(pid: int) -> bool:
    """Whether a process is stopped by a signal; one that a debugger has stopped is not."""
    with suppress(OSError, IndexError, ValueError):
        return _stat(f"/proc/{pid}/stat")[0] == "T"
    return False


def _stat(path: str) -> list[str]:
    stat = Path(path).read_text()
    return stat[stat.rindex(")") + 2 :].split()  # a name may hold spaces and parentheses


# --- a process that stands still, and has no guardian ------------------------------------------------------


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
        self, limit: float, *, file: TextIO | None = None, clock: Callable[[], float] = monotonic
    ) -> None:
        self._limit = limit
        self._file = file
        self._clock = clock
        self._fed: float | None = None

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


_watchdog: GilWatchdog | None = None


def show_standstills(limit: float) -> None:
    """Have the stacks written to stderr when this process stands still for so long."""
    global _watchdog
    _watchdog = GilWatchdog(limit)


def gil_watchdog() -> GilWatchdog | None:
    """What `show_standstills` asked for, if it did; a forked child has none."""
    return _watchdog


def _after_fork() -> None:
    global _watchdog
    _watchdog = None


at_fork(ForkStage.GUARDIAN, in_child=_after_fork)
