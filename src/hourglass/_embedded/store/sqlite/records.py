"""Runs, their events and schedules as rows of the file: how they look as bytes (MessagePack maps by field name,
defaults left out), and how single ones are read, in one statement and one row each.

Must not know: threads, transactions (the caller's), when anything is written (see `writer`), what is still queued,
lists (see `visibility`). Each row that SQLite gives costs a fight for the interpreter beside busy threads, so a whole
history comes as one text of hexadecimal pieces, unless it is large.

Invariants: what any released version wrote can be read, for years; so fields are only added, each with a default; a
default never changes, for what equals it was not written; what is not known is passed over. The kinds of events are
told apart by name. Nothing of a run is stored twice: its start, its end and what its activities and children were
asked for with are in its events, and come from there again. A schedule's row is replaced whole; the workflows that it
waits for stand beside its record, so that opening a file reads no record. Every statement is read to its end, for one
that is left open keeps the log from being emptied.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar, get_type_hints

import msgspec
import msgspec.structs

from hourglass._contract.workflows import WorkflowStatus
from hourglass._embedded.schedules.transitions import ScheduleRecord
from hourglass._embedded.store.sqlite.disk_faults import storage_errors
from hourglass._embedded.store.store import DueRun, NoteChange, ScheduleChange, ScheduleEntry, Stored
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

# --- runs and events as bytes -------------------------------------------------------------------------------

S = TypeVar("S", bound=h.Attributes)

IN_EVENTS = frozenset({"started", "final"})
PENDING = frozenset({"activities", "timers", "children"})


def _without(original: type[msgspec.Struct], left_out: frozenset[str], tag: str | None, **types: Any) -> Any:
    """A struct with the fields of another, but for some: fields that are added there are stored by themselves."""
    hints = get_type_hints(original) | types
    fields = [
        (field.name, hints[field.name], *stored_default(field))
        for field in msgspec.structs.fields(original)
        if field.name not in left_out
    ]
    return msgspec.defstruct(f"Stored{original.__name__}", fields, frozen=True, omit_defaults=True, tag=tag)


_StoredRun = _without(Run, IN_EVENTS | PENDING, None, held=tuple[ANY_KIND, ...])
_StoredActivity = _without(OpenActivity, frozenset({"scheduled", "spec"}), "activity")
_StoredTimer = _without(PendingTimer, frozenset(), "timer")
_StoredChild = _without(OpenChild, frozenset({"initiated"}), "child")

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
    """A run without what its events and its pending things say."""
    return encode(_StoredRun(*_run_values(run)))


def encode_pending(thing: OpenActivity | PendingTimer | OpenChild) -> bytes:
    """An activity or a child without what it was asked for with, or a timer."""
    match thing:
        case OpenActivity():
            return encode(_StoredActivity(*_activity_values(thing)))
        case OpenChild():
            return encode(_StoredChild(*_child_values(thing)))
        case PendingTimer():
            return encode(_StoredTimer(*_timer_values(thing)))


_schedule_decoder = msgspec.msgpack.Decoder(ScheduleRecord)


def encode_schedule(record: ScheduleRecord) -> bytes:
    """Return a schedule's record as bytes."""
    return encode(record)


def decode_schedule(data: bytes) -> ScheduleRecord:
    """Return the record of a schedule. Raise ValueError (msgspec's) where the bytes are not one."""
    return _schedule_decoder.decode(data)


def decode_run(state: bytes, events: Sequence[h.HistoryEvent], pending: Mapping[int, bytes]) -> Run:
    """A run as it was, from its state, its whole history and what is pending by event id.

    Raises ValueError for what does not fit together.
    """
    stored = _run_decoder.decode(state)
    _check_history(stored.length, events)
    activities: dict[int, OpenActivity] = {}
    timers: dict[int, PendingTimer] = {}
    children: dict[int, OpenChild] = {}
    for event_id in sorted(pending):
        thing = _pending_decoder.decode(pending[event_id])
        fields = msgspec.structs.asdict(thing)
        if isinstance(thing, _StoredTimer):
            timer = timers[event_id] = PendingTimer(**fields)
            _check_began(timer.started_event_id, event_id)
        elif isinstance(thing, _StoredChild):
            asked = _asked_by(events, event_id, h.StartChildWorkflowExecutionInitiated)
            child = children[event_id] = OpenChild(initiated=asked, **fields)
            _check_began(child.initiated_event_id, event_id)
        else:
            scheduled = _asked_by(events, event_id, h.ActivityTaskScheduled)
            activity = OpenActivity(scheduled=scheduled, spec=thing.changed or scheduled.spec, **fields)
            activities[event_id] = activity
            _check_began(activity.scheduled_event_id, event_id)
    whole: Any = msgspec.structs.asdict(stored)
    started: Any = events[0].attributes
    if stored.priority is not None:
        started = stored.priority.of(started)
    whole |= {"started": started, "final": _final(events), "activities": activities}
    return Run(**whole, timers=timers, children=children)


