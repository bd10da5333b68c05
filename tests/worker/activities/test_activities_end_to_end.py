"""Activities under a worker, on the memory engine and on a server: processes, limits, failures reported by clients,
blocked loops.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hourglass import RetryPolicy, activity, workflow
from hourglass.client import Client
from hourglass.errors import ActivityError, ApplicationError
from hourglass.worker import Worker

pytestmark = pytest.mark.usefixtures("each_event_loop")

activity_ids: queue.SimpleQueue[str] = queue.SimpleQueue()


@activity.defn(executor="process")
def process_id() -> int:
    return os.getpid()


@activity.defn(executor="process", retry_policy=RetryPolicy(initial_interval=0.01))
def dies_once(sign: str) -> list[object]:
    """The first attempt heartbeats and kills its process; the second succeeds."""
    if activity.info().attempt == 1:
        activity.heartbeat("cursor")
        os._exit(9)
    return [activity.info().attempt, os.getpid()]


@activity.defn(executor="process", start_to_close_timeout=0.3, retry_policy=RetryPolicy(maximum_attempts=1))
def too_slow(sign: str) -> None:
    Path(sign).write_text(str(os.getpid()))
    activity.wait_cancelled()


@activity.defn(executor="process", retry_policy=RetryPolicy(maximum_attempts=1))
def too_large() -> str:
    return "x" * 3_000_000


@activity.defn(heartbeat_timeout=None)
def completed_by_a_client() -> str:
    activity_ids.put(activity.info().activity_id)
    activity.complete_async()


@workflow.defn
def in_processes(sign: str) -> list[object]:
    return [process_id() > 0, dies_once(sign)[0]]


@workflow.defn
def runs_too_long(sign: str) -> str:
    try:
        too_slow(sign)
    except ActivityError as error:
        return type(error.cause).__name__
    return "in time"


@workflow.defn
def returns_too_much() -> str:
    try:
        return too_large()
    except ActivityError as error:
        cause = error.cause
        return f"{cause.type}: {cause.message}" if isinstance(cause, ApplicationError) else repr(cause)


@workflow.defn
def waits_for_a_client() -> str:
    try:
        return completed_by_a_client()
    except ActivityError as error:
        return f"failed: {error.cause}"


class Gates:
    def __init__(self) -> None:
        self.waiting = threading.Semaphore(0)
        self.blocked = threading.Event()
        self.unblocked = threading.Event()


gates = Gates()


@activity.defn(retry_policy=RetryPolicy(initial_interval=0.01))
async def patient(number: int) -> int:
    """With an even number the first attempt never ends unless its loop is replaced."""
    if number % 2 == 0 and activity.info().attempt == 1:
        gates.waiting.release()
        await asyncio.get_running_loop().create_future()
    await asyncio.sleep(0.001)  # an attempt that yields to the loop
    return number


@activity.defn(start_to_close_timeout=600)
async def blocks() -> str:
    gates.blocked.set()
    gates.unblocked.wait(300)
    return "at last"


@workflow.defn
def waits_for(number: int) -> int:
    return patient(number)


@workflow.defn
def is_blocked() -> str:
    return blocks()


WORKFLOWS = [waits_for, is_blocked, in_processes, runs_too_long, returns_too_much, waits_for_a_client]
ACTIVITIES = [patient, blocks, process_id, dies_once, too_slow, too_large, completed_by_a_client]


@pytest.fixture(params=["memory", pytest.param("server", marks=pytest.mark.server)])
def client(request: pytest.FixtureRequest, each_event_loop: str) -> Iterator[Client]:
    target = "local:" if request.param == "memory" else request.getfixturevalue("quick_server").target
    with Client.connect(target) as client:
        yield client


@pytest.fixture
def working(client: Client) -> Iterator[Client]:
    with Worker(client, "activities", workflows=WORKFLOWS, activities=ACTIVITIES):
        yield client


def start(client: Client, fn: object, *args: object):
    return client.start_workflow(fn, *args, task_queue="activities")


def test_process_activity_is_retried_after_its_process_dies(working: Client, tmp_path: Path) -> None:
    handle = start(working, in_processes, str(tmp_path / "sign"))
    assert handle.result(timeout=60) == [True, 2]


def test_process_activity_times_out(working: Client, tmp_path: Path) -> None:
    assert start(working, runs_too_long, str(tmp_path / "sign")).result(timeout=60) == "TimedOutError"


def test_oversized_activity_result_fails_with_its_size_and_limit(working: Client) -> None:
    message = start(working, returns_too_much).result(timeout=60)
    assert message.startswith("EncodeError")
    assert "more than the limit of 2,097,152" in message


def test_client_fails_an_activity_by_workflow_and_activity_id(working: Client) -> None:
    handle = start(working, waits_for_a_client)
    activity_id = activity_ids.get(timeout=60)
    working.get_activity_handle(workflow_id=handle.id, activity_id=activity_id).fail(
        ApplicationError("declined", non_retryable=True)
    )
    assert handle.result(timeout=60) == "failed: declined"


def test_activity_that_blocks_its_event_loop_does_not_delay_other_activities(
    working: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """Activities that waited on the blocked loop are retried, new ones run, and the log names the blocking activity."""
    gates.__init__()  # type: ignore[misc]
    try:
        before = [start(working, waits_for, number) for number in range(0, 20, 2)]
        for _ in before:
            assert gates.waiting.acquire(timeout=60)
        blocking = start(working, is_blocked)
        assert gates.blocked.wait(60)
        after = [start(working, waits_for, number) for number in range(1, 40, 2)]
        assert [item.result(timeout=60) for item in before] == list(range(0, 20, 2))
        assert [item.result(timeout=60) for item in after] == list(range(1, 40, 2))
        assert blocking.describe().status.name == "RUNNING"
    finally:
        gates.unblocked.set()
    assert blocking.result(timeout=60) == "at last"
    prefix = f"activity blocks (1) of workflow {blocking.id} (run"
    warnings = [
        item for item in caplog.records if prefix in item.message and "blocks its event loop" in item.message
    ]
    assert warnings[0].levelno == logging.WARNING
    assert "gates.unblocked.wait(300)" in warnings[0].message
