"""Search attributes of every type, and finding runs: counts in groups, lists with a limit, descriptions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from hourglass import workflow
from hourglass.client import WorkflowExecutionCountAggregationGroup, WorkflowStatus
from hourglass.converter import SearchAttributeKey
from hourglass.errors import ServiceError, UsageError

from .scenario import scenario
from .world import World

LIMIT = 30
TEXT = SearchAttributeKey.for_text("CustomTextField")
KEYWORD = SearchAttributeKey.for_keyword("CustomKeywordField")
KEYWORDS = SearchAttributeKey.for_keyword_list("CustomKeywordListField")
NUMBER = SearchAttributeKey.for_int("CustomIntField")
DECIMAL = SearchAttributeKey.for_float("CustomDoubleField")
FLAG = SearchAttributeKey.for_bool("CustomBoolField")
MOMENT = SearchAttributeKey.for_datetime("CustomDatetimeField")
MINE = frozenset(each.name for each in (TEXT, KEYWORD, KEYWORDS, NUMBER, DECIMAL, FLAG, MOMENT))

FIRST = [
    TEXT.value_set("text one"),
    KEYWORD.value_set("one"),
    KEYWORDS.value_set(["one", "two"]),
    NUMBER.value_set(123),
    DECIMAL.value_set(456.78),
    FLAG.value_set(True),
    MOMENT.value_set(datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC)),
]


def shown(attributes: Any) -> dict[str, str]:
    """Ours, as texts; times in UTC."""
    return {
        name: str(value.astimezone(UTC) if isinstance(value, datetime) else value)
        for name, value in attributes.items()
        if name in MINE
    }


BEFORE = {
    "CustomTextField": "text one",
    "CustomKeywordField": "one",
    "CustomKeywordListField": "['one', 'two']",
    "CustomIntField": "123",
    "CustomDoubleField": "456.78",
    "CustomBoolField": "True",
    "CustomDatetimeField": "2001-02-03 04:05:06+00:00",
}
AFTER = {
    "CustomTextField": "text two",
    "CustomKeywordField": "one",
    "CustomKeywordListField": "['three']",
    "CustomIntField": "456",
    "CustomBoolField": "False",
    "CustomDatetimeField": "2003-04-04 21:07:08+00:00",
}


@workflow.defn
class Found:
    """Changes what it is found by."""

    def __init__(self) -> None:
        self.over = False

    @workflow.run
    def run(self) -> dict[str, str]:
        """Until it is over."""
        workflow.wait_condition(lambda: self.over)
        return shown(workflow.search_attributes())

    @workflow.signal
    def change(self) -> None:
        """All but one; one is taken away."""
        workflow.upsert_search_attributes(
            [
                TEXT.value_set("text two"),
                KEYWORDS.value_set(["three"]),
                NUMBER.value_set(456),
                DECIMAL.value_unset(),
                FLAG.value_set(False),
                MOMENT.value_set(datetime(2003, 4, 5, 6, 7, 8, tzinfo=timezone(timedelta(hours=9)))),
            ]
        )

    @workflow.signal
    def finish(self) -> None:
        """End."""
        self.over = True

    @workflow.query
    def mine(self) -> dict[str, str]:
        """As it knows them."""
        return shown(workflow.search_attributes())


@scenario("loose")
def search_attributes_of_every_type(world: World) -> None:
    """All seven types: given at the start, read by the workflow and by clients, changed, and one of them removed."""
    handle = world.start(Found.run, search_attributes=FIRST)
    assert handle.query(Found.mine) == shown(handle.describe().search_attributes) == BEFORE
    handle.signal(Found.change)
    assert handle.query(Found.mine) == shown(handle.describe().search_attributes) == AFTER
    handle.signal(Found.finish)
    assert handle.result(timeout=LIMIT) == AFTER


@workflow.defn
def is_found_later() -> dict[str, str]:
    """Had none at its start."""
    workflow.upsert_search_attributes([TEXT.value_set("late")])
    workflow.upsert_search_attributes([KEYWORD.value_set("x")])
    workflow.upsert_search_attributes({"CustomIntField": 7})
    workflow.upsert_search_attributes([KEYWORD.value_unset()])
    return shown(workflow.search_attributes())


@scenario()
def search_attributes_from_nothing(world: World) -> None:
    """A run that had none may set some, by key or by name, and remove one again."""
    handle = world.start(is_found_later)
    assert handle.result(timeout=LIMIT) == {"CustomTextField": "late", "CustomIntField": "7"}
    assert shown(handle.describe().search_attributes) == {"CustomTextField": "late", "CustomIntField": "7"}


@workflow.defn
def changes_nothing() -> list[str]:
    """Upserts of nothing are mistakes."""
    found: list[str] = []
    calls: list[Any] = [
        lambda: workflow.upsert_memo({}),
        lambda: workflow.upsert_search_attributes([]),
        lambda: workflow.upsert_search_attributes({"CustomIntField": object()}),
    ]
    for call in calls:
        try:
            call()
        except UsageError as error:
            found.append(type(error).__name__)
    return found


@scenario()
def upserts_of_nothing(world: World) -> None:
    """A change that changes nothing, or a value that no service could search for, is refused where it is made."""
    handle = world.start(changes_nothing)
    assert handle.result(timeout=LIMIT) == ["UsageError"] * 3


@workflow.defn
def ends_or_waits(wait: bool) -> None:
    """Either."""
    workflow.wait_condition(lambda: not wait)


@scenario("loose")
def runs_are_counted_by_status(world: World) -> None:
    """A filter with GROUP BY ExecutionStatus gives how many there are in all, and of each status."""
    for wait in (False, False, False, True, True):
        handle = world.start(ends_or_waits, wait)
        if not wait:
            handle.result(timeout=LIMIT)
    mine = f"TaskQueue = '{world.queue}'"
    query = f"{mine} GROUP BY ExecutionStatus"
    expected = {("Running",): 2, ("Completed",): 3}

    def counted() -> bool:
        found = world.client.count_workflows(query)
        return found == 5 and {group.group_values: group.count for group in found.groups} == expected

    world.until_true(counted, "five runs in two groups")
    found = world.client.count_workflows(query)
    assert (found.count, int(found)) == (5, 5)
    assert WorkflowExecutionCountAggregationGroup(3, ("Completed",)) in found.groups
    assert world.client.count_workflows(mine).groups == ()
    assert world.client.count_workflows("TaskQueue = 'no-such' GROUP BY ExecutionStatus") == 0
    with pytest.raises(ServiceError):
        world.client.count_workflows(f"{mine} GROUP BY WorkflowType")
    for handle in world.handles[3:]:
        handle.terminate("counted")


@scenario("loose")
def lists_with_a_limit(world: World) -> None:
    """Five runs of one id: all are listed, newest first, or as many as were asked for, whatever the size of pages."""
    for _ in range(5):
        world.start(ends_or_waits, False, id=f"{world.queue}-same").result(timeout=LIMIT)
    query = f"WorkflowId = '{world.queue}-same'"
    world.until_true(lambda: world.client.count_workflows(query) == 5, "five runs")
    runs = [each.run_id for each in world.client.list_workflows(query)]
    assert sorted(runs) == sorted(handle.run_id or "" for handle in world.handles)
    assert [each.run_id for each in world.client.list_workflows(query, limit=3)] == runs[:3]
    assert [each.run_id for each in world.client.list_workflows(query, limit=3, page_size=2)] == runs[:3]
    assert list(world.client.list_workflows(query, limit=0)) == []
    histories = [
        world.client.get_workflow_handle(f"{world.queue}-same", run_id=run).history() for run in runs
    ]
    assert [len(each) for each in histories] == [5] * 5
    for handle in world.handles:  # each by its own run
        handle.describe()
    world.handles = [
        world.client.get_workflow_handle(f"{world.queue}-same", run_id=handle.run_id)
        for handle in world.handles
    ]


@workflow.defn
def has_a_child() -> str:
    """A parent."""
    return str(is_a_child.options(id=f"{workflow.info().workflow_id}/child")())


@workflow.defn
def is_a_child() -> str:
    """A child that waits."""
    return str(workflow.Channel("word", str).receive())


@scenario("loose")
def a_description_names_the_family(world: World) -> None:
    """Parent and root of a child, by ids and runs; a run without a parent is its own root."""
    parent = world.start(has_a_child)
    world.until(parent, "CHILD_WORKFLOW_EXECUTION_STARTED")
    child = world.client.get_workflow_handle(f"{parent.id}/child")
    told, above = child.describe(), parent.describe()
    assert (told.parent_id, told.parent_run_id) == (above.id, above.run_id)
    assert (told.root_id, told.root_run_id) == (above.id, above.run_id)
    assert (above.parent_id, above.root_id, above.root_run_id) == ("", above.id, above.run_id)
    child.signal("word", "done")
    assert parent.result(timeout=LIMIT) == "done"
    assert child.describe().status == WorkflowStatus.COMPLETED


@scenario()
def summary_and_details_are_described(world: World) -> None:
    """What a run was started with as summary and details is in its description, and in the history for tools."""
    handle = world.start(ends_or_waits, False, static_summary="one line", static_details="more\nlines")
    handle.result(timeout=LIMIT)
    told = handle.describe()
    assert (told.static_summary, told.static_details) == ("one line", "more\nlines")
    assert set(handle.history().events[0]["userMetadata"]) == {"summary", "details"}


@workflow.defn
def reads_its_memo(child: bool) -> list[Any]:
    """Typed, untyped, absent; and a child's."""
    found: list[Any] = [
        workflow.memo(),
        workflow.memo_value("number", type=int),
        workflow.memo_value("absent", "default"),
    ]
    try:
        workflow.memo_value("absent")
    except KeyError:
        found.append("missing")
    return [*found, reads_its_memo.options(memo=workflow.memo())(False)] if child else found


@scenario("loose")
def a_memo_is_read_and_handed_on(world: World) -> None:
    """A memo is read as plain data or as a type, with a default or an error where there is none, and given to a child."""
    memo = {"number": 7, "table": {"a": [1]}}
    handle = world.start(reads_its_memo, True, memo=memo)
    mine = [memo, 7, "default", "missing"]
    assert handle.result(timeout=LIMIT) == [*mine, mine]
    assert handle.describe().memo == memo
