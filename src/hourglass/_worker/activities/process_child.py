"""The program of a child process for activities. `child_process.command` starts it with the arguments FD and
PARENT.

The main thread runs one activity after another. A second thread receives messages from the parent, so that a
cancellation can arrive while an activity runs. Must not know: engines. All messages go to the parent.

Invariants:

- The child does not outlive its parent. Either the kernel kills the child (on Linux), or the child notices that
  the socket was closed or that its parent process changed.
- Signals that a terminal or a service manager sends to the whole process group do not end the child, because
  the parent ends it. These signals have a handler that does nothing. They are not ignored, because programs
  that an activity starts would inherit that.
- A process that an activity forked never sends messages to the parent.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
import threading
from functools import partial
from queue import SimpleQueue
from typing import NoReturn

from hourglass._contract.handle import ActivityResult, context_of
from hourglass._evaluator.specs import Payloads
from hourglass._worker.activities.attempts import info_of
from hourglass._worker.activities.invocation import call_plainly
from hourglass._worker.activities.outcomes import rejected
from hourglass._worker.activities.process_names import find_activity, find_converter
from hourglass._worker.activities.process_wire import (
    Beat,
    Cancel,
    ProcessChannel,
    Published,
    RunAttempt,
    Setup,
    ToParent,
    done,
    to_child,
)
from hourglass.activity._context import ActivityContext, Equipment, GivenContext
from hourglass.converter import in_context
from hourglass.errors import UsageError

_ORPHAN_CHECK = 2.0
_PR_SET_PDEATHSIG = 1


class ChildMain:
    """The main program of the child process."""

    def __init__(self, channel: ProcessChannel, parent: int) -> None:
        self._channel = channel
        self._parent = parent
        self._pid = os.getpid()
        self._jobs: SimpleQueue[RunAttempt] = SimpleQueue()
        self._setup = Setup(path=[], argv=[])
        self._lock = threading.Lock()
        self._running: tuple[int, ActivityContext] | None = None
        self._cancels: dict[int, str] = {}

    def run(self) -> NoReturn:
        """Execute attempts for the parent until it closes the connection."""
        threading.Thread(target=self._listen, name="hourglass-parent", daemon=True).start()
        while True:
            job = self._jobs.get()
            result = self._run(job)
            _flush()
            self._send(done(job.number, result))

    def _run(self, job: RunAttempt) -> ActivityResult:
        task, setup = job.task, self._setup
        try:
            converter = find_converter(setup.converter, setup.main)
            definition = find_activity(job.function, setup.main)
            converter = in_context(converter, context_of(task))
        except BaseException as error:  # an import may raise anything
            return rejected(task, error)
        context = GivenContext(
            partial(info_of, task, converter),
            lambda details: self._beat(job.number, details),
            Equipment(
                converter=converter, client=_no_client, payload_limit=setup.payload_limit, registry=None
            ),
            task.heartbeat_details,
            lambda name, value: self._send(Published(job.number, name, value)),
        )
        self._enter(job.number, context)
        try:
            return call_plainly(task, context, definition)
        finally:
            self._running = None

    def _enter(self, number: int, context: ActivityContext) -> None:
        with self._lock:
            self._running = (number, context)
            # A cancellation may have arrived before its job began. All other stored cancellations belong to
            # attempts that have ended.
            reason = self._cancels.pop(number, None)
            self._cancels.clear()
        if reason is not None:
            context.cancel(reason)

    def _beat(self, number: int, details: Payloads) -> None:
        self._send(Beat(number, details))

    def _send(self, message: ToParent) -> None:
        if os.getpid() != self._pid:
            return
        try:
            self._channel.send(message)
        except OSError:
            _leave()

    def _listen(self) -> None:
        selector = selectors.DefaultSelector()
        selector.register(self._channel.sock, selectors.EVENT_READ)
        try:
            while True:
                ready = selector.select(_ORPHAN_CHECK)
                if not ready and os.getppid() == self._parent:
                    continue
                frames = self._channel.receive() if ready else None
                if frames is None:
                    return
                for frame in frames:
                    self._take(to_child.decode(frame))
        finally:
            _leave()

    def _take(self, message: Setup | RunAttempt | Cancel) -> None:
        match message:
            case Setup():
                sys.path[:] = message.path
                sys.argv[:] = message.argv
                self._setup = message
            case RunAttempt():
                self._jobs.put(message)
            case Cancel(number, reason):
                with self._lock:
                    self._cancels[number] = reason
                    running = self._running
                if running is not None and running[0] == number:
                    running[1].cancel(reason)


def _no_client() -> NoReturn:
    raise UsageError(
        "a process activity cannot use its worker's connection: call Client.connect(…) in the activity, or run it in a thread"
    )


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass  # closed by the activity: nothing to flush


def _leave() -> NoReturn:
    """End the process immediately, so that threads that an activity left running do not keep the process alive."""
    try:
        _flush()
    finally:
        os._exit(0)


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the kernel was asked to signal its death
        os._exit(0)


def main() -> NoReturn:
    """Run the child process."""
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    _die_with(parent)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    sock = socket.socket(fileno=descriptor)
    sock.set_inheritable(False)
    ChildMain(ProcessChannel(sock), parent).run()
