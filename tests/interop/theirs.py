"""The equivalent workflows and activities for temporalio, and a worker of it in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import temporalio.client
import temporalio.worker
from temporalio import activity, workflow
from temporalio.exceptions import ApplicationError

from .shared import Parcel

MINUTE = timedelta(seconds=60)


@activity.defn
async def their_echo(parcel: Parcel) -> Parcel:
    return parcel


@activity.defn
async def their_failure() -> None:
    raise ApplicationError("not today", {"until": "Monday"}, type="Closed", non_retryable=True)


@activity.defn(name="act")
async def act(name: str) -> str:
    return f"{name}!"


@workflow.defn(name="Relay")
class Relay:
    """Equivalent to Hourglass's `relay` in `ours.py`."""

    def __init__(self) -> None:
        self.batons: list[str] = []

    @workflow.signal
    def baton(self, word: str) -> None:
        self.batons.append(word)

    async def _act(self, name: str) -> str:
        return await workflow.execute_activity(act, name, start_to_close_timeout=MINUTE)

    @workflow.run
    async def run(self) -> list[str]:
        log = [await self._act("first")]
        await workflow.wait_condition(lambda: len(self.batons) >= 1)
        log.append(self.batons[0])
        handles = [
            workflow.start_activity(act, name, start_to_close_timeout=MINUTE) for name in ("left", "right")
        ]
        log += await asyncio.gather(*handles)
        await workflow.wait_condition(lambda: len(self.batons) >= 2)
        log.append(self.batons[1])
        await asyncio.sleep(0.01)
        log.append(await self._act("last"))
        return log


@workflow.defn(name="CallsOurs")
class CallsOurs:
    @workflow.run
    async def run(self, queue: str, parcel: Parcel) -> Parcel:
        echoed: Parcel = await workflow.execute_activity(
            "our_echo", parcel, task_queue=queue, start_to_close_timeout=MINUTE, result_type=Parcel
        )
        return echoed


@workflow.defn(name="CatchesOurs")
class CatchesOurs:
    @workflow.run
    async def run(self, queue: str) -> list[str]:
        from temporalio.common import RetryPolicy
        from temporalio.exceptions import ActivityError

        try:
            await workflow.execute_activity(
                "our_failure",
                task_queue=queue,
                start_to_close_timeout=MINUTE,
                retry_policy=RetryPolicy(maximum_attempts=1),
            )
        except ActivityError as error:
            cause = error.cause
            return [cause.type or "", cause.message] if isinstance(cause, ApplicationError) else [repr(cause)]
        return []


WORKFLOWS: list[Any] = [Relay, CallsOurs, CatchesOurs]
ACTIVITIES: list[Any] = [their_echo, their_failure, act]


@contextmanager
def worker(target: str, queue: str) -> Iterator[None]:
    """Run a temporalio worker on its own event loop and thread."""
    started, stop, failed = threading.Event(), threading.Event(), []

    async def main() -> None:
        client = await temporalio.client.Client.connect(target)
        async with temporalio.worker.Worker(
            client,
            task_queue=queue,
            workflows=WORKFLOWS,
            activities=ACTIVITIES,
            workflow_runner=temporalio.worker.UnsandboxedWorkflowRunner(),
        ):
            started.set()
            await asyncio.to_thread(stop.wait)

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            failed.append(error)
            started.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert started.wait(60)
        yield
    finally:
        stop.set()
        thread.join(60)
    assert not failed
