"""Parts that all request handlers share: finding the run, answering, waiting.

Must not know: any request, except that a query waits for a worker. Long polls end after `LONG_POLL` seconds of real
time, regardless of the engine's clock, because they concern the client's connection and not workflows. Invariants: an
answer names the change that it depends on. A waiting request keeps its run in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from hourglass._contract import service as s
from hourglass._contract.workflows import QueryWorkflow
from hourglass._embedded.clock import Bell
from hourglass._embedded.engine import Engine
from hourglass._embedded.runs.run import LoadedRun
from hourglass._embedded.store.store import Stored
from hourglass._embedded.transitions.run import OpenActivity
from hourglass._embedded.transitions.standalone import PREFIX
from hourglass.errors import (
    ActivityNotFoundError,
    HourglassError,
    ServiceError,
    ServiceTimeoutError,
    StorageError,
    WorkflowNotFoundError,
)

LONG_POLL = 20.0
ROOM = 10.0
"""The maximum time in seconds that a caller waits while a run has too many events or updates in progress. A server's
client retries for the same time.
"""

READ_PATIENCE = 2.0
"""The time in seconds that a read waits for a commit before it returns the stored state instead."""

MOST_LISTED = 1000
"""The maximum page size of a list, as on a server."""

A = TypeVar("A")


class EngineClosed(HourglassError):
    """The engine closed or failed before it answered. The same request can be sent to the next engine of the file."""

    def __init__(self, message: str = "the engine was closed") -> None:
        super().__init__(message)


class PendingAnswer(NamedTuple, Generic[A]):
    """An answer, and the number of the change that it depends on."""

    value: A
    rests_on: int


Handlers: TypeAlias = dict[type[s.Request[Any]], Callable[[Engine, Any], Awaitable[PendingAnswer[Any]]]]
"""A table of handlers by request class."""


def too_late(request: s.Request[Any], limit: float) -> ServiceTimeoutError:
    """Return the error for a request that was not answered within its time limit."""
    hint = ""
    if isinstance(request, QueryWorkflow):
        hint = (
            ". Queries are answered by a worker: check that a worker of the workflow's task queue is running"
        )
    return ServiceTimeoutError(
        f"{type(request).__name__} was not answered within {limit:g} s{hint}", status="DEADLINE_EXCEEDED"
    )


def find(engine: Engine, workflow_id: str, run_id: str = "", first_run_id: str = "") -> LoadedRun:
    """Return the run that a request names. Raise `WorkflowNotFoundError` if there is none."""
    record = _record(engine, workflow_id, run_id)
    if record is None or record.run.is_standalone_activity:
        raise WorkflowNotFoundError(f"workflow not found for ID: {workflow_id}", status="NOT_FOUND")
    if first_run_id and record.run.started.first_run_id != first_run_id:
        raise WorkflowNotFoundError(
            f"workflow not found for ID: {workflow_id} with first run {first_run_id}", status="NOT_FOUND"
        )
    return record


def find_standalone(engine: Engine, activity_id: str, run_id: str = "") -> LoadedRun:
    """Return the run of a standalone activity. Raise `ActivityNotFoundError` if there is none."""
    record = _record(engine, PREFIX + activity_id, run_id)
    if record is None:
        raise ActivityNotFoundError(f"activity not found for ID: {activity_id}", status="NOT_FOUND")
    return record


def _record(engine: Engine, workflow_id: str, run_id: str) -> LoadedRun | None:
    record = engine.record(run_id) if run_id else engine.current(workflow_id)
    return record if record is not None and record.run.started.workflow_id == workflow_id else None


def refusal_rests_on(engine: Engine, request: s.Request[Any]) -> int:
    """Return the number of the change that the rejection of a request may depend on.

    For a request about one workflow, this is the workflow's newest change. The workflow is in memory unless all its
    changes are durable. For any other request, it is the newest change of all.
    """
    about = getattr(request, "start", request)
    workflow_id: str = getattr(about, "workflow_id", "")
    if not workflow_id or getattr(about, "versioning_override", None) is not None:
        return engine.writes.newest
    return engine.runs.newest_of(workflow_id, getattr(about, "run_id", ""))


def activity_of(record: LoadedRun, activity_id: str) -> OpenActivity | None:
    """Return the pending activity with this id; None if there is none."""
    return next(
        (
            activity
            for activity in record.run.activities.values()
            if activity.scheduled.activity_id == activity_id
        ),
        None,
    )


def pending_activity(record: LoadedRun, activity_id: str) -> OpenActivity:
    """Return the pending activity with this id. Raise `ServiceError` if there is none."""
    activity = activity_of(record, activity_id)
    if activity is None:
        raise ServiceError(
            "Can't find pending activity with such ID. Invalid activityID or activity already completed",
            status="NOT_FOUND",
        )
    return activity


def check_open(record: LoadedRun) -> None:
    """Raise `WorkflowNotFoundError` if a run is closed."""
    if not record.run.is_open:
        raise WorkflowNotFoundError("workflow execution already completed", status="NOT_FOUND")


def check_moves(engine: Engine, record: LoadedRun) -> None:
    """Raise `StorageError` if a run is parked because the store rejected one of its changes. Such a run does not
    continue until the file is reopened.
    """
    run_id = record.run.run_id
    why = engine.runs.parked.get(run_id)
    if why is not None and (record.run.is_open or engine.runs.in_memory(run_id) is not record):
        raise StorageError(f"this run is parked until the file is reopened: {why}", status=why.status)


async def answered(engine: Engine, number: int, value: A, from_disk: Callable[[], A]) -> PendingAnswer[A]:
    """Return a value from memory if the change that it depends on is durable or becomes durable soon. Otherwise
    return the stored value.
    """
    if await is_written(engine, number):
        return PendingAnswer(value, number)
    return PendingAnswer(from_disk(), 0)


async def as_known(engine: Engine, value: A) -> PendingAnswer[A]:
    """Return a value that exists only in this process, after a short wait for a commit. Return it even if nothing can
    be written.
    """
    await is_written(engine, engine.writes.newest)
    return PendingAnswer(value, 0)


async def is_written(engine: Engine, number: int) -> bool:
    """Return whether a change is durable, after a short wait for a commit in progress. Do not wait while the store
    cannot write.
    """
    if engine.is_over:
        return True  # `answer` then raises `EngineClosed`
    return await engine.outbox.wait_briefly(number, READ_PATIENCE)


def stored(engine: Engine, record: LoadedRun) -> Stored:
    """Return the stored state of a run. Raise `StorageError` if the run is not stored yet."""
    stored_run = engine.store.load(record.run.run_id)
    if stored_run is None:
        why = engine.trouble or "the commit has not finished yet"
        raise StorageError(
            f"workflow {record.run.started.workflow_id!r} was started, but is not stored yet: {why}",
            status="UNAVAILABLE",
        )
    return stored_run


@contextlib.contextmanager
def holding(engine: Engine, record: LoadedRun) -> Iterator[None]:
    """Keep a run in memory within the `with` block."""
    engine.runs.hold(record)
    try:
        yield
    finally:
        engine.runs.release(record)


async def wait(
    engine: Engine, record: LoadedRun, bell: Bell, done: Callable[[], bool], limit: float | None
) -> None:
    """Wait until `done()` is true, for at most `limit` seconds and at most the duration of a long poll. Raise
    `EngineClosed` if the engine ends before.
    """
    if done():
        return
    check_moves(engine, record)
    loop = asyncio.get_running_loop()
    until = loop.time() + (LONG_POLL if limit is None else min(limit, LONG_POLL))
    engine.runs.hold(record)
    try:
        while not done() and (left := until - loop.time()) > 0:
            if engine.is_over:
                raise EngineClosed
            await bell.wait(left)
    finally:
        engine.runs.release(record)
    check_moves(engine, record)


async def wait_for_room(
    engine: Engine, record: LoadedRun, is_room: Callable[[], bool], rejection: str
) -> None:
    """Wait while a run has too many events or updates in progress. Raise `ServiceError` with the `rejection` message if
    the wait times out.
    """
    await wait(engine, record, record.changed, is_room, ROOM)
    if not is_room():
        raise ServiceError(rejection, status="RESOURCE_EXHAUSTED")


def state_of(activity: OpenActivity) -> str:
    """Return the state of a pending activity, in Temporal's terms."""
    if not activity.started_ns:
        return "PAUSED" if activity.paused else "SCHEDULED"
    if activity.cancel_requested_event_id:
        return "CANCEL_REQUESTED"
    return "PAUSE_REQUESTED" if activity.paused else "STARTED"


def last_heartbeat_ns(activity: OpenActivity) -> int:
    """Return the time of the current attempt's last heartbeat; 0 if there was none.

    The heartbeat timeout treats the start of an attempt as a heartbeat, but this function does not.
    """
    return activity.heartbeat_ns if activity.heartbeat_ns > activity.started_ns else 0


def done(engine: Engine, record: LoadedRun) -> PendingAnswer[s.Nothing]:
    """Return the empty answer to a request that changed this run."""
    return PendingAnswer(s.Nothing(), engine.writes.number_of(record))
