"""Runs leave a lane whose code does not come back, long before it counts as hung, and the slow one keeps its place."""

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
from .lane_world import Clock, LaneWorld, completed, done, kind, living_fibers, stage, with_lanes


def look(world: LaneWorld, seconds: float = 0.1) -> None:
    """Let time pass as the timer sees it."""
    world.look_at_intervals(seconds)


async def blocked(world: LaneWorld, run_id: str = "slow") -> None:
    """Have a lane at code that does not come back."""
    await world.ask(start(run_id, "blocks", run_id))
    world.submit(on(run_id, done(1)))
    await world.begun(run_id)


def test_waiting_runs_leave_a_blocked_lane():
    """New and old runs are answered while the code still blocks; it then answers for itself, from the fibers it had."""

    async def script(world):
        await world.ask(start("old", "adds", "old"))
        await blocked(world)
        world.submit(on("old", done(1, 10)))
        world.submit(start("new", "adds", "new"))
        look(world)
        await settled(lambda: len(world.answers("old")) == 2 and world.answers("new"))
        assert await world.ask(on("old", done(2, 20))) == completed("old", 30)
        assert world.in_work("lane-0") == "slow"
        assert len(world.answers("slow")) == 1  # of its start
        stage.go.set()
        await settled(lambda: len(world.answers("slow")) == 2)
        assert await world.ask(on("slow", done(2))) == completed("slow", 0)
        assert stage.threads == {
            "old": ["lane-0", "lane-0+1"],
            "slow": ["lane-0"],
            "new": ["lane-0+1"],
        }
        assert world.replaced == []

    fibers = living_fibers()
    with_lanes(script)
    assert living_fibers() == fibers
    assert stage.ended.count("old") == 2  # its first fibers are unwound where they were made


def test_activations_of_the_slow_run_stay_behind_it():
    """Its activations stay behind it, in order; another run's do not."""

    async def script(world):
        await blocked(world)
        world.submit(on("slow", done(2, 7)))
        world.submit(start("other", "adds", "other"))
        look(world)
        await settled(lambda: world.answers("other"))
        assert len(world.answers("slow")) == 1
        stage.go.set()
        await settled(lambda: len(world.answers("slow")) == 3)
        assert world.answers("slow")[-1] == completed("slow", 7)

    with_lanes(script)


def test_waiting_activations_of_a_run_move_in_order():
    """Two activations of one run and its eviction are answered one after the other on the other lane."""

    async def script(world):
        await world.ask(start("r", "adds", "r"))
        await blocked(world)
        world.submit(on("r", done(1, 1)))
        world.submit(on("r", done(2, 2)))
        world.submit(evict("r"))
        look(world)
        await settled(lambda: len(world.answers("r")) == 4)
        (scheduled,) = world.answers("r")[1].commands
        assert isinstance(scheduled, ScheduleActivity)
        assert world.answers("r")[2:] == [completed("r", 3), Succeeded("r")]
        assert kind(await world.ask(on("r", done(3)))) == "RunNotCached"

    with_lanes(script)


def test_run_with_a_long_journal_moves_later():
    """Moving costs as much as executing its journal again: it waits about as long as that takes first."""
    assert is_worth_moving(0.04, 0)
    assert is_worth_moving(0.04, 2000)
    assert not is_worth_moving(0.04, 3000)
    assert is_worth_moving(1.0, 50_000)


def test_no_spare_lane_without_waiting_work():
    """Long work alone on its lane costs no thread."""

    async def script(world):
        await blocked(world)
        look(world, 1.0)
        assert [each.name for each in world.lanes.status()] == ["lane-0"]

    with_lanes(script)


def test_usual_lane_is_used_before_a_spare_one():
    """Where one of the usual lanes is free it takes what waits, and new runs."""

    async def script(world):
        await world.ask(start("a", "adds", "a"))  # on lane-0
        await world.ask(start("b", "adds", "b"))  # on lane-1
        await blocked(world)  # on lane-0
        world.submit(on("a", done(1, 1)))
        look(world)
        await settled(lambda: len(world.answers("a")) == 2)
        await world.ask(start("c", "adds", "c"))
        assert stage.threads["a"] == ["lane-0", "lane-1"]
        assert stage.threads["c"] == ["lane-1"]
        assert len(world.lanes.status()) == 2

    with_lanes(script, count=2)


def test_number_of_spare_lanes_is_bounded():
    """With as many blocked as there may be, the rest is answered when one of them comes back."""

    async def script(world):
        await blocked(world, "slow-0")
        for number in range(1, 3):
            world.submit(start(f"slow-{number}", "blocks", f"slow-{number}"))
            look(world)
            await settled(lambda name=f"slow-{number}": world.answers(name))
            world.submit(on(f"slow-{number}", done(1)))
            await world.begun(f"slow-{number}")
        world.submit(start("other", "adds", "other"))
        look(world, 1.0)
        assert [each.name for each in world.lanes.status()] == ["lane-0", "lane-0+1", "lane-0+2"]
        assert not world.answers("other")
        stage.go.set()
        await settled(lambda: world.answers("other"))

    with_lanes(script, max_spare_lanes=2)


