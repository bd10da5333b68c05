"""Writes batches of changes into the tables, with as few statements as can be.

Must not know: threads, queues, who waits. Python's SQLite lets go of the interpreter at every step of a statement
and must get it back; beside busy threads each time can take milliseconds. So rows go in by the dozen: statements
for a few fixed numbers of rows, which SQLite keeps prepared. Invariants: a batch is one transaction; it is built
first (bytes and keys) and can then be tried again as it is.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import msgspec

from hourglass._embedded import stored_schedules, visibility
from hourglass._embedded.coalesce import Merged, coalesce
from hourglass._embedded.run import Run
from hourglass._embedded.store import Change, ScheduleChange
from hourglass._embedded.stored_form import encode_events, encode_pending, encode_state, plain, shown_form
from hourglass.errors import StorageError

logger = logging.getLogger("hourglass")

SIZES = (128, 96, 64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1)
"""How many rows a statement can have."""

KNOWN_RUNS = 4096
PAGE = 4096


@dataclass
class Batch:
    """What one transaction writes: rows as flat lists of parameters."""

    runs: list[Any] = field(default_factory=list)
    events: list[Any] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)
    dropped: list[Any] = field(default_factory=list)
    requests: list[Any] = field(default_factory=list)
    visible: list[Run] = field(default_factory=list)
    schedules: list[stored_schedules.Row] = field(default_factory=list)
    forgotten: list[int] = field(default_factory=list)
    forgotten_ids: list[str] = field(default_factory=list)
    pages: int = 0
    """About how many pages the log grows by."""


@dataclass(frozen=True)
class _Rows:
    """A statement over any number of rows, each of `width` parameters."""

    width: int
    row: str
    before: str
    after: str = ""
    joint: str = ","

    def run(self, connection: sqlite3.Connection, parameters: list[Any]) -> None:
        position, left = 0, len(parameters) // self.width
        for size in SIZES:
            while left >= size:
                end = position + size * self.width
                connection.execute(_text(self, size), parameters[position:end])
                position, left = end, left - size


@cache
def _text(rows: _Rows, size: int) -> str:
    return rows.before + rows.joint.join([rows.row] * size) + rows.after


_PUT_RUNS = _Rows(
    6,
    "(?,?,?,?,?,?)",
    "INSERT INTO runs (key, run_id, workflow_id, wake_ns, close_ns, state) VALUES ",
    " ON CONFLICT DO UPDATE SET wake_ns = excluded.wake_ns, close_ns = excluded.close_ns, state = excluded.state",
)
_PUT_EVENTS = _Rows(3, "(?,?,?)", "INSERT INTO events (run, first_id, data) VALUES ")
_PUT_PENDING = _Rows(3, "(?,?,?)", "INSERT OR REPLACE INTO pending (run, event_id, data) VALUES ")
_PUT_REQUESTS = _Rows(2, "(?,?)", "INSERT OR IGNORE INTO requests (run, request_id) VALUES ")
# Not `(run, event_id) IN (VALUES …)`, for which SQLite reads the whole table.
_DROP_PENDING = _Rows(3, "(run = ? AND event_id BETWEEN ? AND ?)", "DELETE FROM pending WHERE ", joint=" OR ")
_FORGET = tuple(
    _Rows(1, "?", f"DELETE FROM {table} WHERE {column} IN (", ")")
    for table, column in (("events", "run"), ("pending", "run"), ("requests", "run"), ("runs", "key"))
)


class BatchWriter:
    """The one who writes, on one connection."""

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self._connection = connection
        self._path = path
        self._keys: dict[str, int] = {}
        self._seen: dict[str, Run] = {}
        self._next_key: int = (
            1 + connection.execute("SELECT coalesce(max(key), 0) FROM runs").fetchall()[0][0]
        )

    def build(self, changes: Sequence[Change | ScheduleChange], forget: Sequence[int] = ()) -> Batch:
        """Everything of a batch as rows; `forget` are the keys of runs to drop."""
        batch = Batch(forgotten=list(forget))
        if forget:
            batch.forgotten_ids = [run_id for run_id, _ in self._find("key", "run_id", forget)]
        merged, schedules = coalesce(changes)
        batch.schedules = [stored_schedules.row(each) for each in schedules]
        self._learn_keys([each.run.run_id for each in merged if not each.is_new])
        for each in merged:
            self._add(batch, each)
        _keep_few(self._keys)
        _keep_few(self._seen)
        sizes = sum(len(data) for data in (*batch.runs[5::6], *batch.events[2::3], *batch.kept[2::3]))
        sizes += sum(len(each.data) for each in batch.schedules)
        batch.pages = 4 + len(batch.runs) // 3 + len(batch.schedules) + sizes // PAGE
        return batch

    def write(self, batch: Batch) -> None:
        """Make a batch durable, whole or not at all."""
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            _PUT_RUNS.run(connection, batch.runs)
            _PUT_EVENTS.run(connection, batch.events)
            _PUT_PENDING.run(connection, batch.kept)
            _DROP_PENDING.run(connection, batch.dropped)
            _PUT_REQUESTS.run(connection, batch.requests)
            if batch.visible:
                visibility.write(connection, batch.visible)
            if batch.schedules:
                stored_schedules.write(connection, batch.schedules)
            if batch.forgotten:
                self._forget(batch)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:  # SQLite rolls back by itself when the disk is full
                connection.execute("ROLLBACK")
            raise

    def checkpoint(self, mode: str = "PASSIVE") -> None:
        """Move what is in the log into the file, as far as readers let us."""
        self._connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()

    def _forget(self, batch: Batch) -> None:
        for table in _FORGET:
            table.run(self._connection, batch.forgotten)
        visibility.remove(self._connection, batch.forgotten_ids)
        for run_id in batch.forgotten_ids:
            self._keys.pop(run_id, None)

    def _add(self, batch: Batch, merged: Merged) -> None:
        run = merged.run
        key = self._key(merged)
        if key is None:
            return
        close_ns = 0 if run.is_open else max(run.close_ns, 1)
        names = (plain(run.run_id), plain(run.started.workflow_id))
        batch.runs += (key, *names, merged.wake_ns, close_ns, encode_state(run))
        if merged.events:
            batch.events += (key, merged.events[0].id, encode_events(merged.events))
        for event_id, thing in merged.to_keep():
            batch.kept += (key, event_id, encode_pending(thing))
        if run.is_open:
            for event_id in merged.to_drop():
                batch.dropped += (key, event_id, event_id)
        elif not merged.is_new:
            batch.dropped += (key, 0, run.length)  # whatever is left of it
        for request_id in merged.request_ids:
            batch.requests += (key, plain(request_id))
        self._see(batch, run)

    def _see(self, batch: Batch, run: Run) -> None:
        if visibility.is_visible_change(self._seen.pop(run.run_id, None), run):
            batch.visible.append(shown_form(run))
        if run.is_open:
            # Without what is large and what no list shows.
            self._seen[run.run_id] = msgspec.structs.replace(
                run, activities={}, timers={}, children={}, held=()
            )

    def _key(self, merged: Merged) -> int | None:
        run_id = merged.run.run_id
        if merged.is_new:
            key = self._next_key
            self._next_key += 1
        else:
            known = self._keys.get(run_id)
            if known is None and not merged.run.is_open:
                logger.warning("run %s was forgotten and is not changed any more", run_id)
                return None
            if known is None:
                raise StorageError(
                    f"the file {self._path} does not have the run {run_id}, which is to be changed",
                    status="DATA_LOSS",
                )
            key = known
        if merged.run.is_open:
            self._keys[run_id] = key
        else:
            self._keys.pop(run_id, None)
        return key

    def _learn_keys(self, run_ids: Iterable[str]) -> None:
        unknown = [run_id for run_id in run_ids if run_id not in self._keys]
        if not unknown:
            return
        names = {plain(run_id): run_id for run_id in unknown}
        for key, name in self._find("run_id", "key", list(names)):
            self._keys[names[name]] = key

    def _find(self, by: str, what: str, values: Sequence[Any]) -> list[tuple[Any, Any]]:
        found: list[tuple[Any, Any]] = []
        for begin in range(0, len(values), SIZES[0]):
            some = values[begin : begin + SIZES[0]]
            marks = ",".join("?" * len(some))
            text = f"SELECT {what}, {by} FROM runs WHERE {by} IN ({marks})"
            found += self._connection.execute(text, some).fetchall()
        return found


def _keep_few(table: dict[str, Any]) -> None:
    """Drop the oldest entries of a table that can be rebuilt."""
    while len(table) > KNOWN_RUNS:
        del table[next(iter(table))]
