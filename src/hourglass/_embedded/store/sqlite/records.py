"""Runs, events and schedules as rows of the file: their encoding (MessagePack maps by field name, without defaults),
and point reads, each in one statement and one row.

Must not know: threads, transactions (the caller's), when rows are written (see `writer`), queued changes, lists (see
`visibility`). Python's SQLite module releases and reacquires the GIL for each row, which is slow while other threads
are busy. A history is therefore read as one string of hexadecimal pieces, unless it is large.

Invariants: every released version's files remain readable. Fields are only added, each with a default; a default never
changes, because values equal to it are not written; unknown fields are ignored. Event kinds are distinguished by name.
No part of a run is stored twice: the start, the end, and the requests of activities and children are restored from the
run's events. A schedule's row is always replaced as a whole; the workflows that it waits for are in a column beside its
record, so that opening a file reads no record. Every statement is read to its end, because an open statement prevents a
checkpoint from resetting the log.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar, get_type_hints

import msgspec
import msgspec.structs

from hourglass._contract.workflows import WorkflowStatus
from hourglass._embedded.schedules.transitions import ScheduleRecord
from hourglass._embedded.store.fork_safety import NO_FORK
from hourglass._embedded.store.sqlite.disk_faults import READ_ERRORS, read_error, storage_errors
from hourglass._embedded.store.store import (
    LAST_KEY,
    DueRun,
    NoteChange,
    ScheduleChange,
    ScheduleEntry,
    Stored,
)
from hourglass._embedded.transitions.run import OpenActivity, OpenChild, PendingTimer, Run
from hourglass._history import events as h
from hourglass._history.encoding import (
    ANY_KIND,
    decode_events,
    encode,
    first_time_ns,
    plain,
    stored_default,
)

AttributesT = TypeVar("AttributesT", bound=h.Attributes)

IN_EVENTS = frozenset({"started", "final"})
PENDING = frozenset({"activities", "timers", "children"})


def _stored_form(
    original: type[msgspec.Struct], excluded: frozenset[str], tag: str | None, **types: Any
) -> Any:
    """Return a struct type with the fields of `original`, except the excluded ones. A field that is added to the
    original is then stored automatically.
    """
    hints = get_type_hints(original) | types
    fields = [
        (field.name, hints[field.name], *stored_default(field))
        for field in msgspec.structs.fields(original)
        if field.name not in excluded
    ]
    return msgspec.defstruct(f"Stored{original.__name__}", fields, frozen=True, omit_defaults=True, tag=tag)


_StoredRun = _stored_form(Run, IN_EVENTS | PENDING, None, held=tuple[ANY_KIND, ...])
_StoredActivity = _stored_form(OpenActivity, frozenset({"scheduled", "spec"}), "activity")
_StoredTimer = _stored_form(PendingTimer, frozenset(), "timer")
_StoredChild = _stored_form(OpenChild, frozenset({"initiated"}), "child")

_RUN_FIELDS = _StoredRun.__struct_fields__
_ACTIVITY_FIELDS = _StoredActivity.__struct_fields__
_TIMER_FIELDS = _StoredTimer.__struct_fields__
_CHILD_FIELDS = _StoredChild.__struct_fields__

_run_values = attrgetter(*_RUN_FIELDS)
_activity_values = attrgetter(*_ACTIVITY_FIELDS)
_timer_values = attrgetter(*_TIMER_FIELDS)
_child_values = attrgetter(*_CHILD_FIELDS)

_run_decoder = msgspec.msgpack.Decoder(_StoredRun)
_shown_decoder = msgspec.msgpack.Decoder(tuple[h.WorkflowExecutionStarted, h.Fields, h.Fields])
_pending_decoder = msgspec.msgpack.Decoder(_StoredActivity | _StoredTimer | _StoredChild)


def encode_state(run: Run) -> bytes:
    """Encode a run, without the parts that are restored from the run's events and pending rows."""
    return encode(_StoredRun(*_run_values(run)))


