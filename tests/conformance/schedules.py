"""Schedules: what they start, when, and what they say of themselves.

Times are given by backfills of single moments wherever it matters: they name the workflows, and are the same on every
engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hourglass import workflow
from hourglass.client import (
    Schedule,
    ScheduleActionExecutionStartWorkflow,
    ScheduleActionStartWorkflow,
    ScheduleBackfill,
    ScheduleCalendarSpec,
    ScheduleHandle,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleState,
    WorkflowStatus,
)
from hourglass.errors import ApplicationError, ScheduleAlreadyExistsError, ScheduleNotFoundError

from .scenario import scenario
from .world import World

NEVER = ScheduleSpec(calendars=[ScheduleCalendarSpec(year=2090)])
HOURS = ScheduleSpec(
    intervals=[ScheduleIntervalSpec(timedelta(hours=1))], start_at=datetime(2030, 1, 1, tzinfo=UTC)
)
GO = workflow.Channel("go", str)
FIRST = datetime(2031, 5, 4, 3, tzinfo=UTC)


@workflow.defn
def counts_on() -> int:
    """One more than the one before; the third fails."""
    last = workflow.last_completion_result(int) or 0
    if last == 2 and workflow.last_failure() is None:
        raise ApplicationError("three is too many")
    return last + 1


@workflow.defn
class Waits:
    """Returns when it is told to."""

    def __init__(self) -> None:
        self.told = False

    @workflow.run
    def run(self) -> str:
        workflow.wait_condition(lambda: self.told)
        return "told"

    @workflow.signal
    def tell(self) -> None:
        self.told = True


@workflow.defn
def fails() -> None:
    """Fails."""
    raise ApplicationError("no ink")


@workflow.defn
def twice(again: bool) -> str:
    """Continues as new, and waits for a word there."""
    if again:
        workflow.continue_as_new(False)
    GO.receive()
    return "the second run"


def make(world: World, action: Any, *args: Any, spec: ScheduleSpec = HOURS, **more: Any) -> ScheduleHandle:
    """A schedule of the scenario's own."""
    policy = SchedulePolicy(**{key: more.pop(key) for key in list(more) if hasattr(SchedulePolicy, key)})
    state = ScheduleState(**{key: more.pop(key) for key in list(more) if hasattr(ScheduleState, key)})
    start = ScheduleActionStartWorkflow(action, *args, id=f"{world.queue}-w", task_queue=world.queue)
    return world.client.create_schedule(f"{world.queue}-s", Schedule(start, spec, policy, state), **more)


def act(handle: ScheduleHandle, hour: int, last: int | None = None, overlap: Any = None) -> None:
    """Have the schedule act for an hour, or for several."""
    begin, end = FIRST + timedelta(hours=hour), FIRST + timedelta(hours=hour if last is None else last)
    handle.backfill(ScheduleBackfill(start_at=begin, end_at=end, overlap=overlap))


def until(world: World, handle: ScheduleHandle, *expected: int) -> None:
    """Wait until so many were started, run, wait and were skipped."""

    def found() -> tuple[int, ...]:
        info = handle.describe().info
        running = len(info.running_actions)
        return info.num_actions, running, info.num_actions_waiting, info.num_actions_skipped_overlap

    world.until_true(lambda: found()[: len(expected)] == expected, f"{expected}, but {found()}")


def adopt(world: World, handle: ScheduleHandle) -> list[Any]:
    """The workflows that the schedule started last become the scenario's."""
    actions: Sequence[Any] = [each.action for each in handle.describe().info.recent_actions]
    found = [
        world.client.get_workflow_handle(each.workflow_id, run_id=each.first_execution_run_id)
        for each in sorted(actions, key=lambda each: each.workflow_id)
    ]
    world.handles += found
    return found


def finish(world: World, handle: ScheduleHandle, left: int) -> None:
    """Let workflows that wait go on, one after the other, until none is left.

    The schedule's actions say what it started. Its list of what runs is not enough: two actions in one second have one
    workflow id, and the server then takes the end of the first for the end of the second.
    """
    told: set[str] = set()

    def untold() -> list[ScheduleActionExecutionStartWorkflow]:
        actions = [each.action for each in handle.describe().info.recent_actions]
        return [each for each in actions if is_open(world, each) and each.first_execution_run_id not in told]

    for _ in range(left):
        world.until_true(untold, "a workflow that runs")
        (running,) = untold()
        told.add(running.first_execution_run_id)
        run = world.client.get_workflow_handle(running.workflow_id, run_id=running.first_execution_run_id)
        world.until(run, "WORKFLOW_TASK_COMPLETED")
        run.signal("tell")
        world.until_true(lambda running=running: not is_open(world, running), "an end")
        world.until_true(
            lambda running=running: running not in handle.describe().info.running_actions, "an end"
        )


