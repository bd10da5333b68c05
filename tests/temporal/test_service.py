"""Long polls, pages of a list and a closed connection on a server."""

from __future__ import annotations

import pytest

from hourglass._contract import workflows as wf
from hourglass.errors import ServiceError
from hourglass.testing import DevServer

from . import live

pytestmark = pytest.mark.server


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


async def test_closed_connection_rejects_requests(server: DevServer) -> None:
    async with live.connected(server.target) as connection:
        pass
    await connection.close()
    with pytest.raises(ServiceError, match="closed"):
        await connection.call(wf.CountWorkflows())
