"""Memo, search attributes, current details and event groups of a workflow."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime

from hourglass import workflow
from hourglass.aio import workflow as aio
from hourglass.converter import SearchAttributeKey
from hourglass.errors import ChildWorkflowError, FailureError
from hourglass.replay import History

from . import activities
from .scenario import scenario
from .world import World, event_types

KEYWORD = SearchAttributeKey.for_keyword("CustomKeywordField")
NUMBER = SearchAttributeKey.for_int("CustomIntField")
MOMENT = SearchAttributeKey.for_datetime("CustomDatetimeField")


@workflow.defn
def changes_memo() -> dict[str, object]:
    before = workflow.memo_value("a", type=int)
    workflow.upsert_memo({"a": before + 1, "b": "new", "c": None})
    assert workflow.memo_value("missing", "default") == "default"
    return workflow.memo()


@scenario()
def memo_changes_of_workflow_are_visible_to_client(world: World) -> None:
    handle = world.start(changes_memo, memo={"a": 1, "c": 3})
    assert handle.result(timeout=60) == {"a": 2, "b": "new"}
    assert handle.describe().memo == {"a": 2, "b": "new"}


@workflow.defn
def changes_search_attributes() -> dict[str, object]:
    workflow.upsert_search_attributes([KEYWORD.value_set("eu"), NUMBER.value_unset()])
    workflow.upsert_search_attributes([MOMENT.value_set(datetime(2030, 1, 2, tzinfo=UTC))])
    attributes = workflow.search_attributes()
    return {name: str(attributes[name]) for name in sorted(attributes)}


@scenario()
def search_attribute_changes_of_workflow_are_visible_to_client(world: World) -> None:
    handle = world.start(
        changes_search_attributes, search_attributes=[KEYWORD.value_set("us"), NUMBER.value_set(7)]
    )
    expected = {"CustomDatetimeField": "2030-01-02 00:00:00+00:00", "CustomKeywordField": "eu"}
    assert handle.result(timeout=60) == expected
    seen = handle.describe().search_attributes
    assert {name: str(seen[name]) for name in expected} == expected
    assert "CustomIntField" not in seen


@workflow.defn
def sets_current_details() -> str:
    workflow.set_current_details("packing")
    return workflow.get_current_details()


@scenario()
def current_details_are_in_metadata_query(world: World) -> None:
    handle = world.start(sets_current_details)
    assert handle.result(timeout=60) == "packing"
    assert handle.query("__temporal_workflow_metadata")["currentDetails"] == "packing"


# --- event groups -----------------------------------------------------------------------------------------------------


@workflow.defn
def sleeps_for_an_hour() -> None:
    workflow.sleep(3600)


@workflow.defn
def groups_commands(more_runs: int) -> int:
    """Issues a command of each kind in event groups."""
    order = workflow.create_event_group("order", label="Order 7")
    billing = workflow.create_event_group("billing")
    total = activities.double.options(event_groups=[billing])(2)
    with order.scope():
        total += activities.double.options(event_groups=[billing])(total)
        total += workflow.execute_local_activity(activities.double, 1, event_groups=[billing, order])
        total += workflow.step(lambda: 1, name="one")
        with billing.scope(), suppress(TimeoutError), workflow.timeout(0.01):
            workflow.wait_condition(lambda: False)
        assert workflow.patched("grouped")
        workflow.upsert_memo({"a": 1})
        workflow.upsert_search_attributes([KEYWORD.value_set("eu")])
        child = workflow.start_child_workflow(sleeps_for_an_hour, event_groups=[billing])
        child.cancel()
        with suppress(ChildWorkflowError):
            child.result()
        slow = workflow.spawn(workflow.sleep, 3600)
    workflow.sleep(0)
    with suppress(FailureError), billing.scope():
        workflow.get_external_workflow_handle("nowhere").signal("x")
    slow.cancel()  # belongs to the group in which it was started
    workflow.sleep(0.01)
    if more_runs:
        with order.scope():
            workflow.continue_as_new(more_runs - 1, event_groups=[billing])
    return total


def grouped_events(history: History) -> list[tuple[str, str]]:
    """Return the type and group ids of the events that belong to groups."""
    return [
        (kind, ",".join(marker["label"]["id"] for marker in event["eventGroupMarkers"]))
        for kind, event in zip(event_types(history), history.events, strict=True)
        if "eventGroupMarkers" in event
    ]


@scenario("loose")  # the child may end before or after the task that receives its cancellation
def commands_in_event_group_mark_their_events(world: World) -> None:
    handle = world.start(groups_commands, 1)
    handle.result(timeout=60)
    history = world.histories()[0]
    assert grouped_events(history) == [
        ("ACTIVITY_TASK_SCHEDULED", "billing"),
        ("ACTIVITY_TASK_SCHEDULED", "order,billing"),
        ("MARKER_RECORDED", "order,billing"),  # a local activity
        ("MARKER_RECORDED", "order"),  # a step
        ("TIMER_STARTED", "order,billing"),
        ("MARKER_RECORDED", "order"),  # a patch, and the search attribute by which it is found
        ("UPSERT_WORKFLOW_SEARCH_ATTRIBUTES", "order"),
        ("WORKFLOW_PROPERTIES_MODIFIED", "order"),
        ("UPSERT_WORKFLOW_SEARCH_ATTRIBUTES", "order"),
        ("START_CHILD_WORKFLOW_EXECUTION_INITIATED", "order,billing"),
        ("REQUEST_CANCEL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED", "order,billing"),
        ("TIMER_STARTED", "order"),
        ("SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED", "billing"),
        ("TIMER_CANCELED", "order"),
        ("WORKFLOW_EXECUTION_CONTINUED_AS_NEW", "order,billing"),
    ]
    labelled = next(event for event in history.events if len(event.get("eventGroupMarkers", ())) == 2)
    assert "label" in labelled["eventGroupMarkers"][0]["label"]


@aio.defn
class GroupsCommandsOfTasks:
    @aio.run
    async def run(self) -> int:
        order = aio.create_event_group("order", label="Order 7")
        billing = aio.create_event_group("billing")

        async def charge() -> int:
            return await aio.execute_activity(activities.double, 2, event_groups=[billing])

        with order.scope():
            charged = asyncio.create_task(charge())
            slow = asyncio.create_task(asyncio.sleep(3600))
        total = await charged
        slow.cancel()
        with order.scope():
            total += await aio.execute_local_activity(activities.double, total)
        await aio.sleep(0.01)
        return total


@scenario()
def tasks_created_in_event_group_mark_their_events(world: World) -> None:
    handle = world.start(GroupsCommandsOfTasks.run)
    assert handle.result(timeout=60) == 12
    assert grouped_events(world.histories()[0]) == [
        ("ACTIVITY_TASK_SCHEDULED", "order,billing"),
        ("TIMER_STARTED", "order"),
        ("TIMER_CANCELED", "order"),
        ("MARKER_RECORDED", "order"),
    ]
