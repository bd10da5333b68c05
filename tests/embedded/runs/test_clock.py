"""The wall clock may be set, forward or back, for good or for a moment: time follows, says so, and nothing is deleted by it."""

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
from hourglass._embedded.clock import CONFIRMED, Vouched
from hourglass._embedded.store.store import Store
from hourglass._evaluator import commands as c
from hourglass.client import IdReusePolicy
from hourglass.errors import WorkflowAlreadyStartedError

from ..memory_world import World, open_engine, settle, text

HOUR = 3600 * SECOND
DAY = 24 * HOUR
TICK = SECOND // 20
MILLI = SECOND // 1000


class Hands:
    """A wall clock and a monotonic clock in the test's hands, and the clock that reads them."""

    def __init__(self, wall: int = 100 * DAY) -> None:
        self.wall, self.monotonic = wall, 7 * HOUR
        self.clock = self.restarted()

    def restarted(self) -> RealClock:
        """The clock of a new process."""
        self.clock = RealClock(lambda: self.wall, lambda: self.monotonic)
        return self.clock

    def go(self, passed: int, jump: int = 0) -> int:
        """So much passes, and the wall clock is set by so much; what time it is then."""
        self.monotonic += passed
        self.wall += passed + jump
        return self.clock.now_ns()

    def go_far(self, passed: int) -> None:
        """So much passes, and the clock is looked at all the while."""
        for _ in range(100):
            self.go(passed // 100)


def test_time_follows_the_wall_clock() -> None:
    """Without jumps time is the wall's, small differences of the two clocks included."""
    hands = Hands()
    for drift in (0, 1000, SECOND // 100, -SECOND // 50, 0):
        hands.go(SECOND, drift)
    hands.go_far(SECOND)
    assert hands.clock.now_ns() == hands.wall
    assert hands.clock.trusted_ns == hands.wall
    assert hands.clock.jumps == 0


def test_forward_jump_that_is_reverted_has_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    """Five hours ahead for two seconds: time follows both ways, and both are logged with their size."""
    hands = Hands()
    with caplog.at_level(logging.WARNING, "hourglass"):
        assert hands.go(SECOND, 5 * HOUR) == hands.wall
        assert hands.go(2 * SECOND) == hands.wall
        assert hands.go(TICK, -5 * HOUR) == hands.wall
    assert hands.clock.jumps == 2
    forward, back = [record.getMessage() for record in caplog.records]
    assert "jumped forward by 5:00:00" in forward
    assert "jumped back by 5:00:00" in back
    assert hands.clock.trusted_ns == hands.wall


def test_wall_clock_set_back_does_not_stop_time(caplog: pytest.LogCaptureFixture) -> None:
    """Below what is trusted time goes on, a tenth slower, until the wall has caught up; it is logged once."""
    hands = Hands()
    hands.go(TICK)
    before = hands.clock.now_ns()
    with caplog.at_level(logging.WARNING, "hourglass"):
        times = [hands.go(TICK, -HOUR), *(hands.go(SECOND) for _ in range(20))]
    assert times == sorted(times)
    assert times[0] > before
    assert times[-1] - before == (20 * SECOND + TICK) * 9 // 10
    (said,) = [record.getMessage() for record in caplog.records]
    assert "jumped back by 1:00:00" in said
    hands.go_far(11 * HOUR)
    assert hands.clock.now_ns() == hands.wall


@pytest.mark.parametrize(("ahead", "back"), [(0, HOUR), (0, SECOND // 10), (HOUR, SECOND // 10)])
def test_slowed_time_never_goes_back(ahead: int, back: int) -> None:
    """However often it is asked for: a wall clock that is set back by much, or slewed by little, takes nothing back, whether
    it was trusted or not. What waits for a moment that has come would wait, and nothing would say that it has come again.
    """
    hands = Hands()
    hands.go(TICK, ahead)
    hands.go(TICK)
    times = [hands.go(MILLI, -back), *(hands.go(MILLI) for _ in range(500))]
    assert times == sorted(set(times))
    assert times[-1] - times[0] < 460 * MILLI


def test_lasting_jump_is_trusted_after_hours() -> None:
    """Trusted time goes on as the monotonic clock does, and takes a jump in only after hours without another."""
    hands = Hands()
    hands.go(TICK, 31 * DAY)
    assert hands.clock.trusted_ns == hands.wall - 31 * DAY
    hands.go_far(CONFIRMED // 2)
    assert hands.clock.trusted_ns == hands.wall - 31 * DAY
    hands.go(TICK, HOUR)  # again: the hours are counted anew
    hands.go_far(CONFIRMED - HOUR)
    assert hands.clock.trusted_ns == hands.wall - 31 * DAY - HOUR
    hands.go_far(2 * HOUR)
    assert hands.clock.trusted_ns == hands.wall


def resumed(hands: Hands, vouched: Vouched | None, latest: int = 0) -> RealClock:
    clock = hands.restarted()
    clock.resume(latest, vouched, 3 * DAY)
    return clock


def test_restart_continues_from_trusted_time() -> None:
    """Neither a jump that was taken back before a restart nor one that was made before it is believed."""
    hands = Hands()
    hands.go(TICK, 5 * HOUR)
    vouched = hands.clock.vouched()
    assert vouched is not None
    assert vouched.trusted_ns == hands.wall - 5 * HOUR
    hands.go(TICK, -5 * HOUR)
    clock = resumed(hands, vouched, latest=hands.wall + 5 * HOUR)  # events of the jump are in the store
    assert clock.now_ns() == hands.wall
    vouched = clock.vouched()
    assert vouched is not None
    hands.wall += 31 * DAY  # while no process ran
    clock = resumed(hands, vouched)
    assert clock.now_ns() == hands.wall  # timers are served by it
    assert clock.trusted_ns <= hands.wall - 31 * DAY  # and nothing is deleted by it
    hands.go_far(CONFIRMED - HOUR)
    assert clock.trusted_ns <= hands.wall - 31 * DAY
    hands.go_far(2 * HOUR)
    assert clock.trusted_ns == hands.wall


def test_wall_clock_set_back_before_a_restart_does_not_stop_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After a restart, too, time goes on from what was trusted, and the log says why."""
    hands = Hands()
    vouched = Vouched(hands.wall + HOUR)
    with caplog.at_level(logging.WARNING, "hourglass"):
        clock = resumed(hands, vouched)
    assert clock.now_ns() == hands.wall + HOUR
    assert "1:00:00 behind" in caplog.text
    assert hands.go(10 * SECOND) == hands.wall + HOUR - SECOND


def test_ordinary_restart_is_trusted_at_once() -> None:
    """A night without a process is no jump: what a file of thirty days' retention tolerates is trusted."""
    hands = Hands()
    vouched = hands.clock.vouched()
    hands.wall += 2 * DAY
    clock = resumed(hands, vouched)
    assert clock.now_ns() == clock.trusted_ns == hands.wall


def test_pause_between_two_clock_readings_is_no_jump() -> None:
    """A thread that is not run between reading the one clock and the other has not seen a jump."""
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
    """Trusted time never goes back, never runs ahead of time, and grows by no more than passed unless long confirmed."""
    hands = Hands()
    trusted, steady = hands.clock.trusted_ns, CONFIRMED
    for passed, jump in moves:
        now = hands.go(passed, jump)
        steady = 0 if abs(jump) > SECOND else steady + passed
        after = hands.clock.trusted_ns
        assert trusted <= after <= now
        if steady < CONFIRMED:
            assert after - trusted <= passed + SECOND
        assert now >= hands.wall - SECOND
        trusted = after


# --- an engine by such a clock --------------------------------------------------------------------------------


async def engine_by(hands: Hands, store: Store) -> World:
    """An engine that looks after its runs, on these clocks."""
    connection = await open_engine(hands.restarted(), store)
    handle = PolledEngine(await connection.open_handle(HandleConfig(task_queue="q", identity="worker")))
    clock: Any = hands.clock
    return World(connection, clock, handle)


async def looked(world: World, hands: Hands) -> None:
    """A second has passed: the clock is looked at, and those who nap look too."""
    hands.go(TICK)
    world.engine._upkeep.tick()
    if hands.clock._timers is not None:
        hands.clock._timers._wake()
    await settle()


async def closed(world: World, workflow_id: str) -> None:
    run_id = (await world.start(workflow_id)).run_id
    await world.activation()
    await world.complete(run_id, c.CompleteRun(text("paid")))
    await world.activation()
    await world.complete(run_id)


async def test_clock_jump_does_not_trigger_retention() -> None:
    """A month ahead for a moment, over restarts too, deletes nothing: an id that was paid is refused as ever."""
    hands, store = Hands(), memory_store()
    world = await engine_by(hands, store)
    await closed(world, "paid")
    again = made(
        StartWorkflow,
        workflow_id="paid",
        request_id="again",
        workflow_type="W",
        task_queue="q",
        id_reuse_policy=IdReusePolicy.REJECT_DUPLICATE,
    )
    hands.go(TICK, 31 * DAY)
    for _ in range(3):
        await looked(world, hands)
    await world.close()
    world = await engine_by(hands, store)
    for _ in range(3):
        await looked(world, hands)
    with pytest.raises(WorkflowAlreadyStartedError):
        await world.call(again)
    hands.go(TICK, -31 * DAY)
    await looked(world, hands)
    with pytest.raises(WorkflowAlreadyStartedError):
        await world.call(again)
    await world.close()


async def test_jump_after_a_kill_is_not_trusted() -> None:
    """A process that was killed has said in time how late it was: events that clients write during a jump prove nothing."""
    hands, store = Hands(), memory_store()
    world = await engine_by(hands, store)
    await closed(world, "paid")
    world.engine.runs.stop()  # as if killed: nothing more is written
    world.engine._upkeep.close()
    hands.wall += 31 * DAY
    client = await open_engine(hands.restarted(), store, recovered=False)
    await client.call(made(StartWorkflow, workflow_id="w", request_id="1", workflow_type="W", task_queue="q"))
    world = await engine_by(hands, store)
    for _ in range(3):
        await looked(world, hands)
    assert (await store.count("WorkflowId = 'paid'")).count == 1
    await world.close()


async def test_retention_after_a_real_month() -> None:
    """Retention works as ever by a clock that does not jump."""
    hands, store = Hands(), memory_store()
    world = await engine_by(hands, store)
    await closed(world, "old")
    hands.go_far(29 * DAY)
    await looked(world, hands)
    assert (await store.count("")).count == 1
    hands.go_far(2 * DAY)
    await looked(world, hands)
    assert (await store.count("")).count == 0
    await world.close()


def times(world: World, workflow_id: str) -> list[int]:
    record = world.engine.current(workflow_id)
    assert record is not None
    return [event.time_ns for event in record.events]


async def test_timers_follow_the_clock_back_but_events_do_not() -> None:
    """A timer from before a jump keeps its time, one from within begins again; no event is earlier than the one before."""
    hands, store = Hands(), memory_store()
    world = await engine_by(hands, store)
    start = hands.wall
    before = (await world.start("before")).run_id
    await world.activation()
    await world.complete(before, c.StartTimer(1, 8 * HOUR))
    hands.go(TICK, 5 * HOUR)
    await looked(world, hands)
    within = (await world.start("within")).run_id
    await world.activation()
    await world.complete(within, c.StartTimer(1, 10 * SECOND))
    hands.go(TICK, -5 * HOUR)
    await looked(world, hands)
    timers = {
        run_id: next(iter(record.run.timers.values())).due_ns
        for run_id in (before, within)
        if (record := world.engine.record(run_id)) is not None
    }
    assert timers[before] == start + 8 * HOUR
    assert hands.wall < timers[within] <= hands.wall + 10 * SECOND
    hands.go(11 * SECOND)
    await looked(world, hands)
    assert "TimerFired" in world.kinds("within")
    assert "TimerFired" not in world.kinds("before")
    assert times(world, "within") == sorted(times(world, "within"))
    await world.close()


async def test_timer_stored_during_a_jump_fires_after_a_restart() -> None:
    """A timer of ten seconds that was started five hours ahead does not sleep five hours when the clock is right again."""
    hands, store = Hands(), memory_store()
    world = await engine_by(hands, store)
    hands.go(TICK, 5 * HOUR)
    await looked(world, hands)
    run_id = (await world.start("within")).run_id
    await world.activation()
    await world.complete(run_id, c.StartTimer(1, 10 * SECOND))
    await world.close()
    hands.wall -= 5 * HOUR
    world = await engine_by(hands, store)
    await settle()
    hands.go(11 * SECOND)
    await looked(world, hands)
    await settle()
    assert "TimerFired" in world.kinds("within")
    await world.close()


async def test_internal_delays_ignore_the_wall_clock() -> None:
    """What is to be done after a while, such as the next heartbeat, is done after that while, however the wall is set."""
    hands = Hands()
    called = [asyncio.Event(), asyncio.Event()]
    hands.clock.call_after(0, called[0].set)
    later = hands.clock.call_after(HOUR, called[1].set)
    hands.go(TICK, 5 * HOUR)
    await called[0].wait()
    assert not called[1].is_set()
    later()
