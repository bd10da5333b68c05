"""Upkeep: idle runs leave memory, return when they are due or requested, and are deleted after the retention."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from tests.embedded.memory_world import open_engine
from tests.embedded.stores import memory_store
from tests.polled import PolledEngine
from tests.specs import made

from hourglass._contract import activities as ac
from hourglass._contract import limits
from hourglass._contract import workflows as wf
from hourglass._contract.handle import ActivityDeferred, ActivityTask, AttemptFailed, Handle, HandleConfig
from hourglass._embedded import RealClock
from hourglass._embedded.store.store import AT_ONCE, Store
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass._evaluator.specs import RetryRule
from hourglass.converter import Payload
from hourglass.errors import WorkflowNotFoundError

from ..memory_world import World, activity, app_failure, settle, start_waiting, text
from ..store.scripted_store import ScriptedStore
from .test_stalled_store import with_commits

DAY = 86_400
LIMIT = 60.0
"""Seconds to wait for an event that needs no time."""


async def sleeping_run(world: World, workflow_id: str = "w", seconds: int = DAY, **more: Any) -> str:
    return await world.start_run(c.StartTimer(1, seconds * 10**9), workflow_id=workflow_id, **more)


async def evict(world: World, run_id: str) -> None:
    world.handle.request_eviction(run_id)
    await world.activation()
    await world.complete(run_id)


def tick(world: World) -> None:
    world.engine._upkeep.tick()


def in_memory(world: World) -> set[str]:
    return {record.run.run_id for record in world.engine.runs.records()}


async def test_sleeping_run_is_evicted_and_wakes_in_time() -> None:
    world = await World.new(opened=True)
    run_id = await sleeping_run(world)
    tick(world)
    assert in_memory(world) == {run_id}  # a handle knows it
    await evict(world, run_id)
    tick(world)
    assert in_memory(world) == set()
    world.clock.advance(DAY - 1)
    assert in_memory(world) == set()
    world.clock.advance(1)
    assert in_memory(world) == {run_id}
    activation = await world.activation()
    assert activation.is_replaying
    await world.complete(run_id, c.StartTimer(1, DAY * 10**9))
    assert (await world.activation()).events == (e.TimerFired(1),)
    await world.complete(run_id, c.CompleteRun(text("r")))
    await world.activation()
    await world.complete(run_id)
    tick(world)
    assert in_memory(world) == set()
    assert await world.outcome() == wf.RunCompleted((text("r"),))


async def test_many_sleeping_runs_wake_in_order() -> None:
    world = await World.new(opened=True, max_cached_workflows=0, max_concurrent_workflow_tasks=2000)
    ids = []
    for number in range(600):
        ids.append(await sleeping_run(world, f"w{number}", 100 if number < 500 else 200))
        await world.activation()
        await world.complete(ids[-1])
    tick(world)
    assert in_memory(world) == set()
    world.clock.advance(100)
    assert in_memory(world) == set(ids[:500])
    world.clock.advance(100)
    assert in_memory(world) == set(ids)


async def test_run_in_use_stays_in_memory() -> None:
    store = ScriptedStore()
    world = await World.new(store=store, opened=True, max_cached_workflows=0)
    run_id = (await with_commits(store, world.start())).run_id
    await with_commits(store, world.activation())
    await world.complete(run_id, activity(start_to_close_timeout=9.0))
    await with_commits(store, world.activation())
    await world.complete(run_id)
    store.commit()
    tick(world)
    assert in_memory(world) == {run_id}  # offered
    item = await with_commits(store, world.activity())
    tick(world)
    assert in_memory(world) == {run_id}  # in hand
    await world.handle.complete_activity(ActivityDeferred(item.token))
    tick(world)
    assert in_memory(world) == {run_id}  # not durable
    waiting = await start_waiting(world.call(wf.WaitForClose(workflow_id="w")))
    store.commit()
    tick(world)
    assert in_memory(world) == {run_id}  # a call waits
    waiting.cancel()
    await settle()
    tick(world)
    assert in_memory(world) == set()
    signal = world.signal("s", "r")
    await with_commits(store, signal)
    assert in_memory(world) == {run_id}


async def test_description_without_run_id_shows_the_latest_run() -> None:
    world = await World.new(opened=True, max_cached_workflows=0)
    first = await sleeping_run(world)
    await world.activation()
    await world.complete(first)
    await world.call(wf.TerminateWorkflow(workflow_id="w"))
    second = await sleeping_run(world)
    await world.activation()
    await world.complete(second)
    tick(world)
    assert in_memory(world) == set()
    assert isinstance(await world.outcome(run_id=first), wf.RunTerminated)
    assert in_memory(world) == {first}
    assert (await world.call(wf.DescribeWorkflow(workflow_id="w"))).summary.run_id == second


async def test_describing_a_run_writes_nothing() -> None:
    store = ScriptedStore()
    first = await World.new(opened=True, max_cached_workflows=0, store=store.disk)
    run_id = await sleeping_run(first)
    await first.activation()
    await first.complete(run_id)
    world = await World.new(store=store, clock=first.clock, opened=True)
    assert in_memory(world) == set()
    for _ in range(3):
        await world.call(wf.DescribeWorkflow(workflow_id="w"))
        tick(world)
        assert in_memory(world) == set()
    assert store.appended == []


async def test_closed_runs_are_deleted_after_the_retention() -> None:
    """Their workflow ids become free; open runs are never deleted."""
    world = await World.new(opened=True, retention=30.0 * DAY)
    open_id = await sleeping_run(world, "open", 90 * DAY)
    await world.start("closed")
    await world.call(wf.TerminateWorkflow(workflow_id="closed"))
    world.clock.advance(30 * DAY)
    tick(world)
    assert isinstance(await world.outcome("closed"), wf.RunTerminated)
    tick(world)
    world.clock.advance(1)
    tick(world)
    with pytest.raises(WorkflowNotFoundError):
        await world.outcome("closed")
    assert [summary.run_id for summary in (await world.call(wf.ListWorkflows())).workflows] == [open_id]


async def test_stored_wake_time_is_exact() -> None:
    store = memory_store()
    world = await World.new(store=store, max_cached_workflows=0)
    run_id = (await world.start()).run_id
    assert [due.run_id for due in store.due(AT_ONCE, 9)] == [run_id]
    await world.activation()
    rule = RetryRule(initial_interval=50.0, maximum_attempts=3)
    act = activity(start_to_close_timeout=100.0, heartbeat_timeout=10.0, retry_policy=rule)
    await world.complete(run_id, act)
    assert [due.run_id for due in store.due(AT_ONCE, 9)] == [run_id]  # offered
    item = await world.activity()
    await world.handle.complete_activity(ActivityDeferred(item.token))
    start = world.clock.now_ns()
    assert store.next_due_ns() == start + 10 * 10**9
    world.clock.advance(8)
    await world.call(ac.HeartbeatActivity(token=item.token))
    world.clock.advance(4)
    assert store.next_due_ns() == start + 18 * 10**9
    world.clock.advance(6)  # lost; tried again in 50 seconds
    assert store.next_due_ns() == start + 68 * 10**9
    world.clock.advance(50)
    assert [due.run_id for due in store.due(AT_ONCE, 9)] == [run_id]


async def test_upkeep_ticks_from_opening_to_closing() -> None:
    engine = (await open_engine(RealClock(), recovered=False)).engine
    assert engine._upkeep._ticker is None
    await engine.open_existing()
    ticker = engine._upkeep._ticker
    assert ticker is not None
    engine.close()
    engine.close()
    assert ticker.cancelled()


async def test_forward_clock_jump_is_noticed_within_a_tick() -> None:
    jump = [0]
    clock = RealClock(lambda: time.time_ns() + jump[0])
    connection = await open_engine(clock)
    engine = connection.engine
    handle = PolledEngine(await connection.open_handle(HandleConfig(task_queue="q")))
    start = made(wf.StartWorkflow, workflow_id="w", workflow_type="W", task_queue="q", request_id="")
    run_id = (await connection.call(start)).run_id
    await handle.poll_activation()
    await handle.complete_activation(c.Succeeded(run_id, (c.StartTimer(1, 1800 * 10**9),)))
    jump[0] = 3600 * 10**9
    engine._upkeep.tick()
    assert (await handle.poll_activation()).events == (e.TimerFired(1),)
    await connection.close()


class Watch:
    """A machine's clocks, set by the test; `ahead` is the error of the wall clock in seconds."""

    def __init__(self) -> None:
        self.passed = 0.0
        self.ahead = 0.0
        self.begin = time.time_ns()

    def clock(self) -> RealClock:
        return RealClock(
            lambda: self.begin + int((self.passed + self.ahead) * 1e9), lambda: int(self.passed * 1e9)
        )


