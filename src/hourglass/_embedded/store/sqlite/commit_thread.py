"""The thread that commits (`StoreThread`): takes everything that was queued while the last commit ran, and commits it as one.
`Durability` is what the control loop knows of it: which changes are durable, and which calls wait for that.

Must not know: SQL, runs. There is no timer: a lone change is committed at once, and the busier it gets, the more
changes share a commit. Invariants: turns are committed in the order in which they were given, each whole; nothing
is reported durable before its commit returned; a commit that can be tried again is tried until it succeeds or the
store is closed; one that fails for something in it is tried again change by change, so that only the changes that
cannot be written are left out; any other failure is the end, and is reported once.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from itertools import count
from queue import Empty, SimpleQueue
from typing import Generic, Protocol, TypeVar

from hourglass._embedded.store.sqlite.disk_faults import is_of_one_change, reason_to_hold
from hourglass._embedded.store.store import RunChange, ScheduleChange
from hourglass.errors import StorageError

logger = logging.getLogger("hourglass")

MOST_CHANGES = 1024
"""More than that is left for the next commit, so that the calls that wait for the first of them are answered soon."""

IDLE = 1.0
"""After so many seconds without a commit the sink checks its file."""

PAUSE = 0.005
"""Seconds between commits of the sink's own, while nothing else is to be committed."""

B = TypeVar("B")


@dataclass(frozen=True)
class Turn:
    """What was asked for in one turn of the control loop: becomes durable together. `number` is its last change's.

    `readmitted` are runs of which changes were refused: those that come now rest on what the file has.
    """

    changes: Sequence[RunChange | ScheduleChange]
    number: int
    forget: Sequence[int] = ()
    readmitted: Sequence[str] = ()


def _weight(turn: Turn) -> int:
    return len(turn.changes) + len(turn.forget)


class CommitSink(Protocol[B]):
    """Where the thread writes. All of it runs on the thread."""

    @property
    def has_more(self) -> bool:
        """Whether it has something to do with the next commits, even if they commit nothing else."""
        ...

    def build(self, turns: Sequence[Turn], /) -> B:
        """Prepare a batch; it may be tried several times."""
        ...

    def build_apart(self, turns: Sequence[Turn], /) -> B:
        """The same where a change cannot be written: its commit leaves out those that cannot, and says so."""
        ...

    def commit(self, batch: B, /) -> None:
        """Make it durable, whole or not at all; raises otherwise."""
        ...

    def rest(self, batch: B, /) -> None:
        """After a commit was reported: whatever needs doing now and then. A failure here is the end too."""
        ...

    def idle(self) -> None:
        """Called about every second while there is nothing to commit. A failure here is the end too."""
        ...


