"""The event loop that runs `async def` activities, in a thread of its own, and the watch over it.

Must not know activities: what runs here is a coroutine function.

Invariants:

- The loop goes on after a task raised `SystemExit`, which asyncio lets through.
- A loop that is blocked by what runs on it is noticed from the control loop within a fraction of a second, and from
  then on another is the current one. It is not ended: what is on it goes on when it comes round again, and it stops
  when nothing is. Time counts in ticks of the control loop: when that one was held up itself (a call that keeps the
  GIL), no activity loop is blamed; nor is one that a debugger holds at a breakpoint.
- How many loops may be blocked at a time is bounded; beyond that no other takes the place of the last.
- In a process that a coroutine forked the loop stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine, Generator
from traceback import StackSummary
from typing import Any, ClassVar, Protocol, TypeVar
from weakref import WeakKeyDictionary

from hourglass import _forks
from hourglass._forks import ForkStage, at_fork
from hourglass._loops import new_event_loop
from hourglass._worker import processors
from hourglass._worker.activities.invocation import end_fork
from hourglass._worker.activities.program_loop import BorrowedLoop
from hourglass._worker.daemon_executor import DaemonExecutor
from hourglass._worker.health.debuggers import is_debugged
from hourglass._worker.health.stacks import author_stack, frame_of, take_stack

T = TypeVar("T")

logger = logging.getLogger("hourglass.worker")

# The loops that run, by their thread: what a forked process must know of itself.
_running: dict[int, asyncio.AbstractEventLoop] = {}


class LoopThread:
    """An event loop in a daemon thread of its own, for coroutines of the user's."""

    def __init__(self, name: str, mark: Callable[[], object] = lambda: None) -> None:
        """`mark` is called whenever a task is made, in the context of the task that makes it: for `creator_of`."""
        self._name = name
        self._mark = mark
        self._marks: WeakKeyDictionary[asyncio.Task[Any], object] = WeakKeyDictionary()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._stopping = False
        self._answered = True

    def submit(
        self, start: Callable[[], Coroutine[Any, Any, None]], started: Callable[[asyncio.Task[None]], None]
    ) -> None:
        """Run a coroutine on the loop; `started` is told the task, in the loop's thread, before it begins."""
        loop = self._loop or self._ensure()
        loop.call_soon_threadsafe(lambda: started(loop.create_task(start())))

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
        """Where the loop's thread stands now, as text: the author's frames, the innermost call last."""
        return take_stack(frame_of(self._ident)).text

    @property
    def is_debugged(self) -> bool:
        """Whether a debugger holds it at a breakpoint."""
        return self._ident is not None and is_debugged(self._ident, frame_of(self._ident))

    def running(self) -> asyncio.Task[Any] | None:
        """The task that has the loop at this moment."""
        return None if self._loop is None else asyncio.current_task(self._loop)

    def creator_of(self, task: asyncio.Task[Any] | None) -> object:
        """What `mark` gave when the task was made; None if that is not known."""
        return None if task is None else self._marks.get(task)

    @property
    def _ident(self) -> int | None:
        return None if self._thread is None else self._thread.ident

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

    def _answer(self) -> None:
        self._answered = True

    # --- its thread --------------------------------------------------------------------------------------------------

    def _ensure(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = new_event_loop()
                self._loop.set_task_factory(self._make_task)
                self._loop.set_default_executor(DaemonExecutor(f"{self._name}-thread"))
                self._thread = threading.Thread(
                    target=self._run, args=(self._loop,), name=self._name, daemon=True
                )
                self._thread.start()
            return self._loop

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        processors.free_thread()
        asyncio.set_event_loop(loop)
        home = _forks.here
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


class LoopWork:
    """An attempt on an activity loop: asyncio cancels it."""

    is_process: ClassVar[bool] = False
    is_foreign: ClassVar[bool] = False

    def __init__(self, loop: LoopThread | BorrowedLoop) -> None:
        self.loop = loop
        self.task: asyncio.Task[None] | None = None
        self._taken = threading.Lock()

    def take(self) -> bool:
        """Begin it, or take it away before it has begun: one of the two can be done, once. From any thread."""
        return self._taken.acquire(blocking=False)

    def cancel(self, reason: str) -> None:
        """Have asyncio cancel it."""
        self.loop.call_soon(self._cancel)

    def _cancel(self) -> None:
        # One that has not begun is not cancelled, for then no line of ours would run: it sees for itself that it should stop.
        if self.task is not None and self._taken.locked():
            self.task.cancel()

    def give_up(self) -> bool:
        """Nothing to free."""
        return True  # it holds nothing but its memory

    def stack(self) -> str:
        """Where it stands: from the outermost coroutine to what it awaits."""
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


class Keeper(Protocol):
    """The owner of the work on the loops that are watched (the activity executor). Called on the control loop."""

    def uses(self, loop: LoopThread | None) -> bool:
        """Whether any work is on this loop; None: on any."""
        ...

    def blocked(self, loop: LoopThread, seconds: float) -> None:
        """It has not come round for so long, which is said for the first time; `current` is another by now, if there may be."""
        ...

    def still_blocked(self, loop: LoopThread, seconds: float) -> None:
        """It has not come round yet; said at every tick."""
        ...


class WatchedLoop:
    """The loop in use and those that were blocked, watched from the control loop."""

    def __init__(
        self,
        name: str,
        keeper: Keeper,
        *,
        interval: float,
        limit: float,
        most: int,
        mark: Callable[[], object],
    ) -> None:
        """Looks every `interval` seconds; after `limit` seconds a loop counts as blocked; `most` may be so at a time."""
        self.current = LoopThread(name, mark)
        self.replacements = 0
        self._name = name
        self._mark = mark
        self._keeper = keeper
        self._interval = interval
        self._few = max(1, round(limit / interval))
        self._most = most
        self._missed: dict[LoopThread, int] = {}
        """For how many ticks each that does not come round has not."""
        self._aside: list[LoopThread] = []
        """Those that were blocked, until they have come round and nothing is on them."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def blocked(self) -> bool:
        """Whether a loop is blocked now."""
        return any(missed >= self._few for missed in self._missed.values())

    def watch(self) -> None:
        """Look after the loops as long as they are used."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._interval, self._tick)

    def stop(self) -> None:
        """End the loops and the watch; waits for nothing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for each in (*self._aside, self.current):
            each.stop()

    def _tick(self) -> None:
        self._timer = None
        try:
            for each in (*self._aside, self.current):
                self._look_at(each)
        finally:  # whatever one look raises, the watch goes on: the next blocked loop is to be found, too
            if self._aside or self._keeper.uses(None):
                self.watch()

    def _look_at(self, loop: LoopThread) -> None:
        missed = self._missed.get(loop, 0)
        if loop.answers() or loop.is_debugged:
            if missed >= self._few:
                logger.warning("an activity loop goes on again after %.1f s", missed * self._interval)
            self._missed.pop(loop, None)
            if loop is not self.current and not self._keeper.uses(loop):
                self._aside.remove(loop)
                loop.stop()
            return
        missed = self._missed[loop] = missed + 1
        if missed == self._few:
            self._set_aside(loop)
            self._keeper.blocked(loop, missed * self._interval)
        elif missed > self._few:
            self._keeper.still_blocked(loop, missed * self._interval)

    def _set_aside(self, loop: LoopThread) -> None:
        if loop is not self.current:
            return  # it came round for a moment, and is blocked again
        if len(self._aside) >= self._most:
            logger.error("%d activity loops are blocked already: async activities wait", len(self._aside))
            return
        self.replacements += 1
        self._aside.append(loop)
        self.current = LoopThread(f"{self._name}-{self.replacements + 1}", self._mark)


def _after_fork() -> None:
    """In the child: if a coroutine forked, its loop must not go on with the others."""
    loop = _running.get(threading.get_ident())
    if loop is not None:
        loop.stop()


at_fork(ForkStage.ACTIVITY_LOOPS, in_child=_after_fork)
