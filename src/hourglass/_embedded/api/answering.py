"""What all handlers of requests share: the run that is meant, the answer, the wait for something to happen.

Must not know: any request, but that a query waits for a worker. Long polls end after `LONG_POLL` seconds of real
time, whatever the engine's clock says: they are about patience, not about workflows. Invariants: an answer names the
change that it rests on; a request that waits holds on to the record.
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
    ServiceError,
    ServiceTimeoutError,
    StorageError,
    WorkflowNotFoundError,
)

LONG_POLL = 20.0
ROOM = 10.0
"""How long a caller is held back while a run has too much in flight, in seconds: so long a client of a server tries.
"""

READ_PATIENCE = 2.0
"""How many seconds a question waits for a commit: then it is answered by what the disk has."""

MOST_LISTED = 1000
"""So many are on a page of a list at most, as on a server."""

A = TypeVar("A")


class PendingAnswer(NamedTuple, Generic[A]):
    """An answer, and the number of the change that it rests on."""

    value: A
    rests_on: int


Handlers: TypeAlias = dict[type[s.Request[Any]], Callable[[Engine, Any], Awaitable[PendingAnswer[Any]]]]
"""The handler of each request."""


def too_late(request: s.Request[Any], limit: float) -> ServiceTimeoutError:
    """The error for a request that was not answered in time."""
    hint = ""
    if isinstance(request, QueryWorkflow):
        hint = ". A query is answered by a worker: does one run on the workflow's task queue?"
    return ServiceTimeoutError(
        f"{type(request).__name__} was not answered within {limit:g} s{hint}", status="DEADLINE_EXCEEDED"
    )


def find(engine: Engine, workflow_id: str, run_id: str = "", first_run_id: str = "") -> LoadedRun:
    """The run that a request names; raises `WorkflowNotFoundError`."""
    record = _record(engine, workflow_id, run_id)
    if record is None or record.run.is_standalone_activity:
        raise WorkflowNotFoundError(f"workflow not found for ID: {workflow_id}", status="NOT_FOUND")
    if first_run_id and record.run.started.first_run_id != first_run_id:
        raise WorkflowNotFoundError(
            f"workflow not found for ID: {workflow_id} with first run {first_run_id}", status="NOT_FOUND"
        )
    return record


def find_standalone(engine: Engine, activity_id: str, run_id: str = "") -> LoadedRun:
    """The run of an activity without a workflow; raises `ActivityNotFoundError`."""
    record = _record(engine, PREFIX + activity_id, run_id)
    if record is None:
        raise ActivityNotFoundError(f"activity not found for ID: {activity_id}", status="NOT_FOUND")
    return record


def _record(engine: Engine, workflow_id: str, run_id: str) -> LoadedRun | None:
    record = engine.record(run_id) if run_id else engine.current(workflow_id)
    return record if record is not None and record.run.started.workflow_id == workflow_id else None


def refusal_rests_on(engine: Engine, request: s.Request[Any]) -> int:
    """The change that the refusal of a request may rest on: any of the workflow that it is about, which is in memory
    unless all of it is durable; or any at all, where it is about more than one workflow.
    """
    about = getattr(request, "start", request)
    workflow_id: str = getattr(about, "workflow_id", "")
    if not workflow_id or getattr(about, "versioning_override", None) is not None:
        return engine.writes.newest
    return engine.runs.newest_of(workflow_id, getattr(about, "run_id", ""))


def activity_of(record: LoadedRun, activity_id: str) -> OpenActivity | None:
    """The pending activity of this id."""
    return next(
        (each for each in record.run.activities.values() if each.scheduled.activity_id == activity_id), None
    )


def pending_activity(record: LoadedRun, activity_id: str) -> OpenActivity:
    """The same; raises `ServiceError` where there is none."""
    found = activity_of(record, activity_id)
    if found is None:
        raise ServiceError(
            "Can't find pending activity with such ID. Invalid activityID or activity already completed",
            status="NOT_FOUND",
        )
    return found


def check_open(record: LoadedRun) -> None:
    """Raise `WorkflowNotFoundError` for a run that has closed."""
    if not record.run.is_open:
        raise WorkflowNotFoundError("workflow execution already completed", status="NOT_FOUND")


def check_moves(engine: Engine, record: LoadedRun) -> None:
    """Raise `StorageError` for a run that is parked: when it goes on is not known."""
    run_id = record.run.run_id
    why = engine.runs.parked.get(run_id)
    if why is not None and (record.run.is_open or engine.runs.in_memory(run_id) is not record):
        raise StorageError(f"this run is parked until the file is opened anew: {why}", status=why.status)


async def answered(engine: Engine, number: int, value: A, from_disk: Callable[[], A]) -> PendingAnswer[A]:
    """What was read in memory, if the change that it rests on is durable, or will soon be; else what the disk has."""
    if await is_written(engine, number):
        return PendingAnswer(value, number)
    return PendingAnswer(from_disk(), 0)


async def as_known(engine: Engine, value: A) -> PendingAnswer[A]:
    """What this process knows in memory: it is given after a short wait also where nothing can be written."""
    await is_written(engine, engine.writes.newest)
    return PendingAnswer(value, 0)


async def is_written(engine: Engine, number: int) -> bool:
    """Return whether a change is durable, after a short wait for a commit in progress; there is no wait while the store
    cannot write.
    """
    if engine.is_over:
        return True  # the engine itself reports that it has stopped
    return await engine.outbox.wait_briefly(number, READ_PATIENCE)


def stored(engine: Engine, record: LoadedRun) -> Stored:
    """A run as the disk has it; raises `StorageError` if it has not got there yet."""
    found = engine.store.load(record.run.run_id)
    if found is None:
        why = engine.trouble or "the commit takes long"
        raise StorageError(
            f"workflow {record.run.started.workflow_id!r} was started, and is not on the disk yet: {why}",
            status="UNAVAILABLE",
        )
    return found


@contextlib.contextmanager
def holding(engine: Engine, record: LoadedRun) -> Iterator[None]:
    """Hold on to a record."""
    engine.runs.hold(record)
    try:
        yield
    finally:
        engine.runs.let_go(record)


async def wait(
    engine: Engine, record: LoadedRun, bell: Bell, done: Callable[[], bool], limit: float | None
) -> None:
    """Wait until it is done, or until patience ends. Of an engine that has failed meanwhile the connection tells,
    when it waits for the answer to be durable.
    """
    if done() or engine.is_over:
        return
    check_moves(engine, record)
    loop = asyncio.get_running_loop()
    until = loop.time() + (LONG_POLL if limit is None else min(limit, LONG_POLL))
    engine.runs.hold(record)
    try:
        while not done() and not engine.is_over and (left := until - loop.time()) > 0:
            await bell.wait(left)
    finally:
        engine.runs.let_go(record)
    check_moves(engine, record)


async def wait_for_room(engine: Engine, record: LoadedRun, is_room: Callable[[], bool], refusal: str) -> None:
    """Hold a caller back while a run has too much in flight; raises the refusal if that does not end."""
    await wait(engine, record, record.changed, is_room, ROOM)
    if not is_room() or engine.is_over:
        raise ServiceError(refusal, status="RESOURCE_EXHAUSTED")


def state_of(activity: OpenActivity) -> str:
    """How an open activity stands, in Temporal's words."""
    if not activity.started_ns:
        return "PAUSED" if activity.paused else "SCHEDULED"
    if activity.cancel_requested_event_id:
        return "CANCEL_REQUESTED"
    return "PAUSE_REQUESTED" if activity.paused else "STARTED"


def heard_of_ns(activity: OpenActivity) -> int:
    """When the attempt's last heartbeat came; 0: none has. An attempt that has begun counts as heard of, for its timeout; here
    only a heartbeat does.
    """
    return activity.heartbeat_ns if activity.heartbeat_ns > activity.started_ns else 0


def done(engine: Engine, record: LoadedRun) -> PendingAnswer[s.Nothing]:
    """The answer to a request that changed this run and has nothing to tell."""
    return PendingAnswer(s.Nothing(), engine.writes.number_of(record))
