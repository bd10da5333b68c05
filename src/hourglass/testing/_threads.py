"""What all environments of a process share, so that one costs next to nothing: loops and threads.

Each thread that uses environments has one event loop, which runs only while the test waits in an environment.
Threads for `def` activities and the loop for `async def` ones are the whole process's. Nothing here knows of
workflows.

Invariants: a loop is closed when its thread is gone, or at exit; a forked child makes everything anew and frees
nothing that it inherited.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import threading
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from time import monotonic
from typing import Any, TypeVar, TypeVarTuple, cast

from hourglass._forks import ForkStage, at_fork, leak
from hourglass._worker.activities.activity_loop import LoopThread
from hourglass._worker.activities.activity_threads import ThreadPool
from hourglass.errors import UsageError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_MOST_THREADS = 200


class QuietLoop(asyncio.SelectorEventLoop):
    """An event loop that is run in short pieces, and can tell whether it had anything to do."""

    _ready: deque[Any]  # asyncio's own: what will run in the next turn,
    _scheduled: list[Any]  # as a heap, what will run at its time,
    _timer_cancelled_count: int  # and how much of that will not

    def time(self) -> float:
        """asyncio's, also while a test patches `time.monotonic`."""
        return monotonic()

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """asyncio's, without its questions whether the loop is closed and debugged: each step of a test comes here."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def _timer_handle_cancelled(self, handle: Any) -> None:
        """asyncio's, which leaves the handle in its heap until the loop goes round: this one hardly ever does, and nearly every
        wait of a test has two timers, both cancelled before their time. The last of a heap can be taken off at once.
        """
        if self._scheduled and self._scheduled[-1] is handle:
            self._scheduled.pop()
            handle._scheduled = False
        elif handle._scheduled:
            self._timer_cancelled_count += 1

    def settle(self) -> bool:
        """Let everything run that can, until there is nothing but timers and what other threads may bring; says whether
        there was anything.
        """
        ready = self._ready
        if not ready:
            return False
        # What `run_forever` would do, without a look at timers and sockets at each turn: those can wait.
        asyncio._set_running_loop(self)
        try:
            while ready:
                handle = ready.popleft()
                if not handle._cancelled:
                    handle._run()
        finally:
            asyncio._set_running_loop(None)
        return True

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """Call something that belongs to this loop, in this thread."""
        if asyncio._get_running_loop() is self:
            return function(*args)
        asyncio._set_running_loop(self)
        try:
            return function(*args)
        finally:
            asyncio._set_running_loop(None)

    def do(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, in this thread. One that never has to wait costs no turn of the loop."""
        asyncio._set_running_loop(self)  # as far as the coroutine can see
        try:
            waits = coro.send(None)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            asyncio._set_running_loop(None)
        return self.run_until_complete(_resumed(coro, waits))


async def _resumed(coro: Coroutine[Any, Any, T], waits: Any) -> T:
    """Go on with a coroutine that has begun outside a task."""
    return cast(T, await _rest(coro, waits))


@types.coroutine
def _rest(coro: Coroutine[Any, Any, Any], waits: Any) -> Generator[Any, None, Any]:
    while True:
        try:
            yield waits
        except BaseException as error:
            step: Callable[[], Any] = partial(coro.throw, error)
        else:
            step = partial(coro.send, None)
        try:
            waits = step()
        except StopIteration as end:
            return end.value


class _Shared:
    """What this process's environments share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.loops: dict[threading.Thread, QuietLoop] = {}
        self.threads = ThreadPool("hourglass-test-activity", _MOST_THREADS)
        self.activity_loop = LoopThread("hourglass-test-activity-loop")


_shared = _Shared()


def current_loop() -> QuietLoop:
    """Return the loop of the current thread."""
    if asyncio._get_running_loop() is not None:
        raise UsageError(
            "this thread runs an event loop, which an Environment would block: write `async with Environment() as env:` "
            "and await its methods (with pytest: the fixture hourglass_async_env)"
        )
    me = threading.current_thread()
    with _shared.lock:
        loop = _shared.loops.get(me)
        if loop is None:
            for thread in [each for each in _shared.loops if not each.is_alive()]:
                _shared.loops.pop(thread).close()
            loop = _shared.loops[me] = QuietLoop()
        return loop


def activity_threads() -> ThreadPool:
    """Where `def` activities run."""
    return _shared.threads


def activity_loop() -> LoopThread:
    """Where `async def` activities run."""
    return _shared.activity_loop


def _exit() -> None:
    for loop in _shared.loops.values():
        if not loop.is_running():
            loop.close()


def _after_fork() -> None:
    global _shared
    leak(_shared)
    _shared = _Shared()


atexit.register(_exit)
at_fork(ForkStage.TESTING, in_child=_after_fork)
