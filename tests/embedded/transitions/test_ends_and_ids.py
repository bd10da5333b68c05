"""The end of runs, the next run of a chain, waits for the end, and the reuse of workflow ids."""

from __future__ import annotations

import pytest

from hourglass._contract import workflows as wf
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass.client import IdReusePolicy
from hourglass.errors import WorkflowAlreadyStartedError, WorkflowNotFoundError

from ..memory_world import World, start_waiting, text


def signal(name: str = "s", request_id: str = "") -> wf.SignalWorkflow:
    return wf.SignalWorkflow(workflow_id="w", signal_name=name, request_id=request_id)


async def test_run_can_be_cancelled_or_terminated_until_it_closes(world: World) -> None:
    """Cancellation is an event for the run, termination closes it; requests to a closed run are rejected."""
    run_id = await world.start_run()
    for _ in range(2):
        await world.call(wf.CancelWorkflow(workflow_id="w", request_id="", reason="stop"))
    assert (await world.activation()).events == (e.CancelRequested("stop"),)
    await world.complete(run_id, c.CancelRun())
    assert await world.outcome() == wf.RunCanceled()
    other = (await world.start("v")).run_id
    await world.call(wf.TerminateWorkflow(workflow_id="v", run_id=other, reason="why"))
    assert await world.outcome("v") == wf.RunTerminated("why")
    await world.call(wf.CancelWorkflow(workflow_id="v", request_id=""))
    for request in (
        signal(),
        wf.TerminateWorkflow(workflow_id="v"),
        wf.DescribeWorkflow(workflow_id="unknown"),
        wf.TerminateWorkflow(workflow_id="v", first_execution_run_id="another"),
    ):
        with pytest.raises(WorkflowNotFoundError):
            await world.call(request)  # type: ignore[arg-type]


async def test_terminated_run_is_evicted_from_its_worker(world: World) -> None:
    run_id = await world.start_run()
    await world.call(wf.TerminateWorkflow(workflow_id="w"))
    (evicted,) = (await world.activation()).events
    assert evicted == e.RunEvicted("WORKFLOW_EXECUTION_ENDING", "the run has closed")
    await world.complete(run_id)


async def test_history_request_waits_for_new_events(world: World) -> None:
    run_id = (await world.start()).run_id
    page = await world.call(wf.GetHistory(workflow_id="w", wait_new=True))
    assert (len(page.events), page.next_page_token) == (2, b"2")
    more = wf.GetHistory(workflow_id="w", wait_new=True, next_page_token=page.next_page_token)
    waiting = await start_waiting(world.call(more))
    assert not waiting.done()
    await world.activation()
    assert len((await waiting).events) == 1
    await world.complete(run_id, c.CompleteRun(text("r")))
    last = await world.call(wf.GetHistory(workflow_id="w", wait_new=True, next_page_token=b"3"))
    assert (len(last.events), last.next_page_token) == (2, b"")


# --- ids --------------------------------------------------------------------------------------------------


async def test_id_reuse_policies_apply_to_a_closed_run(world: World) -> None:
    await world.start()
    await world.call(wf.TerminateWorkflow(workflow_id="w"))
    with pytest.raises(WorkflowAlreadyStartedError):
        await world.start(id_reuse_policy=IdReusePolicy.REJECT_DUPLICATE)
    failed_only = IdReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY
    await world.start_run(c.CompleteRun(text("r")), id_reuse_policy=failed_only)
    with pytest.raises(WorkflowAlreadyStartedError):
        await world.start(id_reuse_policy=failed_only)
    await world.start()
