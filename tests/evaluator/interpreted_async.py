"""Programs as data, interpreted by a `temporalio` workflow; `interpreted_plain` is its twin, operation by operation.

One difference is bridged here. A task that is cancelled while it waits for an activity receives `ActivityError` in `temporalio`
and `Cancelled` in Hourglass. `_wait` converts the former to the latter by counting the requests delivered to a task. It counts
all requests; asyncio's own count decreases when a request is withdrawn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import FailureError, is_cancelled_exception
from temporalio.workflow import ActivityCancellationType, ChildWorkflowCancellationType

from .official import CountingTask

KINDS = {
    "try": ActivityCancellationType.TRY_CANCEL,
    "wait": ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
    "abandon": ActivityCancellationType.ABANDON,
}
MINUTE = timedelta(minutes=1)


class _Failed(Exception):
    """Raised by the operation `raise`."""


def current_task() -> CountingTask:
    task = asyncio.current_task()
    assert isinstance(task, CountingTask)
    return task


@workflow.defn(name="Interpreted", sandboxed=False, failure_exception_types=[_Failed])
class InterpretedAsync:
    """Executes the program that is its argument."""

    def __init__(self) -> None:
        self.number = 0
        self.steps = 0
        self.open: list[asyncio.Task[Any]] = []
        self.delivered: dict[Any, int] = {}
        self.program: dict[str, Any] = {}
        self.lock = asyncio.Lock()
        self.semaphore = asyncio.Semaphore(2)
        self.event = asyncio.Event()

    @workflow.run
    async def run(self, program: dict[str, Any]) -> list[Any]:
        self.program = program
        await self._block(program["main"], 0)
        return [self.number, self.steps, str(workflow.uuid4())]

    @workflow.signal(unfinished_policy=workflow.HandlerUnfinishedPolicy.ABANDON)
    async def poke(self, which: int) -> None:
        self.number += 1
        if self.program:
            await self._block(self.program["handlers"][which], 0)

    async def _block(self, block: list[list[Any]], first_task: int) -> None:
        for name, *arguments in block:
            self.steps += 1
            if self.steps <= self.program["limit"]:
                await getattr(self, "_do_" + name)(first_task, *arguments)

    # --- waiting ------------------------------------------------------------------------------------------------------

    async def _wait(self, awaitable: Awaitable[Any]) -> None:
        task = current_task()
        waits = not (isinstance(awaitable, asyncio.Future) and awaitable.done())
        try:
            await awaitable
        except (FailureError, asyncio.CancelledError, _Failed) as error:
            if is_cancelled_exception(error) and self._has_undelivered_cancellation(task):
                raise asyncio.CancelledError from error
            self.number += 1
        finally:
            if waits:
                self.delivered[task] = task.cancel_requests

    def _has_undelivered_cancellation(self, task: CountingTask) -> bool:
        return task.cancel_requests > self.delivered.get(task, 0)

    async def _count_delivered(self, awaitable: Awaitable[Any]) -> None:
        task = current_task()
        try:
            await awaitable
        finally:
            self.delivered[task] = task.cancel_requests

    def _start(self, kind: str, note: str = "", local: bool = False) -> Any:
        start = workflow.start_local_activity if local else workflow.start_activity
        handle = start(
            "work",
            args=[note, self.number],
            start_to_close_timeout=MINUTE,
            cancellation_type=KINDS[kind],
        )
        self.open.append(handle)
        return handle

    def _spawn(self, block: list[list[Any]]) -> asyncio.Task[None]:
        task = asyncio.create_task(self._block(block, len(self.open) + 1))
        self.open.append(task)
        return task

    # --- operations ---------------------------------------------------------------------------------------------------

    async def _do_act(self, first_task: int, kind: str) -> None:
        await self._wait(self._start(kind, "act"))

    async def _do_local(self, first_task: int, kind: str) -> None:
        await self._wait(self._start(kind, "local", local=True))

    async def _do_start(self, first_task: int, kind: str) -> None:
        self._start(kind, "start")

    async def _do_join(self, first_task: int, which: int) -> None:
        # Only later tasks: a circle of tasks would wait forever.
        later = [task for task in self.open[first_task:] if not task.done()]
        if later:
            await self._wait(later[which % len(later)])

    async def _do_timed(self, first_task: int, kind: str, limit: int) -> None:
        try:
            await self._wait(asyncio.wait_for(self._start(kind, "timed"), limit))
        except TimeoutError:
            self.number += 2

    async def _do_sleep(self, first_task: int, pause: int) -> None:
        await self._count_delivered(asyncio.sleep(pause))

    async def _do_turn(self, first_task: int) -> None:
        await self._count_delivered(asyncio.sleep(0))

    async def _do_spawn(self, first_task: int, block: list[Any]) -> None:
        self._spawn(block)

    async def _do_gather(self, first_task: int, blocks: list[Any], keep: bool) -> None:
        tasks = [self._spawn(block) for block in blocks]
        await self._wait(asyncio.gather(*tasks, return_exceptions=keep))

    async def _do_again(self, first_task: int, keep: bool) -> None:
        # Some that may be done already.
        tasks = self.open[first_task:][-3:]
        if tasks:
            await self._wait(asyncio.gather(*tasks, return_exceptions=keep))

    async def _do_first(self, first_task: int, blocks: list[Any], when: str, limit: int) -> None:
        tasks = [self._spawn(block) for block in blocks]
        task = current_task()
        try:
            done, _ = await workflow.wait(tasks, timeout=limit or None, return_when=when)
        finally:
            self.delivered[task] = task.cancel_requests
        self.number += len(done)

    async def _do_completed(self, first_task: int, kinds: list[str]) -> None:
        handles = [self._start(kind, "one of") for kind in kinds]
        for number, future in enumerate(workflow.as_completed(handles)):
            await self._wait(future)
            self._start("try", f"follow {number}")

    async def _do_limit(self, first_task: int, limit: int, block: list[Any]) -> None:
        try:
            async with asyncio.timeout(limit):
                await self._block(block, first_task)
        except TimeoutError:
            self.number += 1

    async def _do_add(self, first_task: int, number: int) -> None:
        self.number += number

    async def _do_until(self, first_task: int, number: int, limit: int) -> None:
        wanted = self.number + number
        try:
            await self._count_delivered(
                workflow.wait_condition(lambda: self.number >= wanted, timeout=limit or None)
            )
        except TimeoutError:
            self.number += 1

    async def _do_cancel(self, first_task: int, which: int) -> None:
        tasks = [task for task in self.open if not task.done()]
        if tasks:
            tasks[which % len(tasks)].cancel()

    async def _do_try(self, first_task: int, block: list[Any], cleanup: list[Any]) -> None:
        try:
            await self._block(block, first_task)
        except asyncio.CancelledError:
            self._start("try", "stopped")
            await self._block(cleanup, first_task)
        finally:
            self.number += 1
            self._start("try", "finally")

    async def _do_lock(self, first_task: int, block: list[Any]) -> None:
        waits = self.lock.locked()
        await (self._count_delivered(self.lock.acquire()) if waits else self.lock.acquire())
        try:
            await self._block(block, first_task)
        finally:
            self.lock.release()

    async def _do_semaphore(self, first_task: int, block: list[Any]) -> None:
        waits = self.semaphore.locked()
        await (self._count_delivered(self.semaphore.acquire()) if waits else self.semaphore.acquire())
        try:
            await self._block(block, first_task)
        finally:
            self.semaphore.release()

    async def _do_flag(self, first_task: int, up: bool) -> None:
        self.event.set() if up else self.event.clear()

    async def _do_await_flag(self, first_task: int) -> None:
        if not self.event.is_set():
            await self._count_delivered(self.event.wait())

    async def _do_draw(self, first_task: int) -> None:
        self.number += workflow.random().randint(0, 2)

    async def _do_raise(self, first_task: int) -> None:
        raise _Failed

    async def _do_patch(self, first_task: int, which: int, block: list[Any]) -> None:
        if workflow.patched(f"patch {which}"):
            await self._block(block, first_task)

    async def _do_child(self, first_task: int, kind: str) -> None:
        kinds = ChildWorkflowCancellationType
        handle = await self._deliver(
            workflow.start_child_workflow(
                "child",
                id=f"child of {self.steps}",
                cancellation_type=kinds.TRY_CANCEL if kind == "try" else kinds.WAIT_CANCELLATION_COMPLETED,
            )
        )
        if handle is not None:
            await self._wait(handle)

    async def _do_signal(self, first_task: int) -> None:
        await self._deliver(workflow.get_external_workflow_handle("other").signal("hello"))

    async def _do_cancel_other(self, first_task: int) -> None:
        await self._deliver(workflow.get_external_workflow_handle("other").cancel())

    async def _deliver(self, awaitable: Awaitable[Any]) -> Any:
        # Nobody else can cancel these: `CancelledError` means the one who waits, also where its count was set back.
        task = current_task()
        try:
            return await awaitable
        except FailureError:
            self.number += 1
            return None
        finally:
            self.delivered[task] = task.cancel_requests
