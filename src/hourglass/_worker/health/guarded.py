"""The worker process's connection to its parent (`guardian`).

A separate thread writes a beat to a pipe whenever it gets the interpreter. If no beat arrives, another thread holds the
interpreter. The process writes its stack when the parent sends `STACK_SIGNAL`, and notes its runs for the parent
(`incidents`). The parent stops the process with SIGTERM. A terminal or a service manager may send signals to the whole
process group. However many signals arrive, the process finishes its tasks, and only the parent kills it.

Invariants: the process does not survive its parent, because the kernel kills the process (Linux) or its next beat
fails. A forked child is not guarded, and never writes to the pipe.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, MutableMapping
from time import sleep
from typing import Final

from hourglass._forks import ForkStage, at_fork
from hourglass._worker.health.inspection import SHOWS_THREADS, STACK_SIGNAL

logger = logging.getLogger("hourglass.guardian")

VARIABLE = "HOURGLASS_GUARDED"
"""The environment variable with a JSON list: the descriptors of the pipe and of the file for stacks, the parent's
process id, the number of the process among its siblings, and the interval of beats in seconds.
"""
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
USAGE_ERROR = 2
"""The exit code of a process that would fail again after a restart: an invalid option, or a module that cannot be
loaded.
"""
REPLACE_ME = 75  # the exit code of a process that has noticed that it is not healthy

BEAT, LOADED, READY, LEAVING = b".", b"l", b"r", b"e"
"""The messages to the parent."""
_REPLACE_LIMIT = 5.0  # seconds for the tasks in progress of an unhealthy process
_PR_SET_PDEATHSIG = 1


class Guarded:
    """The guarded process's side: sends beats and stacks to its parent. Thread-safe."""

    def __init__(self, pipe: int, stacks: int, number: int, interval: float) -> None:
        self.exit_code = 0
        self.number = number
        self._on_stop: Callable[[], object] | None = None
        self._pipe = pipe
        os.set_blocking(pipe, False)
        self._stacks = os.fdopen(stacks, "wb", buffering=0)
        faulthandler.register(STACK_SIGNAL, file=self._stacks, all_threads=not SHOWS_THREADS, chain=False)
        threading.Thread(target=self._beat, args=(interval,), name="hourglass-guarded", daemon=True).start()

    def loaded(self, on_stop: Callable[[], object]) -> None:
        """Report that all modules are loaded. `on_stop` stops the worker and may be called several times."""
        self._on_stop = on_stop
        self._send(LOADED)

    def ready(self) -> None:
        """Report that the worker is running."""
        self._send(READY)

    def leaving(self) -> None:
        """Report that all tasks are finished. Only the shutdown of the interpreter remains, during which no thread can
        send beats.
        """
        self._send(LEAVING)

    def replace(self) -> None:
        """Stop the worker, and exit after a few seconds at the latest, so that the parent starts another process."""
        logger.error("this process must be replaced: too many of its threads cannot be stopped")
        self.exit_code = REPLACE_ME
        self.stop()
        leaving = threading.Timer(_REPLACE_LIMIT, os._exit, (REPLACE_ME,))
        leaving.daemon = True
        leaving.start()

    def stop(self, *_: object) -> None:
        """Stop the worker. This method is also the handler of SIGINT and SIGTERM."""
        if _guarded is not self:
            return  # a forked child
        if self._on_stop is None:
            os._exit(0)  # nothing has begun yet
        threading.Thread(target=self._on_stop, name="hourglass-stopping", daemon=True).start()

    def _beat(self, interval: float) -> None:
        while True:
            self._send(BEAT)
            sleep(interval)

    def _send(self, message: bytes) -> None:
        try:
            os.write(self._pipe, message)
        except BlockingIOError:
            pass  # the pipe is full: the parent has been stopped for hours
        except OSError:
            os._exit(1)  # the parent has died


_guarded: Guarded | None = None


def current() -> Guarded | None:
    """Return the `Guarded` of this process; None if no guardian has started the process."""
    return _guarded


def enter(environ: MutableMapping[str, str]) -> Guarded | None:
    """Start sending beats if a guardian has started this process. Must be called early, on the main thread."""
    global _guarded
    value = environ.pop(VARIABLE, None)  # removed, so that programs started by activities do not see it
    if value is None:
        return None
    pipe, stacks, parent, number, interval = json.loads(value)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before the call of prctl
        os._exit(1)
    for descriptor in (pipe, stacks):
        os.set_inheritable(descriptor, False)
    _guarded = Guarded(pipe, stacks, number, interval)
    for signal_number in SIGNALS:
        signal.signal(signal_number, _guarded.stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    return _guarded


def _after_fork() -> None:
    global _guarded
    _guarded = None


at_fork(ForkStage.GUARDIAN, in_child=_after_fork)
