"""What a workflow says of itself: memo, search attributes, current details."""

from __future__ import annotations

from datetime import UTC, datetime

from hourglass import workflow
from hourglass.converter import SearchAttributeKey

from .scenario import scenario
from .world import World

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
    assert handle.result(timeout=30) == {"a": 2, "b": "new"}
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
    assert handle.result(timeout=30) == expected
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
    assert handle.result(timeout=30) == "packing"
    assert handle.query("__temporal_workflow_metadata")["currentDetails"] == "packing"
