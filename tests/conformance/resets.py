"""Resets: the point of the reset, what is kept, what is applied again, and what happens to the old run."""

from __future__ import annotations

from typing import Any

import pytest

from hourglass import workflow
from hourglass.client import WorkflowHandle
from hourglass.errors import (
    ApplicationError,
    ServiceError,
    WorkflowAlreadyStartedError,
    WorkflowFailedError,
    WorkflowNotFoundError,
)
from hourglass.workflow import ParentClosePolicy

from . import activities
from .scenario import scenario
from .world import LIMIT, World, attributes_of, event_types


def completed_task_ids(handle: WorkflowHandle[Any]) -> list[int]:
    """Return the event ids of the run's completed workflow tasks."""
    return [
        int(event["eventId"])
        for event in handle.history().events
        if event["eventType"].endswith("_WORKFLOW_TASK_COMPLETED")
    ]


def handle_of_run(world: World, handle: WorkflowHandle[Any]) -> WorkflowHandle[Any]:
    """Return a handle with the run id."""
    return world.client.get_workflow_handle(handle.id, run_id=handle.run_id)


@workflow.defn
class CollectsItems:
    """Runs two activities, then collects items until it has enough."""

    def __init__(self) -> None:
        self.got: list[str] = []

    @workflow.run
    def run(self, wanted: int) -> list[Any]:
        first = activities.record_call("one")
        second = activities.record_call("two")
        workflow.wait_condition(lambda: len(self.got) >= wanted)
        return [first, second, *sorted(self.got)]

    @workflow.signal
    def put_item(self, item: str) -> None:
        self.got.append(item)

    @workflow.update
    def add_item(self, item: str) -> str:
        self.got.append(item)
        return f"has {item}"


@scenario("loose")
def reset_to_first_task_repeats_activities_and_reapplies_messages(world: World) -> None:
    handle = world.start(CollectsItems.run, 3)
    world.wait_for_event(handle, "ACTIVITY_TASK_COMPLETED", 2)
    handle.signal(CollectsItems.put_item, "a")
    assert handle.execute_update(CollectsItems.add_item, "b", id="u") == "has b"
    handle.signal(CollectsItems.put_item, "c")
    assert handle.result(timeout=LIMIT) == ["one", "two", "a", "b", "c"]
    again = handle.reset(event_id=completed_task_ids(handle)[0], reason="again")
    assert again.result(timeout=LIMIT) == ["one", "two", "a", "b", "c"]
    assert again.get_update_handle("u", update=CollectsItems.add_item).result(timeout=LIMIT) == "has b"
    assert activities.state.calls == ["one", "two", "one", "two"]
    world.handles.append(again)


@scenario("loose")
def reset_to_last_task_keeps_completed_activities(world: World) -> None:
    handle = world.start(CollectsItems.run, 2)
    world.wait_for_event(handle, "ACTIVITY_TASK_COMPLETED", 2)
    handle.signal(CollectsItems.put_item, "a")
    handle.signal(CollectsItems.put_item, "b")
    assert handle.result(timeout=LIMIT) == ["one", "two", "a", "b"]
    again = handle.reset()
    assert again.result(timeout=LIMIT) == ["one", "two", "a", "b"]
    assert activities.state.calls == ["one", "two"]
    world.handles.append(again)


@scenario("loose")
def reset_without_reapply_drops_later_signals_and_updates(world: World) -> None:
    handle = world.start(CollectsItems.run, 2)
    world.wait_for_event(handle, "ACTIVITY_TASK_COMPLETED", 2)
    handle.signal(CollectsItems.put_item, "a")
    handle.execute_update(CollectsItems.add_item, "b")
    assert handle.result(timeout=LIMIT) == ["one", "two", "a", "b"]
    first = completed_task_ids(handle)[0]
    again = handle.reset(event_id=first, reapply_signals=False, reapply_updates=False)
    again.signal(CollectsItems.put_item, "x")
    again.signal(CollectsItems.put_item, "y")
    assert again.result(timeout=LIMIT) == ["one", "two", "x", "y"]
    world.handles.append(again)
    third = handle_of_run(world, handle).reset(event_id=first, reapply_updates=False)
    third.signal(CollectsItems.put_item, "z")
    assert third.result(timeout=LIMIT) == ["one", "two", "a", "z"]
    world.handles.append(third)