class Place:
    """An engine on such clocks."""

    def __init__(self, watch: Watch, connection: Any) -> None:
        self.watch = watch
        self.engine = connection.engine
        self.connection = connection

    @staticmethod
    async def new(watch: Watch, store: Store | None = None) -> Place:
        return Place(watch, await open_engine(watch.clock(), store))

    def set_clock(self, ahead: float) -> None:
        """Set the wall clock; the engine notices within a second."""
        self.watch.ahead = ahead
        self.pass_time(1.0)

    def pass_time(self, seconds: float) -> None:
        """Let time pass, followed by one tick of upkeep."""
        self.watch.passed += seconds
        self.engine._upkeep.tick()

    async def open_handle(self) -> PolledEngine:
        return PolledEngine(await self.connection.open_handle(HandleConfig(task_queue="q")))

    async def start(self, workflow_id: str = "w") -> str:
        start = made(
            wf.StartWorkflow, workflow_id=workflow_id, workflow_type="W", task_queue="q", request_id=""
        )
        return (await self.connection.call(start)).run_id


@pytest.fixture
def place(runner: asyncio.Runner) -> Iterator[Place]:
    """An engine on clocks set by the test."""
    place = runner.run(Place.new(Watch()))
    yield place
    runner.run(place.connection.close())


