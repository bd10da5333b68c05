"""A stalled store, as on a full disk: items that the engine could not deliver to a worker do not time out."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.specs import made

from hourglass._contract.handle import ActivityCancel
from hourglass._evaluator import commands as c
from hourglass._evaluator.specs import RetryRule

from ..memory_world import World, activity, settle, start_waiting, text
from ..store.scripted_store import ScriptedStore

MINUTE = 60.0
ONCE = RetryRule(maximum_attempts=1)


async def with_commits(store: ScriptedStore, work: Any) -> Any:
    task = asyncio.ensure_future(work)
    while not task.done():
        await settle()
        store.commit()
    return await task


async def start_run(store: ScriptedStore, world: World, *commands: c.Command) -> str:
    """Start a run and complete its first task; nothing is durable."""
    run_id: str = (await with_commits(store, world.start())).run_id
    await with_commits(store, world.activation())
    await world.complete(run_id, *commands)
    await settle()
    return run_id


def once(seq: int = 1, **limits: Any) -> c.ScheduleActivity:
    """Return an activity without retries that has only these timeouts."""
    return activity(seq, retry_policy=ONCE, **{"start_to_close_timeout": None, **limits})


LIMITS = [
    {"start_to_close_timeout": 2.0},
    {"start_to_close_timeout": 30.0, "heartbeat_timeout": 1.0},
    {"schedule_to_close_timeout": 5.0},
    {"schedule_to_close_timeout": 9.0, "schedule_to_start_timeout": 3.0, "start_to_close_timeout": 2.0},
]


async def undelivered_attempt(
    store: ScriptedStore, limits: dict[str, float]
) -> tuple[World, asyncio.Future[Any]]:
    """Return a world with an attempt that waits for a commit, and the poll that will receive it."""
    world = await World.new(store=store, opened=True)
    await start_run(store, world, once(**limits))
    poll = await start_waiting(world.activity())
    return world, poll


@pytest.mark.parametrize("limits", LIMITS, ids="+".join)
async def test_attempt_waiting_for_a_commit_does_not_time_out(limits: dict[str, float]) -> None:
    store = ScriptedStore()
    world, poll = await undelivered_attempt(store, limits)
    for _ in range(20):
        world.clock.advance(MINUTE)
        world.engine._upkeep.tick()
        await settle()
    assert not poll.done()
    assert "ActivityTaskTimedOut" not in world.kinds()
    store.commit()
    task = await poll
    assert task.attempt == 1
    assert task.started_time_ns == world.clock.now_ns()
    world.clock.advance(min(limits.values()) * 0.9)
    assert "ActivityTaskTimedOut" not in world.kinds()
    await world.succeed(task, text("r"))
    assert world.kinds()[-3:-1] == ["ActivityTaskStarted", "ActivityTaskCompleted"]
    await with_commits(store, world.close())


@pytest.mark.parametrize("limits", LIMITS, ids="+".join)
async def test_timeouts_of_an_attempt_start_when_it_is_delivered(limits: dict[str, float]) -> None:
    store = ScriptedStore()
    world, poll = await undelivered_attempt(store, limits)
    world.clock.advance(MINUTE)
    await with_commits(store, poll)
    store.commit()
    world.clock.advance(max(limits.values()) + 0.1)
    assert "ActivityTaskTimedOut" in world.kinds()
    await with_commits(store, world.close())


async def test_schedule_to_start_timeout_pauses_while_the_store_is_stalled() -> None:
    store = ScriptedStore()
    world = await World.new(store=store, opened=True, max_concurrent_activities=1)
    activities = [
        once(seq, schedule_to_close_timeout=500.0, schedule_to_start_timeout=10.0) for seq in (1, 2)
    ]
    await start_run(store, world, *activities)
    poll = await start_waiting(world.activity())
    world.clock.advance(4.0)
    world.engine._upkeep.tick()
    world.clock.advance(MINUTE)
    store.commit()
    task = await poll
    world.engine._upkeep.tick()  # the store moves again
    store.commit()
    world.clock.advance(9.0)
    assert "ActivityTaskTimedOut" not in world.kinds()
    world.clock.advance(2.0)
    assert "ActivityTaskTimedOut" in world.kinds()  # the second: no worker was free for it
    await world.succeed(task, text("r"))
    await with_commits(store, world.close())


async def test_running_attempt_times_out_while_the_store_is_stalled() -> None:
    store = ScriptedStore()
    world = await World.new(store=store, opened=True)
    await start_run(store, world, once(start_to_close_timeout=5.0))
    task = await with_commits(store, world.activity())
    await settle()
    world.clock.advance(6.0)
    assert "ActivityTaskTimedOut" in world.kinds()
    cancel = await with_commits(store, world.cancel())
    assert isinstance(cancel, ActivityCancel)
    assert cancel.token == task.token
    await with_commits(store, world.close())


async def test_undelivered_attempt_is_returned_with_its_full_schedule_to_start_timeout() -> None:
    """The worker shuts down before it received the attempt."""
    store = ScriptedStore()
    world = await World.new(store=store, opened=True)
    run_id = await start_run(
        store, world, once(schedule_to_close_timeout=30.0, schedule_to_start_timeout=10.0)
    )
    poll = await start_waiting(world.handle.poll_activity())
    world.clock.advance(MINUTE)
    world.handle.initiate_shutdown()
    store.commit()
    await settle()
    record = world.record(run_id=run_id)
    (waiting,) = record.run.activities.values()
    assert (waiting.started_ns, waiting.available_ns) == (0, world.clock.now_ns())
    world.clock.advance(9.0)
    assert "ActivityTaskTimedOut" not in world.kinds()
    poll.cancel()
    await with_commits(store, world.close())


async def test_local_activity_waiting_for_a_commit_does_not_time_out() -> None:
    store = ScriptedStore()
    world = await World.new(store=store, opened=True)
    starting = await start_waiting(world.start(task_timeout=120.0))
    activation = await world.activation()  # given out ahead of the disk
    local = made(
        c.ScheduleLocalActivity,
        seq=1,
        activity_id="1",
        activity_type="a",
        schedule_to_close_timeout=5.0,
        schedule_to_start_timeout=2.0,
    )
    await world.complete(activation.run_id, local)
    poll = await start_waiting(world.activity())
    for _ in range(6):
        world.clock.advance(5.0)
        await settle()
    assert not poll.done()
    store.commit()
    task = await poll
    assert task.is_local
    await starting
    world.clock.advance(4.5)
    await world.succeed(task, text("r"))
    await world.activation()
    await with_commits(store, world.close())
