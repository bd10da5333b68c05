"""Lanes that hang, die or are killed are replaced, and nothing but the offender is hurt."""

from __future__ import annotations

import logging
import sys
import threading

import pytest

from hourglass._evaluator.commands import ScheduleActivity, Succeeded
from hourglass._worker.health import debuggers
from hourglass._worker.lanes.cache import CacheLimits, StateCache
from hourglass._worker.lanes.watcher import Watcher
from hourglass.errors import UsageError

from ..scripted import evict, on, settled, start
from .lane_world import (
    completed,
    done,
    kind,
    lane_threads,
    living_fibers,
    shows_the_loop,
    stage,
    with_lanes,
)


def test_endless_loop_is_stopped_and_its_task_fails_with_the_stack(caplog):
    """The failure names the place and shows the author's frames only; thread and fibers are gone a moment later."""
    fibers = living_fibers()

    async def script(world):
        await world.ask(start("r", "spins", "r"))
        failed = await world.hang("r", on("r", done(1)))
        assert kind(failed) == "WorkflowHung"
        assert "lane_world.py:" in failed.failure.message
        assert "in spins" in failed.failure.message
        assert shows_the_loop(failed.failure.stack_trace)
        assert "hourglass/_evaluator" not in failed.failure.stack_trace
        assert world.lanes.status()[0].replaced == 1
        await settled(lambda: lane_threads() == ["lane-0.1"])

    with caplog.at_level(logging.ERROR):
        with_lanes(script)
    assert "run r hung for the first time on lane-0" in caplog.text
    assert shows_the_loop(caplog.text)
    assert living_fibers() == fibers
    assert lane_threads() == []


def test_other_runs_continue_from_their_journals():
    """They move to the new thread without a word to the engine; the hung one is a miss until its history comes."""

    async def script(world):
        for name in "abc":
            await world.ask(start(name, "adds", name))
        assert isinstance(await world.ask(on("a", done(1, 10))), Succeeded)
        await world.ask(start("r", "blocks", "r"))
        await world.hang("r", on("r", done(1)))
        assert await world.ask(on("a", done(2, 20))) == completed("a", 30)
        for name in "bc":
            (scheduled,) = (await world.ask(on(name, done(1, 1)))).commands
            assert isinstance(scheduled, ScheduleActivity)
            assert scheduled.seq == 2
            assert await world.ask(on(name, done(2, 2))) == completed(name, 3)
        assert kind(await world.ask(on("r", done(2)))) == "RunNotCached"
        assert stage.threads["a"] == ["lane-0", "lane-0.1"]

    with_lanes(script)
    # The fibers of the old thread are unwound there once it is free again.
    assert sorted(stage.ended) == ["a", "a", "b", "b", "c", "c"]


def test_hung_run_is_tried_again():
    """The first hang may have been an accident: the run is tried once more, and if it goes on it is forgotten."""

    async def script(world):
        await world.ask(start("r", "spins", "r"))
        await world.hang("r", on("r", done(1)))
        assert "WorkflowHung at" in world.lanes.counts()[0].parked["r"]
        stage.hang = False
        await world.ask(start("r", "spins", "r", is_replaying=True))
        await world.ask(on("r", done(1, 1)))
        assert world.lanes.counts()[0].parked == {}
        assert await world.ask(on("r", done(2, 2))) == completed("r", 3)

    with_lanes(script)


def test_queued_activations_move_in_order():
    """What waited behind the hung one is answered by the new lane in the order in which it came."""
    names = [f"r{n}" for n in range(20)]

    async def script(world):
        await world.ask(start("r", "blocks", "r"))
        world.submit(on("r", done(1)))
        await world.begun("r")
        for name in names:
            world.submit(start(name, "adds", name))
        world.submit(on("r0", done(1, 5)))
        world.submit(on("r0", done(2, 5)))
        assert world.lanes.status()[0].queued == 22
        world.pass_time(3)
        await settled(lambda: len(world.verdicts) == 24)
        assert [run_id for run_id, _ in world.verdicts[1:]] == ["r", *names, "r0", "r0"]
        assert world.answers("r0")[-1] == completed("r0", 10)

    with_lanes(script)