async def fail_task_twice(handle: PolledEngine, run_id: str) -> None:
    """Fail a workflow task and its first retry, which is immediate."""
    for _ in range(2):
        await handle.poll_activation()
        await handle.complete_activation(c.TaskFailed(run_id, app_failure("bug")))
        await handle.poll_activation()  # the eviction
        await handle.complete_activation(c.Succeeded(run_id))


@pytest.mark.parametrize("ahead", [2.0, 90.0, 3 * 3600.0])
async def test_task_scheduled_while_the_clock_was_ahead_is_available(place: Place, ahead: float) -> None:
    place.set_clock(ahead)
    run_id = await place.start()
    place.set_clock(0.0)
    handle = await place.open_handle()
    async with asyncio.timeout(1.0):  # on this clock no time passes: it is there, or never comes
        assert (await handle.poll_activation()).run_id == run_id


async def test_available_task_stays_available_when_time_slows_down(place: Place) -> None:
    """The wall clock is an hour behind."""
    place.set_clock(-3600.0)
    place.watch.passed += 0.0199
    run_id = await place.start()
    place.watch.passed += 0.0002  # in between the wall clock is looked at again
    handle = await place.open_handle()
    async with asyncio.timeout(1.0):
        assert (await handle.poll_activation()).run_id == run_id


async def test_failing_task_is_retried_after_the_clock_was_set_back(place: Place) -> None:
    """The run leaves memory and returns when the retry is due."""
    place.set_clock(20.0)
    handle = await place.open_handle()
    run_id = await place.start()
    await fail_task_twice(handle, run_id)
    await handle.finalize()
    place.pass_time(12.0)  # its pause of ten seconds is over
    record = place.engine.runs.in_memory(run_id)
    assert record is not None
    place.engine.runs.timers.elapse(record)
    place.set_clock(14.0)
    await place.connection.call(wf.DescribeWorkflow(workflow_id="w"))
    place.pass_time(0.5)
    assert place.engine.runs.in_memory(run_id) is None, "the run is in use"
    place.pass_time(10.0)
    assert place.engine.runs.in_memory(run_id) is not None, "the run did not return"


async def _with_retry(place: Place, pause: float) -> Handle:
    """Start a run whose activity failed once, and return the handle; the retry is due after `pause` seconds."""
    handle = await place.open_handle()
    run_id = await place.start()
    await handle.poll_activation()
    rule = RetryRule(initial_interval=pause, backoff_coefficient=1.0)
    await handle.complete_activation(c.Succeeded(run_id, (activity(retry_policy=rule),)))
    first = await handle.poll_activity()
    await handle.complete_activity(AttemptFailed(first.token, app_failure("not yet")))
    return handle


