"""The call watcher: while workflow code runs on this lane it sees each call of C, and reports those that are not
deterministic.

`sys.setprofile` on Python 3.11, set for the author's code alone, `sys.monitoring` from 3.12 on; for tests and
development, because each call costs. An audit hook would be too blind: it has no event for clocks, randomness or
locks.

What is watched is a table of clocks, randomness, sleeping, threads, locks, files, sockets and processes. Only
functions of C are in it: whatever the standard library writes in Python comes down to one of them (`uuid.uuid4` reads
`os.urandom`, `random.randint` the hidden generator, `subprocess.run` forks).

A report names the author's line: the innermost frame that is neither ours nor the standard library's nor an
installed package's, or the innermost that is not ours where there is none. What Hourglass itself does,
logging, warnings, imports, time zone data and whatever stands inside `with workflow.unsafe():` does not
count.
"""

from __future__ import annotations

import _random
import _socket
import _thread
import builtins
import gc
import io
import logging
import os
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from types import BuiltinFunctionType, CodeType, FrameType, MethodDescriptorType
from typing import Any, Literal, TypeAlias

from hourglass._evaluator.context import current_run
from hourglass._evaluator.fibers import watchers
from hourglass._worker.code_origin import STDLIB, is_library, is_ours, is_package
from hourglass.activity._interruption import exclusion
from hourglass.errors import DeterminismError

# --- the table -------------------------------------------------------------------------------------------------------


CLOCK, RANDOM, SLEEP, IO, THREAD, LOCK = (
    "reads a clock",
    "reads randomness",
    "sleeps",
    "does I/O",
    "starts a thread",
    "takes a lock",
)

_ADVICE = {
    CLOCK: "use workflow.now() or workflow.time()",
    RANDOM: "use workflow.random() or workflow.uuid4()",
    SLEEP: "use workflow.sleep()",
    IO: "do it in an activity",
    THREAD: "use workflow.spawn()",
    LOCK: "use workflow.Lock",
}


def kind_of(function: Any, frame: FrameType) -> str | None:
    """What a C function that `frame` is about to call does, if workflow code must not; None for all others."""
    try:
        kind = _FUNCTIONS.get(function)
    except TypeError:  # a method of something that cannot be hashed
        kind = None
    if kind is not None:
        return kind
    name = getattr(function, "__name__", "")
    if name not in _METHODS:
        return None
    if name == "seed" and frame.f_code is _SEED:
        return RANDOM if frame.f_locals.get("a") is None else None  # seeded with nothing: from the system
    return _method_kind(name, getattr(function, "__self__", None))


def _method_kind(name: str, owner: Any) -> str | None:
    if name in _JOIN_METHODS:
        return LOCK if type(owner).__name__ == _THREAD_HANDLE else None
    if name in _LOCK_METHODS:
        return LOCK if isinstance(owner, (_thread.LockType, _thread.RLock)) else None
    if name in _CLOCK_METHODS:
        return CLOCK if isinstance(owner, type) and issubclass(owner, date) else None
    if name in _RANDOM_METHODS and isinstance(owner, _random.Random):
        # The module's own generator only: workflow.random() and generators with a seed of the author's are
        # deterministic.
        return RANDOM if owner is _HIDDEN_GENERATOR else None
    return IO if isinstance(owner, _socket.socket) else None


def _named(module: Any, names: str) -> list[Any]:
    return [getattr(module, name) for name in names.split() if hasattr(module, name)]


_SEED = random.Random.seed.__code__
_HIDDEN_GENERATOR: Any = random.random.__self__  # type: ignore[attr-defined]

_FUNCTIONS: dict[Any, str] = {
    **dict.fromkeys(
        _named(
            time,
            "time time_ns monotonic monotonic_ns perf_counter perf_counter_ns process_time process_time_ns thread_time "
            "thread_time_ns clock_gettime clock_gettime_ns",
        ),
        CLOCK,
    ),
    time.sleep: SLEEP,
    **dict.fromkeys(_named(os, "urandom getrandom"), RANDOM),
    **dict.fromkeys(_named(uuid, "_generate_time_safe _UuidCreate"), RANDOM),
    **dict.fromkeys([builtins.open, io.open, io.FileIO], IO),
    **dict.fromkeys(
        _named(
            os,
            "open read write pread pwrite stat lstat fstat listdir scandir mkdir rmdir remove unlink rename replace link symlink "
            "readlink chmod chown truncate access utime sendfile mkfifo statvfs getcwd chdir "
            "system fork forkpty execv execve posix_spawn posix_spawnp kill killpg waitpid wait pipe",
        ),
        IO,
    ),
    **dict.fromkeys(
        _named(_socket, "getaddrinfo gethostbyname gethostbyname_ex gethostbyaddr getnameinfo gethostname"),
        IO,
    ),
    **dict.fromkeys(_named(_thread, "start_new_thread start_joinable_thread"), THREAD),
}

