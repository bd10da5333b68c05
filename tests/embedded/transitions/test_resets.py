"""Resets on the engine: kept history, repeated messages, one change in the store, repeated requests."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import cases

from hourglass._contract.workflows import (
    PollUpdate,
    ResetWorkflow,
    RunTerminated,
    SignalWorkflow,
    Started,
    UpdateStage,
    UpdateWorkflow,
)
from hourglass._embedded.transitions.resetting import rebuild
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass._history import events as h
from hourglass.errors import ServiceError

from ..activations.test_replay_equals_live import Life
from ..memory_world import World, activity, app_failure, run_async, text

SECOND = 10**9
FIRST = (
    activity(task_queue="q", start_to_close_timeout=5.0),
    c.StartTimer(1, 60 * SECOND),
    c.UpsertMemo({"m": text("v")}),
)
"""The commands of a run's first task."""


async def reset(world: World, event_id: int, **more: Any) -> Started:
    options = {"request_id": "", "reason": "why", **more}
    return await world.call(ResetWorkflow(workflow_id="w", event_id=event_id, **options))


async def signal(world: World, name: str = "s") -> None:
    await world.call(SignalWorkflow(workflow_id="w", signal_name=name, request_id=""))


async def start_with_two_tasks(world: World) -> str:
    """Start a run whose first task scheduled an activity, a timer and a memo, and whose second task received a signal."""
    run_id = await world.start_run(*FIRST)
    await signal(world, "first")
    await world.activation()
    await world.complete(run_id)
    return run_id


async def expect_eviction(world: World, run_id: str) -> None:
    activation = await world.activation()
    assert activation.run_id == run_id
    assert isinstance(activation.events[0], e.RunEvicted)
    await world.complete(run_id)


async def test_reset_keeps_timers_activities_and_memo_of_earlier_tasks(world: World) -> None:
    await start_with_two_tasks(world)
    old = world.record()
    done = [event.id for event in old.events if isinstance(event.attributes, h.WorkflowTaskCompleted)]
    world.clock.advance(7)
    await reset(world, done[1])
    run = world.record().run
    (timer,) = run.timers.values()
    assert timer.due_ns == old.events[5].time_ns + 60 * SECOND
    (pending,) = run.activities.values()
    assert (pending.attempt, pending.started_ns) == (1, 0)
    assert run.memo == {"m": text("v")}


async def test_signals_held_during_a_task_are_sent_to_the_new_run(world: World) -> None:
    await start_with_two_tasks(world)
    await signal(world, "second")
    await world.activation()
    await signal(world, "held")
    await reset(world, 4)
    names = [
        event.attributes.signal_name
        for event in world.record().events
        if isinstance(event.attributes, h.WorkflowExecutionSignaled)
    ]
    assert names == ["first", "second", "held"]


async def test_updates_are_admitted_again_after_a_reset() -> None:
    """An update accepted after the reset point is delivered and accepted again, also after a crash."""
    world = await World.new()
    run_id = await world.begin()
    call = asyncio.ensure_future(
        world.call(
            UpdateWorkflow(workflow_id="w", update_id="u", update_name="do", wait_stage=UpdateStage.COMPLETED)
        )
    )
    await world.complete(run_id, c.StartTimer(1, 60 * SECOND))
    await world.activation()
    await world.complete(run_id, c.AcceptUpdate("u"), c.CompleteUpdate("u", text("old")))
    assert (await call).result == text("old")
    new = await reset(world, 4)
    assert world.kinds()[3:] == [
        "WorkflowTaskFailed",
        "WorkflowExecutionUpdateAdmitted",
        "WorkflowTaskScheduled",
    ]
    after = await world.successor()
    poll = PollUpdate(workflow_id="w", update_id="u", rpc_timeout=0.0)
    assert (await after.call(poll)).stage is UpdateStage.ADMITTED
    activation = await after.activation()
    assert [type(event) for event in activation.events] == [e.RunStarted, e.SeedChanged, e.UpdateReceived]
    await after.complete(new.run_id, c.AcceptUpdate("u"), c.CompleteUpdate("u", text("new")))
    assert (await after.call(poll)).result == text("new")
    accepted = after.record().events[-2].attributes
    assert (accepted.sequencing_event_id, accepted.request) == (5, None)  # type: ignore[attr-defined]
    # Replayed, it is the same.
    after.handle.request_eviction(new.run_id)
    await after.activation()
    await after.complete(new.run_id)
    await signal(after)
    again = await after.activation()
    assert [type(event) for event in again.events] == [e.RunStarted, e.SeedChanged, e.UpdateReceived]
    await after.complete(new.run_id, c.AcceptUpdate("u"), c.CompleteUpdate("u", text("new")))
    assert [type(event) for event in (await after.activation()).events] == [e.SignalReceived]


