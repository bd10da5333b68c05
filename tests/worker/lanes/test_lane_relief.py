"""Runs move away from a lane whose code does not return, long before it counts as hung."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pytest

from hourglass import Client, Worker, activity, workflow
from hourglass._evaluator.commands import ScheduleActivity, Succeeded
from hourglass._worker.health import debuggers
from hourglass._worker.lanes.hang_detector import HangDetector
from hourglass._worker.lanes.lane import Chore
from hourglass._worker.lanes.relief import is_worth_moving

from ..scripted import evict, on, settled, start
from .lane_world import Clock, completed, done, failure_kind, lanes, living_fibers, stage


async def test_runs_move_from_a_blocked_lane_to_a_spare_lane():
    fibers = living_fibers()
    async with lanes() as world:
        await world.evaluate(start("old", "adds", "old"))
        await world.block("slow")
        world.submit(on("old", done(1, 10)))
        world.submit(start("new", "adds", "new"))
        world.advance_finely()
        await settled(lambda: len(world.answers("old")) == 2 and world.answers("new"))
        assert await world.evaluate(on("old", done(2, 20))) == completed("old", 30)
        assert world.current_run("lane-0") == "slow"
        assert len(world.answers("slow")) == 1  # the completion of its start
        stage.go.set()
        await settled(lambda: len(world.answers("slow")) == 2)
        assert await world.evaluate(on("slow", done(2))) == completed("slow", 0)
        assert stage.threads == {
            "old": ["lane-0", "lane-0+1"],
            "slow": ["lane-0"],
            "new": ["lane-0+1"],
        }
        assert world.replaced == []
    assert living_fibers() == fibers
    assert stage.ended.count("old") == 2  # also its first fibers, on the lane that created them


async def test_activations_of_the_blocking_run_stay_on_its_lane():
    async with lanes() as world:
        await world.block("slow")
        world.submit(on("slow", done(2, 7)))
        world.submit(start("other", "adds", "other"))
        world.advance_finely()
        await settled(lambda: world.answers("other"))
        assert len(world.answers("slow")) == 1
        stage.go.set()
        await settled(lambda: len(world.answers("slow")) == 3)
        assert world.answers("slow")[-1] == completed("slow", 7)


async def test_queued_activations_of_a_moved_run_are_evaluated_in_order():
    async with lanes() as world:
        await world.evaluate(start("r", "adds", "r"))
        await world.block("slow")
        world.submit(on("r", done(1, 1)))
        world.submit(on("r", done(2, 2)))
        world.submit(evict("r"))
        world.advance_finely()
        await settled(lambda: len(world.answers("r")) == 4)
        (scheduled,) = world.answers("r")[1].commands
        assert isinstance(scheduled, ScheduleActivity)
        assert world.answers("r")[2:] == [completed("r", 3), Succeeded("r")]
        assert failure_kind(await world.evaluate(on("r", done(3)))) == "RunNotCached"


def test_run_with_a_long_journal_moves_after_a_longer_wait():
    """Moving executes the journal again, so the wait grows with its length."""
    assert is_worth_moving(0.04, 0)
    assert is_worth_moving(0.04, 2000)
    assert not is_worth_moving(0.04, 3000)
    assert is_worth_moving(1.0, 50_000)


async def test_blocked_lane_without_queued_runs_gets_no_spare_lane():
    async with lanes() as world:
        await world.block("slow")
        world.advance_finely(1.0)
        assert [lane.name for lane in world.lanes.status()] == ["lane-0"]


async def test_idle_regular_lane_is_used_before_a_spare_lane():
    async with lanes(count=2) as world:
        await world.evaluate(start("a", "adds", "a"))  # on lane-0
        await world.evaluate(start("b", "adds", "b"))  # on lane-1
        await world.block("slow")  # on lane-0
        world.submit(on("a", done(1, 1)))
        world.advance_finely()
        await settled(lambda: len(world.answers("a")) == 2)
        await world.evaluate(start("c", "adds", "c"))
        assert stage.threads["a"] == ["lane-0", "lane-1"]
        assert stage.threads["c"] == ["lane-1"]
        assert len(world.lanes.status()) == 2


async def test_number_of_spare_lanes_is_bounded():
    async with lanes(max_spare_lanes=2) as world:
        await world.block("slow-0")
        for number in range(1, 3):
            world.submit(start(f"slow-{number}", "blocks", f"slow-{number}"))
            world.advance_finely()
            await settled(lambda name=f"slow-{number}": world.answers(name))
            world.submit(on(f"slow-{number}", done(1)))
            await world.begun(f"slow-{number}")
        world.submit(start("other", "adds", "other"))
        world.advance_finely(1.0)
        assert [lane.name for lane in world.lanes.status()] == ["lane-0", "lane-0+1", "lane-0+2"]
        assert not world.answers("other")
        stage.go.set()
        await settled(lambda: world.answers("other"))


async def test_idle_spare_lane_ends_and_returns_its_runs():
    async with lanes() as world:
        await world.evaluate(start("r", "adds", "r"))
        await world.block("slow")
        world.submit(on("r", done(1, 1)))
        world.advance_finely()
        await settled(lambda: len(world.answers("r")) == 2)
        stage.go.set()
        await settled(lambda: len(world.answers("slow")) == 2)
        counted = sum(lane_counts.activations for lane_counts in world.lanes.counts())
        world.clock.now += 6
        world.lanes.check()
        await settled(lambda: world.lanes.check() or len(world.lanes.status()) == 1)
        assert world.lanes.status()[0].runs == 2
        assert sum(lane_counts.activations for lane_counts in world.lanes.counts()) == counted
        assert await world.evaluate(on("r", done(2, 2))) == completed("r", 3)
        assert stage.threads["r"] == ["lane-0", "lane-0+1", "lane-0"]


async def test_spare_lane_that_hangs_while_unwinding_is_replaced():
    async with lanes() as world:
        await world.block("slow")
        world.submit(start("r", "hangs_while_unwound", "r"))
        world.advance_finely()
        await settled(lambda: world.answers("r"))
        world.clock.now += 6
        world.lanes.check()
        await world.begun("r")
        stage.go.set()
        world.advance(3)
        assert any("WorkflowHung" in why for _, why in world.replaced)
        stage.hang = False
        await settled(lambda: world.lanes.check() or len(world.lanes.status()) == 1)


async def test_replacing_a_hung_lane_does_not_fail_runs_that_moved():
    async with lanes() as world:
        await world.evaluate(start("r", "adds", "r"))
        await world.block("slow")
        world.submit(on("r", done(1, 1)))
        world.advance_finely()
        await settled(lambda: len(world.answers("r")) == 2)
        world.advance(3)
        assert failure_kind(world.answers("slow")[-1]) == "WorkflowHung"
        assert await world.evaluate(on("r", done(2, 2))) == completed("r", 3)
        assert world.replaced[0][0] == "lane-0"


async def test_runs_do_not_move_while_a_debugger_is_active():
    """The next run would stop at the same breakpoint, on another thread of the same terminal."""
    async with lanes() as world:
        await world.block("slow")
        thread_id = world.lanes._places["lane-0"].lane.thread_id
        debuggers.stopped_threads.add(thread_id)
        world.submit(start("other", "adds", "other"))
        world.advance_finely(1.0)
        assert [lane.name for lane in world.lanes.status()] == ["lane-0"]
        debuggers.activation_ended(thread_id)
        world.advance_finely()
        await settled(lambda: world.answers("other"))


async def test_runs_of_a_closed_handle_do_not_move():
    async with lanes() as world:
        await world.evaluate(start("r", "adds", "r"), generation=1)
        await world.block("slow")
        world.submit(on("r", done(1, 1)), generation=1)
        world.lanes.forget_older(2)
        world.advance_finely()
        assert len(world.lanes.status()) == 1
        stage.go.set()
        await settled(lambda: len(world.answers("r")) == 2)


@dataclass(eq=False)
class BusyLane:
    """A lane as a `HangDetector` without a timeout sees it."""

    busy: Chore | None
    thread_id: int | None = field(default=None)


def test_time_of_a_suspended_process_does_not_count_as_delay():
    clock = Clock()
    detector, lane = HangDetector(None, clock), BusyLane(Chore(print))
    assert detector.check([lane]).delayed == {}
    clock.now += 60
    lane.busy = Chore(print)
    assert detector.check([lane]).delayed == {}
    clock.now += 0.05
    assert detector.check([lane]).delayed == {lane: pytest.approx(0.05)}
    lane.busy = None
    assert detector.check([lane]).delayed == {}


# --- a complete worker ----------------------------------------------------------------------------------------------------

go = threading.Event()
executed: list[str] = []


@activity.defn
def increase(number: int) -> int:
    return number + 1


@workflow.defn
def blocks_its_lane() -> str:
    executed.append("slow")
    go.wait(60)
    return "slow"


@workflow.defn
def healthy(number: int) -> int:
    for _ in range(3):
        number = increase(number)
        workflow.sleep(0.001)
    return number


def test_workflows_complete_while_others_block_their_lanes():
    go.clear()
    executed.clear()
    with (
        Client.connect("local:") as client,
        Worker(
            client,
            workflows=[blocks_its_lane, healthy],
            activities=[increase],
            deadlock_timeout=None,
            verify="off",
        ),
    ):
        slow = [client.start_workflow(blocks_its_lane, id=f"slow-{number}") for number in range(3)]
        handles = [client.start_workflow(healthy, number, id=f"w-{number}") for number in range(20)]
        assert [handle.result() for handle in handles] == [number + 3 for number in range(20)]
        go.set()
        assert [handle.result() for handle in slow] == ["slow"] * 3
    assert executed == ["slow"] * 3
