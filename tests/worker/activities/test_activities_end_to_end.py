"""Activities under a worker, on the memory engine and on a real server: processes, and completion from outside."""

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

tokens: queue.SimpleQueue[activity.Info] = queue.SimpleQueue()


@activity.defn(executor="process")
def elsewhere_pid() -> int:
    return os.getpid()


@activity.defn(executor="process", retry_policy=RetryPolicy(initial_interval=0.01))
def dies_once(sign: str) -> list[object]:
    """The first attempt beats and is killed; the second finds what it left."""
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
def outside() -> str:
    tokens.put(activity.info())
    activity.complete_async()


@workflow.defn
def in_processes(sign: str) -> list[object]:
    return [elsewhere_pid() > 0, dies_once(sign)[0]]


@workflow.defn
def runs_too_long(sign: str) -> str:
    try:
        too_slow(sign)
    except ActivityError as error:
        return type(error.cause).__name__
    return "in time"


@workflow.defn
def says_too_much() -> str:
    try:
        return too_large()
    except ActivityError as error:
        cause = error.cause
        return f"{cause.type}: {cause.message}" if isinstance(cause, ApplicationError) else repr(cause)


@workflow.defn
def from_outside() -> str:
    try:
        return outside()
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
    """The first attempt of the even ones waits for ever; so would all on a loop that is blocked."""
    if number % 2 == 0 and activity.info().attempt == 1:
        gates.waiting.release()
        await asyncio.get_running_loop().create_future()
    await asyncio.sleep(0.001)  # an attempt that gives up its turn on the loop
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


WORKFLOWS = [waits_for, is_blocked, in_processes, runs_too_long, says_too_much, from_outside]
ACTIVITIES = [patient, blocks, elsewhere_pid, dies_once, too_slow, too_large, outside]


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


def test_process_activities_in_workflows(working: Client, tmp_path: Path) -> None:
    """They give their results; one whose process dies is tried again."""
    handle = start(working, in_processes, str(tmp_path / "sign"))
    assert handle.result(timeout=60) == [True, 2]


def test_timeout_stops_the_process(working: Client, tmp_path: Path) -> None:
    """The workflow sees the timeout, whatever the process does."""
    assert start(working, runs_too_long, str(tmp_path / "sign")).result(timeout=60) == "TimedOutError"


def test_oversized_result_is_reported(working: Client) -> None:
    """The workflow sees size and limit, at once."""
    told = start(working, says_too_much).result(timeout=60)
    assert told.startswith("EncodeError")
    assert "more than the limit of 2,097,152" in told


def test_completion_by_token(working: Client) -> None:
    """An activity leaves, and a client completes it by its token."""
    handle = start(working, from_outside)
    token = tokens.get(timeout=60).task_token
    working.get_activity_handle(token=token).complete("by token")
    assert handle.result(timeout=60) == "by token"


def test_completion_by_ids(working: Client) -> None:
    """And by the ids of its workflow and its own: a result, and a failure for good."""
    handle = start(working, from_outside)
    known = tokens.get(timeout=60)
    by_ids = {
        "workflow_id": known.workflow_id,
        "run_id": known.workflow_run_id,
        "activity_id": known.activity_id,
    }
    working.get_activity_handle(**by_ids).complete("by ids")
    assert handle.result(timeout=60) == "by ids"

    handle = start(working, from_outside)
    known = tokens.get(timeout=60)
    working.get_activity_handle(workflow_id=handle.id, activity_id=known.activity_id).fail(
        ApplicationError("declined", non_retryable=True)
    )
    assert handle.result(timeout=60) == "failed: declined"


def test_asynchronous_activity_heartbeats_and_is_cancelled(working: Client) -> None:
    """Heartbeats from outside are answered by whether the activity shall stop."""
    handle = start(working, from_outside)
    outside_handle = working.get_activity_handle(token=tokens.get(timeout=60).task_token)
    assert outside_handle.heartbeat("alive") is False
    outside_handle.complete("kept")
    assert handle.result(timeout=60) == "kept"


def test_blocking_activity_does_not_delay_others(working: Client, caplog: pytest.LogCaptureFixture) -> None:
    """While it blocks, those that waited there are tried again, new ones begin, and the log names it; then it ends well."""
    gates.__init__()  # type: ignore[misc]
    try:
        before = [start(working, waits_for, number) for number in range(0, 20, 2)]
        for _ in before:
            assert gates.waiting.acquire(timeout=60)
        guilty = start(working, is_blocked)
        assert gates.blocked.wait(60)
        after = [start(working, waits_for, number) for number in range(1, 40, 2)]
        assert [each.result(timeout=60) for each in before] == list(range(0, 20, 2))
        assert [each.result(timeout=60) for each in after] == list(range(1, 40, 2))
        assert guilty.describe().status.name == "RUNNING"
    finally:
        gates.unblocked.set()
    assert guilty.result(timeout=60) == "at last"
    named = f"activity blocks (1) of workflow {guilty.id} (run"
    told = [
        each for each in caplog.records if named in each.message and "blocks its event loop" in each.message
    ]
    assert told[0].levelno == logging.WARNING
    assert "gates.unblocked.wait(300)" in told[0].message
