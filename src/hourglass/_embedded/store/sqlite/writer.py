"""Writes batches of changes into the tables, with as few statements as can be: changes that are committed together
become one change per run, and all rows of a batch go through one statement.

Must not know: threads, queues, which calls wait, what a change means. Python's SQLite lets go of the interpreter at
every statement and must get it back; beside busy threads each time can take milliseconds. So a batch goes into a view
of this connection, of which triggers make rows in all the tables. The writer remembers the open runs that it wrote
last, so that it need not read them; what it does not remember can be found in the file again.

Invariants: merging changes loses no event, no request id and no touched thing; runs keep the order in which they
first appear, events and requests theirs. A key is given to one run. A batch is one transaction; it is built first
(bytes and keys) and can then be tried again as it is; nothing is written in an epoch that is over. Where something of
a batch cannot be built or written its changes are written apart, each within a savepoint of the same transaction: a
change that fails is left out, and so is what rests on it.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, chain, zip_longest
from typing import Any, NamedTuple, TypeAlias

import msgspec

from hourglass._embedded.store.sqlite import records, visibility
from hourglass._embedded.store.sqlite.disk_faults import is_of_one_change, unwritable
from hourglass._embedded.store.sqlite.records import encode_pending, encode_state, shown_form
from hourglass._embedded.store.store import Refusal, RunChange, ScheduleChange, Unwritable, epoch_is_over
from hourglass._embedded.transitions.run import RUNNING, Run
from hourglass._history.encoding import array, encode_events, plain
from hourglass.converter import Payload
from hourglass.errors import StorageError

# --- one change per run -------------------------------------------------------------------------------------


def coalesce(changes: Sequence[RunChange | ScheduleChange]) -> tuple[list[RunChange], list[ScheduleChange]]:
    """One change per run, in the order in which the runs first appear, and one per schedule: only the last state need
    be written. Most runs change once in a batch: their change is given as it is.
    """
    merged: dict[str, RunChange] = {}
    schedules: dict[
        tuple[type[ScheduleChange], str], ScheduleChange
    ] = {}  # a note may have the name of a schedule
    for each in changes:
        for change in flat((each,)) if each.also else (each,):
            if isinstance(change, ScheduleChange):
                schedules[type(change), change.schedule_id] = change
                continue
            run_id = change.run.run_id
            known = merged.get(run_id)
            merged[run_id] = change if known is None else _merge(known, change)
    return list(merged.values()), list(schedules.values())


def length_before(change: RunChange) -> int:
    """How many events the run had before; 0: it begins with this change."""
    return change.run.length - len(change.events)


def events_as_bytes(change: RunChange) -> bytes:
    """The events as bytes, one after the other."""
    return change.encoded or encode_events(change.events)


def _merge(first: RunChange, second: RunChange) -> RunChange:
    return msgspec.structs.replace(
        second,
        events=first.events + second.events,
        encoded=events_as_bytes(first) + events_as_bytes(second),
        touched=first.touched | second.touched,
        request_ids=first.request_ids + second.request_ids,
    )


def flat(changes: Iterable[RunChange | ScheduleChange]) -> Iterable[RunChange | ScheduleChange]:
    """Changes with all that becomes durable with them, one after the other."""
    for change in changes:
        yield change
        if change.also:
            yield from flat(change.also)


# --- the open runs that were written last -------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class Written:
    """An open run; `memo` and `search_attributes` are as lists show them, None where that is not known."""

    key: int
    names: tuple[str, str]
    """Its own id and its workflow's, as they are stored."""
    memo: dict[str, Payload] | None = None
    search_attributes: dict[str, Payload] | None = None
    is_paused: bool = False
    start_ns: int = 0
    """When it was started, as lists show it; 0 where that is not known."""
    wake_ns: int | None = None
    """Its wake time as it stands in the file, or will with the batch that is being built; None where that is not known."""

    def shows(self, run: Run) -> bool:
        """Whether lists show the run, which is open, as it is."""
        return (
            (self.memo is run.memo or self.memo == run.memo)
            and (
                self.search_attributes is run.search_attributes
                or self.search_attributes == run.search_attributes
            )
            and self.is_paused is (run.paused is not None)
        )


