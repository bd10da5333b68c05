"""The part that writes batches into the file, in one transaction each.

Must not know: threads, queues, which calls wait, what a change means. Invariants: nothing is written after the epoch
has ended. If a part of a batch cannot be built or written, the changes of the batch are written separately, each within
a savepoint of the same transaction: a change that fails is left out, and so are the changes that depend on it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple, TypeAlias

import msgspec

from hourglass._embedded.store.sqlite import records, run_rows, visibility
from hourglass._embedded.store.sqlite.batches import Batch, BatchBuilder, flat
from hourglass._embedded.store.sqlite.disk_faults import is_of_one_change, unwritable
from hourglass._embedded.store.store import Rejection, RunChange, ScheduleChange, epoch_is_over
from hourglass.errors import StorageError

PAGE = 4096


class Readmitted(NamedTuple):
    """A marker in a sequence of changes: later changes to these runs depend on the state in the file, and no longer on
    a rejected change.
    """

    run_ids: Sequence[str]


Numbered: TypeAlias = tuple[int, RunChange | ScheduleChange]


@dataclass
class SeparateChanges:
    """Numbered changes that are written one by one, in order. `rejected` are the changes that could not be written."""

    parts: Sequence[Numbered | Readmitted]
    forgotten: Sequence[int] = ()
    rejected: list[Rejection] = field(default_factory=list)
    last_events: None = None


_FORGET = tuple(
    f"DELETE FROM {table} WHERE {column} IN (SELECT value FROM json_each(?))"
    for table, column in (("events", "run"), ("pending", "run"), ("requests", "run"), ("runs", "key"))
)


class BatchWriter:
    """Writes batches, on the only connection of the file that writes."""

    def __init__(self, connection: sqlite3.Connection, path: str, epoch: int) -> None:
        self._connection = connection
        self._path = path
        self._epoch = epoch
        self.barred: dict[str, StorageError] = {}
        """Runs with a rejected change, and its error. Later changes to these runs are rejected, too, until the runs are
        readmitted.
        """
        run_rows.prepare(connection, epoch)
        self._builder = BatchBuilder(connection, path)

    def build(self, changes: Sequence[RunChange | ScheduleChange], forget: Sequence[int] = ()) -> Batch:
        """Return a batch with these changes as rows; `forget` are the keys of runs to delete."""
        return self._builder.build(changes, forget)

    def write(self, batch: Batch) -> None:
        """Make a batch durable, completely or not at all."""
        connection = self._connection
        if batch.is_one_statement:
            run_rows.write(connection, batch.rows)
            return
        with self._transaction():
            self._put(batch)

    def write_separately(self, apart: SeparateChanges) -> None:
        """Write the changes in one transaction, and make it durable. Record the changes that cannot be written as
        rejected.
        """
        barred, rejected = dict(self.barred), list[Rejection]()
        with self._transaction():
            self._builder.reset()
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
                    rejected.append(Rejection(number, run_ids, schedule_ids, error))
                    barred |= dict.fromkeys(run_ids, error)
                    for run_id in run_ids:
                        self._builder.cache.forget(run_id)
            if apart.forgotten:
                self._put(self._builder.build((), apart.forgotten))
        self.barred, apart.rejected = barred, rejected

    def _try(
        self, change: RunChange | ScheduleChange, run_ids: Sequence[str], schedule_ids: Sequence[str]
    ) -> StorageError | None:
        """Write one change within the transaction, completely or not at all. Return the error, or None."""
        connection = self._connection
        connection.execute("SAVEPOINT one_change")
        try:
            self._put(self._builder.build((change,)))
        except Exception as error:
            if not is_of_one_change(error):
                raise
            connection.execute("ROLLBACK TO one_change")
            runs = [f"run {run_id}" for run_id in run_ids]
            schedules = [f"schedule {schedule_id}" for schedule_id in schedule_ids]
            return unwritable(self._path, ", ".join(runs + schedules), error)
        finally:
            if connection.in_transaction:
                connection.execute("RELEASE one_change")
        return None

    def _put(self, batch: Batch) -> None:
        connection = self._connection
        run_rows.write(connection, batch.rows)
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
            if connection.in_transaction:  # SQLite rolls back automatically when the disk is full
                connection.execute("ROLLBACK")
            raise

    def checkpoint(self, mode: str = "PASSIVE") -> int:
        """Move pages of the WAL into the file, as far as readers allow. Return the number of pages in the WAL."""
        ((_, pages, _),) = self._connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
        return int(pages)

    def empty_wal(self, wait_ms: int) -> bool:
        """Empty the WAL. Block commits until all readers of an older state have finished, for at most `wait_ms`.

        Return whether the WAL is empty.
        """
        before = self._connection.execute("PRAGMA busy_timeout").fetchall()[0][0]
        self._connection.execute(f"PRAGMA busy_timeout = {wait_ms}").fetchall()
        try:
            return self.checkpoint("TRUNCATE") == 0
        finally:
            self._connection.execute(f"PRAGMA busy_timeout = {before}").fetchall()

    def first_within(self, keys: Sequence[int], limit: int) -> Sequence[int]:
        """Return the first runs that have at most `limit` bytes of events together, but at least one run."""
        text = "SELECT run, sum(length(data)) FROM events WHERE run IN (SELECT value FROM json_each(?)) GROUP BY run"
        sizes = dict(self._connection.execute(text, (msgspec.json.encode(keys).decode(),)).fetchall())
        sums = accumulate(sizes.get(key, 0) for key in keys)
        return keys[: max(1, sum(size <= limit for size in sums))]

    def _forget(self, batch: Batch) -> None:
        keys = msgspec.json.encode(batch.forgotten).decode()
        for statement in _FORGET:
            self._connection.execute(statement, (keys,))
        visibility.remove(self._connection, batch.forgotten_ids)
        for run_id in batch.forgotten_ids:
            self._builder.cache.forget(run_id)


def _names(change: RunChange | ScheduleChange) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the ids of the runs and schedules in a change and in the changes of its `also`."""
    runs: dict[str, None] = {}
    schedules: dict[str, None] = {}
    for part in flat((change,)):
        if isinstance(part, ScheduleChange):
            schedules[part.schedule_id] = None
        else:
            runs[part.run.run_id] = None
    return tuple(runs), tuple(schedules)