async def test_readmitted_update_can_be_rejected(world: World) -> None:
    run_id = await world.begin()
    call = asyncio.ensure_future(world.call(UpdateWorkflow(workflow_id="w", update_id="u", update_name="do")))
    await world.complete(run_id, c.StartTimer(1, 60 * SECOND))
    await world.activation()
    await world.complete(run_id, c.AcceptUpdate("u"))
    await call
    new = await reset(world, 4)
    await expect_eviction(world, run_id)
    await world.activation()
    poll = asyncio.ensure_future(world.call(PollUpdate(workflow_id="w", update_id="u")))
    await asyncio.sleep(0)
    failure = app_failure("no")
    await world.complete(new.run_id, c.StartTimer(1, 60 * SECOND), c.RejectUpdate("u", failure))
    assert (await poll).failure == failure
    await signal(world)
    assert [type(event) for event in (await world.activation()).events] == [e.SignalReceived]
    await world.complete(new.run_id)
    with pytest.raises(ServiceError):
        await world.call(PollUpdate(workflow_id="w", update_id="u"))


async def test_repeated_reset_request_is_one_reset() -> None:
    world = await World.new()
    await start_with_two_tasks(world)
    first = await reset(world, 4, request_id="r")
    assert await reset(world, 4, request_id="r") == first
    after = await world.successor()
    assert await reset(after, 4, request_id="r") == first
    assert await reset(after, 4, request_id="another") != first


async def test_reset_is_one_change(world: World) -> None:
    run_id = await start_with_two_tasks(world)
    before = world.engine.writes.newest
    await reset(world, 4)
    assert world.engine.writes.newest == before + 1
    old = world.record(run_id=run_id)
    assert old.number == world.record().number == before + 1


async def test_reset_of_a_continued_run_replaces_its_successor(world: World) -> None:
    """Signals to the successor are sent to the new run."""
    run_id = await world.start_run(c.ContinueAsNew())
    await expect_eviction(world, run_id)
    second = (await world.activation()).run_id
    await world.complete(second, c.StartTimer(1, SECOND))
    await signal(world, "late")
    await reset(world, 4, run_id=run_id)
    assert isinstance(await world.outcome(run_id=second), RunTerminated)
    assert world.kinds()[3:] == [
        "WorkflowTaskFailed",
        "WorkflowExecutionSignaled",
        "WorkflowTaskScheduled",
    ]


@settings(max_examples=cases(50, 1000), deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6))
def test_run_rebuilt_from_history_equals_the_original(seed: int) -> None:
    """A random run can also be reset to any of its tasks."""

    async def body() -> None:
        world = await World.new()
        life = Life(world, seed)
        await life.live(40)
        record = world.record()
        run = record.run
        rebuilt, _ = rebuild("other", record.events, 1)
        assert rebuilt.length == run.length
        assert rebuilt.history_size == run.history_size
        if run.is_open and not run.held:  # what is held is not in the history yet
            assert rebuilt.cancel_requested == run.cancel_requested
            assert {key: each.spec for key, each in rebuilt.activities.items()} == {
                key: each.spec for key, each in run.activities.items()
            }
            assert rebuilt.timers == run.timers
        ends = [event.id for event in record.events if isinstance(event.attributes, h.WorkflowTaskCompleted)]
        for end in ends[:: max(1, len(ends) // 5)]:
            new = await reset(world, end, run_id=run.run_id)
            assert world.record().run.run_id == new.run_id
            assert world.record().run.is_open

    run_async(body)