class StoreThread(Generic[B]):
    """One thread with a queue before it.

    `on_commit` gets the number up to which all is durable, `on_end` what ended it (None: it was closed).
    Both are called on the thread.
    """

    def __init__(
        self,
        sink: CommitSink[B],
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
        """Why commits cannot be made at present; "" if they can."""

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def give(self, turn: Turn) -> None:
        """Queue a turn; never waits."""
        self._queue.put(turn)

    def close(self) -> None:
        """Commit what is queued, if it can be committed now, and end."""
        self._closing.set()
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        error: Exception | None = None
        try:
            while turns := self._take():
                batch = self._write(turns)
                # Reported first: the calls that wait need not wait for a checkpoint, too.
                self._number = turns[-1].number
                self._on_commit(self._number)
                self._sink.rest(batch)
        except Exception as failure:
            error = failure
        self._on_end(error)

    def _write(self, turns: Sequence[Turn]) -> B:
        try:
            batch = self._sink.build(turns)
            self._commit(batch)
        except Exception as error:
            if not is_of_one_change(error):
                raise
            batch = self._sink.build_apart(turns)
            self._commit(batch)
        return batch

    def _take(self) -> list[Turn]:
        """Everything queued, once there is anything; nothing once it is closed and all is taken."""
        first = self._wait()
        turns = [] if first is None else [first]
        changes = _weight(first) if first else 0
        while changes < MOST_CHANGES:
            try:
                turn = self._queue.get_nowait()
            except Empty:
                break
            if turn is None:
                self._queue.put(None)  # come back to it when what was before it is committed
                break
            turns.append(turn)
            changes += _weight(turn)
        return turns

    def _wait(self) -> Turn | None:
        while True:
            has_more = self._sink.has_more
            try:
                return self._queue.get(timeout=PAUSE if has_more else IDLE)
            except Empty:
                if has_more:
                    return Turn((), self._number)
                self._sink.idle()

    def _commit(self, batch: B) -> None:
        while True:
            try:
                self._sink.commit(batch)
            except Exception as error:
                self._hold(error)
                continue
            if self.held:
                logger.warning("%s is written again; nothing was lost", self._name)
                self.held = ""
            return

    def _hold(self, error: Exception) -> None:
        """Wait before the next try; raises what cannot be tried again, or not any more."""
        reason = reason_to_hold(error)
        if not reason or (self.held and self._closing.is_set()):
            raise error
        if not self.held:
            logger.error(
                "%s cannot be written: %s. Nothing that was acknowledged is lost; everything waits until it "
                "can be written again",
                self._name,
                reason,
            )
        self.held = reason
        self._closing.wait(self._retry_seconds)


# --- which changes are durable, and the calls that wait for them ---------------------------------------------

_REMEMBERED = 10_000
"""So many refusals are remembered: a call that waits for its change does so right after it was appended."""


class Durability:
    """How far everything is durable: numbers are given on the control loop, commits are reported by the store thread.

    `committed`, `refuse` and `end` may be called on any thread, the rest on one loop. Invariants: numbers count from
    1 without a gap; a waiter is woken when its number is durable, or gets the error that ended everything, or the one
    for which this change alone was refused; one call wakes all that one commit satisfies.
    """

    def __init__(self) -> None:
        self.given = 0
        """The last number that was given."""
        self._committed = 0
        self._failure: StorageError | None = None
        self._refused: dict[int, StorageError] = {}
        self._waiters: list[
            tuple[int, int, Callable[[StorageError | None], object]]
        ] = []  # a heap, by number
        self._order = count()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def failure(self) -> StorageError | None:
        """What ended it, if anything has."""
        return self._failure

    def has(self, number: int) -> bool:
        """Whether this change, and all before it, are durable."""
        return number <= self._committed and number not in self._refused

    async def wait(self, number: int) -> None:
        """Wait until this change is durable; raises what ended everything, or why it was refused, if it never will
        be.
        """
        if number in self._refused:
            raise _copy(self._refused[number])
        if number <= self._committed:
            return
        waiter = asyncio.get_running_loop().create_future()
        self.call(number, partial(_end, waiter))
        await waiter

    def call(self, number: int, told: Callable[[StorageError | None], object]) -> None:
        """Have `told` called, on the loop and not before this returns, when `wait` would return, or with what it would raise."""
        self._loop = asyncio.get_running_loop()
        heappush(self._waiters, (number, next(self._order), told))
        # Asked only now: the store thread reports a commit once, and may have done so before `told` was in the heap.
        if number <= self._committed or self._failure is not None:
            self._loop.call_soon(self.settle)

    def committed(self, number: int) -> None:
        """All changes up to this one are durable."""
        self._committed = number
        self._notify()

    def refuse(self, number: int, error: StorageError) -> None:
        """Mark a change as one that will never be durable. Called before the commit that leaves it out."""
        self._refused[number] = error
        while len(self._refused) > _REMEMBERED:
            del self._refused[next(iter(self._refused))]

    def end(self, failure: StorageError) -> None:
        """What is not durable now never will be."""
        if self._failure is None:
            self._failure = failure
        self._notify()

    def disown(self, failure: StorageError) -> None:
        """In a forked child: end without waking any waiter. The loop and its tasks are the parent's."""
        self._loop = None
        self._waiters = []
        self.end(failure)

    def settle(self) -> None:
        """Tell the calls whose wait is over. On the loop."""
        committed, failure, waiters = self._committed, self._failure, self._waiters
        while waiters and (waiters[0][0] <= committed or failure is not None):
            number, _, told = heappop(waiters)
            refusal = self._refused.get(number) if number <= committed else failure
            try:
                told(None if refusal is None else _copy(refusal))
            except Exception:  # the others wait, too
                logger.exception("a call that waited for the store could not be told")

    def _notify(self) -> None:
        loop = self._loop
        if loop is None:
            return  # no call has ever waited
        try:
            loop.call_soon_threadsafe(self.settle)
        except RuntimeError:
            pass  # the loop is closed, and the tasks that waited on it are gone


def _end(waiter: asyncio.Future[None], error: StorageError | None) -> None:
    if waiter.done():
        return
    if error is None:
        waiter.set_result(None)
    else:
        waiter.set_exception(error)


def _copy(error: StorageError) -> StorageError:
    """An error that is raised in several places has a traceback for each."""
    return type(error)(str(error), status=error.status)
