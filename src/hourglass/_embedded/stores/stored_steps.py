"""Writes what happened to runs into the tables, however much it is, by one statement.

Must not know: what the blobs hold, transactions (the caller's, or none). Python's SQLite lets go of the interpreter
at every statement and must get it back; beside busy threads each time can take milliseconds. So a batch goes into a
view of this connection, of which a trigger makes rows in all the tables. Invariants: a statement is whole or not at
all, also outside of a transaction; a row may say any part of what is in `COLUMNS`, and `NOTHING` says nothing.

What a row does not say is 0 or an empty text, and bytes come as a `bytearray`: for NULL and for `bytes` Python's
SQLite looks for an adapter each time, which takes longer than all the rest of a parameter.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import cache
from itertools import chain, zip_longest
from typing import Any, TypeAlias

from hourglass._embedded.stores import visibility

COLUMNS = (
    "run", "run_id", "workflow_id", "wake_ns", "close_ns", "state", "first_id", "events", "kept_id", "kept",
    "drop_from", "drop_to", "request_id", "shown",
)  # fmt: skip
"""What a row can say of a run (by its key): its state; events; one pending thing; which are gone; one request; and
what lists show of it now."""

Row: TypeAlias = tuple[Any, ...]

NO_STATE: Row = ("", "", 0, 0, 0)
NO_EVENTS: Row = (0, 0)
_NOT_KEPT: Row = (0, 0)
_NOT_DROPPED: Row = (0, 0)
NOTHING: Row = (0, *NO_STATE, *NO_EVENTS, *_NOT_KEPT, *_NOT_DROPPED, "", "")

_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""How many rows a statement can have: few, so that SQLite keeps all of them prepared."""

_VIEW = f"CREATE TEMP VIEW steps AS SELECT {', '.join(f'NULL AS {name}' for name in COLUMNS)}"
_TRIGGER = f"""
CREATE TEMP TRIGGER take_step INSTEAD OF INSERT ON steps BEGIN
    SELECT RAISE(ABORT, 'epoch') FROM meta WHERE name = 'epoch' AND value <> EPOCH;
    INSERT INTO runs (key, run_id, workflow_id, wake_ns, close_ns, state)
        SELECT NEW.run, NEW.run_id, NEW.workflow_id, NEW.wake_ns, NEW.close_ns, NEW.state
        WHERE NEW.run_id <> ''
        ON CONFLICT DO UPDATE SET
            wake_ns = excluded.wake_ns, close_ns = excluded.close_ns, state = excluded.state;
    INSERT INTO events (run, first_id, data)
        SELECT NEW.run, NEW.first_id, NEW.events WHERE NEW.first_id > 0;
    DELETE FROM pending
        WHERE NEW.drop_to > 0 AND run = NEW.run AND event_id BETWEEN NEW.drop_from AND NEW.drop_to;
    INSERT OR REPLACE INTO pending (run, event_id, data)
        SELECT NEW.run, NEW.kept_id, NEW.kept WHERE NEW.kept_id > 0;
    INSERT OR IGNORE INTO requests (run, request_id)
        SELECT NEW.run, NEW.request_id WHERE NEW.request_id <> '';
{visibility.TAKE_SHOWN}END
"""


def prepare(connection: sqlite3.Connection, epoch: int) -> None:
    """Make a connection ready for `write`, which raises from the moment that the epoch is another. Leaves no trace in
    the file.
    """
    connection.execute(_VIEW)
    connection.execute(_TRIGGER.replace("EPOCH", str(epoch)))  # a trigger takes no parameters


def rows(
    run: int,
    state: Row,
    events: Row,
    kept: Sequence[Row],
    dropped: Sequence[Row],
    requests: Sequence[str],
    shown: str = "",
) -> list[Row]:
    """What is to be written of a run: more than one pending thing or request takes more than one row."""
    found = [
        (
            run,
            *state,
            *events,
            *(kept[0] if kept else _NOT_KEPT),
            *(dropped[0] if dropped else _NOT_DROPPED),
            requests[0] if requests else "",
            shown,
        )
    ]
    if len(kept) > 1 or len(dropped) > 1 or len(requests) > 1:
        more = zip_longest(kept[1:], dropped[1:], requests[1:])
        found += [
            (run, *NO_STATE, *NO_EVENTS, *(one or _NOT_KEPT), *(gone or _NOT_DROPPED), request or "", "")
            for one, gone, request in more
        ]
    return found


def write(connection: sqlite3.Connection, rows: Sequence[Row]) -> None:
    """Write rows; see `is_one_statement`."""
    for begin in range(0, len(rows), _SIZES[-1]):
        some = rows[begin : begin + _SIZES[-1]]
        size = next(size for size in _SIZES if size >= len(some))
        parameters = [*chain.from_iterable(some), *NOTHING * (size - len(some))]
        connection.execute(_text(size), parameters)


def is_one_statement(rows: Sequence[Row]) -> bool:
    """Whether so many rows are written by one statement, which is a transaction by itself."""
    return len(rows) <= _SIZES[-1]


@cache
def _text(size: int) -> str:
    row = f"({','.join('?' * len(COLUMNS))})"
    return f"INSERT INTO steps VALUES {','.join([row] * size)}"
