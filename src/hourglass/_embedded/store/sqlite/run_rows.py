"""The rows of a batch: all rows of all tables about runs are written by as few statements as possible.

Must not know: changes, transactions. Python's SQLite module releases the GIL for each statement and must acquire it
again. While other threads are busy, that can take milliseconds each time. Rows are therefore inserted into a temporary
view, whose triggers write the rows of the tables.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_left
from collections.abc import Sequence
from functools import cache
from itertools import chain, zip_longest
from typing import Any, TypeAlias

from hourglass._embedded.store.sqlite import visibility

COLUMNS = (
    "run", "run_id", "workflow_id", "wake_ns", "close_ns", "state", "first_id", "events", "pending_id", "pending",
    "drop_from", "drop_to", "request_id", "shown",
)  # fmt: skip
"""The columns of a row about one run (by its key), each group optional: its state; events; one pending item; a range of
pending items to delete; one request id; and its list entry. A state without a run id updates only the state of a run in
the file, which touches no index (`wake_ns` is then only a marker: the row has a state).
"""

FIRST_ID = COLUMNS.index("first_id")
"""The position of the first event's id in a row."""

Row: TypeAlias = tuple[Any, ...]

NO_STATE: Row = ("", "", 0, 0, 0)
NO_EVENTS: Row = (0, 0)
_NO_PENDING: Row = (0, 0)
_NO_DROPPED: Row = (0, 0)
NOTHING: Row = (0, *NO_STATE, *NO_EVENTS, *_NO_PENDING, *_NO_DROPPED, "", "")
"""A row without content. Absent values are 0 or "", and bytes are passed as a `bytearray`: for NULL and for `bytes`
Python's SQLite module searches for an adapter each time, which takes longer than the rest of binding a parameter.
"""

_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""The possible numbers of rows in one statement. There are few, so that SQLite keeps all these statements prepared."""

_VIEW = f"CREATE TEMP VIEW steps AS SELECT {', '.join(f'NULL AS {name}' for name in COLUMNS)}"
_FENCE = "SELECT RAISE(ABORT, 'epoch') FROM meta WHERE name = 'epoch' AND value <> {epoch};"
"""SQL that aborts the statement if another process has begun an epoch."""
_PARTS = {
    "1": _FENCE,
    "NEW.run_id <> ''": """
        INSERT INTO runs (key, run_id, workflow_id, wake_ns, close_ns, state)
            VALUES (NEW.run, NEW.run_id, NEW.workflow_id, NEW.wake_ns, NEW.close_ns, NEW.state)
            ON CONFLICT DO UPDATE SET
                wake_ns = excluded.wake_ns, close_ns = excluded.close_ns, state = excluded.state;""",
    "NEW.run_id = '' AND NEW.wake_ns <> 0": "UPDATE runs SET state = NEW.state WHERE key = NEW.run;",
    "NEW.first_id > 0": "INSERT INTO events (run, first_id, data) VALUES (NEW.run, NEW.first_id, NEW.events);",
    "NEW.drop_to > 0": """
        DELETE FROM pending WHERE run = NEW.run AND event_id BETWEEN NEW.drop_from AND NEW.drop_to;""",
    "NEW.pending_id > 0": """
        INSERT OR REPLACE INTO pending (run, event_id, data) VALUES (NEW.run, NEW.pending_id, NEW.pending);""",
    "NEW.request_id <> ''": "INSERT OR IGNORE INTO requests (run, request_id) VALUES (NEW.run, NEW.request_id);",
    "NEW.shown <> ''": visibility.TAKE_SHOWN,
}
"""The statement for each group of columns, by the condition under which it runs. Each has its own trigger: a statement
opens all indexes of its table, even if it writes no row, and most rows write into only three tables. SQLite does not
define the order of triggers, but the order does not matter: the groups of a row are independent, and a row never
deletes the pending item that it writes.
"""


def prepare(connection: sqlite3.Connection, epoch: int) -> None:
    """Prepare a connection for `write`, which raises once another process has begun an epoch in the file. The file is
    not changed.
    """
    connection.execute(_VIEW)
    for number, (condition, statement) in enumerate(_PARTS.items()):
        statement = statement.replace("{epoch}", str(epoch))  # a trigger has no parameters
        connection.execute(
            f"CREATE TEMP TRIGGER take_{number} INSTEAD OF INSERT ON steps WHEN {condition} BEGIN {statement} END"
        )


def rows(
    run: int,
    state: Row,
    events: Row,
    pending: Sequence[Row],
    dropped: Sequence[Row],
    requests: Sequence[str],
    shown: str = "",
) -> list[Row]:
    """Return the rows for a run: one row, or more if there are several pending items, deletions or requests."""
    result = [
        (
            run,
            *state,
            *events,
            *(pending[0] if pending else _NO_PENDING),
            *(dropped[0] if dropped else _NO_DROPPED),
            requests[0] if requests else "",
            shown,
        )
    ]
    if len(pending) > 1 or len(dropped) > 1 or len(requests) > 1:
        further = zip_longest(pending[1:], dropped[1:], requests[1:])
        result += [
            (run, *NO_STATE, *NO_EVENTS, *(item or _NO_PENDING), *(ids or _NO_DROPPED), request or "", "")
            for item, ids, request in further
        ]
    return result


def write(connection: sqlite3.Connection, rows: Sequence[Row]) -> None:
    """Write rows within the caller's transaction. Without one, each statement is a transaction (see
    `is_one_statement`).
    """
    for begin in range(0, len(rows), _SIZES[-1]):
        portion = rows[begin : begin + _SIZES[-1]]
        size = _SIZES[bisect_left(_SIZES, len(portion))]
        parameters = [*chain.from_iterable(portion), *NOTHING * (size - len(portion))]
        connection.execute(_insert_sql(size), parameters)


def is_one_statement(rows: Sequence[Row]) -> bool:
    """Whether these rows fit into one statement, which is a transaction of its own."""
    return len(rows) <= _SIZES[-1]


@cache
def _insert_sql(size: int) -> str:
    row = f"({','.join('?' * len(COLUMNS))})"
    return f"INSERT INTO steps VALUES {','.join([row] * size)}"