def test_verdict_of_an_abandoned_lane_is_dropped():
    """What cannot be stopped is counted; when it comes back after all, its verdict is dropped and its thread ends."""

    async def script(world):
        await world.ask(start("r", "blocks", "r"))
        await world.hang("r", on("r", done(1)))
        await settled(lambda: world.lanes.stuck == 1)
        assert world.lanes.status()[0].stuck == 1
        assert lane_threads() == ["lane-0", "lane-0.1"]
        stage.go.set()
        await settled(lambda: lane_threads() == ["lane-0.1"])
        assert world.lanes.stuck == 0
        await world.ask(start("s", "adds", "s"))
        assert [kind(each) for each in world.answers("r")] == ["", "WorkflowHung"]
        assert len(world.answers("r")) == 2

    with_lanes(script)


def test_unstoppable_threads_are_bounded(caplog):
    """A loop that catches the exception lives on; beyond the bound the worker says that it is unhealthy, once, and no run
    of the same workflow is begun.
    """
    reports = []

    async def script(world):
        for name in "ab":
            await world.ask(start(name, "deaf", name))
        await world.ask(start("c", "adds", "c"))
        for name in "ab":
            await world.hang(name, on(name, done(1)))
        await settled(lambda: reports)
        assert world.lanes.stuck == 2
        assert reports == ["too many"]
        assert kind(await world.ask(start("d", "deaf", "d"))) == "WorkflowQuarantined"
        assert isinstance(await world.ask(on("c", done(1, 1))), Succeeded)
        stage.hang = False
        await settled(lambda: world.lanes.stuck == 0)
        world.lanes.look()
        assert isinstance(await world.ask(start("d", "deaf", "d")), Succeeded)

    with caplog.at_level(logging.ERROR):
        with_lanes(script, max_stuck_lanes=1, on_too_many_stuck=lambda: reports.append("too many"))
    assert "cannot be stopped" in caplog.text


def test_hung_code_issues_no_commands_when_it_returns():
    """Hung code that returns to a primitive is refused there (I5), and its thread ends although it swallows that."""

    async def script(world):
        await world.ask(start("r", "stubborn", "r"))
        await world.hang("r", on("r", done(1)))
        stage.go.set()
        await settled(lambda: lane_threads() == ["lane-0.1"])
        assert len(world.answers("r")) == 2

    with_lanes(script)


def test_run_that_hung_twice_is_held_until_its_code_changes():
    """Its activations fail at once with the earlier stack; other runs go on; a new definition releases it."""

    async def script(world):
        for _ in range(2):
            await world.ask(start("r", "spins", "r", is_replaying=True))
            await world.hang("r", on("r", done(1)))
        refused = await world.ask(start("r", "spins", "r"))
        assert kind(refused) == "WorkflowQuarantined"
        assert "in spins" in refused.failure.message
        assert shows_the_loop(refused.failure.stack_trace)
        assert await world.ask(evict("r")) == Succeeded("r")
        assert isinstance(await world.ask(start("s", "spins", "s")), Succeeded)
        stage.hang = False
        mended(world.resolver.workflow("spins"))
        assert isinstance(await world.ask(start("r", "spins", "r")), Succeeded)

    def mended(definition):
        def spins(name: str) -> int:
            return 0

        definition.run.__code__ = spins.__code__.replace(co_freevars=())

    from .lane_world import spins

    code = spins.__code__
    try:
        with_lanes(script)
    finally:
        spins.__code__ = code


def test_held_run_is_tried_after_ten_minutes():
    """After ten minutes it is executed again; if it hangs again it waits as long."""

    async def script(world):
        for _ in range(2):
            await world.ask(start("r", "spins", "r", is_replaying=True))
            await world.hang("r", on("r", done(1)))
        world.clock.now += 590
        world.lanes.look()
        assert kind(await world.ask(start("r", "spins", "r"))) == "WorkflowQuarantined"
        world.clock.now += 20
        await world.ask(start("r", "spins", "r", is_replaying=True))
        await world.hang("r", on("r", done(1)))
        assert kind(await world.ask(start("r", "spins", "r"))) == "WorkflowQuarantined"

    with_lanes(script)


