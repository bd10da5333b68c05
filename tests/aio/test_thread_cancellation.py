"""Cancellation of `def` activities of `hourglass.aio`: raised in their thread, as under temporalio."""

from __future__ import annotations

import asyncio
import contextvars
import io
import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

import hourglass
from hourglass.activity._interruption import ThreadInterruption
from hourglass.aio import activity, workflow
from hourglass.aio.client import Client
from hourglass.aio.common import RetryPolicy
from hourglass.aio.exceptions import ActivityError, ApplicationError, CancelledError
from hourglass.aio.worker import Worker

log: list[str] = []


@contextmanager
def heartbeats_from_thread() -> Iterator[None]:
    """Send heartbeats from another thread, like programs whose work is one long call."""
    stop, context = threading.Event(), contextvars.copy_context()

    def beat() -> None:
        try:
            while not stop.wait(0.02):
                context.run(activity.heartbeat)
        except BaseException as error:
            log.append(f"the beating thread got {type(error).__name__}")

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@activity.defn
def between_heartbeats() -> None:
    try:
        while True:
            activity.heartbeat()
            time.sleep(0.01)
    except CancelledError:
        log.append(f"caught, {activity.is_cancelled()}")
        raise


@activity.defn
def without_heartbeats() -> str:
    try:
        with heartbeats_from_thread():
            while True:
                time.sleep(0.01)
    except CancelledError:
        return "swallowed"


@activity.defn(no_thread_cancel_exception=True)
def polls_is_cancelled() -> str:
    while not activity.is_cancelled():
        activity.heartbeat()
        time.sleep(0.01)
    activity.heartbeat()
    activity.wait_for_cancelled_sync()
    return "asked"


@activity.defn
def shields_from_cancellation() -> None:
    try:
        with activity.shield_thread_cancel_exception(), activity.shield_thread_cancel_exception():
            while not activity.is_cancelled():
                activity.heartbeat()
                time.sleep(0.01)
            log.append("shielded")
        log.append("never")
    except CancelledError:
        log.append("after the shield")
        raise


@activity.defn
def waits_for_it() -> None:
    with heartbeats_from_thread():
        activity.wait_for_cancelled_sync()
        log.append("never")


@activity.defn
def logs() -> None:
    """Spends its time in `logging`, whose locks must not remain held after the exception."""
    quiet = logging.Logger("quiet")
    quiet.addHandler(logging.StreamHandler(io.StringIO()))
    while True:
        activity.heartbeat()
        for _ in range(100):
            quiet.error("%s", "word")


@activity.defn
def cleans_up_with_error() -> None:
    try:
        while True:
            activity.heartbeat()
            time.sleep(0.01)
    except CancelledError as error:
        raise ApplicationError("cleaned up", non_retryable=True) from error


@workflow.defn
class CancelsActivity:
    def __init__(self) -> None:
        self.wanted = False

    @workflow.run
    async def run(self, name: str) -> str:
        task = workflow.start_activity(
            name,
            start_to_close_timeout=60,
            heartbeat_timeout=1,
            retry_policy=RetryPolicy(maximum_attempts=1),
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        )
        await workflow.sleep(0.3)
        task.cancel()
        try:
            return f"returned {await task}"
        except ActivityError as error:
            return type(error.cause).__name__


EXPECTED = {
    "between_heartbeats": ("CancelledError", ["caught, True"]),
    "without_heartbeats": ("returned swallowed", []),
    "polls_is_cancelled": ("returned asked", []),
    "shields_from_cancellation": ("CancelledError", ["shielded", "after the shield"]),
    "waits_for_it": ("CancelledError", []),
    "logs": ("CancelledError", []),
    "cleans_up_with_error": ("ApplicationError", []),
}
ACTIVITIES = [
    between_heartbeats,
    without_heartbeats,
    polls_is_cancelled,
    shields_from_cancellation,
    waits_for_it,
    logs,
    cleans_up_with_error,
]


@pytest.fixture(autouse=True)
def _clear_log() -> None:
    log.clear()


@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("name", EXPECTED)
async def test_cancellation_is_raised_in_the_thread_of_a_def_activity(name: str, pool: bool) -> None:
    """In our threads and in those of an executor."""

    client = await Client.connect("local:")
    with ThreadPoolExecutor(2) as executor:
        options: dict[str, Any] = {"activity_executor": executor} if pool else {}
        async with Worker(
            client, task_queue="q", workflows=[CancelsActivity], activities=ACTIVITIES, **options
        ):
            found = await client.execute_workflow(CancelsActivity.run, name, id="w", task_queue="q")
        # The thread is as it was: it takes the next job.
        assert executor.submit(lambda: 1).result(60) == 1
    await client.close()
    assert (found, log) == EXPECTED[name]


def test_hourglass_worker_raises_cancellation_in_threads_of_aio_activities() -> None:
    with (
        hourglass.Client.connect("local:") as client,
        hourglass.Worker(client, "q", workflows=[CancelsActivity], activities=ACTIVITIES),
    ):
        found = client.execute_workflow(CancelsActivity.run, "without_heartbeats", task_queue="q")
    assert found == "returned swallowed"


@activity.defn
def ends_with_worker() -> str:
    try:
        while True:
            time.sleep(0.01)
    except CancelledError:
        log.append(f"worker: {activity.cancellation_details().worker_shutdown}")  # type: ignore[union-attr]
        raise


async def test_worker_shutdown_raises_cancellation_in_activity_threads() -> None:
    """This activity never heartbeats."""
    client = await Client.connect("local:")
    async with Worker(
        client,
        task_queue="q",
        workflows=[CancelsActivity],
        activities=[ends_with_worker],
        graceful_shutdown_timeout=0.1,
    ) as worker:
        await client.start_workflow(CancelsActivity.run, "ends_with_worker", id="w", task_queue="q")
        async with asyncio.timeout(60):
            while not worker.wrapped.statistics().running_activities:  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0.01)
    await client.close()
    assert log == ["worker: True"]


def test_thread_interruption_raises_during_the_function_or_never() -> None:
    ends = {"raised": 0, "returned": 0}
    for _ in range(300):
        interruption, begun = ThreadInterruption(), threading.Event()

        def short() -> None:
            begun.set()

        request = threading.Thread(target=lambda: begun.wait(60) and interruption.request())
        request.start()
        try:
            interruption.run(short)
            ends["returned"] += 1
        except CancelledError:
            ends["raised"] += 1
        request.join()
        sum(range(100))  # an exception that was left behind would arrive here
    assert sum(ends.values()) == 300