@scenario("loose")
def reset_of_open_run_terminates_it_with_the_reason(world: World) -> None:
    handle = world.start(CollectsItems.run, 1)
    world.wait_for_event(handle, "ACTIVITY_TASK_COMPLETED", 2)
    world.wait_until(lambda: len(completed_task_ids(handle)) == 3, "three tasks")
    again = handle.reset(event_id=completed_task_ids(handle)[1], reason="because")
    old_run = handle_of_run(world, handle)
    with pytest.raises(WorkflowFailedError, match="terminated"):
        old_run.result(timeout=LIMIT)
    last = old_run.history().events[-1]["workflowExecutionTerminatedEventAttributes"]
    assert last == {"reason": "because", "identity": "history-resetter"}
    described = world.client.get_workflow_handle(handle.id).describe()
    assert (described.run_id, described.status.name) == (again.run_id, "RUNNING")
    assert described.first_execution_run_id == handle.run_id
    again.signal(CollectsItems.put_item, "a")
    assert again.result(timeout=LIMIT) == ["one", "two", "a"]
    world.handles[-1] = again


@scenario("loose")
def reset_run_records_failed_task_with_both_run_ids(world: World) -> None:
    handle = world.start(CollectsItems.run, 0)
    handle.result(timeout=LIMIT)
    old = handle.history()
    place = completed_task_ids(handle)[1]
    again = handle.reset(event_id=place, reason="why not")
    again.result(timeout=LIMIT)
    world.handles.append(again)
    history = again.history()
    failed = history.events[place - 1]["workflowTaskFailedEventAttributes"]
    assert failed["cause"] == "WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW"
    assert (failed["baseRunId"], failed["newRunId"]) == (handle.run_id, again.run_id)
    assert failed["failure"] == {"message": "why not", "resetWorkflowFailureInfo": {}}
    assert history.events[: place - 1] == old.events[: place - 1]
    started = history.events[0]["workflowExecutionStartedEventAttributes"]
    assert started["originalExecutionRunId"] == started["firstExecutionRunId"] == handle.run_id


@scenario("loose")
def reset_to_scheduled_task_is_possible(world: World) -> None:
    handle = world.start(CollectsItems.run, 0)
    handle.result(timeout=LIMIT)
    again = handle.reset(event_id=3)
    assert again.result(timeout=LIMIT) == ["one", "two"]
    assert event_types(again.history())[:5] == [
        "WORKFLOW_EXECUTION_STARTED",
        "WORKFLOW_TASK_SCHEDULED",
        "WORKFLOW_TASK_STARTED",
        "WORKFLOW_TASK_FAILED",
        "WORKFLOW_TASK_SCHEDULED",
    ]
    world.handles.append(again)


@scenario("loose")
def reset_to_invalid_event_or_missing_workflow_fails(world: World) -> None:
    handle = world.start(CollectsItems.run, 0)
    handle.result(timeout=LIMIT)
    for event_id in (0, 1, 2, 6, 1000):
        with pytest.raises(ServiceError) as caught:
            handle.reset(event_id=event_id)
        assert caught.value.status == "INVALID_ARGUMENT"
    with pytest.raises(WorkflowNotFoundError):
        world.client.get_workflow_handle(f"{world.queue}-none").reset(event_id=4)


@workflow.defn
def fails_until_mended() -> str:
    return f"{activities.record_call('kept')} {activities.fails_until_mended()}"


@scenario("loose")
def reset_before_failed_step_keeps_earlier_results(world: World) -> None:
    handle = world.start(fails_until_mended)
    cause = world.failure(handle)
    assert isinstance(cause.__cause__, ApplicationError)
    activities.state.mended = True
    again = handle.reset(before=activities.fails_until_mended)
    assert again.result(timeout=LIMIT) == "kept mended"
    assert activities.state.calls == ["kept"]
    world.handles.append(again)


@workflow.defn
def records_random_number() -> None:
    activities.double(1)
    activities.record_call(str(workflow.random().random()))


