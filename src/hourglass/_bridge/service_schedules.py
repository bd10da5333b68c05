"""Schedules: what starts workflows again and again, as frozen data, and the requests about them.

The vocabulary is Temporal's. Times are nanoseconds since the epoch, durations seconds; 0, None or empty means unset.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgspec

from hourglass._bridge.service import Nothing, Request, StartWorkflow
from hourglass.converter import Payload


class OverlapPolicy(IntEnum):
    """What to do when a workflow is due while the one before still runs (Temporal's numbers)."""

    UNSPECIFIED = 0
    SKIP = 1
    BUFFER_ONE = 2
    BUFFER_ALL = 3
    CANCEL_OTHER = 4
    TERMINATE_OTHER = 5
    ALLOW_ALL = 6


class Range(msgspec.Struct, frozen=True, array_like=True):
    """Every `step`-th number from `start` to `end`, both included; an `end` below `start` means `start` alone."""

    start: int
    end: int = 0
    step: int = 1


class CalendarSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Times whose every part is in one of its ranges. Days of the week count from 0, Sunday; no year means any."""

    second: tuple[Range, ...] = (Range(0),)
    minute: tuple[Range, ...] = (Range(0),)
    hour: tuple[Range, ...] = (Range(0),)
    day_of_month: tuple[Range, ...] = (Range(1, 31),)
    month: tuple[Range, ...] = (Range(1, 12),)
    day_of_week: tuple[Range, ...] = (Range(0, 6),)
    year: tuple[Range, ...] = ()
    comment: str = ""


class IntervalSpec(msgspec.Struct, frozen=True):
    """Every so many seconds since the epoch, shifted by an offset."""

    every: float
    offset: float = 0.0


class ScheduleSpec(msgspec.Struct, frozen=True, kw_only=True):
    """When a schedule acts: at every time that a calendar, an interval or a cron string names and no `skip` does."""

    calendars: tuple[CalendarSpec, ...] = ()
    intervals: tuple[IntervalSpec, ...] = ()
    cron_expressions: tuple[str, ...] = ()
    skip: tuple[CalendarSpec, ...] = ()
    start_at_ns: int = 0
    end_at_ns: int = 0
    jitter: float = 0.0
    time_zone: str = ""
    time_zone_data: bytes = b""


class SchedulePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What a schedule does when things do not go as planned. 0 seconds of catch-up means the engine's default, a year."""

    overlap: OverlapPolicy = OverlapPolicy.SKIP
    catchup_window: float = 0.0
    pause_on_failure: bool = False
    keep_original_workflow_id: bool = False


class ScheduleState(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a schedule acts. `remaining_actions` counts where `limited_actions` is set."""

    note: str = ""
    paused: bool = False
    limited_actions: bool = False
    remaining_actions: int = 0


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule: its action is to start a workflow, whose id gets the time appended.

    `foreign` is what the engine knows of the action and we have no words for: kept, so that a schedule that another
    SDK made loses nothing when it is updated.
    """

    action: StartWorkflow
    spec: ScheduleSpec = ScheduleSpec()
    policy: SchedulePolicy = SchedulePolicy()
    state: ScheduleState = ScheduleState()
    foreign: bytes = b""


class ScheduleAction(msgspec.Struct, frozen=True, kw_only=True):
    """One time that a schedule acted."""

    schedule_time_ns: int
    actual_time_ns: int = 0
    workflow_id: str = ""
    run_id: str = ""


class ScheduleInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a schedule has done and will do."""

    action_count: int = 0
    missed_catchup: int = 0
    skipped_overlap: int = 0
    buffer_dropped: int = 0
    buffer_size: int = 0
    running: tuple[tuple[str, str], ...] = ()
    recent_actions: tuple[ScheduleAction, ...] = ()
    next_times_ns: tuple[int, ...] = ()
    create_time_ns: int = 0
    update_time_ns: int = 0


class ScheduleDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule in detail. `conflict_token` guards an update against others."""

    schedule_id: str
    schedule: Schedule
    info: ScheduleInfo = ScheduleInfo()
    memo: dict[str, Payload] = {}
    search_attributes: dict[str, Payload] = {}
    conflict_token: bytes = b""
    notice: str = ""


class ScheduleSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a list says of a schedule."""

    schedule_id: str
    workflow_type: str = ""
    paused: bool = False
    note: str = ""
    spec: ScheduleSpec = ScheduleSpec()
    recent_actions: tuple[ScheduleAction, ...] = ()
    next_times_ns: tuple[int, ...] = ()
    memo: dict[str, Payload] = {}
    search_attributes: dict[str, Payload] = {}


class SchedulePage(msgspec.Struct, frozen=True):
    """Some schedules, and where to go on (empty at the end)."""

    schedules: tuple[ScheduleSummary, ...]
    next_page_token: bytes = b""
    notice: str = ""


class Backfill(msgspec.Struct, frozen=True, kw_only=True):
    """Act for the times of a stretch of the past, as if they were now."""

    start_ns: int
    end_ns: int
    overlap: OverlapPolicy = OverlapPolicy.UNSPECIFIED


class CreateSchedule(Request[Nothing], frozen=True, kw_only=True):
    """Create a schedule. Raises `ScheduleAlreadyExistsError` where its id is taken."""

    schedule_id: str
    schedule: Schedule
    request_id: str
    identity: str = ""
    trigger_immediately: bool = False
    backfill: tuple[Backfill, ...] = ()
    memo: dict[str, Payload] = {}
    search_attributes: dict[str, Payload] = {}


class DescribeSchedule(Request[ScheduleDescription], frozen=True, kw_only=True):
    """Look at a schedule."""

    schedule_id: str


class UpdateSchedule(Request[Nothing], frozen=True, kw_only=True):
    """Replace a schedule. With a `conflict_token`: only if nobody else has since."""

    schedule_id: str
    schedule: Schedule
    request_id: str
    conflict_token: bytes = b""
    identity: str = ""


class PatchSchedule(Request[Nothing], frozen=True, kw_only=True):
    """Trigger, backfill, pause or unpause a schedule. `pause` and `unpause` are the notes to leave."""

    schedule_id: str
    request_id: str
    trigger: OverlapPolicy | None = None
    backfill: tuple[Backfill, ...] = ()
    pause: str | None = None
    unpause: str | None = None
    identity: str = ""


class DeleteSchedule(Request[Nothing], frozen=True, kw_only=True):
    """Delete a schedule; workflows that it started go on."""

    schedule_id: str
    identity: str = ""


class ListSchedules(Request[SchedulePage], frozen=True, kw_only=True):
    """List schedules."""

    query: str = ""
    page_size: int = 100
    next_page_token: bytes = b""


SCHEDULE_REQUESTS: tuple[type[Request[Any]], ...] = (
    CreateSchedule,
    DescribeSchedule,
    UpdateSchedule,
    PatchSchedule,
    DeleteSchedule,
    ListSchedules,
)
