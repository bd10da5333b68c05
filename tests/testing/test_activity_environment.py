"""`ActivityEnvironment`: running a single activity with a context."""

from __future__ import annotations

import asyncio
import threading

import pytest

from hourglass import activity
from hourglass.errors import Cancelled, UsageError
from hourglass.testing import ActivityEnvironment


@activity.defn
def copy_rows(table: str, until: int = 3) -> int:
    begin = activity.heartbeat_details(int) or 0
    for row in range(begin + 1, until + 1):
        activity.heartbeat(row)
    return activity.info().attempt


@activity.defn
async def wait_long(name: str) -> str:
    activity.heartbeat(name)
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return f"cancelled, {activity.cancelled()}"
    return "never"


@activity.defn
async def greet(name: str) -> str:
    await asyncio.sleep(0)
    return f"{name} {activity.info().activity_type}"


def test_activity_environment_records_heartbeats_and_provides_earlier_details() -> None:
    env = ActivityEnvironment(attempt=4, heartbeat_details=(1,))
    assert env.run(copy_rows, "t", until=3) == 4
    assert env.heartbeats == [(2,), (3,)]


def test_activity_environment_provides_default_or_custom_info() -> None:
    info = activity.Info(activity_id="7", activity_type="other", attempt=9, workflow_id="w")
    assert ActivityEnvironment().run(lambda: activity.info().activity_type) == "<lambda>"
    assert ActivityEnvironment(info=info).run(lambda: activity.info().workflow_id) == "w"
    assert ActivityEnvironment(info=info, attempt=2).run(copy_rows, "t", 0) == 2
    with pytest.raises(UsageError):
        activity.info()


def test_cancelled_activity_raises_at_its_first_heartbeat() -> None:
    env = ActivityEnvironment()
    env.cancel()
    with pytest.raises(Cancelled, match="CANCELLED"):
        env.run(copy_rows, "t")


def test_simulated_worker_shutdown_stops_an_activity_at_a_heartbeat() -> None:
    def stop(row: int) -> None:
        if row == 2:
            during.shut_down_worker()

    during = ActivityEnvironment(on_heartbeat=stop)
    with pytest.raises(Cancelled, match="WORKER_SHUTDOWN"):
        during.run(copy_rows, "t")
    assert during.heartbeats == [(1,), (2,)]


def test_wait_cancelled_returns_when_another_thread_cancels_the_activity() -> None:
    env = ActivityEnvironment()
    timer = threading.Timer(0, env.cancel)
    timer.start()
    assert env.run(lambda: activity.wait_cancelled()) is True
    timer.join()


def test_activity_environment_runs_awaits_and_cancels_async_activities() -> None:
    assert ActivityEnvironment().run(greet, "a") == "a greet"
    env = ActivityEnvironment(on_heartbeat=lambda name: env.cancel())
    assert env.run(wait_long, "b") == "cancelled, True"

    async def story() -> None:
        assert await ActivityEnvironment().arun(greet, "c") == "c greet"
        started = asyncio.Event()
        stopped = ActivityEnvironment(on_heartbeat=lambda name: started.set())
        running = asyncio.create_task(stopped.arun(wait_long, "d"))
        await started.wait()
        stopped.cancel()
        assert await running == "cancelled, True"
        with pytest.raises(UsageError, match="not an async function"):
            await ActivityEnvironment().arun(copy_rows, "t")

    asyncio.run(story())


def test_activity_environment_raises_exceptions_unwrapped() -> None:
    def fails() -> None:
        raise LookupError("gone")

    env = ActivityEnvironment()
    with pytest.raises(LookupError, match="gone"):
        env.run(fails)
    assert env.run(copy_rows, "t", 1) == 1
