"""The index for lists and counts of runs in SQLite, separate from the runs themselves.

Must not know: threads, transactions (the caller's), histories. A row is written when a run starts, closes, or changes
its memo or search attributes, not at every step. The history length and the duration are available once the run has
closed, as in Temporal. Statements write many rows at once, because each statement makes the calling thread release the
GIL.

Invariants: open runs come first, newest start first, then closed ones, latest close first; runs with equal times are
ordered newest first. The type of a search attribute is that of its first use, or as declared; a value of another type
is kept and shown, but filters do not find it. Times are integers in microseconds.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec

from hourglass._contract.workflows import Count, CountGroup, Page, WorkflowStatus, WorkflowSummary
from hourglass._embedded.store.filters import invalid_query, parse
from hourglass._embedded.store.search_attributes import (
    SYSTEM,
    AttributeType,
    Indexed,
    indexed,
    type_named,
    type_of,
)
from hourglass._embedded.store.sqlite.filter_sql import OPEN, Sql, statement, status_name
from hourglass._embedded.store.store import summary
from hourglass._embedded.transitions.run import RUNNING, Run, first_task_ns
from hourglass._embedded.transitions.standalone import PREFIX
from hourglass.converter import Payload
from hourglass.errors import ServiceError, UsageError

SCHEMA = """
create table visibility (
    id integer primary key,
    run_id text not null unique,
    rank integer not null,
    start_time integer not null,
    execution_time integer not null,
    close_time integer,
    status integer not null,
    workflow_id text not null,
    workflow_type text not null,
    task_queue text not null,
    execution_duration integer,
    history_length integer,
    history_size integer,
    parent_workflow_id text,
    parent_run_id text,
    root_workflow_id text,
    root_run_id text,
    fields blob
);
create index visibility_in_order on visibility (rank, start_time);
create index visibility_by_start on visibility (start_time);
create index visibility_by_status on visibility (status, rank, start_time);
create index visibility_by_type on visibility (workflow_type, rank, start_time);
create index visibility_by_workflow_id on visibility (workflow_id, rank, start_time);
create table visibility_attributes (
    name text not null,
    value not null,
    run_id text not null,
    primary key (name, value, run_id)
) without rowid;
create index visibility_attributes_by_run on visibility_attributes (run_id);
create table visibility_types (
    name text primary key,
    type text not null
) without rowid;
"""
"""The tables. `rank` is the close time of a run, or a value later than all times while the run is open."""

_COLUMNS = (
    "run_id", "rank", "start_time", "execution_time", "close_time", "status", "workflow_id", "workflow_type",
    "task_queue", "execution_duration", "history_length", "history_size", "parent_workflow_id", "parent_run_id",
    "root_workflow_id", "root_run_id", "fields",
)  # fmt: skip
_READ = ", ".join((*_COLUMNS, "id"))
_SET = ", ".join(f"{column} = excluded.{column}" for column in _COLUMNS[1:])
_NULL_NUMBER = -(2**62)
_NULL_MARKERS = {
    "close_time": _NULL_NUMBER, "execution_duration": _NULL_NUMBER, "history_length": _NULL_NUMBER,
    "history_size": _NULL_NUMBER, "parent_workflow_id": "''", "parent_run_id": "''", "fields": "''",
}  # fmt: skip
"""Columns that may be NULL, each with the value that represents NULL in a row (see `writer.NOTHING` for the reason)."""


def _or_null(name: str, value: str) -> str:
    return f"nullif({value}, {_NULL_MARKERS[name]})" if name in _NULL_MARKERS else value


_ROW = ", ".join(_or_null(name, "?") for name in _COLUMNS)
_UPSERT = f"INSERT INTO visibility ({', '.join(_COLUMNS)}) VALUES {{rows}} ON CONFLICT (run_id) DO UPDATE SET {_SET}"
_SHOWN = ", ".join(
    _or_null(name, f"json_extract(NEW.shown, '$[{place}]')") for place, name in enumerate(_COLUMNS)
)
_ENDED = ("rank", "close_time", "status", "execution_duration", "history_length", "history_size")
"""The columns that change when a run that is listed as open closes."""
_SET_ENDED = ", ".join(f"{name} = json_extract(NEW.shown, '$.{name}')" for name in _ENDED)
TAKE_SHOWN = f"""
    INSERT INTO visibility ({", ".join(_COLUMNS)}) SELECT {_SHOWN} WHERE substr(NEW.shown, 1, 1) = '['
        ON CONFLICT (run_id) DO UPDATE SET {_SET};
    UPDATE visibility SET {_SET_ENDED} WHERE substr(NEW.shown, 1, 1) = '{{' AND run_id = NEW.run_id;
