"""What a workflow says of itself: memo, search attributes, current details, which of its events belong together."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime

from hourglass import workflow
from hourglass.aio import workflow as aio
from hourglass.converter import SearchAttributeKey
from hourglass.errors import ChildWorkflowError, FailureError
from hourglass.replay import History

from . import acts
from .scenario import scenario
from .world import World, kinds

KEYWORD = SearchAttributeKey.for_keyword("CustomKeywordField")
NUMBER = SearchAttributeKey.for_int("CustomIntField")
MOMENT = SearchAttributeKey.for_datetime("CustomDatetimeField")


@workflow.defn
def changes_its_memo() -> dict[str, object]:
    """Adds, changes and removes."""
    before = workflow.memo_value("a", type=int)
    workflow.upsert_memo({"a": before + 1, "b": "new", "c": None})
    assert workflow.memo_value("missing", "default") == "default"
    return workflow.memo()


@scenario()
def a_memo_that_changes(world: World) -> None:
    """A workflow reads and changes its memo; clients see it."""
    handle = world.start(changes_its_memo, memo={"a": 1, "c": 3})
    assert handle.result(timeout=60) == {"a": 2, "b": "new"}
    assert handle.describe().memo == {"a": 2, "b": "new"}


@workflow.defn
def changes_what_finds_it() -> dict[str, object]:
    """Sets, changes and unsets search attributes."""
    workflow.upsert_search_attributes([KEYWORD.value_set("eu"), NUMBER.value_unset()])
    workflow.upsert_search_attributes([MOMENT.value_set(datetime(2030, 1, 2, tzinfo=UTC))])
    found = workflow.search_attributes()
    return {name: str(found[name]) for name in sorted(found)}


@scenario()
def search_attributes_that_change(world: World) -> None:
    """A workflow changes its search attributes; clients see them, typed."""
    handle = world.start(
        changes_what_finds_it, search_attributes=[KEYWORD.value_set("us"), NUMBER.value_set(7)]
    )
    expected = {"CustomDatetimeField": "2030-01-02 00:00:00+00:00", "CustomKeywordField": "eu"}
    assert handle.result(timeout=60) == expected
    seen = handle.describe().search_attributes
    assert {name: str(seen[name]) for name in expected} == expected
    assert "CustomIntField" not in seen


@workflow.defn
def says_what_it_does() -> str:
    """Keeps its current details up to date."""
    workflow.set_current_details("packing")
    return workflow.get_current_details()


@scenario()
def current_details(world: World) -> None:
    """Current details are answered to whoever asks for the workflow's metadata."""
    handle = world.start(says_what_it_does)
    assert handle.result(timeout=60) == "packing"
    assert handle.query("__temporal_workflow_metadata")["currentDetails"] == "packing"


# --- event groups -----------------------------------------------------------------------------------------------------


@workflow.defn
def sleeps_long() -> None:
    """A child that is cancelled."""
    workflow.sleep(3600)


@workflow.defn
def groups_its_events(others: int) -> int:
    """Asks for one thing of each kind, in groups."""
    order = workflow.create_event_group("order", label="Order 7")
    billing = workflow.create_event_group("billing")
    total = acts.double.options(event_groups=[billing])(2)
    with order.scope():
        total += acts.double.options(event_groups=[billing])(total)
        total += workflow.execute_local_activity(acts.double, 1, event_groups=[billing, order])
        total += workflow.step(lambda: 1, name="one")
        with billing.scope(), suppress(TimeoutError), workflow.timeout(0.01):
            workflow.wait_condition(lambda: False)
        assert workflow.patched("grouped")
        workflow.upsert_memo({"a": 1})
        workflow.upsert_search_attributes([KEYWORD.value_set("eu")])
        child = workflow.start_child_workflow(sleeps_long, event_groups=[billing])
        child.cancel()
        with suppress(ChildWorkflowError):
            child.result()
        slow = workflow.spawn(workflow.sleep, 3600)
    workflow.sleep(0)
    with suppress(FailureError), billing.scope():
        workflow.get_external_workflow_handle("nowhere").signal("x")
    slow.cancel()  # of the group that it was begun in
    workflow.sleep(0.01)
    if others:
        with order.scope():
            workflow.continue_as_new(others - 1, event_groups=[billing])
    return total


def groups_of(history: History) -> list[tuple[str, str]]:
    """The kinds of events that belong to groups, in order, with the ids of these."""
    return [
        (kind, ",".join(each["label"]["id"] for each in event["eventGroupMarkers"]))
        for kind, event in zip(kinds(history), history.events, strict=True)
        if "eventGroupMarkers" in event
    ]


@scenario("loose")  # a child's end may come before or after the task that hears of its cancellation
def events_that_belong_together(world: World) -> None:
    """What is asked for in a group says so in the history, whatever it is; what takes it back is of the same groups."""
    handle = world.start(groups_its_events, 1)
    handle.result(timeout=60)
    history = world.histories()[0]
    assert groups_of(history) == [
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
class GroupsItsEvents:
    """The same in coroutines: tasks that are begun in a block are of its groups."""

    @aio.run
    async def run(self) -> int:
        order = aio.create_event_group("order", label="Order 7")
        billing = aio.create_event_group("billing")

        async def charge() -> int:
            return await aio.execute_activity(acts.double, 2, event_groups=[billing])

        with order.scope():
            charged = asyncio.create_task(charge())
            slow = asyncio.create_task(asyncio.sleep(3600))
        total = await charged
        slow.cancel()
        with order.scope():
            total += await aio.execute_local_activity(acts.double, total)
        await aio.sleep(0.01)
        return total


@scenario()
def events_that_belong_together_in_coroutines(world: World) -> None:
    """A group holds what the tasks ask for that were begun in its block, and nothing after it."""
    handle = world.start(GroupsItsEvents.run)
    assert handle.result(timeout=60) == 12
    assert groups_of(world.histories()[0]) == [
        ("ACTIVITY_TASK_SCHEDULED", "order,billing"),
        ("TIMER_STARTED", "order"),
        ("TIMER_CANCELED", "order"),
        ("MARKER_RECORDED", "order"),
    ]
