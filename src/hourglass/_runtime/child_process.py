"""One process beside the worker, seen from the parent: started, given a job, listened to, killed, reaped.

Invariants:

- Death is learned from the kernel, not from the socket alone: a process that the activity forked may hold the
  other end open.
- What a child said before it died counts. What it says is checked: it runs code of the user's, which has its socket.
- It runs as its parent does: the same import path and nothing before it, the same flags of the interpreter.
"""

from __future__ import annotations

import os
import selectors
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence

from hourglass._runtime.process_wire import Beat, Cancel, Channel, Done, Job, Setup, frame_limit, to_parent

_LOOK = 1.0  # how often a child's life is looked at where the kernel does not tell
_LAST_WORDS = 2.0  # for a dead child to be reaped, for an idle one to end


# With -m the working directory would come first on the import path, whatever the parent's is.
_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[3:]; del sys.argv[3:]; "
    "from hourglass._runtime.process_child import main; main()"
)


def command(descriptor: int, parent: int, path: Sequence[str]) -> list[str]:
    """What starts a child."""
    return [sys.executable, *_interpreter_flags(), "-P", "-c", _PROGRAM, str(descriptor), str(parent), *path]


def _interpreter_flags() -> list[str]:
    """Those that this interpreter was started with: what -O, -I, -W or -X dev change must not differ in a child."""
    flags: list[str] = []
    try:
        flags += subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    except ValueError:
        pass  # somebody has changed sys.warnoptions
    known = {each.partition("=")[0] for each in flags}
    for name, value in sys._xoptions.items():
        if name not in known:
            flags += ["-X", name if value is True else f"{name}={value}"]
    return flags


class ChildProcess:
    """One child, seen from the parent. Used by one thread at a time, but for `kill` and `wake`."""

    def __init__(self, setup: Setup) -> None:
        ours, theirs = socket.socketpair()
        self._bell, self._rope = os.pipe()
        os.set_blocking(self._rope, False)
        self._channel = Channel(ours, frame_limit(setup.payload_limit))
        self._selector = selectors.DefaultSelector()  # not select(): its descriptors end at 1024
        self._lock = threading.Lock()
        self._closed = False
        self.jobs = 0
        try:
            with theirs:
                self._process = subprocess.Popen(
                    command(theirs.fileno(), os.getpid(), setup.path),
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                )
            self._death = _death_watch(self._process.pid)
            for source in (ours, self._bell, self._death):
                if source is not None:
                    self._selector.register(source, selectors.EVENT_READ)
            self._channel.send(setup)
        except BaseException:
            self.close()
            raise

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def wake(self) -> None:
        """Make `run` look around. From any thread."""
        with self._lock:
            if not self._closed:
                try:
                    os.write(self._rope, b"!")
                except BlockingIOError:
                    pass  # it has been rung often enough

    def kill(self) -> None:
        """End it now. From any thread."""
        self._process.kill()

    def run(
        self, job: Job, on_beat: Callable[[Beat], None], cancelled: Callable[[], str | None]
    ) -> Done | int | None:
        """Have it run an attempt: what it said at the end, or its exit code if it died before."""
        self.jobs += 1
        told = False
        try:
            self._channel.send(job)
            while True:
                if not told and (reason := cancelled()) is not None:
                    told = True
                    self._channel.send(Cancel(job.number, reason))
                over = self._listen(job.number, on_beat)
                if over is not None:
                    return over
                if not self.alive:
                    return self._last_words(job.number, on_beat)
        except OSError:  # it hung up
            return self._last_words(job.number, on_beat)

    def close(self) -> None:
        """Let it end, and take it from the process table; kill it if it does not."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._selector.close()
        self._channel.close()
        for descriptor in (self._bell, self._rope, getattr(self, "_death", None)):
            if descriptor is not None:
                os.close(descriptor)
        process = getattr(self, "_process", None)
        if process is not None:
            _reap(process)

    def _listen(self, number: int, on_beat: Callable[[Beat], None]) -> Done | None:
        ready = {key.fileobj for key, _ in self._selector.select(_LOOK)}
        if self._bell in ready:
            os.read(self._bell, 4096)
        return self._hear(number, on_beat) if self._channel.sock in ready else None

    def _hear(self, number: int, on_beat: Callable[[Beat], None], *flags: int) -> Done | None:
        frames = self._channel.receive(*flags)
        if frames is None:
            raise ConnectionResetError("the child hung up")
        for frame in frames:
            message = to_parent.decode(frame)
            if message.number != number:
                continue
            if isinstance(message, Done):
                return message
            on_beat(message)
        return None

    def _last_words(self, number: int, on_beat: Callable[[Beat], None]) -> Done | int | None:
        """What a dead child had still said; its exit code, if that was not the end of its job."""
        try:
            while True:
                over = self._hear(number, on_beat, socket.MSG_DONTWAIT)
                if over is not None:
                    return over
        except OSError:
            pass
        return _reap(self._process)


def _death_watch(pid: int) -> int | None:
    """A descriptor that becomes readable when a process ends, where the system has such."""
    if sys.platform == "linux" and hasattr(os, "pidfd_open"):
        try:
            return os.pidfd_open(pid)
        except OSError:
            return None  # an old kernel, or a container that forbids it
    return None


def _reap(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(_LAST_WORDS)
    except subprocess.TimeoutExpired:
        process.kill()
    try:
        return process.wait(_LAST_WORDS)
    except subprocess.TimeoutExpired:
        return None