def encode_pending(entry: OpenActivity | PendingTimer | OpenChild) -> bytes:
    """Encode a pending timer, or a pending activity or child without its request, which is in the events."""
    match entry:
        case OpenActivity():
            return encode(_StoredActivity(*_activity_values(entry)))
        case OpenChild():
            return encode(_StoredChild(*_child_values(entry)))
        case PendingTimer():
            return encode(_StoredTimer(*_timer_values(entry)))


_schedule_decoder = msgspec.msgpack.Decoder(ScheduleRecord)


def encode_schedule(record: ScheduleRecord) -> bytes:
    return encode(record)


def decode_schedule(data: bytes) -> ScheduleRecord:
    """Decode a schedule's record. Raises ValueError (msgspec's) for invalid bytes."""
    return _schedule_decoder.decode(data)


def decode_run(state: bytes, events: Sequence[h.HistoryEvent], pending: Mapping[int, bytes]) -> Run:
    """Restore a run from its state, its complete history, and its pending rows by event id.

    Raises ValueError if these contradict each other.
    """
    stored = _run_decoder.decode(state)
    _check_history(stored.length, events)
    activities: dict[int, OpenActivity] = {}
    timers: dict[int, PendingTimer] = {}
    children: dict[int, OpenChild] = {}
    for event_id in sorted(pending):
        entry = _pending_decoder.decode(pending[event_id])
        fields = msgspec.structs.asdict(entry)
        if isinstance(entry, _StoredTimer):
            timer = timers[event_id] = PendingTimer(**fields)
            _check_event_id(timer.started_event_id, event_id)
        elif isinstance(entry, _StoredChild):
            initiated = _attributes_of(events, event_id, h.StartChildWorkflowExecutionInitiated)
            child = children[event_id] = OpenChild(initiated=initiated, **fields)
            _check_event_id(child.initiated_event_id, event_id)
        else:
            scheduled = _attributes_of(events, event_id, h.ActivityTaskScheduled)
            activity = OpenActivity(scheduled=scheduled, spec=entry.changed or scheduled.spec, **fields)
            activities[event_id] = activity
            _check_event_id(activity.scheduled_event_id, event_id)
    fields_of_run: Any = msgspec.structs.asdict(stored)
    started: Any = events[0].attributes
    if stored.priority is not None:
        started = stored.priority.of(started)
    fields_of_run |= {"started": started, "final": _final(events), "activities": activities}
    return Run(**fields_of_run, timers=timers, children=children)


def shown_form(run: Run) -> Run:
    """Return a run whose strings are all valid Unicode, as the columns of the list index require."""
    shown = (run.started, run.memo, run.search_attributes)
    try:
        msgspec.msgpack.encode(shown)
    except UnicodeEncodeError:
        started, memo, attributes = _shown_decoder.decode(encode(shown))
        run = msgspec.structs.replace(run, started=started, memo=memo, search_attributes=attributes)
    return run if run.run_id.isascii() else msgspec.structs.replace(run, run_id=plain(run.run_id))


def _check_history(length: int, events: Sequence[h.HistoryEvent]) -> None:
    if [event.id for event in events] != list(range(1, length + 1)):
        raise ValueError(f"its history has {len(events)} events; expected events 1 to {length}")
    if not events or not isinstance(events[0].attributes, h.WorkflowExecutionStarted):
        raise ValueError("its history does not begin with WorkflowExecutionStarted")


def _check_event_id(stored_id: int, event_id: int) -> None:
    if stored_id != event_id:
        raise ValueError(f"the pending entry of event {event_id} contains the event id {stored_id}")


def _attributes_of(events: Sequence[h.HistoryEvent], event_id: int, kind: type[AttributesT]) -> AttributesT:
    attributes = events[event_id - 1].attributes if 1 <= event_id <= len(events) else None
    if not isinstance(attributes, kind):
        raise ValueError(f"event {event_id} is not of type {kind.__name__}, but a pending entry refers to it")
    return attributes


def _final(events: Sequence[h.HistoryEvent]) -> h.Attributes | None:
    last = events[-1].attributes
    return last if isinstance(last, h.FINAL) else None


LARGE_BYTES = 1_000_000
"""Histories of at least this size are read row by row: one string of hexadecimal pieces would take several times the
memory."""

