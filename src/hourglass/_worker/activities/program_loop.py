"""The program's own event loop, on which workers of `hourglass.aio` run `async def` activities, and the detection of a blocked
loop.

A program for temporalio creates its HTTP sessions, pools, locks and events on the loop of `async with Worker(...)`, and its
activities use them. So activities run on that loop. Our own code does not: the control loop, polls and heartbeats have
threads of their own.

Must not know: activities. Belongs to the control loop, unless a method is stated to run in the loop's thread.

Invariants:

- The loop belongs to the program: we never stop or replace it, or set its task factory or exception handler.
- A loop that has been blocked for a second is reported once, with its stack, until it runs again. Time is counted in ticks of
  the control loop, as in `activity_loop`, and a loop that a debugger stops is not blamed.
- A closed loop is reported once, and no attempts are started on it.
- Tasks begin with the context variables of `async with Worker(...)`, each with its own copy.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

from hourglass._worker.health.debuggers import is_debugged
from hourglass._worker.health.stacks import HungStack, frame_of, take_stack

logger = logging.getLogger("hourglass.worker")

_INTERVAL = 0.2
_BLOCKED_AFTER = 5  # intervals
_SETTLING = 1.0


class ProgramLoopClosed(Exception):
    """The program has closed its loop."""


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
        """Wait, on the loop, until cancelled tasks have ended, at most for a moment, because some may never end."""
        waiting = self.tasks - {asyncio.current_task()}
        if waiting and asyncio.get_running_loop() is self.loop:
            await asyncio.wait(waiting, timeout=_SETTLING)

    @classmethod
    def running(cls, on_closed: Callable[[], object]) -> ProgramLoop:
        """Return the loop that runs in this thread, with the context variables of the caller."""
        return cls(asyncio.get_running_loop(), threading.get_ident(), contextvars.copy_context(), on_closed)


class BorrowedLoop:
    """The program's loop with the interface of a `LoopThread`."""

    def __init__(self, program: ProgramLoop) -> None:
        self._loop = program.loop
        self._variables = program.variables
        self._thread = program.thread
        self._tasks = program.tasks
        self._answered = True

    def submit(
        self, start: Callable[[], Coroutine[Any, Any, None]], started: Callable[[asyncio.Task[None]], None]
    ) -> None:
        """Run a coroutine on the loop. `started` is called with its task, in the loop's thread, before it begins.

        Raises `ProgramLoopClosed`.
        """
        try:
            self._loop.call_soon_threadsafe(self._begin, start, started)
        except RuntimeError:
            raise ProgramLoopClosed from None

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Call a function in the loop's thread, unless the loop is closed."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback)

    def stop(self) -> None:
        """Cancel the tasks of attempts. The loop continues."""
        self.call_soon(self._cancel_all)

    @property
    def is_closed(self) -> bool:
        """Whether the program has closed the loop."""
        return self._loop.is_closed()

    def answers(self) -> bool:
        """Whether the loop has executed the last callback of this method. Schedules the next one."""
        if not self._answered:
            return False
        self._answered = False
        self.call_soon(self._answer)
        return True

    @property
    def position(self) -> HungStack:
        """The current stack of the loop's thread, limited to the author's frames."""
        return take_stack(frame_of(self._thread))

    def stack(self) -> str:
        """Return the current stack of the loop's thread as text."""
        return self.position.text

    @property
    def is_debugged(self) -> bool:
        """Whether a debugger stops the loop's thread at a breakpoint."""
        return is_debugged(self._thread, frame_of(self._thread))

    def running(self) -> asyncio.Task[Any] | None:
        """Return the task that runs on the loop at this moment."""
        return asyncio.current_task(self._loop)

    def creator_of(self, task: asyncio.Task[Any] | None) -> object:
        """Return None: without a task factory of ours the creator of a task is unknown."""
        return None

    def _begin(
        self, start: Callable[[], Coroutine[Any, Any, None]], started: Callable[[asyncio.Task[None]], None]
    ) -> None:
        task = self._variables.copy().run(self._make_task, start)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        started(task)

    def _make_task(self, start: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        return self._loop.create_task(start())

    def _answer(self) -> None:
        self._thread = threading.get_ident()  # different threads may run the loop one after another
        self._answered = True

    def _cancel_all(self) -> None:
        for task in self._tasks:
            task.cancel()


class ProgramLoopUser(Protocol):
    """The owner of the tasks on the loop (the activity executor). Called on the control loop."""

    def program_blocked(self, loop: BorrowedLoop, seconds: float) -> None:
        """Handle a loop that is found to be blocked. Called once."""
        ...

    def program_closed(self, loop: BorrowedLoop) -> None:
        """Handle a loop that was closed: its tasks cannot continue. Called once."""
        ...


class WatchedProgramLoop:
    """The program's loop, watched from the control loop while the worker runs."""

    replacements = 0

    def __init__(self, program: ProgramLoop, user: ProgramLoopUser) -> None:
        self.current = BorrowedLoop(program)
        self._on_closed = program.on_closed
        self._user = user
        self._missed = 0
        self._timer: asyncio.TimerHandle | None = None
        self._over = False
        self.watch()

    @property
    def blocked(self) -> bool:
        """Whether the loop is blocked now."""
        return self._missed >= _BLOCKED_AFTER

    @property
    def trouble(self) -> str:
        """The reason that `async def` activities make no progress; "" if there is none."""
        if self.current.is_closed:
            return (
                "the event loop on which the worker was started is closed, and with it its async activities"
            )
        if self.blocked:
            return f"the event loop of its async activities is blocked, at {self.current.position.place}"
        return ""

    def watch(self) -> None:
        """Begin to check the loop."""
        if self._timer is None and not self._over:
            self._timer = asyncio.get_running_loop().call_later(_INTERVAL, self._tick)

    def stop(self) -> None:
        """Cancel the tasks of attempts and end the checks, without waiting."""
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
                    "the event loop of the worker's async activities runs again after %.1f s",
                    self._missed * _INTERVAL,
                )
            self._missed = 0
        else:
            self._missed += 1
            if self._missed == _BLOCKED_AFTER:
                self._user.program_blocked(loop, self._missed * _INTERVAL)
