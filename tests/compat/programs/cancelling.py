"""Cancellation: of the workflow, of tasks, of activities; before, with and after a result.

Whoever is cancelled while it waits for an activity sees an `ActivityError` here and `Cancelled` in Hourglass;
the programs treat both alike, so that the twins can be written as one would write them.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError
from temporalio.workflow import ActivityCancellationType

from ._corpus import act, program, start

STOPPED = (ActivityError, asyncio.CancelledError)


@program("scheduled 1 | cancel | scheduled 2 | release x")
class CancelDuringActivity:
    """The workflow is cancelled while it waits for an activity; it cleans up and ends as cancelled."""

    @workflow.run
    async def run(self) -> None:
        try:
            await act("gated", "x")
        except STOPPED:
            await act("echo", "clean up")
            raise


@program("timers 1 | cancel")
class CancelDuringTimer:
    """Cancelled while it sleeps: the timer is cancelled before the clean-up is scheduled."""

    @workflow.run
    async def run(self) -> None:
        try:
            await asyncio.sleep(100)
        finally:
            await act("echo", "clean up")
            await asyncio.sleep(0.01)


@program("tasks 1 | cancel")
class CancelDuringCondition:
    """Cancelled while it waits for a condition without a limit, in a task that waits for one with."""

    @workflow.run
    async def run(self) -> None:
        async def limited() -> None:
            try:
                await workflow.wait_condition(lambda: False, timeout=100)
            finally:
                await act("echo", "limited")

        try:
            await limited()
        except asyncio.CancelledError:
            await act("echo", "caught")
            raise


@program("scheduled 2 | timers 1 | cancel | scheduled 6 | release a b")
class CancelDuringGather:
    """Cancelled while it gathers: every task that it gathers is cancelled, in order."""

    @workflow.run
    async def run(self) -> None:
        async def work(name: str) -> None:
            try:
                await act("gated", name)
            except STOPPED:
                await act("echo", "stopped " + name)
                raise

        async def nap() -> None:
            try:
                await asyncio.sleep(100)
            finally:
                start("echo", "woken")

        try:
            await asyncio.gather(work("a"), nap(), work("b"))
        finally:
            await act("echo", "clean up")
            await asyncio.sleep(0.5)


async def _one_gated() -> str:
    try:
        result = str(await act("gated", "x"))
    except STOPPED:
        await act("echo", "cancelled")
        return "cancelled"
    await act("echo", "got " + result)
    return result


@program("scheduled 1 | stop | cancel | open x | go")
class CancelThenResult:
    """Cancellation and then the result, in one task."""

    @workflow.run
    async def run(self) -> str:
        return await _one_gated()


@program("scheduled 1 | stop | open x | cancel | go")
class ResultThenCancel:
    """The result and then cancellation, in one task."""

    @workflow.run
    async def run(self) -> str:
        return await _one_gated()


async def _one_nap() -> str:
    try:
        await asyncio.sleep(1)
    except asyncio.CancelledError:
        await act("echo", "cancelled")
        return "cancelled"
    await act("echo", "slept")
    return "slept"


@program("timers 1 | stop | cancel | fired 1 | go")
class CancelThenTimer:
    """Cancellation and then the timer, in one task."""

    @workflow.run
    async def run(self) -> str:
        return await _one_nap()


@program("timers 1 | stop | fired 1 | cancel | go")
class TimerThenCancel:
    """The timer and then cancellation, in one task."""

    @workflow.run
    async def run(self) -> str:
        return await _one_nap()


@program("timers 1 | cancel")
class CleanUpSteps:
    """Clean-up of several steps, nested, some of them in parallel."""

    @workflow.run
    async def run(self) -> None:
        try:
            try:
                await asyncio.sleep(100)
            finally:
                await asyncio.gather(act("echo", "undo a"), act("echo", "undo b"))
                await asyncio.sleep(0.01)
        finally:
            await act("echo", "undo c")


@program("timers 1 | cancel | completed 2")
class CancelSwallowed:
    """Cancellation caught and not passed on: the run completes."""

    @workflow.run
    async def run(self) -> str:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            await act("echo", "never mind")
        await asyncio.sleep(0.01)
        await act("echo", "going on")
        return "completed"


@program("timers 2 | scheduled 1 | cancel | completed 1")
class CancelSparesSpawned:
    """The workflow's cancellation does not reach what is merely spawned."""

    @workflow.run
    async def run(self) -> None:
        asyncio.create_task(asyncio.sleep(1000))  # noqa: RUF006
        start("gated", "unanswered")
        try:
            await asyncio.sleep(500)
        except asyncio.CancelledError:
            await act("echo", "clean up")
            raise


@program("scheduled 1 | cancel | canceled 1")
class CancelHeartbeating:
    """An activity that hears of its cancellation by heartbeat and ends as cancelled."""

    @workflow.run
    async def run(self) -> None:
        try:
            await act(
                "beats",
                heartbeat_timeout=timedelta(seconds=5),
                cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            )
        except STOPPED:
            await act("echo", "clean up")
            raise


@program("timers 1 | stop | signal poke | cancel | go")
class SignalAndCancel:
    """A signal whose handler acts, and cancellation, in one task."""

    def __init__(self) -> None:
        self.poked = 0

    @workflow.run
    async def run(self) -> None:
        try:
            await workflow.wait_condition(lambda: self.poked > 1, timeout=100)
        except asyncio.CancelledError:
            await act("echo", f"cancelled after {self.poked}")
            raise

    @workflow.signal
    async def poke(self) -> None:
        self.poked += 1
        await act("echo", "poked")
