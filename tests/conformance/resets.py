"""Resets: to the first task, the last, one by its event; what is kept, what is sent again, what becomes of the old run."""

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

from . import acts
from .scenario import scenario
from .world import World, kinds

LIMIT = 30


def tasks(handle: WorkflowHandle[Any]) -> list[int]:
    """The ends of the run's workflow tasks, as event ids."""
    return [
        int(event["eventId"])
        for event in handle.history().events
        if event["eventType"].endswith("_WORKFLOW_TASK_COMPLETED")
    ]


def pinned(world: World, handle: WorkflowHandle[Any]) -> WorkflowHandle[Any]:
    """A handle to this very run."""
    return world.client.get_workflow_handle(handle.id, run_id=handle.run_id)


@workflow.defn
class Collector:
    """Two activities, then what it is sent."""

    def __init__(self) -> None:
        self.got: list[str] = []

    @workflow.run
    def run(self, wanted: int) -> list[Any]:
        """Until it has enough."""
        first = acts.note("one")
        second = acts.note("two")
        workflow.wait_condition(lambda: len(self.got) >= wanted)
        return [first, second, *sorted(self.got)]

    @workflow.signal
    def put(self, item: str) -> None:
        """Keep it."""
        self.got.append(item)

    @workflow.update
    def add(self, item: str) -> str:
        """Keep it, and say so."""
        self.got.append(item)
        return f"has {item}"


@scenario("loose")
def reset_to_the_first_task(world: World) -> None:
    """Everything is done again; signals and updates that came since are sent again."""
    handle = world.start(Collector.run, 3)
    world.until(handle, "ACTIVITY_TASK_COMPLETED", 2)
    handle.signal(Collector.put, "a")
    assert handle.execute_update(Collector.add, "b", id="u") == "has b"
    handle.signal(Collector.put, "c")
    assert handle.result(timeout=LIMIT) == ["one", "two", "a", "b", "c"]
    again = handle.reset(event_id=tasks(handle)[0], reason="again")
    assert again.result(timeout=LIMIT) == ["one", "two", "a", "b", "c"]
    assert again.get_update_handle("u", update=Collector.add).result(timeout=LIMIT) == "has b"
    assert acts.place.calls == ["one", "two", "one", "two"]
    world.handles.append(again)


@scenario("loose")
def reset_to_the_last_task(world: World) -> None:
    """What was done is not done again."""
    handle = world.start(Collector.run, 2)
    world.until(handle, "ACTIVITY_TASK_COMPLETED", 2)
    handle.signal(Collector.put, "a")
    handle.signal(Collector.put, "b")
    assert handle.result(timeout=LIMIT) == ["one", "two", "a", "b"]
    again = handle.reset()
    assert again.result(timeout=LIMIT) == ["one", "two", "a", "b"]
    assert acts.place.calls == ["one", "two"]
    world.handles.append(again)


@scenario("loose")
def reset_without_what_came_since(world: World) -> None:
    """Signals and updates are left out where that is asked for."""
    handle = world.start(Collector.run, 2)
    world.until(handle, "ACTIVITY_TASK_COMPLETED", 2)
    handle.signal(Collector.put, "a")
    handle.execute_update(Collector.add, "b")
    assert handle.result(timeout=LIMIT) == ["one", "two", "a", "b"]
    first = tasks(handle)[0]
    again = handle.reset(event_id=first, reapply_signals=False, reapply_updates=False)
    again.signal(Collector.put, "x")
    again.signal(Collector.put, "y")
    assert again.result(timeout=LIMIT) == ["one", "two", "x", "y"]
    world.handles.append(again)
    third = pinned(world, handle).reset(event_id=first, reapply_updates=False)
    third.signal(Collector.put, "z")
    assert third.result(timeout=LIMIT) == ["one", "two", "a", "z"]
    world.handles.append(third)


