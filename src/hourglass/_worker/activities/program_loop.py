"""The program's own event loop, on which workers of `hourglass.aio` run `async def` activities, and the
detection of a blocked loop.

A program for temporalio creates its HTTP sessions, pools, locks and events on the loop of `async with
Worker(...)`, and its activities use them. Activities must therefore run on that loop. Hourglass's own code does
not: the control loop, polls and heartbeats run in other threads.

Must not know: activities. Must be used on the control loop, unless a docstring states that a method runs in the
loop's thread.

Invariants:

- The loop belongs to the program. Hourglass never stops or replaces it, or sets its task factory or exception
  handler.
- A loop that has been blocked for a second is reported once, with its stack. It can be reported again after it
  has recovered. Time is counted in ticks of the control loop, as in `activity_loop`, and a loop that a debugger
  stops is not reported.
- A closed loop is reported once, and no attempts are started on it.
- Each task begins with its own copy of the context variables of `async with Worker(...)`.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hourglass._worker.health.debuggers import is_debugged
from hourglass._worker.health.stacks import HungStack, frame_of, take_stack

if TYPE_CHECKING:
    from hourglass._worker.activities.runners import WorkerRunner

logger = logging.getLogger("hourglass.worker")

_INTERVAL = 0.2
_BLOCKED_AFTER = 5  # intervals
_SETTLING = 1.0


class ProgramLoopClosed(Exception):
    """The error for a start of a task after the program has closed its loop."""


@dataclass(frozen=True)
class ProgramLoop:
    """An event loop of the program. `on_closed` is called once, in any thread, when the loop is found to be closed."""

    loop: asyncio.AbstractEventLoop
    thread: int
    variables: contextvars.Context
    on_closed: Callable[[], object]
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    """The tasks of attempts on the loop."""

    async def settle(self) -> None:
        """Wait briefly until cancelled tasks have ended. The wait is limited, because some tasks may never end.
        Must be called on the loop.
        """
        waiting = self.tasks - {asyncio.current_task()}
        if waiting and asyncio.get_running_loop() is self.loop:
            await asyncio.wait(waiting, timeout=_SETTLING)

    @classmethod
    def running(cls, on_closed: Callable[[], object]) -> ProgramLoop:
        """Return the loop that runs in this thread, with the context variables of the caller."""
        return cls(asyncio.get_running_loop(), threading.get_ident(), contextvars.copy_context(), on_closed)


class ActivityLoop:
    """An event loop that runs `async def` activities, as the control loop sees it."""

    _loop: asyncio.AbstractEventLoop | None
    _thread_id: int | None
    _stopping = False
    _answered = True

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Call a function in the loop's thread, if the loop is running."""
        if self._loop is not None and not self._stopping:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(callback)

    def answers(self) -> bool:
        """Whether the loop has executed the callback that the previous call of this method scheduled. If so,
        schedule another callback.
        """
        if self._loop is None or self._stopping:
            return True
        if not self._answered:
            return False
        self._answered = False
        self.call_soon(self._answer)
        return True

    def _answer(self) -> None:
        self._thread_id = (
            threading.get_ident()
        )  # different threads may run the program's loop one after another
        self._answered = True

    @property
    def position(self) -> HungStack:
        """The current stack of the loop's thread, limited to the author's frames."""
        return take_stack(frame_of(self._thread_id))

    def stack(self) -> str:
        """Return the current stack of the loop's thread as text. It contains only the author's frames, the
        innermost last.
        """
        return self.position.text

    @property
    def is_debugged(self) -> bool:
        """Whether a debugger stops the loop's thread at a breakpoint."""
        return self._thread_id is not None and is_debugged(self._thread_id, frame_of(self._thread_id))

    def running(self) -> asyncio.Task[Any] | None:
        """Return the task that the loop is executing now, if any."""
        return None if self._loop is None else asyncio.current_task(self._loop)

    def creator_of(self, task: asyncio.Task[Any] | None) -> object:
        """Return None: without a task factory, the creator of a task is unknown."""
        return None


class BorrowedLoop(ActivityLoop):
    """The program's loop."""

    def __init__(self, program: ProgramLoop) -> None:
        self._program = program
        self._loop = program.loop
        self._variables = program.variables
        self._thread_id = program.thread
        self._tasks = program.tasks

    def submit(
        self, start: Callable[[], Coroutine[Any, Any, None]], started: Callable[[asyncio.Task[None]], None]
    ) -> None:
        """Run a coroutine on the loop. `started` is called with the coroutine's task, in the loop's thread,
        before the coroutine begins.

        Raise `ProgramLoopClosed` if the program has closed the loop.
        """
        try:
            self._program.loop.call_soon_threadsafe(self._begin, start, started)
        except RuntimeError:
            raise ProgramLoopClosed from None

    def stop(self) -> None:
        """Cancel the tasks of attempts. The loop itself keeps running."""
        self.call_soon(self._cancel_all)

    @property
    def is_closed(self) -> bool:
        return self._program.loop.is_closed()

    def _begin(
        self, start: Callable[[], Coroutine[Any, Any, None]], started: Callable[[asyncio.Task[None]], None]
    ) -> None:
        task = self._variables.copy().run(self._make_task, start)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        started(task)

    def _make_task(self, start: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        return self._program.loop.create_task(start())

    def _cancel_all(self) -> None:
        for task in self._tasks:
            task.cancel()


class WatchedProgramLoop:
    """The program's loop, watched from the control loop while the worker runs."""

    replacements = 0

    def __init__(self, program: ProgramLoop, user: WorkerRunner) -> None:
        self.current = BorrowedLoop(program)
        self._on_closed = program.on_closed
        self._user = user
        self._missed = 0
        self._timer: asyncio.TimerHandle | None = None
        self._over = False
        self.watch()

    @property
    def blocked(self) -> bool:
        return self._missed >= _BLOCKED_AFTER

    @property
    def trouble(self) -> str:
        """The reason why `async def` activities make no progress, or "" if they can run."""
        if self.current.is_closed:
            return (
                "the event loop on which the worker was started is closed, so its async activities cannot run"
            )
        if self.blocked:
            return (
                f"the event loop of the worker's async activities is blocked at {self.current.position.place}"
            )
        return ""

    def watch(self) -> None:
        if self._timer is None and not self._over:
            self._timer = asyncio.get_running_loop().call_later(_INTERVAL, self._tick)

    def stop(self) -> None:
        """Cancel the tasks of attempts and stop the checks, without waiting."""
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.current.stop()

    def _tick(self) -> None:
        self._timer = None
        try:
            self._check()
        finally:  # an exception of one check must not end the checks
            self.watch()

    def _check(self) -> None:
        loop = self.current
        if loop.is_closed:
            self._over = True
            self._user.program_closed(loop)
            self._on_closed()
        elif loop.answers() or loop.is_debugged:
            if self.blocked:
                logger.warning(
                    "the event loop of the worker's async activities responds again after %.1f s",
                    self._missed * _INTERVAL,
                )
            self._missed = 0
        else:
            self._missed += 1
            if self._missed == _BLOCKED_AFTER:
                self._user.program_blocked(loop, self._missed * _INTERVAL)