def test_suspended_process_is_not_a_hang():
    """Time that passes without the control loop awake counts little: the lane gets its time again."""

    async def script(world):
        await world.ask(start("r", "blocks", "r"))
        world.submit(on("r", done(1)))
        await world.begun("r")
        world.pass_time(0.5)
        world.clock.now += 100
        world.lanes.look()
        assert world.replaced == []
        stage.go.set()
        await settled(lambda: len(world.answers("r")) == 2)
        assert isinstance(world.answers("r")[1], Succeeded)

    with_lanes(script)


@pytest.mark.parametrize("timeout", [None, 0])
def test_deadlock_detection_can_be_disabled(timeout):
    """Without a timeout nobody calls a lane hung."""

    async def script(world):
        await world.ask(start("r", "blocks", "r"))
        world.submit(on("r", done(1)))
        await world.begun("r")
        world.pass_time(100)
        assert world.replaced == []

    with_lanes(script, deadlock_timeout=timeout)


def test_hang_is_detected_on_a_real_clock():
    """On a real clock, with a short timeout, a hung lane is replaced with nobody asking."""

    async def script(world):
        await world.ask(start("r", "spins", "r"))
        world.submit(on("r", done(1)))
        await settled(lambda: world.replaced)
        assert kind(world.answers("r")[-1]) == "WorkflowHung"

    import time

    from . import lane_world

    real, lane_world.Clock = lane_world.Clock, lambda: time.monotonic
    try:
        with_lanes(script, deadlock_timeout=0.2)
    finally:
        lane_world.Clock = real


def test_breakpoint_is_not_a_hang():
    """The mark of `breakpoint()` suspends the guard; when it is gone the time counts from then on."""

    async def script(world):
        await world.ask(start("r", "blocks", "r"))
        world.submit(on("r", done(1)))
        await world.begun("r")
        (thread,) = (each for each in threading.enumerate() if each.name == "lane-0")
        debuggers.stopped_threads.add(thread.ident)
        world.pass_time(100)
        assert world.replaced == []
        debuggers.activation_ended(thread.ident)
        world.pass_time(3)
        assert [name for name, _ in world.replaced] == ["lane-0"]

    with_lanes(script)


def test_debugged_code_is_not_a_hang():
    """Frames with a debugger's trace function, as pdb and pydevd leave them, suspend the guard."""
    import bdb

    async def script(world):
        await world.ask(start("r", "blocks", "r"))
        world.submit(on("r", done(1)))
        await world.begun("r")
        (thread,) = (each for each in threading.enumerate() if each.name == "lane-0")
        frame = sys._current_frames()[thread.ident]
        while frame.f_code.co_name != "blocks":
            frame = frame.f_back
        frame.f_trace = bdb.Bdb().trace_dispatch
        world.pass_time(100)
        assert world.replaced == []
        frame.f_trace = None
        world.pass_time(3)
        assert len(world.replaced) == 1

    with_lanes(script)


def test_killed_lane_fails_only_its_current_activation():
    """A kill is brutal: the thread dies, the open activation fails, other runs go on; it is no hang of the run."""

    async def script(world):
        await world.ask(start("a", "adds", "a"))
        await world.ask(start("r", "spins", "r"))
        for _ in range(3):
            world.submit(on("r", done(1)))
            await world.begun("r")
            world.lanes.kill("lane-0")
            assert kind(world.answers("r")[-1]) == "LaneKilled"
            await settled(lambda: len(lane_threads()) == 1)
            stage.begun.discard("r")
            assert isinstance(await world.ask(start("r", "spins", "r")), Succeeded)
        world.lanes.kill("lane-0")  # idle
        await settled(lambda: lane_threads() == ["lane-0.4"])
        await world.ask(on("a", done(1, 1)))
        assert await world.ask(on("a", done(2, 2))) == completed("a", 3)
        with pytest.raises(UsageError, match="known lanes: lane-0"):
            world.lanes.kill("lane-7")

    with_lanes(script)


def test_lane_that_dies_between_jobs_is_replaced(caplog):
    """Whatever ends the thread, what was queued is answered by its successor, and the fibers are unwound."""

    def die(_):
        raise SystemExit("in our own code")

    async def script(world):
        await world.ask(start("a", "adds", "a"))
        world.lanes._places.lanes()[0].do(die)
        world.submit(on("a", done(1, 1)))
        world.submit(on("a", done(2, 2)))
        await settled(lambda: len(world.answers("a")) == 3)
        assert world.answers("a")[2] == completed("a", 3)
        assert world.replaced == [("lane-0", "LaneDied: its thread ended with SystemExit")]
        await settled(lambda: lane_threads() == ["lane-0.1"])

    with_lanes(script)
    assert stage.ended == ["a", "a"]