"""
"""SQL of a trigger on rows with the columns `run_id` and `shown`. It applies the JSON in the column `shown`, a result
of the functions `shown` or `ended`, unless that is empty.
"""
PLAIN_START = f"""(SELECT start_time FROM visibility
    WHERE visibility.run_id = runs.run_id AND fields IS NULL AND status = {RUNNING.value})"""
"""SQL expression for the start time of a row of `runs` in microseconds. It is NULL unless the run is listed as open
and has neither memo nor search attributes.
"""
_ORDER = "ORDER BY rank DESC, start_time DESC, id DESC"
_MOST_ROWS = 256
_TOO_MUCH = frozenset(
    {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_RANGE, sqlite3.SQLITE_NOMEM}
)
"""Error codes of a statement that SQLite rejects because of its size, before it reads the file."""


class _Fields(msgspec.Struct, frozen=True, omit_defaults=True):
    """Fields of a run that lists show but filters ignore."""

    memo: dict[str, Payload] = {}
    search_attributes: dict[str, Payload] = {}


_encoder = msgspec.msgpack.Encoder()
_json = msgspec.json.Encoder()
_decoder = msgspec.msgpack.Decoder(_Fields)
_token = msgspec.json.Decoder(tuple[int, int, int])


def write(connection: sqlite3.Connection, runs: Sequence[Run], stale: Iterable[str] | None = None) -> None:
    """Write the list entries of runs. If a run occurs more than once, its last state is written.

    `stale` are the ids of the runs with search attributes that may already be indexed; default: all runs.
    """
    latest = {run.run_id: run for run in runs}
    _many(connection, _UPSERT, [_row(run) for run in latest.values()], _ROW)
    indexed_before = [(run_id,) for run_id in (latest if stale is None else stale)]
    _many(connection, "DELETE FROM visibility_attributes WHERE run_id IN ({rows})", indexed_before)
    with_attributes = [run for run in latest.values() if run.search_attributes]
    if with_attributes:
        known_types = _add_new_types(connection, with_attributes)
        _many(
            connection,
            "INSERT OR IGNORE INTO visibility_attributes (name, value, run_id) VALUES {rows}",
            [row for run in with_attributes for row in _attribute_rows(run, known_types)],
        )


def shown(run: Run) -> str:
    """Return a run's list entry as JSON for `TAKE_SHOWN`; empty if the entry must be written by `write` instead.

    That is the case for runs with a memo, with search attributes, or with a NUL character in a name, where SQLite's
    JSON functions would truncate the name. The run must have had no search attributes before.
    """
    if run.memo or run.search_attributes:
        return ""
    row = _json.encode(_row(run)).decode()
    return "" if "\\u0000" in row else row


def ended(run: Run) -> str:
    """Return the changed columns of a closed run's list entry as JSON for `TAKE_SHOWN`. The stored entry must be up to
    date except that it shows the run as open.
    """
    close_time = run.close_ns // 1000
    return _json.encode(
        {
            "rank": close_time,
            "close_time": close_time,
            "status": int(run.status),
            "execution_duration": run.close_ns - first_task_ns(run),
            "history_length": run.length,
            "history_size": run.history_size,
        }
    ).decode()


def remove(connection: sqlite3.Connection, run_ids: Sequence[str]) -> None:
    """Delete runs from the index. The types of their search attributes are kept."""
    keys = _json.encode(run_ids).decode()
    for table in ("visibility", "visibility_attributes"):
        connection.execute(f"DELETE FROM {table} WHERE run_id IN (SELECT value FROM json_each(?))", (keys,))


def declare(connection: sqlite3.Connection, types: Mapping[str, str]) -> None:
    """Declare search attributes before their first use, with Temporal's type names (`Keyword`, `Int` …)."""
    for name, kind in types.items():
        if type_named(kind) is None or name in SYSTEM:
            available = ", ".join(member.value for member in AttributeType)
            raise UsageError(
                f"search attribute {name} cannot have the type {kind!r}; known types: {available}"
            )
    _many(
        connection, "INSERT OR REPLACE INTO visibility_types (name, type) VALUES {rows}", list(types.items())
    )


