"""What an engine refuses: names that are too long, policies that contradict each other, search attributes that cannot be."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from hourglass import workflow
from hourglass.client import (
    IdConflictPolicy,
    IdReusePolicy,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleIntervalSpec,
    ScheduleSpec,
    UpdateStage,
    WorkflowHandle,
)
from hourglass.converter import SearchAttributeKey
from hourglass.errors import ServiceError, UsageError, WorkflowAlreadyStartedError

from .scenario import scenario
from .world import World

FITS, TOO_LONG = "n" * 1000, "n" * 1001
ACCENTS = "é" * 501
"""More than a thousand bytes."""

KEYS = (
    SearchAttributeKey.for_keyword("CustomKeywordField").value_set("a"),
    SearchAttributeKey.for_int("CustomIntField").value_set(1),
    SearchAttributeKey.for_float("CustomDoubleField").value_set(1.5),
    SearchAttributeKey.for_bool("CustomBoolField").value_set(True),
    SearchAttributeKey.for_text("CustomTextField").value_set("a few words"),
    SearchAttributeKey.for_datetime("CustomDatetimeField").value_set(datetime(2026, 1, 1, tzinfo=UTC)),
    SearchAttributeKey.for_keyword_list("CustomKeywordListField").value_set(["a"]),
)
"""One use of each: an embedded engine learns their types from it, a server has them registered."""


@workflow.defn
def listens() -> str:
    """Waits for a word."""
    return workflow.Channel("word", str).receive()


def say(world: World, handle: WorkflowHandle[Any], word: str) -> None:
    """Let a run that listens end, after its first task."""
    world.until(handle, "WORKFLOW_TASK_COMPLETED")
    handle.signal("word", word)
    assert handle.result(timeout=60) == word


def refused(call: Callable[[], object], status: str = "INVALID_ARGUMENT", match: str | None = None) -> None:
    """The call is refused by the service, with this status."""
    with pytest.raises(ServiceError, match=match) as caught:
        call()
    assert caught.value.status == status


@scenario()
def names_that_are_too_long(world: World) -> None:
    """Ids, types, queues and signals of more than a thousand bytes are refused; those of a thousand are not."""
    client = world.client

    def start(workflow: Any = listens, **options: Any) -> Any:
        given = {"id": f"{world.queue}-long", "task_queue": f"{world.queue}-idle", **options}
        return client.start_workflow(workflow, **given)

    for name in (TOO_LONG, ACCENTS):
        refused(lambda name=name: start(id=name))
        refused(lambda name=name: start(name))
        refused(lambda name=name: start(task_queue=name))
        refused(lambda name=name: start(request_id=name))
        refused(lambda name=name: start(start_signal=name))
    start(FITS, request_id=FITS, start_signal=FITS).terminate()
    start(FITS, id=f"{world.queue}-fits").signal(FITS)
    handle = world.start(listens)
    refused(lambda: handle.signal(TOO_LONG))
    refused(lambda: handle.execute_update("u", id=TOO_LONG))
    say(world, handle, "done")


@scenario()
def schedules_whose_names_are_too_long(world: World) -> None:
    """Also those of a schedule's workflows, to which a time is appended, and of the schedule, to which a word is."""

    def create(schedule_id: str, *, workflow_id: str = "w", workflow: Any = listens, **options: Any) -> Any:
        action = ScheduleActionStartWorkflow(workflow, id=workflow_id, task_queue=world.queue)
        spec = ScheduleSpec(intervals=[ScheduleIntervalSpec(every=3600)])
        return world.client.create_schedule(schedule_id, Schedule(action=action, spec=spec), **options)

    for call in (
        lambda: create("s" * 978),
        lambda: create(world.queue, workflow_id="w" * 980),
        lambda: create(world.queue, workflow=TOO_LONG),
        lambda: create(world.queue, search_attributes={"WorkflowId": "w"}),
    ):
        refused(call)
    create(world.queue, workflow_id="w" * 979).delete()


@scenario()
def contradictory_id_policies(world: World) -> None:
    """Policies that contradict each other are refused, whether a workflow of that id runs or not."""
    handle = world.start(listens)
    terminate, existing = IdReusePolicy.TERMINATE_IF_RUNNING, IdConflictPolicy.TERMINATE_EXISTING
    contradictory: list[dict[str, Any]] = [
        {"id_reuse_policy": terminate, "id_conflict_policy": policy}
        for policy in (IdConflictPolicy.FAIL, IdConflictPolicy.USE_EXISTING, existing)
    ]
    contradictory += [
        {"id_reuse_policy": IdReusePolicy.REJECT_DUPLICATE, "id_conflict_policy": existing},
        {"start_signal": "word", "start_signal_args": ["x"], "id_conflict_policy": IdConflictPolicy.FAIL},
    ]
    for options in contradictory:
        for name in (handle.id, f"{handle.id}-other"):
            refused(
                lambda name=name, options=options: world.client.start_workflow(
                    listens, id=name, task_queue=world.queue, **options
                ),
                match="Invalid WorkflowID",
            )
    refused(lambda: world.start(listens, start_delay=0, cron_schedule="@every 1h"))
    say(world, handle, "still there")