@scenario("loose")
def reset_of_an_open_run(world: World) -> None:
    """The run that is open is terminated, with the reason; the new one is the workflow's latest."""
    handle = world.start(Collector.run, 1)
    world.until(handle, "ACTIVITY_TASK_COMPLETED", 2)
    world.until_true(lambda: len(tasks(handle)) == 3, "three tasks")
    again = handle.reset(event_id=tasks(handle)[1], reason="because")
    old = pinned(world, handle)
    with pytest.raises(WorkflowFailedError, match="terminated"):
        old.result(timeout=LIMIT)
    last = old.history().events[-1]["workflowExecutionTerminatedEventAttributes"]
    assert last == {"reason": "because", "identity": "history-resetter"}
    described = world.client.get_workflow_handle(handle.id).describe()
    assert (described.run_id, described.status.name) == (again.run_id, "RUNNING")
    assert described.first_execution_run_id == handle.run_id
    again.signal(Collector.put, "a")
    assert again.result(timeout=LIMIT) == ["one", "two", "a"]
    world.handles[-1] = again


@scenario("loose")
def a_reset_says_where_it_comes_from(world: World) -> None:
    """The task from which the new run begins has failed there, and names both runs."""
    handle = world.start(Collector.run, 0)
    handle.result(timeout=LIMIT)
    old = handle.history()
    place = tasks(handle)[1]
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
def a_reset_from_the_start_of_a_task(world: World) -> None:
    """A point right after a task was scheduled will do as well."""
    handle = world.start(Collector.run, 0)
    handle.result(timeout=LIMIT)
    again = handle.reset(event_id=3)
    assert again.result(timeout=LIMIT) == ["one", "two"]
    assert kinds(again.history())[:5] == [
        "WORKFLOW_EXECUTION_STARTED",
        "WORKFLOW_TASK_SCHEDULED",
        "WORKFLOW_TASK_STARTED",
        "WORKFLOW_TASK_FAILED",
        "WORKFLOW_TASK_SCHEDULED",
    ]
    world.handles.append(again)


@scenario("loose")
def resets_that_are_refused(world: World) -> None:
    """There is no such event, it is no task's, or there is no such workflow."""
    handle = world.start(Collector.run, 0)
    handle.result(timeout=LIMIT)
    for event_id in (0, 1, 2, 6, 1000):
        with pytest.raises(ServiceError) as caught:
            handle.reset(event_id=event_id)
        assert caught.value.status == "INVALID_ARGUMENT"
    with pytest.raises(WorkflowNotFoundError):
        world.client.get_workflow_handle(f"{world.queue}-none").reset(event_id=4)


@workflow.defn
def mended() -> str:
    """Fails until its activity is mended."""
    return f"{acts.note('kept')} {acts.may_fail()}"


@scenario("loose")
def a_failed_run_is_forked_and_mended(world: World) -> None:
    """What had been done before the step that failed is kept; the step is done again and the run completes."""
    handle = world.start(mended)
    cause = world.failure(handle)
    assert isinstance(cause.__cause__, ApplicationError)
    acts.place.mended = True
    again = handle.reset(before=acts.may_fail)
    assert again.result(timeout=LIMIT) == "kept mended"
    assert acts.place.calls == ["kept"]
    world.handles.append(again)


@workflow.defn
def draws() -> None:
    """A number of its own, after a first step."""
    acts.double(1)
    acts.note(str(workflow.random().random()))


@scenario("loose")
def a_reset_changes_randomness(world: World) -> None:
    """The new run draws other numbers, and the same ones when it is replayed."""
    handle = world.start(draws)
    handle.result(timeout=LIMIT)
    again = handle.reset(before=acts.double)
    again.result(timeout=LIMIT)
    third = pinned(world, again).reset(before=acts.note)
    third.result(timeout=LIMIT)
    assert len(set(acts.place.calls)) == 3
    world.handles += [again, third]


@workflow.defn
def keeps_waiting() -> list[Any]:
    """An activity that takes its time, a timer, and a step between."""
    waiting = acts.released.start("slow")
    timer = workflow.spawn(workflow.sleep, 0.3)
    acts.note("between")
    timer.result()
    return [waiting.result(), "rested"]


