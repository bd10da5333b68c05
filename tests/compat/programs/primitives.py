"""Locks, semaphores, events, queues; facts that must be the same on each execution."""

from __future__ import annotations

import asyncio

from temporalio import workflow

from ._corpus import act, program, start


@program()
class FactsAsArguments:
    """Identifiers, random numbers and times as arguments of activities, drawn in several tasks."""

    @workflow.run
    async def run(self) -> list[str]:
        async def draw(name: str) -> str:
            await act("echo", f"{name} {workflow.uuid4()}")
            await asyncio.sleep(0.01)
            await act("echo", [workflow.random().randint(0, 10**9), workflow.random().random()])
            return str(workflow.uuid4())

        drawn = await asyncio.gather(draw("a"), draw("b"))
        await act("echo", workflow.now().isoformat())
        await act("echo", round(workflow.time(), 6))
        return [*drawn, workflow.info().workflow_id]


@program("scheduled 1 | open a | scheduled 4 | open b | scheduled 7 | open c")
class LockedSections:
    """One at a time, in the order of asking."""

    @workflow.run
    async def run(self) -> list[str]:
        lock = asyncio.Lock()
        order: list[str] = []

        async def section(name: str) -> None:
            async with lock:
                start("echo", "in " + name)
                order.append(await act("gated", name))
            start("echo", "out " + name)

        await asyncio.gather(*[section(name) for name in "abc"])
        await act("echo", "end")
        return order


@program("scheduled 2 | stop | open b a | go | scheduled 4 | stop | open c d | go")
class SemaphoreLimits:
    """Two at a time."""

    @workflow.run
    async def run(self) -> list[str]:
        limit = asyncio.Semaphore(2)
        order: list[str] = []

        async def work(name: str) -> None:
            async with limit:
                order.append(await act("gated", name))

        await asyncio.gather(*[work(name) for name in "abcd"])
        return order


@program("scheduled 1 | open key")
class EventGate:
    """Several wait for an event that another sets; one comes when it is set already."""

    @workflow.run
    async def run(self) -> None:
        gate = asyncio.Event()

        async def passer(name: str) -> None:
            await gate.wait()
            await act("echo", name)

        tasks = [asyncio.create_task(passer(name)) for name in "abc"]
        await act("gated", "key")
        gate.set()
        start("echo", "opened")
        await passer("late")
        await asyncio.gather(*tasks)


@program("scheduled 2 | stop | open 2 1 | go | completed 4 | open 3 4 5")
class QueueFeed:
    """A bounded queue between one producer and two consumers."""

    @workflow.run
    async def run(self) -> list[str]:
        queue: asyncio.Queue[str | None] = asyncio.Queue(2)
        done: list[str] = []

        async def consume(name: str) -> None:
            while (item := await queue.get()) is not None:
                await act("gated", item)
                done.append(f"{name}{item}")
                start("echo", done[-1])

        consumers = [asyncio.create_task(consume(name)) for name in "xy"]
        for number in range(1, 6):
            await queue.put(str(number))
        for _ in consumers:
            await queue.put(None)
        await asyncio.gather(*consumers)
        await act("echo", "end")
        return done
