"""The event loop that runs `async def` activities, in its own thread, and the detection of a blocked loop.

Must not know: activities. A job is a coroutine function.

Invariants:

- The loop keeps running after a task has raised `SystemExit`, which asyncio does not catch.
- The control loop detects a blocked activity loop within a fraction of a second, and makes another loop the
  current one. The blocked loop is not ended: its tasks continue as soon as it is no longer blocked, and the
  loop is stopped when it has no tasks left. Time is counted in ticks of the control loop, so that an activity
  loop is not reported as blocked because the control loop itself was delayed (by a call that keeps the GIL). A
  loop that a debugger stops at a breakpoint is not reported either.
- The number of loops that may be blocked at a time is limited. At the limit, a blocked loop is not replaced.
- If a coroutine forks the process, the loop stops in the child.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine, Generator
from traceback import StackSummary
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from hourglass import _forks
from hourglass._forks import ForkStage, at_fork
from hourglass._loops import new_event_loop
from hourglass._worker import cpus
from hourglass._worker.activities.attempts import AttemptWork
from hourglass._worker.activities.invocation import end_fork
from hourglass._worker.activities.program_loop import ActivityLoop, BorrowedLoop
from hourglass._worker.daemon_executor import DaemonExecutor
from hourglass._worker.health.stacks import author_stack

if TYPE_CHECKING:
    from hourglass._worker.activities.runners import WorkerRunner

T = TypeVar("T")

logger = logging.getLogger("hourglass.worker")

# The running loops by thread id, so that a forked child can stop the loop of its only thread.
_running: dict[int, asyncio.AbstractEventLoop] = {}


class LoopThread(ActivityLoop):
    """An event loop in its own daemon thread, for coroutines of user code."""

    def __init__(self, name: str, mark: Callable[[], object] = lambda: None) -> None:
        """Create the loop without starting it. `mark` is called for each new task, in the creating task's context."""
        self._name = name
        self._mark = mark
        self._marks: WeakKeyDictionary[asyncio.Task[Any], object] = WeakKeyDictionary()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread_id = None
        self._lock = threading.Lock()

    def submit(
        self, start: Callable[[], Coroutine[Any, Any, None]], started: Callable[[asyncio.Task[None]], None]
    ) -> None:
        """Run a coroutine on the loop. `started` is called with the coroutine's task, in the loop's thread,
        before the coroutine begins.
        """
        loop = self._loop or self._ensure()
        loop.call_soon_threadsafe(lambda: started(loop.create_task(start())))

    def stop(self) -> None:
        """Cancel all tasks and stop the loop, without waiting for either."""
        if self._loop is not None and not self._stopping:
            self._stopping = True
            self._loop.call_soon_threadsafe(self._loop.stop)

    def creator_of(self, task: asyncio.Task[Any] | None) -> object:
        """Return the value that `mark` returned when the task was created, or None if it is unknown."""
        return None if task is None else self._marks.get(task)

    def _make_task(
        self,
        loop: asyncio.AbstractEventLoop,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        /,
        **options: Any,
    ) -> asyncio.Task[T]:
        task = asyncio.Task(coro, loop=loop, **options)
        mark = self._mark()
        if mark is not None:
            self._marks[task] = mark
        return task

    def _ensure(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = new_event_loop()
                self._loop.set_task_factory(self._make_task)
                self._loop.set_default_executor(DaemonExecutor(f"{self._name}-thread"))
                thread = threading.Thread(target=self._run, args=(self._loop,), name=self._name, daemon=True)
                thread.start()
                self._thread_id = thread.ident
            return self._loop

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        cpus.free_thread()
        asyncio.set_event_loop(loop)
        home = _forks.pid
        _running[threading.get_ident()] = loop
        while not self._stopping:
            try:
                loop.run_forever()
            except BaseException as error:
                end_fork(home, 1)
                logger.error(
                    "a task of an activity raised %s; the activity loop continues", type(error).__name__
                )
            end_fork(home, 0)
        try:
            self._cancel_all(loop)
        finally:
            _running.pop(threading.get_ident(), None)
            loop.close()

    def _cancel_all(self, loop: asyncio.AbstractEventLoop) -> None:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        with contextlib.suppress(BaseException):
            if tasks:
                loop.run_until_complete(asyncio.wait(tasks, timeout=1.0))
            loop.run_until_complete(loop.shutdown_asyncgens())


class LoopWork(AttemptWork):
    """An attempt on an activity loop. asyncio can cancel the attempt."""

    def __init__(self, loop: LoopThread | BorrowedLoop) -> None:
        self.loop = loop
        self.task: asyncio.Task[None] | None = None
        self._claimed = threading.Lock()

    def take(self) -> bool:
        """Acquire the right to begin the attempt, or to remove it before it has begun. Only the first call, in
        any thread, returns True.
        """
        return self._claimed.acquire(blocking=False)

    def cancel(self, reason: str) -> None:
        self.loop.call_soon(self._cancel)

    def _cancel(self) -> None:
        # A task that has not begun is not cancelled, because none of its code would run. Instead, it checks for
        # a cancellation when it begins.
        if self.task is not None and self._claimed.locked():
            self.task.cancel()

    def stack(self) -> str:
        """Return the attempt's stack, from the outermost coroutine to the innermost."""
        if self.task is None:
            return ""
        if self.task is self.loop.running():
            return self.loop.stack()
        frames = []
        waiting: object = self.task.get_coro()
        while (frame := getattr(waiting, "cr_frame", None)) is not None:
            frames.append((frame, frame.f_lineno))
            waiting = getattr(waiting, "cr_await", None)
        return author_stack(StackSummary.extract(reversed(frames))).text


class WatchedLoop:
    """The current activity loop and the replaced loops. The control loop watches all of them."""

    def __init__(
        self,
        name: str,
        user: WorkerRunner,
        *,
        interval: float,
        limit: float,
        most: int,
        mark: Callable[[], object],
    ) -> None:
        """Create the first loop. It is checked every `interval` seconds and counts as blocked after `limit` seconds.

        At most `most` loops may be blocked at a time.
        """
        self.current = LoopThread(name, mark)
        self.replacements = 0
        self._name = name
        self._mark = mark
        self._user = user
        self._interval = interval
        self._limit_ticks = max(1, round(limit / interval))
        self._most = most
        self._missed: dict[LoopThread, int] = {}
        """The number of ticks for which each unresponsive loop has not answered."""
        self._replaced: list[LoopThread] = []
        """The replaced loops. A loop is removed when it is no longer blocked and has no tasks."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def blocked(self) -> bool:
        return any(missed >= self._limit_ticks for missed in self._missed.values())

    def watch(self) -> None:
        """Check the loops while they have tasks."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._interval, self._tick)

    def stop(self) -> None:
        """Stop the loops and the checks, without waiting."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for loop in (*self._replaced, self.current):
            loop.stop()

    def _tick(self) -> None:
        self._timer = None
        try:
            for loop in (*self._replaced, self.current):
                self._check(loop)
        finally:  # an exception of one check must not end the checks
            if self._replaced or self._user.uses(None):
                self.watch()

    def _check(self, loop: LoopThread) -> None:
        missed = self._missed.get(loop, 0)
        if loop.answers() or loop.is_debugged:
            if missed >= self._limit_ticks:
                logger.warning("an activity loop responds again after %.1f s", missed * self._interval)
            self._missed.pop(loop, None)
            if loop is not self.current and not self._user.uses(loop):
                self._replaced.remove(loop)
                loop.stop()
            return
        missed = self._missed[loop] = missed + 1
        if missed == self._limit_ticks:
            self._replace(loop)
            self._user.blocked(loop, missed * self._interval)
        elif missed > self._limit_ticks:
            self._user.still_blocked(loop, missed * self._interval)

    def _replace(self, loop: LoopThread) -> None:
        if loop is not self.current:
            return  # the loop ran briefly and is blocked again
        if len(self._replaced) >= self._most:
            logger.error(
                "%d activity loops are blocked: no other loop is started, and async activities wait",
                len(self._replaced),
            )
            return
        self.replacements += 1
        self._replaced.append(loop)
        self.current = LoopThread(f"{self._name}-{self.replacements + 1}", self._mark)


def _after_fork() -> None:
    """Stop the loop in the child of a fork that a coroutine made, because the other tasks belong to the parent."""
    loop = _running.get(threading.get_ident())
    if loop is not None:
        loop.stop()


at_fork(ForkStage.ACTIVITY_LOOPS, in_child=_after_fork)
