"""Updates on the engine: history, rejection, persistence, limits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hourglass._contract.workflows import (
    DescribeWorkflow,
    PollUpdate,
    QueryWorkflow,
    TerminateWorkflow,
    UpdateStage,
    UpdateState,
    UpdateWorkflow,
)
from hourglass._embedded.transitions.size_limits import Limits
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass.converter import ApplicationFailure
from hourglass.errors import ServiceError, WorkflowNotFoundError

from ..memory_world import World, app_failure, settle, text

TIMER = c.StartTimer(1, 10**12)
"""The command of a run's first task."""


def request(update_id: str = "u", stage: UpdateStage = UpdateStage.COMPLETED, **more: Any) -> UpdateWorkflow:
    return UpdateWorkflow(
        workflow_id="w",
        update_id=update_id,
        update_name="do",
        arguments=(text("x"),),
        identity="asker",
        wait_stage=stage,
        **more,
    )


def start_update(world: World, *args: Any, **more: Any) -> asyncio.Task[UpdateState]:
    return asyncio.ensure_future(world.call(request(*args, **more)))


def accept(update_id: str = "u") -> c.Command:
    return c.AcceptUpdate(update_id)


def done(update_id: str = "u", result: str = "r") -> c.Command:
    return c.CompleteUpdate(update_id, text(result))


def reject(update_id: str = "u") -> c.Command:
    return c.RejectUpdate(update_id, app_failure("no"))


async def received_updates(world: World) -> list[str]:
    """Return the updates of the next activation, which has no other events."""
    activation = await world.activation()
    updates = [event for event in activation.events if isinstance(event, e.UpdateReceived)]
    assert len(updates) == len(activation.events), activation.events
    return [update.id for update in updates]


async def test_rejected_update_leaves_no_trace_in_the_history(world: World) -> None:
    """The cached run continues and is not replayed."""
    run_id = await world.start_run(TIMER)
    before = world.kinds()
    for _ in range(3):
        call = start_update(world)
        assert await received_updates(world) == ["u"]
        assert world.kinds() == before
        await world.complete(run_id, reject())
        state = await call
        assert state.failure == app_failure("no")
    assert world.kinds() == before
    query = asyncio.ensure_future(world.call(QueryWorkflow(workflow_id="w", query_name="q")))
    activation = await world.activation()
    assert activation.history_length == len(before)
    (query_event,) = activation.events
    assert isinstance(query_event, e.QueryReceived)
    await world.complete(run_id, c.AnswerQuery(query_event.id, text("a")))
    assert (await query).result == (text("a"),)
    await world.signal()
    activation = await world.activation()
    assert [type(event) for event in activation.events] == [e.SignalReceived]
    assert activation.history_length == len(before) + 3
    await world.complete(run_id, c.CompleteRun(text("end")))
    assert "WorkflowExecutionCompleted" in world.kinds()


async def test_signal_during_a_rejected_update_has_its_own_task(world: World) -> None:
    run_id = await world.start_run(TIMER)
    before = world.kinds()
    call = start_update(world)
    await received_updates(world)
    await world.signal()
    assert world.kinds() == before
    await world.complete(run_id, reject())
    assert (await call).failure is not None
    activation = await world.activation()
    assert [type(event) for event in activation.events] == [e.SignalReceived]
    assert world.kinds() == [
        *before,
        "WorkflowExecutionSignaled",
        "WorkflowTaskScheduled",
        "WorkflowTaskStarted",
    ]


async def test_signal_precedes_an_update_in_the_same_task(world: World) -> None:
    run_id = await world.start_run(TIMER)
    before = world.kinds()
    world.handle.request_eviction(run_id)
    await world.activation()  # while the eviction is out nothing is taken
    call = start_update(world)
    await settle()
    await world.signal()
    await world.complete(run_id)
    assert world.kinds() == [*before, "WorkflowExecutionSignaled", "WorkflowTaskScheduled"]
    replayed = await world.activation()
    assert replayed.is_replaying
    await world.complete(run_id, TIMER)
    activation = await world.activation()
    assert [type(event) for event in activation.events] == [e.SignalReceived, e.UpdateReceived]
    await world.complete(run_id, reject())
    assert (await call).failure is not None
    assert world.kinds()[-1] == "WorkflowTaskCompleted"