_LOAD = """
SELECT CAST(state AS BLOB), key,
    CASE WHEN (SELECT total(length(data)) FROM events WHERE run = runs.key) < ? THEN
        (SELECT group_concat(first_id || ':' || hex(data), ' ') FROM events WHERE run = runs.key) END,
    CASE WHEN (SELECT total(length(data)) FROM pending WHERE run = runs.key) < ? THEN
        coalesce((SELECT group_concat(event_id || ':' || hex(data), ' ') FROM pending WHERE run = runs.key), '') END
FROM runs WHERE run_id = ?
"""

# CROSS JOIN forces the lookup by request id first. A workflow may have any number of runs, a request id has few.
FIND_REQUEST = """
SELECT run_id FROM requests CROSS JOIN runs ON key = run
WHERE request_id = ? AND workflow_id = ? ORDER BY run DESC LIMIT 1
"""


_LARGEST = 2**63 - 1


class StoredReads:
    """The point reads of `Store`, on one connection. They raise `StorageError`."""

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self.connection = connection
        self.path = path

    def _reading(self) -> threading.RLock:
        """Return the lock for a read. Raises `StorageError` if reading is no longer possible."""
        return NO_FORK.lock

    def load(self, run_id: str) -> Stored | None:
        with self._reading(), storage_errors(self.path):
            try:
                rows = self.connection.execute(_LOAD, (LARGE_BYTES, LARGE_BYTES, plain(run_id))).fetchall()
            except sqlite3.DataError:  # longer than SQLite's maximum string length
                rows = self.connection.execute(_LOAD, (0, 0, plain(run_id))).fetchall()
            if not rows:
                return None
            state, key, events, pending = rows[0]
            try:
                history = self._read_history(key) if events is None else _history(_pieces(events))
                pending_rows = self._read_pending(key) if pending is None else _pieces(pending)
                return Stored(decode_run(state, history, pending_rows), tuple(history))
            except Exception as error:  # damaged bytes can cause any exception
                raise ValueError(f"run {run_id}: {error}") from error

    def _read_history(self, key: int) -> list[h.HistoryEvent]:
        """Read a large history without keeping two copies of it in memory."""
        history: list[h.HistoryEvent] = []
        query = "SELECT first_id, CAST(data AS BLOB) FROM events WHERE run = ? ORDER BY first_id"
        with contextlib.closing(self.connection.execute(query, (key,))) as rows:
            for _, data in rows:
                history += decode_events(data)
        return history

    def _read_pending(self, key: int) -> Mapping[int, bytes]:
        return dict(self._rows("SELECT event_id, CAST(data AS BLOB) FROM pending WHERE run = ?", key))

    def current(self, workflow_id: str) -> str:
        """Return the run id of the latest run of a workflow; empty if there is none."""
        query = "SELECT run_id FROM runs WHERE workflow_id = ? ORDER BY key DESC LIMIT 1"
        rows = self._rows(query, plain(workflow_id))
        return str(rows[0][0]) if rows else ""

    def find_request(self, workflow_id: str, request_id: str) -> str:
        rows = self._rows(FIND_REQUEST, plain(request_id), plain(workflow_id))
        return str(rows[0][0]) if rows else ""

    def due(
        self, until_ns: int, limit: int, after_ns: int = 0, after_key: int = LAST_KEY
    ) -> Sequence[DueRun]:
        # Two subqueries, each with the condition `wake_ns > 0` last. The partial index requires this condition, but
        # SQLite seeks by the first bound in the query. If this were the first, each call would scan all rows before the
        # position, such as 100,000 timers with the same wake time.
        text = """SELECT group_concat(wake_ns || ':' || key || ':' || coalesce(hex((
                SELECT task_queue FROM visibility WHERE visibility.run_id = found.run_id
            )), '') || ':' || run_id, char(31)) FROM (
                SELECT * FROM (
                    SELECT wake_ns, key, run_id FROM runs
                    WHERE wake_ns = ? AND key > ? AND wake_ns <= ? AND wake_ns > 0 ORDER BY key LIMIT ?
                )
                UNION ALL SELECT * FROM (
                    SELECT wake_ns, key, run_id FROM runs
                    WHERE wake_ns > ? AND wake_ns <= ? AND wake_ns > 0 ORDER BY wake_ns, key LIMIT ?
                )
                LIMIT ?
            ) AS found"""
        joined = self._joined(text, after_ns, after_key, until_ns, limit, after_ns, until_ns, limit, limit)
        pieces = [piece.split(":", 3) for piece in joined.split("\x1f") if piece]
        # SQLite does not guarantee the order of aggregated rows.
        return sorted(map(_due_run, pieces), key=_position)

    def without_wake(self) -> Sequence[str]:
        text = f"""SELECT group_concat(run_id, char(31)) FROM runs
            WHERE wake_ns > {_LARGEST} AND wake_ns > 0"""  # SQLite orders strings and blobs after all numbers
        return [run_id for run_id in self._joined(text).split("\x1f") if run_id]

    def _joined(self, text: str, *parameters: object) -> str:
        """Run a query that returns one string, even if a damaged part of the string is not valid UTF-8."""
        joined = self._rows(f"SELECT CAST(({text}) AS BLOB)", *parameters)[0][0]
        return "" if joined is None else bytes(joined).decode(errors="replace")

    def open_runs(self) -> int:
        text = f"SELECT count(*) FROM visibility WHERE status = {WorkflowStatus.RUNNING.value}"
        return int(self._rows(text)[0][0])

    def next_due_ns(self, after_ns: int = 0) -> int:
        text = f"SELECT min(wake_ns) FROM runs WHERE wake_ns > ? AND wake_ns <= {_LARGEST} AND wake_ns > 0"
        return int(self._rows(text, after_ns)[0][0] or 0)

    def newest_event_ns(self) -> int:
        """Return the approximate timestamp of the newest event, based on the rows written last; 0 without events.

        Of a row with large payloads only the beginning is read, which contains the timestamp of the row's first event.
        """
        text = (
            f"SELECT key, CASE WHEN length(data) <= {_SMALL} THEN CAST(data AS BLOB) END FROM events "
            "ORDER BY key DESC LIMIT 64"
        )
        return max(
            (
                self._first_time_ns(key) if data is None else _last_time_ns(data)
                for key, data in self._rows(text)
            ),
            default=0,
        )

    def _first_time_ns(self, key: int) -> int:
        """Return the timestamp of the first event in a row. Only the first bytes of the row are read."""
        try:
            with (
                self._reading(),
                self.connection.blobopen("events", "data", key, readonly=True) as data,
            ):
                return first_time_ns(data.read(_HEAD))
        except (sqlite3.Error, ValueError):
            return 0  # reported when the run is loaded

    def closed_key(self, run_id: str) -> int | None:
        """Return the key of a closed run; None if there is no closed run with this id."""
        rows = self._rows("SELECT key FROM runs WHERE run_id = ? AND close_ns > 0", plain(run_id))
        return rows[0][0] if rows else None

    def closed_keys(self, before_ns: int, limit: int) -> Sequence[int]:
        """Return the keys of runs that closed before a time, earliest first."""
        text = "SELECT key FROM runs WHERE close_ns > 0 AND close_ns < ? ORDER BY close_ns LIMIT ?"
        return [key for (key,) in self._rows(text, before_ns, limit)]

    def schedule(self, schedule_id: str) -> ScheduleRecord | None:
        rows = self._rows("SELECT data FROM schedules WHERE schedule_id = ?", plain(schedule_id))
        with storage_errors(self.path):
            return decode_schedule(rows[0][0]) if rows else None

    def schedules(self) -> list[ScheduleEntry]:
        """Read a summary of each schedule. A schedule that cannot be read is logged and omitted."""
        # As bytes: one row that is not UTF-8 must not hide the others.
        query = "SELECT CAST(schedule_id AS BLOB), wake_ns, CAST(awaited AS BLOB) FROM schedules"
        entries: list[ScheduleEntry] = []
        for schedule_id, wake_ns, awaited in self._rows(query):
            try:
                if not isinstance(wake_ns, int):
                    raise TypeError(f"its wake time is of type {type(wake_ns).__name__}")
                entries.append(ScheduleEntry(schedule_id.decode(), wake_ns, _names.decode(awaited)))
            except (ValueError, TypeError, AttributeError) as error:
                logger.error("schedule %r cannot be read and is not executed: %s", schedule_id, error)
        return entries

    def note(self, name: str) -> bytes:
        rows = self._rows("SELECT value FROM meta WHERE name = ?", name)
        with storage_errors(self.path):
            return bytes(rows[0][0]) if rows else b""

    def notes(self, prefix: str) -> list[tuple[str, bytes]]:
        query = "SELECT name, value FROM meta WHERE name >= ? AND name < ?"
        rows = self._rows(query, prefix, prefix + "\U0010ffff")
        with storage_errors(self.path):
            return [(name, bytes(value)) for name, value in rows]

    def _rows(self, text: str, *parameters: object) -> list[tuple[Any, ...]]:
        with self._reading():
            try:
                return self.connection.execute(text, parameters).fetchall()
            except READ_ERRORS as error:
                raise read_error(self.path, error) from error


