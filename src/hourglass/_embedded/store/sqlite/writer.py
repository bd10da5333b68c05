"""Writes batches of changes into the tables, with as few statements as possible: the changes of one commit are merged
into one change per run, and all rows of a batch go through one statement.

Must not know: threads, queues, which calls wait, what a change means. Python's SQLite releases the interpreter for each
statement and must acquire it again; beside busy threads that can take milliseconds each time. A batch is therefore
inserted into a view of this connection, whose triggers write the rows of all tables. The writer caches the open runs
that it wrote last, so that it need not read them; a run that is not in the cache is found in the file.

Invariants: merging changes loses no event, no request id and no touched item; runs keep the order in which they first
appear, events and requests theirs. A key is assigned to one run only. A batch is one transaction; it is built first
(as bytes and keys), so that a failed commit can be repeated unchanged; nothing is written after the epoch has ended. If
a part of a batch cannot be built or written, its changes are written separately, each within a savepoint of the same
transaction: a change that fails is left out, and so are the changes that depend on it.
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
    """Merge changes into one per run, in the order in which the runs first appear, and one per schedule.

    Only the last state must be written. Most runs change once in a batch: such a change is returned unmodified.
    """
    merged: dict[str, RunChange] = {}
    schedules: dict[
        tuple[type[ScheduleChange], str], ScheduleChange
    ] = {}  # a note may have the same name as a schedule
    for root in changes:
        for change in flat((root,)) if root.also else (root,):
            if isinstance(change, ScheduleChange):
                schedules[type(change), change.schedule_id] = change
                continue
            run_id = change.run.run_id
            earlier = merged.get(run_id)
            merged[run_id] = change if earlier is None else _merge(earlier, change)
    return list(merged.values()), list(schedules.values())


def length_before(change: RunChange) -> int:
    """Return the number of events that the run had before this change; 0 if it begins with it."""
    return change.run.length - len(change.events)


def events_as_bytes(change: RunChange) -> bytes:
    """Return the encoded events of a change, concatenated."""
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
    """Yield changes and the changes that become durable with them (`also`), depth first."""
    for change in changes:
        yield change
        if change.also:
            yield from flat(change.also)


# --- the open runs that were written last -------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class Written:
    """An open run as it is in the file.

    `memo` and `search_attributes` are as lists show them, None if unknown.
    """

    key: int
    names: tuple[str, str]
    """The run id and the workflow id, as they are stored."""
    memo: dict[str, Payload] | None = None
    search_attributes: dict[str, Payload] | None = None
    is_paused: bool = False
    start_ns: int = 0
    """The start time, as lists show it; 0 if unknown."""
    wake_ns: int | None = None
    """The wake time in the file, or in the batch that is being built; None if unknown."""

    def shows(self, run: Run) -> bool:
        """Whether the list entry of this open run is up to date."""
        return (
            (self.memo is run.memo or self.memo == run.memo)
            and (
                self.search_attributes is run.search_attributes
                or self.search_attributes == run.search_attributes
            )
            and self.is_paused is (run.paused is not None)
        )


class WrittenRuns:
    """A cache of open runs by id: their keys and their list entries."""

    def __init__(self, next_key: int) -> None:
        self.runs: dict[str, Written] = {}
        """The cached runs by id, oldest first."""
        self._next_key = next_key

    def begin(self, run: Run) -> Written:
        """Assign a key to a run that is not in the file yet, and cache it."""
        self._next_key += 1
        return self.add(run, self._next_key - 1)

    def add(self, run: Run, key: int) -> Written:
        """Cache a run of the file under its key; its list entry is unknown."""
        names = (plain(run.run_id), plain(run.started.workflow_id))
        written = self.runs[run.run_id] = Written(key, names)
        return written

    def note_listed(self, run: Run, written: Written) -> None:
        """Record that the list entry of an open run is up to date."""
        written.memo, written.search_attributes = run.memo, run.search_attributes
        written.is_paused, written.start_ns = run.paused is not None, run.start_ns

    def forget(self, run_id: str) -> None:
        """Drop a run that has closed or was deleted."""
        self.runs.pop(run_id, None)

    def shrink(self, most: int) -> None:
        """Drop the oldest runs if there are more than `most`."""
        while len(self.runs) > most:
            del self.runs[next(iter(self.runs))]


# --- rows of many tables by one statement -------------------------------------------------------------------

COLUMNS = (
    "run", "run_id", "workflow_id", "wake_ns", "close_ns", "state", "first_id", "events", "pending_id", "pending",
    "drop_from", "drop_to", "request_id", "shown",
)  # fmt: skip
"""The columns of a row about one run (by its key), each group optional: its state; events; one pending item; a range of
pending items to delete; one request id; and its list entry. A state without a run id updates only the state of a run in
the file, which touches no index (`wake_ns` is then only a marker that there is a state).
"""

Row: TypeAlias = tuple[Any, ...]

NO_STATE: Row = ("", "", 0, 0, 0)
NO_EVENTS: Row = (0, 0)
_NO_PENDING: Row = (0, 0)
_NO_DROPPED: Row = (0, 0)
NOTHING: Row = (0, *NO_STATE, *NO_EVENTS, *_NO_PENDING, *_NO_DROPPED, "", "")
"""A row without content. Absent values are 0 or "", and bytes are passed as a `bytearray`: for NULL and for `bytes`
Python's SQLite searches for an adapter each time, which takes longer than the rest of binding a parameter.
"""

_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""The numbers of rows that a statement can have: few numbers, so that SQLite keeps all these statements prepared."""

