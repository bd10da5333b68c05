"""The interpreter of random programs (see `generated`) as a `temporalio` workflow.

Whoever is cancelled while it waits for an activity sees `ActivityError` here; `_wait` turns that into
cancellation, which is what Hourglass raises, so that both interpreters take the same way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, is_cancelled_exception
from temporalio.workflow import ActivityCancellationType

from ._corpus import MINUTE, start

KINDS = {
    "try": ActivityCancellationType.TRY_CANCEL,
    "wait": ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
    "abandon": ActivityCancellationType.ABANDON,
}
ONCE = RetryPolicy(maximum_attempts=1)


@workflow.defn
class Interpreted:
    """Executes a program that comes as its argument."""

    def __init__(self) -> None:
        self.number = 0
        self.steps = 0
        self.open: list[asyncio.Task[Any]] = []
        self.program: dict[str, Any] = {}

    @workflow.run
    async def run(self, program: dict[str, Any]) -> list[Any]:
        self.program = program
        await self._block(program["main"])
        return [self.number, self.steps, str(workflow.uuid4())]

    @workflow.signal(unfinished_policy=workflow.HandlerUnfinishedPolicy.ABANDON)
    async def poke(self, which: int) -> None:
        self.number += 1
        if self.program:
            await self._block(self.program["handlers"][which])

    async def _block(self, block: list[list[Any]]) -> None:
        for name, *arguments in block:
            self.steps += 1
            if self.steps <= self.program["limit"]:
                await getattr(self, "_do_" + name)(*arguments)

    def _start(self, pause: int, fails: bool = False, kind: str = "try", note: str = "") -> Any:
        facts = [note, self.number, self.steps, len(self.open)]
        handle = start(
            "work",
            pause,
            fails,
            facts,
            start_to_close_timeout=MINUTE,
            heartbeat_timeout=timedelta(seconds=20),
            retry_policy=ONCE,
            cancellation_type=KINDS[kind],
        )
        self.open.append(handle)
        return handle

    def _spawn(self, block: list[list[Any]]) -> asyncio.Task[None]:
        task = asyncio.create_task(self._block(block))
        self.open.append(task)
        return task

    async def _wait(self, awaitable: Awaitable[Any]) -> None:
        me: Any = asyncio.current_task()
        # A task can cancel itself, by way of who waits for it: then the request is there before the wait.
        before, asked_itself = me.cancelling(), me._must_cancel
        try:
            await awaitable
        except (ActivityError, asyncio.CancelledError) as error:
            cancelled = me.cancelling() > before or (asked_itself and not me._must_cancel)
            if cancelled and is_cancelled_exception(error):
                raise asyncio.CancelledError from error
            self.number += 1

    async def _do_act(self, pause: int, fails: bool, kind: str) -> None:
        await self._wait(self._start(pause, fails, kind))

    async def _do_start(self, pause: int, fails: bool, kind: str) -> None:
        self._start(pause, fails, kind)

    async def _do_join(self, which: int) -> None:
        handles = [
            task for task in self.open if isinstance(task, workflow.ActivityHandle) and not task.done()
        ]
        if handles:
            await self._wait(handles[which % len(handles)])

    async def _do_timed(self, pause: int, limit: int) -> None:
        try:
            await self._wait(asyncio.wait_for(self._start(pause), limit / 1000))
        except TimeoutError:
            self.number += 2

    async def _do_sleep(self, pause: int) -> None:
        await asyncio.sleep(pause / 1000)

    async def _do_turn(self) -> None:
        await asyncio.sleep(0)

    async def _do_spawn(self, block: list[list[Any]]) -> None:
        self._spawn(block)

    async def _do_gather(self, blocks: list[Any]) -> None:
        tasks = [self._spawn(block) for block in blocks]
        await self._wait(asyncio.gather(*tasks))

    async def _do_first(self, blocks: list[Any]) -> None:
        tasks = [self._spawn(block) for block in blocks]
        done, _ = await workflow.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        self.number += len(done)

    async def _do_all(self, blocks: list[Any], limit: int) -> None:
        tasks = [self._spawn(block) for block in blocks]
        done, _ = await workflow.wait(tasks, timeout=limit / 1000)
        self.number += len(done)

    async def _do_completed(self, *pauses: int) -> None:
        handles = [self._start(pause) for pause in pauses]
        for number, future in enumerate(workflow.as_completed(handles)):
            await self._wait(future)
            self._start(0, note=f"follow {number}")

    async def _do_limit(self, limit: int, block: list[list[Any]]) -> None:
        try:
            async with asyncio.timeout(limit / 1000):
                await self._block(block)
        except TimeoutError:
            self.number += 1

    async def _do_add(self, number: int) -> None:
        self.number += number

    async def _do_until(self, number: int, limit: int) -> None:
        wanted = self.number + number
        try:
            await workflow.wait_condition(lambda: self.number >= wanted, timeout=limit / 1000)
        except TimeoutError:
            self.number += 1

    async def _do_cancel(self, which: int) -> None:
        tasks = [task for task in self.open if not task.done()]
        if tasks:
            tasks[which % len(tasks)].cancel()

    async def _do_try(self, block: list[list[Any]], cleanup: list[list[Any]]) -> None:
        try:
            await self._block(block)
        except asyncio.CancelledError:
            self._start(0, note="stopped")
            await self._block(cleanup)
        finally:
            self.number += 1

    async def _do_draw(self) -> None:
        self.number += workflow.random().randint(0, 2)
