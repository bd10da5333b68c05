"""`ActivityEnvironment`: an activity by itself, with what surrounds one."""

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


def test_heartbeats_and_details_are_recorded() -> None:
    """Heartbeats are recorded, and the details of an earlier attempt are there."""
    env = ActivityEnvironment(attempt=4, heartbeat_details=(1,))
    assert env.run(copy_rows, "t", until=3) == 4
    assert env.heartbeats == [(2,), (3,)]


def test_default_and_custom_info() -> None:
    """The activity's name is its own, and an `Info` can be given."""
    info = activity.Info(activity_id="7", activity_type="other", attempt=9, workflow_id="w")
    assert ActivityEnvironment().run(lambda: activity.info().activity_type) == "<lambda>"
    assert ActivityEnvironment(info=info).run(lambda: activity.info().workflow_id) == "w"
    assert ActivityEnvironment(info=info, attempt=2).run(copy_rows, "t", 0) == 2
    with pytest.raises(UsageError):
        activity.info()


def test_cancelled_activity_raises_at_its_heartbeat() -> None:
    """A `def` activity that was cancelled before it began hears of it at its first heartbeat."""
    env = ActivityEnvironment()
    env.cancel()
    with pytest.raises(Cancelled, match="CANCELLED"):
        env.run(copy_rows, "t")


def test_worker_shutdown_stops_an_activity() -> None:
    """An activity can be stopped in the middle, at a heartbeat of the test's choice."""

    def stop(row: int) -> None:
        if row == 2:
            during.shut_down_worker()

    during = ActivityEnvironment(on_heartbeat=stop)
    with pytest.raises(Cancelled, match="WORKER_SHUTDOWN"):
        during.run(copy_rows, "t")
    assert during.heartbeats == [(1,), (2,)]


def test_wait_cancelled_returns() -> None:
    """An activity that waits to be cancelled is told from another thread."""
    env = ActivityEnvironment()
    timer = threading.Timer(0, env.cancel)
    timer.start()
    assert env.run(lambda: activity.wait_cancelled()) is True
    timer.join()


def test_async_activity_is_awaited_and_cancelled() -> None:
    """An async activity is run to its end, or awaited, and cancelled by asyncio."""
    assert ActivityEnvironment().run(greet, "a") == "a greet"
    env = ActivityEnvironment(on_heartbeat=lambda name: env.cancel())
    assert env.run(wait_long, "b") == "cancelled, True"

    async def story() -> None:
        assert await ActivityEnvironment().arun(greet, "c") == "c greet"
        began = asyncio.Event()
        stopped = ActivityEnvironment(on_heartbeat=lambda name: began.set())
        running = asyncio.create_task(stopped.arun(wait_long, "d"))
        await began.wait()
        stopped.cancel()
        assert await running == "cancelled, True"
        with pytest.raises(UsageError, match="not an async function"):
            await ActivityEnvironment().arun(copy_rows, "t")

    asyncio.run(story())


def test_exceptions_are_raised_unwrapped() -> None:
    """No wrapping, no retry: the exception itself."""

    def fails() -> None:
        raise LookupError("gone")

    env = ActivityEnvironment()
    with pytest.raises(LookupError, match="gone"):
        env.run(fails)
    assert env.run(copy_rows, "t", 1) == 1
