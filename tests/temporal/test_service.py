"""Every request of a client on a server, and the errors of rejected requests."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from temporalio.client import WorkflowHistory

from hourglass._contract import service as sv
from hourglass._contract import workflows as wf
from hourglass._contract.handle import AttemptFailed
from hourglass._evaluator import commands as cmd
from hourglass._evaluator import events as ev
from hourglass._evaluator.specs import RetryRule
from hourglass.converter import ApplicationFailure, Failure, Payload
from hourglass.errors import (
    QueryFailedError,
    ServiceError,
    ServiceTimeoutError,
    WorkflowAlreadyStartedError,
    WorkflowNotFoundError,
)
from hourglass.testing import DevServer

from . import live

pytestmark = pytest.mark.server

BLUE = Payload(b'"blue"', "json/plain", {"type": b"Keyword"})


def controlled_by_messages(activation: ev.Activation) -> tuple[cmd.Command, ...]:
    """A workflow that does what its signals and queries request."""
    commands: list[cmd.Command] = []
    for event in activation.events:
        match event:
            case ev.SignalReceived("return"):
                commands.append(cmd.CompleteRun(event.arguments[0]))
            case ev.SignalReceived("fail"):
                commands.append(cmd.FailRun(Failure("boom", ApplicationFailure("Boom", True))))
            case ev.SignalReceived("again"):
                commands.append(cmd.ContinueAsNew())
            case ev.CancelRequested():
                commands.append(cmd.CancelRun())
            case ev.QueryReceived(id, "echo", arguments):
                commands.append(cmd.AnswerQuery(id, arguments[0]))
            case ev.QueryReceived(id):
                commands.append(cmd.AnswerQuery(id, failure=Failure("no such query")))
            case _:
                pass
    return tuple(commands)


def signal(workflow_id: str, name: str, *arguments: Payload, **options: Any) -> wf.SignalWorkflow:
    return wf.SignalWorkflow(
        workflow_id=workflow_id, signal_name=name, request_id=live.unique("r"), arguments=arguments, **options
    )


async def test_workflow_start_options_appear_in_its_description(server: DevServer) -> None:
    queue = live.unique("q")
    async with live.connected(server.target) as connection:
        started = await connection.call(
            live.start(
                queue,
                queue,
                arguments=(live.value(1),),
                execution_timeout=100.0,
                run_timeout=50.0,
                task_timeout=5.0,
                retry_policy=RetryRule(maximum_attempts=3),
                memo={"note": live.value("m")},
                search_attributes={"Colour": BLUE},
                headers={"h": live.value("h")},
                static_summary=live.value("short"),
                static_details=live.value("long"),
                priority_key=2,
            )
        )
        assert started.started
        described = await connection.call(wf.DescribeWorkflow(workflow_id=queue))
        summary = described.summary
        assert (summary.workflow_id, summary.run_id) == (queue, started.run_id)
        assert (summary.workflow_type, summary.task_queue) == ("Sample", queue)
        assert summary.status is wf.WorkflowStatus.RUNNING
        assert summary.memo == {"note": live.value("m")}
        assert summary.search_attributes["Colour"].data == BLUE.data
        assert summary.start_time_ns > 0
        assert summary.close_time_ns == 0
        assert described.first_execution_run_id == started.run_id
        assert described.static_summary == live.value("short")
        assert described.static_details == live.value("long")
        assert described.task_attempt == 1
        first = json.loads((await live.history(connection, queue))[0])
        attributes = first["workflowExecutionStartedEventAttributes"]
        assert attributes["workflowRunTimeout"] == "50s"
        assert attributes["retryPolicy"]["maximumAttempts"] == 3
        assert attributes["header"]["fields"].keys() == {"h"}
        assert attributes["priority"] == {"priorityKey": 2}
        await connection.call(wf.TerminateWorkflow(workflow_id=queue))


async def test_workflow_description_lists_pending_activities_with_their_last_failure(
    server: DevServer,
) -> None:
    queue = live.unique("q")

    async def fail(item: Any) -> Any:
        return AttemptFailed(item.token, Failure("not yet", ApplicationFailure("NotYet")))

    async with (
        live.connected(server.target) as connection,
        live.working(connection, queue, live.one_activity, fail),
    ):
        await connection.call(live.start(queue, queue))
        pending: Any = ()
        while not pending or pending[0].last_failure is None:
            described = await connection.call(wf.DescribeWorkflow(workflow_id=queue))
            pending = described.pending_activities
            await asyncio.sleep(0.01)
        assert (pending[0].activity_id, pending[0].activity_type) == ("1", "echo")
        assert pending[0].state == "SCHEDULED"
        assert pending[0].last_failure.message == "not yet"
        assert pending[0].last_worker_identity == connection.identity
        await connection.call(wf.TerminateWorkflow(workflow_id=queue))


async def test_wait_for_close_reports_every_outcome_of_a_run(server: DevServer) -> None:
    queue = live.unique("q")
    async with (
        live.connected(server.target) as connection,
        live.working(connection, queue, controlled_by_messages),
    ):

        async def ended(name: str, *end: sv.Request[Any], **options: Any) -> wf.Outcome:
            started = await connection.call(live.start(queue, name, **options))
            for request in end:
                await connection.call(request)
            return await live.outcome(connection, name, started.run_id)

        a, b, c, d, e, f = (live.unique(letter) for letter in "abcdef")
        assert await ended(a, signal(a, "return", live.value(9))) == wf.RunCompleted((live.value(9),))
        failed = await ended(b, signal(b, "fail"))
        assert isinstance(failed, wf.RunFailed)
        assert failed.failure.message == "boom"
        assert failed.failure.info == ApplicationFailure("Boom", True)
        cancel = wf.CancelWorkflow(workflow_id=c, request_id=live.unique("r"), reason="enough")
        assert await ended(c, cancel) == wf.RunCanceled()
        end = wf.TerminateWorkflow(workflow_id=d, reason="enough", details=(live.value(1),))
        assert await ended(d, end) == wf.RunTerminated("enough", (live.value(1),))
        continued = await ended(e, signal(e, "again"))
        assert isinstance(continued, wf.RunContinued)
        latest = await connection.call(wf.DescribeWorkflow(workflow_id=e))
        assert latest.summary.run_id == continued.new_run_id
        assert await ended(f, run_timeout=1.0) == wf.RunTimedOut()
        await connection.call(wf.TerminateWorkflow(workflow_id=e))


async def test_wait_for_close_of_an_open_run_returns_still_open(server: DevServer) -> None:
    async with live.connected(server.target) as connection:
        queue = live.unique("q")
        started = await connection.call(live.start(queue, queue))
        request = wf.WaitForClose(workflow_id=queue, run_id=started.run_id, rpc_timeout=0.2)
        assert await connection.call(request) == wf.StillOpen(started.run_id)
        waiting = wf.GetHistory(workflow_id=queue, wait_new=True)
        page = await connection.call(waiting)
        assert live.kinds(list(page.events))[0] == "WORKFLOW_EXECUTION_STARTED"
        later = wf.GetHistory(
            workflow_id=queue, wait_new=True, next_page_token=page.next_page_token, rpc_timeout=0.2
        )
        nothing = await connection.call(later)
        assert nothing.events == ()
        assert nothing.next_page_token
        await connection.call(wf.TerminateWorkflow(workflow_id=queue))


async def test_signal_with_start_starts_a_workflow_once(server: DevServer) -> None:
    queue = live.unique("q")
    both: dict[str, Any] = {"signal_name": "return", "signal_arguments": (live.value(3),)}
    quiet: dict[str, Any] = {"signal_name": "hello"}
    async with (
        live.connected(server.target) as connection,
        live.working(connection, queue, controlled_by_messages),
    ):
        first = await connection.call(live.start(queue, queue, **quiet))
        second = await connection.call(live.start(queue, queue, **both))
        assert (first.started, second.started) == (True, False)
        assert first.run_id == second.run_id
        assert await live.outcome(connection, queue) == wf.RunCompleted((live.value(3),))


async def test_start_with_the_same_request_id_starts_a_workflow_once(server: DevServer) -> None:
    queue = live.unique("q")
    async with live.connected(server.target) as connection:
        started = await connection.call(live.start(queue, queue, request_id="same"))
        again = await connection.call(live.start(queue, queue, request_id="same"))
        assert again.run_id == started.run_id
        with pytest.raises(WorkflowAlreadyStartedError, match=queue) as caught:
            await connection.call(live.start(queue, queue))
        assert (caught.value.workflow_id, caught.value.run_id) == (queue, started.run_id)
        existing = await connection.call(
            live.start(queue, queue, id_conflict_policy=wf.IdConflictPolicy.USE_EXISTING)
        )
        assert existing == wf.Started(started.run_id, False)
        await connection.call(wf.TerminateWorkflow(workflow_id=queue))


async def test_query_is_answered_fails_or_times_out_without_a_worker(server: DevServer) -> None:
    queue = live.unique("q")
    async with live.connected(server.target) as connection:
        await connection.call(live.start(queue, queue))
        ask = wf.QueryWorkflow(workflow_id=queue, query_name="echo", arguments=(live.value(5),))
        async with live.working(connection, queue, controlled_by_messages):
            assert await connection.call(ask) == wf.QueryAnswer((live.value(5),))
            with pytest.raises(QueryFailedError, match="no such query"):
                await connection.call(wf.QueryWorkflow(workflow_id=queue, query_name="other"))
        lonely = wf.QueryWorkflow(workflow_id=queue, query_name="echo", rpc_timeout=0.5)
        with pytest.raises(
            ServiceTimeoutError, match="check that a worker of the workflow's task queue is running"
        ):
            await connection.call(lonely)
        await connection.call(wf.TerminateWorkflow(workflow_id=queue))


async def test_workflows_are_listed_in_pages_and_counted_by_a_filter(server: DevServer) -> None:
    kind = live.unique("Kind").replace("-", "")
    async with live.connected(server.target) as connection:
        ids = {live.unique("w") for _ in range(3)}
        for workflow_id in ids:
            await connection.call(live.start("nobody", workflow_id, workflow_type=kind))
        query = f'WorkflowType = "{kind}"'

        async def all_visible() -> bool:
            return (await connection.call(wf.CountWorkflows(query=query))).count == 3

        await live.until(all_visible)
        summaries: list[wf.WorkflowSummary] = []
        token = b""
        for _ in range(5):
            page = await connection.call(wf.ListWorkflows(query=query, page_size=2, next_page_token=token))
            assert len(page.workflows) <= 2
            summaries += page.workflows
            token = page.next_page_token
            if not token:
                break
        assert {summary.workflow_id for summary in summaries} == ids
        assert {summary.workflow_type for summary in summaries} == {kind}
        with pytest.raises(ServiceError, match="ListWorkflows was rejected") as caught:
            await connection.call(wf.ListWorkflows(query="WorkflowType ="))
        assert caught.value.status == "INVALID_ARGUMENT"
        for workflow_id in ids:
            await connection.call(wf.TerminateWorkflow(workflow_id=workflow_id))


@pytest.mark.parametrize(
    "request_for",
    [
        lambda name: wf.SignalWorkflow(workflow_id=name, signal_name="s", request_id="r"),
        lambda name: wf.QueryWorkflow(workflow_id=name, query_name="q"),
        lambda name: wf.CancelWorkflow(workflow_id=name, request_id="r"),
        lambda name: wf.TerminateWorkflow(workflow_id=name),
        lambda name: wf.DescribeWorkflow(workflow_id=name),
        lambda name: wf.WaitForClose(workflow_id=name),
        lambda name: wf.GetHistory(workflow_id=name),
    ],
)
async def test_request_for_an_unknown_workflow_fails_with_its_id(server: DevServer, request_for: Any) -> None:
    name = live.unique("missing")
    async with live.connected(server.target) as connection:
        with pytest.raises(WorkflowNotFoundError, match=name) as caught:
            await connection.call(request_for(name))
        assert caught.value.status == "NOT_FOUND"


async def test_fetched_history_can_be_read_by_temporalio(server: DevServer) -> None:
    queue = live.unique("q")
    async with live.connected(server.target) as connection, live.working(connection, queue):
        await connection.call(live.start(queue, queue))
        await live.outcome(connection, queue)
        events = await live.history(connection, queue)
    text = json.dumps({"events": [json.loads(event) for event in events]})
    read = WorkflowHistory.from_json(queue, text)
    assert len(read.events) == len(events) == 11
    assert json.loads(read.to_json()) == json.loads(text)


async def test_closed_connection_rejects_requests(server: DevServer) -> None:
    async with live.connected(server.target) as connection:
        pass
    await connection.close()
    with pytest.raises(ServiceError, match="closed"):
        await connection.call(wf.CountWorkflows())