_VIEW = f"CREATE TEMP VIEW steps AS SELECT {', '.join(f'NULL AS {name}' for name in COLUMNS)}"
_FENCE = "SELECT RAISE(ABORT, 'epoch') FROM meta WHERE name = 'epoch' AND value <> {epoch};"
"""Aborts the statement if another process has begun an epoch."""
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
"""The statement for each group of columns, by the condition under which it runs. Each has its own trigger: a statement opens
all indexes of its table, whether it writes or not, and most rows write into only three tables. SQLite does not define the
order of triggers, and it does not matter: the groups of a row are independent, and a row never deletes the pending item
that it writes.
"""


def prepare(connection: sqlite3.Connection, epoch: int) -> None:
    """Prepare a connection for `write`, which raises as soon as the file has another epoch. The file is not changed."""
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
    """Return the rows for a run: one, or more if there are several pending items or requests."""
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
    """Write rows, within the caller's transaction or without one: then each statement is a transaction (see
    `is_one_statement`).
    """
    for begin in range(0, len(rows), _SIZES[-1]):
        portion = rows[begin : begin + _SIZES[-1]]
        size = next(size for size in _SIZES if size >= len(portion))
        parameters = [*chain.from_iterable(portion), *NOTHING * (size - len(portion))]
        connection.execute(_insert_sql(size), parameters)


def is_one_statement(rows: Sequence[Row]) -> bool:
    """Whether these rows are written by one statement, which is a transaction by itself."""
    return len(rows) <= _SIZES[-1]


@cache
def _insert_sql(size: int) -> str:
    row = f"({','.join('?' * len(COLUMNS))})"
    return f"INSERT INTO steps VALUES {','.join([row] * size)}"


# --- batches ------------------------------------------------------------------------------------------------

logger = logging.getLogger("hourglass")

SIZES = (128, 96, 64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1)
"""The numbers of runs that one statement can delete or find."""

KNOWN_RUNS = 4096
PAGE = 4096


@dataclass
class Batch:
    """The content of one transaction.

    `visible` are the runs whose list entries need statements of their own; `stale` are the ids of those among them whose
    search attributes may be indexed already.
    """

    steps: list[Row] = field(default_factory=list)
    visible: list[Run] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    schedules: list[records.ScheduleRow] = field(default_factory=list)
    forgotten: list[int] = field(default_factory=list)
    forgotten_ids: list[str] = field(default_factory=list)

    @property
    def is_one_statement(self) -> bool:
        """Whether the batch is a single statement, and so needs no explicit transaction."""
        has_more = self.visible or self.schedules or self.forgotten
        return not has_more and is_one_statement(self.steps)


class Readmitted(NamedTuple):
    """A mark between changes: after it, changes of these runs depend on the state in the file, not on a refused change."""

    run_ids: Sequence[str]


Numbered: TypeAlias = tuple[int, RunChange | ScheduleChange]


@dataclass
class SeparateChanges:
    """Changes that are written one by one, in order, with their numbers; `refused` are the ones that were left out."""

    parts: Sequence[Numbered | Readmitted]
    forgotten: Sequence[int] = ()
    refused: list[Refusal] = field(default_factory=list)


@dataclass(frozen=True)
class _RowsStatement:
    """A statement for any number of rows, each with `width` parameters."""

    width: int
    row: str
    before: str
    after: str = ""
    joint: str = ","

    def run(self, connection: sqlite3.Connection, parameters: list[Any]) -> None:
        position, remaining = 0, len(parameters) // self.width
        for size in SIZES:
            while remaining >= size:
                end = position + size * self.width
                connection.execute(_statement_text(self, size), parameters[position:end])
                position, remaining = end, remaining - size


@cache
def _statement_text(rows: _RowsStatement, size: int) -> str:
    return rows.before + rows.joint.join([rows.row] * size) + rows.after