@pytest.mark.parametrize("pause", [0.5, 30.0, 3600.0])
async def test_activity_retry_due_by_a_clock_jump_is_available(place: Place, pause: float) -> None:
    """Both the alarm of the run and the tick can notice the jump first."""
    handle = await _with_retry(place, pause)
    place.set_clock(2 * 3600.0)
    async with asyncio.timeout(LIMIT):  # on this clock no time passes: it is there, or never comes
        again = await handle.poll_activity()
    assert isinstance(again, ActivityTask)
    assert again.attempt == 2


async def test_task_retry_due_by_a_clock_jump_is_available(place: Place) -> None:
    handle = await place.open_handle()
    run_id = await place.start()
    await fail_task_twice(handle, run_id)
    place.set_clock(2 * 3600.0)
    async with asyncio.timeout(LIMIT):
        assert (await handle.poll_activation()).run_id == run_id


async def test_activity_retry_keeps_its_backoff_when_a_clock_jump_is_reverted(place: Place) -> None:
    handle = await _with_retry(place, 30.0)
    place.set_clock(3600.0)
    assert place.engine.queues.waiting_attempts()
    place.set_clock(0.0)
    assert not place.engine.queues.waiting_attempts()
    taking = asyncio.create_task(handle.poll_activity())
    place.pass_time(31.0)
    (record,) = place.engine.runs.records()
    place.engine.runs.timers.elapse(record)
    async with asyncio.timeout(LIMIT):
        again = await taking
    assert isinstance(again, ActivityTask)
    assert again.attempt == 2


async def test_activity_timeout_is_restored_when_a_clock_jump_is_reverted(place: Place) -> None:
    handle = await place.open_handle()
    run_id = await place.start()
    await handle.poll_activation()
    await handle.complete_activation(c.Succeeded(run_id, (activity(),)))
    await handle.poll_activity()
    record = place.engine.runs.in_memory(run_id)
    assert record is not None
    (attempt,) = record.run.activities.values()
    due = attempt.started_ns + 60 * 10**9
    place.set_clock(3 * 3600.0 - 0.5)
    record.wakes.put_off(record.run.activities, place.engine.clock.now_ns() + 5 * 10**9)
    place.set_clock(0.0)
    assert record.wakes.next_ns(record.run, place.engine.clock.now_ns()) == due


async def test_local_retry_keeps_its_backoff_when_a_clock_jump_is_reverted(place: Place) -> None:
    handle = await place.open_handle()
    place.set_clock(3 * 3600.0)
    run_id = await place.start()
    await handle.poll_activation()
    rule = RetryRule(initial_interval=0.01, backoff_coefficient=1.0)
    options = {"start_to_close_timeout": 60.0, "retry_policy": rule}
    command = made(c.ScheduleLocalActivity, seq=1, activity_id="1", activity_type="a", **options)
    await handle.complete_activation(c.Succeeded(run_id, (command,)))
    first = await handle.poll_activity()
    await handle.complete_activity(AttemptFailed(first.token, app_failure("not yet")))
    place.set_clock(0.0)
    place.watch.passed += 0.1
    again = await handle.poll_activity()
    assert isinstance(again, ActivityTask)
    assert again.attempt == 2


@pytest.mark.parametrize("restarted", [False, True])
async def test_debounce_keeps_its_delay_when_a_clock_jump_is_reverted(restarted: bool) -> None:
    store = memory_store()
    place = await Place.new(Watch(), store)
    place.set_clock(3 * 3600.0)
    call = limits.DebounceCall("ticket", "W", 5.0, None, "w", "q")
    arguments = (Payload(msgspec.json.encode(call)),)
    request = made(
        wf.StartWorkflow,
        workflow_id=f"{limits.BURSTS}k",
        workflow_type="W",
        task_queue="q",
        request_id="",
        signal_name="call",
        signal_arguments=arguments,
    )
    assert place.engine.keepers.bursts.debounce(request) is not None
    if restarted:  # by a process that has never seen the wrong clock
        place.watch.ahead = 0.0
        place = await Place.new(place.watch, store)
    else:
        place.set_clock(0.0)
    (burst,) = place.engine.keepers.view()
    assert burst.due_ns < place.engine.clock.now_ns() + 6 * 10**9
    await place.connection.close()