def shown_form(run: Run) -> Run:
    """A run whose names are all plain, as columns of the lists must have them."""
    shown = (run.started, run.memo, run.search_attributes)
    try:
        msgspec.msgpack.encode(shown)
    except UnicodeEncodeError:
        started, memo, attributes = _shown_decoder.decode(encode(shown))
        run = msgspec.structs.replace(run, started=started, memo=memo, search_attributes=attributes)
    return run if run.run_id.isascii() else msgspec.structs.replace(run, run_id=plain(run.run_id))


def _check_history(length: int, events: Sequence[h.HistoryEvent]) -> None:
    if [event.id for event in events] != list(range(1, length + 1)):
        raise ValueError(f"its history has {len(events)} events where there should be 1 to {length}")
    if not events or not isinstance(events[0].attributes, h.WorkflowExecutionStarted):
        raise ValueError("its history does not begin with its start")


def _check_began(said: int, event_id: int) -> None:
    if said != event_id:
        raise ValueError(f"what is pending since event {event_id} says that it began with event {said}")


def _asked_by(events: Sequence[h.HistoryEvent], event_id: int, kind: type[S]) -> S:
    asked = events[event_id - 1].attributes if 1 <= event_id <= len(events) else None
    if not isinstance(asked, kind):
        raise ValueError(f"event {event_id} is no {kind.__name__}, though one is pending since then")
    return asked


def _final(events: Sequence[h.HistoryEvent]) -> h.Attributes | None:
    last = events[-1].attributes
    return last if isinstance(last, h.FINAL) else None


# --- reading single runs ------------------------------------------------------------------------------------

MUCH = 1_000_000
"""A history of so many bytes is read row by row: as one text of hexadecimal pieces it would take several times its size."""

_LOAD = """
SELECT CAST(state AS BLOB), key,
    CASE WHEN (SELECT total(length(data)) FROM events WHERE run = runs.key) < ? THEN
        (SELECT group_concat(first_id || ':' || hex(data), ' ') FROM events WHERE run = runs.key) END,
    CASE WHEN (SELECT total(length(data)) FROM pending WHERE run = runs.key) < ? THEN
        coalesce((SELECT group_concat(event_id || ':' || hex(data), ' ') FROM pending WHERE run = runs.key), '') END
FROM runs WHERE run_id = ?
"""

# CROSS: by the request's id first. A workflow may have any number of runs, an id has few.
FIND_REQUEST = """
SELECT run_id FROM requests CROSS JOIN runs ON key = run
WHERE request_id = ? AND workflow_id = ? ORDER BY run DESC LIMIT 1
"""


_LARGEST = 2**63 - 1


