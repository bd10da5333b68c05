"""A run whose last change cannot be stored is parked in its previous state; other runs continue."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.embedded.stores import Spoiled
from tests.specs import made

from hourglass._contract import schedule_specs as ss
from hourglass._contract import schedules as sc
from hourglass._contract import workflows as wf
from hourglass._contract.handle import ActivityCancel
from hourglass._contract.workflows import UpdateWorkflow
from hourglass._embedded import VirtualClock
from hourglass._embedded.store.store import Rejection
from hourglass._embedded.transitions.run import Run
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass.errors import StorageError

from ..memory_world import World, activity, settle, start_waiting, text

DONE = c.CompleteRun(text("done"))


async def open_world(path: Path, **more: Any) -> tuple[World, Spoiled]:
    store = Spoiled.open(path)
    assert isinstance(store, Spoiled)
    return await World.new(store=store, clock=VirtualClock(), opened=True, **more), store


def has_timer(run: Run) -> bool:
    return bool(run.timers)


async def test_parked_run_is_logged_and_other_runs_continue(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "hourglass")
    world, store = await open_world(tmp_path / "a.db")
    bad, good = await world.start("bad"), await world.start("good")
    waiting = await start_waiting(world.call(wf.WaitForClose(workflow_id="bad")))
    first = {(await world.activation()).run_id, (await world.activation()).run_id}
    assert first == {bad.run_id, good.run_id}
    store.spoils = has_timer  # type: ignore[method-assign]
    await world.complete(bad.run_id, c.StartTimer(1, 5_000_000_000))
    await world.complete(good.run_id, activity())
    task = await world.activity()
    with pytest.raises(StorageError, match=f"parked .*run {bad.run_id} cannot be written"):
        await waiting
    await world.succeed(task, text("1"))
    evicted = ended = False
    while not (evicted and ended):
        activation = await world.activation()
        if activation.run_id == bad.run_id:
            assert isinstance(activation.events[0], e.RunEvicted)
            await world.complete(bad.run_id)
            evicted = True
        else:
            await world.complete(good.run_id, DONE)
            ended = True
    assert isinstance(await world.outcome("good"), wf.RunCompleted)
    messages = [message for message in caplog.messages if "is parked" in message]
    assert len(messages) == 1
    assert bad.run_id in messages[0]
    assert "'bad'" in messages[0]
    assert world.engine.failed is None


async def parked_run(path: Path) -> tuple[World, str]:
    """Return a world in which a run issued a timer that cannot be stored, and the id of the run."""
    world, store = await open_world(path)
    started = await world.start("bad")
    await world.activation()
    store.spoils = has_timer  # type: ignore[method-assign]
    await world.complete(started.run_id, c.StartTimer(1, 5_000_000_000))
    await world.eviction()
    return world, started.run_id


async def test_run_parked_by_the_store_can_be_described_and_terminated(tmp_path: Path) -> None:
    """A parked run accepts signals, and rejects requests that would wait for its code."""
    world, _ = await parked_run(tmp_path / "a.db")
    await world.call(wf.SignalWorkflow(workflow_id="bad", signal_name="x", request_id="1"))
    description = await world.call(wf.DescribeWorkflow(workflow_id="bad"))
    assert description.summary.status is wf.WorkflowStatus.RUNNING
    requests = (
        wf.WaitForClose(workflow_id="bad"),
        wf.QueryWorkflow(workflow_id="bad", query_name="q"),
        UpdateWorkflow(workflow_id="bad", update_id="u", update_name="u"),
    )
    for request in requests:
        with pytest.raises(StorageError, match="this run is parked"):
            await world.call(request)
    await world.call(wf.TerminateWorkflow(workflow_id="bad", reason="enough"))
    assert await world.outcome("bad") == wf.RunTerminated("enough")


async def test_run_parked_by_the_store_is_retried_after_reopening(tmp_path: Path) -> None:
    world, run_id = await parked_run(tmp_path / "a.db")
    await world.close()
    again, _ = await open_world(tmp_path / "a.db")
    activation = await again.activation()
    assert isinstance(activation.events[0], e.RunStarted)
    await again.complete(run_id, c.StartTimer(1, 5_000_000_000))
    await settle()
    again.clock.advance(6.0)
    await again.activation()
    await again.complete(run_id, DONE)
    assert isinstance(await again.outcome("bad"), wf.RunCompleted)


async def test_parking_a_run_cancels_its_attempts(tmp_path: Path) -> None:
    """The result of such an attempt still counts."""
    world, store = await open_world(tmp_path / "a.db")
    started = await world.start("bad")
    await world.activation()
    await world.complete(started.run_id, activity())
    task = await world.activity()
    store.spoils = lambda run: run.cancel_requested  # type: ignore[method-assign]
    with pytest.raises(StorageError, match="cannot be written"):
        await world.call(wf.CancelWorkflow(workflow_id="bad", request_id="1"))
    item = await world.handle.poll_activity()
    assert isinstance(item, ActivityCancel)
    assert item.token == task.token
    await world.succeed(task, text("1"))
    await settle()
    assert "ActivityTaskCompleted" in world.kinds("bad")


async def test_signal_after_parking_is_stored(tmp_path: Path) -> None:
    """Several changes of a run are rejected; a signal that arrives between two rejections is stored."""
    world, store = await open_world(tmp_path / "a.db")
    started = await world.start("bad")
    await world.activation()
    store.spoils = has_timer  # type: ignore[method-assign]
    await world.complete(started.run_id, c.StartTimer(1, 5_000_000_000))
    later = asyncio.ensure_future(
        world.call(wf.SignalWorkflow(workflow_id="bad", signal_name="stale", request_id="1"))
    )
    refusals: list[Rejection] = []
    real, store._report = store._report, refusals.append
    with pytest.raises(StorageError):
        await later
    while len(refusals) < 2:  # noqa: ASYNC110 - they come from another thread
        await asyncio.sleep(0)
    store.spoils = lambda _: False  # type: ignore[method-assign]
    real(refusals[0])
    fresh = asyncio.ensure_future(
        world.call(wf.SignalWorkflow(workflow_id="bad", signal_name="fresh", request_id="2"))
    )
    await asyncio.sleep(0)
    real(refusals[1])
    await fresh
    kinds = world.kinds("bad")
    assert kinds.count("WorkflowExecutionSignaled") + _held_signals(world) == 1
    await world.close()
    again, _ = await open_world(tmp_path / "a.db")
    record = again.record("bad")
    assert "fresh" in str(record.events) + str(record.run.held)


def _held_signals(world: World) -> int:
    record = world.record("bad")
    return len(record.run.held)


async def test_unstorable_start_is_rejected_and_its_id_stays_free(tmp_path: Path) -> None:
    world, store = await open_world(tmp_path / "a.db")
    store.spoils = lambda run: run.started.workflow_type == "Bad"  # type: ignore[method-assign]
    with pytest.raises(StorageError, match="cannot be written"):
        await world.start("w", workflow_type="Bad")
    started = await world.start("w")
    assert (await world.activation()).run_id == started.run_id


async def test_parent_with_unstorable_child_is_parked_without_starting_it(tmp_path: Path) -> None:
    world, store = await open_world(tmp_path / "a.db")
    started = await world.start("parent")
    await world.activation()
    store.spoils = lambda run: bool(run.children)  # type: ignore[method-assign]
    child = c.StartChildWorkflow(seq=1, workflow_id="child", workflow_type="W")
    await world.complete(started.run_id, child)
    await world.start("other")
    while True:
        activation = await world.activation()
        if activation.run_id != started.run_id and isinstance(activation.events[0], e.RunStarted):
            record = world.record(run_id=activation.run_id)
            if record.run.started.workflow_id == "other":
                break
        await world.complete(activation.run_id)
    await world.complete(activation.run_id, DONE)
    assert isinstance(await world.outcome("other"), wf.RunCompleted)
    await settle()
    assert world.engine.current("child") is None


async def test_unstorable_schedule_update_is_rejected(tmp_path: Path) -> None:
    world, _ = await open_world(tmp_path / "a.db")
    action = made(wf.StartWorkflow, workflow_id="x", workflow_type="W", task_queue="q", request_id="")
    spec = ss.ScheduleSpec(intervals=(ss.ScheduleIntervalSpec(3600.0),))
    good = sc.EngineSchedule(action=action, spec=spec)
    await world.call(sc.CreateSchedule(schedule_id="s", schedule=good, request_id="1"))
    huge = msgspec.structs.replace(action, start_delay=10**30)
    bad = sc.EngineSchedule(action=huge, spec=spec)
    with pytest.raises(StorageError, match="schedule s cannot be written"):
        await world.call(sc.UpdateSchedule(schedule_id="s", schedule=bad, request_id="2"))
    description = await world.call(sc.DescribeSchedule(schedule_id="s"))
    assert description.schedule.action.start_delay is None
    paused = sc.EngineSchedule(action=action, spec=spec, state=ss.ScheduleState(paused=True))
    await world.call(sc.UpdateSchedule(schedule_id="s", schedule=paused, request_id="3"))
    assert (await world.call(sc.DescribeSchedule(schedule_id="s"))).schedule.state.paused
