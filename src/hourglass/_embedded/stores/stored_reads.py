"""Reads single runs from the file, in one statement and one row each.

Must not know: who asks, what is still queued. Each row that SQLite gives costs a fight for the interpreter beside
busy threads, so a whole history comes as one text of hexadecimal pieces. Invariants: nothing is changed; every
statement is read to its end, for one that is left open keeps the log from being emptied.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hourglass._embedded.stores.disk_faults import storage_errors
from hourglass._embedded.stores.store import Stored
from hourglass._embedded.stores.stored_form import decode_events, decode_run
from hourglass._history import events as h
from hourglass._history.encoding import plain

_LOAD = """
SELECT CAST(state AS BLOB),
    (SELECT group_concat(first_id || ':' || hex(data), ' ') FROM events WHERE run = runs.key),
    (SELECT group_concat(event_id || ':' || hex(data), ' ') FROM pending WHERE run = runs.key)
FROM runs WHERE run_id = ?
"""

# CROSS: by the request's id first. A workflow may have any number of runs, an id has few.
FIND_REQUEST = """
SELECT run_id FROM requests CROSS JOIN runs ON key = run
WHERE request_id = ? AND workflow_id = ? ORDER BY run DESC LIMIT 1
"""


_LARGEST = 2**63 - 1


class StoredReads:
    """Point reads on one connection."""

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self.connection = connection
        self._path = path

    def load(self, run_id: str) -> Stored | None:
        """A run with its whole history."""
        with storage_errors(self._path):
            try:
                found = self.connection.execute(_LOAD, (plain(run_id),)).fetchall()
            except sqlite3.DataError:  # longer than a text of SQLite can be
                found = self._load_row_by_row(run_id)
            if not found:
                return None
            state, events, pending = found[0]
            try:
                history = _history(_pieces(events))
                return Stored(decode_run(state, history, _pieces(pending)), tuple(history))
            except Exception as error:  # whatever stands there
                raise ValueError(f"the run {run_id}: {error}") from error

    def current(self, workflow_id: str) -> str:
        """The run id of the latest run of a workflow."""
        text = "SELECT run_id FROM runs WHERE workflow_id = ? ORDER BY key DESC LIMIT 1"
        found = self._rows(text, plain(workflow_id))
        return str(found[0][0]) if found else ""

    def workflow_ids(self) -> Iterator[str]:
        """The ids of all workflows, once for each run; to be read to the end."""
        with storage_errors(self._path):
            # As bytes: one that is no text must not keep the file from being opened.
            for (workflow_id,) in self.connection.execute("SELECT CAST(workflow_id AS BLOB) FROM runs"):
                yield workflow_id.decode(errors="replace")

    def find_request(self, workflow_id: str, request_id: str) -> str:
        """The run id of the latest run of a workflow that carried out a request."""
        found = self._rows(FIND_REQUEST, plain(request_id), plain(workflow_id))
        return str(found[0][0]) if found else ""

    def due(self, until_ns: int, limit: int, after_ns: int) -> Sequence[str]:
        """Runs with a wake time after the one and not after the other, earliest first."""
        text = """SELECT group_concat(wake_ns || ':' || key || ':' || run_id, char(31)) FROM (
            SELECT wake_ns, key, run_id FROM runs
            WHERE wake_ns > 0 AND wake_ns > ? AND wake_ns <= ? ORDER BY wake_ns, key LIMIT ?)"""
        found = self._joined(text, after_ns, until_ns, limit)
        pieces = [piece.split(":", 2) for piece in found.split("\x1f") if piece]
        # SQLite does not promise the order of what it joins.
        return [run_id for _, _, run_id in sorted(pieces, key=_place)]

    def without_wake(self) -> Sequence[str]:
        """Runs whose wake time is no number, for the row is damaged: they would never be due."""
        text = f"""SELECT group_concat(run_id, char(31)) FROM runs
            WHERE wake_ns > 0 AND wake_ns > {_LARGEST}"""  # texts and bytes come after all numbers
        return [run_id for run_id in self._joined(text).split("\x1f") if run_id]

    def _joined(self, text: str, *parameters: object) -> str:
        """One text, also where a part of it is damaged and no text."""
        found = self._rows(f"SELECT CAST(({text}) AS BLOB)", *parameters)[0][0]
        return "" if found is None else bytes(found).decode(errors="replace")

    def next_due_ns(self, after_ns: int) -> int:
        """The earliest wake time later than this; 0 if there is none."""
        text = f"SELECT min(wake_ns) FROM runs WHERE wake_ns > 0 AND wake_ns > ? AND wake_ns <= {_LARGEST}"
        return int(self._rows(text, after_ns)[0][0] or 0)

    def latest_ns(self) -> int:
        """The time of the newest event, from the last that were written; 0 if there is none."""
        found = self._rows("SELECT CAST(data AS BLOB) FROM events ORDER BY key DESC LIMIT 64")
        return max((_last_time_ns(data) for (data,) in found), default=0)

    def closed(self, before_ns: int, limit: int) -> Sequence[int]:
        """The keys of runs that closed before a time, earliest first."""
        text = "SELECT key FROM runs WHERE close_ns > 0 AND close_ns < ? ORDER BY close_ns LIMIT ?"
        return [key for (key,) in self._rows(text, before_ns, limit)]

    def _rows(self, text: str, *parameters: object) -> list[tuple[Any, ...]]:
        with storage_errors(self._path):
            return self.connection.execute(text, parameters).fetchall()

    def _load_row_by_row(self, run_id: str) -> list[tuple[Any, ...]]:
        run = self.connection.execute(
            "SELECT CAST(state AS BLOB), key FROM runs WHERE run_id = ?", (plain(run_id),)
        )
        rows = run.fetchall()
        if not rows:
            return []
        state, key = rows[0]
        events = self.connection.execute("SELECT first_id, data FROM events WHERE run = ?", (key,))
        pending = self.connection.execute("SELECT event_id, data FROM pending WHERE run = ?", (key,))
        return [(state, dict(events.fetchall()), dict(pending.fetchall()))]


def _place(piece: Sequence[str]) -> tuple[int, int]:
    """Where a run stands in the order: by its wake time (damaged, it may be a fraction), then by its key."""
    return int(piece[0].partition(".")[0]), int(piece[1])


def _last_time_ns(data: Any) -> int:
    try:
        return int(decode_events(data)[-1].time_ns)
    except (ValueError, TypeError, LookupError):
        return 0  # its run will say that it cannot be read


def _pieces(found: str | Mapping[int, bytes] | None) -> Mapping[int, bytes]:
    if not isinstance(found, str):
        return found or {}
    pieces: dict[int, bytes] = {}
    for piece in found.split(" "):
        number, _, data = piece.partition(":")
        pieces[int(number)] = bytes.fromhex(data)
    return pieces


def _history(pieces: Mapping[int, bytes]) -> list[h.HistoryEvent]:
    history: list[h.HistoryEvent] = []
    for first_id in sorted(pieces):
        history += decode_events(pieces[first_id])
    return history
