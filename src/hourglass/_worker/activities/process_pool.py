"""The child processes for process activities: started on demand, reused, and replaced when they die.

A thread of the pool serves each attempt: it takes an idle child or starts one, sends it the job, and receives messages
until the job is done or the child is dead. These threads block; the control loop can cancel an attempt or kill its child
at any time.

Invariants:

- A child that dies fails the attempt that it ran, and no other.
- A child runs one attempt at a time. It is not used again after it was killed or a message was left unread.
- The death of a child is reported by the kernel, not only by its socket: a process that the activity forked may keep the
  other end open.
- Messages that a child sent before it died count. All messages are validated, because user code in the child has access
  to the socket.
- A child runs with the import path and the interpreter flags of its parent.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import ClassVar

from hourglass._contract.handle import ActivityResult, ActivityTask
from hourglass._worker import processors
from hourglass._worker.activities.activity_threads import ThreadPool
from hourglass._worker.activities.attempts import Attempt
from hourglass._worker.activities.outcomes import died, refused, stopped
from hourglass._worker.activities.process_wire import (
    Beat,
    Cancel,
    Done,
    ProcessChannel,
    Published,
    RunAttempt,
    Setup,
    converter_place,
    frame_limit,
    main_script,
    place_of,
    to_parent,
)
from hourglass.activity import ActivityDefinition
from hourglass.converter import Converter

# --- one child -------------------------------------------------------------------------------------------------------


_LOOK = 1.0  # seconds between checks whether a child is alive, if the kernel does not report its death
_LAST_WORDS = 2.0  # seconds for a dead child to be reaped, or for an idle one to end


# With -m the working directory would come first on the import path, whatever the parent's is.
_PROGRAM = "import sys; sys.path[:] = sys.argv[3:]; del sys.argv[3:]; from {} import main; main()"


def command(
    descriptor: int,
    parent: int,
    path: Sequence[str],
    *,
    program: str = "hourglass._worker.activities.process_child",
) -> list[str]:
    """Return the command that starts a child; `program` is the module of its `main`."""
    code = _PROGRAM.format(program)
    return [sys.executable, *_interpreter_flags(), "-P", "-c", code, str(descriptor), str(parent), *path]


def _interpreter_flags() -> list[str]:
    """Return the flags of this interpreter: the effects of -O, -I, -W and -X dev must not differ in a child."""
    flags: list[str] = []
    try:
        flags += subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    except ValueError:
        pass  # the program has put an invalid value into sys.warnoptions
    known = {each.partition("=")[0] for each in flags}
    for name, value in sys._xoptions.items():
        if name not in known:
            flags += ["-X", name if value is True else f"{name}={value}"]
    return flags


class ChildProcess:
    """A child process, as seen by its parent. Used by one thread at a time, except for `kill` and `wake`."""

    def __init__(self, setup: Setup) -> None:
        processors.free_thread()  # this thread only waits, and the child inherits its set of processors
        ours, theirs = socket.socketpair()
        # `wake` writes a byte to this pipe, so that the `select` of `_listen` returns.
        self._bell, self._rope = os.pipe()
        os.set_blocking(self._rope, False)
        self._channel = ProcessChannel(ours, frame_limit(setup.payload_limit))
        self._selector = (
            selectors.DefaultSelector()
        )  # not select(), which supports only descriptors below 1024
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
        """Whether the process has not ended."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def wake(self) -> None:
        """Make `run` check for a cancellation. May be called from any thread."""
        with self._lock:
            if not self._closed:
                try:
                    os.write(self._rope, b"!")
                except BlockingIOError:
                    pass  # the pipe is full: `run` will wake up anyway

    def kill(self) -> None:
        """Kill the process. May be called from any thread."""
        self._process.kill()

    def run(
        self,
        job: RunAttempt,
        on_news: Callable[[Beat | Published], None],
        cancelled: Callable[[], str | None],
    ) -> Done | int | None:
        """Run an attempt in the child. Return its final message, or the exit code if the child died before."""
        self.jobs += 1
        told = False
        try:
            self._channel.send(job)
            while True:
                if not told and (reason := cancelled()) is not None:
                    told = True
                    self._channel.send(Cancel(job.number, reason))
                over = self._listen(job.number, on_news)
                if over is not None:
                    return over
                if not self.alive:
                    return self._last_words(job.number, on_news)
        except OSError:  # the child closed the connection
            return self._last_words(job.number, on_news)

    def close(self) -> None:
        """Let the child end and reap it; kill it if it does not end."""
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

    def _listen(self, number: int, on_news: Callable[[Beat | Published], None]) -> Done | None:
        ready = {key.fileobj for key, _ in self._selector.select(_LOOK)}
        if self._bell in ready:
            os.read(self._bell, 4096)
        return self._hear(number, on_news) if self._channel.sock in ready else None

    def _hear(self, number: int, on_news: Callable[[Beat | Published], None], *flags: int) -> Done | None:
        frames = self._channel.receive(*flags)
        if frames is None:
            raise ConnectionResetError("the child hung up")
        for frame in frames:
            message = to_parent.decode(frame)
            if message.number != number:
                continue
            if isinstance(message, Done):
                return message
            on_news(message)
        return None

    def _last_words(self, number: int, on_news: Callable[[Beat | Published], None]) -> Done | int | None:
        """Read the remaining messages of a dead child. Return its final message, or its exit code if there is none."""
        try:
            while True:
                over = self._hear(number, on_news, socket.MSG_DONTWAIT)
                if over is not None:
                    return over
        except OSError:
            pass
        return _reap(self._process)