_THREAD_HANDLE = "_ThreadHandle"  # from Python 3.13 on a thread is waited for by this, not by a lock
_JOIN_METHODS = frozenset({"join"} if hasattr(_thread, _THREAD_HANDLE) else ())
_LOCK_METHODS = frozenset({"acquire", "__enter__", "__exit__"})
_CLOCK_METHODS = frozenset({"now", "utcnow", "today"})
_RANDOM_METHODS = frozenset({"random", "getrandbits", "seed", "setstate", "getstate"})
_SOCKET_METHODS = frozenset(
    {"connect", "connect_ex", "bind", "listen", "send", "sendall", "sendto", "recv", "recv_into", "recvfrom"}
)
_METHODS = _JOIN_METHODS | _LOCK_METHODS | _CLOCK_METHODS | _RANDOM_METHODS | _SOCKET_METHODS

WATCHED_NAMES = _METHODS | {function.__name__ for function in _FUNCTIONS if function is not None}
"""A function with another name is none of them: a look at the name spares most calls a look at the tables."""


# --- the watcher -----------------------------------------------------------------------------------------------------


logger = logging.getLogger("hourglass.worker")

Action: TypeAlias = Literal["warn", "error"]

# What these do on the way is theirs: none of it reaches the workflow's result.
_EXCUSED = tuple(
    f"{base}{name}"
    for base in STDLIB
    for name in (
        "logging/",
        "importlib/",
        "zoneinfo/",
        "warnings.py",
        "linecache.py",
        "traceback.py",
        "tokenize.py",
        "encodings/",
        "pdb.py",
        "bdb.py",
    )
)


@dataclass(frozen=True)
class WatchedCall:
    """One call that workflow code must not make."""

    call: str
    kind: str
    file: str
    line: int

    def __str__(self) -> str:
        return (
            f"{self.file}:{self.line} calls {self.call}, which {self.kind}: a workflow that is executed again would see "
            f"something else. Instead: {_ADVICE[self.kind]}; if it is harmless, put it in `with workflow.unsafe():`"
        )


class Watcher:
    """Watches one lane's thread between `enter` and `exit`. With "warn" each place is logged once, with
    "error" reported.
    """

    def __init__(self, action: Action) -> None:
        self._action: Action = action
        self._known: set[tuple[str, int]] = set()
        self._seen: list[WatchedCall] = []
        self._stop: Callable[[], None] | None = None
        self._looking = False

    def renewed(self) -> Watcher:
        """The same for another lane's thread, which does not repeat what was logged here."""
        other = Watcher(self._action)
        other._known = self._known
        return other

    def enter(self) -> None:
        """Watch this thread from now on."""
        self._seen.clear()
        self._stop = (
            _start_profile(self._called) if sys.version_info < (3, 12) else _start_monitoring(self._called)
        )

    def exit(self) -> DeterminismError | None:
        """Watch no more; with "error", what was seen."""
        if self._stop is not None:
            self._stop()
            self._stop = None
        if self._action == "error" and self._seen:
            return DeterminismError("; ".join(str(each) for each in self._seen))
        return None

    def _called(self, function: Any, frame: FrameType | None) -> None:
        """A C function is about to be called in `frame`."""
        if self._looking or frame is None:
            return
        kind = kind_of(function, frame)
        if kind is None:
            return
        self._looking = True
        try:
            self._judge(function, kind, frame)
        finally:
            self._looking = False

    def _judge(self, function: Any, kind: str, frame: FrameType) -> None:
        run = current_run()
        if run is None or run.unsafe:
            return
        found = _author(frame)
        if found is None or (kind is LOCK and _guards_itself(frame)):
            return
        sighting = WatchedCall(_name(function, frame, found), kind, found.f_code.co_filename, found.f_lineno)
        place = (sighting.file, sighting.line)
        if self._action == "error":
            if all((each.file, each.line) != place for each in self._seen):
                self._seen.append(sighting)
        elif place not in self._known:
            self._known.add(place)
            logger.warning("workflow code is not deterministic: %s", sighting)


