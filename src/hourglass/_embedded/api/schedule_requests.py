"""Request handlers for schedules, and their table.

Must not know: the times at which a schedule acts. Errors have the wording of a Temporal server. Invariant: a request
that is repeated because its answer was lost is not carried out twice.
"""

from __future__ import annotations

from asyncio import sleep
from collections.abc import Callable

import msgspec

from hourglass._contract import schedules as sc
from hourglass._contract.service import Nothing
from hourglass._embedded.api.answering import MOST_LISTED, Handlers, PendingAnswer, is_written
from hourglass._embedded.clock import RealClock
from hourglass._embedded.engine import Engine
from hourglass._embedded.runs.starting import check_start
from hourglass._embedded.schedules.scheduler import SLICE, ScheduleListing
from hourglass._embedded.schedules.transitions import (
    ScheduleRecord,
    create,
    describe,
    may_act,
    patch,
    summarize,
    token_of,
    update,
    with_request,
)
from hourglass.errors import (
    ScheduleAlreadyExistsError,
    ScheduleNotFoundError,
    ServiceError,
    StorageError,
    UsageError,
)


async def create_schedule(engine: Engine, request: sc.CreateSchedule) -> PendingAnswer[Nothing]:
    if _is_repeated(engine, request):
        return _done(engine)
    if not request.schedule_id:
        raise ServiceError("a schedule needs an id", status="INVALID_ARGUMENT")
    if engine.limits.is_too_long(f"{_SCHEDULER}{request.schedule_id}"):
        raise ServiceError("ScheduleId length exceeds limit.", status="INVALID_ARGUMENT")
    _check(engine, request.schedule)
    flaw = engine.runs.attributes.flaw(request.search_attributes)
    if flaw is not None:
        raise ServiceError(flaw.message, status="INVALID_ARGUMENT")
    request = msgspec.structs.replace(request, schedule=await _settled(engine, request))
    # Another request may have created the schedule while its times were being computed.
    if _is_repeated(engine, request):
        return _done(engine)
    engine.runs.attributes.learn(request.search_attributes)
    _put(engine, lambda: create(request, engine.clock.now_ns()), request.request_id)
    return _done(engine)


async def describe_schedule(
    engine: Engine, request: sc.DescribeSchedule
) -> PendingAnswer[sc.ScheduleDetails]:
    await _look_ahead(engine, _find(engine, request.schedule_id))
    details = describe(_as_of_now(engine, _find(engine, request.schedule_id)))
    if await is_written(engine, engine.writes.newest):
        return PendingAnswer(details, engine.writes.newest)
    on_disk = engine.store.schedule(request.schedule_id)
    if on_disk is None:
        why = engine.trouble or "the commit has not finished yet"
        raise StorageError(
            f"schedule {request.schedule_id!r} was created, but is not stored yet: {why}",
            status="UNAVAILABLE",
        )
    return PendingAnswer(describe(_as_of_now(engine, on_disk)), 0)


async def update_schedule(engine: Engine, request: sc.UpdateSchedule) -> PendingAnswer[Nothing]:
    """Replace a schedule. Ignore a request with a stale conflict token, as a server does."""
    _find(engine, request.schedule_id)
    _check(engine, request.schedule)
    request = msgspec.structs.replace(request, schedule=await _settled(engine, request))
    record = _find(engine, request.schedule_id)
    stale = request.conflict_token and request.conflict_token != token_of(record)
    if not stale and request.request_id not in record.requests:
        _put(engine, lambda: update(record, request, engine.clock.now_ns()), request.request_id)
    return _done(engine)


async def patch_schedule(engine: Engine, request: sc.PatchSchedule) -> PendingAnswer[Nothing]:
    """Trigger, backfill, pause or unpause a schedule."""
    await _look_ahead(engine, _find(engine, request.schedule_id))
    record = _find(engine, request.schedule_id)
    if request.request_id not in record.requests:
        _put(engine, lambda: patch(record, request, engine.clock.now_ns()), request.request_id)
    return _done(engine)


async def delete_schedule(engine: Engine, request: sc.DeleteSchedule) -> PendingAnswer[Nothing]:
    _find(engine, request.schedule_id)
    engine.schedules.delete(request.schedule_id)
    return _done(engine)