class StoredReads:
    """Point reads on one connection. Nothing is changed."""

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self.connection = connection
        self._path = path

    def load(self, run_id: str) -> Stored | None:
        """A run with its whole history."""
        with storage_errors(self._path):
            try:
                found = self.connection.execute(_LOAD, (MUCH, MUCH, plain(run_id))).fetchall()
            except sqlite3.DataError:  # longer than a text of SQLite can be here
                found = self.connection.execute(_LOAD, (0, 0, plain(run_id))).fetchall()
            if not found:
                return None
            state, key, events, pending = found[0]
            try:
                history = self._read_history(key) if events is None else _history(_pieces(events))
                things = self._read_pending(key) if pending is None else _pieces(pending)
                return Stored(decode_run(state, history, things), tuple(history))
            except Exception as error:  # whatever stands there
                raise ValueError(f"the run {run_id}: {error}") from error

    def _read_history(self, key: int) -> list[h.HistoryEvent]:
        """The events of a run with a large history, which is nowhere in memory twice."""
        history: list[h.HistoryEvent] = []
        text = "SELECT first_id, CAST(data AS BLOB) FROM events WHERE run = ? ORDER BY first_id"
        with contextlib.closing(self.connection.execute(text, (key,))) as rows:
            for _, data in rows:
                history += decode_events(data)
        return history

    def _read_pending(self, key: int) -> Mapping[int, bytes]:
        return dict(self._rows("SELECT event_id, CAST(data AS BLOB) FROM pending WHERE run = ?", key))

    def current(self, workflow_id: str) -> str:
        """The run id of the latest run of a workflow."""
        text = "SELECT run_id FROM runs WHERE workflow_id = ? ORDER BY key DESC LIMIT 1"
        found = self._rows(text, plain(workflow_id))
        return str(found[0][0]) if found else ""

    def find_request(self, workflow_id: str, request_id: str) -> str:
        """The run id of the latest run of a workflow that carried out a request."""
        found = self._rows(FIND_REQUEST, plain(request_id), plain(workflow_id))
        return str(found[0][0]) if found else ""

    def due(self, until_ns: int, limit: int, after_ns: int, after_key: int) -> Sequence[DueRun]:
        """Runs with a wake time behind one place and not after a time, earliest first."""
        # In two parts, and with `wake_ns > 0`, which the index wants to hear, last: SQLite seeks by the first bound that it
        # meets, and would walk past all that stand before the place, a hundred thousand timers of one moment at each call.
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
        found = self._joined(text, after_ns, after_key, until_ns, limit, after_ns, until_ns, limit, limit)
        pieces = [piece.split(":", 3) for piece in found.split("\x1f") if piece]
        # SQLite does not promise the order of what it joins.
        return sorted(map(_due_run, pieces), key=_place)

    def without_wake(self) -> Sequence[str]:
        """Runs whose wake time is no number, for the row is damaged: they would never be due."""
        text = f"""SELECT group_concat(run_id, char(31)) FROM runs
            WHERE wake_ns > {_LARGEST} AND wake_ns > 0"""  # texts and bytes come after all numbers
        return [run_id for run_id in self._joined(text).split("\x1f") if run_id]

    def _joined(self, text: str, *parameters: object) -> str:
        """One text, also where a part of it is damaged and no text."""
        found = self._rows(f"SELECT CAST(({text}) AS BLOB)", *parameters)[0][0]
        return "" if found is None else bytes(found).decode(errors="replace")

    def open_runs(self) -> int:
        """How many runs are open, as lists have them."""
        text = f"SELECT count(*) FROM visibility WHERE status = {WorkflowStatus.RUNNING.value}"
        return int(self._rows(text)[0][0])

    def next_due_ns(self, after_ns: int) -> int:
        """The earliest wake time later than this; 0 if there is none."""
        text = f"SELECT min(wake_ns) FROM runs WHERE wake_ns > ? AND wake_ns <= {_LARGEST} AND wake_ns > 0"
        return int(self._rows(text, after_ns)[0][0] or 0)

    def latest_ns(self) -> int:
        """Return about the time of the newest event, from the rows that were written last; 0 if there is none. Of a row with
        large payloads only the beginning is read, which has the time of its first event.
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
        """Return the time of the first event of a row, of which only the first bytes are read."""
        try:
            with self.connection.blobopen("events", "data", key, readonly=True) as data:
                return first_time_ns(data.read(_HEAD))
        except (sqlite3.Error, ValueError):
            return 0  # its run will say that it cannot be read

    def key(self, run_id: str) -> int | None:
        """The key of a run that has closed."""
        found = self._rows("SELECT key FROM runs WHERE run_id = ? AND close_ns > 0", plain(run_id))
        return found[0][0] if found else None

    def closed(self, before_ns: int, limit: int) -> Sequence[int]:
        """The keys of runs that closed before a time, earliest first."""
        text = "SELECT key FROM runs WHERE close_ns > 0 AND close_ns < ? ORDER BY close_ns LIMIT ?"
        return [key for (key,) in self._rows(text, before_ns, limit)]

    def _rows(self, text: str, *parameters: object) -> list[tuple[Any, ...]]:
        with storage_errors(self._path):
            return self.connection.execute(text, parameters).fetchall()


def _due_run(piece: Sequence[str]) -> DueRun:
    wake, key, queue, run_id = piece  # damaged, a wake time may be a fraction
    task_queue = bytes.fromhex(queue).decode(errors="replace")
    return DueRun(run_id, task_queue, int(wake.partition(".")[0]), int(key))


def _place(due: DueRun) -> tuple[int, int]:
    return due.wake_ns, due.key


_SMALL = 4096
_HEAD = 64
"""Bytes of a row of events: up to the first it is read whole; the second is enough for the id and the time of its first event."""


def _last_time_ns(data: Any) -> int:
    try:
        return int(decode_events(data)[-1].time_ns)
    except (ValueError, TypeError, LookupError):
        return 0  # its run will say that it cannot be read


def _pieces(found: str) -> Mapping[int, bytes]:
    pieces: dict[int, bytes] = {}
    for piece in found.split(" ") if found else ():
        number, _, data = piece.partition(":")
        pieces[int(number)] = bytes.fromhex(data)
    return pieces


def _history(pieces: Mapping[int, bytes]) -> list[h.HistoryEvent]:
    history: list[h.HistoryEvent] = []
    for first_id in sorted(pieces):
        history += decode_events(pieces[first_id])
    return history


# --- schedules ----------------------------------------------------------------------------------------------

logger = logging.getLogger("hourglass.embedded")

_names = msgspec.json.Decoder(tuple[str, ...])

_PUT = (
    "INSERT INTO schedules (schedule_id, wake_ns, awaited, data) VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE "
    "SET wake_ns = excluded.wake_ns, awaited = excluded.awaited, data = excluded.data"
)
_PUT_NOTE = "INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value"


class Row(NamedTuple):
    """A row; without data it is to be deleted. A note is no schedule: it stands in another table, under its name."""

    schedule_id: str
    wake_ns: int
    awaited: str
    data: bytes
    is_note: bool = False


def row(change: ScheduleChange) -> Row:
    """What is written of a change."""
    if isinstance(change, NoteChange):
        return Row(change.schedule_id, 0, "[]", change.data, is_note=True)
    record = change.record
    if record is None:
        return Row(plain(change.schedule_id), 0, "[]", b"")
    names = msgspec.json.encode([plain(workflow_id) for workflow_id, _ in record.running]).decode()
    return Row(plain(change.schedule_id), change.wake_ns, names, encode_schedule(record))


def write(connection: sqlite3.Connection, rows: Iterable[Row]) -> None:
    """Put and delete rows, within the caller's transaction."""
    for each in rows:
        if each.is_note and not each.data:
            connection.execute("DELETE FROM meta WHERE name = ?", (each.schedule_id,))
        elif each.is_note:
            connection.execute(_PUT_NOTE, (each.schedule_id, each.data))
        elif each.data:
            connection.execute(_PUT, each[:4])
        else:
            connection.execute("DELETE FROM schedules WHERE schedule_id = ?", (each.schedule_id,))