async def test_failed_task_redelivers_its_updates(world: World) -> None:
    run_id = await world.start_run(TIMER)
    before = world.kinds()
    call = start_update(world)
    await received_updates(world)
    await world.fail(run_id)
    await world.eviction()
    assert world.kinds()[len(before) :] == [
        "WorkflowTaskScheduled",
        "WorkflowTaskStarted",
        "WorkflowTaskFailed",
        "WorkflowTaskScheduled",
    ]
    assert (await world.activation()).is_replaying
    await world.complete(run_id, TIMER)
    assert await received_updates(world) == ["u"]
    await world.complete(run_id, accept(), done())
    assert (await call).result == text("r")


async def test_timed_out_task_redelivers_its_updates(world: World) -> None:
    run_id = await world.start_run(TIMER)
    call = start_update(world)
    await received_updates(world)
    world.clock.advance(10)
    assert world.kinds()[-2:] == ["WorkflowTaskTimedOut", "WorkflowTaskScheduled"]
    await world.complete(run_id, accept(), done(result="late"))
    await world.eviction()
    await world.activation()
    await world.complete(run_id, TIMER)
    assert await received_updates(world) == ["u"]
    await world.complete(run_id, accept(), done())
    assert (await call).result == text("r")


async def test_unanswered_update_is_rejected(world: World) -> None:
    run_id = await world.start_run(TIMER)
    before = world.kinds()
    call = start_update(world)
    await received_updates(world)
    await world.complete(run_id)
    failure = (await call).failure
    assert failure is not None
    assert "wasn't processed" in failure.message
    assert world.kinds() == before


@pytest.mark.parametrize("commands", [(done(),), (accept(), accept()), (accept("other"),)])
async def test_invalid_update_responses_fail_the_task(world: World, commands: tuple[c.Command, ...]) -> None:
    run_id = await world.start_run(TIMER)
    call = start_update(world)
    await received_updates(world)
    await world.complete(run_id, *commands)
    evicted = await world.eviction()
    assert "out of order" in evicted.message
    call.cancel()


async def test_updates_during_a_task_are_delivered_with_the_next(world: World) -> None:
    run_id = await world.start_run(TIMER)
    first = start_update(world, "a")
    assert await received_updates(world) == ["a"]
    others = [start_update(world, "b"), start_update(world, "c")]
    await settle()
    await world.complete(run_id, reject("a"))
    assert (await first).failure is not None
    assert await received_updates(world) == ["b", "c"]
    await world.complete(run_id, accept("c"), accept("b"), done("b"), done("c"))
    assert [(await other).result for other in others] == [text("r")] * 2


async def test_replay_repeats_accepted_updates_without_their_validators() -> None:
    world = await World.new(max_cached_workflows=0)
    run_id = await world.start_run(TIMER)
    await world.activation()
    await world.complete(run_id)
    activations: list[e.Activation] = []
    for name, answer in (("a", (accept("a"), done("a"))), ("b", (reject("b"),)), ("c", (accept("c"),))):
        call = start_update(world, name, UpdateStage.ACCEPTED)
        activations = []
        while True:
            activation = await world.activation()
            activations.append(activation)
            if isinstance(activation.events[0], e.RunStarted):
                await world.complete(run_id, TIMER)
            elif activation.is_replaying:
                await world.complete(run_id, accept("a"), done("a"))
            else:
                break
        await world.complete(run_id, *answer)
        await call
        await world.activation()
        await world.complete(run_id)
    assert [[type(event).__name__ for event in activation.events] for activation in activations] == [
        ["RunStarted"],
        ["UpdateReceived"],
        ["UpdateReceived"],
    ]
    (repeated,), (fresh,) = activations[1].events, activations[2].events
    assert isinstance(repeated, e.UpdateReceived)
    assert isinstance(fresh, e.UpdateReceived)
    assert (repeated.id, repeated.run_validator) == ("a", False)
    assert (fresh.id, fresh.run_validator) == ("c", True)


