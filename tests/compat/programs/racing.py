"""Several things at once, and who comes first: `as_completed`, `wait`, races with timers, failing gathers."""

from __future__ import annotations

import asyncio

from temporalio import workflow
from temporalio.exceptions import ActivityError

from ._corpus import act, program, start


@program("scheduled 3 | stop | open b c | go | completed 4 | open a")
class AsCompleted:
    """A follow-up step for each activity, in the order of completion."""

    @workflow.run
    async def run(self) -> list[str]:
        seen = []
        for future in workflow.as_completed([start("gated", name) for name in "abc"]):
            seen.append(await act("echo", await future + "!"))
        return seen


@program("scheduled 3 | stop | open c a b | go")
class AsCompletedTasks:
    """As above with tasks of two steps, whose last commands interleave with the consumer's."""

    @workflow.run
    async def run(self) -> list[str]:
        async def work(name: str) -> str:
            result = await act("gated", name)
            start("echo", "from " + name)
            return str(result)

        seen = []
        for future in workflow.as_completed([asyncio.create_task(work(name)) for name in "abc"]):
            seen.append(await future)
            start("echo", "saw " + seen[-1])
        await asyncio.sleep(0.01)
        return seen


@program("scheduled 4 | stop | open d b | go | scheduled 7 | open a | scheduled 9 | open c")
class WaitFirst:
    """`wait` for the first, again and again, until none is left."""

    @workflow.run
    async def run(self) -> int:
        async def work(name: str) -> str:
            result = await act("gated", name)
            start("echo", "from " + name)
            return str(result)

        todo = [asyncio.create_task(work(name)) for name in "abcd"]
        rounds = 0
        while todo:
            done, todo = await workflow.wait(todo, return_when=asyncio.FIRST_COMPLETED)
            rounds += 1
            await act("echo", f"{rounds}: " + ",".join(task.result() for task in done))
        return rounds


@program("scheduled 3 | open b | scheduled 6 | open a c")
class WaitFirstException:
    """`wait` returns at the first failure, not at the first result."""

    @workflow.run
    async def run(self) -> list[bool]:
        async def fails_after(name: str) -> None:
            await act("gated", name)
            await act("echo", "about to fail")
            await act("fails", name)

        tasks = [start("gated", "a"), asyncio.create_task(fails_after("b")), start("gated", "c")]
        _, pending = await workflow.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        await act("echo", f"{len(pending)} left")
        await workflow.wait(pending)
        return [task.exception() is not None for task in tasks]


@program("scheduled 2 | open a | fired 1 | completed 2 | release b")
class WaitTimesOut:
    """`wait` for all with a timeout that passes; the loser is cancelled and waited for."""

    @workflow.run
    async def run(self) -> list[int]:
        async def work(name: str) -> None:
            await act("gated", name)
            await act("echo", "done " + name)

        tasks = [asyncio.create_task(work(name)) for name in "ab"]
        done, pending = await workflow.wait(tasks, timeout=1)
        start("echo", f"{len(done)} {len(pending)}")
        for task in pending:
            task.cancel()
        await workflow.wait(pending)
        await act("echo", "end")
        return [len(done), len(pending)]


@program("scheduled 2 | stop | open b a | go")
class WaitInTime:
    """`wait` for all with a timeout that does not pass: its timer is cancelled."""

    @workflow.run
    async def run(self) -> int:
        done, pending = await workflow.wait([start("gated", name) for name in "ab"], timeout=60)
        await act("echo", len(done))
        return len(pending)


@program("timers 1 | stop | open a | fired 1 | go")
class ActivityAgainstTimer:
    """A result and a timer in one task, the result first; they take different numbers of turns."""

    @workflow.run
    async def run(self) -> None:
        async def activity() -> None:
            await act("gated", "a")
            await act("echo", "after activity")

        async def timer() -> None:
            await asyncio.sleep(1)
            await act("echo", "after timer")

        await asyncio.gather(activity(), timer())


@program("timers 1 | stop | fired 1 | open a | go")
class TimerAgainstActivity(ActivityAgainstTimer):
    """The same, the timer first."""

    @workflow.run
    async def run(self) -> None:
        await super().run()


@program("timers 4 | stop | fired 4 | go")
class TimersTogether:
    """Timers of different tasks fire in one workflow task."""

    @workflow.run
    async def run(self) -> list[str]:
        order: list[str] = []

        async def nap(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            order.append(name)
            start("echo", name)

        await asyncio.gather(nap("a", 0.9), nap("b", 0.3), nap("c", 0.6), workflow.sleep(0.5))
        await act("echo", "end")
        return order


@program("scheduled 1 | open fast | completed 2 | fired 1 | release slow")
class RaceWithTimer:
    """An activity raced with a timer, twice: the activity wins, then the timer; the loser is cancelled."""

    @workflow.run
    async def run(self) -> list[str]:
        async def race(name: str, seconds: float) -> str:
            activity = start("gated", name)
            timer = asyncio.create_task(asyncio.sleep(seconds))
            await workflow.wait([activity, timer], return_when=asyncio.FIRST_COMPLETED)
            if activity.done():
                timer.cancel()
                return str(activity.result())
            activity.cancel()
            try:
                await activity
            except ActivityError:
                await act("echo", "gave up")
            return "too slow"

        first = await race("fast", 60)
        await act("echo", first)
        return [first, await race("slow", 0.3)]


@program("scheduled 3 | failed 1 | completed 1 | scheduled 5 | open c")
class FailingGather:
    """A gather fails at its first failure and leaves the others running."""

    @workflow.run
    async def run(self) -> None:
        async def work(activity: str, name: str) -> None:
            await act(activity, name)
            await act("echo", "after " + name)

        tasks = [asyncio.create_task(work(*each)) for each in (("fails", "a"), ("echo", "b"), ("gated", "c"))]
        try:
            await asyncio.gather(*tasks)
        except ActivityError:
            await act("echo", "handled")
        await tasks[2]
        await act("echo", "end")


@program("scheduled 3 | stop | open x y | failed 1 | go")
class GatherExceptions:
    """A gather that returns exceptions waits for all."""

    @workflow.run
    async def run(self) -> list[str]:
        async def cancels_itself() -> None:
            raise asyncio.CancelledError

        outcomes = await asyncio.gather(
            start("gated", "x"),
            act("fails", "y"),
            asyncio.create_task(cancels_itself()),
            act("gated", "y"),
            return_exceptions=True,
        )
        names = [outcome if isinstance(outcome, str) else "failed" for outcome in outcomes]
        await act("echo", names)
        return names