def test_lane_that_dies_during_a_job_fails_it():
    """The activation in work is answered as failed (I3), its run forgotten, the others go on."""

    async def script(world):
        await world.ask(start("a", "adds", "a"))
        await world.ask(start("r", "adds", "r"))
        (lane,) = world.lanes._places.lanes()

        def die(*_):
            raise SystemExit("in our own code")

        lane.evaluations.evaluate = die
        assert kind(await world.ask(on("r", done(1)))) == "LaneDied"
        await world.ask(on("a", done(1, 1)))
        assert await world.ask(on("a", done(2, 2))) == completed("a", 3)
        assert kind(await world.ask(on("r", done(2)))) == "RunNotCached"

    with_lanes(script)


def test_run_that_hangs_during_eviction_is_evicted():
    """The eviction is answered with success, the only answer that engines take."""

    async def script(world):
        await world.ask(start("r", "never_leaves", "r"))
        await world.ask(start("a", "adds", "a"))
        world.submit(evict("r"))
        await world.begun("r")
        world.pass_time(3)
        assert world.answers("r")[-1] == Succeeded("r")
        assert len(world.replaced) == 1
        assert isinstance(await world.ask(on("a", done(1))), Succeeded)

    with_lanes(script)


def test_run_that_hangs_while_unwound_is_blamed():
    """Fibers that are dropped to make room may hang, too: the strike is theirs, not the innocent run's."""

    async def script(world):
        await world.ask(start("r", "never_leaves", "r"))
        await world.hang_of("r", start("a", "adds", "a"))
        assert list(world.lanes.counts()[0].parked) == ["r"]
        assert isinstance(await world.ask(start("a", "adds", "a")), Succeeded)

    with_lanes(script, context={"cache": StateCache(CacheLimits(live=1))})


def test_run_that_hangs_at_the_stop_does_not_block_it():
    """Unwinding everything at the stop is guarded, too."""

    async def script(world):
        await world.ask(start("r", "never_leaves", "r"))
        world.lanes.stop()
        await world.begun("r")
        world.pass_time(3)
        await settled(lambda: lane_threads() == [])

    with_lanes(script)


def test_unstoppable_thread_does_not_block_profiled_threads():
    """Python 3.11 lets profiled threads spin while an exception waits for another thread: it must not be left waiting."""

    async def script(world):
        await world.ask(start("r", "blocks", "r"))
        await world.hang("r", on("r", done(1)))
        for n in range(20):
            assert isinstance(await world.ask(start(f"a{n}", "adds", "a")), Succeeded)
        assert world.lanes.stuck <= 1

    with_lanes(script, context={"watcher": Watcher("warn")})


def test_new_generation_starts_without_states():
    """States belong to the handle that sent them; what older ones left is dropped when they are no more."""

    async def script(world):
        await world.ask(start("r", "adds", "old"), generation=1)
        assert kind(await world.ask(on("r", done(1)), generation=2)) == "RunNotCached"
        await world.ask(start("r", "adds", "new"), generation=2)
        world.lanes.forget_older(2)
        await world.ask(on("r", done(1, 1)), generation=2)
        assert stage.ended == ["old"]
        assert world.lanes.counts()[0].cached == 1
        assert world.lanes.status()[0].runs == 1
        assert await world.ask(on("r", done(2, 1)), generation=2) == completed("r", 2)

    with_lanes(script)


def test_status_shows_each_lane():
    """Names stay, and runs are counted where they live."""

    async def script(world):
        assert world.lanes.names() == ["lane-0", "lane-1"]
        await world.ask(start("r", "blocks", "r"))
        await world.ask(start("a", "adds", "a"))
        world.submit(on("r", done(1)))
        await world.begun("r")
        assert [each.runs for each in world.lanes.status()] == [1, 1]
        assert (world.in_work("lane-0"), world.in_work("lane-1")) == ("r", None)
        world.pass_time(3)
        assert [each.replaced for each in world.lanes.status()] == [1, 0]
        assert world.lanes.names() == ["lane-0", "lane-1"]

    with_lanes(script, count=2)
