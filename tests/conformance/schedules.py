"""Schedules: which workflows they start, when, and how they are described.

Where times matter, backfills of single moments give them: they name the workflows and are equal on every engine.
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
from .world import World, attributes_of

NEVER = ScheduleSpec(calendars=[ScheduleCalendarSpec(year=2090)])
HOURS = ScheduleSpec(
    intervals=[ScheduleIntervalSpec(timedelta(hours=1))], start_at=datetime(2030, 1, 1, tzinfo=UTC)
)
GO = workflow.Channel("go", str)
FIRST = datetime(2031, 5, 4, 3, tzinfo=UTC)


@workflow.defn
def returns_next_number() -> int:
    """Returns the last result plus one; the third run fails."""
    last = workflow.last_completion_result(int) or 0
    if last == 2 and workflow.last_failure() is None:
        raise ApplicationError("three is too many")
    return last + 1


@workflow.defn
class WaitsForSignal:
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
def fails_always() -> None:
    raise ApplicationError("no ink")


@workflow.defn
def continues_then_waits(again: bool) -> str:
    if again:
        workflow.continue_as_new(False)
    GO.receive()
    return "the second run"


def create_schedule(
    world: World, action: Any, *args: Any, spec: ScheduleSpec = HOURS, **more: Any
) -> ScheduleHandle:
    """Create a schedule whose id and workflow ids belong to the scenario."""
    policy = SchedulePolicy(**{key: more.pop(key) for key in list(more) if hasattr(SchedulePolicy, key)})
    state = ScheduleState(**{key: more.pop(key) for key in list(more) if hasattr(ScheduleState, key)})
    start = ScheduleActionStartWorkflow(action, *args, id=f"{world.queue}-w", task_queue=world.queue)
    return world.client.create_schedule(f"{world.queue}-s", Schedule(start, spec, policy, state), **more)


def backfill_hours(handle: ScheduleHandle, hour: int, last: int | None = None, overlap: Any = None) -> None:
    """Let the schedule act for one hour, or for several."""
    begin, end = FIRST + timedelta(hours=hour), FIRST + timedelta(hours=hour if last is None else last)
    handle.backfill(ScheduleBackfill(start_at=begin, end_at=end, overlap=overlap))


def wait_for_action_counts(world: World, handle: ScheduleHandle, *expected: int) -> None:
    """Wait until these numbers of actions were started, are running, are buffered and were skipped."""

    def found() -> tuple[int, ...]:
        info = handle.describe().info
        running = len(info.running_actions)
        return info.num_actions, running, info.num_actions_waiting, info.num_actions_skipped_overlap

    world.wait_until(lambda: found()[: len(expected)] == expected, f"{expected}, but {found()}")


def collect_runs(world: World, handle: ScheduleHandle) -> list[Any]:
    """Add the runs that the schedule started last to the scenario's handles."""
    actions: Sequence[Any] = [execution.action for execution in handle.describe().info.recent_actions]
    runs = [
        world.client.get_workflow_handle(action.workflow_id, run_id=action.first_execution_run_id)
        for action in sorted(actions, key=lambda action: action.workflow_id)
    ]
    world.handles += runs
    return runs


def finish_runs(world: World, handle: ScheduleHandle, count: int) -> None:
    """Let this number of open runs complete, one after another. The runs are found in the schedule's recent
    actions. Its list of running actions is not enough: two actions in one second have the same workflow id,
    and the server takes the end of the first for the end of the second."""
    signalled: set[str] = set()

    def unsignalled() -> list[ScheduleActionExecutionStartWorkflow]:
        actions = [execution.action for execution in handle.describe().info.recent_actions]
        return [
            action
            for action in actions
            if is_open(world, action) and action.first_execution_run_id not in signalled
        ]

    for _ in range(count):
        world.wait_until(unsignalled, "a workflow that runs")
        (running,) = unsignalled()
        signalled.add(running.first_execution_run_id)
        run = world.client.get_workflow_handle(running.workflow_id, run_id=running.first_execution_run_id)
        world.wait_for_event(run, "WORKFLOW_TASK_COMPLETED")
        run.signal("tell")
        world.wait_until(lambda running=running: not is_open(world, running), "an end")
        world.wait_until(
            lambda running=running: running not in handle.describe().info.running_actions, "an end"
        )


