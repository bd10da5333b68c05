"""The event loop that runs `async def` activities, in a thread of its own, and the watch over it.

Must not know activities: what runs here is a coroutine function.

Invariants:

- The loop goes on after a task raised `SystemExit`, which asyncio lets through.
- A loop that is blocked by what runs on it is noticed from the control loop, told of with its stack, and, if
  it stays blocked, left behind for a new one. Time counts in ticks of the control loop: when that one was
  held up itself (a call that keeps the GIL), nobody is accused.
- In a process that a coroutine forked the loop stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine
from typing import Any

from hourglass._runtime.activity_calls import end_fork
from hourglass._runtime.daemon_executor import DaemonExecutor

logger = logging.getLogger("hourglass.worker")

# The loops that run, by their thread: what a forked process must know of itself.
_running: dict[int, asyncio.AbstractEventLoop] = {}


class LoopThread:
    """An event loop in a daemon thread of its own, for coroutines of the user's."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._stopping = False
        self._answered = True

    def submit(
        self, start: Callable[[], Coroutine[Any, Any, None]], started: Callable[[asyncio.Task[None]], None]
    ) -> None:
        """Run a coroutine on the loop; `started` is told the task, in the loop's thread, before it begins."""
        loop = self._ensure()

        def begin() -> None:
            task = loop.create_task(start())
            started(task)

        loop.call_soon_threadsafe(begin)

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Call something in the loop's thread, if the loop runs."""
        if self._loop is not None and not self._stopping:
            with contextlib.suppress(RuntimeError):  # closed in the meantime
                self._loop.call_soon_threadsafe(callback)

    def stop(self) -> None:
        """Cancel what still runs and end the loop; waits for nothing."""
        if self._loop is not None and not self._stopping:
            self._stopping = True
            self._loop.call_soon_threadsafe(self._loop.stop)

    def join(self, timeout: float) -> bool:
        """Wait for the thread's end after `stop`; True if it has ended."""
        if self._thread is not None:
            self._thread.join(timeout)
            return not self._thread.is_alive()
        return True

    # --- the watch ---------------------------------------------------------------------------------------------------

    def answers(self) -> bool:
        """Whether the loop has come round since this was last asked; asks again."""
        if self._loop is None or self._stopping:
            return True
        if self._answered:
            self._answered = False
            self.call_soon(self._answer)
            return True
        return False

    def stack(self) -> str:
        """Where the loop's thread stands now, as text; the innermost call last."""
        thread = self._thread
        frame = None if thread is None else sys._current_frames().get(thread.ident or 0)
        return "" if frame is None else "".join(traceback.format_stack(frame))

    def running(self) -> asyncio.Task[Any] | None:
        """The task that has the loop at this moment."""
        return None if self._loop is None else asyncio.current_task(self._loop)

    def _answer(self) -> None:
        self._answered = True

    # --- its thread --------------------------------------------------------------------------------------------------

    def _ensure(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._loop.set_default_executor(DaemonExecutor(f"{self._name}-thread"))
                self._thread = threading.Thread(
                    target=self._run, args=(self._loop,), name=self._name, daemon=True
                )
                self._thread.start()
            return self._loop

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        home = os.getpid()
        _running[threading.get_ident()] = loop
        while not self._stopping:
            try:
                loop.run_forever()
            except BaseException as error:
                end_fork(home, 1)
                logger.error(
                    "a task of an activity raised %s; the activity loop goes on", type(error).__name__
                )
            end_fork(home, 0)
        try:
            self._cancel_rest(loop)
        finally:
            _running.pop(threading.get_ident(), None)
            loop.close()

    def _cancel_rest(self, loop: asyncio.AbstractEventLoop) -> None:
        rest = asyncio.all_tasks(loop)
        for task in rest:
            task.cancel()
        with contextlib.suppress(BaseException):
            if rest:
                loop.run_until_complete(asyncio.wait(rest, timeout=1.0))
            loop.run_until_complete(loop.shutdown_asyncgens())


class WatchedLoop:
    """The loop thread in use, watched from the control loop and replaced when it is blocked for too long."""

    def __init__(
        self, name: str, *, interval: float, limit: float, replaced: Callable[[LoopThread, str, str], None]
    ) -> None:
        """`replaced` is told the loop that was left behind, what ran on it, and its stack."""
        self.current = LoopThread(name)
        self.replacements = 0
        self._name = name
        self._interval = interval
        self._most_missed = max(1, round(limit / interval))
        self._replaced = replaced
        self._missed = 0
        self._timer: asyncio.TimerHandle | None = None
        self._wanted: Callable[[], bool] = lambda: False

    @property
    def blocked(self) -> bool:
        """Whether the loop did not come round at the last tick."""
        return self._missed > 0

    def watch(self, wanted: Callable[[], bool]) -> None:
        """Look after the loop as long as it is wanted."""
        self._wanted = wanted
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._interval, self._tick)

    def stop(self) -> None:
        """End the loop and the watch; waits for nothing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.current.stop()

    def _tick(self) -> None:
        self._timer = None
        if self.current.answers():
            if self._missed:
                logger.warning("the activity loop goes on again")
            self._missed = 0
        else:
            self._missed += 1
            if self._missed == 1:
                self._report()
            if self._missed >= self._most_missed:
                self._replace()
        if self._wanted():
            self.watch(self._wanted)

    def _report(self) -> None:
        logger.error(
            "the activity loop is blocked by %s: an async activity must not block; all of them wait. It stands at\n%s",
            _named(self.current.running()),
            self.current.stack(),
        )

    def _replace(self) -> None:
        old, task, stack = self.current, _named(self.current.running()), self.current.stack()
        self.current = LoopThread(f"{self._name}-{self.replacements + 2}")
        self.replacements += 1
        self._missed = 0
        logger.error("the activity loop stays blocked by %s: it is replaced, and its attempts fail", task)
        old.stop()
        self._replaced(old, task, stack)


def _named(task: asyncio.Task[Any] | None) -> str:
    return "a callback" if task is None else task.get_name()


def _after_fork() -> None:
    """In the child: if a coroutine forked, its loop must not go on with the others."""
    loop = _running.get(threading.get_ident())
    if loop is not None:
        loop.stop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
