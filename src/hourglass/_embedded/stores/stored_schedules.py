"""Schedules in the file: one row each, its record as MessagePack.

Must not know: threads, transactions (the caller's), when a schedule acts. As with runs, fields are only added, each
with a default, and what is not known is passed over. Invariants: a row is replaced whole; the workflows that a
schedule waits for stand beside its record, so that opening a file reads no record.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from hourglass._embedded.rules.schedules import Record
from hourglass._embedded.stores.store import NoteChange, ScheduleChange, ScheduleEntry
from hourglass._embedded.stores.stored_form import encode_schedule
from hourglass._history.encoding import plain

logger = logging.getLogger("hourglass.embedded")

_decoder = msgspec.msgpack.Decoder(Record)
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
        if each.is_note:
            connection.execute(_PUT_NOTE, (each.schedule_id, each.data))
        elif each.data:
            connection.execute(_PUT, each[:4])
        else:
            connection.execute("DELETE FROM schedules WHERE schedule_id = ?", (each.schedule_id,))


def read(connection: sqlite3.Connection, schedule_id: str) -> Record | None:
    """A schedule; raises ValueError (msgspec's) for what is none."""
    text = "SELECT data FROM schedules WHERE schedule_id = ?"
    found = connection.execute(text, (plain(schedule_id),)).fetchall()
    return _decoder.decode(found[0][0]) if found else None


def read_note(connection: sqlite3.Connection, name: str) -> bytes:
    """What the engine keeps for itself under a name; empty if there is nothing."""
    found = connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchall()
    return bytes(found[0][0]) if found else b""


def read_entries(connection: sqlite3.Connection) -> list[ScheduleEntry]:
    """All schedules that can be read, in short; of the others the log tells."""
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