def is_open(world: World, action: ScheduleActionExecutionStartWorkflow) -> bool:
    """Return whether the run that an action started is open."""
    run = world.client.get_workflow_handle(action.workflow_id, run_id=action.first_execution_run_id)
    return run.describe().status == WorkflowStatus.RUNNING


@scenario()
def backfill_starts_one_workflow_per_time_with_last_result(world: World) -> None:
    handle = create_schedule(world, returns_next_number)
    backfill_hours(handle, 0, 3, ScheduleOverlapPolicy.BUFFER_ALL)
    wait_for_action_counts(world, handle, 4, 0, 0, 0)
    names = [run.id.removeprefix(world.queue) for run in collect_runs(world, handle)]
    assert names == [f"-w-2031-05-04T0{hour}:00:00Z" for hour in (3, 4, 5, 6)]
    handle.delete()


@scenario()
def scheduled_workflow_has_schedule_search_attributes(world: World) -> None:
    handle = create_schedule(world, returns_next_number)
    backfill_hours(handle, 0)
    wait_for_action_counts(world, handle, 1, 0)
    (run,) = collect_runs(world, handle)
    marks = run.describe().search_attributes
    assert marks["TemporalScheduledById"] == handle.id
    assert marks["TemporalScheduledStartTime"] == FIRST
    query = f"TemporalScheduledById = '{handle.id}'"
    world.wait_until(lambda: world.client.count_workflows(query) == 1, "the workflow in the list")
    handle.delete()


def check_overlap(
    world: World,
    policy: ScheduleOverlapPolicy,
    after_second: tuple[int, ...],
    after_third: tuple[int, ...],
    at_end: tuple[int, ...],
) -> None:
    """Act twice more while the first workflow runs; compare the action counts after each, and at the end. The
    backfills follow one another: a server postpones some of several concurrent ones for hours."""
    handle = create_schedule(world, WaitsForSignal, overlap=policy)
    backfill_hours(handle, 0)
    wait_for_action_counts(world, handle, 1)
    backfill_hours(handle, 1)
    wait_for_action_counts(world, handle, *after_second)
    backfill_hours(handle, 2)
    wait_for_action_counts(world, handle, *after_third)
    finish_runs(world, handle, at_end[0])
    wait_for_action_counts(world, handle, *at_end)
    collect_runs(world, handle)
    handle.delete()


@scenario()
def overlap_policy_skip_skips_and_counts_actions(world: World) -> None:
    check_overlap(world, ScheduleOverlapPolicy.SKIP, (1, 1, 0, 1), (1, 1, 0, 2), (1, 0, 0, 2))


@scenario()
def overlap_policy_buffer_one_buffers_one_action(world: World) -> None:
    check_overlap(world, ScheduleOverlapPolicy.BUFFER_ONE, (1, 1, 1, 0), (1, 1, 1, 1), (2, 0, 0, 1))


@scenario()
def overlap_policy_buffer_all_buffers_every_action(world: World) -> None:
    check_overlap(world, ScheduleOverlapPolicy.BUFFER_ALL, (1, 1, 1, 0), (1, 1, 2, 0), (3, 0, 0, 0))


def replace_first_run(world: World, handle: ScheduleHandle) -> Any:
    """Let the second action end the run of the first, and finish. Return the first run."""
    backfill_hours(handle, 0)
    wait_for_action_counts(world, handle, 1)
    first = collect_runs(world, handle)[0]
    world.handles.clear()
    world.wait_for_event(first, "WORKFLOW_TASK_COMPLETED")
    backfill_hours(handle, 1)
    wait_for_action_counts(world, handle, 2, 1, 0, 0)
    finish_runs(world, handle, 1)
    wait_for_action_counts(world, handle, 2, 0, 0, 0)
    collect_runs(world, handle)
    return first


@scenario("loose")
def overlap_policy_cancel_other_cancels_running_workflow(world: World) -> None:
    handle = create_schedule(world, WaitsForSignal, overlap=ScheduleOverlapPolicy.CANCEL_OTHER)
    first = replace_first_run(world, handle)
    (request,) = attributes_of(first.history(), "WORKFLOW_EXECUTION_CANCEL_REQUESTED")
    assert request["cause"] == "cancelled by schedule overlap policy"
    handle.delete()


@scenario("loose")
def overlap_policy_terminate_other_terminates_running_workflow(world: World) -> None:
    handle = create_schedule(world, WaitsForSignal, overlap=ScheduleOverlapPolicy.TERMINATE_OTHER)
    first = replace_first_run(world, handle)
    assert "terminated by schedule overlap policy" in str(world.failure(first))
    handle.delete()