def is_open(world: World, action: ScheduleActionExecutionStartWorkflow) -> bool:
    """Whether the run that an action started still runs."""
    run = world.client.get_workflow_handle(action.workflow_id, run_id=action.first_execution_run_id)
    return run.describe().status == WorkflowStatus.RUNNING


@scenario()
def a_backfill(world: World) -> None:
    """Each time of a stretch gets its workflow, in order; each is given the last result and how the last one failed."""
    handle = make(world, counts_on)
    act(handle, 0, 3, ScheduleOverlapPolicy.BUFFER_ALL)
    until(world, handle, 4, 0, 0, 0)
    names = [each.id.removeprefix(world.queue) for each in adopt(world, handle)]
    assert names == [f"-w-2031-05-04T0{hour}:00:00Z" for hour in (3, 4, 5, 6)]
    handle.delete()


@scenario()
def the_marks_of_a_schedule(world: World) -> None:
    """A workflow that a schedule started says by whom and for which time, and is found by it."""
    handle = make(world, counts_on)
    act(handle, 0)
    until(world, handle, 1, 0)
    (run,) = adopt(world, handle)
    marks = run.describe().search_attributes
    assert marks["TemporalScheduledById"] == handle.id
    assert marks["TemporalScheduledStartTime"] == FIRST
    query = f"TemporalScheduledById = '{handle.id}'"
    world.until_true(lambda: world.client.count_workflows(query) == 1, "the workflow in the list")
    handle.delete()


def overlap(
    world: World,
    policy: ScheduleOverlapPolicy,
    second: tuple[int, ...],
    third: tuple[int, ...],
    end: tuple[int, ...],
) -> None:
    """Two more times while the workflow of the first one runs, and how it stands after each; then let all end.

    One after the other: of several backfills that meet, a server leaves some for its next look, hours later.
    """
    handle = make(world, Waits, overlap=policy)
    act(handle, 0)
    until(world, handle, 1)
    act(handle, 1)
    until(world, handle, *second)
    act(handle, 2)
    until(world, handle, *third)
    finish(world, handle, end[0])
    until(world, handle, *end)
    adopt(world, handle)
    handle.delete()


@scenario()
def an_overlap_that_is_skipped(world: World) -> None:
    """What is due while a workflow runs is skipped, and counted."""
    overlap(world, ScheduleOverlapPolicy.SKIP, (1, 1, 0, 1), (1, 1, 0, 2), (1, 0, 0, 2))


@scenario()
def an_overlap_of_which_one_waits(world: World) -> None:
    """One waits for the end of the one that runs, another is skipped."""
    overlap(world, ScheduleOverlapPolicy.BUFFER_ONE, (1, 1, 1, 0), (1, 1, 1, 1), (2, 0, 0, 1))


@scenario()
def an_overlap_that_waits(world: World) -> None:
    """All wait, and come one after the other."""
    overlap(world, ScheduleOverlapPolicy.BUFFER_ALL, (1, 1, 1, 0), (1, 1, 2, 0), (3, 0, 0, 0))


def replace_first(world: World, handle: ScheduleHandle) -> Any:
    """Let the second action of a schedule end the run of the first, and finish; return the first run."""
    act(handle, 0)
    until(world, handle, 1)
    first = adopt(world, handle)[0]
    world.handles.clear()
    world.until(first, "WORKFLOW_TASK_COMPLETED")
    act(handle, 1)
    until(world, handle, 2, 1, 0, 0)
    finish(world, handle, 1)
    until(world, handle, 2, 0, 0, 0)
    adopt(world, handle)
    return first


@scenario("loose")
def an_overlap_that_cancels(world: World) -> None:
    """The one that runs is asked to cancel, and the next starts when it has ended."""
    handle = make(world, Waits, overlap=ScheduleOverlapPolicy.CANCEL_OTHER)
    first = replace_first(world, handle)
    asked = next(
        each["workflowExecutionCancelRequestedEventAttributes"]
        for each in first.history().events
        if each["eventType"] == "EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED"
    )
    assert asked["cause"] == "cancelled by schedule overlap policy"
    handle.delete()


@scenario("loose")
def an_overlap_that_terminates(world: World) -> None:
    """The one that runs is ended, and the next starts."""
    handle = make(world, Waits, overlap=ScheduleOverlapPolicy.TERMINATE_OTHER)
    first = replace_first(world, handle)
    assert "terminated by schedule overlap policy" in str(world.failure(first))
    handle.delete()