@scenario("loose")
def what_was_pending_is_pending_again(world: World) -> None:
    """An activity that ran is scheduled anew, a timer fires when it was to."""
    handle = world.start(keeps_waiting)
    world.until_true(lambda: len(tasks(handle)) > 1, "a second task")
    again = handle.reset(event_id=tasks(handle)[1])
    acts.gate("slow").set()
    assert again.result(timeout=LIMIT) == ["slow", "rested"]
    world.handles[-1] = again


@workflow.defn
class Sitter:
    """Waits to be told."""

    def __init__(self) -> None:
        self.told = ""

    @workflow.run
    def run(self) -> str:
        """Until it is told."""
        workflow.wait_condition(lambda: bool(self.told))
        return self.told

    @workflow.signal
    def tell(self, what: str) -> None:
        """Tell it."""
        self.told = what


@workflow.defn
def has_child(name: str) -> str:
    """Waits for a child, with a step before."""
    child = workflow.start_child_workflow(Sitter.run, id=name)
    acts.note("step")
    return child.result()


@scenario("loose")
def a_child_that_was_started_before_is_kept(world: World) -> None:
    """The new run waits for the child that the old one started: it goes on, and its result arrives."""
    name = f"{world.queue}-child"
    handle = world.start(has_child, name)
    world.until(handle, "ACTIVITY_TASK_COMPLETED")
    world.until(handle, "CHILD_WORKFLOW_EXECUTION_STARTED")
    world.until_true(lambda: kinds(handle.history())[-1] == "WORKFLOW_TASK_COMPLETED", "a quiet run")
    again = handle.reset()
    child = world.client.get_workflow_handle(name)
    assert child.describe().status.name == "RUNNING"
    child.signal("tell", "hello")
    assert again.result(timeout=LIMIT) == "hello"
    world.handles[-1] = again


@workflow.defn
def has_two_children(name: str, policy: ParentClosePolicy) -> list[str]:
    """Starts two children, with a step before each and after them; says whose ids were taken."""
    taken: list[str] = []
    for number in ("one", "two"):
        acts.note(number)
        try:
            workflow.start_child_workflow(Sitter.run, id=f"{name}-{number}", parent_close_policy=policy)
        except WorkflowAlreadyStartedError:
            taken.append(number)
    acts.note("three")
    workflow.Channel("end", str).receive()
    return taken


def reset_with_children(world: World, policy: ParentClosePolicy, before: int) -> None:
    """A parent whose children run is reset to one of its steps, and closes: none of them is touched, whatever its policy
    says, for they are the children of the run that was reset.
    """
    name = f"{world.queue}-{policy.name}-{before}"
    handle = world.start(has_two_children, name, policy)
    world.until(handle, "ACTIVITY_TASK_COMPLETED", 3)
    children = [world.client.get_workflow_handle(f"{name}-{number}") for number in ("one", "two")]
    first_runs = [child.describe().run_id for child in children]
    scheduled = [
        int(event["activityTaskScheduledEventAttributes"]["workflowTaskCompletedEventId"])
        for event in handle.history().events
        if "activityTaskScheduledEventAttributes" in event
    ]
    again = handle.reset(event_id=scheduled[before])
    again.signal("end", "now")
    assert again.result(timeout=LIMIT) == ["one", "two"][before:]
    assert [child.describe().status.name for child in children] == ["RUNNING", "RUNNING"]
    assert [child.describe().run_id for child in children] == first_runs
    for child in children:
        child.signal("tell", "enough")
        assert child.result(timeout=LIMIT) == "enough"
    world.handles[-1] = again


@scenario("loose")
def a_reset_leaves_children_alone(world: World) -> None:
    """Children that the new run does not know go on; the new run finds their ids taken, and hears nothing of their ends."""
    for policy in (ParentClosePolicy.TERMINATE, ParentClosePolicy.ABANDON):
        for before in (0, 1, 2):
            reset_with_children(world, policy, before)
