"""A handle on a server: workflow and activity tasks, cancelled pollers, malformed completions, evictions, shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import uvloop
from tests.polled import Polled
from tests.specs import made

from hourglass._contract import activities as ac
from hourglass._contract import workflows as wf
from hourglass._contract.handle import (
    ActivityDeferred,
    ActivityItem,
    ActivityResult,
    ActivityTask,
    HandleBroken,
    HandleConfig,
    Shutdown,
)
from hourglass._evaluator import commands as cmd
from hourglass._evaluator import events as ev
from hourglass._evaluator.specs import RetryRule
from hourglass.converter import ApplicationFailure, Failure
from hourglass.errors import ServiceError
from hourglass.testing import DevServer
from hourglass.workflow import ActivityCancellationType

from . import live

pytestmark = pytest.mark.server


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_handle_runs_a_workflow_with_an_activity_on_both_event_loops(
    server: DevServer, loop: Callable[[], Any]
) -> None:
    async def test() -> None:
        queue = live.unique("q")
        async with live.connected(server.target) as connection, live.working(connection, queue) as loops:
            await connection.call(live.start(queue, queue, arguments=(live.value({"a": 1}),)))
            assert await live.outcome(connection, queue) == wf.RunCompleted((live.value({"a": 1}),))
            first = loops.seen[0]
            assert isinstance(first.events[0], ev.RunStarted)
            assert (first.events[0].workflow_id, first.events[0].workflow_type) == (queue, "Sample")
            assert first.timestamp_ns > 0
            assert not first.is_replaying

    live.run(test, loop)


class UnknownCommand(cmd.Command, frozen=True):
    """A command without a translation."""


@pytest.mark.parametrize(
    "malformed",
    [(UnknownCommand(),), (cmd.AnswerQuery("legacy_query", live.value(1)), cmd.CompleteRun(live.value(1)))],
    ids=["ours", "core's"],
)
async def test_malformed_completion_fails_its_task_and_the_run_continues(
    server: DevServer, malformed: tuple[cmd.Command, ...]
) -> None:
    queue = live.unique("q")
    answers = [malformed]

    def evaluate(activation: ev.Activation) -> tuple[cmd.Command, ...]:
        return answers.pop() if answers else (cmd.CompleteRun(live.value("fixed")),)

    async with (
        live.connected(server.target) as connection,
        live.working(connection, queue, evaluate) as loops,
    ):
        await connection.call(live.start(queue, queue))
        assert await live.outcome(connection, queue) == wf.RunCompleted((live.value("fixed"),))
        assert "WORKFLOW_TASK_FAILED" in live.kinds(await live.history(connection, queue))
        assert ev.RunEvicted in {type(event) for event in loops.events(ev.Event)}


@pytest.mark.parametrize("by", ["token", "ids"])
@pytest.mark.parametrize("end", ["result", "failure", "cancelled"])
async def test_async_activity_is_completed_failed_or_cancelled_by_token_or_ids(
    server: DevServer, by: str, end: str
) -> None:
    queue = live.unique("q")
    deferred: asyncio.Future[ActivityTask] = asyncio.get_running_loop().create_future()

    async def execute(item: ActivityItem) -> ActivityResult | None:
        assert isinstance(item, ActivityTask)
        deferred.set_result(item)
        return ActivityDeferred(item.token)

    def evaluate(activation: ev.Activation) -> tuple[cmd.Command, ...]:
        for event in activation.events:
            if isinstance(event, ev.RunStarted):
                return (
                    made(
                        cmd.ScheduleActivity,
                        seq=1,
                        activity_id="a",
                        activity_type="later",
                        start_to_close_timeout=20.0,
                        retry_policy=RetryRule(maximum_attempts=1),
                        cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
                    ),
                )
            if isinstance(event, ev.CancelRequested):
                return (cmd.RequestCancelActivity(1),)
            if isinstance(event, (ev.ActivityCompleted, ev.ActivityFailed, ev.ActivityCancelled)):
                return (cmd.CompleteRun(live.value(type(event).__name__)),)
        return ()

    async with (
        live.connected(server.target) as connection,
        live.working(connection, queue, evaluate, execute),
    ):
        await connection.call(live.start(queue, queue))
        token = (await deferred).token
        where: dict[str, Any] = (
            {"token": token} if by == "token" else {"workflow_id": queue, "activity_id": "a"}
        )
        beat = ac.HeartbeatActivity(details=(live.value(1),), **where)
        assert not (await connection.call(beat)).cancel_requested
        ends: dict[str, tuple[dict[str, Any], str]] = {
            "result": ({"result": live.value(2)}, "ActivityCompleted"),
            "failure": ({"failure": Failure("no", ApplicationFailure("No"))}, "ActivityFailed"),
            "cancelled": ({"cancelled": True, "cancelled_details": (live.value(3),)}, "ActivityCancelled"),
        }
        how, expected = ends[end]
        if end == "cancelled":
            await connection.call(wf.CancelWorkflow(workflow_id=queue, request_id=live.unique("r")))

            async def cancel_requested() -> bool:
                return (await connection.call(beat)).cancel_requested

            await live.until(cancel_requested)
        await connection.call(ac.CompleteActivity(**how, **where))
        assert await live.outcome(connection, queue) == wf.RunCompleted((live.value(expected),))
        with pytest.raises(ServiceError, match="is no longer pending") as caught:
            await connection.call(ac.CompleteActivity(**how, **where))
        assert caught.value.status == "NOT_FOUND"


async def test_handle_shutdown_ends_both_kinds_of_work_and_rejects_later_calls(server: DevServer) -> None:
    async with live.connected(server.target) as connection:
        handle = Polled(await connection.open_handle(HandleConfig(task_queue=live.unique("q"))))
        polls = [asyncio.create_task(handle.poll_activation()), asyncio.create_task(handle.poll_activity())]
        await asyncio.wait(polls, timeout=0.05)
        handle.initiate_shutdown()
        handle.initiate_shutdown()
        for outcome in await asyncio.gather(*polls, return_exceptions=True):
            assert isinstance(outcome, Shutdown)
        with pytest.raises(Shutdown):
            await handle.poll_activation()
        await handle.finalize()
        await handle.inner.finalize()
        handle.initiate_shutdown()
        with pytest.raises(HandleBroken):
            await handle.complete_activation(cmd.Succeeded("r"))
        with pytest.raises(HandleBroken):
            handle.heartbeat(b"t", ())
        with pytest.raises(HandleBroken):
            handle.request_eviction("r")


async def test_second_handle_of_a_connection_on_the_same_queue_is_rejected(server: DevServer) -> None:
    queue = live.unique("q")
    async with live.connected(server.target) as connection, live.working(connection, queue):
        with pytest.raises(ServiceError, match=queue):
            await connection.open_handle(HandleConfig(task_queue=queue))
