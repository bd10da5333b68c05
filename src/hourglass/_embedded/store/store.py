"""The interface between the engine and a store. A new kind of store is one module that implements `Store`, and
`StoreOpener` if several processes share its files.

Must not know: transitions, queues, handles, when a schedule acts. The engine works in memory and is ahead of its store:
it applies a step, queues the change with `append`, and continues. An effect outside the engine (an attempt, the answer
to a call) waits until every change on which it depends is durable. A crash therefore loses only what no client and no
activity has seen. An activation has no such effect: it may be delivered early, and the run's completion waits.

Invariants: changes become durable in the order of `append`, each completely or not at all; a durable change is never
undone. `durable` raises once a change can never become durable. A change that cannot be written is rejected, together
with the changes that depend on it; after any other failure the store is unusable and must be reopened. The status of a
`StorageError` determines the reaction: `is_permanent` errors need a person, `RESOURCE_EXHAUSTED` means that there is no
room (reads are still answered), any other status means that a retry may succeed.
"""

from __future__ import annotations

import errno
import os
import pwd
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from hourglass._contract.engine_status import DiskCondition
from hourglass._contract.workflows import Count, Page, WorkflowStatus, WorkflowSummary
from hourglass._embedded.schedules.transitions import ScheduleRecord
from hourglass._embedded.store.search_attributes import AttributeType
from hourglass._embedded.transitions.run import Run, first_task_ns
from hourglass._history import events as h
from hourglass.errors import StorageError

AT_ONCE = 1
"""A wake time: the engine must process the run as soon as the file is opened, because work was in progress."""


