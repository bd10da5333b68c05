"""The event loop of an environment. It runs in short slices, on the test's thread, and only while the test waits."""

from __future__ import annotations

import asyncio
import contextvars
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from time import monotonic
from typing import Any, TypeVar, TypeVarTuple, cast

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class QuietLoop(asyncio.SelectorEventLoop):
    """An event loop that runs in short slices, on the test's thread."""

    _ready: deque[Any]  # attributes of asyncio's loop: the handles to run in the next iteration
    _scheduled: list[Any]  # the heap of timers
    _timer_cancelled_count: int  # the number of cancelled timers in the heap

    def time(self) -> float:
        """Return the monotonic time, even if a test patches `time.monotonic`."""
        return monotonic()

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Schedule a callback like asyncio, but without its checks for a closed loop or debug mode, because every step of a
        test calls this method.
        """
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def _timer_handle_cancelled(self, handle: Any) -> None:
        """Remove a cancelled timer immediately if it is the last one in the heap. asyncio would keep it until the loop runs,
        but this loop rarely runs, and nearly every wait in a test creates two timers that are cancelled early.
        """
        if self._scheduled and self._scheduled[-1] is handle:
            self._scheduled.pop()
            handle._scheduled = False
        elif handle._scheduled:
            self._timer_cancelled_count += 1

    def settle(self) -> bool:
        """Run all ready callbacks until only timers and calls from other threads are left. Return whether any callback ran."""
        ready = self._ready
        if not ready:
            return False
        # Like `run_forever`, but without checking timers and sockets in each iteration, because these can wait.
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
        """Call a function in this thread as if it were running on the loop."""
        if asyncio._get_running_loop() is self:
            return function(*args)
        asyncio._set_running_loop(self)
        try:
            return function(*args)
        finally:
            asyncio._set_running_loop(None)

    def do(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to completion in this thread. A coroutine that never waits needs no iteration of the loop."""
        asyncio._set_running_loop(self)  # the coroutine may request the running loop
        try:
            awaited = coro.send(None)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            asyncio._set_running_loop(None)
        return self.run_until_complete(_resumed(coro, awaited))


async def _resumed(coro: Coroutine[Any, Any, T], awaited: Any) -> T:
    """Continue a coroutine that was started outside a task, and return its result."""
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
