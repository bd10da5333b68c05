"""`asyncio.wait_for` and `gather` of Python 3.11 and of Python 3.12, on any Python.

temporalio's order of events depends on them. The older `wait_for` waits for a future that the result or the timeout
releases; the newer one awaits the result in an `asyncio.timeout` block. The older `gather` counts finished tasks in a
later turn, the newer one immediately.
"""

from __future__ import annotations

import asyncio
import asyncio.tasks
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

from .official import CountingTask

OLDER, NEWER = "as in 3.11", "as in 3.12"


@contextmanager
def turns_of(rule: str) -> Iterator[None]:
    """Replace asyncio's functions with those of this version."""
    with (
        mock.patch.object(asyncio, "wait_for", {OLDER: _older, NEWER: _newer}[rule]),
        mock.patch.object(asyncio, "gather", partial(_gather, at_once=rule == NEWER)),
    ):
        yield


async def _newer(awaitable: Any, timeout: float | None) -> Any:
    if timeout is not None and timeout <= 0:
        return await _at_once(asyncio.ensure_future(awaitable))
    task = asyncio.current_task()
    async with asyncio.timeout(timeout) as block:
        try:
            return await awaitable
        finally:
            if block.expired() and isinstance(task, CountingTask):
                task.cancel_requests -= 1  # the timeout's own request concerns the awaited task only


async def _older(awaitable: Any, timeout: float | None) -> Any:
    if timeout is None:
        return await awaitable
    if timeout <= 0:
        return await _at_once(asyncio.ensure_future(awaitable))
    loop = asyncio.get_running_loop()
    either = loop.create_future()
    limit = loop.call_later(timeout, _release, either)
    awaited = asyncio.ensure_future(awaitable)

    def ended(_: Any) -> None:
        _release(either)

    awaited.add_done_callback(ended)
    try:
        try:
            await either
        except asyncio.CancelledError:
            if awaited.done():
                return awaited.result()
            awaited.remove_done_callback(ended)
            await _cancelled(awaited)
            raise
        if awaited.done():
            return awaited.result()
        awaited.remove_done_callback(ended)
        return await _at_once(awaited)
    finally:
        limit.cancel()


async def _at_once(awaited: asyncio.Future[Any]) -> Any:
    """Return the result of a finished task; cancel an unfinished one and raise `TimeoutError`."""
    if not awaited.done():
        await _cancelled(awaited)
        if awaited.cancelled():
            raise TimeoutError
    return awaited.result()


async def _cancelled(awaited: asyncio.Future[Any]) -> None:
    """Cancel the task and wait for its end, in a separate turn."""
    ended = asyncio.get_running_loop().create_future()

    def release(_: Any) -> None:
        _release(ended)

    awaited.add_done_callback(release)
    try:
        awaited.cancel()
        await ended
    finally:
        awaited.remove_done_callback(release)


def _gather(*tasks: asyncio.Future[Any], return_exceptions: bool = False, at_once: bool) -> Any:
    """Wait for these distinct tasks."""
    together: Any = asyncio.tasks._GatheringFuture(tasks, loop=asyncio.get_running_loop())  # type: ignore[attr-defined]
    missing = len(tasks)

    def ended(task: asyncio.Future[Any]) -> None:
        nonlocal missing
        missing -= 1
        if together.done():
            if not task.cancelled():
                task.exception()
        elif not return_exceptions and task.cancelled():
            together.set_exception(asyncio.CancelledError())
        elif not return_exceptions and task.exception() is not None:
            together.set_exception(task.exception())
        elif missing == 0 and together._cancel_requested:
            together.set_exception(asyncio.CancelledError())
        elif missing == 0:
            together.set_result(None)

    early = [task for task in tasks if at_once and task.done()]
    for task in tasks:
        if task not in early:
            task.add_done_callback(ended)
    for task in early:
        ended(task)
    return together


def _release(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
