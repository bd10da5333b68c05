"""A schedule as the embedded engine keeps it: one frozen record, and what clients are shown of it. Pure."""

from __future__ import annotations

from functools import lru_cache
from itertools import islice

import msgspec

from hourglass._contract.schedules import (
    Backfill,
    OverlapPolicy,
    Schedule,
    ScheduleAction,
    ScheduleDescription,
    ScheduleInfo,
    ScheduleSpec,
    ScheduleSummary,
    canonical,
)
from hourglass._embedded.clock import storable
from hourglass._embedded.rules.schedule_overlaps import Due, Running
from hourglass._embedded.rules.schedule_times import Timetable
from hourglass._engine.events import Payloads
from hourglass.converter import Failure, Payload

YEAR = 365 * 86400.0
SHORTEST_CATCHUP = 10.0
RECENT, UPCOMING = 10, 10
REMEMBERED = 32
"""So many requests are remembered: one that is sent again because its answer was lost is not carried out twice."""

RECENT_LISTED, UPCOMING_LISTED = 5, 5


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a schedule. `seen_ns` is up to when its times are dealt with; `schedule.spec` is canonical.

    The result of the last workflow that completed, and the failure if one has failed since, are given to the next.
    """

    schedule_id: str
    schedule: Schedule
    seen_ns: int
    create_time_ns: int
    update_time_ns: int = 0
    token: int = 1
    waiting: tuple[Due, ...] = ()
    backfills: tuple[Backfill, ...] = ()
    running: tuple[Running, ...] = ()
    recent: tuple[ScheduleAction, ...] = ()
    action_count: int = 0
    missed_catchup: int = 0
    skipped_overlap: int = 0
    dropped: int = 0
    last_result: Payloads = ()
    last_failure: Failure | None = None
    requests: tuple[str, ...] = ()
    memo: dict[str, Payload] = {}
    search_attributes: dict[str, Payload] = {}


def remembering(record: Record, request_id: str) -> Record:
    """A record that knows that this request was carried out."""
    if not request_id:
        return record
    return msgspec.structs.replace(record, requests=(*record.requests, request_id)[-REMEMBERED:])


def token_of(record: Record) -> bytes:
    """What an update of this version of the schedule must name."""
    return record.token.to_bytes(8)


def describe(record: Record) -> ScheduleDescription:
    """A schedule in detail."""
    return ScheduleDescription(
        schedule_id=record.schedule_id,
        schedule=record.schedule,
        info=ScheduleInfo(
            action_count=record.action_count,
            missed_catchup=record.missed_catchup,
            skipped_overlap=record.skipped_overlap,
            buffer_dropped=record.dropped,
            buffer_size=len(record.waiting),
            running=record.running,
            recent_actions=record.recent,
            next_times_ns=_upcoming(record, UPCOMING),
            create_time_ns=record.create_time_ns,
            update_time_ns=record.update_time_ns,
        ),
        memo=record.memo,
        search_attributes=record.search_attributes,
        conflict_token=token_of(record),
    )


def summarize(record: Record) -> ScheduleSummary:
    """A schedule as a list shows it."""
    return ScheduleSummary(
        schedule_id=record.schedule_id,
        workflow_type=record.schedule.action.workflow_type,
        paused=record.schedule.state.paused,
        note=record.schedule.state.note,
        spec=record.schedule.spec,
        recent_actions=record.recent[-RECENT_LISTED:],
        next_times_ns=_upcoming(record, UPCOMING_LISTED),
        memo=record.memo,
        search_attributes=record.search_attributes,
    )


@lru_cache(maxsize=256)
def timetable(spec: ScheduleSpec, schedule_id: str) -> Timetable:
    """The times of a schedule, compiled once."""
    return Timetable(spec, schedule_id)


def _upcoming(record: Record, count: int) -> tuple[int, ...]:
    table = timetable(record.schedule.spec, record.schedule_id)
    return tuple(moment.due_ns for moment in islice(table.moments(record.seen_ns), count))


def settled(schedule: Schedule) -> Schedule:
    """A schedule with its defaults written out, as servers show it."""
    policy = schedule.policy
    window = max(policy.catchup_window, SHORTEST_CATCHUP) if policy.catchup_window else YEAR
    overlap = policy.overlap or OverlapPolicy.SKIP
    return msgspec.structs.replace(
        schedule,
        spec=canonical(storable_spec(schedule.spec)),
        policy=msgspec.structs.replace(policy, overlap=overlap, catchup_window=window),
    )


def storable_spec(spec: ScheduleSpec) -> ScheduleSpec:
    """A spec whose first and last times can be stored: what lies beyond the latest time never comes."""
    return msgspec.structs.replace(
        spec, start_at_ns=storable(spec.start_at_ns), end_at_ns=storable(spec.end_at_ns)
    )


def storable_backfill(backfill: Backfill) -> Backfill:
    """The same for a backfill."""
    return msgspec.structs.replace(
        backfill, start_ns=storable(backfill.start_ns), end_ns=storable(backfill.end_ns)
    )
