"""How runs end and go on: continuing as new, patches, code that changed in between."""

from __future__ import annotations

import pytest

from hourglass import workflow
from hourglass.errors import WorkflowContinuedAsNewError

from . import acts
from .scenario import scenario
from .world import World, kinds


@workflow.defn
def counts_down(number: int, log: list[str]) -> list[str]:
    if number == 0:
        return log
    acts.note(f"run {number}")
    return workflow.continue_as_new(number - 1, [*log, f"run {number}"])


@scenario()
def continue_as_new(world: World) -> None:
    """Three runs in a chain; the result is the last one's, unless it is asked for the first alone."""
    handle = world.start(counts_down, 2, [])
    assert handle.result(timeout=60) == ["run 2", "run 1"]
    assert len(world.histories()) == 3
    with pytest.raises(WorkflowContinuedAsNewError):
        handle.result(timeout=20, follow_runs=False)


@workflow.defn
def continues_with_signal(carried: list[str]) -> list[str]:
    inbox = workflow.Channel("inbox", str)
    if carried:
        return [*carried, inbox.receive()]
    first = inbox.receive()
    return workflow.continue_as_new([first])


@scenario("loose")
def signals_reach_the_new_run(world: World) -> None:
    """A signal that is sent to the workflow's id after it continued reaches the new run."""
    handle = world.start(continues_with_signal, [])
    handle.signal("inbox", "a")
    world.until_true(
        lambda: world.client.get_workflow_handle(handle.id).describe().run_id != handle.run_id, ""
    )
    world.client.get_workflow_handle(handle.id).signal("inbox", "b")
    assert handle.result(timeout=60) == ["a", "b"]


@workflow.defn
def patched_way() -> list[str]:
    log = []
    if workflow.patched("new-way"):
        log.append(acts.note("new"))
    else:
        log.append(acts.note("old"))
    if workflow.patched("new-way"):
        log.append("still new")
    workflow.deprecate_patch("older")
    return log


@scenario()
def patches(world: World) -> None:
    """A new run takes the new way, marked once; a deprecated patch is marked too."""
    handle = world.start(patched_way)
    assert handle.result(timeout=60) == ["new", "still new"]
    assert kinds(handle.history()).count("MARKER_RECORDED") == 2


@workflow.defn
def nothing() -> None:
    return None


@scenario()
def empty(world: World) -> None:
    """A workflow that does nothing completes in its first task."""
    handle = world.start(nothing)
    assert handle.result(timeout=60) is None
    assert len(handle.history()) == 5


@workflow.defn
def leaves_things_running() -> str:
    acts.passes.start("begun")
    workflow.spawn(workflow.sleep, 3600)
    return "done"


@scenario()
def leaves_work_behind(world: World) -> None:
    """A run may return while an activity, a timer and a task are open."""
    assert world.run(leaves_things_running) == "done"


@workflow.defn
def twenty_steps() -> int:
    total = 0
    for number in range(20):
        total += acts.double(number)
    return total


@scenario(max_cached_workflows=0)
def nothing_cached(world: World) -> None:
    """With no cache every task replays the whole history, to the same end."""
    assert world.run(twenty_steps) == 380
