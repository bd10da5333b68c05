"""Tasks: in what order they start, run, and issue their commands."""

from __future__ import annotations

import asyncio

from temporalio import workflow

from ._corpus import act, program, start


@program("scheduled 3 | stop | open c1 a1 b1 | go | scheduled 6 | stop | open b2 c2 a2 | go")
class GatherSteps:
    """Three tasks of several steps; each round's results arrive together, in another order."""

    @workflow.run
    async def run(self) -> list[str]:
        async def steps(name: str) -> str:
            first = await act("gated", name + "1")
            await asyncio.sleep(0.01)
            second = await act("gated", name + "2")
            return str(first + second)

        return list(await asyncio.gather(steps("a"), steps("b"), steps("c")))


@program()
class NestedTasks:
    """A task starts a task before its own first step: breadth comes first."""

    @workflow.run
    async def run(self) -> None:
        async def inner() -> None:
            await act("echo", "inner")

        async def outer() -> None:
            task = asyncio.create_task(inner())
            await act("echo", "outer")
            await task
            await act("echo", "outer again")

        async def other() -> None:
            await act("echo", "other")

        await asyncio.gather(outer(), other())
        await act("echo", "end")


@program()
class SpawnThenGoOn:
    """Main goes on issuing while tasks that it spawned have not begun."""

    @workflow.run
    async def run(self) -> None:
        async def twice(name: str) -> None:
            await act("echo", name)
            await act("echo", name + name)

        first = asyncio.create_task(twice("k"))
        one = start("echo", "m1")
        second = asyncio.create_task(twice("l"))
        two = start("echo", "m2")
        await asyncio.sleep(0.01)
        await asyncio.gather(one, two, first, second)


@program()
class TaskThenMain:
    """A task issues a command as its last act; main, who waited for it, goes on in the same activation."""

    @workflow.run
    async def run(self) -> str:
        started: list[workflow.ActivityHandle[str]] = []

        async def child() -> None:
            await act("echo", "A")
            started.append(start("echo", "B"))

        await asyncio.create_task(child())
        await act("echo", "C")
        return await started[0]


@program("scheduled 2 | stop | open a b | go")
class GatherDepths:
    """Two results in one task; the first reaches its waiter through two gathers, the second directly."""

    @workflow.run
    async def run(self) -> None:
        async def inner(handle: workflow.ActivityHandle[str]) -> list[str]:
            return list(await asyncio.gather(handle))

        async def deep() -> None:
            await asyncio.gather(inner(start("gated", "a")))
            await act("echo", "deep")

        async def flat() -> None:
            await act("gated", "b")
            await act("echo", "flat")

        await asyncio.gather(deep(), flat())


@program()
class YieldOrder:
    """Turns given away with `sleep(0)` interleave tasks, and cost no timer."""

    @workflow.run
    async def run(self) -> list[str]:
        order: list[str] = []

        async def turns(name: str, count: int) -> None:
            for turn in range(count):
                order.append(f"{name}{turn}")
                start("echo", f"{name}{turn}")
                await asyncio.sleep(0)

        tasks = [asyncio.create_task(turns(name, count)) for name, count in (("a", 3), ("b", 1), ("c", 2))]
        await asyncio.sleep(0)
        order.append("main")
        start("echo", "main")
        await asyncio.gather(*tasks)
        await act("echo", "end")
        return order


@program("scheduled 4 | stop | open shallow deep middle | go")
class DeepAwait:
    """Chains of tasks, each waiting for the next; the depth decides who acts first."""

    @workflow.run
    async def run(self) -> None:
        async def chain(name: str, depth: int) -> str:
            if depth == 0:
                return str(await act("gated", name))
            return await asyncio.create_task(chain(name, depth - 1))

        async def then(name: str, depth: int) -> None:
            await act("echo", "after " + await chain(name, depth))

        async def plain(depth: int) -> None:
            # awaiting a coroutine is a call: however deep, it costs no turn
            if depth:
                await plain(depth - 1)
            else:
                await act("echo", "plain")

        await asyncio.gather(then("deep", 5), then("shallow", 0), then("middle", 2), plain(6))


@program()
class ManyRounds:
    """Many rounds of three parallel steps."""

    @workflow.run
    async def run(self) -> int:
        total = 0
        for turn in range(20):
            total += sum(await asyncio.gather(*[act("echo", turn * 3 + part) for part in range(3)]))
        return total


@program("fired 1 | completed 3")
class SpawnInLoop:
    """Tasks spawned one by one between steps of main, and all gathered at the end."""

    @workflow.run
    async def run(self) -> list[int]:
        async def work(number: int) -> int:
            await asyncio.sleep(0.01 * (number % 2))
            return int(await act("echo", number))

        tasks = []
        for number in range(4):
            tasks.append(asyncio.create_task(work(number)))
            await act("echo", f"main {number}")
        return await asyncio.gather(*tasks)


@program("scheduled 3 | stop | open b a | go | completed 3 | open c")
class DoneTasks:
    """Waiting for what is done already: a gather of done tasks still takes its turns."""

    @workflow.run
    async def run(self) -> list[str]:
        first, second, third = (start("gated", name) for name in "abc")
        await first
        result = await second
        follow = asyncio.create_task(act("echo", "follow"))
        again = await asyncio.gather(first, second)
        last = start("echo", "after " + "".join(again))
        await asyncio.gather(follow, last, third)
        return [result, *again]
