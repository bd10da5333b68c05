"""Lanes that hang, die or are killed are replaced, and other runs continue."""

from __future__ import annotations

import logging
import sys
import threading
import time

import pytest

from hourglass._evaluator.commands import ScheduleActivity, Succeeded
from hourglass._worker.health import debuggers
from hourglass._worker.lanes.cache import CacheLimits, StateCache
from hourglass._worker.lanes.watcher import Watcher
from hourglass.errors import UsageError

from ..scripted import evict, on, settled, start
from . import lane_world
from .lane_world import (
    completed,
    done,
    failure_kind,
    lane_threads,
    lanes,
    living_fibers,
    shows_the_loop,
    stage,
)


async def test_endless_loop_is_interrupted_and_its_task_fails_with_the_stack(caplog):
    fibers = living_fibers()
    with caplog.at_level(logging.ERROR):
        async with lanes() as world:
            failed = await world.hang_run("r", "spins")
            assert failure_kind(failed) == "WorkflowHung"
            assert "lane_world.py:" in failed.failure.message
            assert "in spins" in failed.failure.message
            assert shows_the_loop(failed.failure.stack_trace)
            assert "hourglass/_evaluator" not in failed.failure.stack_trace
            assert world.lanes.status()[0].replaced == 1
            await settled(lambda: lane_threads() == ["lane-0.1"])
    assert "run r hung for the first time on lane-0" in caplog.text
    assert shows_the_loop(caplog.text)
    assert living_fibers() == fibers
    assert lane_threads() == []


async def test_other_runs_of_a_hung_lane_continue_from_their_journals():
    async with lanes() as world:
        for name in "abc":
            await world.evaluate(start(name, "adds", name))
        assert isinstance(await world.evaluate(on("a", done(1, 10))), Succeeded)
        await world.hang_run("r", "blocks")
        assert await world.evaluate(on("a", done(2, 20))) == completed("a", 30)
        for name in "bc":
            (scheduled,) = (await world.evaluate(on(name, done(1, 1)))).commands
            assert isinstance(scheduled, ScheduleActivity)
            assert scheduled.seq == 2
            assert await world.evaluate(on(name, done(2, 2))) == completed(name, 3)
        assert failure_kind(await world.evaluate(on("r", done(2)))) == "RunNotCached"
        assert stage.threads["a"] == ["lane-0", "lane-0.1"]
    # The old thread unwinds its fibers when its hung code returns.
    assert sorted(stage.ended) == ["a", "a", "b", "b", "c", "c"]


async def test_hung_run_is_retried_once_and_continues():
    async with lanes() as world:
        await world.hang_run("r", "spins")
        assert "WorkflowHung at" in world.lanes.counts()[0].parked["r"]
        stage.hang = False
        await world.evaluate(start("r", "spins", "r", is_replaying=True))
        await world.evaluate(on("r", done(1, 1)))
        assert world.lanes.counts()[0].parked == {}
        assert await world.evaluate(on("r", done(2, 2))) == completed("r", 3)


async def test_queued_activations_move_to_the_replacement_lane_in_order():
    names = [f"r{n}" for n in range(20)]
    async with lanes() as world:
        await world.block("r")
        for name in names:
            world.submit(start(name, "adds", name))
        world.submit(on("r0", done(1, 5)))
        world.submit(on("r0", done(2, 5)))
        assert world.lanes.status()[0].queued == 22
        world.advance(3)
        await settled(lambda: len(world.verdicts) == 24)
        assert [run_id for run_id, _ in world.verdicts[1:]] == ["r", *names, "r0", "r0"]
        assert world.answers("r0")[-1] == completed("r0", 10)


async def test_verdict_of_an_abandoned_lane_is_dropped():
    async with lanes() as world:
        await world.hang_run("r", "blocks")
        await settled(lambda: world.lanes.stuck == 1)
        assert world.lanes.status()[0].stuck == 1
        assert lane_threads() == ["lane-0", "lane-0.1"]
        stage.go.set()
        await settled(lambda: lane_threads() == ["lane-0.1"])
        assert world.lanes.stuck == 0
        await world.evaluate(start("s", "adds", "s"))
        assert [failure_kind(answer) for answer in world.answers("r")] == ["", "WorkflowHung"]
        assert len(world.answers("r")) == 2


