"""The thread that commits (`StoreThread`): everything that is queued while a commit runs becomes the next commit.

Must not know: SQL, runs. There is no timer: a single change is committed immediately, and under load more changes share
a commit. Invariants: turns are committed in the order in which they were queued, each completely; no change is reported
as durable before its commit has returned; a commit that can succeed later is retried until it succeeds or the store is
closed; if a change of a batch causes the failure, the batch is written again change by change, so that only changes
that cannot be written are left out; any other failure ends the thread, and is reported once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from hourglass._embedded.store.sqlite.disk_faults import is_of_one_change, reason_to_hold
from hourglass._embedded.store.store import RunChange, ScheduleChange

if TYPE_CHECKING:
    from hourglass._embedded.store.sqlite.commit_sink import AnyBatch, FileSink

logger = logging.getLogger("hourglass")

MOST_CHANGES = 1024
"""The maximum number of changes in a commit. It is limited so that calls that wait for the first changes are answered
soon.
"""

IDLE = 1.0
"""Seconds without a commit after which the sink checks the file."""

PAUSE = 0.005
"""Seconds between commits that contain only work of the sink itself (deletions)."""


@dataclass(frozen=True)
class Turn:
    """The changes made in one turn (iteration) of the control loop, which become durable together. `number` is the
    number of the last change.

    `readmitted` are runs with rejected changes: from now on their changes depend on the state in the file.
    """

    changes: Sequence[RunChange | ScheduleChange]
    number: int
    forget: Sequence[int] = ()
    readmitted: Sequence[str] = ()


class StoreThread:
    """The thread that commits queued turns. The `sink` does its work on the file.

    `on_commit` receives the number up to which all changes are durable, `on_end` the error that ended the thread (None
    if it was closed). Both are called on the thread.
    """

    def __init__(
        self,
        sink: FileSink,
        name: str,
        *,
        on_commit: Callable[[int], None],
        on_end: Callable[[Exception | None], None],
        retry_seconds: float = 0.25,
    ) -> None:
        self._sink = sink
        self._name = name
        self._on_commit = on_commit
        self._on_end = on_end
        self._retry_seconds = retry_seconds
        self._queue: SimpleQueue[Turn | None] = SimpleQueue()
        self._number = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hourglass-store", daemon=True)
        self.held = ""
        """The reason why commits are impossible at present; "" if they are possible."""

    def start(self) -> None:
        self._thread.start()

    def put(self, turn: Turn) -> None:
        self._queue.put(turn)

    def close(self) -> None:
        """Commit the queued turns, if that is possible now, and end the thread."""
        self._closing.set()
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        error: Exception | None = None
        try:
            while turns := self._next_turns():
                batch = self._write(turns)
                # Reported first, so that waiting calls do not also wait for a checkpoint.
                self._number = turns[-1].number
                self._on_commit(self._number)
                self._sink.after_commit(batch)
        except Exception as failure:
            error = failure
        self._on_end(error)

    def _write(self, turns: Sequence[Turn]) -> AnyBatch:
        try:
            batch = self._sink.build(turns)
            self._commit(batch)
        except Exception as error:
            if not is_of_one_change(error):
                raise
            batch = self._sink.build_separately(turns)
            self._commit(batch)
        return batch

    def _next_turns(self) -> list[Turn]:
        """Wait for turns and return all queued ones; an empty list once the queue is closed and empty."""
        turns: list[Turn] = []
        changes = 0
        turn = self._next_turn()
        while turn is not None:
            turns.append(turn)
            changes += len(turn.changes) + len(turn.forget)
            if changes >= MOST_CHANGES:
                break
            try:
                turn = self._queue.get_nowait()
            except Empty:
                break
            if turn is None:
                self._queue.put(None)  # received again after the earlier turns have been committed
        return turns

    def _next_turn(self) -> Turn | None:
        while True:
            has_more = self._sink.has_more
            try:
                return self._queue.get(timeout=PAUSE if has_more else IDLE)
            except Empty:
                if has_more:
                    return Turn((), self._number)
                self._sink.check()

    def _commit(self, batch: AnyBatch) -> None:
        while True:
            try:
                self._sink.commit(batch)
            except Exception as error:
                self._wait_to_retry(error)
                continue
            if self.held:
                logger.warning("writing to %s works again; nothing was lost", self._name)
                self.held = ""
            return

    def _wait_to_retry(self, error: Exception) -> None:
        """Wait before the commit is retried. Raises the error if a retry is not allowed or the store is closing."""
        reason = reason_to_hold(error)
        if not reason or (self.held and self._closing.is_set()):
            raise error
        if not self.held:
            logger.error(
                "writing to %s failed: %s. No acknowledged change is lost; all work waits until the file can be written "
                "again",
                self._name,
                reason,
            )
        self.held = reason
        self._closing.wait(self._retry_seconds)
