"""Import of a history from another engine: which runs continue, and which histories are rejected."""

from __future__ import annotations

from typing import Any

import pytest
from tests.specs import made

from hourglass._contract import workflows as wf
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass.errors import ServiceError

from ..memory_world import World, activity, text

SECOND = 10**9
ACTIVITY = activity(start_to_close_timeout=5.0)
CHILD = made(c.StartChildWorkflow, seq=1, workflow_id="child", workflow_type="c")
SIGNAL = c.SignalExternalWorkflow(seq=1, workflow_id="other", signal_name="s")


async def history_of(*commands: c.Command, task: bool = False) -> tuple[bytes, ...]:
    """Return the history of a run whose first task was completed with these commands; with `task` its next task is in
    progress.
    """
    world = await World.new()
    await world.start_run(*commands)
    if task:
        await world.signal()
        await world.activation()
    page = await world.call(wf.GetHistory(workflow_id="w"))
    await world.close()
    return tuple(page.events)


async def import_history(world: World, events: tuple[bytes, ...], **more: Any) -> wf.Started:
    return await world.call(wf.ImportWorkflow(workflow_id="w", events=events, request_id="r", **more))


async def test_imported_run_continues(world: World) -> None:
    """The timer and the activity are pending under the new run id, and the worker receives the complete history."""
    events = await history_of(ACTIVITY, c.StartTimer(1, 60 * SECOND))
    run_id = (await import_history(world, events)).run_id
    task = await world.activity()
    assert (task.activity_id, task.run_id) == ("1", run_id)
    await world.succeed(task, text("ok"))
    activation = await world.activation()
    assert isinstance(activation.events[0], e.RunStarted)
    assert activation.is_replaying
    await world.complete(run_id, ACTIVITY, c.StartTimer(1, 60 * SECOND))
    activation = await world.activation()
    assert activation.events == (e.ActivityCompleted(1, text("ok")),)
    await world.complete(run_id, c.CompleteRun(text("done")))
    assert await world.outcome() == wf.RunCompleted((text("done"),))


async def test_task_in_progress_fails_on_import_and_is_scheduled_again(world: World) -> None:
    """The worker of the other engine no longer has it."""
    events = await history_of(c.StartTimer(1, 60 * SECOND), task=True)
    await import_history(world, events)
    kinds = world.kinds()
    assert kinds[len(events) :] == ["WorkflowTaskFailed", "WorkflowTaskScheduled"]


async def test_repeated_import_is_one_run(world: World) -> None:
    events = await history_of(c.StartTimer(1, 60 * SECOND))
    first = await import_history(world, events)
    assert (await import_history(world, events)).run_id == first.run_id
    with pytest.raises(ServiceError):
        await world.call(wf.ImportWorkflow(workflow_id="w", events=events, request_id="another"))


async def test_dry_run_of_an_import_changes_nothing(world: World) -> None:
    started = await import_history(world, await history_of(c.StartTimer(1, 60 * SECOND)), dry_run=True)
    assert started.run_id == ""
    assert world.engine.current("w") is None


@pytest.mark.parametrize(
    ("commands", "cut", "message"),
    [
        ((), slice(0, 0), "does not begin with WorkflowExecutionStarted"),
        ((), slice(1, None), "does not begin with WorkflowExecutionStarted"),
        ((ACTIVITY,), slice(None, None, 2), "consecutive numbers, starting at 1"),
        ((c.CompleteRun(None),), slice(None), "has already closed"),
        ((CHILD,), slice(None), "waits for its child workflow 'child'"),
        ((SIGNAL,), slice(5), "the outcome of a signal or cancel request"),
    ],
    ids=["empty", "no start", "gaps", "ended", "child", "external signal"],
)
async def test_history_that_cannot_be_continued_is_rejected(
    world: World, commands: tuple[c.Command, ...], cut: slice, message: str
) -> None:
    events = (await history_of(*commands))[cut]
    for dry_run in (True, False):
        with pytest.raises(ServiceError, match=message):
            await import_history(world, events, dry_run=dry_run)
    assert world.engine.current("w") is None
