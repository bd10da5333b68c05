"""The list of runs in SQLite: what is written, what is found, in which order and how."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from tests.specs import made

from hourglass._contract.workflows import CountGroup, WorkflowStatus
from hourglass._embedded.store import filters as f
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
    """A run that started in that second and, if it closed, was open for so many."""
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
def database() -> Iterator[sqlite3.Connection]:
    """An empty list of runs."""
    connection = sqlite3.connect(":memory:")
    connection.executescript(visibility.SCHEMA)
    yield connection
    connection.close()


def ids(connection: sqlite3.Connection, text: str = "", limit: int = 100) -> list[int]:
    found = visibility.page(connection, text, b"", limit).workflows
    return [int(each.workflow_id.removeprefix("w-")) for each in found]


def test_what_comes_back(database: sqlite3.Connection) -> None:
    """A run comes back with its facts, its memo and its search attributes as they were."""
    given_run = run(
        1,
        closed=7,
        memo={"note": Payload(b"\x00\xff", "binary/plain", {"k": b"v"})},
        search_attributes={"Region": attribute('"eu"'), "Odd": Payload(b"\x01", "binary/odd")},
    )
    visibility.write(database, [given_run])
    (found,) = visibility.page(database, "", b"", 10).workflows
    assert (found.memo, found.search_attributes) == (given_run.memo, given_run.search_attributes)
    assert (found.workflow_id, found.run_id, found.workflow_type) == ("w-1", "run-1", "W")
    assert found.status is WorkflowStatus.COMPLETED
    assert (found.start_time_ns, found.close_time_ns) == (given_run.start_ns, given_run.close_ns)
    assert (found.task_queue, found.history_length) == ("q", 5)
    assert (found.root_workflow_id, found.root_run_id, found.parent_workflow_id) == ("w-1", "run-1", "")


def test_lengths_are_known_from_the_close_on(database: sqlite3.Connection) -> None:
    """Length, size and duration are missing while a run is open, as on Temporal."""
    visibility.write(database, [run(1), run(2, closed=1)])
    for name in ("HistoryLength", "HistorySizeBytes", "ExecutionDuration", "CloseTime"):
        assert ids(database, f"{name} IS NULL") == [1]
        assert ids(database, f"{name} IS NOT NULL") == [2]
    assert ids(database, "ExecutionDuration = '1s' AND HistorySizeBytes = 99") == [2]
    assert visibility.page(database, "WorkflowId = 'w-1'", b"", 1).workflows[0].history_length == 0


def test_order(database: sqlite3.Connection) -> None:
    """Open runs first, newest start first; then closed ones, latest close first; at one instant, newest first."""
    visibility.write(database, [run(1, closed=100), run(2), run(3, closed=1), run(4), run(5, closed=96)])
    visibility.write(database, [run(6, start_ns=START + 4 * SECOND)])
    assert ids(database) == [6, 4, 2, 5, 1, 3]


def test_a_new_state_replaces_the_old(database: sqlite3.Connection) -> None:
    """A run is listed once, as it was written last, also when both states come at once."""
    first = run(1, search_attributes={"Region": attribute('"eu"'), "Tags": attribute('["a", "b"]')})
    visibility.write(database, [first])
    changed = msgspec.structs.replace(first, search_attributes={"Region": attribute('"us"')})
    visibility.write(database, [first, changed])
    assert ids(database, "Region = 'us'") == [1]
    assert ids(database, "Region = 'eu' OR Tags = 'a'") == []
    assert visibility.count(database, "").count == 1


def test_removing(database: sqlite3.Connection) -> None:
    """What is removed is gone, its search attributes too; the types stay known."""
    runs = [run(n, search_attributes={"Amount": attribute(str(n))}) for n in range(600)]
    visibility.write(database, runs)
    visibility.remove(database, [each.run_id for each in runs[:-1]])
    assert ids(database, "Amount >= 0") == [599]
    visibility.remove(database, ["run-599", "nobody"])
    assert ids(database, "Amount >= 0") == []
    assert database.execute("SELECT count(*) FROM visibility_attributes").fetchone() == (0,)


def test_few_statements(database: sqlite3.Connection) -> None:
    """Many runs are written by few statements, and again by the same texts."""
    seen: list[str] = []
    runs = [run(n, search_attributes={"Amount": attribute(str(n))}) for n in range(200)]
    database.execute("BEGIN")
    database.set_trace_callback(seen.append)
    visibility.write(database, runs)
    database.set_trace_callback(None)
    assert len(seen) < 15
    assert visibility.count(database, "Amount IS NOT NULL").count == 200


def test_which_changes_are_visible() -> None:
    """A new memo and new search attributes of an open run show in lists; a step of the work does not."""
    before = run(1, memo={"a": attribute("1")})
    shown = Written(1, ("run", "workflow"), before.memo, before.search_attributes)
    assert shown.shows(msgspec.structs.replace(before, length=9, task_count=3))
    assert shown.shows(run(1, memo={"a": attribute("1")}))
    assert not shown.shows(run(1, memo={}))
    assert not shown.shows(run(1, memo=before.memo, search_attributes={"x": attribute("1")}))


def test_types_of_untyped_attributes(database: sqlite3.Connection) -> None:
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
    visibility.write(database, [run(1, search_attributes=first), run(2, search_attributes=second)])
    assert ids(database, "K = 'x' AND I = 1 AND B = true AND T = '2024-01-01T00:00:00Z' AND L = 'Q'") == [1]
    assert ids(database, "K IS NULL AND I IS NULL AND B IS NULL") == [2]
    assert ids(database, "D >= 1.5") == [2, 1]
    assert ids(database, "L = 'q'") == [2, 1]
    with pytest.raises(ServiceError, match="invalid search attribute: N"):
        ids(database, "N IS NULL")


def test_declared_attributes(database: sqlite3.Connection) -> None:
    """A declared attribute is known before its first use, and its type holds for values that say none."""
    visibility.declare(database, {"Note": "Text", "When": "Datetime"})
    assert ids(database, "Note = 'fox'") == []
    visibility.write(database, [run(1, search_attributes={"Note": attribute('"The fox."')})])
    assert ids(database, "Note = 'FOX'") == [1]
    with pytest.raises(UsageError, match="Keyword, KeywordList"):
        visibility.declare(database, {"Note": "Texts"})
    with pytest.raises(UsageError, match="WorkflowId"):
        visibility.declare(database, {"WorkflowId": "Text"})


def test_system_attributes_that_runs_carry(database: sqlite3.Connection) -> None:
    """Predefined attributes have their types from the start, and are found once a run has them."""
    assert ids(database, "TemporalChangeVersion = 'p-1'") == []
    visibility.write(database, [run(1, search_attributes={"TemporalChangeVersion": attribute('["p-1"]')})])
    assert ids(database, "ChangeVersion = 'p-1'") == [1]


def test_pages_do_not_shift(database: sqlite3.Connection) -> None:
    """A run that closes or starts between two pages makes no other appear twice or be missed."""
    visibility.write(database, [run(n) for n in range(10)])
    first = visibility.page(database, "", b"", 4)
    visibility.write(database, [run(9, closed=50), run(3, closed=50), run(11)])
    second = visibility.page(database, "", first.next_page_token, 100)
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
    assert visibility.page(database, "", b"", 11).next_page_token == b""


@pytest.mark.parametrize("token", [b"x", b"[1]", b'["a", 1, 2]', b"5"])
def test_malformed_page_tokens(token: bytes, database: sqlite3.Connection) -> None:
    """A page token that we never gave is refused."""
    with pytest.raises(ServiceError, match="page token") as caught:
        visibility.page(database, "", token, 10)
    assert caught.value.status == "INVALID_ARGUMENT"


def test_counting(database: sqlite3.Connection) -> None:
    """Counts are of what would be listed, altogether or by status."""
    visibility.write(database, [run(1), run(2), run(3, closed=1), run(4, closed=1, kind="V")])
    assert visibility.count(database, "WorkflowType = 'W'").count == 3
    assert visibility.count(database, "GROUP BY ExecutionStatus").count == 4
    counted = visibility.count(database, "WorkflowType = 'W' GROUP BY ExecutionStatus")
    assert counted.groups == (CountGroup(("Running",), 2), CountGroup(("Completed",), 1))
    assert counted.count == 3
    assert visibility.count(database, "").groups == ()


@pytest.mark.parametrize(
    ("text", "index"),
    [
        ("", "visibility_in_order"),
        ("ExecutionStatus = 'Running'", "visibility_by_status"),
        ("WorkflowType = 'W'", "visibility_by_type"),
        ("WorkflowId = 'w-1'", "visibility_by_workflow_id"),
    ],
)
def test_the_common_lists_need_no_sorting(text: str, index: str, database: sqlite3.Connection) -> None:
    """Listing all runs, or by status, type or id, reads an index in its order, from the first page to the last."""
    for token in (b"", b"[1, 2, 3]"):
        seen: list[str] = []
        database.set_trace_callback(seen.append)
        visibility.page(database, text, token, 10)
        database.set_trace_callback(None)
        plan = " ".join(row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {seen[-1]}"))
        assert index in plan
        assert "TEMP B-TREE" not in plan


def test_attributes_are_found_by_their_index(database: sqlite3.Connection) -> None:
    """A filter by a custom attribute looks its value up."""
    visibility.declare(database, {"Region": "Keyword"})
    where = statement(f.parse("Region = 'eu'"), visibility.types(database))
    sql = f"EXPLAIN QUERY PLAN SELECT run_id FROM visibility WHERE {where.text}"
    plan = " ".join(row[3] for row in database.execute(sql, where.values))
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
def test_injections_are_values(value: str, database: sqlite3.Connection) -> None:
    """What looks like SQL is a value: found where a run has it, and nothing else happens."""
    payload = Payload(msgspec.json.encode(value), "json/plain", {"type": b"Keyword"})
    visibility.write(database, [run(1, search_attributes={value: payload, "K": payload}), run(2)])
    quoted = "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"
    for text in (
        f"K = {quoted}",
        f"K IN ({quoted})",
        f"K STARTS_WITH {quoted}",
        f"K BETWEEN {quoted} AND {quoted}",
    ):
        assert ids(database, text) == [1]
    if "`" not in value:
        assert ids(database, f"`{value}` = {quoted}") == [1]
    assert ids(database, f"WorkflowId = {quoted}") == []
    assert ids(database) == [2, 1]
