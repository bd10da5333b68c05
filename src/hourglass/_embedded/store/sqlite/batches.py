"""Batches: the changes of one commit as rows (`BatchBuilder`).

Must not know: threads, transactions, which calls wait, what a change means. The changes of a commit are merged into one
change per run. The builder caches the open runs that it wrote last, so that it need not read them; a run that is not in
the cache is looked up in the file.

Invariants: merging changes loses no event, no request id and no touched item; runs keep the order in which they first
appear, events and requests theirs. A key is assigned to one run only. A batch consists of bytes and keys, so that a failed
commit can be repeated unchanged.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from hourglass._embedded.store.sqlite import records, visibility
from hourglass._embedded.store.sqlite.records import encode_pending, encode_state, shown_form
from hourglass._embedded.store.sqlite.run_rows import FIRST_ID, NO_EVENTS, Row, is_one_statement, rows
from hourglass._embedded.store.store import RunChange, ScheduleChange, Unwritable
from hourglass._embedded.transitions.run import RUNNING, Run
from hourglass._history.encoding import array, encode_events, plain
from hourglass.converter import Payload

logger = logging.getLogger("hourglass")

CACHED_RUNS = 4096


def coalesce(changes: Sequence[RunChange | ScheduleChange]) -> tuple[list[RunChange], list[ScheduleChange]]:
    """Merge changes into one per run, in the order in which the runs first appear, and one per schedule.

    Only the last state of a run must be written. Most runs change once in a batch: their change is returned unmodified.
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
    """Return the number of events that the run had before this change; 0 if this change begins the run."""
    return change.run.length - len(change.events)


def events_as_bytes(change: RunChange) -> bytes:
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
    """Yield the changes, each followed by the changes in its `also`, depth first."""
    for change in changes:
        yield change
        if change.also:
            yield from flat(change.also)


@dataclass(eq=False, slots=True)
class Written:
    """An open run in its stored state.

    `memo` and `search_attributes` are the values in the list entry, None if unknown.
    """

    key: int
    names: tuple[str, str]
    """The run id and the workflow id, in their stored form."""
    memo: dict[str, Payload] | None = None
    search_attributes: dict[str, Payload] | None = None
    is_paused: bool = False
    start_ns: int = 0
    """The start time in the list entry; 0 if unknown."""
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
        """Assign a key to a run that is not in the file yet, and cache the run."""
        self._next_key += 1
        return self.add(run, self._next_key - 1)

    def add(self, run: Run, key: int) -> Written:
        """Cache a run of the file under its key. Its list entry is not known yet."""
        names = (plain(run.run_id), plain(run.started.workflow_id))
        written = self.runs[run.run_id] = Written(key, names)
        return written

    def note_listed(self, run: Run, written: Written) -> None:
        """Record that the list entry of an open run is up to date."""
        written.memo, written.search_attributes = run.memo, run.search_attributes
        written.is_paused, written.start_ns = run.paused is not None, run.start_ns

    def forget(self, run_id: str) -> None:
        self.runs.pop(run_id, None)

    def shrink(self, most: int) -> None:
        """Drop the oldest runs if there are more than `most`."""
        while len(self.runs) > most:
            del self.runs[next(iter(self.runs))]


@dataclass
class Batch:
    """The content of one transaction.

    `visible` are the runs whose list entries need statements of their own; `stale` are the ids of the visible runs with
    search attributes that may already be indexed.
    """

    rows: list[Row] = field(default_factory=list)
    visible: list[Run] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    schedules: list[records.ScheduleRow] = field(default_factory=list)
    forgotten: list[int] = field(default_factory=list)
    forgotten_ids: list[str] = field(default_factory=list)

    @property
    def is_one_statement(self) -> bool:
        """Whether the batch is a single statement, and so needs no explicit transaction."""
        has_more = self.visible or self.schedules or self.forgotten
        return not has_more and is_one_statement(self.rows)

    @property
    def last_events(self) -> tuple[int, int] | None:
        """The events written last, by the key of their run and the id of the first event; None if there are no events."""
        for row in reversed(self.rows):
            if row[FIRST_ID]:
                return row[0], row[FIRST_ID]
        return None