async def list_schedules(engine: Engine, request: sc.ListSchedules) -> PendingAnswer[sc.SchedulePage]:
    size = min(max(1, request.page_size), MOST_LISTED)
    written = await is_written(engine, engine.writes.newest)
    find = engine.schedules.find if written else engine.store.schedule
    if written:
        page = await engine.schedules.listing.page(request.query, request.next_page_token, size)
    else:
        ids = [entry.schedule_id for entry in engine.store.schedules()]
        listing = ScheduleListing(dict.fromkeys(ids), find, keep=False)
        page = await listing.page(request.query, request.next_page_token, size)
    summaries: list[sc.ScheduleSummary] = []
    for place, entry in enumerate(page.workflows, 1):
        record = find(entry.run_id)
        if record is not None:  # otherwise it was deleted in the meantime
            await _look_ahead(engine, record)
            summaries.append(summarize(_as_of_now(engine, record)))
        if not place % SLICE and isinstance(engine.clock, RealClock):
            await sleep(0)
    number = engine.writes.newest if written else 0
    return PendingAnswer(sc.SchedulePage(tuple(summaries), page.next_page_token), number)


SCHEDULE_HANDLERS: Handlers = {
    sc.CreateSchedule: create_schedule,
    sc.DescribeSchedule: describe_schedule,
    sc.UpdateSchedule: update_schedule,
    sc.PatchSchedule: patch_schedule,
    sc.DeleteSchedule: delete_schedule,
    sc.ListSchedules: list_schedules,
}


_TIME = "-2006-01-02T15:04:05Z"
"""The suffix that a schedule appends to workflow ids. It reduces the maximum length of these ids."""
_SCHEDULER = "temporal-sys-scheduler:"
"""The prefix that a server puts before schedule ids. It reduces the maximum length of these ids."""


def _find(engine: Engine, schedule_id: str) -> ScheduleRecord:
    record = engine.schedules.get(schedule_id)
    if record is None:
        raise ScheduleNotFoundError(
            f"schedule {schedule_id!r} does not exist in namespace {engine.namespace!r}", status="NOT_FOUND"
        )
    return record


def _is_repeated(engine: Engine, request: sc.CreateSchedule) -> bool:
    """Return whether a request was carried out before. Raise `ScheduleAlreadyExistsError` if another request created
    the schedule.
    """
    existing = engine.schedules.get(request.schedule_id)
    if existing is None:
        return False
    if request.request_id and request.request_id in existing.requests:
        return True
    raise ScheduleAlreadyExistsError(
        f"schedule {request.schedule_id!r} already exists", schedule_id=request.schedule_id
    )


async def _settled(engine: Engine, request: sc.CreateSchedule | sc.UpdateSchedule) -> sc.EngineSchedule:
    """Return a schedule in the form in which it is stored. Long computations run in a thread."""
    try:
        return await engine.schedules.search.settle(
            request.schedule, request.schedule_id, engine.clock.now_ns()
        )
    except UsageError as error:
        raise ServiceError(str(error), status="INVALID_ARGUMENT") from error


async def _look_ahead(engine: Engine, record: ScheduleRecord) -> None:
    """Wait until the next times of a schedule have been computed."""
    seen_ns = _as_of_now(engine, record).seen_ns
    await engine.schedules.search.look_ahead(record.schedule.spec, record.schedule_id, seen_ns)


def _check(engine: Engine, schedule: sc.EngineSchedule) -> None:
    """Raise `ServiceError` if the workflow of a schedule could never be started."""
    action = schedule.action
    engine.limits.check(action)
    if not action.workflow_id or not action.workflow_type or not action.spec.task_queue:
        raise ServiceError(
            "the workflow of a schedule needs an id, a type and a task queue", status="INVALID_ARGUMENT"
        )
    if engine.limits.is_too_long(f"{action.workflow_id}{_TIME}"):
        raise ServiceError("WorkflowId exceeds maximum allowed length", status="INVALID_ARGUMENT")
    check_start(engine.runs, action)


def _put(engine: Engine, made: Callable[[], ScheduleRecord], request_id: str) -> None:
    try:
        engine.schedules.put(with_request(made(), request_id))
    except UsageError as error:
        raise ServiceError(str(error), status="INVALID_ARGUMENT") from error


def _as_of_now(engine: Engine, record: ScheduleRecord) -> ScheduleRecord:
    """Return the schedule with its next times counted from now. A schedule that may not act is never woken to update
    them.
    """
    if may_act(record):
        return record
    return msgspec.structs.replace(record, seen_ns=max(record.seen_ns, engine.clock.now_ns()))


def _done(engine: Engine) -> PendingAnswer[Nothing]:
    return PendingAnswer(Nothing(), engine.writes.newest)