@scenario()
def an_overlap_that_is_allowed(world: World) -> None:
    """All run side by side, and the schedule waits for none of them."""
    handle = make(world, Waits, overlap=ScheduleOverlapPolicy.ALLOW_ALL)
    for hour in range(3):
        act(handle, hour)
        until(world, handle, hour + 1, 0, 0, 0)
    for run in adopt(world, handle):
        world.until(run, "WORKFLOW_TASK_COMPLETED")
        run.signal("tell")
    handle.delete()


@scenario("loose")
def a_trigger(world: World) -> None:
    """A schedule acts at once when it is told to, with a policy of the moment, even when it is paused."""
    handle = make(world, Waits, spec=NEVER, paused=True, trigger_immediately=True)
    until(world, handle, 1, 1)
    handle.trigger()
    until(world, handle, 1, 1, 0, 1)
    handle.trigger(overlap=ScheduleOverlapPolicy.BUFFER_ALL)
    until(world, handle, 1, 1, 1, 1)
    finish(world, handle, 2)
    until(world, handle, 2, 0, 0, 1)
    handle.delete()


@scenario("loose")
def a_schedule_that_acts_by_itself(world: World) -> None:
    """It acts on time, as often as it may."""
    every = ScheduleSpec(intervals=[ScheduleIntervalSpec(timedelta(seconds=1))])
    handle = make(
        world,
        counts_on,
        spec=every,
        limited_actions=True,
        remaining_actions=2,
        overlap=ScheduleOverlapPolicy.BUFFER_ALL,
    )
    until(world, handle, 2, 0)
    seen = handle.describe()
    assert seen.schedule.state.remaining_actions == 0
    first, second = seen.info.recent_actions
    assert first.scheduled_at is not None
    assert first.started_at is not None
    assert second.scheduled_at == first.scheduled_at + timedelta(seconds=1)
    assert first.started_at >= first.scheduled_at
    adopt(world, handle)
    handle.delete()


@scenario("loose")
def a_failure_that_pauses(world: World) -> None:
    """A schedule that shall pause after a failure does, and says which workflow failed and how."""
    handle = make(world, fails, pause_on_failure=True)
    act(handle, 0)
    world.until_true(lambda: handle.describe().schedule.state.paused, "a pause")
    note = handle.describe().schedule.state.note
    assert note == f"paused due to workflow failure: {world.queue}-w-2031-05-04T03:00:00Z: no ink"
    adopt(world, handle)
    handle.delete()


@scenario()
def a_chain_that_a_schedule_waits_for(world: World) -> None:
    """A workflow that continues as new has not ended for its schedule."""
    handle = make(world, twice, True)
    act(handle, 0)
    until(world, handle, 1, 1)
    (run,) = adopt(world, handle)
    current = world.client.get_workflow_handle(run.id)
    world.until_true(
        lambda: current.history().events and run.describe().status.name == "CONTINUED_AS_NEW", "the next"
    )
    act(handle, 1)
    until(world, handle, 1, 1, 0, 1)
    current.signal(GO, "on")
    until(world, handle, 1, 0, 0, 1)
    handle.delete()


@scenario("loose")
def what_a_schedule_says(world: World) -> None:
    """Pauses, updates and lists are seen as they were made; ids are taken, and missed."""
    handle = make(world, counts_on, memo={"who": "me"}, note="new")
    with pytest.raises(ScheduleAlreadyExistsError):
        make(world, counts_on)
    seen = handle.describe()
    assert (seen.memo, seen.schedule.state) == ({"who": "me"}, ScheduleState(note="new"))
    assert seen.schedule.policy == SchedulePolicy(
        overlap=ScheduleOverlapPolicy.SKIP, catchup_window=timedelta(days=365)
    )
    begin = datetime(2030, 1, 1, tzinfo=UTC)
    assert list(seen.info.next_action_times) == [begin + timedelta(hours=each) for each in range(10)]
    assert (seen.info.num_actions, seen.info.recent_actions) == (0, ())
    handle.pause("rest")
    state = handle.describe().schedule.state
    assert (state.paused, state.note) == (True, "rest")
    handle.update(
        lambda seen: replace(seen.schedule, state=ScheduleState(limited_actions=True, remaining_actions=1))
    )
    assert handle.describe().schedule.state == ScheduleState(limited_actions=True, remaining_actions=1)
    handle.update(lambda seen: replace(seen.schedule, spec=NEVER))
    seen = handle.describe()
    assert (
        seen.schedule.spec.calendars[0].year == NEVER.calendars[0].year or seen.schedule.spec.intervals == ()
    )
    handle.unpause("on")
    assert handle.describe().schedule.state.note == "on"
    query = "TemporalSchedulePaused = false"
    world.until_true(
        lambda: handle.id in {each.id for each in world.client.list_schedules(query)}, "it in a list"
    )
    handle.delete()
    for call in (handle.describe, handle.pause, handle.trigger, handle.delete):
        with pytest.raises(ScheduleNotFoundError):
            call()
