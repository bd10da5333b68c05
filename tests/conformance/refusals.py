"""Requests that an engine rejects: long names, contradictory policies, invalid search attributes."""

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
from .world import World, attributes_of

FITS, TOO_LONG = "n" * 1000, "n" * 1001
ACCENTS = "é" * 501
"""More than a thousand bytes in UTF-8."""

KEYS = (
    SearchAttributeKey.for_keyword("CustomKeywordField").value_set("a"),
    SearchAttributeKey.for_int("CustomIntField").value_set(1),
    SearchAttributeKey.for_float("CustomDoubleField").value_set(1.5),
    SearchAttributeKey.for_bool("CustomBoolField").value_set(True),
    SearchAttributeKey.for_text("CustomTextField").value_set("a few words"),
    SearchAttributeKey.for_datetime("CustomDatetimeField").value_set(datetime(2026, 1, 1, tzinfo=UTC)),
    SearchAttributeKey.for_keyword_list("CustomKeywordListField").value_set(["a"]),
)
"""A value of each type. The embedded engine learns the types from them; a server has them registered."""


@workflow.defn
def waits_for_word() -> str:
    return workflow.Channel("word", str).receive()


def finish_with_word(world: World, handle: WorkflowHandle[Any], word: str) -> None:
    """Send the word after the first workflow task; wait for the end of the run."""
    world.wait_for_event(handle, "WORKFLOW_TASK_COMPLETED")
    handle.signal("word", word)
    assert handle.result(timeout=60) == word


def assert_rejected(
    call: Callable[[], object], status: str = "INVALID_ARGUMENT", match: str | None = None
) -> None:
    """Assert that the service rejects the call with this status."""
    with pytest.raises(ServiceError, match=match) as caught:
        call()
    assert caught.value.status == status


@scenario()
def names_longer_than_a_thousand_bytes_are_rejected(world: World) -> None:
    client = world.client

    def start(workflow: Any = waits_for_word, **options: Any) -> Any:
        start_options = {"id": f"{world.queue}-long", "task_queue": f"{world.queue}-idle", **options}
        return client.start_workflow(workflow, **start_options)

    for name in (TOO_LONG, ACCENTS):
        assert_rejected(lambda name=name: start(id=name))
        assert_rejected(lambda name=name: start(name))
        assert_rejected(lambda name=name: start(task_queue=name))
        assert_rejected(lambda name=name: start(request_id=name))
        assert_rejected(lambda name=name: start(start_signal=name))
    start(FITS, request_id=FITS, start_signal=FITS).terminate()
    start(FITS, id=f"{world.queue}-fits").signal(FITS)
    handle = world.start(waits_for_word)
    assert_rejected(lambda: handle.signal(TOO_LONG))
    assert_rejected(lambda: handle.execute_update("u", id=TOO_LONG))
    finish_with_word(world, handle, "done")


@scenario()
def schedule_names_that_exceed_limit_with_suffix_are_rejected(world: World) -> None:
    """A timestamp is appended to the ids of a schedule's workflows, and a suffix to the schedule's own id."""

    def create(
        schedule_id: str, *, workflow_id: str = "w", workflow: Any = waits_for_word, **options: Any
    ) -> Any:
        action = ScheduleActionStartWorkflow(workflow, id=workflow_id, task_queue=world.queue)
        spec = ScheduleSpec(intervals=[ScheduleIntervalSpec(every=3600)])
        return world.client.create_schedule(schedule_id, Schedule(action=action, spec=spec), **options)

    for call in (
        lambda: create("s" * 978),
        lambda: create(world.queue, workflow_id="w" * 980),
        lambda: create(world.queue, workflow=TOO_LONG),
        lambda: create(world.queue, search_attributes={"WorkflowId": "w"}),
    ):
        assert_rejected(call)
    create(world.queue, workflow_id="w" * 979).delete()


@scenario()
def contradictory_id_policies_are_rejected(world: World) -> None:
    handle = world.start(waits_for_word)
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
            assert_rejected(
                lambda name=name, options=options: world.client.start_workflow(
                    waits_for_word, id=name, task_queue=world.queue, **options
                ),
                match="Invalid WorkflowID",
            )
    assert_rejected(lambda: world.start(waits_for_word, start_delay=0, cron_schedule="@every 1h"))
    finish_with_word(world, handle, "still there")