def _row(run: Run) -> tuple[Any, ...]:
    entry = summary(run)
    closed = run.status is not RUNNING
    close_time = entry.close_time_ns // 1000 if closed else _NULL_NUMBER
    fields = _Fields(entry.memo, entry.search_attributes)
    return (
        entry.run_id,
        close_time if closed else OPEN,
        entry.start_time_ns // 1000,
        entry.execution_time_ns // 1000,
        close_time,
        int(entry.status),
        entry.workflow_id,
        entry.workflow_type,
        entry.task_queue,
        entry.close_time_ns - entry.execution_time_ns if closed else _NULL_NUMBER,
        entry.history_length if closed else _NULL_NUMBER,
        run.history_size if closed else _NULL_NUMBER,
        entry.parent_workflow_id,
        entry.parent_run_id,
        entry.root_workflow_id,
        entry.root_run_id,
        bytearray(_encoder.encode(fields)) if entry.memo or entry.search_attributes else "",
    )


def _add_new_types(connection: sqlite3.Connection, runs: Sequence[Run]) -> dict[str, AttributeType]:
    """Store the types of new search attributes. Return all types."""
    known_types = types(connection)
    new: dict[str, AttributeType] = {}
    for run in runs:
        for name, payload in run.search_attributes.items():
            if name not in known_types and name not in SYSTEM and (kind := type_of(payload)) is not None:
                known_types[name] = new[name] = kind
    rows = [(name, kind.value) for name, kind in new.items()]
    _many(connection, "INSERT OR IGNORE INTO visibility_types (name, type) VALUES {rows}", rows)
    return known_types


def types(connection: sqlite3.Connection) -> dict[str, AttributeType]:
    return {
        name: AttributeType(kind)
        for name, kind in connection.execute("SELECT name, type FROM visibility_types")
    }


def _attribute_rows(run: Run, types: Mapping[str, AttributeType]) -> Iterator[tuple[str, Indexed, str]]:
    for name, payload in run.search_attributes.items():
        kind = SYSTEM.get(name) or types.get(name)
        if kind is not None:
            for value in indexed(payload, kind):
                yield name, value, run.run_id


def _many(connection: sqlite3.Connection, sql: str, rows: Sequence[Sequence[Any]], row: str = "") -> None:
    """Run a statement for many rows at a time.

    The number of rows is rounded up to a power of two by repeating the last row, which must be harmless, so that SQLite
    can reuse the prepared statement.
    """
    for start in range(0, len(rows), _MOST_ROWS):
        batch = rows[start : start + _MOST_ROWS]
        size = 1 << (len(batch) - 1).bit_length()
        values = [value for row in batch for value in row]
        values += [*batch[-1]] * (size - len(batch))
        connection.execute(_statement_for(sql, row or ", ".join("?" * len(batch[0])), size), values)


@cache
def _statement_for(sql: str, row: str, size: int) -> str:
    return sql.format(rows=", ".join([f"({row})"] * size))