def read(connection: sqlite3.Connection, schedule_id: str) -> ScheduleRecord | None:
    """A schedule; raises ValueError (msgspec's) for what is none."""
    text = "SELECT data FROM schedules WHERE schedule_id = ?"
    found = connection.execute(text, (plain(schedule_id),)).fetchall()
    return decode_schedule(found[0][0]) if found else None


def read_note(connection: sqlite3.Connection, name: str) -> bytes:
    """What the engine keeps for itself under a name; empty if there is nothing."""
    found = connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchall()
    return bytes(found[0][0]) if found else b""


def read_notes(connection: sqlite3.Connection, prefix: str) -> list[tuple[str, bytes]]:
    """All that the engine keeps for itself under names that begin so."""
    text = "SELECT name, value FROM meta WHERE name >= ? AND name < ?"
    found = connection.execute(text, (prefix, prefix + "\U0010ffff")).fetchall()
    return [(name, bytes(value)) for name, value in found]


def read_entries(connection: sqlite3.Connection) -> list[ScheduleEntry]:
    """All schedules that can be read, in short; one that cannot is logged."""
    # As bytes: one row that is no text must not hide the others.
    text = "SELECT CAST(schedule_id AS BLOB), wake_ns, CAST(awaited AS BLOB) FROM schedules"
    entries: list[ScheduleEntry] = []
    for schedule_id, wake_ns, awaited in connection.execute(text).fetchall():
        try:
            if not isinstance(wake_ns, int):
                raise TypeError(f"its wake time is a {type(wake_ns).__name__}")
            entries.append(ScheduleEntry(schedule_id.decode(), wake_ns, _names.decode(awaited)))
        except (ValueError, TypeError, AttributeError) as error:
            logger.error("schedule %r cannot be read and does not act: %s", schedule_id, error)
    return entries