@scenario("loose")
def reset_run_draws_new_random_numbers(world: World) -> None:
    handle = world.start(records_random_number)
    handle.result(timeout=LIMIT)
    again = handle.reset(before=activities.double)
    again.result(timeout=LIMIT)
    third = handle_of_run(world, again).reset(before=activities.record_call)
    third.result(timeout=LIMIT)
    assert len(set(activities.state.calls)) == 3
    world.handles += [again, third]


@workflow.defn
def waits_for_activity_and_timer() -> list[Any]:
    waiting = activities.returns_when_released.start("slow")
    timer = workflow.spawn(workflow.sleep, 0.3)
    activities.record_call("between")
    timer.result()
    return [waiting.result(), "rested"]


@scenario("loose")
def reset_run_reschedules_pending_activity_and_timer(world: World) -> None:
    handle = world.start(waits_for_activity_and_timer)
    world.wait_until(lambda: len(completed_task_ids(handle)) > 1, "a second task")
    again = handle.reset(event_id=completed_task_ids(handle)[1])
    activities.gate("slow").set()
    assert again.result(timeout=LIMIT) == ["slow", "rested"]
    world.handles[-1] = again


@workflow.defn
class WaitsForSignal:
    def __init__(self) -> None:
        self.told = ""

    @workflow.run
    def run(self) -> str:
        workflow.wait_condition(lambda: bool(self.told))
        return self.told

    @workflow.signal
    def send_result(self, what: str) -> None:
        self.told = what


@workflow.defn
def runs_child_after_step(name: str) -> str:
    child = workflow.start_child_workflow(WaitsForSignal.run, id=name)
    activities.record_call("step")
    return child.result()


@scenario("loose")
def reset_run_keeps_child_that_was_started_before(world: World) -> None:
    name = f"{world.queue}-child"
    handle = world.start(runs_child_after_step, name)
    world.wait_for_event(handle, "ACTIVITY_TASK_COMPLETED")
    world.wait_for_event(handle, "CHILD_WORKFLOW_EXECUTION_STARTED")
    world.wait_until(lambda: event_types(handle.history())[-1] == "WORKFLOW_TASK_COMPLETED", "a quiet run")
    again = handle.reset()
    child = world.client.get_workflow_handle(name)
    assert child.describe().status.name == "RUNNING"
    child.signal("send_result", "hello")
    assert again.result(timeout=LIMIT) == "hello"
    world.handles[-1] = again


@workflow.defn
def starts_two_children(name: str, policy: ParentClosePolicy) -> list[str]:
    """Starts two children, with a step before each and one after both. Returns those whose ids were in use."""
    in_use: list[str] = []
    for number in ("one", "two"):
        activities.record_call(number)
        try:
            workflow.start_child_workflow(
                WaitsForSignal.run, id=f"{name}-{number}", parent_close_policy=policy
            )
        except WorkflowAlreadyStartedError:
            in_use.append(number)
    activities.record_call("three")
    workflow.Channel("end", str).receive()
    return in_use


def reset_with_children(world: World, policy: ParentClosePolicy, before: int) -> None:
    """Reset a parent with open children to one of its steps, and let it close. The children belong to the run
    that was reset, so they keep running whatever their close policy says."""
    name = f"{world.queue}-{policy.name}-{before}"
    handle = world.start(starts_two_children, name, policy)
    world.wait_for_event(handle, "ACTIVITY_TASK_COMPLETED", 3)
    children = [world.client.get_workflow_handle(f"{name}-{number}") for number in ("one", "two")]
    first_runs = [child.describe().run_id for child in children]
    scheduled = attributes_of(handle.history(), "ACTIVITY_TASK_SCHEDULED")
    again = handle.reset(event_id=int(scheduled[before]["workflowTaskCompletedEventId"]))
    again.signal("end", "now")
    assert again.result(timeout=LIMIT) == ["one", "two"][before:]
    assert [child.describe().status.name for child in children] == ["RUNNING", "RUNNING"]
    assert [child.describe().run_id for child in children] == first_runs
    for child in children:
        child.signal("send_result", "enough")
        assert child.result(timeout=LIMIT) == "enough"
    world.handles[-1] = again


@scenario("loose")
def reset_leaves_children_of_old_run_running(world: World) -> None:
    for policy in (ParentClosePolicy.TERMINATE, ParentClosePolicy.ABANDON):
        for before in (0, 1, 2):
            reset_with_children(world, policy, before)