def _author(frame: FrameType) -> FrameType | None:
    """The frame to blame; None if the call is ours, or excused."""
    author: FrameType | None = None
    package: FrameType | None = None
    each: FrameType | None = frame
    on_collection = {getattr(callback, "__code__", None) for callback in gc.callbacks}
    while each is not None:
        file = each.f_code.co_filename
        if each.f_code in on_collection:
            return None  # the collector happened to run here: what is told of it is not the author's doing
        if is_ours(file):
            break
        if file.startswith(("<frozen importlib", "<frozen zipimport", *_EXCUSED)):
            return None  # what these call, an author's own log handler too, is excused with them
        if is_package(file):
            package = package or each
        elif not is_library(file):
            author = author or each
        each = each.f_back
    return author or package


_ASYNCIO = tuple(f"{base}asyncio/" for base in STDLIB)


def _guards_itself(frame: FrameType) -> bool:
    """Whether a lock is taken by an installed package, or by asyncio: for a moment, around what threads may share in
    it. That changes nothing for a run, which does not wait while it holds one.
    """
    each: FrameType | None = frame
    while each is not None:
        file = each.f_code.co_filename
        if is_package(file) or file.startswith(_ASYNCIO):
            return True
        if not is_library(file):
            return False
        each = each.f_back
    return False


def _name(function: Any, frame: FrameType, author: FrameType) -> str:
    """What the author called: the outermost function between their line and the clock, or the C function
    itself.
    """
    inner: FrameType | None = None
    each: FrameType | None = frame
    while each is not None and each is not author:
        inner, each = each, each.f_back
    if inner is not None:
        return f"{inner.f_globals.get('__name__', '')}.{inner.f_code.co_qualname}()"
    owner = getattr(function, "__self__", None)
    prefix = getattr(owner, "__name__", None) or type(owner).__name__
    return (
        f"{prefix}.{function.__name__}()".replace("posix.", "os.")
        .replace("builtins.", "")
        .replace("_io.", "")
    )


# --- ways to see calls -----------------------------------------------------------------------------------------------


def _start_profile(called: Callable[[Any, FrameType | None], None]) -> Callable[[], None]:
    before, me = sys.getprofile(), threading.get_ident()

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call" and argument.__name__ in WATCHED_NAMES:
            called(argument, frame)

    def around(function: Callable[..., Any], given: Any) -> Any:
        # For as long as the author's code runs, and no longer: a profile costs at each call, ours too.
        if not exclusion.begin_profile():
            return function(given)
        sys.setprofile(profile)
        try:
            return function(given)
        finally:
            sys.setprofile(before)
            exclusion.end_profile()

    def stop() -> None:
        watchers.pop(me, None)

    watchers[me] = around
    return stop


_TOOL = 4  # an id that no tool claims: 0 to 3 and 5 have names in the standard library
_watching = threading.local()


def _start_monitoring(called: Callable[[Any, FrameType | None], None]) -> Callable[[], None]:
    """Monitoring is the whole interpreter's: it is switched on while any lane watches, and `_on_call` asks the thread
    that calls for its own watcher.
    """
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
    _watching.called = called
    with _monitor_lock:
        if monitoring.get_tool(_TOOL) is None:
            monitoring.use_tool_id(_TOOL, "hourglass")
            monitoring.register_callback(_TOOL, monitoring.events.CALL, _on_call)
        _watchers.append(called)
        monitoring.set_events(_TOOL, monitoring.events.CALL)

    def stop() -> None:
        _watching.called = None
        with _monitor_lock:
            _watchers.remove(called)
            if not _watchers:
                monitoring.set_events(_TOOL, 0)

    return stop


_C_FUNCTIONS = (BuiltinFunctionType, MethodDescriptorType)
_monitor_lock = threading.Lock()
_watchers: list[Callable[[Any, FrameType | None], None]] = []


def _on_call(code: CodeType, offset: int, function: Any, first: object) -> None:
    called = getattr(_watching, "called", None)
    if called is None or not isinstance(function, _C_FUNCTIONS):
        return  # other callables may run user code when looked at
    if function.__name__ in WATCHED_NAMES:
        called(_bound(function, first), sys._getframe(1))


def _bound(function: Any, first: object) -> Any:
    """Monitoring names the function of a method call and its first argument apart; the table wants them
    together.
    """
    if isinstance(function, MethodDescriptorType):
        try:
            # With the type: without it CPython up to 3.13 crashes on some methods, those of `re` among them.
            return function.__get__(first, type(first))
        except TypeError:
            return function
    return function