class WrittenRuns:
    """Remembers open runs by their ids: under which keys they stand, and what lists show of them."""

    def __init__(self, next_key: int) -> None:
        self.runs: dict[str, Written] = {}
        """Those that are remembered, by their ids."""
        self._next_key = next_key

    def begin(self, run: Run) -> Written:
        """A run that is not in the file yet gets a key."""
        self._next_key += 1
        return self.learn(run, self._next_key - 1)

    def learn(self, run: Run, key: int) -> Written:
        """A run is in the file under this key; what lists show of it is not known."""
        names = (plain(run.run_id), plain(run.started.workflow_id))
        written = self.runs[run.run_id] = Written(key, names)
        return written

    def show(self, run: Run, written: Written) -> None:
        """Update the values of an open run that lists show."""
        written.memo, written.search_attributes = run.memo, run.search_attributes
        written.is_paused, written.start_ns = run.paused is not None, run.start_ns

    def forget(self, run_id: str) -> None:
        """A run has closed, or is gone."""
        self.runs.pop(run_id, None)

    def keep_few(self, most: int) -> None:
        """Forget the oldest."""
        while len(self.runs) > most:
            del self.runs[next(iter(self.runs))]


# --- rows of many tables by one statement -------------------------------------------------------------------

COLUMNS = (
    "run", "run_id", "workflow_id", "wake_ns", "close_ns", "state", "first_id", "events", "kept_id", "kept",
    "drop_from", "drop_to", "request_id", "shown",
)  # fmt: skip
"""What a row can say of a run (by its key), in any part: its state; events; one pending thing; which are gone; one
request; and what lists show of it now. A state without a run id is that of a run that is in the file: of its row only
that changes (`wake_ns` says no more than that there is one), which leaves the indexes alone.
"""

_FIRST_ID = COLUMNS.index("first_id")

Row: TypeAlias = tuple[Any, ...]

NO_STATE: Row = ("", "", 0, 0, 0)
NO_EVENTS: Row = (0, 0)
_NOT_KEPT: Row = (0, 0)
_NOT_DROPPED: Row = (0, 0)
NOTHING: Row = (0, *NO_STATE, *NO_EVENTS, *_NOT_KEPT, *_NOT_DROPPED, "", "")
"""A row that says nothing. What a row does not say is 0 or an empty text, and bytes come as a `bytearray`: for NULL
and for `bytes` Python's SQLite looks for an adapter each time, which takes longer than all the rest of a parameter.
"""