def test_idle_spare_lane_ends_and_returns_its_runs():
    """They go on from their journals on the usual lane; what it has done is still counted."""

    async def script(world):
        await world.ask(start("r", "adds", "r"))
        await blocked(world)
        world.submit(on("r", done(1, 1)))
        look(world)
        await settled(lambda: len(world.answers("r")) == 2)
        stage.go.set()
        await settled(lambda: len(world.answers("slow")) == 2)
        counted = sum(each.activations for each in world.lanes.counts())
        world.clock.now += 6
        world.lanes.look()
        await settled(lambda: world.lanes.look() or len(world.lanes.status()) == 1)
        assert world.lanes.status()[0].runs == 2
        assert sum(each.activations for each in world.lanes.counts()) == counted
        assert await world.ask(on("r", done(2, 2))) == completed("r", 3)
        assert stage.threads["r"] == ["lane-0", "lane-0+1", "lane-0"]

    with_lanes(script)


def test_spare_lane_that_hangs_while_unwinding_is_replaced():
    """A `finally` that never ends keeps the thread, not the worker."""

    async def script(world):
        await blocked(world)
        world.submit(start("r", "never_leaves", "r"))
        look(world)
        await settled(lambda: world.answers("r"))
        world.clock.now += 6
        world.lanes.look()
        await world.begun("r")
        stage.go.set()
        world.pass_time(3)
        assert any("WorkflowHung" in why for _, why in world.replaced)
        stage.hang = False
        await settled(lambda: world.lanes.look() or len(world.lanes.status()) == 1)

    with_lanes(script)


def test_replaced_lane_fails_only_the_hung_run():
    """What has left stays where it is; what is behind the hung run still moves to the new lane."""

    async def script(world):
        await world.ask(start("r", "adds", "r"))
        await blocked(world)
        world.submit(on("r", done(1, 1)))
        look(world)
        await settled(lambda: len(world.answers("r")) == 2)
        world.pass_time(3)
        assert kind(world.answers("slow")[-1]) == "WorkflowHung"
        assert await world.ask(on("r", done(2, 2))) == completed("r", 3)
        assert world.replaced[0][0] == "lane-0"

    with_lanes(script)


def test_nothing_moves_while_a_debugger_is_active():
    """The next run would stop at the same breakpoint, on another thread and the same terminal."""

    async def script(world):
        await blocked(world)
        thread_id = world.lanes._places["lane-0"].lane.thread_id
        debuggers.stopped_threads.add(thread_id)
        world.submit(start("other", "adds", "other"))
        look(world, 1.0)
        assert [each.name for each in world.lanes.status()] == ["lane-0"]
        debuggers.activation_ended(thread_id)
        look(world)
        await settled(lambda: world.answers("other"))

    with_lanes(script)


def test_runs_of_a_closed_handle_do_not_move():
    """They are to be forgotten by the lane that has them: elsewhere that has been said already."""

    async def script(world):
        await world.ask(start("r", "adds", "r"), generation=1)
        await blocked(world)
        world.submit(on("r", done(1, 1)), generation=1)
        world.lanes.forget_older(2)
        look(world)
        assert len(world.lanes.status()) == 1
        stage.go.set()
        await settled(lambda: len(world.answers("r")) == 2)

    with_lanes(script)


@dataclass(eq=False)
class Busy:
    """A lane as far as a `HangDetector` without a timeout sees it."""

    busy: Chore | None
    thread_id: int | None = field(default=None)


def test_suspended_process_delays_no_lane():
    """Only what is seen at two looks counts: after a pause the work is news."""
    clock = Clock()
    detector, lane = HangDetector(None, clock), Busy(Chore(print))
    assert detector.look([lane]).delayed == {}
    clock.now += 60
    lane.busy = Chore(print)
    assert detector.look([lane]).delayed == {}
    clock.now += 0.05
    assert detector.look([lane]).delayed == {lane: pytest.approx(0.05)}
    lane.busy = None
    assert detector.look([lane]).delayed == {}


# --- a whole worker ----------------------------------------------------------------------------------------------------

go = threading.Event()
executed: list[str] = []


@activity.defn
def increase(number: int) -> int:
    return number + 1


@workflow.defn
def waits_for_a_lock() -> str:
    executed.append("slow")
    go.wait(60)
    return "slow"


@workflow.defn
def healthy(number: int) -> int:
    for _ in range(3):
        number = increase(number)
        workflow.sleep(0.001)
    return number


def test_healthy_runs_finish_beside_endless_ones():
    """Twenty workflows end though three block their lanes and nobody calls them hung; these end too, executed once."""
    go.clear()
    executed.clear()
    with (
        Client.connect("local:") as client,
        Worker(
            client,
            workflows=[waits_for_a_lock, healthy],
            activities=[increase],
            deadlock_timeout=None,
            verify="off",
        ),
    ):
        slow = [client.start_workflow(waits_for_a_lock, id=f"slow-{number}") for number in range(3)]
        handles = [client.start_workflow(healthy, number, id=f"w-{number}") for number in range(20)]
        assert [each.result() for each in handles] == [number + 3 for number in range(20)]
        go.set()
        assert [each.result() for each in slow] == ["slow"] * 3
    assert executed == ["slow"] * 3
