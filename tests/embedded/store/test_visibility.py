"""Workflow lists in SQLite: contents, filters, order and cost."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from tests.specs import made

from hourglass._contract.workflows import WorkflowStatus
from hourglass._embedded.store.filters import parse
from hourglass._embedded.store.sqlite import visibility
from hourglass._embedded.store.sqlite.batches import Written
from hourglass._embedded.store.sqlite.filter_sql import statement
from hourglass._embedded.transitions.run import Run
from hourglass._history import events as h
from hourglass.converter import Payload
from hourglass.errors import ServiceError, UsageError

SECOND = 10**9
START = 1_700_000_000 * SECOND


def attribute(data: str, kind: str = "") -> Payload:
    return Payload(data.encode(), "json/plain", {"type": kind.encode()} if kind else None)


def run(number: int, *, kind: str = "W", closed: int | None = None, **fields: Any) -> Run:
    """Return a run that started at this second; if it is closed, it was open for `closed` seconds."""
    run_id = f"run-{number}"
    started = made(
        h.WorkflowExecutionStarted,
        workflow_id=f"w-{number}",
        workflow_type=kind,
        task_queue="q",
        original_run_id=run_id,
        first_run_id=run_id,
    )
    start = START + number * SECOND
    if closed is not None:
        fields = {"status": WorkflowStatus.COMPLETED, "close_ns": start + closed * SECOND, **fields}
    return Run(
        **{"run_id": run_id, "started": started, "start_ns": start, "length": 5, "history_size": 99, **fields}
    )


@pytest.fixture
def table() -> Iterator[sqlite3.Connection]:
    """The tables behind workflow lists, initially empty."""
    opened = sqlite3.connect(":memory:")
    opened.executescript(visibility.SCHEMA)
    yield opened
    opened.close()


def ids(table: sqlite3.Connection, text: str = "", limit: int = 100) -> list[int]:
    summaries = visibility.page(table, text, b"", limit).workflows
    return [int(summary.workflow_id.removeprefix("w-")) for summary in summaries]


def test_listed_run_round_trips(table: sqlite3.Connection) -> None:
    original = run(
        1,
        closed=7,
        memo={"note": Payload(b"\x00\xff", "binary/plain", {"k": b"v"})},
        search_attributes={"Region": attribute('"eu"'), "Odd": Payload(b"\x01", "binary/odd")},
    )
    visibility.write(table, [original])
    (found,) = visibility.page(table, "", b"", 10).workflows
    assert (found.memo, found.search_attributes) == (original.memo, original.search_attributes)
    assert (found.workflow_id, found.run_id, found.workflow_type) == ("w-1", "run-1", "W")
    assert found.status is WorkflowStatus.COMPLETED
    assert (found.start_time_ns, found.close_time_ns) == (original.start_ns, original.close_ns)
    assert (found.task_queue, found.history_length) == ("q", 5)
    assert (found.root_workflow_id, found.root_run_id, found.parent_workflow_id) == ("w-1", "run-1", "")


def test_history_length_and_duration_are_listed_only_for_closed_runs(table: sqlite3.Connection) -> None:
    visibility.write(table, [run(1), run(2, closed=1)])
    for name in ("HistoryLength", "HistorySizeBytes", "ExecutionDuration", "CloseTime"):
        assert ids(table, f"{name} IS NULL") == [1]
        assert ids(table, f"{name} IS NOT NULL") == [2]
    assert ids(table, "ExecutionDuration = '1s' AND HistorySizeBytes = 99") == [2]
    assert visibility.page(table, "WorkflowId = 'w-1'", b"", 1).workflows[0].history_length == 0


def test_open_runs_are_listed_first_and_newest_first(table: sqlite3.Connection) -> None:
    visibility.write(table, [run(1, closed=100), run(2), run(3, closed=1), run(4), run(5, closed=96)])
    visibility.write(table, [run(6, start_ns=START + 4 * SECOND)])
    assert ids(table) == [6, 4, 2, 5, 1, 3]


def test_latest_state_of_a_run_replaces_earlier_ones(table: sqlite3.Connection) -> None:
    first = run(1, search_attributes={"Region": attribute('"eu"'), "Tags": attribute('["a", "b"]')})
    visibility.write(table, [first])
    changed = msgspec.structs.replace(first, search_attributes={"Region": attribute('"us"')})
    visibility.write(table, [first, changed])
    assert ids(table, "Region = 'us'") == [1]
    assert ids(table, "Region = 'eu' OR Tags = 'a'") == []
    assert visibility.count(table, "").count == 1


def test_removed_run_is_not_listed(table: sqlite3.Connection) -> None:
    runs = [run(n, search_attributes={"Amount": attribute(str(n))}) for n in range(600)]
    visibility.write(table, runs)
    visibility.remove(table, [run.run_id for run in runs[:-1]])
    assert ids(table, "Amount >= 0") == [599]
    visibility.remove(table, ["run-599", "unknown"])
    assert ids(table, "Amount >= 0") == []
    assert table.execute("SELECT count(*) FROM visibility_attributes").fetchone() == (0,)


def test_many_runs_are_written_with_few_statements(table: sqlite3.Connection) -> None:
    seen: list[str] = []
    runs = [run(n, search_attributes={"Amount": attribute(str(n))}) for n in range(200)]
    table.execute("BEGIN")
    table.set_trace_callback(seen.append)
    visibility.write(table, runs)
    table.set_trace_callback(None)
    assert len(seen) < 15
    assert visibility.count(table, "Amount IS NOT NULL").count == 200


def test_only_memo_attribute_and_status_changes_update_the_list() -> None:
    before = run(1, memo={"a": attribute("1")})
    shown = Written(1, ("run", "workflow"), before.memo, before.search_attributes)
    assert shown.shows(msgspec.structs.replace(before, length=9, task_count=3))
    assert shown.shows(run(1, memo={"a": attribute("1")}))
    assert not shown.shows(run(1, memo={}))
    assert not shown.shows(run(1, memo=before.memo, search_attributes={"x": attribute("1")}))


def test_untyped_attribute_has_the_type_of_its_first_value(table: sqlite3.Connection) -> None:
    """Values that do not fit the type are not found."""
    first = {
        "K": attribute('"x"'),
        "I": attribute("1"),
        "D": attribute("1.5"),
        "B": attribute("true"),
        "T": attribute('"2024-01-01T00:00:00Z"'),
        "L": attribute('["p", "q"]'),
        "N": attribute("null"),
    }
    second = {
        "K": attribute("5"),
        "I": attribute('"x"'),
        "D": attribute("2"),
        "B": attribute("1"),
        "L": attribute('"q"'),
    }
    visibility.write(table, [run(1, search_attributes=first), run(2, search_attributes=second)])
    assert ids(table, "K = 'x' AND I = 1 AND B = true AND T = '2024-01-01T00:00:00Z' AND L = 'Q'") == [1]
    assert ids(table, "K IS NULL AND I IS NULL AND B IS NULL") == [2]
    assert ids(table, "D >= 1.5") == [2, 1]
    assert ids(table, "L = 'q'") == [2, 1]
    with pytest.raises(ServiceError, match="invalid search attribute: N"):
        ids(table, "N IS NULL")


def test_declared_attribute_type_applies_before_its_first_use(table: sqlite3.Connection) -> None:
    visibility.declare(table, {"Note": "Text", "When": "Datetime"})
    assert ids(table, "Note = 'fox'") == []
    visibility.write(table, [run(1, search_attributes={"Note": attribute('"The fox."')})])
    assert ids(table, "Note = 'FOX'") == [1]
    with pytest.raises(UsageError, match="Keyword, KeywordList"):
        visibility.declare(table, {"Note": "Texts"})
    with pytest.raises(UsageError, match="WorkflowId"):
        visibility.declare(table, {"WorkflowId": "Text"})


def test_predefined_attributes_have_their_types(table: sqlite3.Connection) -> None:
    assert ids(table, "TemporalChangeVersion = 'p-1'") == []
    visibility.write(table, [run(1, search_attributes={"TemporalChangeVersion": attribute('["p-1"]')})])
    assert ids(table, "ChangeVersion = 'p-1'") == [1]


@pytest.mark.parametrize("token", [b"x", b"[1]", b'["a", 1, 2]', b"5"])
def test_malformed_page_token_is_rejected(token: bytes, table: sqlite3.Connection) -> None:
    with pytest.raises(ServiceError, match="page token") as caught:
        visibility.page(table, "", token, 10)
    assert caught.value.status == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    ("text", "index"),
    [
        ("", "visibility_in_order"),
        ("ExecutionStatus = 'Running'", "visibility_by_status"),
        ("WorkflowType = 'W'", "visibility_by_type"),
        ("WorkflowId = 'w-1'", "visibility_by_workflow_id"),
    ],
)
def test_common_lists_are_read_from_an_index_without_sorting(
    text: str, index: str, table: sqlite3.Connection
) -> None:
    for token in (b"", b"[1, 2, 3]"):
        seen: list[str] = []
        table.set_trace_callback(seen.append)
        visibility.page(table, text, token, 10)
        table.set_trace_callback(None)
        plan = " ".join(row[3] for row in table.execute(f"EXPLAIN QUERY PLAN {seen[-1]}"))
        assert index in plan
        assert "TEMP B-TREE" not in plan


def test_attribute_filter_uses_the_index(table: sqlite3.Connection) -> None:
    visibility.declare(table, {"Region": "Keyword"})
    where = statement(parse("Region = 'eu'"), visibility.types(table))
    sql = f"EXPLAIN QUERY PLAN SELECT run_id FROM visibility WHERE {where.text}"
    plan = " ".join(row[3] for row in table.execute(sql, where.values))
    assert "USING PRIMARY KEY (name=? AND value=?)" in plan


@pytest.mark.parametrize(
    "value",
    [
        "x'; DROP TABLE visibility; --",
        "' OR '1'='1",
        "%",
        "_",
        "\\'; --",
        '" OR ""="',
        "x\0y",
        "?",
        ":name",
        "/*",
    ],
)
def test_sql_injection_is_treated_as_a_value(value: str, table: sqlite3.Connection) -> None:
    payload = Payload(msgspec.json.encode(value), "json/plain", {"type": b"Keyword"})
    visibility.write(table, [run(1, search_attributes={value: payload, "K": payload}), run(2)])
    quoted = "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"
    for text in (
        f"K = {quoted}",
        f"K IN ({quoted})",
        f"K STARTS_WITH {quoted}",
        f"K BETWEEN {quoted} AND {quoted}",
    ):
        assert ids(table, text) == [1]
    if "`" not in value:
        assert ids(table, f"`{value}` = {quoted}") == [1]
    assert ids(table, f"WorkflowId = {quoted}") == []
    assert ids(table) == [2, 1]
