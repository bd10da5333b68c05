"""The parent's side of a child process for activities: starting the child, sending jobs to it, killing and
reaping it.

Must not know: pools, attempts in the parent. Invariants:

- The kernel, and not only the socket, reports the death of a child, because a process that the activity forked
  may keep the other end of the socket open.
- Messages that a child sent before its death are still processed. All messages are validated, because user code
  in the child has access to the socket.
- A child runs with the import path and the interpreter flags of its parent.
"""

from __future__ import annotations

import os
import selectors
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence

from hourglass._worker import cpus
from hourglass._worker.activities.process_wire import (
    Beat,
    Cancel,
    Done,
    ProcessChannel,
    Published,
    RunAttempt,
    Setup,
    frame_limit,
    to_parent,
)

_CHECK_INTERVAL = (
    1.0  # seconds between checks whether a child is alive, on systems that do not report its death
)
_END_TIMEOUT = 2.0  # seconds to wait for a dead child to be reaped, or for an idle child to end


# With -m, the working directory would come first on the import path, regardless of the parent's import path.
_PROGRAM = "import sys; sys.path[:] = sys.argv[3:]; del sys.argv[3:]; from {} import main; main()"


def command(
    descriptor: int,
    parent: int,
    path: Sequence[str],
    *,
    program: str = "hourglass._worker.activities.process_child",
) -> list[str]:
    """Return the command that starts a child. `program` is the module with the child's `main`."""
    code = _PROGRAM.format(program)
    return [sys.executable, *_interpreter_flags(), "-P", "-c", code, str(descriptor), str(parent), *path]


def _interpreter_flags() -> list[str]:
    """Return the flags of this interpreter, so that -O, -I, -W and -X dev have the same effect in a child."""
    flags: list[str] = []
    try:
        flags += subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    except ValueError:
        pass  # the program has put an invalid value into sys.warnoptions
    given_options = {flag.partition("=")[0] for flag in flags}
    for name, value in sys._xoptions.items():
        if name not in given_options:
            flags += ["-X", name if value is True else f"{name}={value}"]
    return flags


class ChildProcess:
    """A child process, as seen by its parent. Must be used by one thread at a time, except for `kill` and `wake`."""

    def __init__(self, setup: Setup) -> None:
        cpus.free_thread()  # this thread only waits, and the child inherits its CPU affinity
        ours, child_socket = socket.socketpair()
        # `wake` writes a byte to this pipe, so that the `select` of `_listen` returns.
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_writer, False)
        self._channel = ProcessChannel(ours, frame_limit(setup.payload_limit))
        self._selector = (
            selectors.DefaultSelector()
        )  # not select(), which supports only descriptors below 1024
        self._lock = threading.Lock()
        self._closed = False
        self.jobs = 0
        try:
            with child_socket:
                self._process = subprocess.Popen(
                    command(child_socket.fileno(), os.getpid(), setup.path),
                    stdin=subprocess.DEVNULL,
                    pass_fds=(child_socket.fileno(),),
                )
            self._death = _death_watch(self._process.pid)
            for source in (ours, self._wake_reader, self._death):
                if source is not None:
                    self._selector.register(source, selectors.EVENT_READ)
            self._channel.send(setup)
        except BaseException:
            self.close()
            raise

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    def wake(self) -> None:
        """Make `run` check for a cancellation. May be called on any thread."""
        with self._lock:
            if not self._closed:
                try:
                    os.write(self._wake_writer, b"!")
                except BlockingIOError:
                    pass  # the pipe is full: `run` will wake up anyway

    def kill(self) -> None:
        """Kill the process. May be called on any thread."""
        self._process.kill()

    def run(
        self,
        job: RunAttempt,
        on_message: Callable[[Beat | Published], None],
        cancelled: Callable[[], str | None],
    ) -> Done | int | None:
        """Run an attempt in the child. Return the child's final message, or its exit code if the child died first."""
        self.jobs += 1
        is_notified = False
        try:
            self._channel.send(job)
            while True:
                if not is_notified and (reason := cancelled()) is not None:
                    is_notified = True
                    self._channel.send(Cancel(job.number, reason))
                outcome = self._listen(job.number, on_message)
                if outcome is not None:
                    return outcome
                if not self.alive:
                    return self._remaining_messages(job.number, on_message)
        except OSError:  # the child closed the connection
            return self._remaining_messages(job.number, on_message)

    def close(self) -> None:
        """Close the connection, so that the child ends, and reap the child. Kill the child if it does not end."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._selector.close()
        self._channel.close()
        for descriptor in (self._wake_reader, self._wake_writer, getattr(self, "_death", None)):
            if descriptor is not None:
                os.close(descriptor)
        process = getattr(self, "_process", None)
        if process is not None:
            _reap(process)

    def _listen(self, number: int, on_message: Callable[[Beat | Published], None]) -> Done | None:
        ready = {key.fileobj for key, _ in self._selector.select(_CHECK_INTERVAL)}
        if self._wake_reader in ready:
            os.read(self._wake_reader, 4096)
        return self._receive(number, on_message) if self._channel.sock in ready else None

    def _receive(
        self, number: int, on_message: Callable[[Beat | Published], None], *flags: int
    ) -> Done | None:
        frames = self._channel.receive(*flags)
        if frames is None:
            raise ConnectionResetError("the child closed the connection")
        for frame in frames:
            message = to_parent.decode(frame)
            if message.number != number:
                continue
            if isinstance(message, Done):
                return message
            on_message(message)
        return None

    def _remaining_messages(
        self, number: int, on_message: Callable[[Beat | Published], None]
    ) -> Done | int | None:
        """Read the remaining messages of a dead child. Return the child's final message, or its exit code if it
        sent none.
        """
        try:
            while True:
                outcome = self._receive(number, on_message, socket.MSG_DONTWAIT)
                if outcome is not None:
                    return outcome
        except OSError:
            pass
        return _reap(self._process)


def _death_watch(pid: int) -> int | None:
    """Return a descriptor that becomes readable when a process ends, or None if the system does not support this."""
    if sys.platform == "linux" and hasattr(os, "pidfd_open"):
        try:
            return os.pidfd_open(pid)
        except OSError:
            return None  # an old kernel, or a container that forbids it
    return None


def _reap(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(_END_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
    try:
        return process.wait(_END_TIMEOUT)
    except subprocess.TimeoutExpired:
        return None
