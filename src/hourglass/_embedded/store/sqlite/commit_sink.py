"""The writing side of the store thread for a file (`FileSink`): commits, deletions of closed runs, checkpoints, and
checks that this process still owns the file.

Must not know: which calls wait. Everything runs on the store thread, unless stated otherwise. Invariants: a commit is
reported only if the file, its WAL and the WAL's index were still in place after it; a checkpoint runs only on files
that were checked; a full disk stops checkpoints, not commits.
"""

from __future__ import annotations

import logging
import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from time import monotonic
from typing import TypeAlias

from hourglass._embedded.store.fork_safety import NO_FORK
from hourglass._embedded.store.sqlite.batches import Batch
from hourglass._embedded.store.sqlite.commit_thread import Turn
from hourglass._embedded.store.sqlite.disk_faults import reason_to_hold
from hourglass._embedded.store.sqlite.file_watch import FileWatch, Loss
from hourglass._embedded.store.sqlite.writer import PAGE, BatchWriter, Numbered, Readmitted, SeparateChanges
from hourglass._embedded.store.store import Rejection, RunChange, ScheduleChange

logger = logging.getLogger("hourglass")

FORGET_RUNS, FORGET_BYTES = 16, 512 << 10
"""Limits on the deletions in one commit, because the calls that wait for the commit also wait for its deletions. A
commit deletes at most as many closed runs as it has changes, or `FORGET_RUNS` if that is more, with at most
`FORGET_BYTES` of events. A single run may have more.
"""

CHECKPOINT_PAGES = 4000
"""The growth of the WAL, in pages, after which a checkpoint moves the WAL into the file."""


LONG_LOG = 16_384
"""The size of the WAL, in pages (64 MiB), above which commits wait briefly for readers, so that the WAL can be emptied."""

LOG_WAIT_MS = 200
"""The longest time for which a commit waits for readers, in milliseconds."""

LOG_PAUSE, LOG_LONGEST_PAUSE = 1.0, 60.0
"""Seconds until the next attempt to empty the WAL: the first delay and the longest."""


AnyBatch: TypeAlias = Batch | SeparateChanges


class FileSink:
    """The work of the store thread on a file: commits, checkpoints, deletions of closed runs, and checks that this
    process still owns the file.
    """

    def __init__(
        self,
        writer: BatchWriter,
        path: str,
        watch: FileWatch,
        checkpoint_pages: int,
        on_rejections: Callable[[Sequence[Rejection]], None],
    ) -> None:
        self._on_rejections = on_rejections
        self._writer = writer
        self._watch = watch
        self._checkpoint_pages = checkpoint_pages
        self._path = path
        self._next_try = 0.0
        self._pause = LOG_PAUSE
        self._warned = 0
        self._to_forget: deque[int] = deque()
        self._forgotten: deque[int] = deque()

    def forget_later(self, keys: Sequence[int]) -> None:
        """Queue the deletion of runs, spread over the next commits. Must be called on the control loop."""
        self._to_forget.extend(keys)

    def take_forgotten(self) -> list[int]:
        """Return the keys of the runs that were deleted since the last call. Must be called on the control loop."""
        return [self._forgotten.popleft() for _ in range(len(self._forgotten))]

    @property
    def has_more(self) -> bool:
        return bool(self._to_forget)

    def build(self, turns: Sequence[Turn]) -> AnyBatch:
        """Return the changes of these turns, and queued deletions, as a batch. It may be committed several times until a
        commit succeeds.
        """
        if self._writer.barred:
            return self.build_separately(turns)
        changes: list[RunChange | ScheduleChange] = []
        forget: list[int] = []
        for turn in turns:
            changes += turn.changes
            forget += turn.forget
        with NO_FORK.lock:
            if self._to_forget:
                keys = list(islice(self._to_forget, max(FORGET_RUNS, len(changes))))
                forget += self._writer.first_within(keys, FORGET_BYTES)
            return self._writer.build(changes, forget)

    def build_separately(self, turns: Sequence[Turn]) -> SeparateChanges:
        """Return the changes of these turns, to be written one by one."""
        parts: list[Numbered | Readmitted] = []
        for turn in turns:
            if turn.readmitted:
                parts.append(Readmitted(turn.readmitted))
            parts += enumerate(turn.changes, turn.number - len(turn.changes) + 1)
        return SeparateChanges(parts, [key for turn in turns for key in turn.forget])

    def commit(self, batch: AnyBatch) -> None:
        """Make a batch durable, completely or not at all, if the file is still ours. Report its rejected changes."""
        watch = self._watch
        with NO_FORK.lock:
            try:
                watch.check_before_commit()
                try:
                    if isinstance(batch, Batch):
                        self._writer.write(batch)
                    else:
                        self._writer.write_separately(batch)
                except Exception:
                    # The content may have been replaced while this commit waited for the lock.
                    watch.check_before_commit()
                    raise
                watch.note_commit(batch.last_events, batch.forgotten)
                # Checked after the commit, too: a change is acknowledged only if the files were still in place after
                # the write.
                watch.check()
            except Loss as loss:
                raise watch.save(loss) from None
        if isinstance(batch, SeparateChanges):
            self._on_rejections(batch.rejected)

    def check(self) -> None:
        """Raise if the file, its WAL or the WAL's index was replaced, or another process owns the file. Called about
        every second while there is nothing to commit.
        """
        with NO_FORK.lock:
            try:
                self._watch.check()
            except Loss as loss:
                raise self._watch.save(loss) from None

    def after_commit(self, batch: AnyBatch) -> None:
        """Checkpoint if the WAL has grown enough, and empty the WAL if it is too long. Called after a commit was
        reported. A failure ends the thread.
        """
        if batch.forgotten:
            self._note_forgotten(batch.forgotten)
        if self._watch.log_growth < self._checkpoint_pages:
            return
        try:
            with NO_FORK.lock:
                self.check()
                pages = self._writer.checkpoint()
                self._watch.note_checkpoint()
                if pages > LONG_LOG and monotonic() >= self._next_try:
                    self._shorten_log(pages)
        except sqlite3.Error as error:
            # A full disk loses no data, because all changes are in the WAL. Any other error is as serious as in a
            # commit.
            if not reason_to_hold(error):
                raise

    def _note_forgotten(self, keys: Sequence[int]) -> None:
        self._forgotten.extend(keys)
        deleted = set(keys)
        while self._to_forget and self._to_forget[0] in deleted:
            self._to_forget.popleft()

    def _shorten_log(self, pages: int) -> None:
        """Make commits wait for readers so that the WAL can be emptied. Warn if a reader does not finish.

        SQLite empties the WAL only while no connection reads an older state. If there is always a reader, that never
        happens unless commits wait for the last one.
        """
        is_empty = self._writer.empty_wal(LOG_WAIT_MS)
        self._watch.note_checkpoint()
        if is_empty:
            self._next_try, self._pause = 0.0, LOG_PAUSE
            return
        self._next_try = monotonic() + self._pause
        self._pause = min(2 * self._pause, LOG_LONGEST_PAUSE)
        if not self._warned or pages > 4 * self._warned:
            self._warned = pages
            logger.warning(
                "the write-ahead log of %s has grown to %d MiB. It cannot be emptied while a connection reads an old "
                "state of the file: close open transactions, and end long queries and copies of the file",
                self._path,
                pages * PAGE >> 20,
            )
