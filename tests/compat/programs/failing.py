"""Failures: of activities, retried and final; and those that end the run."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutError

from ._corpus import act, program


@program()
class ActivityFails:
    """A failure caught, its reason passed on."""

    @workflow.run
    async def run(self) -> str:
        try:
            await act("fails", "this")
        except ActivityError as error:
            cause: Any = error.cause
            return str(await act("echo", f"{cause.message}, {cause.type}"))
        return "no failure"


@program()
class ActivityRetries:
    """Retries are the server's: the workflow sees one result."""

    @workflow.run
    async def run(self) -> str:
        policy = RetryPolicy(initial_interval=timedelta(milliseconds=50), maximum_attempts=5)
        return str(await act("flaky", "third time", retry_policy=policy))


@program()
class ActivityGivesUp:
    """Retries run out; a parallel step goes on."""

    @workflow.run
    async def run(self) -> list[str]:
        policy = RetryPolicy(initial_interval=timedelta(milliseconds=20), maximum_attempts=2)

        async def guarded() -> str:
            try:
                return str(await act("flaky", "gives up", retry_policy=policy))
            except ActivityError:
                await act("echo", "gave up")
                return "gave up"

        return list(await asyncio.gather(guarded(), act("echo", "other")))


@program()
class ActivityTimesOut:
    """An activity that takes longer than it may."""

    @workflow.run
    async def run(self) -> str:
        try:
            await act(
                "gated",
                "never",
                start_to_close_timeout=timedelta(seconds=1),
                retry_policy=RetryPolicy(maximum_attempts=1),
            )
        except ActivityError as error:
            await act("echo", f"timed out: {isinstance(error.cause, TimeoutError)}")
        return "end"


@program()
class RunFails:
    """An application error that the body lets out fails the run, details and all."""

    @workflow.run
    async def run(self) -> None:
        await act("echo", "before")
        raise ApplicationError("broken", "detail", 7, type="Broken", non_retryable=True)


@program()
class ActivityErrorEscapes:
    """An activity's failure that the body lets out fails the run; a spawned task still issues its command."""

    @workflow.run
    async def run(self) -> None:
        async def other() -> None:
            await asyncio.sleep(0.01)
            await act("echo", "other")

        task = asyncio.create_task(other())
        await act("echo", "before")
        await task
        await act("fails", "this")


@program()
class TimeoutEscapes:
    """A condition's timeout that the body lets out fails the run."""

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: False, timeout=0.1)


@program("tasks 1 | signal explode")
class HandlerFails:
    """An application error in a signal's handler fails the run."""

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: False)

    @workflow.signal
    async def explode(self) -> None:
        await act("echo", "fuse")
        raise ApplicationError("boom")


@program("scheduled 2 | stop | open b | failed 1 | go")
class TaskFailsUnseen:
    """A spawned task fails and nobody waits for it: the run goes on."""

    @workflow.run
    async def run(self) -> str:
        async def doomed() -> None:
            await act("fails", "unseen")

        task = asyncio.create_task(doomed())
        result = await act("gated", "b")
        await asyncio.sleep(0.01)
        assert task.done()
        task.exception()
        return str(result)
