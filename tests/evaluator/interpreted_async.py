"""The interpreter of `interpreted_coroutines` for programs whose twin is a plain workflow: `interpreted_plain`.

One difference is bridged here. A task that is cancelled while it waits for an activity receives `ActivityError` in `temporalio`
and `Cancelled` in Hourglass. `wait` converts the former to the latter by counting the requests delivered to a task. It counts
all requests; asyncio's own count decreases when a request is withdrawn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from temporalio import workflow
from temporalio.exceptions import FailureError, is_cancelled_exception

from .interpreted_coroutines import Failed, Interpreted
from .official import CountingTask


def current_task() -> CountingTask:
    task = asyncio.current_task()
    assert isinstance(task, CountingTask)
    return task


@workflow.defn(name="Interpreted", sandboxed=False, failure_exception_types=[Failed])
class InterpretedAsync(Interpreted):
    """Executes the program that is its argument."""

    def __init__(self) -> None:
        super().__init__()
        self.delivered: dict[Any, int] = {}

    @workflow.run
    async def run(self, program: dict[str, Any]) -> list[Any]:
        self.program = program
        await self.block(program["main"], 0)
        return [self.number, self.steps, str(workflow.uuid4())]

    # --- waiting ------------------------------------------------------------------------------------------------------

    async def wait(self, awaitable: Awaitable[Any]) -> Any:
        task = current_task()
        waits = not (isinstance(awaitable, asyncio.Future) and awaitable.done())
        try:
            await awaitable
        except (FailureError, asyncio.CancelledError, Failed) as error:
            if is_cancelled_exception(error) and task.cancel_requests > self.delivered.get(task, 0):
                raise asyncio.CancelledError from error
            self.number += 1
        finally:
            if waits:
                self.delivered[task] = task.cancel_requests

    async def _count_delivered(self, awaitable: Awaitable[Any]) -> Any:
        task = current_task()
        try:
            return await awaitable
        finally:
            self.delivered[task] = task.cancel_requests

    async def _deliver(self, awaitable: Awaitable[Any]) -> Any:
        # Nobody else can cancel these: `CancelledError` means the one who waits, also where its count was set back.
        try:
            return await self._count_delivered(awaitable)
        except FailureError:
            self.number += 1
            return None

    # --- operations ---------------------------------------------------------------------------------------------------

    async def do_timed(self, first_task: int, kind: str, limit: int) -> None:
        try:
            await self.wait(asyncio.wait_for(self.begin(kind, "timed"), limit))
        except TimeoutError:
            self.number += 2

    async def do_sleep(self, first_task: int, pause: int) -> None:
        await self._count_delivered(asyncio.sleep(pause))

    async def do_turn(self, first_task: int) -> None:
        await self._count_delivered(asyncio.sleep(0))

    async def do_first(self, first_task: int, blocks: list[Any], when: str, limit: int) -> None:
        await self._count_delivered(super().do_first(first_task, blocks, when, limit))

    async def do_until(self, first_task: int, number: int, limit: int) -> None:
        wanted = self.number + number
        try:
            await self._count_delivered(
                workflow.wait_condition(lambda: self.number >= wanted, timeout=limit or None)
            )
        except TimeoutError:
            self.number += 1

    async def _do_holding(self, lock: Any, block: list[Any], first_task: int) -> None:
        waits = lock.locked()
        await (self._count_delivered(lock.acquire()) if waits else lock.acquire())
        try:
            await self.block(block, first_task)
        finally:
            lock.release()

    async def do_lock(self, first_task: int, block: list[Any]) -> None:
        await self._do_holding(self.lock, block, first_task)

    async def do_semaphore(self, first_task: int, block: list[Any]) -> None:
        await self._do_holding(self.semaphore, block, first_task)

    async def do_await_flag(self, first_task: int) -> None:
        if not self.event.is_set():
            await self._count_delivered(self.event.wait())

    async def do_child(self, first_task: int, kind: str) -> None:
        handle = await self._deliver(self.start_child(kind))
        if handle is not None:
            await self.wait(handle)

    async def do_signal(self, first_task: int) -> None:
        await self._deliver(workflow.get_external_workflow_handle("other").signal("hello"))

    async def do_cancel_other(self, first_task: int) -> None:
        await self._deliver(workflow.get_external_workflow_handle("other").cancel())
