"""The end of runs, the next run of a chain, waits for the end, and the reuse of workflow ids."""

from __future__ import annotations

import asyncio

import pytest

from hourglass._contract import workflows as wf
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass._evaluator.specs import RetryRule
from hourglass.client import IdReusePolicy
from hourglass.errors import ServiceError, WorkflowAlreadyStartedError, WorkflowNotFoundError

from ..memory_world import World, app_failure, start_waiting, text


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


async def test_run_timeout_closes_a_run_without_a_worker(world: World) -> None:
    await world.start(run_timeout=60.0)
    world.clock.advance(59)
    assert isinstance(await world.outcome(), wf.StillOpen)
    world.clock.advance(1)
    assert await world.outcome() == wf.RunTimedOut()


async def test_continue_as_new_and_retries_form_a_chain(world: World) -> None:
    first = await world.start_run(
        c.ContinueAsNew(arguments=(text("next"),)),
        retry_policy=RetryRule(maximum_attempts=2),
        memo={"m": text("1")},
    )
    outcome = await world.outcome(run_id=first)
    assert isinstance(outcome, wf.RunContinued)
    await world.activation()
    await world.complete(first)
    (second,) = (await world.activation()).events
    assert isinstance(second, e.RunStarted)
    assert (second.arguments, second.continued_run_id) == ((text("next"),), first)
    assert (second.first_execution_run_id, second.spec.memo) == (first, {"m": text("1")})
    await world.complete(outcome.new_run_id, c.FailRun(app_failure("no")))
    failed = await world.outcome(run_id=outcome.new_run_id)
    assert isinstance(failed, wf.RunFailed)
    assert failed.new_run_id
    await world.activation()
    await world.complete(outcome.new_run_id)
    assert world.handle.stepper.next_activation() is None
    world.clock.advance(1)
    (third,) = (await world.activation()).events
    assert isinstance(third, e.RunStarted)
    assert (third.attempt, third.last_failure) == (2, app_failure("no"))
    await world.complete(failed.new_run_id, c.FailRun(app_failure("no")))
    assert await world.outcome() == wf.RunFailed(app_failure("no"))


async def test_wait_for_close_returns_when_the_run_closes(world: World) -> None:
    run_id = (await world.start()).run_id
    assert await world.outcome() == wf.StillOpen(run_id)
    waiting = asyncio.create_task(world.call(wf.WaitForClose(workflow_id="w")))
    await world.activation()
    assert not waiting.done()
    await world.complete(run_id, c.CompleteRun(text("r")))
    assert await waiting == wf.RunCompleted((text("r"),))


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


async def test_id_conflict_policies_apply_to_an_open_run(world: World) -> None:
    """By default a second start fails; a repeated request returns the same run."""
    first = (await world.start(request_id="r")).run_id
    assert (await world.start(request_id="r")).run_id == first
    with pytest.raises(WorkflowAlreadyStartedError) as caught:
        await world.start(request_id="other")
    assert caught.value.run_id == first
    used = await world.start(id_conflict_policy=wf.IdConflictPolicy.USE_EXISTING)
    assert used == wf.Started(first, started=False)
    assert (await world.start(signal_name="hello")).run_id == first
    assert world.kinds().count("WorkflowExecutionSignaled") == 1
    replaced = await world.start(id_conflict_policy=wf.IdConflictPolicy.TERMINATE_EXISTING)
    assert replaced.run_id != first
    assert isinstance(await world.outcome(run_id=first), wf.RunTerminated)


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


async def test_workflow_lists_are_filtered_and_paged(world: World) -> None:
    for number in range(3):
        await world.start(f"w{number}", workflow_type="A" if number else "B")
    await world.call(wf.TerminateWorkflow(workflow_id="w2"))

    async def ids(query: str) -> list[str]:
        page = await world.call(wf.ListWorkflows(query=query))
        return [summary.workflow_id for summary in page.workflows]

    assert await ids("") == ["w1", "w0", "w2"]
    assert await ids("WorkflowType = 'A' AND ExecutionStatus='Running'") == ["w1"]
    assert await world.call(wf.CountWorkflows(query="WorkflowType = 'A'")) == wf.Count(2)
    page = await world.call(wf.ListWorkflows(page_size=2))
    second_page = await world.call(wf.ListWorkflows(page_size=2, next_page_token=page.next_page_token))
    assert (len(page.workflows), len(second_page.workflows), second_page.next_page_token) == (2, 1, b"")
    with pytest.raises(ServiceError):
        await ids("WorkflowId = 'a' AND")
