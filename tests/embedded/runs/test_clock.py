"""The wall clock may be set forward or back, for good or for a moment: time follows, it is logged, and nothing is
deleted by it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import cases
from tests.embedded.memory_world import SECOND
from tests.embedded.stores import memory_store
from tests.polled import PolledEngine
from tests.specs import made

from hourglass._contract.handle import HandleConfig
from hourglass._contract.workflows import StartWorkflow
from hourglass._embedded import RealClock
from hourglass._embedded.clock import CONFIRMED, TrustedTime
from hourglass._embedded.store.store import Store
from hourglass._evaluator import commands as c
from hourglass.client import IdReusePolicy
from hourglass.errors import WorkflowAlreadyStartedError

from ..memory_world import World, open_engine, settle, text

HOUR = 3600 * SECOND
DAY = 24 * HOUR
TICK = SECOND // 20
MILLI = SECOND // 1000


class Clocks:
    """A wall clock and a monotonic clock set by the test, and the clock that reads them."""

    def __init__(self, wall: int = 100 * DAY) -> None:
        self.wall, self.monotonic = wall, 7 * HOUR
        self.clock = self.restart()

    def restart(self) -> RealClock:
        """Return the clock of a new process."""
        self.clock = RealClock(lambda: self.wall, lambda: self.monotonic)
        return self.clock

    def advance(self, passed: int, jump: int = 0) -> int:
        """Let time pass and set the wall clock by `jump`. Return the time."""
        self.monotonic += passed
        self.wall += passed + jump
        return self.clock.now_ns()

    def advance_in_steps(self, passed: int) -> None:
        """Let time pass, and read the clock all the while."""
        for _ in range(100):
            self.advance(passed // 100)


def test_time_follows_the_wall_clock() -> None:
    clocks = Clocks()
    for drift in (0, 1000, SECOND // 100, -SECOND // 50, 0):
        clocks.advance(SECOND, drift)
    clocks.advance_in_steps(SECOND)
    assert clocks.clock.now_ns() == clocks.wall
    assert clocks.clock.trusted_ns == clocks.wall
    assert clocks.clock.jumps == 0


def test_reverted_forward_jump_has_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    clocks = Clocks()
    with caplog.at_level(logging.WARNING, "hourglass"):
        assert clocks.advance(SECOND, 5 * HOUR) == clocks.wall
        assert clocks.advance(2 * SECOND) == clocks.wall
        assert clocks.advance(TICK, -5 * HOUR) == clocks.wall
    assert clocks.clock.jumps == 2
    forward, back = [record.getMessage() for record in caplog.records]
    assert "jumped forward by 5:00:00" in forward
    assert "jumped back by 5:00:00" in back
    assert clocks.clock.trusted_ns == clocks.wall


def test_time_continues_when_the_wall_clock_is_set_back(caplog: pytest.LogCaptureFixture) -> None:
    """Time runs a tenth slower until the wall clock has caught up."""
    clocks = Clocks()
    clocks.advance(TICK)
    before = clocks.clock.now_ns()
    with caplog.at_level(logging.WARNING, "hourglass"):
        times = [clocks.advance(TICK, -HOUR), *(clocks.advance(SECOND) for _ in range(20))]
    assert times == sorted(times)
    assert times[0] > before
    assert times[-1] - before == (20 * SECOND + TICK) * 9 // 10
    (message,) = [record.getMessage() for record in caplog.records]
    assert "jumped back by 1:00:00" in message
    clocks.advance_in_steps(11 * HOUR)
    assert clocks.clock.now_ns() == clocks.wall


@pytest.mark.parametrize(("ahead", "back"), [(0, HOUR), (0, SECOND // 10), (HOUR, SECOND // 10)])
def test_slowed_time_never_goes_back(ahead: int, back: int) -> None:
    """Callers that wait for a time would otherwise wait again, without a notification."""
    clocks = Clocks()
    clocks.advance(TICK, ahead)
    clocks.advance(TICK)
    times = [clocks.advance(MILLI, -back), *(clocks.advance(MILLI) for _ in range(500))]
    assert times == sorted(set(times))
    assert times[-1] - times[0] < 460 * MILLI


def test_lasting_clock_jump_is_trusted_after_hours() -> None:
    """Trusted time follows the monotonic clock until then."""
    clocks = Clocks()
    clocks.advance(TICK, 31 * DAY)
    assert clocks.clock.trusted_ns == clocks.wall - 31 * DAY
    clocks.advance_in_steps(CONFIRMED // 2)
    assert clocks.clock.trusted_ns == clocks.wall - 31 * DAY
    clocks.advance(TICK, HOUR)  # a second jump restarts the count of hours
    clocks.advance_in_steps(CONFIRMED - HOUR)
    assert clocks.clock.trusted_ns == clocks.wall - 31 * DAY - HOUR
    clocks.advance_in_steps(2 * HOUR)
    assert clocks.clock.trusted_ns == clocks.wall


def resume(clocks: Clocks, trusted_time: TrustedTime | None, latest: int = 0) -> RealClock:
    clock = clocks.restart()
    clock.resume(latest, trusted_time, 3 * DAY)
    return clock


def test_restart_continues_from_trusted_time() -> None:
    """A jump before or during the restart is not trusted."""
    clocks = Clocks()
    clocks.advance(TICK, 5 * HOUR)
    trusted_time = clocks.clock.trusted_time()
    assert trusted_time is not None
    assert trusted_time.trusted_ns == clocks.wall - 5 * HOUR
    clocks.advance(TICK, -5 * HOUR)
    clock = resume(clocks, trusted_time, latest=clocks.wall + 5 * HOUR)  # events of the jump are in the store
    assert clock.now_ns() == clocks.wall
    trusted_time = clock.trusted_time()
    assert trusted_time is not None
    clocks.wall += 31 * DAY  # while no process ran
    clock = resume(clocks, trusted_time)
    assert clock.now_ns() == clocks.wall  # timers are served by it
    assert clock.trusted_ns <= clocks.wall - 31 * DAY  # and nothing is deleted by it
    clocks.advance_in_steps(CONFIRMED - HOUR)
    assert clock.trusted_ns <= clocks.wall - 31 * DAY
    clocks.advance_in_steps(2 * HOUR)
    assert clock.trusted_ns == clocks.wall


def test_time_continues_after_a_restart_with_the_wall_clock_set_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clocks = Clocks()
    trusted_time = TrustedTime(clocks.wall + HOUR)
    with caplog.at_level(logging.WARNING, "hourglass"):
        clock = resume(clocks, trusted_time)
    assert clock.now_ns() == clocks.wall + HOUR
    assert "1:00:00 behind" in caplog.text
    assert clocks.advance(10 * SECOND) == clocks.wall + HOUR - SECOND


def test_downtime_within_the_tolerance_is_trusted_after_a_restart() -> None:
    clocks = Clocks()
    trusted_time = clocks.clock.trusted_time()
    clocks.wall += 2 * DAY
    clock = resume(clocks, trusted_time)
    assert clock.now_ns() == clock.trusted_ns == clocks.wall


def test_pause_between_two_clock_readings_is_no_jump() -> None:
    monotonic = iter([0, 0, 0, SECOND, 5 * SECOND, 5 * SECOND, 5 * SECOND + 10])
    wall = iter([100, 5 * SECOND + 100, 5 * SECOND + 100])
    clock = RealClock(lambda: next(wall), lambda: next(monotonic))
    next(monotonic)
    assert clock.now_ns() == SECOND + 100
    assert clock.now_ns() == 5 * SECOND + 100
    assert clock.jumps == 0


steps = st.lists(
    st.tuples(st.integers(TICK, HOUR), st.one_of(st.just(0), st.integers(-40 * DAY, 40 * DAY))), max_size=30
)


@settings(max_examples=cases(100, 2000), deadline=None)
@given(steps)
def test_trusted_time_is_sound_for_any_wall_clock(moves: list[tuple[int, int]]) -> None:
    """Trusted time never goes back, never exceeds time, and grows no faster than real time unless confirmed."""
    clocks = Clocks()
    trusted, steady = clocks.clock.trusted_ns, CONFIRMED
    for passed, jump in moves:
        now = clocks.advance(passed, jump)
        steady = 0 if abs(jump) > SECOND else steady + passed
        after = clocks.clock.trusted_ns
        assert trusted <= after <= now
        if steady < CONFIRMED:
            assert after - trusted <= passed + SECOND
        assert now >= clocks.wall - SECOND
        trusted = after


# --- an engine by such a clock --------------------------------------------------------------------------------


async def open_world(clocks: Clocks, store: Store) -> World:
    """Open an engine on these clocks, with upkeep."""
    connection = await open_engine(clocks.restart(), store)
    handle = PolledEngine(await connection.open_handle(HandleConfig(task_queue="q", identity="worker")))
    clock: Any = clocks.clock
    return World(connection, clock, handle)


async def tick(world: World, clocks: Clocks) -> None:
    """Let a tick pass: the engine and sleeping timers read the clock."""
    clocks.advance(TICK)
    world.engine._upkeep.tick()
    if clocks.clock._timers is not None:
        clocks.clock._timers._wake()
    await settle()


async def complete_workflow(world: World, workflow_id: str) -> None:
    run_id = await world.start_run(c.CompleteRun(text("paid")), workflow_id=workflow_id)
    await world.activation()
    await world.complete(run_id)


async def test_temporary_clock_jump_does_not_trigger_retention() -> None:
    clocks, store = Clocks(), memory_store()
    world = await open_world(clocks, store)
    await complete_workflow(world, "paid")
    again = made(
        StartWorkflow,
        workflow_id="paid",
        request_id="again",
        workflow_type="W",
        task_queue="q",
        id_reuse_policy=IdReusePolicy.REJECT_DUPLICATE,
    )
    clocks.advance(TICK, 31 * DAY)
    for _ in range(3):
        await tick(world, clocks)
    await world.close()
    world = await open_world(clocks, store)
    for _ in range(3):
        await tick(world, clocks)
    with pytest.raises(WorkflowAlreadyStartedError):
        await world.call(again)
    clocks.advance(TICK, -31 * DAY)
    await tick(world, clocks)
    with pytest.raises(WorkflowAlreadyStartedError):
        await world.call(again)


async def test_clock_jump_after_a_kill_is_not_trusted() -> None:
    """Events written by clients during the jump do not confirm it."""
    clocks, store = Clocks(), memory_store()
    world = await open_world(clocks, store)
    await complete_workflow(world, "paid")
    world.crash()
    clocks.wall += 31 * DAY
    client = await open_engine(clocks.restart(), store, recovered=False)
    await client.call(made(StartWorkflow, workflow_id="w", request_id="1", workflow_type="W", task_queue="q"))
    world = await open_world(clocks, store)
    for _ in range(3):
        await tick(world, clocks)
    assert (await store.count("WorkflowId = 'paid'")).count == 1


async def test_retention_deletes_closed_runs_after_a_month() -> None:
    clocks, store = Clocks(), memory_store()
    world = await open_world(clocks, store)
    await complete_workflow(world, "old")
    clocks.advance_in_steps(29 * DAY)
    await tick(world, clocks)
    assert (await store.count("")).count == 1
    clocks.advance_in_steps(2 * DAY)
    await tick(world, clocks)
    assert (await store.count("")).count == 0


def event_times(world: World, workflow_id: str) -> list[int]:
    record = world.record(workflow_id)
    return [event.time_ns for event in record.events]


async def test_timer_started_during_a_jump_restarts_when_it_is_reverted() -> None:
    """Timers from before the jump keep their times, and event times never go back."""
    clocks, store = Clocks(), memory_store()
    world = await open_world(clocks, store)
    start = clocks.wall
    before = await world.start_run(c.StartTimer(1, 8 * HOUR), workflow_id="before")
    clocks.advance(TICK, 5 * HOUR)
    await tick(world, clocks)
    within = await world.start_run(c.StartTimer(1, 10 * SECOND), workflow_id="within")
    clocks.advance(TICK, -5 * HOUR)
    await tick(world, clocks)
    timers = {
        run_id: next(iter(record.run.timers.values())).due_ns
        for run_id in (before, within)
        if (record := world.engine.record(run_id)) is not None
    }
    assert timers[before] == start + 8 * HOUR
    assert clocks.wall < timers[within] <= clocks.wall + 10 * SECOND
    clocks.advance(11 * SECOND)
    await tick(world, clocks)
    assert "TimerFired" in world.kinds("within")
    assert "TimerFired" not in world.kinds("before")
    assert event_times(world, "within") == sorted(event_times(world, "within"))


async def test_timer_stored_during_a_jump_fires_after_a_restart() -> None:
    clocks, store = Clocks(), memory_store()
    world = await open_world(clocks, store)
    clocks.advance(TICK, 5 * HOUR)
    await tick(world, clocks)
    await world.start_run(c.StartTimer(1, 10 * SECOND), workflow_id="within")
    await world.close()
    clocks.wall -= 5 * HOUR
    world = await open_world(clocks, store)
    await settle()
    clocks.advance(11 * SECOND)
    await tick(world, clocks)
    await settle()
    assert "TimerFired" in world.kinds("within")


async def test_internal_delays_ignore_the_wall_clock() -> None:
    clocks = Clocks()
    called = [asyncio.Event(), asyncio.Event()]
    clocks.clock.call_after(0, called[0].set)
    later = clocks.clock.call_after(HOUR, called[1].set)
    clocks.advance(TICK, 5 * HOUR)
    await called[0].wait()
    assert not called[1].is_set()
    later()