_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""How many rows a statement can have: few, so that SQLite keeps all of them prepared."""

_VIEW = f"CREATE TEMP VIEW steps AS SELECT {', '.join(f'NULL AS {name}' for name in COLUMNS)}"
_FENCE = "SELECT RAISE(ABORT, 'epoch') FROM meta WHERE name = 'epoch' AND value <> {epoch};"
"""From the moment that another process has begun an epoch, this one writes nothing."""
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
    "NEW.kept_id > 0": """
        INSERT OR REPLACE INTO pending (run, event_id, data) VALUES (NEW.run, NEW.kept_id, NEW.kept);""",
    "NEW.request_id <> ''": "INSERT OR IGNORE INTO requests (run, request_id) VALUES (NEW.run, NEW.request_id);",
    "NEW.shown <> ''": visibility.TAKE_SHOWN,
}
"""What is done where a row says something, each by a trigger of its own: a statement opens all indexes of its table, whether
it writes or not, and most rows write into three tables. In which order triggers run SQLite does not say, and it does not
matter: a row says nothing twice, and what is dropped is not what is kept.
"""


def prepare(connection: sqlite3.Connection, epoch: int) -> None:
    """Make a connection ready for `write`, which raises from the moment that the epoch is another. Leaves no trace in
    the file.
    """
    connection.execute(_VIEW)
    for number, (where, what) in enumerate(_PARTS.items()):
        what = what.replace("{epoch}", str(epoch))  # a trigger takes no parameters
        connection.execute(
            f"CREATE TEMP TRIGGER take_{number} INSTEAD OF INSERT ON steps WHEN {where} BEGIN {what} END"
        )


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
    """Write rows, in the caller's transaction or in none: each statement is whole or not at all (see
    `is_one_statement`).
    """
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


# --- batches ------------------------------------------------------------------------------------------------

logger = logging.getLogger("hourglass")

SIZES = (128, 96, 64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1)
"""How many runs a statement can forget."""

KNOWN_RUNS = 4096
PAGE = 4096


@dataclass
class Batch:
    """What one transaction writes. `visible` are the runs that must be entered into the lists apart from their rows;
    `stale` are the ids of those among them whose search attributes may be indexed already.
    """

    steps: list[Row] = field(default_factory=list)
    visible: list[Run] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    schedules: list[records.ScheduleRow] = field(default_factory=list)
    forgotten: list[int] = field(default_factory=list)
    forgotten_ids: list[str] = field(default_factory=list)

    @property
    def is_one_statement(self) -> bool:
        """Whether it is a transaction by itself."""
        more = self.visible or self.schedules or self.forgotten
        return not more and is_one_statement(self.steps)

    @property
    def last_events(self) -> tuple[int, int] | None:
        """The key of a run and the id of the first of the events written last; None if there are none."""
        return next(((row[0], row[_FIRST_ID]) for row in reversed(self.steps) if row[_FIRST_ID]), None)


class Readmitted(NamedTuple):
    """From here on changes of these runs rest on what the file has."""

    run_ids: Sequence[str]


Numbered: TypeAlias = tuple[int, RunChange | ScheduleChange]


@dataclass
class Apart:
    """Changes that are written one by one, in order, with their numbers; `refused` are those that were left out."""

    parts: Sequence[Numbered | Readmitted]
    forgotten: Sequence[int] = ()
    refused: list[Refusal] = field(default_factory=list)
    last_events: None = None


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
                connection.execute(_statement_text(self, size), parameters[position:end])
                position, left = end, left - size


@cache
def _statement_text(rows: _Rows, size: int) -> str:
    return rows.before + rows.joint.join([rows.row] * size) + rows.after


_FORGET = tuple(
    _Rows(1, "?", f"DELETE FROM {table} WHERE {column} IN (", ")")
    for table, column in (("events", "run"), ("pending", "run"), ("requests", "run"), ("runs", "key"))
)


class BatchWriter:
    """Writes batches, on the one connection of the file that writes."""

    def __init__(self, connection: sqlite3.Connection, path: str, epoch: int) -> None:
        self._connection = connection
        self._path = path
        self._epoch = epoch
        self.barred: dict[str, StorageError] = {}
        """Runs of which a change was refused: what comes now rests on it, until they are readmitted."""
        prepare(connection, epoch)
        self._known = self._nothing_known()

    def _nothing_known(self) -> WrittenRuns:
        newest: int = self._connection.execute("SELECT coalesce(max(key), 0) FROM runs").fetchall()[0][0]
        return WrittenRuns(newest + 1)

    def build(self, changes: Sequence[RunChange | ScheduleChange], forget: Sequence[int] = ()) -> Batch:
        """Everything of a batch as rows; `forget` are the keys of runs to drop."""
        batch = Batch(forgotten=list(forget))
        if forget:
            batch.forgotten_ids = [run_id for run_id, _ in self._find("key", "run_id", forget)]
        merged, schedules = coalesce(changes)
        batch.schedules = [records.row(each) for each in schedules]
        self._learn(merged)
        for each in merged:
            self._add(batch, each)
        self._known.keep_few(KNOWN_RUNS)
        return batch

    def write(self, batch: Batch) -> None:
        """Make a batch durable, whole or not at all."""
        connection = self._connection
        if batch.is_one_statement:
            write(connection, batch.steps)
            return
        with self._transaction():
            self._put(batch)

    def write_apart(self, apart: Apart) -> None:
        """Make those changes durable that can be written, all or none."""
        barred, refused = dict(self.barred), list[Refusal]()
        with self._transaction():
            self._known = self._nothing_known()  # what was built before and not written is not in the file
            for part in apart.parts:
                if isinstance(part, Readmitted):
                    for run_id in part.run_ids:
                        barred.pop(run_id, None)
                    continue
                number, change = part
                run_ids, schedule_ids = _names(change)
                error = next((barred[run_id] for run_id in run_ids if run_id in barred), None)
                error = error or self._try(change, run_ids, schedule_ids)
                if error is not None:
                    refused.append(Refusal(number, run_ids, schedule_ids, error))
                    barred |= dict.fromkeys(run_ids, error)
                    for run_id in run_ids:
                        self._known.forget(run_id)
            if apart.forgotten:
                self._put(self.build((), apart.forgotten))
        self.barred, apart.refused = barred, refused

    def _try(
        self, change: RunChange | ScheduleChange, run_ids: Sequence[str], schedule_ids: Sequence[str]
    ) -> StorageError | None:
        """Write one change within a transaction, or nothing of it. Return why not, or None."""
        connection = self._connection
        connection.execute("SAVEPOINT one_change")
        try:
            self._put(self.build((change,)))
        except Exception as error:
            if not is_of_one_change(error):
                raise
            connection.execute("ROLLBACK TO one_change")
            what = [f"the run {each}" for each in run_ids] + [f"the schedule {each}" for each in schedule_ids]
            return unwritable(self._path, ", ".join(what), error)
        finally:
            if connection.in_transaction:
                connection.execute("RELEASE one_change")
        return None

    def _put(self, batch: Batch) -> None:
        connection = self._connection
        write(connection, batch.steps)
        if batch.visible:
            visibility.write(connection, batch.visible, batch.stale)
        if batch.schedules:
            records.write(connection, batch.schedules)
        if batch.forgotten:
            self._forget(batch)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            found = connection.execute("SELECT value FROM meta WHERE name = 'epoch'").fetchall()
            if found != [(self._epoch,)]:
                raise epoch_is_over(self._path)
            yield
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:  # SQLite rolls back by itself when the disk is full
                connection.execute("ROLLBACK")
            raise

    def checkpoint(self, mode: str = "PASSIVE") -> int:
        """Move what is in the log into the file, as far as readers let us; gives how many pages the log has."""
        found = self._connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
        return int(found[0][1])

    def empty_log(self, wait_ms: int) -> bool:
        """Let the log begin anew: nothing is written until all that read an older state have ended, or for so long at most.
        Whether it is empty now.
        """
        before = self._connection.execute("PRAGMA busy_timeout").fetchall()[0][0]
        self._connection.execute(f"PRAGMA busy_timeout = {wait_ms}").fetchall()
        try:
            return self.checkpoint("TRUNCATE") == 0
        finally:
            self._connection.execute(f"PRAGMA busy_timeout = {before}").fetchall()

    def first_small(self, keys: Sequence[int], limit: int) -> Sequence[int]:
        """Return the first of these runs: as many as have at most so many bytes of events together, or one."""
        text = "SELECT run, sum(length(data)) FROM events WHERE run IN (SELECT value FROM json_each(?)) GROUP BY run"
        sizes = dict(self._connection.execute(text, (msgspec.json.encode(keys).decode(),)).fetchall())
        sums = accumulate(sizes.get(key, 0) for key in keys)
        return keys[: max(1, sum(size <= limit for size in sums))]

    def _forget(self, batch: Batch) -> None:
        for table in _FORGET:
            table.run(self._connection, batch.forgotten)
        visibility.remove(self._connection, batch.forgotten_ids)
        for run_id in batch.forgotten_ids:
            self._known.forget(run_id)

    def _add(self, batch: Batch, change: RunChange) -> None:
        run = change.run
        before = run.length - len(change.events)  # as `length_before`
        written = self._known.runs.get(run.run_id) or self._unknown(run, is_new=not before)
        if written is None:
            return
        is_open = run.status is RUNNING
        state = bytearray(encode_state(run))
        events = NO_EVENTS
        if change.events:
            data = array(len(change.events), change.encoded or events_as_bytes(change))
            events = (change.events[0].id, data)
        kept: list[Row] = []
        dropped: list[Row] = []
        if not is_open:
            dropped = [(0, run.length)] if before else []  # whatever is left of it
        elif change.touched:
            kept, dropped = _pending_rows(run, change.touched, before)
        if is_open and before and change.wake_ns and change.wake_ns == written.wake_ns:
            state_row: Row = ("", "", 1, 0, state)  # nothing but its state has changed: no index is touched
        else:
            close_ns = 0 if is_open else max(run.close_ns, 1)  # 0 says that it is open
            state_row = (*written.names, change.wake_ns, close_ns, state)
            written.wake_ns = change.wake_ns
        requests = [plain(request_id) for request_id in change.request_ids] if change.request_ids else ()
        is_shown = is_open and written.shows(run)
        shown = "" if is_shown else self._show(batch, run, written, is_new=not before)
        batch.steps += rows(written.key, state_row, events, kept, dropped, requests, shown)

    def _show(self, batch: Batch, run: Run, written: Written, *, is_new: bool) -> str:
        """Enter a run into the lists, where something that they show has changed: with its row if that can be."""
        before = written.search_attributes
        if run.status is RUNNING:
            self._known.show(run, written)
        else:
            self._known.forget(run.run_id)
            is_listed = written.memo == {} == before and written.start_ns == run.start_ns
            if is_listed and not run.memo and not run.search_attributes:
                return visibility.ended(run)
        plain_run, is_stale = shown_form(run), not is_new and before != {}
        shown = "" if is_stale else visibility.shown(plain_run)
        if not shown:
            batch.visible.append(plain_run)
            if is_stale:
                batch.stale.append(written.names[0])
        return shown

    def _unknown(self, run: Run, *, is_new: bool) -> Written | None:
        """A run that is not known: it begins now, or it was forgotten."""
        if is_new:
            return self._known.begin(run)
        if run.is_open:
            raise Unwritable(
                f"the file {self._path} does not have the run {run.run_id}, which is to be changed",
                status="DATA_LOSS",
            )
        logger.warning("run %s was forgotten and is not changed any more", run.run_id)
        return None

    def _learn(self, changes: Iterable[RunChange]) -> None:
        """Find the runs in the file that are to be changed and are not known; and whether lists show them as open runs without
        a memo and search attributes, as most are: then a row of theirs says all that changes.
        """
        known = self._known
        unknown = {
            plain(change.run.run_id): change.run
            for change in changes
            if change.run.run_id not in known.runs and length_before(change)
        }
        found = self._find("run_id", f"key, {visibility.PLAIN_START}", list(unknown)) if unknown else []
        for key, start_us, name in found:
            run = unknown[name]
            written = known.learn(run, key)
            if start_us is not None:
                written.memo, written.search_attributes = {}, {}
                written.start_ns = run.start_ns if run.start_ns // 1000 == start_us else 0

    def _find(self, by: str, what: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        for begin in range(0, len(values), SIZES[0]):
            some = values[begin : begin + SIZES[0]]
            marks = ",".join("?" * len(some))
            text = f"SELECT {what}, {by} FROM runs WHERE {by} IN ({marks})"
            found += self._connection.execute(text, some).fetchall()
        return found


def _names(change: RunChange | ScheduleChange) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The runs and the schedules that a change is about, those of its further parts included."""
    runs: dict[str, None] = {}
    schedules: dict[str, None] = {}
    for each in flat((change,)):
        if isinstance(each, ScheduleChange):
            schedules[each.schedule_id] = None
        else:
            runs[each.run.run_id] = None
    return tuple(runs), tuple(schedules)


def _pending_rows(run: Run, touched: Iterable[int], before: int) -> tuple[list[Row], list[Row]]:
    """What was touched and is pending now; what is gone, and may have been written by an earlier batch."""
    kept: list[Row] = []
    dropped: list[Row] = []
    activities = run.activities
    for event_id in touched:
        thing = activities.get(event_id) or run.pending(event_id)
        if thing is not None:
            kept.append((event_id, bytearray(encode_pending(thing))))
        elif event_id <= before:
            dropped.append((event_id, event_id))
    return kept, dropped
