"""What an engine keeps its runs in: the seam between the engine, which decides, and a place that remembers. A second
kind of store is one module that implements `Store`, and `StoreOpener` if several processes share its files.

Must not know: transitions, queues, handles, when a schedule acts. The engine works in memory and is ahead of its
store: it applies a step, queues it here with `append`, and goes on. What has an effect outside (an attempt, the
answer to a call) waits until all that it rests on is durable. So a crash forgets only what no client and no activity
has seen. An activation has no such effect: it may go ahead, and what the run answers waits.

Invariants: changes become durable in the order of `append`, each whole or not at all; what was durable stays;
`durable` raises once a change can never become so: one that cannot be written is refused by itself, for any other
reason the store is dead from then on and must be opened anew. The status of a `StorageError` says what to make of it:
`is_permanent`, `RESOURCE_EXHAUSTED` where there is no room (what only reads is still answered), else try again.
"""

from __future__ import annotations

import errno
import os
import pwd
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from hourglass._contract.workflows import Count, Page, WorkflowStatus, WorkflowSummary
from hourglass._embedded.schedules.transitions import ScheduleRecord
from hourglass._embedded.store.search_attributes import AttributeType
from hourglass._embedded.transitions.run import Run, first_task_ns
from hourglass._history import events as h
from hourglass.errors import StorageError

AT_ONCE = 1
"""As a wake time: the engine must look at the run as soon as it is opened (something was in flight)."""


