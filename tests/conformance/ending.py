"""Ends of runs: completion, continue-as-new and patches."""

from __future__ import annotations

import pytest

from hourglass import workflow
from hourglass.errors import WorkflowContinuedAsNewError

from . import activities
from .scenario import returns, scenario
from .world import World, event_types


@workflow.defn
def counts_down(number: int, log: list[str]) -> list[str]:
    if number == 0:
        return log
    activities.record_call(f"run {number}")
    return workflow.continue_as_new(number - 1, [*log, f"run {number}"])


@scenario()
def continue_as_new_chain_returns_result_of_last_run(world: World) -> None:
    handle = world.start(counts_down, 2, [])
    assert handle.result(timeout=60) == ["run 2", "run 1"]
    assert len(world.histories()) == 3
    with pytest.raises(WorkflowContinuedAsNewError):
        handle.result(timeout=20, follow_runs=False)


@workflow.defn
def continues_after_signal(carried: list[str]) -> list[str]:
    inbox = workflow.Channel("inbox", str)
    if carried:
        return [*carried, inbox.receive()]
    first = inbox.receive()
    return workflow.continue_as_new([first])


@scenario("loose")
def signal_by_workflow_id_reaches_run_after_continue_as_new(world: World) -> None:
    handle = world.start(continues_after_signal, [])
    handle.signal("inbox", "a")
    world.wait_until(lambda: world.client.get_workflow_handle(handle.id).describe().run_id != handle.run_id)
    world.client.get_workflow_handle(handle.id).signal("inbox", "b")
    assert handle.result(timeout=60) == ["a", "b"]


@workflow.defn
def runs_patched_code() -> list[str]:
    log = []
    if workflow.patched("new-way"):
        log.append(activities.record_call("new"))
    else:
        log.append(activities.record_call("old"))
    if workflow.patched("new-way"):
        log.append("still new")
    workflow.deprecate_patch("older")
    return log


@scenario()
def new_run_takes_patched_branch_and_records_marker_once(world: World) -> None:
    handle = world.start(runs_patched_code)
    assert handle.result(timeout=60) == ["new", "still new"]
    assert event_types(handle.history()).count("MARKER_RECORDED") == 2


@workflow.defn
def returns_none() -> None:
    return None


@scenario()
def workflow_without_steps_completes_in_first_task(world: World) -> None:
    handle = world.start(returns_none)
    assert handle.result(timeout=60) is None
    assert len(handle.history()) == 5


@returns("done")
@workflow.defn
def run_completes_with_open_activity_timer_and_task() -> str:
    activities.opens_gate_and_waits_for_go.start("begun")
    workflow.spawn(workflow.sleep, 3600)
    return "done"


@returns(380, max_cached_workflows=0)
@workflow.defn
def workflow_without_cache_replays_every_task() -> int:
    total = 0
    for number in range(20):
        total += activities.double(number)
    return total
