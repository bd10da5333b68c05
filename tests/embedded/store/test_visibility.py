"""The list of runs in SQLite: what is written, what is found, in which order and how."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from tests.specs import made

from hourglass._contract.workflows import CountGroup, WorkflowStatus
from hourglass._embedded.store.sqlite.batches import Written
from hourglass._embedded.transitions.run import Run
from hourglass._history import events as h
from hourglass.converter import Payload
from hourglass.errors import ServiceError, UsageError

from .list_table import ListTable

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
def table() -> Iterator[ListTable]:
    """An empty list of runs."""
    opened = ListTable()
    yield opened
    opened.database.close()


def ids(table: ListTable, text: str = "", limit: int = 100) -> list[int]:
    found = table.page(text, b"", limit).workflows
    return [int(each.workflow_id.removeprefix("w-")) for each in found]


def test_listed_run_round_trips(table: ListTable) -> None:
    """A listed run has the same properties, memo and search attributes as the run that was written."""
    given_run = run(
        1,
        closed=7,
        memo={"note": Payload(b"\x00\xff", "binary/plain", {"k": b"v"})},
        search_attributes={"Region": attribute('"eu"'), "Odd": Payload(b"\x01", "binary/odd")},
    )
    table.write([given_run])
    (found,) = table.page("", b"", 10).workflows
    assert (found.memo, found.search_attributes) == (given_run.memo, given_run.search_attributes)
    assert (found.workflow_id, found.run_id, found.workflow_type) == ("w-1", "run-1", "W")
    assert found.status is WorkflowStatus.COMPLETED
    assert (found.start_time_ns, found.close_time_ns) == (given_run.start_ns, given_run.close_ns)
    assert (found.task_queue, found.history_length) == ("q", 5)
    assert (found.root_workflow_id, found.root_run_id, found.parent_workflow_id) == ("w-1", "run-1", "")


def test_history_length_is_known_after_the_close(table: ListTable) -> None:
    """Length, size and duration are missing while a run is open, as on Temporal."""
    table.write([run(1), run(2, closed=1)])
    for name in ("HistoryLength", "HistorySizeBytes", "ExecutionDuration", "CloseTime"):
        assert ids(table, f"{name} IS NULL") == [1]
        assert ids(table, f"{name} IS NOT NULL") == [2]
    assert ids(table, "ExecutionDuration = '1s' AND HistorySizeBytes = 99") == [2]
    assert table.page("WorkflowId = 'w-1'", b"", 1).workflows[0].history_length == 0


def test_order_of_listed_runs(table: ListTable) -> None:
    """Open runs first, newest start first; then closed ones, latest close first; at one instant, newest first."""
    table.write([run(1, closed=100), run(2), run(3, closed=1), run(4), run(5, closed=96)])
    table.write([run(6, start_ns=START + 4 * SECOND)])
    assert ids(table) == [6, 4, 2, 5, 1, 3]


def test_new_state_replaces_the_old(table: ListTable) -> None:
    """A run is listed once, as it was written last, also when both states come at once."""
    first = run(1, search_attributes={"Region": attribute('"eu"'), "Tags": attribute('["a", "b"]')})
    table.write([first])
    changed = msgspec.structs.replace(first, search_attributes={"Region": attribute('"us"')})
    table.write([first, changed])
    assert ids(table, "Region = 'us'") == [1]
    assert ids(table, "Region = 'eu' OR Tags = 'a'") == []
    assert table.count("").count == 1


def test_removed_run_is_not_listed(table: ListTable) -> None:
    """A removed run and its search attributes are deleted; the attribute types remain."""
    runs = [run(n, search_attributes={"Amount": attribute(str(n))}) for n in range(600)]
    table.write(runs)
    table.remove([each.run_id for each in runs[:-1]])
    assert ids(table, "Amount >= 0") == [599]
    table.remove(["run-599", "nobody"])
    assert ids(table, "Amount >= 0") == []
    assert table.database.execute("SELECT count(*) FROM visibility_attributes").fetchone() == (0,)


def test_runs_are_written_with_few_statements(table: ListTable) -> None:
    """Many runs are written by few statements, and again by the same texts."""
    seen: list[str] = []
    runs = [run(n, search_attributes={"Amount": attribute(str(n))}) for n in range(200)]
    table.database.execute("BEGIN")
    table.database.set_trace_callback(seen.append)
    table.write(runs)
    table.database.set_trace_callback(None)
    assert len(seen) < 15
    assert table.count("Amount IS NOT NULL").count == 200


def test_memo_and_attribute_changes_are_visible() -> None:
    """A new memo and new search attributes of an open run show in lists; a step of the work does not."""
    before = run(1, memo={"a": attribute("1")})
    shown = Written(1, ("run", "workflow"), before.memo, before.search_attributes)
    assert shown.shows(msgspec.structs.replace(before, length=9, task_count=3))
    assert shown.shows(run(1, memo={"a": attribute("1")}))
    assert not shown.shows(run(1, memo={}))
    assert not shown.shows(run(1, memo=before.memo, search_attributes={"x": attribute("1")}))


def test_types_of_untyped_attributes(table: ListTable) -> None:
    """An attribute that does not say its type has that of its first value; what does not fit is not found by it."""
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
    table.write([run(1, search_attributes=first), run(2, search_attributes=second)])
    assert ids(table, "K = 'x' AND I = 1 AND B = true AND T = '2024-01-01T00:00:00Z' AND L = 'Q'") == [1]
    assert ids(table, "K IS NULL AND I IS NULL AND B IS NULL") == [2]
    assert ids(table, "D >= 1.5") == [2, 1]
    assert ids(table, "L = 'q'") == [2, 1]
    with pytest.raises(ServiceError, match="invalid search attribute: N"):
        ids(table, "N IS NULL")


def test_declared_attributes(table: ListTable) -> None:
    """A declared attribute is known before its first use, and its type applies to values without one."""
    table.declare({"Note": "Text", "When": "Datetime"})
    assert ids(table, "Note = 'fox'") == []
    table.write([run(1, search_attributes={"Note": attribute('"The fox."')})])
    assert ids(table, "Note = 'FOX'") == [1]
    with pytest.raises(UsageError, match="Keyword, KeywordList"):
        table.declare({"Note": "Texts"})
    with pytest.raises(UsageError, match="WorkflowId"):
        table.declare({"WorkflowId": "Text"})


def test_system_attributes_that_runs_carry(table: ListTable) -> None:
    """Predefined attributes have their types from the start, and are found once a run has them."""
    assert ids(table, "TemporalChangeVersion = 'p-1'") == []
    table.write([run(1, search_attributes={"TemporalChangeVersion": attribute('["p-1"]')})])
    assert ids(table, "ChangeVersion = 'p-1'") == [1]


def test_list_pages_are_stable(table: ListTable) -> None:
    """A run that closes or starts between two pages makes no other appear twice or be missed."""
    table.write([run(n) for n in range(10)])
    first = table.page("", b"", 4)
    table.write([run(9, closed=50), run(3, closed=50), run(11)])
    second = table.page("", first.next_page_token, 100)
    assert [each.workflow_id for each in first.workflows] == ["w-9", "w-8", "w-7", "w-6"]
    assert [each.workflow_id for each in second.workflows] == [
        "w-5",
        "w-4",
        "w-2",
        "w-1",
        "w-0",
        "w-9",
        "w-3",
    ]
    assert second.next_page_token == b""
    assert table.page("", b"", 11).next_page_token == b""


@pytest.mark.parametrize("token", [b"x", b"[1]", b'["a", 1, 2]', b"5"])
def test_malformed_page_token_is_rejected(token: bytes, table: ListTable) -> None:
    """A page token that we never gave is refused."""
    with pytest.raises(ServiceError, match="page token") as caught:
        table.page("", token, 10)
    assert caught.value.status == "INVALID_ARGUMENT"


def test_counts_by_status(table: ListTable) -> None:
    """Counts are of what would be listed, altogether or by status."""
    table.write([run(1), run(2), run(3, closed=1), run(4, closed=1, kind="V")])
    assert table.count("WorkflowType = 'W'").count == 3
    assert table.count("GROUP BY ExecutionStatus").count == 4
    counted = table.count("WorkflowType = 'W' GROUP BY ExecutionStatus")
    assert counted.groups == (CountGroup(("Running",), 2), CountGroup(("Completed",), 1))
    assert counted.count == 3
    assert table.count("").groups == ()


@pytest.mark.parametrize(
    ("text", "index"),
    [
        ("", "visibility_in_order"),
        ("ExecutionStatus = 'Running'", "visibility_by_status"),
        ("WorkflowType = 'W'", "visibility_by_type"),
        ("WorkflowId = 'w-1'", "visibility_by_workflow_id"),
    ],
)
def test_common_lists_need_no_sorting(text: str, index: str, table: ListTable) -> None:
    """Listing all runs, or by status, type or id, reads an index in its order, from the first page to the last."""
    for token in (b"", b"[1, 2, 3]"):
        seen: list[str] = []
        table.database.set_trace_callback(seen.append)
        table.page(text, token, 10)
        table.database.set_trace_callback(None)
        plan = " ".join(row[3] for row in table.database.execute(f"EXPLAIN QUERY PLAN {seen[-1]}"))
        assert index in plan
        assert "TEMP B-TREE" not in plan


def test_attributes_are_found_by_their_index(table: ListTable) -> None:
    """A filter by a custom attribute looks its value up."""
    table.declare({"Region": "Keyword"})
    where = table.where("Region = 'eu'")
    sql = f"EXPLAIN QUERY PLAN SELECT run_id FROM visibility WHERE {where.text}"
    plan = " ".join(row[3] for row in table.database.execute(sql, where.values))
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
def test_sql_injections_are_values(value: str, table: ListTable) -> None:
    """Text that looks like SQL is treated as a value: it matches runs that have it, and has no other effect."""
    payload = Payload(msgspec.json.encode(value), "json/plain", {"type": b"Keyword"})
    table.write([run(1, search_attributes={value: payload, "K": payload}), run(2)])
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