class Change(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One step of one run.

    `encoded` are the events as bytes, one after the other; empty where the transition did not encode them. `touched` names what
    is pending and changed, by the id of the event that began it: each is `run.pending` by that id, or is gone.
    `wake_ns` is when the run must be looked at if it is not in memory then (0: never; `AT_ONCE`). `request_ids` are
    the requests that it carries out. `also` are changes, of other runs, further ones of this run or of schedules,
    that become durable together with it, under its number: a run that closes and the run that follows it are one
    step, and so are a parent and its child.
    """

    run: Run
    events: tuple[h.HistoryEvent, ...] = ()
    encoded: bytes = b""
    touched: frozenset[int] = frozenset()
    wake_ns: int = 0
    request_ids: tuple[str, ...] = ()
    also: tuple[Change | ScheduleChange, ...] = ()


class ScheduleChange(msgspec.Struct, frozen=True, kw_only=True):
    """One step of one schedule, or its end (no record). `wake_ns` is when it must be looked at (0: never)."""

    schedule_id: str
    record: ScheduleRecord | None = None
    wake_ns: int = 0
    also: tuple[Change | ScheduleChange, ...] = ()


class NoteChange(ScheduleChange, frozen=True, kw_only=True):
    """What the engine keeps for itself under a name, whole, or (without data) no longer; it travels as schedules do."""

    data: bytes


class ScheduleEntry(NamedTuple):
    """What is known of a schedule before it is read: when it acts next, and the workflows that it waits for."""

    schedule_id: str
    wake_ns: int
    awaited: tuple[str, ...]


class DueRun(NamedTuple):
    """A run whose wake time has come. `key` is its place among those of the same wake time; `task_queue` is its workflow's,
    empty where the store does not know.
    """

    run_id: str
    task_queue: str
    wake_ns: int
    key: int


LAST_KEY = (1 << 63) - 1
"""No run has a greater key."""


class Stored(msgspec.Struct, frozen=True):
    """A run as it was stored, with its whole history."""

    run: Run
    events: tuple[h.HistoryEvent, ...]


class Refusal(NamedTuple):
    """A change that will never be durable, with the runs and schedules of which it was to tell."""

    number: int
    run_ids: tuple[str, ...]
    schedule_ids: tuple[str, ...]
    error: StorageError


# --- what lists say of a run --------------------------------------------------------------------------------


def summary(run: Run) -> WorkflowSummary:
    """What a list says of a run."""
    return WorkflowSummary(
        workflow_id=run.started.workflow_id,
        run_id=run.run_id,
        workflow_type=run.started.workflow_type,
        status=run.status if run.paused is None else WorkflowStatus.PAUSED,
        task_queue=run.started.spec.task_queue,
        start_time_ns=run.start_ns,
        execution_time_ns=first_task_ns(run),
        close_time_ns=run.close_ns,
        history_length=run.length,
        parent_workflow_id=run.started.parent_workflow_id,
        parent_run_id=run.started.parent_run_id,
        root_workflow_id=run.started.root_workflow_id or run.started.workflow_id,
        root_run_id=run.started.root_run_id or run.run_id,
        memo=run.memo,
        search_attributes=run.search_attributes,
    )


# --- faults -------------------------------------------------------------------------------------------------

FULL_BYTES = 1 << 20
"""A disk with less free is as good as full, though nothing has failed yet."""

_PERMANENT = frozenset({"DATA_LOSS", "FAILED_PRECONDITION", "PERMISSION_DENIED"})


class DiskCondition(msgspec.Struct, frozen=True):
    """How it stands with a file and its disk. `held` is why it cannot be written now, "" if it can; `free_bytes` is
    None where the system does not say; below `reserve_bytes` new workflows are refused. `file_bytes` is the size of the file and
    of its log.
    """

    path: str
    held: str
    free_bytes: int | None
    reserve_bytes: int
    file_bytes: int = 0

    @property
    def is_full(self) -> bool:
        """Whether nothing can be written, or next to nothing."""
        return bool(self.held) or (self.free_bytes is not None and self.free_bytes < FULL_BYTES)


class Unwritable(StorageError):
    """One change that can never be written. The file and all other changes are well."""


class FileLost(StorageError):
    """The file under an open store was replaced, moved away or overwritten by another program. The process that had it
    open never opens it again: only a person knows which of the two states is wanted.
    """


def is_permanent(error: StorageError) -> bool:
    """Whether the file stays unusable until a person sees to it."""
    return error.status in _PERMANENT


NO_ROOM = "has no room left on its disk: free some; nothing that was acknowledged is lost"
"""What is said of a file that cannot be written for want of room."""


def is_full(error: OSError) -> bool:
    """Whether the operating system found no room: none on the disk, or none that this user may have."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def no_room(path: str) -> StorageError:
    """The error for a file that cannot be made, or written, for want of room."""
    return StorageError(f"the file {path} {NO_ROOM}", status="RESOURCE_EXHAUSTED")


def another_users(*paths: str) -> str:
    """The first of these files that belongs to another user, and that this one may not use, as the end of a message that says
    what to do; else nothing: a file may be out of reach for other reasons.
    """
    for path in paths:
        try:
            owner, me = os.stat(path).st_uid, os.geteuid()
        except OSError:
            continue
        may_use = os.access(path, os.R_OK | os.W_OK, effective_ids=os.access in os.supports_effective_ids)
        if owner != me and not may_use:
            theirs, mine = _user(owner), _user(me)
            return (
                f". {path} belongs to the user {theirs}, and this process runs as {mine}: run it as {theirs}, or give the "
                f"user {mine} the file with all that stands beside it under its name (chown)"
            )
    return ""


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def free_bytes(path: str) -> int | None:
    """How much is free on the disk of a file, for this user; None if the system does not say."""
    try:
        space = os.statvfs(os.path.dirname(path) or ".")
    except OSError:
        return None
    return space.f_bavail * space.f_frsize


def epoch_is_over(path: str) -> StorageError:
    """This process owned the file, and another does now: nothing was written."""
    return StorageError(
        f"the file {path} has another owner now (was its lock file, {path}-lock, deleted?): this process has "
        f"stopped writing to it, and what was not acknowledged goes on there",
        status="ABORTED",
    )


# --- the interface ------------------------------------------------------------------------------------------


class Store(Protocol):
    """A place that remembers runs. All methods are called on the control loop; those that may take long wait
    elsewhere.

    The reads answer from what is durable; the engine asks only for runs of which nothing is in memory. They are
    point reads, quick enough for the control loop, but for lists and counts.
    """

    patience: float
    """A change that nothing waits for may be appended so many seconds later, or at most twice as many, together with
    what its run does next; 0: it is appended at once.
    """

    @property
    def latest_ns(self) -> int:
        """About the time of the newest event when the store was opened: time goes on from there. 0: there is none."""
        ...

    @property
    def held(self) -> str:
        """Why nothing can be written at present; "" if it can."""
        ...

    def refuses_starts(self) -> str:
        """Why new workflows should be refused now; "" if they need not be."""
        ...

    def condition(self) -> DiskCondition | None:
        """How it stands with the file and its disk; None where there is none."""
        ...

    def append(self, change: Change | ScheduleChange) -> int:
        """Queue a change; returns its number, one more than the one before. Never waits and never raises."""
        ...

    def on_refusal(self, told: Callable[[Refusal], None]) -> None:
        """Have `told` called, on the control loop, of each change that can never be written.

        Of the runs that such a change is about everything is refused that was appended before this was said; then
        they may be read, and changed, as they stand in the store.
        """
        ...

    def is_durable(self, number: int, /) -> bool:
        """Whether this change, and all before it but for those that were refused, are durable."""
        ...

    async def durable(self, number: int) -> None:
        """Wait until this change is durable. Raises `StorageError` if it can never be."""
        ...

    def when_durable(self, number: int, told: Callable[[StorageError | None], object], /) -> None:
        """Have `told` called, on the control loop and not before this returns, once this change is durable; with the error
        once it can never be.
        """
        ...

    def load(self, run_id: str) -> Stored | None:
        """A run that is not in memory."""
        ...

    def current(self, workflow_id: str) -> str:
        """The run id of the latest run of a workflow; empty if there is none."""
        ...

    def find_request(self, workflow_id: str, request_id: str) -> str:
        """The run id of the latest run of a workflow that carried out a request; empty if none did."""
        ...

    def due(
        self, until_ns: int, limit: int, after_ns: int = 0, after_key: int = LAST_KEY
    ) -> Sequence[DueRun]:
        """Runs whose wake time has come, earliest first, from behind a place: `after_ns < wake time <= until_ns`, or the
        wake time is `after_ns` and the key greater than `after_key`.

        With `after_ns=AT_ONCE` those are left out that had something in flight.
        """
        ...

    def without_wake(self) -> Sequence[str]:
        """Runs whose wake time is damaged: they must be looked at now, for they would never be due."""
        ...

    def open_runs(self) -> int:
        """How many runs are open."""
        ...

    def next_due_ns(self, after_ns: int = 0) -> int:
        """The earliest wake time later than `after_ns`; 0 if there is none."""
        ...

    async def page(self, text: str, token: bytes, limit: int, *, activities: bool = False) -> Page:
        """Runs of workflows, or activities that belong to none, that pass a filter, newest first, from where the page that gave
        the token ended (empty: from the beginning). Runs that start or close meanwhile do not shift pages. Raises
        `ServiceError` for a filter or a token that is not understood, or if it takes too long.
        """
        ...

    async def count(self, text: str, *, activities: bool = False) -> Count:
        """How many of them pass a filter, and in each of its groups, if it has any."""
        ...

    def attribute_types(self) -> Mapping[str, AttributeType]:
        """The search attributes that are known, and their types."""
        ...

    def schedule(self, schedule_id: str) -> ScheduleRecord | None:
        """A schedule that is not in memory."""
        ...

    def schedules(self) -> Sequence[ScheduleEntry]:
        """All schedules, in short."""
        ...

    def note(self, name: str) -> bytes:
        """What the engine keeps for itself under a name; empty if there is nothing."""
        ...

    def notes(self, prefix: str) -> Sequence[tuple[str, bytes]]:
        """All that the engine keeps for itself under names that begin so."""
        ...

    def forget(self, run_id: str) -> int:
        """Drop a run that has closed and is durable; returns the number of that change."""
        ...

    def forget_closed(self, before_ns: int, limit: int) -> int:
        """Drop runs that closed before this time, at most so many; says how many. (Retention.)"""
        ...

    def close(self) -> FileLost | None:
        """Write what is queued and let go. Return the loss of the file, if there was one. Safe to call twice."""
        ...


class StoreOpener(Protocol):
    """How stores of one kind are opened over a file that several processes share. The caller has the file's lock, and
    closes the store before it drops it (see `sharing`).
    """

    def check(self, path: str) -> None:
        """Raise `StorageError` where this process can never open the file, whatever other processes do."""
        ...

    def open(self, path: str, namespace: str, *, briefly: bool = False) -> Store:
        """Open a file, or make it: to own it, or (`briefly`) for some requests. May be called on any thread. Raises
        `StorageError` for a file that cannot be used, which is left as it was.
        """
        ...

    def open_read_only(self, path: str, why: StorageError) -> Store:
        """Open a file that cannot be written, for requests that only read; `why` is what `open` has raised."""
        ...
