"""The event loops and threads that all environments of a process share, so that an environment is cheap.

Each thread that uses environments has one event loop, which runs only while the test waits in an environment. The threads for
`def` activities and the loop for `async def` ones belong to the process. Must not know workflows.

Invariants:

- A loop is closed when its thread has ended, or at exit.
- A forked child creates its own loops and threads, and does not free inherited ones.
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
    """An event loop that runs in short pieces, on the thread of the test."""

    _ready: deque[Any]  # attributes of asyncio: the handles of the next turn,
    _scheduled: list[Any]  # the heap of timers,
    _timer_cancelled_count: int  # and the number of cancelled timers in it

    def time(self) -> float:
        """Return the monotonic time, also while a test patches `time.monotonic`."""
        return monotonic()

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Schedule a callback as asyncio does, without its checks for a closed or debugged loop: every step of a test comes
        here.
        """
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def _timer_handle_cancelled(self, handle: Any) -> None:
        """Remove a cancelled timer at once if it is the last of the heap. asyncio would keep it until the loop runs. This one
        hardly ever does, and nearly every wait of a test has two timers that are cancelled early.
        """
        if self._scheduled and self._scheduled[-1] is handle:
            self._scheduled.pop()
            handle._scheduled = False
        elif handle._scheduled:
            self._timer_cancelled_count += 1

    def settle(self) -> bool:
        """Run all ready callbacks, until only timers and calls of other threads are left. Return whether there were any."""
        ready = self._ready
        if not ready:
            return False
        # As `run_forever`, without checking timers and sockets at each turn: these can wait.
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
        """Call a function in this thread as if the loop were running."""
        if asyncio._get_running_loop() is self:
            return function(*args)
        asyncio._set_running_loop(self)
        try:
            return function(*args)
        finally:
            asyncio._set_running_loop(None)

    def do(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, in this thread. A coroutine that never waits costs no turn of the loop."""
        asyncio._set_running_loop(self)  # the coroutine may ask for it
        try:
            awaited = coro.send(None)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            asyncio._set_running_loop(None)
        return self.run_until_complete(_resumed(coro, awaited))


async def _resumed(coro: Coroutine[Any, Any, T], awaited: Any) -> T:
    """Continue a coroutine that was started outside a task."""
    return cast(T, await _send_on(coro, awaited))


@types.coroutine
def _send_on(coro: Coroutine[Any, Any, Any], awaited: Any) -> Generator[Any, None, Any]:
    while True:
        try:
            yield awaited
        except BaseException as error:
            step: Callable[[], Any] = partial(coro.throw, error)
        else:
            step = partial(coro.send, None)
        try:
            awaited = step()
        except StopIteration as end:
            return end.value


class _Shared:
    """The loops and threads of this process."""

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
    current = threading.current_thread()
    with _shared.lock:
        loop = _shared.loops.get(current)
        if loop is None:
            for thread in [owner for owner in _shared.loops if not owner.is_alive()]:
                _shared.loops.pop(thread).close()
            loop = _shared.loops[current] = QuietLoop()
        return loop


def activity_threads() -> ThreadPool:
    """Return the threads for `def` activities."""
    return _shared.threads


def activity_loop() -> LoopThread:
    """Return the loop for `async def` activities."""
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