class BatchBuilder:
    """Builds batches. Runs that are not in the builder's cache are read over the writer's connection."""

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self._connection = connection
        self._path = path
        self.cache = self._empty_cache()

    def reset(self) -> None:
        """Empty the cache, because it may contain runs of a batch that was built but not written."""
        self.cache = self._empty_cache()

    def _empty_cache(self) -> WrittenRuns:
        newest: int = self._connection.execute("SELECT coalesce(max(key), 0) FROM runs").fetchall()[0][0]
        return WrittenRuns(newest + 1)

    def build(self, changes: Sequence[RunChange | ScheduleChange], forget: Sequence[int] = ()) -> Batch:
        """Return a batch with these changes as rows; `forget` are the keys of runs to delete."""
        batch = Batch(forgotten=list(forget))
        if forget:
            batch.forgotten_ids = [run_id for run_id, _ in self._find("key", "run_id", forget)]
        merged, schedules = coalesce(changes)
        if schedules:
            batch.schedules = [records.row(schedule) for schedule in schedules]
        self._cache_stored(merged)
        for run_change in merged:
            self._add(batch, run_change)
        self.cache.shrink(CACHED_RUNS)
        return batch

    def _add(self, batch: Batch, change: RunChange) -> None:
        run = change.run
        before = run.length - len(change.events)  # as `length_before`
        written = self.cache.runs.get(run.run_id) or self._begin_uncached(run, is_new=not before)
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
            dropped = [(0, run.length)] if before else []  # all pending items of the run
        elif change.touched:
            pending, dropped = _pending_rows(run, change.touched, before)
        if is_open and before and change.wake_ns and change.wake_ns == written.wake_ns:
            state_row: Row = ("", "", 1, 0, state)  # only the run's state has changed: no index is touched
        else:
            close_ns = 0 if is_open else max(run.close_ns, 1)  # 0 means open
            state_row = (*written.names, change.wake_ns, close_ns, state)
            written.wake_ns = change.wake_ns
        requests = [plain(request_id) for request_id in change.request_ids] if change.request_ids else ()
        is_shown = is_open and written.shows(run)
        shown = "" if is_shown else self._list_entry(batch, run, written, is_new=not before)
        batch.rows += rows(written.key, state_row, events, pending, dropped, requests, shown)

    def _list_entry(self, batch: Batch, run: Run, written: Written, *, is_new: bool) -> str:
        """Return the new list entry of a run for its row, or add the run to `batch.visible` if the entry needs separate
        statements.
        """
        before = written.search_attributes
        if run.status is RUNNING:
            self.cache.note_listed(run, written)
        else:
            self.cache.forget(run.run_id)
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
        """Cache a run that is neither in the cache nor in the file if this change begins the run.

        Otherwise the run was deleted: raise `Unwritable` if it is still open, and return None if it has closed.
        """
        if is_new:
            return self.cache.begin(run)
        if run.is_open:
            raise Unwritable(
                f"a change cannot be stored, because the file {self._path} does not contain its run {run.run_id}",
                status="DATA_LOSS",
            )
        logger.warning("a change of run %s was discarded, because the run has been deleted", run.run_id)
        return None

    def _cache_stored(self, changes: Iterable[RunChange]) -> None:
        """Look up the changed runs that are not cached yet in the file, and cache them.

        Also determine which runs are listed as open without memo and search attributes, as most runs are. For these,
        one row can contain all changes of the list entry.
        """
        cache = self.cache
        unknown: dict[str, Run] = {}
        for change in changes:
            if change.run.run_id not in cache.runs and length_before(change):
                unknown[plain(change.run.run_id)] = change.run
        stored = self._find("run_id", f"key, {visibility.PLAIN_START}", list(unknown)) if unknown else []
        for key, start_us, name in stored:
            run = unknown[name]
            written = cache.add(run, key)
            if start_us is not None:
                written.memo, written.search_attributes = {}, {}
                written.start_ns = run.start_ns if run.start_ns // 1000 == start_us else 0

    def _find(self, by: str, columns: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        text = f"SELECT {columns}, {by} FROM runs WHERE {by} IN (SELECT value FROM json_each(?))"
        return self._connection.execute(text, (msgspec.json.encode(values).decode(),)).fetchall()


def _pending_rows(run: Run, touched: Iterable[int], before: int) -> tuple[list[Row], list[Row]]:
    """Return rows for the touched items that are still pending, and id ranges of the others, which must be deleted from
    the file.
    """
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