_FORGET = tuple(
    _RowsStatement(1, "?", f"DELETE FROM {table} WHERE {column} IN (", ")")
    for table, column in (("events", "run"), ("pending", "run"), ("requests", "run"), ("runs", "key"))
)


class BatchWriter:
    """Writes batches, on the only connection of the file that writes."""

    def __init__(self, connection: sqlite3.Connection, path: str, epoch: int) -> None:
        self._connection = connection
        self._path = path
        self._epoch = epoch
        self.barred: dict[str, StorageError] = {}
        """Runs with a refused change, and its error: later changes depend on it, until the runs are readmitted."""
        prepare(connection, epoch)
        self._cache = self._empty_cache()

    def _empty_cache(self) -> WrittenRuns:
        newest: int = self._connection.execute("SELECT coalesce(max(key), 0) FROM runs").fetchall()[0][0]
        return WrittenRuns(newest + 1)

    def build(self, changes: Sequence[RunChange | ScheduleChange], forget: Sequence[int] = ()) -> Batch:
        """Return a batch with these changes as rows; `forget` are the keys of runs to delete."""
        batch = Batch(forgotten=list(forget))
        if forget:
            batch.forgotten_ids = [run_id for run_id, _ in self._find("key", "run_id", forget)]
        merged, schedules = coalesce(changes)
        batch.schedules = [records.row(schedule) for schedule in schedules]
        self._cache_stored(merged)
        for run_change in merged:
            self._add(batch, run_change)
        self._cache.shrink(KNOWN_RUNS)
        return batch

    def write(self, batch: Batch) -> None:
        """Make a batch durable, completely or not at all."""
        connection = self._connection
        if batch.is_one_statement:
            write(connection, batch.steps)
            return
        with self._transaction():
            self._put(batch)

    def write_separately(self, apart: SeparateChanges) -> None:
        """Make the changes that can be written durable, all together or none."""
        barred, refused = dict(self.barred), list[Refusal]()
        with self._transaction():
            # The cache may have runs of a batch that was built and not written.
            self._cache = self._empty_cache()
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
                        self._cache.forget(run_id)
            if apart.forgotten:
                self._put(self.build((), apart.forgotten))
        self.barred, apart.refused = barred, refused

    def _try(
        self, change: RunChange | ScheduleChange, run_ids: Sequence[str], schedule_ids: Sequence[str]
    ) -> StorageError | None:
        """Write one change within the transaction, completely or not at all. Return the error, or None."""
        connection = self._connection
        connection.execute("SAVEPOINT one_change")
        try:
            self._put(self.build((change,)))
        except Exception as error:
            if not is_of_one_change(error):
                raise
            connection.execute("ROLLBACK TO one_change")
            runs = [f"the run {run_id}" for run_id in run_ids]
            schedules = [f"the schedule {schedule_id}" for schedule_id in schedule_ids]
            return unwritable(self._path, ", ".join(runs + schedules), error)
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
            epochs = connection.execute("SELECT value FROM meta WHERE name = 'epoch'").fetchall()
            if epochs != [(self._epoch,)]:
                raise epoch_is_over(self._path)
            yield
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:  # SQLite rolls back by itself when the disk is full
                connection.execute("ROLLBACK")
            raise

    def checkpoint(self, mode: str = "PASSIVE") -> int:
        """Move pages of the WAL into the file, as far as readers allow. Return the number of pages in the WAL."""
        ((_, pages, _),) = self._connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
        return int(pages)

    def empty_wal(self, wait_ms: int) -> bool:
        """Empty the WAL. Blocks commits until all readers of an older state have ended, at most `wait_ms`.

        Returns whether it is empty.
        """
        before = self._connection.execute("PRAGMA busy_timeout").fetchall()[0][0]
        self._connection.execute(f"PRAGMA busy_timeout = {wait_ms}").fetchall()
        try:
            return self.checkpoint("TRUNCATE") == 0
        finally:
            self._connection.execute(f"PRAGMA busy_timeout = {before}").fetchall()

    def first_within(self, keys: Sequence[int], limit: int) -> Sequence[int]:
        """Return the first of these runs, as many as have at most `limit` bytes of events together, but at least one."""
        text = "SELECT run, sum(length(data)) FROM events WHERE run IN (SELECT value FROM json_each(?)) GROUP BY run"
        sizes = dict(self._connection.execute(text, (msgspec.json.encode(keys).decode(),)).fetchall())
        sums = accumulate(sizes.get(key, 0) for key in keys)
        return keys[: max(1, sum(size <= limit for size in sums))]

    def _forget(self, batch: Batch) -> None:
        for table in _FORGET:
            table.run(self._connection, batch.forgotten)
        visibility.remove(self._connection, batch.forgotten_ids)
        for run_id in batch.forgotten_ids:
            self._cache.forget(run_id)

    def _add(self, batch: Batch, change: RunChange) -> None:
        run = change.run
        before = run.length - len(change.events)  # as `length_before`
        written = self._cache.runs.get(run.run_id) or self._begin_uncached(run, is_new=not before)
        if written is None:
            return
        is_open = run.status is RUNNING
        state = bytearray(encode_state(run))
        events = NO_EVENTS
        if change.events:
            data = array(len(change.events), change.encoded or events_as_bytes(change))
            events = (change.events[0].id, data)
        pending: list[Row] = []
        dropped: list[Row] = []
        if not is_open:
            dropped = [(0, run.length)] if before else []  # all its pending items
        elif change.touched:
            pending, dropped = _pending_rows(run, change.touched, before)
        if is_open and before and change.wake_ns and change.wake_ns == written.wake_ns:
            state_row: Row = ("", "", 1, 0, state)  # only its state has changed: no index is touched
        else:
            close_ns = 0 if is_open else max(run.close_ns, 1)  # 0 means open
            state_row = (*written.names, change.wake_ns, close_ns, state)
            written.wake_ns = change.wake_ns
        requests = [plain(request_id) for request_id in change.request_ids] if change.request_ids else ()
        is_shown = is_open and written.shows(run)
        shown = "" if is_shown else self._list_entry(batch, run, written, is_new=not before)
        batch.steps += rows(written.key, state_row, events, pending, dropped, requests, shown)

    def _list_entry(self, batch: Batch, run: Run, written: Written, *, is_new: bool) -> str:
        """Return the new list entry of a run for its row, or add the run to `batch.visible` if it needs own statements."""
        before = written.search_attributes
        if run.status is RUNNING:
            self._cache.note_listed(run, written)
        else:
            self._cache.forget(run.run_id)
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

    def _begin_uncached(self, run: Run, *, is_new: bool) -> Written | None:
        """Cache a run that is not in the cache or the file, if this change begins it; otherwise it was deleted.

        Raises `Unwritable` if the run is still open; returns None if it has closed.
        """
        if is_new:
            return self._cache.begin(run)
        if run.is_open:
            raise Unwritable(
                f"the file {self._path} does not contain the run {run.run_id}, to which a change belongs",
                status="DATA_LOSS",
            )
        logger.warning("run %s was deleted and is not changed", run.run_id)
        return None

    def _cache_stored(self, changes: Iterable[RunChange]) -> None:
        """Find the changed runs that are not cached in the file, and cache them.

        Also determines whether a list entry is that of an open run without memo and search attributes, as most are: then
        a row can contain all changes of the entry.
        """
        cache = self._cache
        unknown = {
            plain(change.run.run_id): change.run
            for change in changes
            if change.run.run_id not in cache.runs and length_before(change)
        }
        stored = self._find("run_id", f"key, {visibility.PLAIN_START}", list(unknown)) if unknown else []
        for key, start_us, name in stored:
            run = unknown[name]
            written = cache.add(run, key)
            if start_us is not None:
                written.memo, written.search_attributes = {}, {}
                written.start_ns = run.start_ns if run.start_ns // 1000 == start_us else 0

    def _find(self, by: str, columns: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        result: list[tuple[Any, ...]] = []
        for begin in range(0, len(values), SIZES[0]):
            portion = values[begin : begin + SIZES[0]]
            marks = ",".join("?" * len(portion))
            text = f"SELECT {columns}, {by} FROM runs WHERE {by} IN ({marks})"
            result += self._connection.execute(text, portion).fetchall()
        return result


def _names(change: RunChange | ScheduleChange) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the ids of the runs and schedules that a change and the changes in its `also` concern."""
    runs: dict[str, None] = {}
    schedules: dict[str, None] = {}
    for part in flat((change,)):
        if isinstance(part, ScheduleChange):
            schedules[part.schedule_id] = None
        else:
            runs[part.run.run_id] = None
    return tuple(runs), tuple(schedules)


def _pending_rows(run: Run, touched: Iterable[int], before: int) -> tuple[list[Row], list[Row]]:
    """Return rows for the touched items that are pending now, and for those that are not and may be in the file."""
    pending: list[Row] = []
    dropped: list[Row] = []
    activities = run.activities
    for event_id in touched:
        item = activities.get(event_id) or run.pending(event_id)
        if item is not None:
            pending.append((event_id, bytearray(encode_pending(item))))
        elif event_id <= before:
            dropped.append((event_id, event_id))
    return pending, dropped
