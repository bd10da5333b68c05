"""Event loops in threads of their own, for coroutines of the author that our code waits for.

Our own threads never run user code. An `async def` codec, a storage driver or a slot supplier runs on a loop of this module.
There is one loop per purpose, created on first use. A forked process has none of its parent's threads and creates its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:  # imported on use, because the evaluator imports codecs but no event loops
    import asyncio
    from concurrent.futures import Future

T = TypeVar("T")

_lock = threading.Lock()
_loops: dict[tuple[int, str], asyncio.AbstractEventLoop] = {}


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return an asyncio event loop whose timers keep working while an author's test patches `time.monotonic`."""
    import asyncio

    loop = asyncio.new_event_loop()
    loop.time = monotonic  # type: ignore[method-assign]
    return loop


def submit(awaitable: Awaitable[T], purpose: str) -> Future[T]:
    """Schedule an awaitable on the event loop named `purpose`. Cancelling the returned future cancels the
    awaitable.
    """
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