class RunChange(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One step of a run, as a change to store.

    `encoded` contains the events as bytes, concatenated; empty if the transition did not encode them. `touched`
    contains the ids of the events that created changed pending entries: each entry is in `run.pending` under this id,
    or was removed. `wake_ns` is the time at which the run must be loaded and processed (0: never; `AT_ONCE`).
    `request_ids` are the requests that the step carries out. `also` contains further changes, of any run or schedule,
    that become durable together with this change and share its number. For example, a closing run and its successor, or
    a parent and its child, change in one step.
    """

    run: Run
    events: tuple[h.HistoryEvent, ...] = ()
    encoded: bytes = b""
    touched: frozenset[int] = frozenset()
    wake_ns: int = 0
    request_ids: tuple[str, ...] = ()
    also: tuple[RunChange | ScheduleChange, ...] = ()


class ScheduleChange(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a schedule, or the deletion of the schedule if `record` is None. `wake_ns` is the time of the
    schedule's next action (0: never).
    """

    schedule_id: str
    record: ScheduleRecord | None = None
    wake_ns: int = 0
    also: tuple[RunChange | ScheduleChange, ...] = ()


class NoteChange(ScheduleChange, frozen=True, kw_only=True):
    """The new content of a named note of the engine, or the deletion of the note if `data` is empty. Notes are stored
    like schedules.
    """

    data: bytes


class ScheduleEntry(NamedTuple):
    """The summary of a schedule that is not loaded: its next action time, and the workflows that it waits for."""

    schedule_id: str
    wake_ns: int
    awaited: tuple[str, ...]


class DueRun(NamedTuple):
    """A run whose wake time has come.

    `key` orders runs of equal wake time. `task_queue` is the task queue of the workflow, empty if the store does not
    know it.
    """

    run_id: str
    task_queue: str
    wake_ns: int
    key: int


LAST_KEY = (1 << 63) - 1
"""The greatest possible key of a run."""


class Stored(msgspec.Struct, frozen=True):
    """A stored run with its complete history."""

    run: Run
    events: tuple[h.HistoryEvent, ...]


class Rejection(NamedTuple):
    """A change that was rejected and will never become durable, with its runs and schedules, and the error."""

    number: int
    run_ids: tuple[str, ...]
    schedule_ids: tuple[str, ...]
    error: StorageError


def summary(run: Run) -> WorkflowSummary:
    """Return the list entry of a run."""
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


_PERMANENT = frozenset({"DATA_LOSS", "FAILED_PRECONDITION", "PERMISSION_DENIED"})


class Unwritable(StorageError):
    """Raised for a change that can never be written. The file and all other changes are intact."""


class FileLost(StorageError):
    """Raised if another program has replaced, moved or overwritten the file of an open store.

    The process does not reopen the file, because only a person can decide which of the two states to keep.
    """


def is_permanent(error: StorageError) -> bool:
    """Whether the file stays unusable until a person repairs it."""
    return error.status in _PERMANENT


DISK_FULL = "has no space left on its disk: free some space. No acknowledged change is lost"
"""The error message for a file that cannot be written because its disk is full."""


def is_full(error: OSError) -> bool:
    """Whether an operating system call failed because the disk or the user's quota is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def disk_full(path: str) -> StorageError:
    """Return the error for a file that cannot be created or written for lack of room."""
    return StorageError(f"the file {path} {DISK_FULL}", status="RESOURCE_EXHAUSTED")


def ownership_hint(*paths: str) -> str:
    """Return a hint for the first of these files that belongs to another user and is not accessible; else "".

    The hint is appended to an error message, and describes the remedy.
    """
    for path in paths:
        try:
            owner_uid, my_uid = os.stat(path).st_uid, os.geteuid()
        except OSError:
            continue
        may_use = os.access(path, os.R_OK | os.W_OK, effective_ids=os.access in os.supports_effective_ids)
        if owner_uid != my_uid and not may_use:
            owner_name, my_name = _user(owner_uid), _user(my_uid)
            return (
                f". {path} belongs to the user {owner_name}, and this process runs as {my_name}: run the process as "
                f"{owner_name}, or change the owner of the file, and of all files whose names begin with its name, to "
                f"{my_name} (chown)"
            )
    return ""


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def free_bytes(path: str) -> int | None:
    """Return the free space for this user on the disk of a file; None if the system does not report the free space."""
    try:
        space = os.statvfs(os.path.dirname(path) or ".")
    except OSError:
        return None
    return space.f_bavail * space.f_frsize


ALLOW_HARD_LINKS = "HOURGLASS_ALLOW_HARD_LINKS"
"""The environment variable that, if set to 1, permits opening a file with more than one name (hard links)."""


def may_have_links() -> bool:
    """Whether the user permits files with more than one name. This is safe only if no process opens the other names."""
    return os.environ.get(ALLOW_HARD_LINKS) == "1"


def epoch_is_over(path: str) -> StorageError:
    """Return the error for a former owner: another process owns the file, and nothing was written."""
    return StorageError(
        f"another process now owns the file {path} (was its lock file {path}-lock deleted?). This process has stopped "
        "writing to the file; the other process continues with all acknowledged changes",
        status="ABORTED",
    )


class Store(Protocol):
    """The storage of an engine's runs and schedules. All methods must be called on the control loop; long work must run
    on other threads.

    Reads return durable data only: the engine reads a run only if no part of it is in memory. Except for lists and
    counts, all reads are point reads, fast enough for the control loop.
    """

    patience: float
    """Seconds for which the engine may defer a change that no call waits for, in order to merge it with the run's next
    change. The delay may be up to twice as long. 0: the engine appends every change immediately.
    """

    @property
    def latest_ns(self) -> int:
        """The approximate timestamp of the newest event when the store was opened; 0 without events. The engine's clock
        continues from this time.
        """
        ...

    @property
    def held(self) -> str:
        """The reason why writes are impossible at present; "" if they are possible."""
        ...

    def start_rejection(self) -> str:
        """Return the reason to reject new workflows now; "" if there is none."""
        ...

    def condition(self) -> DiskCondition | None:
        """Return the condition of the file and its disk; None if there is no file."""
        ...

    def append(self, change: RunChange | ScheduleChange) -> int:
        """Queue a change and return its number, one more than the previous. Never blocks and never raises."""
        ...

    def on_rejection(self, callback: Callable[[Rejection], None]) -> None:
        """Register `callback`, called on the control loop for each change that can never be written.

        All changes to the runs of the rejected change that were appended before the callback are rejected, too. After the
        callback, these runs may be read and changed again, from their stored state.
        """
        ...

    def is_durable(self, number: int, /) -> bool:
        """Whether this change and all earlier ones, except rejected ones, are durable."""
        ...

    async def durable(self, number: int) -> None:
        """Wait until this change is durable. Raises `StorageError` if it can never become durable."""
        ...

    def when_durable(self, number: int, callback: Callable[[StorageError | None], object], /) -> None:
        """Call `callback` with None once this change is durable, or with the error once it can never become durable.

        The callback runs on the control loop, never before this method returns.
        """
        ...

    def load(self, run_id: str) -> Stored | None:
        """Load a run that is not in memory; None if the run does not exist."""
        ...

    def current(self, workflow_id: str) -> str:
        """Return the run id of the latest run of a workflow; empty if there is none."""
        ...

    def find_request(self, workflow_id: str, request_id: str) -> str:
        """Return the run id of the latest run of a workflow that carried out a request; empty if none did."""
        ...

    def due(
        self, until_ns: int, limit: int, after_ns: int = 0, after_key: int = LAST_KEY
    ) -> Sequence[DueRun]:
        """Return due runs, earliest first, after a position: `after_ns < wake time <= until_ns`, or the wake time is
        `after_ns` and the key is greater than `after_key`.

        `after_ns=AT_ONCE` excludes runs that had something in progress.
        """
        ...

    def without_wake(self) -> Sequence[str]:
        """Return the runs with a damaged wake time. The engine must process them now, because they would never be due."""
        ...

    def open_runs(self) -> int:
        """Return the number of open runs."""
        ...

    def next_due_ns(self, after_ns: int = 0) -> int:
        """Return the earliest wake time later than `after_ns`; 0 if there is none."""
        ...

    async def page(self, text: str, token: bytes, limit: int, *, activities: bool = False) -> Page:
        """Return one page of workflow runs, or of standalone activities, that match a filter, newest first.

        `token` is the token in the previous page, empty for the first page. Runs that start or close between two calls
        do not shift the pages. Raises `ServiceError` for an invalid filter or token, or a timeout.
        """
        ...

    async def count(self, text: str, *, activities: bool = False) -> Count:
        """Count the runs or activities that match a filter, in total and by group."""
        ...

    def attribute_types(self) -> Mapping[str, AttributeType]:
        """Return the types of the search attributes in use."""
        ...

    def schedule(self, schedule_id: str) -> ScheduleRecord | None:
        """Load a schedule that is not in memory; None if the schedule does not exist."""
        ...

    def schedules(self) -> Sequence[ScheduleEntry]:
        """Return a summary of each schedule."""
        ...

    def note(self, name: str) -> bytes:
        """Return the engine's note with this name; empty if there is none."""
        ...

    def notes(self, prefix: str) -> Sequence[tuple[str, bytes]]:
        """Return the engine's notes whose names begin with `prefix`."""
        ...

    def forget(self, run_id: str) -> int:
        """Delete a closed and durable run. Return the change number of the deletion."""
        ...

    def forget_closed(self, before_ns: int, limit: int) -> int:
        """Delete runs that closed before this time, at most `limit`, for retention. Return the number of deleted runs."""
        ...

    def close(self) -> FileLost | None:
        """Write queued changes and close the file. Return the `FileLost` error if the file was lost. Safe to call
        twice.
        """
        ...


class StoreOpener(Protocol):
    """Opens stores of one kind over a file that several processes share.

    The caller must have the file's lock, and must close the store before releasing the lock (see `multiprocess`).
    """

    def check(self, path: str) -> None:
        """Raise `StorageError` if this process can never open the file, whatever other processes do."""
        ...

    def open(self, path: str, namespace: str, *, briefly: bool = False) -> Store:
        """Open or create a file, as its owner or (`briefly`) for single requests. May be called on any thread.

        Raises `StorageError` for an unusable file, which is left unchanged.
        """
        ...

    def open_read_only(self, path: str, why: StorageError) -> Store:
        """Open a file that cannot be written, for read requests only. `why` is the error that `open` raised."""
        ...