async def test_too_many_stuck_lanes_are_reported_and_quarantine_their_workflow(caplog):
    reports = []
    with caplog.at_level(logging.ERROR):
        async with lanes(max_stuck_lanes=1, on_too_many_stuck=lambda: reports.append("too many")) as world:
            for name in "ab":
                await world.evaluate(start(name, "swallows_exceptions", name))
            await world.evaluate(start("c", "adds", "c"))
            for name in "ab":
                await world.hang(name, on(name, done(1)))
            await settled(lambda: reports)
            assert world.lanes.stuck == 2
            assert reports == ["too many"]
            assert (
                failure_kind(await world.evaluate(start("d", "swallows_exceptions", "d")))
                == "WorkflowQuarantined"
            )
            assert isinstance(await world.evaluate(on("c", done(1, 1))), Succeeded)
            stage.hang = False
            await settled(lambda: world.lanes.stuck == 0)
            world.lanes.check()
            assert isinstance(await world.evaluate(start("d", "swallows_exceptions", "d")), Succeeded)
    assert "cannot be stopped" in caplog.text


async def test_hung_code_that_returns_issues_no_commands():
    async with lanes() as world:
        await world.hang_run("r", "issues_commands_endlessly")
        stage.go.set()
        await settled(lambda: lane_threads() == ["lane-0.1"])
        assert len(world.answers("r")) == 2


async def test_run_that_hung_twice_is_quarantined_until_its_code_changes(monkeypatch):
    def fixed(name: str) -> int:
        return 0

    async with lanes() as world:
        for _ in range(2):
            await world.hang_run("r", "spins", is_replaying=True)
        refused = await world.evaluate(start("r", "spins", "r"))
        assert failure_kind(refused) == "WorkflowQuarantined"
        assert "in spins" in refused.failure.message
        assert shows_the_loop(refused.failure.stack_trace)
        assert await world.evaluate(evict("r")) == Succeeded("r")
        assert isinstance(await world.evaluate(start("s", "spins", "s")), Succeeded)
        stage.hang = False
        monkeypatch.setattr(world.resolver.workflow("spins").run, "__code__", fixed.__code__)
        assert isinstance(await world.evaluate(start("r", "spins", "r")), Succeeded)


async def test_quarantined_run_is_retried_after_ten_minutes():
    async with lanes() as world:
        for _ in range(2):
            await world.hang_run("r", "spins", is_replaying=True)
        world.clock.now += 590
        world.lanes.check()
        assert failure_kind(await world.evaluate(start("r", "spins", "r"))) == "WorkflowQuarantined"
        world.clock.now += 20
        await world.hang_run("r", "spins", is_replaying=True)
        assert failure_kind(await world.evaluate(start("r", "spins", "r"))) == "WorkflowQuarantined"


async def test_time_of_a_suspended_process_does_not_count_as_a_hang():
    async with lanes() as world:
        await world.block("r")
        world.advance(0.5)
        world.clock.now += 100
        world.lanes.check()
        assert world.replaced == []
        stage.go.set()
        await settled(lambda: len(world.answers("r")) == 2)
        assert isinstance(world.answers("r")[1], Succeeded)


@pytest.mark.parametrize("timeout", [None, 0])
async def test_deadlock_detection_can_be_disabled(timeout):
    async with lanes(deadlock_timeout=timeout) as world:
        await world.block("r")
        world.advance(100)
        assert world.replaced == []


async def test_hang_is_detected_on_a_real_clock(monkeypatch):
    monkeypatch.setattr(lane_world, "Clock", lambda: time.monotonic)
    async with lanes(deadlock_timeout=0.2) as world:
        await world.evaluate(start("r", "spins", "r"))
        world.submit(on("r", done(1)))
        await settled(lambda: world.replaced)
        assert failure_kind(world.answers("r")[-1]) == "WorkflowHung"


async def test_lane_at_a_breakpoint_is_not_hung():
    async with lanes() as world:
        await world.block("r")
        (thread,) = (thread for thread in threading.enumerate() if thread.name == "lane-0")
        debuggers.stopped_threads.add(thread.ident)
        world.advance(100)
        assert world.replaced == []
        debuggers.activation_ended(thread.ident)
        world.advance(3)
        assert [name for name, _ in world.replaced] == ["lane-0"]


async def test_lane_under_a_debugger_is_not_hung():
    import bdb

    async with lanes() as world:
        await world.block("r")
        (thread,) = (thread for thread in threading.enumerate() if thread.name == "lane-0")
        frame = sys._current_frames()[thread.ident]
        while frame.f_code.co_name != "blocks":
            frame = frame.f_back
        frame.f_trace = bdb.Bdb().trace_dispatch
        world.advance(100)
        assert world.replaced == []
        frame.f_trace = None
        world.advance(3)
        assert len(world.replaced) == 1


async def test_killed_lane_fails_only_its_current_activation():
    async with lanes() as world:
        await world.evaluate(start("a", "adds", "a"))
        await world.evaluate(start("r", "spins", "r"))
        for _ in range(3):
            world.submit(on("r", done(1)))
            await world.begun("r")
            world.lanes.kill("lane-0")
            assert failure_kind(world.answers("r")[-1]) == "LaneKilled"
            await settled(lambda: len(lane_threads()) == 1)
            stage.begun.discard("r")
            assert isinstance(await world.evaluate(start("r", "spins", "r")), Succeeded)
        world.lanes.kill("lane-0")  # idle
        await settled(lambda: lane_threads() == ["lane-0.4"])
        await world.evaluate(on("a", done(1, 1)))
        assert await world.evaluate(on("a", done(2, 2))) == completed("a", 3)
        with pytest.raises(UsageError, match="known lanes: lane-0"):
            world.lanes.kill("lane-7")