@scenario()
def invalid_search_attributes_are_rejected_at_start(world: World) -> None:
    handle = world.start(waits_for_word, search_attributes=KEYS)

    def start(**attributes: Any) -> Any:
        return world.client.start_workflow(
            waits_for_word,
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
        assert_rejected(lambda attributes=attributes: start(**attributes))
    for name in reserved.split():
        assert_rejected(lambda name=name: start(**{name: "x"}), match=f"{name} attribute can't be set")
    right: list[dict[str, Any]] = [
        {"CustomKeywordField": "x" * 2046, "CustomDoubleField": 2, "CustomIntField": -(2**63)},
        {"CustomKeywordField": ["one"], "CustomDatetimeField": "2026-01-01T00:00:00Z", "BuildIds": ["b"]},
        {"CustomKeywordField": "", "CustomKeywordListField": [], "CustomTextField": "2026-01-01T00:00:00Z"},
    ]
    for attributes in right:
        start(**attributes).terminate()
    with pytest.raises(ServiceError):
        start(**{f"N{number}": number for number in range(101)})
    finish_with_word(world, handle, "done")


@workflow.defn
def sets_invalid_attributes(how: str, wrong: str) -> str:
    """Sets invalid search attributes with one of three commands."""
    attributes: dict[str, Any] = {
        "type": {"CustomIntField": "text"},
        "name": {"WorkflowId": "mine"},
        "size": {"CustomTextField": "x" * 3000},
    }[wrong]
    match how:
        case "upsert":
            workflow.upsert_search_attributes(attributes)
        case "child":
            workflow.start_child_workflow(waits_for_word, search_attributes=attributes)
        case _:
            workflow.continue_as_new(how, wrong, search_attributes=attributes)
    return "never"


def task_failure(world: World, workflow: Any, *args: Any) -> tuple[str, str]:
    """Return cause and message of the first failed workflow task; terminate the run."""
    name = "-".join((world.queue, *map(str, args))).replace(" ", "-")
    handle = world.client.start_workflow(workflow, *args, id=name, task_queue=world.queue, task_timeout=10)
    world.wait_for_event(handle, "WORKFLOW_TASK_FAILED")
    failed = attributes_of(handle.history(), "WORKFLOW_TASK_FAILED")[0]
    handle.terminate("seen enough: how often it is tried again is a matter of chance")
    return failed["cause"].removeprefix("WORKFLOW_TASK_FAILED_CAUSE_"), failed["failure"]["message"]


@scenario(loud=True)
def invalid_search_attributes_in_commands_fail_task_and_oversized_ones_fail_run(world: World) -> None:
    finish_with_word(world, world.start(waits_for_word, search_attributes=KEYS), "done")
    seen = {}
    for how in ("upsert", "child", "continue"):
        for wrong in ("type", "name"):
            seen[how, wrong] = task_failure(world, sets_invalid_attributes, how, wrong)[0]
    assert set(seen.values()) == {"BAD_SEARCH_ATTRIBUTES"}
    for how in ("upsert", "child", "continue"):
        error = world.run_failing(sets_invalid_attributes, how, "size")
        assert "search attribute CustomTextField value size 3002 exceeds size limit 2048" in str(error)


@workflow.defn
def issues_command_with_long_name(what: str, length: int) -> str:
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
def names_that_are_too_long_in_commands_fail_task_with_cause(world: World) -> None:
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
    assert {
        what: task_failure(world, issues_command_with_long_name, what, 1001)[0] for what in causes
    } == causes


@scenario()
def client_rejects_invalid_text_timeouts_and_options_before_sending(world: World) -> None:
    client, bad = world.client, "a\ud800b"
    handle = world.start(waits_for_word)

    def start(**options: Any) -> Any:
        return client.start_workflow(
            waits_for_word, **{"id": f"{world.queue}-x", "task_queue": world.queue, **options}
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
    finish_with_word(world, handle, "done")


@workflow.defn
def starts_child_with_id(workflow_id: str, task_timeout: float = 10.0) -> str:
    return workflow.execute_child_workflow(waits_for_word, id=workflow_id, task_timeout=task_timeout)


@scenario()
def uncaught_child_id_conflict_fails_parent(world: World) -> None:
    running = world.start(waits_for_word)
    error = world.run_failing(starts_child_with_id, running.id)
    assert error.type == WorkflowAlreadyStartedError.__name__
    assert running.id in str(error)
    finish_with_word(world, running, "done")


@scenario("loose")
def task_timeout_of_child_is_capped_at_two_minutes(world: World) -> None:
    handle = world.start(starts_child_with_id, f"{world.queue}-child", 300.0)
    world.wait_for_event(handle, "CHILD_WORKFLOW_EXECUTION_STARTED")
    (initiated,) = attributes_of(handle.history(), "START_CHILD_WORKFLOW_EXECUTION_INITIATED")
    assert initiated["workflowTaskTimeout"] == "120s"
    world.client.get_workflow_handle(f"{world.queue}-child").signal("word", "done")
    assert handle.result(timeout=60) == "done"