@scenario()
def search_attributes_that_cannot_be(world: World) -> None:
    """Values of another type, names that are the engine's own, and what is too large are refused at the start."""
    handle = world.start(listens, search_attributes=KEYS)

    def start(**attributes: Any) -> Any:
        return world.client.start_workflow(
            listens,
            id=f"{world.queue}-sa",
            task_queue=f"{world.queue}-idle",
            search_attributes=attributes,
        )

    wrong: list[dict[str, Any]] = [
        {"CustomIntField": "1"},
        {"CustomIntField": 1.5},
        {"CustomIntField": True},
        {"CustomIntField": 2**63},
        {"CustomKeywordField": 1},
        {"CustomKeywordField": ["a", "b"]},
        {"CustomTextField": 1},
        {"CustomBoolField": "true"},
        {"CustomBoolField": 1},
        {"CustomDoubleField": "1.5"},
        {"CustomDatetimeField": "yesterday"},
        {"CustomDatetimeField": 1},
        {"CustomKeywordListField": "a"},
        {"CustomKeywordListField": 1},
        {"BuildIds": "not a list"},
        {"CustomKeywordField": "x" * 2047},
        {"CustomTextField": "é" * 1024},
        {"CustomKeywordListField": ["x" * 1000, "y" * 1000, "z" * 1000]},
    ]
    reserved = (
        "WorkflowId RunId WorkflowType ExecutionStatus TaskQueue StartTime ExecutionTime CloseTime ExecutionDuration "
        "HistoryLength HistorySizeBytes ParentWorkflowId ParentRunId RootWorkflowId RootRunId StateTransitionCount "
        "TemporalWorkerDeployment TemporalWorkerDeploymentVersion TemporalWorkflowVersioningBehavior"
    )
    for attributes in wrong:
        refused(lambda attributes=attributes: start(**attributes))
    for name in reserved.split():
        refused(lambda name=name: start(**{name: "x"}), match=f"{name} attribute can't be set")
    right: list[dict[str, Any]] = [
        {"CustomKeywordField": "x" * 2046, "CustomDoubleField": 2, "CustomIntField": -(2**63)},
        {"CustomKeywordField": ["one"], "CustomDatetimeField": "2026-01-01T00:00:00Z", "BuildIds": ["b"]},
        {"CustomKeywordField": "", "CustomKeywordListField": [], "CustomTextField": "2026-01-01T00:00:00Z"},
    ]
    for attributes in right:
        start(**attributes).terminate()
    with pytest.raises(ServiceError):
        start(**{f"N{number}": number for number in range(101)})
    say(world, handle, "done")


@workflow.defn
def sets_attributes(how: str, wrong: str) -> str:
    """Sets attributes that cannot be, by one of three commands."""
    attributes: dict[str, Any] = {
        "type": {"CustomIntField": "text"},
        "name": {"WorkflowId": "mine"},
        "size": {"CustomTextField": "x" * 3000},
    }[wrong]
    match how:
        case "upsert":
            workflow.upsert_search_attributes(attributes)
        case "child":
            workflow.start_child_workflow(listens, search_attributes=attributes)
        case _:
            workflow.continue_as_new(how, wrong, search_attributes=attributes)
    return "never"


def task_failure(world: World, workflow: Any, *args: Any) -> tuple[str, str]:
    """The cause and the message of the first task of a run, which fails; the run is ended."""
    name = "-".join((world.queue, *map(str, args))).replace(" ", "-")
    handle = world.client.start_workflow(workflow, *args, id=name, task_queue=world.queue, task_timeout=10)
    world.until(handle, "WORKFLOW_TASK_FAILED")
    (failed,) = [
        event["workflowTaskFailedEventAttributes"]
        for event in handle.history().events
        if "workflowTaskFailedEventAttributes" in event
    ][:1]
    handle.terminate("seen enough: how often it is tried again is a matter of chance")
    return failed["cause"].removeprefix("WORKFLOW_TASK_FAILED_CAUSE_"), failed["failure"]["message"]


@scenario(loud=True)
def search_attributes_that_a_workflow_cannot_set(world: World) -> None:
    """A task that sets attributes that cannot be fails with the cause; where they are too large the run ends."""
    say(world, world.start(listens, search_attributes=KEYS), "done")
    seen = {}
    for how in ("upsert", "child", "continue"):
        for wrong in ("type", "name"):
            seen[how, wrong] = task_failure(world, sets_attributes, how, wrong)[0]
    assert set(seen.values()) == {"BAD_SEARCH_ATTRIBUTES"}
    for how in ("upsert", "child", "continue"):
        error = world.fails(sets_attributes, how, "size")
        assert "search attribute CustomTextField value size 3002 exceeds size limit 2048" in str(error)


