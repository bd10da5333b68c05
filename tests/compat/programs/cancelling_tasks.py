"""Cancellation inside a workflow: of tasks and activities, by others and by themselves."""

from __future__ import annotations

import asyncio

from temporalio import workflow
from temporalio.exceptions import ActivityError
from temporalio.workflow import ActivityCancellationType

from ._corpus import act, program, start
from .cancelling import STOPPED


@program("completed 1 | scheduled 6 | release n1")
class CancelTasks:
    """Tasks cancelled while they wait for an activity, a sleep, a gather; main goes on issuing meanwhile."""

    @workflow.run
    async def run(self) -> list[bool]:
        async def on_activity() -> None:
            try:
                await act("gated", "n1")
            except STOPPED as stopped:
                await act("echo", "activity stopped")
                raise asyncio.CancelledError from stopped

        async def on_sleep() -> None:
            try:
                await workflow.sleep(100)
            finally:
                start("echo", "sleep stopped")

        async def on_gather() -> None:
            try:
                await asyncio.gather(asyncio.sleep(100), asyncio.sleep(200))
            finally:
                start("echo", "gather stopped")

        tasks = [asyncio.create_task(task()) for task in (on_activity, on_sleep, on_gather)]
        await act("echo", "first")
        for number, task in enumerate(tasks):
            task.cancel()
            start("echo", f"cancelled {number}")
        await asyncio.gather(*tasks, return_exceptions=True)
        await act("echo", "end")
        return [task.cancelled() for task in tasks]


@program()
class CancelBeforeStart:
    """A task cancelled before its first turn never runs; an activity cancelled when scheduled is void."""

    @workflow.run
    async def run(self) -> list[bool]:
        task = asyncio.create_task(act("echo", "never"))
        handle = start("echo", "void")
        task.cancel()
        handle.cancel()
        await asyncio.gather(task, handle, return_exceptions=True)
        await act("echo", "end")
        return [task.cancelled(), handle.cancelled()]


@program("scheduled 4 | completed 1 | release try_it abandon_it | open wait_for_it")
class CancellationTypes:
    """Three activities cancelled, one of each type; one insists on its result."""

    @workflow.run
    async def run(self) -> list[str]:
        async def one(name: str, kind: ActivityCancellationType) -> str:
            handle = start("gated", name, cancellation_type=kind)
            await asyncio.sleep(0.5)
            handle.cancel()
            try:
                result = str(await handle)
            except ActivityError:
                result = "cancelled"
            await act("echo", f"{name} {result}")
            return result

        outcomes = asyncio.gather(
            one("try_it", ActivityCancellationType.TRY_CANCEL),
            one("wait_for_it", ActivityCancellationType.WAIT_CANCELLATION_COMPLETED),
            one("abandon_it", ActivityCancellationType.ABANDON),
        )
        await act("echo", "main")
        return list(await outcomes)


@program("scheduled 1 | cancel | tasks 2 | open work")
class ShieldedWork:
    """Work shielded from cancellation ends before the workflow does."""

    @workflow.run
    async def run(self) -> None:
        async def work() -> None:
            await act("gated", "work")
            await act("echo", "worked")

        task = asyncio.create_task(work())
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            await task
            await act("echo", "clean up")
            raise


@program("scheduled 1 | cancel | tasks 2 | open a")
class CancelOtherWaiter:
    """Two wait for one task; it is cancelled through the one, and the other learns of it."""

    @workflow.run
    async def run(self) -> list[str]:
        seen: list[str] = []

        async def work() -> None:
            await asyncio.sleep(100)

        task = asyncio.create_task(work())

        async def watch() -> None:
            try:
                await task
            except asyncio.CancelledError:
                seen.append("the task was cancelled")
                await act("echo", "watcher")

        watcher = asyncio.create_task(watch())
        handle = start("gated", "a")
        try:
            await task
        except asyncio.CancelledError:
            seen.append("main was cancelled")
            await act("echo", "main")
        await asyncio.gather(watcher, handle)
        return seen


@program()
class ReactsAfterClose:
    """The run closes while a task that it cancelled still reacts: in a later activation of the same task."""

    @workflow.run
    async def run(self) -> str:
        task = asyncio.create_task(asyncio.wait_for(start("gated", "never"), 60))
        for _ in range(3):
            await asyncio.sleep(0)
        task.cancel()
        return "done"
