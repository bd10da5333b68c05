"""Every request of a client on a server, and the errors of rejected requests."""

from __future__ import annotations

from typing import Any

import pytest

from hourglass._contract import workflows as wf
from hourglass._evaluator import commands as cmd
from hourglass._evaluator import events as ev
from hourglass.converter import Failure
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


def answers_echo(activation: ev.Activation) -> tuple[cmd.Command, ...]:
    """A workflow with one query, which returns its argument."""
    return tuple(
        cmd.AnswerQuery(event.id, event.arguments[0])
        if event.name == "echo"
        else cmd.AnswerQuery(event.id, failure=Failure("no such query"))
        for event in activation.events
        if isinstance(event, ev.QueryReceived)
    )


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
        async with live.working(connection, queue, answers_echo):
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


async def test_closed_connection_rejects_requests(server: DevServer) -> None:
    async with live.connected(server.target) as connection:
        pass
    await connection.close()
    with pytest.raises(ServiceError, match="closed"):
        await connection.call(wf.CountWorkflows())