def _due_run(piece: Sequence[str]) -> DueRun:
    wake_ns, key, encoded_queue, run_id = piece  # a damaged wake time may be a fraction
    task_queue = bytes.fromhex(encoded_queue).decode(errors="replace")
    return DueRun(run_id, task_queue, int(wake_ns.partition(".")[0]), int(key))


def _position(due: DueRun) -> tuple[int, int]:
    return due.wake_ns, due.key


_SMALL = 4096
_HEAD = 64
"""Sizes in bytes. Rows of events up to `_SMALL` are read completely. The first `_HEAD` bytes of a row contain the id
and timestamp of its first event.
"""


def _last_time_ns(data: Any) -> int:
    try:
        return int(decode_events(data)[-1].time_ns)
    except (ValueError, TypeError, LookupError):
        return 0  # reported when the run is loaded


def _pieces(joined: str) -> Mapping[int, bytes]:
    pieces: dict[int, bytes] = {}
    for piece in joined.split(" ") if joined else ():
        event_id, _, data = piece.partition(":")
        pieces[int(event_id)] = bytes.fromhex(data)
    return pieces


def _history(pieces: Mapping[int, bytes]) -> list[h.HistoryEvent]:
    history: list[h.HistoryEvent] = []
    for first_id in sorted(pieces):
        history += decode_events(pieces[first_id])
    return history