async def test_lane_that_dies_between_activations_is_replaced():
    async with lanes() as world:
        await world.evaluate(start("a", "adds", "a"))
        world.lanes._places.lanes()[0].do(end_thread)
        world.submit(on("a", done(1, 1)))
        world.submit(on("a", done(2, 2)))
        await settled(lambda: len(world.answers("a")) == 3)
        assert world.answers("a")[2] == completed("a", 3)
        assert world.replaced == [("lane-0", "LaneDied: its thread ended with SystemExit")]
        await settled(lambda: lane_threads() == ["lane-0.1"])
    assert stage.ended == ["a", "a"]


async def test_lane_that_dies_during_an_activation_fails_it():
    async with lanes() as world:
        await world.evaluate(start("a", "adds", "a"))
        await world.evaluate(start("r", "adds", "r"))
        (lane,) = world.lanes._places.lanes()
        lane.evaluations.evaluate = end_thread
        assert failure_kind(await world.evaluate(on("r", done(1)))) == "LaneDied"
        await world.evaluate(on("a", done(1, 1)))
        assert await world.evaluate(on("a", done(2, 2))) == completed("a", 3)
        assert failure_kind(await world.evaluate(on("r", done(2)))) == "RunNotCached"


def end_thread(*_: object) -> None:
    raise SystemExit("a bug of the lane")


async def test_run_that_hangs_during_its_eviction_is_evicted():
    async with lanes() as world:
        await world.evaluate(start("r", "hangs_while_unwound", "r"))
        await world.evaluate(start("a", "adds", "a"))
        world.submit(evict("r"))
        await world.begun("r")
        world.advance(3)
        assert world.answers("r")[-1] == Succeeded("r")
        assert len(world.replaced) == 1
        assert isinstance(await world.evaluate(on("a", done(1))), Succeeded)


async def test_hang_while_unwinding_is_attributed_to_the_unwound_run():
    async with lanes(context={"cache": StateCache(CacheLimits(live=1))}) as world:
        await world.evaluate(start("r", "hangs_while_unwound", "r"))
        await world.hang("r", start("a", "adds", "a"))
        assert list(world.lanes.counts()[0].parked) == ["r"]
        assert isinstance(await world.evaluate(start("a", "adds", "a")), Succeeded)


async def test_run_that_hangs_while_unwound_does_not_block_the_stop_of_its_lane():
    async with lanes() as world:
        await world.evaluate(start("r", "hangs_while_unwound", "r"))
        world.lanes.stop()
        await world.begun("r")
        world.advance(3)
        await settled(lambda: lane_threads() == [])


async def test_stuck_lane_does_not_block_profiled_threads():
    """Python 3.11 lets profiled threads spin while an exception is pending for another thread."""
    async with lanes(context={"watcher": Watcher("warn")}) as world:
        await world.hang_run("r", "blocks")
        for n in range(20):
            assert isinstance(await world.evaluate(start(f"a{n}", "adds", "a")), Succeeded)
        assert world.lanes.stuck <= 1


async def test_new_handle_generation_starts_without_cached_states():
    async with lanes() as world:
        await world.evaluate(start("r", "adds", "old"), generation=1)
        assert failure_kind(await world.evaluate(on("r", done(1)), generation=2)) == "RunNotCached"
        await world.evaluate(start("r", "adds", "new"), generation=2)
        world.lanes.forget_older(2)
        await world.evaluate(on("r", done(1, 1)), generation=2)
        assert stage.ended == ["old"]
        assert world.lanes.counts()[0].cached == 1
        assert world.lanes.status()[0].runs == 1
        assert await world.evaluate(on("r", done(2, 1)), generation=2) == completed("r", 2)


async def test_lane_status_has_the_runs_and_replacements_of_each_lane():
    async with lanes(count=2) as world:
        assert world.lanes.names() == ["lane-0", "lane-1"]
        await world.evaluate(start("r", "blocks", "r"))
        await world.evaluate(start("a", "adds", "a"))
        world.submit(on("r", done(1)))
        await world.begun("r")
        assert [lane.runs for lane in world.lanes.status()] == [1, 1]
        assert (world.current_run("lane-0"), world.current_run("lane-1")) == ("r", None)
        world.advance(3)
        assert [lane.replaced for lane in world.lanes.status()] == [1, 0]
        assert world.lanes.names() == ["lane-0", "lane-1"]
