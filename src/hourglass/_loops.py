"""Event loops in threads of their own, for coroutines of the author's that our code has to wait for.

No thread that runs user code runs ours: a codec that is `async def`, a storage driver, a slot supplier have a loop here, one for
each purpose, made when it is first needed. A fork has none of its parent's threads, and makes its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:  # loaded when it is used: the evaluator imports codecs, and no event loops
    import asyncio
    from concurrent.futures import Future

T = TypeVar("T")

_lock = threading.Lock()
_loops: dict[tuple[int, str], asyncio.AbstractEventLoop] = {}


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return an asyncio event loop whose timers still fire while a test of the author's patches `time.monotonic`."""
    import asyncio

    loop = asyncio.new_event_loop()
    loop.time = monotonic  # type: ignore[method-assign]
    return loop


def submit(awaitable: Awaitable[T], purpose: str) -> Future[T]:
    """Begin to await it on the loop of this purpose; cancelling the future cancels it there."""
    import asyncio

    return asyncio.run_coroutine_threadsafe(_await(awaitable), _loop(purpose))


async def _await(awaitable: Awaitable[T]) -> T:
    return await awaitable


def _loop(purpose: str) -> asyncio.AbstractEventLoop:
    key = (os.getpid(), purpose)
    loop = _loops.get(key)
    if loop is not None:
        return loop
    with _lock:
        loop = _loops.get(key)
        if loop is None:
            loop = _loops[key] = new_event_loop()
            threading.Thread(target=loop.run_forever, name=f"hourglass-{purpose}", daemon=True).start()
        return loop