logger = logging.getLogger("hourglass.embedded")

_names = msgspec.json.Decoder(tuple[str, ...])

_PUT = (
    "INSERT INTO schedules (schedule_id, wake_ns, awaited, data) VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE "
    "SET wake_ns = excluded.wake_ns, awaited = excluded.awaited, data = excluded.data"
)
_PUT_NOTE = "INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value"


class ScheduleRow(NamedTuple):
    """The row of a schedule, or of a note in the table `meta`. If `data` is empty, the row must be deleted."""

    schedule_id: str
    wake_ns: int
    awaited: str
    data: bytes
    is_note: bool = False


def row(change: ScheduleChange) -> ScheduleRow:
    if isinstance(change, NoteChange):
        return ScheduleRow(change.schedule_id, 0, "[]", change.data, is_note=True)
    record = change.record
    if record is None:
        return ScheduleRow(plain(change.schedule_id), 0, "[]", b"")
    names = msgspec.json.encode([plain(workflow_id) for workflow_id, _ in record.running]).decode()
    return ScheduleRow(plain(change.schedule_id), change.wake_ns, names, encode_schedule(record))


def write(connection: sqlite3.Connection, rows: Iterable[ScheduleRow]) -> None:
    """Write and delete rows, within the caller's transaction."""
    for row in rows:
        if row.is_note and not row.data:
            connection.execute("DELETE FROM meta WHERE name = ?", (row.schedule_id,))
        elif row.is_note:
            connection.execute(_PUT_NOTE, (row.schedule_id, row.data))
        elif row.data:
            connection.execute(_PUT, row[:4])
        else:
            connection.execute("DELETE FROM schedules WHERE schedule_id = ?", (row.schedule_id,))