def page(
    connection: sqlite3.Connection, text: str, token: bytes, limit: int, activities: bool = False
) -> Page:
    """Return one page of runs that match a filter, after the page that returned `token`.

    Runs that start, close or disappear between two calls do not shift the pages. Raises `ServiceError` for an invalid
    filter or token.
    """
    where = _where(connection, text, activities)
    after = _after(token)
    after_condition = " AND (rank, start_time, id) < (?, ?, ?)" if after else ""
    sql = f"SELECT {_READ} FROM visibility WHERE {where.text}{after_condition} {_ORDER} LIMIT ?"
    rows = _rows(connection, sql, (*where.values, *after, limit + 1))
    next_token = b""
    if len(rows) > limit:
        last = rows[limit - 1]
        next_token = msgspec.json.encode((last[1], last[2], last[-1]))
    return Page(tuple(_summary(row) for row in rows[:limit]), next_token)


def count(connection: sqlite3.Connection, text: str, activities: bool = False) -> Count:
    """Count the runs that match a filter; with `GROUP BY ExecutionStatus` also by status."""
    where, is_grouped = _where(connection, text, activities), bool(parse(text).group_by)
    # Without groups the status is not read, so that SQLite may need only an index.
    column, group_by = ("status", " GROUP BY status ORDER BY status") if is_grouped else ("0", "")
    rows = _rows(
        connection, f"SELECT count(*), {column} FROM visibility WHERE {where.text}{group_by}", where.values
    )
    groups = [
        CountGroup((status_name(WorkflowStatus(status)),), number) for number, status in rows if is_grouped
    ]
    return Count(sum(number for number, _ in rows), tuple(groups))


def _rows(connection: sqlite3.Connection, sql: str, values: Sequence[Indexed]) -> list[tuple[Any, ...]]:
    """Run a query.

    If SQLite rejects a statement as too long, too deep or with too many values, the error names the filter as the
    cause, not the file, because the limits differ between builds of SQLite.
    """
    try:
        return connection.execute(sql, values).fetchall()
    except sqlite3.Error as error:
        if isinstance(error, sqlite3.DataError) or getattr(error, "sqlite_errorcode", 0) in _TOO_MUCH:
            raise invalid_query(
                "the query is too large for this version of SQLite: use fewer conditions, values or words"
            ) from error
        raise


def _where(connection: sqlite3.Connection, text: str, activities: bool) -> Sql:
    """Return the condition for workflow runs, or standalone activities, that match a filter."""
    condition = statement(parse(text), types(connection))
    return Sql(f"({condition.text}) AND {'' if activities else 'NOT '}{_IS_STANDALONE}", condition.values)


_IS_STANDALONE = f"(workflow_id >= '{PREFIX}' AND workflow_id < '{PREFIX[:-1]}0')"  # '0' follows '/' in ASCII


def _after(token: bytes) -> tuple[int, ...]:
    if not token:
        return ()
    try:
        return _token.decode(token)
    except msgspec.DecodeError:
        raise ServiceError("the page token is malformed", status="INVALID_ARGUMENT") from None


def _summary(row: Sequence[Any]) -> WorkflowSummary:
    (
        run_id, _, start, execution, close, status, workflow_id, workflow_type, task_queue, _, length, _,
        parent_id, parent_run_id, root_id, root_run_id, data, _,
    ) = row  # fmt: skip
    fields = _Fields() if data is None else _decoder.decode(data)
    return WorkflowSummary(
        workflow_id=workflow_id,
        run_id=run_id,
        workflow_type=workflow_type,
        status=WorkflowStatus(status),
        task_queue=task_queue,
        start_time_ns=start * 1000,
        execution_time_ns=execution * 1000,
        close_time_ns=(close or 0) * 1000,
        history_length=length or 0,
        parent_workflow_id=parent_id or "",
        parent_run_id=parent_run_id or "",
        root_workflow_id=root_id,
        root_run_id=root_run_id,
        memo=fields.memo,
        search_attributes=fields.search_attributes,
    )
