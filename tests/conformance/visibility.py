"""Search attributes of every type, and lists, counts and descriptions of runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from hourglass import workflow
from hourglass.client import WorkflowExecutionCountAggregationGroup
from hourglass.converter import SearchAttributeKey
from hourglass.errors import ServiceError, UsageError

from .scenario import returns, scenario
from .world import LIMIT, World

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


def attribute_texts(attributes: Any) -> dict[str, str]:
    """Return the attributes of `MINE` as strings, times in UTC."""
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
class HasSearchAttributes:
    def __init__(self) -> None:
        self.over = False

    @workflow.run
    def run(self) -> dict[str, str]:
        workflow.wait_condition(lambda: self.over)
        return attribute_texts(workflow.search_attributes())

    @workflow.signal
    def change_attributes(self) -> None:
        """Change all attributes but one, and remove one."""
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
        self.over = True

    @workflow.query
    def current_attributes(self) -> dict[str, str]:
        return attribute_texts(workflow.search_attributes())


@scenario("loose")
def search_attributes_of_every_type_can_be_set_read_changed_and_removed(world: World) -> None:
    handle = world.start(HasSearchAttributes.run, search_attributes=FIRST)
    assert (
        handle.query(HasSearchAttributes.current_attributes)
        == attribute_texts(handle.describe().search_attributes)
        == BEFORE
    )
    handle.signal(HasSearchAttributes.change_attributes)
    assert (
        handle.query(HasSearchAttributes.current_attributes)
        == attribute_texts(handle.describe().search_attributes)
        == AFTER
    )
    handle.signal(HasSearchAttributes.finish)
    assert handle.result(timeout=LIMIT) == AFTER


@workflow.defn
def adds_search_attributes() -> dict[str, str]:
    workflow.upsert_search_attributes([TEXT.value_set("late")])
    workflow.upsert_search_attributes([KEYWORD.value_set("x")])
    workflow.upsert_search_attributes({"CustomIntField": 7})
    workflow.upsert_search_attributes([KEYWORD.value_unset()])
    return attribute_texts(workflow.search_attributes())


@scenario()
def run_without_search_attributes_can_add_and_remove_them(world: World) -> None:
    handle = world.start(adds_search_attributes)
    assert handle.result(timeout=LIMIT) == {"CustomTextField": "late", "CustomIntField": "7"}
    assert attribute_texts(handle.describe().search_attributes) == {
        "CustomTextField": "late",
        "CustomIntField": "7",
    }


@returns(["UsageError"] * 3)
@workflow.defn
def empty_or_invalid_upserts_raise_usage_error() -> list[str]:
    errors: list[str] = []
    calls: list[Any] = [
        lambda: workflow.upsert_memo({}),
        lambda: workflow.upsert_search_attributes([]),
        lambda: workflow.upsert_search_attributes({"CustomIntField": object()}),
    ]
    for call in calls:
        try:
            call()
        except UsageError as error:
            errors.append(type(error).__name__)
    return errors


@workflow.defn
def returns_unless_waiting(wait: bool) -> None:
    workflow.wait_condition(lambda: not wait)


@scenario("loose")
def count_workflows_groups_by_execution_status(world: World) -> None:
    for wait in (False, False, False, True, True):
        handle = world.start(returns_unless_waiting, wait)
        if not wait:
            handle.result(timeout=LIMIT)
    mine = f"TaskQueue = '{world.queue}'"
    query = f"{mine} GROUP BY ExecutionStatus"
    expected = {("Running",): 2, ("Completed",): 3}

    def counted() -> bool:
        count = world.client.count_workflows(query)
        return count == 5 and {group.group_values: group.count for group in count.groups} == expected

    world.wait_until(counted, "five runs in two groups")
    count = world.client.count_workflows(query)
    assert (count.count, int(count)) == (5, 5)
    assert WorkflowExecutionCountAggregationGroup(3, ("Completed",)) in count.groups
    assert world.client.count_workflows(mine).groups == ()
    assert world.client.count_workflows("TaskQueue = 'no-such' GROUP BY ExecutionStatus") == 0
    with pytest.raises(ServiceError):
        world.client.count_workflows(f"{mine} GROUP BY WorkflowType")
    for handle in world.handles[3:]:
        handle.terminate("counted")


@scenario("loose")
def list_workflows_returns_newest_first_up_to_limit(world: World) -> None:
    for _ in range(5):
        world.start(returns_unless_waiting, False, id=f"{world.queue}-same").result(timeout=LIMIT)
    query = f"WorkflowId = '{world.queue}-same'"
    world.wait_until(lambda: world.client.count_workflows(query) == 5, "five runs")
    runs = [run.run_id for run in world.client.list_workflows(query)]
    assert sorted(runs) == sorted(handle.run_id or "" for handle in world.handles)
    assert [run.run_id for run in world.client.list_workflows(query, limit=3)] == runs[:3]
    assert [run.run_id for run in world.client.list_workflows(query, limit=3, page_size=2)] == runs[:3]
    assert list(world.client.list_workflows(query, limit=0)) == []
    histories = [
        world.client.get_workflow_handle(f"{world.queue}-same", run_id=run).history() for run in runs
    ]
    assert [len(run) for run in histories] == [5] * 5
    for handle in world.handles:  # describe each run by its run id
        handle.describe()
    world.handles = [
        world.client.get_workflow_handle(f"{world.queue}-same", run_id=handle.run_id)
        for handle in world.handles
    ]


@workflow.defn
def reads_memo(child: bool) -> list[Any]:
    values: list[Any] = [
        workflow.memo(),
        workflow.memo_value("number", type=int),
        workflow.memo_value("absent", "default"),
    ]
    try:
        workflow.memo_value("absent")
    except KeyError:
        values.append("missing")
    return [*values, reads_memo.options(memo=workflow.memo())(False)] if child else values


@scenario("loose")
def memo_is_read_by_key_and_passed_to_child(world: World) -> None:
    memo = {"number": 7, "table": {"a": [1]}}
    handle = world.start(reads_memo, True, memo=memo)
    mine = [memo, 7, "default", "missing"]
    assert handle.result(timeout=LIMIT) == [*mine, mine]
    assert handle.describe().memo == memo
