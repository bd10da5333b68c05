"""Temporal's limits: what exceeds them is rejected, or terminated, with Temporal's messages."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.specs import made

from hourglass._contract import activities as ac
from hourglass._contract import workflows as wf
from hourglass._embedded.transitions.size_limits import (
    TOO_LARGE_BLOB,
    TOO_LARGE_HISTORY,
    TOO_LARGE_TRANSACTION,
    TOO_MANY_EVENTS,
    TOO_MANY_SIGNALS,
    Limits,
)
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass._history import events as h
from hourglass.converter import Payload
from hourglass.errors import ServiceError

from ..memory_world import World, activity, app_failure, settle, text


def signal(number: int = 0, size: int = 1) -> wf.SignalWorkflow:
    return wf.SignalWorkflow(
        workflow_id="w", signal_name="s", request_id=str(number), arguments=(Payload(b"x" * size),)
    )


def schedule(count: int) -> list[c.Command]:
    return [activity(seq) for seq in range(1, count + 1)]


def test_default_limits_equal_temporals() -> None:
    limits = Limits()
    assert (limits.blob_bytes, limits.history_events, limits.pending) == (2 << 20, 51_200, 2_000)
    assert (limits.history_bytes, limits.suggest_events, limits.suggest_bytes) == (50 << 20, 4096, 4 << 20)


async def test_run_with_too_many_events_is_terminated() -> None:
    world = await World.new(limits=Limits(history_events=20))
    await world.start()
    for number in range(19):
        await world.call(signal(number))
    with pytest.raises(ServiceError, match=TOO_MANY_EVENTS) as caught:
        await world.call(signal(99))
    assert caught.value.status == "INVALID_ARGUMENT"
    assert world.kinds()[-2:] == ["WorkflowExecutionSignaled", "WorkflowExecutionTerminated"]
    assert len(world.kinds()) == 22
    assert await world.outcome() == wf.RunTerminated(TOO_MANY_EVENTS)


async def test_run_with_too_large_a_history_is_terminated() -> None:
    world = await World.new(limits=Limits(history_bytes=5000))
    run_id = await world.start_run(c.StartTimer(1, 10**9))
    await world.call(signal(1, 6000))
    record = world.record(run_id=run_id)
    assert record.run.history_size > 6000
    await world.eviction()
    assert await world.outcome() == wf.RunTerminated(TOO_LARGE_HISTORY)


async def test_too_many_pending_activities_fail_the_task() -> None:
    world = await World.new(limits=Limits(pending=3))
    run_id = await world.start_run(*schedule(4))
    await world.eviction()
    assert world.kinds()[-1] == "WorkflowTaskFailed"
    record = world.record(run_id=run_id)
    failed = record.events[-1].attributes
    assert isinstance(failed, h.WorkflowTaskFailed)
    assert failed.cause == h.PENDING_ACTIVITIES_LIMIT_EXCEEDED
    assert failed.failure is not None
    assert "pending activities, 3, has reached the per-workflow limit of 3" in failed.failure.message
    assert record.run.activities == {}
    await world.activation()
    await world.complete(run_id, *schedule(3))
    assert len(record.run.activities) == 3


LARGE = Payload(b"x" * 101)


@pytest.mark.parametrize(
    ("commands", "cause", "message"),
    [
        (
            [msgspec.structs.replace(schedule(1)[0], arguments=(LARGE,))],
            h.PAYLOADS_TOO_LARGE,
            "101 bytes; at most 100",
        ),
        ([c.CompleteRun(LARGE)], h.PAYLOADS_TOO_LARGE, "the result of CompleteRun"),
        (
            [msgspec.structs.replace(each, activity_id="mine") for each in schedule(2)],
            h.SCHEDULE_ACTIVITY_DUPLICATE_ID,
            "an activity with the id 'mine' is already pending",
        ),
    ],
)
async def test_invalid_commands_fail_the_task(commands: list[c.Command], cause: int, message: str) -> None:
    world = await World.new(limits=Limits(blob_bytes=100))
    run_id = await world.start_run(*commands)
    record = world.record(run_id=run_id)
    failed = record.events[-1].attributes
    assert isinstance(failed, h.WorkflowTaskFailed)
    assert failed.cause == cause
    assert failed.failure is not None
    assert message in failed.failure.message
    assert record.run.activities == {}


async def test_oversized_payload_is_rejected() -> None:
    """The limit itself is allowed."""
    world = await World.new(limits=Limits(blob_bytes=100))
    large = Payload(b"x" * 101)
    for request in (
        made(
            wf.StartWorkflow,
            workflow_id="w",
            workflow_type="W",
            task_queue="q",
            request_id="",
            memo={"k": large},
        ),
        signal(size=101),
        wf.QueryWorkflow(workflow_id="w", query_name="q", arguments=(large,)),
        ac.CompleteActivity(token=b"x", result=large),
        ac.CompleteActivity(token=b"x", failure=app_failure("y" * 101)),
    ):
        with pytest.raises(ServiceError, match=TOO_LARGE_BLOB):
            await world.call(request)
    await world.start(arguments=(Payload(b"x" * 60), Payload(b"x" * 40)))
    await world.call(signal(size=100))


@pytest.mark.parametrize("limits", [Limits(suggest_events=6), Limits(suggest_bytes=2000)])
async def test_continue_as_new_is_suggested_for_a_long_history(limits: Limits) -> None:
    world = await World.new(limits=limits)
    run_id = (await world.start()).run_id
    assert not (await world.activation()).continue_as_new_suggested
    await world.complete(run_id)
    await world.call(signal(1, 2000))
    activation = await world.activation()
    assert activation.continue_as_new_suggested
    assert activation.history_size > 2000
    record = world.record(run_id=run_id)
    task_started = record.events[-1].attributes
    assert isinstance(task_started, h.WorkflowTaskStarted)
    assert task_started.history_size == activation.history_size


async def test_too_many_held_events_fail_the_task_and_are_delivered() -> None:
    world = await World.new(limits=Limits(held_events=10))
    run_id = await world.start_run(*(c.StartTimer(seq, 10**9) for seq in range(11)))
    await world.call(signal(0))
    await world.activation()
    world.clock.advance(2)
    record = world.record(run_id=run_id)
    assert record.run.held == ()
    failed = next(
        event.attributes for event in record.events if isinstance(event.attributes, h.WorkflowTaskFailed)
    )
    assert isinstance(failed, h.WorkflowTaskFailed)
    assert failed.cause == h.FORCE_CLOSE_COMMAND
    await world.complete(run_id, c.CompleteRun(text("early")))
    await world.eviction()
    await world.activation()  # the first task again
    await world.complete(run_id, *(c.StartTimer(seq, 10**9) for seq in range(11)))
    again = await world.activation()
    assert [type(event) for event in again.events] == [e.SignalReceived, *[e.TimerFired] * 11]


async def test_signals_wait_while_too_many_events_are_held() -> None:
    world = await World.new(limits=Limits(held_events=3))
    run_id = await world.begin()
    await world.call(signal(99))
    await world.complete(run_id, c.ContinueAsNew())  # rejected: as on a server the task is repeated
    await world.activation()
    await world.complete(run_id)
    await world.activation()
    for number in range(3):
        await world.call(signal(number))
    calls = [asyncio.ensure_future(world.call(signal(number))) for number in (3, 4)]
    await settle()
    assert not any(call.done() for call in calls)
    await world.complete(run_id, c.ContinueAsNew())
    await asyncio.gather(*calls)
    assert world.kinds() == [
        "WorkflowExecutionStarted",
        *["WorkflowExecutionSignaled"] * 3,
        "WorkflowTaskScheduled",
        *["WorkflowExecutionSignaled"] * 2,
    ]


async def test_number_of_signals_is_limited() -> None:
    """A repeated signal is acknowledged again."""
    world = await World.new(limits=Limits(signals=3))
    run_id = await world.begin()
    for number in range(3):  # these are held until the task ends
        await world.call(signal(number))
    with pytest.raises(ServiceError, match=TOO_MANY_SIGNALS) as caught:
        await world.call(signal(3))
    assert caught.value.status == "INVALID_ARGUMENT"
    await world.call(signal(2))
    await world.complete(run_id, c.StartTimer(1, 10**12))
    with pytest.raises(ServiceError, match=TOO_MANY_SIGNALS):
        await world.start(signal_name="s")
    assert world.kinds().count("WorkflowExecutionSignaled") == 3


async def test_oversized_task_completion_terminates_its_run() -> None:
    world = await World.new(limits=Limits(transaction_bytes=10_000))
    run_id = (await world.start()).run_id
    await world.start("other")
    await world.activation()
    activities = [msgspec.structs.replace(each, arguments=(Payload(b"x" * 1000),)) for each in schedule(20)]
    await world.complete(run_id, *activities)
    outcome = await world.outcome()
    assert isinstance(outcome, wf.RunTerminated)
    assert outcome.reason.startswith(TOO_LARGE_TRANSACTION)
    assert world.kinds()[-1] == "WorkflowExecutionTerminated"
    assert "ActivityTaskScheduled" not in world.kinds()
    other = await world.activation()
    while other.run_id == run_id:
        await world.complete(run_id)
        other = await world.activation()
    await world.complete(other.run_id, c.CompleteRun(text("done")))
    assert isinstance(await world.outcome("other"), wf.RunCompleted)


async def test_large_held_events_fail_the_task_before_they_fill_a_row() -> None:
    world = await World.new(limits=Limits(held_bytes=10_000))
    await world.start()
    await world.activation()
    for number in range(11):
        await world.call(signal(number, 1000))
    assert "WorkflowTaskFailed" in world.kinds()
    record = world.record()
    assert len(record.run.held) < 11


def test_default_sizes_fit_into_a_row_of_sqlite() -> None:
    limits = Limits()
    assert limits.transaction_bytes + limits.blob_bytes < 500_000_000
    assert limits.held_bytes + limits.blob_bytes < limits.transaction_bytes


async def test_signal_above_the_limit_fails_in_the_sending_workflow() -> None:
    world = await World.new(limits=Limits(signals=1))
    await world.start(task_queue="elsewhere")
    await world.call(signal(1))
    sender = await world.begin("sender")
    send = c.SignalExternalWorkflow(seq=1, workflow_id="w", signal_name="s")
    await world.complete(sender, send)
    (event,) = (await world.activation()).events
    assert isinstance(event, e.ExternalSignalResolved)
    assert event.failure is not None
    assert "signal limit was exceeded" in event.failure.message
    assert b"SIGNAL_COUNT_LIMIT_EXCEEDED" in b"".join(await world.history("sender"))