@workflow.defn
def names_something(what: str, length: int) -> str:
    """Gives a name of a length to something that it asks for."""
    name = "n" * length
    match what:
        case "activity":
            workflow.start_activity(name, schedule_to_close_timeout=1)
        case "activity id":
            workflow.start_activity("a", schedule_to_close_timeout=1, activity_id=name)
        case "activity queue":
            workflow.start_activity("a", schedule_to_close_timeout=1, task_queue=name)
        case "child":
            workflow.start_child_workflow(name)
        case "child id":
            workflow.start_child_workflow("c", id=name)
        case "child queue":
            workflow.start_child_workflow("c", task_queue=name)
        case "signal":
            workflow.get_external_workflow_handle(name).signal("s")
        case "cancel":
            workflow.get_external_workflow_handle(name).cancel()
        case "cron":
            workflow.start_child_workflow("c", cron_schedule="nonsense")
        case _:
            workflow.continue_as_new(what, length, task_queue=name)
    return "never"


@scenario(loud=True)
def names_that_a_workflow_makes_too_long(world: World) -> None:
    """A task that names something by more than a thousand bytes fails with the cause."""
    causes = {
        "activity": "BAD_SCHEDULE_ACTIVITY_ATTRIBUTES",
        "activity id": "BAD_SCHEDULE_ACTIVITY_ATTRIBUTES",
        "activity queue": "BAD_SCHEDULE_ACTIVITY_ATTRIBUTES",
        "child": "BAD_START_CHILD_EXECUTION_ATTRIBUTES",
        "child id": "BAD_START_CHILD_EXECUTION_ATTRIBUTES",
        "child queue": "BAD_START_CHILD_EXECUTION_ATTRIBUTES",
        "cron": "BAD_START_CHILD_EXECUTION_ATTRIBUTES",
        "signal": "BAD_SIGNAL_WORKFLOW_EXECUTION_ATTRIBUTES",
        "cancel": "BAD_REQUEST_CANCEL_EXTERNAL_WORKFLOW_EXECUTION_ATTRIBUTES",
        "continue": "BAD_CONTINUE_AS_NEW_ATTRIBUTES",
    }
    assert {what: task_failure(world, names_something, what, 1001)[0] for what in causes} == causes


@scenario()
def what_the_client_refuses(world: World) -> None:
    """Texts that UTF-8 cannot hold, task timeouts of more than two minutes and a stage that no service keeps are refused
    before anything is sent, in the same words everywhere.
    """
    client, bad = world.client, "a\ud800b"
    handle = world.start(listens)

    def start(**options: Any) -> Any:
        return client.start_workflow(
            listens, **{"id": f"{world.queue}-x", "task_queue": world.queue, **options}
        )

    for call in (
        lambda: start(id=bad),
        lambda: start(task_queue=bad),
        lambda: start(request_id=bad),
        lambda: start(memo={bad: 1}),
        lambda: start(search_attributes={bad: 1}),
        lambda: start(start_signal=bad),
        lambda: start(cron_schedule=bad),
        lambda: client.start_workflow(bad, id="x", task_queue=world.queue),
        lambda: client.get_workflow_handle(bad),
        lambda: client.get_workflow_handle("x", run_id=bad),
        lambda: handle.signal(bad),
        lambda: handle.query(bad),
        lambda: handle.cancel(bad),
        lambda: handle.terminate(bad),
        lambda: handle.execute_update("u", id=bad),
        lambda: list(client.list_workflows(bad)),
        lambda: client.count_workflows(bad),
        lambda: client.get_schedule_handle(bad).describe(),
        lambda: start(cron_schedule=5),
        lambda: start(priority_key=10**30),
        lambda: start(run_timeout=10**400),
        lambda: start(memo=[1]),
        lambda: start(retry_policy={"maximum_attempts": 1}),
        lambda: start(id_reuse_policy="often"),
        lambda: handle.start_update("u", wait_for_stage=UpdateStage.ADMITTED),
    ):
        with pytest.raises(UsageError):
            call()
    start(task_timeout=121).terminate()
    say(world, handle, "done")


@workflow.defn
def starts_a_child_of(workflow_id: str, task_timeout: float = 10.0) -> str:
    """Starts a child, and lets out what it raises."""
    return workflow.execute_child_workflow(listens, id=workflow_id, task_timeout=task_timeout)


@scenario()
def a_childs_id_that_is_taken_fails_its_parent(world: World) -> None:
    """A parent that lets it out fails, like with any failure, with the type by which retry policies know it."""
    taken = world.start(listens)
    error = world.fails(starts_a_child_of, taken.id)
    assert error.type == WorkflowAlreadyStartedError.__name__
    assert taken.id in str(error)
    say(world, taken, "done")


@scenario("loose")
def a_childs_task_timeout_is_cut(world: World) -> None:
    """A child may be asked for with more than two minutes for a task, and gets two minutes."""
    handle = world.start(starts_a_child_of, f"{world.queue}-child", 300.0)
    world.until(handle, "CHILD_WORKFLOW_EXECUTION_STARTED")
    (asked,) = [
        event["startChildWorkflowExecutionInitiatedEventAttributes"]
        for event in handle.history().events
        if "startChildWorkflowExecutionInitiatedEventAttributes" in event
    ]
    assert asked["workflowTaskTimeout"] == "120s"
    world.client.get_workflow_handle(f"{world.queue}-child").signal("word", "done")
    assert handle.result(timeout=60) == "done"