def _death_watch(pid: int) -> int | None:
    """Return a descriptor that becomes readable when a process ends; None if the system has no such descriptors."""
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


# --- the pool --------------------------------------------------------------------------------------------------------


logger = logging.getLogger("hourglass.worker")


class ProcessJob:
    """An attempt that runs in a child or waits for one: the `Work` of a process activity."""

    is_process: ClassVar[bool] = True
    is_foreign: ClassVar[bool] = False

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.reason: str | None = None
        self.killed_for: str | None = None
        self.child: ChildProcess | None = None

    def hear(self, news: Beat | Published) -> None:
        """Forward a heartbeat or a published item of the attempt."""
        if isinstance(news, Beat):
            self.attempt.forward_heartbeat(news.details)
        else:
            self.attempt.publish((news.name, news.value))

    def cancel(self, reason: str) -> None:
        """Notify the child, or prevent an attempt that waits for a child from starting."""
        self.reason = self.reason or reason
        child = self.child
        if child is not None:
            child.wake()

    def give_up(self) -> bool:
        """Kill the child."""
        self.killed_for = self.reason or "GIVEN_UP"
        child = self.child
        if child is not None:
            child.kill()
        return True

    def stack(self) -> str:
        """Return "": the stacks of another process are not accessible."""
        return ""


class ProcessPool:
    """The children of one worker."""

    def __init__(self, limit: int, converter: Converter, payload_limit: int | None) -> None:
        self._threads = ThreadPool("hourglass-process", limit)
        self._converter = converter
        self._payload_limit = payload_limit
        self._lock = threading.Lock()
        self._idle: list[ChildProcess] = []
        self._busy: set[ChildProcess] = set()
        self._stopped = False
        self.started = 0
        self.died = 0

    @property
    def size(self) -> int:
        """The number of children."""
        return len(self._idle) + len(self._busy)

    def submit(self, attempt: Attempt, definition: ActivityDefinition) -> ProcessJob:
        """Run an attempt in a child as soon as one is free."""
        job = ProcessJob(attempt)

        def run() -> None:
            try:
                result = self._run(job, definition)
            except BaseException as error:
                logger.exception(
                    "activity %s: its process cannot be looked after", attempt.task.activity_type
                )
                result = refused(attempt.task, error)
            attempt.finish_threadsafe(result)

        self._threads.submit(run)
        return job

    def stop(self) -> None:
        """Kill busy children and let idle ones end, without waiting."""
        with self._lock:
            self._stopped = True
            busy = list(self._busy)
        for child in busy:
            child.kill()
        try:
            if self.started:
                self._threads.submit(self._close_idle)
        except RuntimeError:
            pass  # no thread can be started while the interpreter ends; children notice the end of their parent
        self._threads.stop()

    # --- in a thread of the pool -------------------------------------------------------------------------------------

    def _run(self, job: ProcessJob, definition: ActivityDefinition) -> ActivityResult:
        task = job.attempt.task
        if job.reason is not None:  # cancelled while it waited
            return stopped(task, job.reason)
        try:
            place = place_of(definition)
            child = self._take()
        except BaseException as error:
            return refused(task, error)
        job.child = child
        over: Done | int | None = None
        try:
            if job.killed_for is None:
                order = RunAttempt(child.jobs + 1, place, task)
                over = child.run(order, job.hear, lambda: job.reason)
        except BaseException as error:
            logger.exception("the process of activity %s said what cannot be read", task.activity_type)
            child.kill()
            return refused(task, error)
        finally:
            job.child = None
            self._put_back(child, isinstance(over, Done) and job.killed_for is None)
        return self._result(task, job, over)

    def _result(self, task: ActivityTask, job: ProcessJob, over: Done | int | None) -> ActivityResult:
        if isinstance(over, Done) and over.result is not None:
            return over.result
        if job.killed_for is not None:
            logger.warning(
                "activity %s (%s): its process was killed (%s)",
                task.activity_type,
                task.activity_id,
                job.killed_for,
            )
            return stopped(task, job.killed_for)
        return died(task, over if isinstance(over, int) else None)

    def _take(self) -> ChildProcess:
        while True:
            with self._lock:
                child = self._idle.pop() if self._idle else None
                if child is not None and child.alive:
                    self._busy.add(child)
                    return child
            if child is None:
                break
            logger.warning("process %d ended while it was idle; another takes its place", child.pid)
            self.died += 1
            child.close()
        setup = Setup(
            path=list(sys.path),
            argv=list(sys.argv),
            main=main_script(),
            converter=converter_place(self._converter),
            payload_limit=self._payload_limit,
        )
        child = ChildProcess(setup)
        with self._lock:
            self.started += 1
            self._busy.add(child)
        return child

    def _put_back(self, child: ChildProcess, usable: bool) -> None:
        with self._lock:
            self._busy.discard(child)
            if usable and not self._stopped:
                self._idle.append(child)
                return
            self.died += not usable
        if not usable:
            child.kill()
        child.close()

    def _close_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for child in idle:
            child.close()
