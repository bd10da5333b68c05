"""Programs as data, interpreted by an `async def` workflow of temporalio's. Ours is the same source with its imports changed.

All waits are asyncio's own, so a program compares what coroutines observe: cancellation, precedence of
events, and the order of tasks.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable
from datetime import timedelta
from typing import Any

from temporalio import exceptions, workflow

MINUTE = timedelta(minutes=1)
depth: contextvars.ContextVar[int] = contextvars.ContextVar("depth", default=0)


class Failed(Exception):
    """Raised by the operation `raise`."""


KINDS = {
    "try": workflow.ActivityCancellationType.TRY_CANCEL,
    "wait": workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
    "abandon": workflow.ActivityCancellationType.ABANDON,
}
CAUGHT = (exceptions.FailureError, Failed, TimeoutError, ExceptionGroup)


@workflow.defn(name="Interpreted", sandboxed=False, failure_exception_types=[Failed, ExceptionGroup])
class Interpreted:
    """Executes the program that is its argument."""

    def __init__(self) -> None:
        self.number = 0
        self.steps = 0
        self.open: list[asyncio.Task[Any]] = []
        self.program: dict[str, Any] = {}
        self.lock = asyncio.Lock()
        self.semaphore = asyncio.Semaphore(2)
        self.event = asyncio.Event()
        self.condition = asyncio.Condition()
        self.queue: asyncio.Queue[int] = asyncio.Queue(2)

    @workflow.run
    async def run(self, program: dict[str, Any]) -> list[Any]:
        self.program = program
        await self.block(program["main"], 0)
        return [self.number, self.steps, depth.get(), str(workflow.uuid4())]

    @workflow.signal(unfinished_policy=workflow.HandlerUnfinishedPolicy.ABANDON)
    async def poke(self, which: int) -> None:
        self.number += 1
        if self.program:
            await self.block(self.program["handlers"][which], 0)

    @workflow.signal
    def push(self, number: int) -> None:
        self.number += number
        self.event.set()

    @workflow.update(unfinished_policy=workflow.HandlerUnfinishedPolicy.ABANDON)
    async def change(self, which: int) -> int:
        self.number += 1
        if self.program:
            await self.block(self.program["handlers"][which], 0)
        current = workflow.current_update_info()
        return self.number if current is not None and current.name == "change" else -1

    @change.validator
    def check(self, which: int) -> None:
        if self.number % 3 == 2:
            raise ValueError("no")

    async def block(self, block: list[list[Any]], first_task: int) -> None:
        for name, *arguments in block:
            self.steps += 1
            if self.steps <= self.program["limit"]:
                await getattr(self, "do_" + name)(first_task, *arguments)

    async def wait(self, awaitable: Awaitable[Any]) -> Any:
        """Await; count and swallow failures, but let cancellation through."""
        try:
            return await awaitable
        except CAUGHT as error:
            self.number += 2 if exceptions.is_cancelled_exception(error) else 1
            return None

    def begin(self, kind: str, note: str, local: bool = False) -> Any:
        start = workflow.start_local_activity if local else workflow.start_activity
        handle = start(
            "work",
            args=[note, self.number],
            start_to_close_timeout=MINUTE,
            cancellation_type=KINDS[kind],
        )
        self.open.append(handle)
        return handle

    def spawn(self, block: list[list[Any]]) -> asyncio.Task[None]:
        task = asyncio.create_task(self.block(block, len(self.open) + 1))
        self.open.append(task)
        return task

    # --- activities, timers, tasks ------------------------------------------------------------------------------

    async def do_act(self, first_task: int, kind: str) -> None:
        await self.wait(self.begin(kind, "act"))

    async def do_local(self, first_task: int, kind: str) -> None:
        await self.wait(self.begin(kind, "local", local=True))

    async def do_start(self, first_task: int, kind: str) -> None:
        self.begin(kind, "start")

    async def do_join(self, first_task: int, which: int) -> None:
        later = [task for task in self.open[first_task:] if not task.done()]
        if later:
            await self.wait(later[which % len(later)])

    async def do_timed(self, first_task: int, kind: str, limit: int) -> None:
        await self.wait(asyncio.wait_for(self.begin(kind, "timed"), limit))

    async def do_timed_block(self, first_task: int, limit: int, block: list[Any]) -> None:
        await self.wait(asyncio.wait_for(self.block(block, first_task), limit))

    async def do_sleep(self, first_task: int, pause: int) -> None:
        await asyncio.sleep(pause)

    async def do_nap(self, first_task: int, pause: int) -> None:
        await workflow.sleep(pause, summary="a nap")

    async def do_turn(self, first_task: int) -> None:
        await asyncio.sleep(0)

    async def do_spawn(self, first_task: int, block: list[Any]) -> None:
        self.spawn(block)

    async def do_gather(self, first_task: int, blocks: list[Any], keep: bool) -> None:
        await self.wait(asyncio.gather(*[self.spawn(block) for block in blocks], return_exceptions=keep))

    async def do_bare(self, first_task: int, blocks: list[Any]) -> None:
        await self.wait(asyncio.gather(*[self.block(block, len(self.open)) for block in blocks]))

    async def do_again(self, first_task: int, keep: bool) -> None:
        tasks = self.open[first_task:][-3:]
        if tasks:
            await self.wait(asyncio.gather(*tasks, return_exceptions=keep))

    async def do_first(self, first_task: int, blocks: list[Any], when: str, limit: int) -> None:
        tasks = [self.spawn(block) for block in blocks]
        done, _ = await workflow.wait(tasks, timeout=limit or None, return_when=when)
        self.number += len(done)

    async def do_completed(self, first_task: int, kinds: list[str]) -> None:
        handles = [self.begin(kind, "one of") for kind in kinds]
        for number, future in enumerate(workflow.as_completed(handles)):
            await self.wait(future)
            self.begin("try", f"follow {number}")

    async def do_group(self, first_task: int, blocks: list[Any]) -> None:
        async def grouped() -> None:
            async with asyncio.TaskGroup() as group:
                for block in blocks:
                    self.open.append(group.create_task(self.block(block, len(self.open) + 1)))

        await self.wait(grouped())

    async def do_shield(self, first_task: int, block: list[Any]) -> None:
        await self.wait(asyncio.shield(self.spawn(block)))

    async def do_limit(self, first_task: int, limit: int, block: list[Any]) -> None:
        try:
            async with asyncio.timeout(limit):
                await self.block(block, first_task)
        except TimeoutError:
            self.number += 1

    async def do_cancel(self, first_task: int, which: int) -> None:
        tasks = [task for task in self.open if not task.done()]
        if tasks:
            tasks[which % len(tasks)].cancel()

    async def do_uncancel(self, first_task: int) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.number += task.cancelling()
        task.uncancel()

    async def do_try(self, first_task: int, block: list[Any], cleanup: list[Any]) -> None:
        try:
            await self.block(block, first_task)
        except asyncio.CancelledError:
            self.begin("try", "stopped")
            await self.block(cleanup, first_task)
        finally:
            self.number += 1
            self.begin("try", "finally")

    async def do_later(self, first_task: int, pause: int) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(pause, self.event.set)

    async def do_called(self, first_task: int) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.open[-1].add_done_callback(lambda _: self.begin("try", "called")) if self.open else None

    # --- what tasks share ---------------------------------------------------------------------------------------

    async def do_lock(self, first_task: int, block: list[Any]) -> None:
        async with self.lock:
            await self.block(block, first_task)

    async def do_semaphore(self, first_task: int, block: list[Any]) -> None:
        async with self.semaphore:
            await self.block(block, first_task)

    async def do_flag(self, first_task: int, up: bool) -> None:
        self.event.set() if up else self.event.clear()

    async def do_await_flag(self, first_task: int) -> None:
        await self.event.wait()

    async def do_put(self, first_task: int) -> None:
        await self.queue.put(self.number)

    async def do_get(self, first_task: int) -> None:
        self.number += await self.queue.get()

    async def do_notify(self, first_task: int) -> None:
        async with self.condition:
            self.condition.notify_all()

    async def do_notified(self, first_task: int) -> None:
        async with self.condition:
            await self.condition.wait()

    async def do_deeper(self, first_task: int, block: list[Any]) -> None:
        token = depth.set(depth.get() + 1)
        self.number += depth.get()
        self.spawn(block)
        depth.reset(token)

    async def do_show(self, first_task: int) -> None:
        self.begin("try", f"depth {depth.get()}")

    # --- the workflow -------------------------------------------------------------------------------------------

    async def do_add(self, first_task: int, number: int) -> None:
        self.number += number

    async def do_until(self, first_task: int, number: int, limit: int) -> None:
        wanted = self.number + number
        await self.wait(workflow.wait_condition(lambda: self.number >= wanted, timeout=limit or None))

    async def do_handled(self, first_task: int) -> None:
        await self.wait(workflow.wait_condition(lambda: workflow.all_handlers_finished(), timeout=3))

    async def do_draw(self, first_task: int) -> None:
        self.number += workflow.random().randint(0, 2)

    async def do_raise(self, first_task: int) -> None:
        raise Failed

    async def do_patch(self, first_task: int, which: int, block: list[Any]) -> None:
        if workflow.patched(f"patch {which}"):
            await self.block(block, first_task)

    def start_child(self, kind: str) -> Awaitable[Any]:
        kinds = workflow.ChildWorkflowCancellationType
        return workflow.start_child_workflow(
            "child",
            id=f"child of {self.steps}",
            cancellation_type=kinds.TRY_CANCEL if kind == "try" else kinds.WAIT_CANCELLATION_COMPLETED,
        )

    async def do_child(self, first_task: int, kind: str) -> None:
        handle = await self.wait(self.start_child(kind))
        if handle is not None:
            self.open.append(handle)
            await self.wait(handle)

    async def do_signal(self, first_task: int) -> None:
        await self.wait(workflow.get_external_workflow_handle("other").signal("hello"))

    async def do_cancel_other(self, first_task: int) -> None:
        await self.wait(workflow.get_external_workflow_handle("other").cancel())
