"""Histories written by the in-memory engine are Temporal's: `temporalio` reads them and Core replays them.

Commands equivalent to each `temporalio` workflow drive a run; then Core replays the exported history against the
workflow class. Core rejects wrong ids, links, order and markers.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import WorkflowHistory
from temporalio.exceptions import ActivityError
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner
from temporalio.workflow import ActivityCancellationType
from tests.specs import made

from hourglass._contract.handle import AttemptCancelled
from hourglass._contract.workflows import CancelWorkflow, SignalWorkflow, TerminateWorkflow
from hourglass._embedded.activations.cursor import seed_of
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass._evaluator import specs
from hourglass._evaluator.specs import RetryRule
from hourglass.converter import CanceledFailure, Failure, Payload

from ..memory_world import World, app_failure, text

MINUTE = timedelta(minutes=1)
DRAWN: list[float] = []


@workflow.defn(name="Steps")
class Steps:
    """Activities that succeed, fail and time out; a signal; a patch; a memo; timers that fire and are cancelled."""

    def __init__(self) -> None:
        self.signals = 0

    @workflow.signal
    def poke(self, _: str) -> None:
        self.signals += 1

    @workflow.run
    async def run(self, _: str) -> float:
        await workflow.execute_activity("act", "a", start_to_close_timeout=MINUTE)
        workflow.patched("new-way")
        for _ in range(2):
            with pytest.raises(ActivityError):
                await workflow.execute_activity("act", start_to_close_timeout=MINUTE)
        long = asyncio.create_task(asyncio.sleep(1000))
        await asyncio.sleep(1)
        long.cancel()
        await workflow.wait_condition(lambda: self.signals == 2)
        workflow.upsert_memo({"k": "v"})
        DRAWN.append(workflow.random().random())
        return DRAWN[-1]


async def drive_steps(world: World) -> None:
    run_id = (await world.start(workflow_type="Steps", arguments=(text("x"),))).run_id
    act = {"activity_type": "act", "start_to_close_timeout": 60.0}
    await world.activation()
    await world.complete(
        run_id, made(c.ScheduleActivity, seq=1, activity_id="1", **act, arguments=(text("a"),)), flags=(1001,)
    )
    task = await world.activity()
    await world.succeed(task, text("ok"))
    await world.activation()
    await world.complete(
        run_id, c.SetPatchMarker("new-way"), made(c.ScheduleActivity, seq=2, activity_id="2", **act)
    )
    task = await world.activity()
    failure = app_failure("no", non_retryable=True)
    await world.fail_attempt(task, failure)
    await world.activation()
    once = RetryRule(maximum_attempts=1)
    await world.complete(run_id, made(c.ScheduleActivity, seq=3, activity_id="3", **act, retry_policy=once))
    await world.activity()
    world.clock.advance(60)
    await world.activation()
    await world.complete(run_id, c.StartTimer(1, 10**9), c.StartTimer(2, 1000 * 10**9))
    world.clock.advance(1)
    await world.activation()
    await world.fail(run_id)  # a failed task, and its retry, leave no trace in what the workflow sees
    await world.activation()
    await world.complete(run_id)
    while (activation := await world.activation()).is_replaying:
        await _repeat_commands(world, activation)
    await world.call(
        SignalWorkflow(workflow_id="w", signal_name="poke", request_id="1", arguments=(text("p"),))
    )
    await world.complete(run_id, c.CancelTimer(2))
    await world.activation()
    await world.complete(run_id)
    await world.call(
        SignalWorkflow(workflow_id="w", signal_name="poke", request_id="2", arguments=(text("p"),))
    )
    await world.activation()
    value = random.Random(seed_of(run_id)).random()
    await world.complete(
        run_id, c.UpsertMemo({"k": text("v")}), c.CompleteRun(Payload(json.dumps(value).encode()))
    )


async def _repeat_commands(world: World, activation: e.Activation) -> None:
    """Repeat the commands of `Steps` for the worker that lost its cache."""
    act = {"activity_type": "act", "start_to_close_timeout": 60.0}
    match activation.events[-1]:
        case e.RunStarted():
            commands: tuple[c.Command, ...] = (made(c.ScheduleActivity, seq=1, activity_id="1", **act),)
        case e.ActivityCompleted():
            commands = (c.SetPatchMarker("new-way"), made(c.ScheduleActivity, seq=2, activity_id="2", **act))
        case e.ActivityFailed(seq=2):
            commands = (made(c.ScheduleActivity, seq=3, activity_id="3", **act),)
        case _:
            commands = (c.StartTimer(1, 10**9), c.StartTimer(2, 1000 * 10**9))
    await world.complete(activation.run_id, *commands)


@workflow.defn(name="Cancelling")
class Cancelling:
    """Activities cancelled in the three ways, started and not yet started; then the run itself is cancelled."""

    @workflow.run
    async def run(self) -> None:
        kinds = (
            ActivityCancellationType.TRY_CANCEL,
            ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            ActivityCancellationType.ABANDON,
        )
        for kind in kinds:
            handle = workflow.start_activity("act", start_to_close_timeout=MINUTE, cancellation_type=kind)
            await asyncio.sleep(1)
            handle.cancel()
            with pytest.raises(ActivityError):
                await handle
        waiting = workflow.start_activity("act", start_to_close_timeout=MINUTE, task_queue="unserved")
        await asyncio.sleep(1)
        waiting.cancel()
        with pytest.raises(ActivityError):
            await waiting
        await asyncio.sleep(1000)


async def drive_cancelling(world: World) -> None:
    run_id = await world.start_run(_cancellable(1), c.StartTimer(1, 10**9), workflow_type="Cancelling")
    for seq, kind in enumerate(specs.ActivityCancellationType, start=1):
        task = await world.activity()
        world.clock.advance(1)
        await _expect_event(world, e.TimerFired)
        await world.complete(run_id, c.RequestCancelActivity(seq))
        end = AttemptCancelled(task.token, Failure(info=CanceledFailure()))
        if kind is specs.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED:
            await world.cancel()
            await world.handle.complete_activity(end)
        await _expect_event(world, e.ActivityCancelled)
        await world.complete(run_id, _cancellable(seq + 1), c.StartTimer(seq + 1, 10**9))
        if kind is specs.ActivityCancellationType.TRY_CANCEL:
            await world.cancel()
            await world.handle.complete_activity(end)
        if kind is specs.ActivityCancellationType.ABANDON:
            await world.succeed(task)
    world.clock.advance(1)
    await _expect_event(world, e.TimerFired)
    await world.complete(run_id, c.RequestCancelActivity(4))
    await _expect_event(world, e.ActivityCancelled)
    await world.complete(run_id, c.StartTimer(5, 1000 * 10**9))
    await world.call(CancelWorkflow(workflow_id="w", request_id=""))
    await _expect_event(world, e.CancelRequested)
    await world.complete(run_id, c.CancelTimer(5), c.CancelRun())


def _cancellable(seq: int) -> c.ScheduleActivity:
    kind = specs.ActivityCancellationType(seq - 1 if seq < 4 else 0)
    queue = "unserved" if seq == 4 else ""
    return made(
        c.ScheduleActivity,
        seq=seq,
        activity_id=str(seq),
        activity_type="act",
        start_to_close_timeout=60.0,
        cancellation_type=kind,
        task_queue=queue,
    )


async def _expect_event(world: World, kind: type[e.Event]) -> None:
    activation = await world.activation()
    assert isinstance(activation.events[-1], kind), activation.events


@workflow.defn(name="Ends")
class Ends:
    @workflow.run
    async def run(self, how: str) -> None:
        if how == "fail":
            from temporalio.exceptions import ApplicationError

            raise ApplicationError("boom", type="T")
        if how == "continue":
            workflow.continue_as_new("fail")
        await asyncio.sleep(1000)


def drive_end(how: str) -> Callable[[World], Coroutine[Any, Any, None]]:
    async def drive(world: World) -> None:
        run_id = (await world.start(workflow_type="Ends", arguments=(text(how),), run_timeout=60.0)).run_id
        await world.activation()
        commands: dict[str, c.Command] = {
            "fail": c.FailRun(app_failure("boom", "T")),
            "continue": c.ContinueAsNew(arguments=(text("fail"),)),
        }
        await world.complete(run_id, commands.get(how, c.StartTimer(1, 1000 * 10**9)))
        if how == "terminate":
            await world.call(TerminateWorkflow(workflow_id="w", reason="enough"))
        if how == "time out":
            world.clock.advance(60)

    return drive


@pytest.mark.parametrize(
    ("drive", "definition", "last"),
    [
        (drive_steps, Steps, "EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED"),
        (drive_cancelling, Cancelling, "EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED"),
        (drive_end("fail"), Ends, "EVENT_TYPE_WORKFLOW_EXECUTION_FAILED"),
        (drive_end("continue"), Ends, "EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW"),
        (drive_end("terminate"), Ends, "EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED"),
        (drive_end("time out"), Ends, "EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT"),
    ],
    ids=["steps", "cancelling", "fail", "continue", "terminate", "time-out"],
)
async def test_core_replays_embedded_histories(
    world: World, drive: Callable[[World], Coroutine[Any, Any, None]], definition: type, last: str
) -> None:
    first = world.connection.engine.current
    await drive(world)
    record = first("w")
    assert record is not None
    run_id = record.run.started.first_run_id
    events = [json.loads(each) for each in await world.history(run_id=run_id)]
    assert events[-1]["eventType"] == last
    assert [int(event["eventId"]) for event in events] == list(range(1, len(events) + 1))
    history = WorkflowHistory.from_json("w", json.dumps({"events": events}))
    # Our field names must all be known to Temporal's own JSON form: what it does not know it would drop.
    written = json.loads(history.to_json())["events"]
    assert [list(each) for each in written] == [list(event) for event in events]
    replayer = Replayer(workflows=[definition], workflow_runner=UnsandboxedWorkflowRunner())
    await replayer.replay_workflow(history)


async def test_random_seed_matches_core(world: World) -> None:
    await drive_steps(world)
    record = world.record()
    events = [json.loads(each) for each in await world.history()]
    history = WorkflowHistory.from_json("w", json.dumps({"events": events}))
    DRAWN.clear()
    await Replayer(workflows=[Steps], workflow_runner=UnsandboxedWorkflowRunner()).replay_workflow(history)
    assert [random.Random(seed_of(record.run.run_id)).random()] == DRAWN


async def test_core_rejects_a_history_with_another_activity_id(world: World) -> None:
    """Shows that the tests above can fail."""
    await drive_steps(world)
    events = [json.loads(each) for each in await world.history()]
    scheduled = next(event for event in events if event["eventType"] == "EVENT_TYPE_ACTIVITY_TASK_SCHEDULED")
    scheduled["activityTaskScheduledEventAttributes"]["activityId"] = "7"
    history = WorkflowHistory.from_json("w", json.dumps({"events": events}))
    replayer = Replayer(workflows=[Steps], workflow_runner=UnsandboxedWorkflowRunner())
    with pytest.raises(workflow.NondeterminismError):
        await replayer.replay_workflow(history)
