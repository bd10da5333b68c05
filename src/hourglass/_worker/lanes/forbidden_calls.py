"""The C functions that workflow code must not call: clocks, randomness, sleeping, threads, locks, files, sockets,
processes.

The table contains only C functions, because every nondeterministic function of the standard library calls one of them
in the end: `uuid.uuid4` reads `os.urandom`, `random.randint` reads the module's generator, and `subprocess.run` forks.
"""

from __future__ import annotations

import _random
import _socket
import _thread
import builtins
import io
import os
import random
import time
import uuid
from datetime import date
from types import FrameType
from typing import Any

CLOCK, RANDOM, SLEEP, IO, THREAD, LOCK = (
    "reads a clock",
    "reads randomness",
    "sleeps",
    "does I/O",
    "starts a thread",
    "acquires a lock",
)

ADVICE = {
    CLOCK: "use workflow.now() or workflow.time()",
    RANDOM: "use workflow.random() or workflow.uuid4()",
    SLEEP: "use workflow.sleep()",
    IO: "do it in an activity",
    THREAD: "use workflow.spawn()",
    LOCK: "use workflow.Lock",
}


def kind_of(function: Any, frame: FrameType) -> str | None:
    """Return the kind of a C function that `frame` is about to call, None if workflow code may call it."""
    try:
        kind = _FUNCTIONS.get(function)
    except TypeError:  # a method of an unhashable object
        kind = None
    if kind is not None:
        return kind
    name = getattr(function, "__name__", "")
    if name not in _METHODS:
        return None
    if name == "seed" and frame.f_code is _SEED:
        return (
            RANDOM if frame.f_locals.get("a") is None else None
        )  # without a seed it reads the system's randomness
    return _method_kind(name, getattr(function, "__self__", None))


def _method_kind(name: str, owner: Any) -> str | None:
    if name in _JOIN_METHODS:
        return LOCK if type(owner).__name__ == _THREAD_HANDLE else None
    if name in _LOCK_METHODS:
        return LOCK if isinstance(owner, (_thread.LockType, _thread.RLock)) else None
    if name in _CLOCK_METHODS:
        return CLOCK if isinstance(owner, type) and issubclass(owner, date) else None
    if name in _RANDOM_METHODS and isinstance(owner, _random.Random):
        # Only the module's own generator: workflow.random() and generators with a seed are deterministic.
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

_THREAD_HANDLE = "_ThreadHandle"  # from Python 3.13 on, `Thread.join` waits for this, not for a lock
_JOIN_METHODS = frozenset({"join"} if hasattr(_thread, _THREAD_HANDLE) else ())
_LOCK_METHODS = frozenset({"acquire", "__enter__", "__exit__"})
_CLOCK_METHODS = frozenset({"now", "utcnow", "today"})
_RANDOM_METHODS = frozenset({"random", "getrandbits", "seed", "setstate", "getstate"})
_SOCKET_METHODS = frozenset(
    {"connect", "connect_ex", "bind", "listen", "send", "sendall", "sendto", "recv", "recv_into", "recvfrom"}
)
_METHODS = _JOIN_METHODS | _LOCK_METHODS | _CLOCK_METHODS | _RANDOM_METHODS | _SOCKET_METHODS

WATCHED_NAMES = _METHODS | {function.__name__ for function in _FUNCTIONS if function is not None}
"""The names of all forbidden functions. Most calls can be ruled out by their name alone."""