async def test_accepted_updates_survive_a_crash_and_unaccepted_ones_are_lost() -> None:
    world = await World.new()
    run_id = await world.start_run(TIMER)
    first = start_update(world, "done")
    await received_updates(world)
    await world.complete(run_id, accept("done"), done("done"))
    await first
    second = start_update(world, "accepted", UpdateStage.ACCEPTED)
    await received_updates(world)
    await world.complete(run_id, accept("accepted"))
    await second
    lost = start_update(world, "lost")
    await received_updates(world)
    before = world.kinds()
    lost.cancel()
    after = await world.successor()
    assert after.kinds() == before
    record = after.record()
    assert record.run.task is None
    assert (await after.call(request("done"))).result == text("r")
    poll = PollUpdate(workflow_id="w", update_id="accepted", rpc_timeout=0.0)
    assert (await after.call(poll)).stage is UpdateStage.ACCEPTED
    with pytest.raises(WorkflowNotFoundError):
        await after.call(PollUpdate(workflow_id="w", update_id="lost"))
    repeated = start_update(after, "lost")
    for commands in ((TIMER,), (accept("done"), done("done")), (accept("accepted"),)):
        assert (await after.activation()).is_replaying
        await after.complete(run_id, *commands)
    assert await received_updates(after) == ["lost"]
    await after.complete(run_id, accept("lost"), done("lost"), done("accepted"))
    assert (await repeated).result == text("r")


async def test_closing_run_fails_accepted_updates_and_aborts_others(world: World) -> None:
    run_id = await world.start_run(TIMER)
    first = start_update(world, "a")
    await received_updates(world)
    second = start_update(world, "b")
    await settle()
    await world.complete(run_id, accept("a"), c.CompleteRun(text("end")))
    failure = (await first).failure
    assert failure is not None
    assert isinstance(failure.info, ApplicationFailure)
    assert failure.info.type == "AcceptedUpdateCompletedWorkflow"
    with pytest.raises(WorkflowNotFoundError, match="aborted by closing workflow"):
        await second
    with pytest.raises(WorkflowNotFoundError, match="already completed"):
        await world.call(request("c"))


async def test_undelivered_update_moves_to_the_next_run(world: World) -> None:
    """An update that names the run id is aborted instead."""
    run_id = await world.start_run(TIMER)
    await world.signal()
    await world.activation()
    anyone, this = start_update(world, "a"), start_update(world, "b", run_id=run_id)
    await settle()
    await world.complete(run_id, c.ContinueAsNew())
    with pytest.raises(WorkflowNotFoundError, match="aborted by closing workflow"):
        await this
    while True:
        activation = await world.activation()
        if activation.run_id != run_id:
            break
        await world.complete(run_id)
    assert [type(event) for event in activation.events] == [e.RunStarted, e.UpdateReceived]
    await world.complete(activation.run_id, accept("a"), done("a"))
    assert (await anyone).run_id == activation.run_id


async def test_number_of_updates_is_limited() -> None:
    """Above the limit in flight an update waits; above the total limit it is rejected."""
    world = await World.new(limits=Limits(updates_in_flight=2, updates=3))
    run_id = await world.start_run(TIMER)
    first, second = start_update(world, "a"), start_update(world, "b")
    await settle()
    third = start_update(world, "c")
    await settle()
    assert await received_updates(world) == ["a", "b"]
    await world.complete(run_id, reject("a"), accept("b"), done("b"))
    assert (await first).failure is not None
    assert (await second).result == text("r")
    assert await received_updates(world) == ["c"]
    await world.complete(run_id, accept("c"), done("c"))
    await third
    fourth = start_update(world, "d")
    await received_updates(world)
    await world.complete(run_id, accept("d"), done("d"))
    await fourth
    with pytest.raises(ServiceError) as caught:
        await world.call(request("e"))
    assert caught.value.status == "FAILED_PRECONDITION"
    assert (await world.call(request("d"))).result == text("r")


async def test_update_completes_after_its_caller_is_cancelled(world: World) -> None:
    run_id = await world.start_run(TIMER)
    call = start_update(world)
    await received_updates(world)
    call.cancel()
    await settle()
    await world.complete(run_id, accept(), done())
    assert (await world.call(request())).result == text("r")
    await world.call(TerminateWorkflow(workflow_id="w"))
    await world.activation()
    await world.complete(run_id)
    record = world.record()
    assert not record.users
    assert (await world.call(DescribeWorkflow(workflow_id="w"))).task_attempt == 0
