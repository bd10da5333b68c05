"""Conditions and time limits."""

from __future__ import annotations

import asyncio

from temporalio import workflow
from temporalio.exceptions import ActivityError

from ._corpus import act, program, start


class Counter:
    """A number that a signal raises."""

    def __init__(self) -> None:
        self.count = 0

    @workflow.signal
    def add(self, number: int) -> None:
        self.count += number


@program("timers 2 | signal add 1")
class ConditionTimeouts(Counter):
    """A condition that times out, one that a signal meets, one that is true at once."""

    @workflow.run
    async def run(self) -> list[str]:
        seen = []
        for limit in (0.3, 30, 5):
            try:
                await workflow.wait_condition(lambda: self.count > 0, timeout=limit)
                seen.append("met")
            except TimeoutError:
                seen.append("timeout")
            await act("echo", seen[-1])
        return seen


@program()
class ConditionAtOnce:
    """A condition that is true already still takes its turn, with a timeout also a timer's number."""

    @workflow.run
    async def run(self) -> None:
        task = asyncio.create_task(act("echo", "task"))
        await workflow.wait_condition(lambda: True)
        start("echo", "first")
        await workflow.wait_condition(lambda: True, timeout=5)
        await act("echo", "second")
        await asyncio.sleep(0.01)
        await task


@program("tasks 1 | signal add 1 | fired 1")
class TwoWaiters(Counter):
    """Two wait for one condition and both consume: conditions are checked together, before either goes on."""

    @workflow.run
    async def run(self) -> list[str]:
        seen: list[str] = []

        async def consume(name: str) -> None:
            await workflow.wait_condition(lambda: self.count > 0)
            self.count -= 1
            seen.append(f"{name}{self.count}")
            await act("echo", seen[-1])

        tasks = [asyncio.create_task(consume(name)) for name in "ab"]
        await workflow.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(0.05)
        return seen


@program("tasks 1 | signal add 1")
class ConditionChain(Counter):
    """Each condition is met by the one before, against the order in which they were registered."""

    @workflow.run
    async def run(self) -> list[int]:
        met: list[int] = []

        async def link(number: int) -> None:
            await workflow.wait_condition(lambda: self.count >= number)
            met.append(number)
            start("echo", number)
            self.count += 1

        await asyncio.gather(*[link(number) for number in (4, 3, 1, 2)])
        await act("echo", "end")
        return met


@program("timers 2 | stop | signal add 1 | fired 1 | go")
class ConditionAgainstTimer(Counter):
    """In one task a signal meets one condition and a timer fires that would have ended another."""

    @workflow.run
    async def run(self) -> list[str]:
        async def wait(name: str, limit: float, wanted: int) -> str:
            try:
                await workflow.wait_condition(lambda: self.count >= wanted, timeout=limit)
                await act("echo", name + " met")
                return "met"
            except TimeoutError:
                await act("echo", name + " timeout")
                return "timeout"

        return list(await asyncio.gather(wait("a", 1, 1), wait("b", 60, 1)))


@program("timers 1 | stop | fired 1 | signal add 1 | go")
class TimerAgainstCondition(Counter):
    """The same limit, but its timer fires before the signal comes."""

    @workflow.run
    async def run(self) -> str:
        try:
            await workflow.wait_condition(lambda: self.count > 0, timeout=1)
        except TimeoutError:
            await act("echo", "timeout")
            return "timeout"
        await act("echo", "met")
        return "met"


@program("completed 1 | fired 1 | release never")
class WaitForActivity:
    """`wait_for` around activities: in time, and too late, which cancels and waits for the cancelled."""

    @workflow.run
    async def run(self) -> list[str]:
        seen = [await asyncio.wait_for(start("echo", "in time"), 50)]
        await act("echo", "between")
        try:
            await asyncio.wait_for(start("gated", "never"), 0.2)
        except (TimeoutError, ActivityError):
            seen.append("too late")
        await act("echo", "end")
        return seen


@program("timers 1 | stop | open a | fired 1 | go")
class WaitForBoth:
    """Result and limit of a `wait_for` in one task, while another task waits for the same activity."""

    @workflow.run
    async def run(self) -> str:
        handle = start("gated", "a")

        async def other() -> None:
            await act("echo", "other " + await handle)

        task = asyncio.create_task(other())
        try:
            result = str(await asyncio.wait_for(handle, 1))
        except TimeoutError:
            result = "too late"
        await act("echo", result)
        await task
        return result


@program("completed 2 | fired 1 | release slow")
class TimeoutBlock:
    """`asyncio.timeout` around several steps: once in time, once too late."""

    @workflow.run
    async def run(self) -> list[str]:
        seen = []
        async with asyncio.timeout(60):
            seen.append(await act("echo", "one"))
            seen.append(await act("echo", "two"))
        try:
            async with asyncio.timeout(0.3):
                try:
                    await act("gated", "slow")
                except ActivityError as error:
                    raise asyncio.CancelledError from error
        except TimeoutError:
            seen.append("too late")
            await act("echo", "too late")
        return seen


@program("timers 3 | fired 1 | timers 4")
class TimeoutNested:
    """Two limits around a sleep: the inner passes, the outer goes on to count."""

    @workflow.run
    async def run(self) -> list[str]:
        seen = []
        async with asyncio.timeout(60):
            try:
                async with asyncio.timeout(0.2):
                    await asyncio.sleep(30)
            except TimeoutError:
                seen.append("inner")
                await act("echo", "inner")
            await asyncio.sleep(0.05)
            seen.append("outer")
        await act("echo", "end")
        return seen