@scenario()
def overlap_policy_allow_all_runs_workflows_concurrently(world: World) -> None:
    handle = create_schedule(world, WaitsForSignal, overlap=ScheduleOverlapPolicy.ALLOW_ALL)
    for hour in range(3):
        backfill_hours(handle, hour)
        wait_for_action_counts(world, handle, hour + 1, 0, 0, 0)
    for run in collect_runs(world, handle):
        world.wait_for_event(run, "WORKFLOW_TASK_COMPLETED")
        run.signal("tell")
    handle.delete()


@scenario("loose")
def triggered_schedule_acts_immediately_even_when_paused(world: World) -> None:
    handle = create_schedule(world, WaitsForSignal, spec=NEVER, paused=True, trigger_immediately=True)
    wait_for_action_counts(world, handle, 1, 1)
    handle.trigger()
    wait_for_action_counts(world, handle, 1, 1, 0, 1)
    handle.trigger(overlap=ScheduleOverlapPolicy.BUFFER_ALL)
    wait_for_action_counts(world, handle, 1, 1, 1, 1)
    finish_runs(world, handle, 2)
    wait_for_action_counts(world, handle, 2, 0, 0, 1)
    handle.delete()


@scenario("loose")
def schedule_acts_on_time_up_to_its_action_limit(world: World) -> None:
    every = ScheduleSpec(intervals=[ScheduleIntervalSpec(timedelta(seconds=1))])
    handle = create_schedule(
        world,
        returns_next_number,
        spec=every,
        limited_actions=True,
        remaining_actions=2,
        overlap=ScheduleOverlapPolicy.BUFFER_ALL,
    )
    wait_for_action_counts(world, handle, 2, 0)
    seen = handle.describe()
    assert seen.schedule.state.remaining_actions == 0
    first, second = seen.info.recent_actions
    assert first.scheduled_at is not None
    assert first.started_at is not None
    assert second.scheduled_at == first.scheduled_at + timedelta(seconds=1)
    assert first.started_at >= first.scheduled_at
    collect_runs(world, handle)
    handle.delete()


@scenario("loose")
def pause_on_failure_pauses_schedule_with_note(world: World) -> None:
    handle = create_schedule(world, fails_always, pause_on_failure=True)
    backfill_hours(handle, 0)
    world.wait_until(lambda: handle.describe().schedule.state.paused, "a pause")
    note = handle.describe().schedule.state.note
    assert note == f"paused due to workflow failure: {world.queue}-w-2031-05-04T03:00:00Z: no ink"
    collect_runs(world, handle)
    handle.delete()


@scenario()
def continued_run_still_counts_as_running_for_its_schedule(world: World) -> None:
    handle = create_schedule(world, continues_then_waits, True)
    backfill_hours(handle, 0)
    wait_for_action_counts(world, handle, 1, 1)
    (run,) = collect_runs(world, handle)
    current = world.client.get_workflow_handle(run.id)
    world.wait_until(
        lambda: current.history().events and run.describe().status.name == "CONTINUED_AS_NEW", "the next"
    )
    backfill_hours(handle, 1)
    wait_for_action_counts(world, handle, 1, 1, 0, 1)
    current.signal(GO, "on")
    wait_for_action_counts(world, handle, 1, 0, 0, 1)
    handle.delete()


@scenario("loose")
def schedule_can_be_described_paused_updated_listed_and_deleted(world: World) -> None:
    handle = create_schedule(world, returns_next_number, memo={"who": "me"}, note="new")
    with pytest.raises(ScheduleAlreadyExistsError):
        create_schedule(world, returns_next_number)
    seen = handle.describe()
    assert (seen.memo, seen.schedule.state) == ({"who": "me"}, ScheduleState(note="new"))
    assert seen.schedule.policy == SchedulePolicy(
        overlap=ScheduleOverlapPolicy.SKIP, catchup_window=timedelta(days=365)
    )
    begin = datetime(2030, 1, 1, tzinfo=UTC)
    assert list(seen.info.next_action_times) == [begin + timedelta(hours=hour) for hour in range(10)]
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
    world.wait_until(
        lambda: handle.id in {schedule.id for schedule in world.client.list_schedules(query)}, "it in a list"
    )
    handle.delete()
    for call in (handle.describe, handle.pause, handle.trigger, handle.delete):
        with pytest.raises(ScheduleNotFoundError):
            call()
