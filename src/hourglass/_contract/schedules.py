"""Schedules as engines receive them: data and requests.

The vocabulary is Temporal's; times are nanoseconds since the epoch, durations seconds; 0, None or empty means unset. Authors use
the classes of `client._schedule_data`, which accept dates, timedeltas and single numbers.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar

import msgspec

from hourglass._contract.service import Effect, Nothing, ReadAnswer, Request
from hourglass._contract.workflows import StartWorkflow
from hourglass.converter import Payload


class OverlapPolicy(IntEnum):
    """The action if a workflow is due while the previous one is running (Temporal's numbers)."""

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
    """Times that match a range in every field. Days of the week count from 0, Sunday; an empty year matches every year."""

    second: tuple[Range, ...] = (Range(0),)
    minute: tuple[Range, ...] = (Range(0),)
    hour: tuple[Range, ...] = (Range(0),)
    day_of_month: tuple[Range, ...] = (Range(1, 31),)
    month: tuple[Range, ...] = (Range(1, 12),)
    day_of_week: tuple[Range, ...] = (Range(0, 6),)
    year: tuple[Range, ...] = ()
    comment: str = ""


class IntervalSpec(msgspec.Struct, frozen=True):
    """Every `every` seconds since the epoch, shifted by `offset`."""

    every: float
    offset: float = 0.0


class EngineScheduleSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The times at which a schedule acts: each time of a calendar, an interval or a cron string that no `skip` matches."""

    calendars: tuple[CalendarSpec, ...] = ()
    intervals: tuple[IntervalSpec, ...] = ()
    cron_expressions: tuple[str, ...] = ()
    skip: tuple[CalendarSpec, ...] = ()
    start_at_ns: int = 0
    end_at_ns: int = 0
    jitter: float = 0.0
    time_zone: str = ""
    time_zone_data: bytes = b""


class EngineSchedulePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The policies of a schedule. A catch-up window of 0 means the engine's default, a year."""

    overlap: OverlapPolicy = OverlapPolicy.SKIP
    catchup_window: float = 0.0
    pause_on_failure: bool = False
    keep_original_workflow_id: bool = False


class EngineScheduleState(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a schedule is paused, and its remaining actions if `limited_actions` is set."""

    note: str = ""
    paused: bool = False
    limited_actions: bool = False
    remaining_actions: int = 0


class EngineSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule. Its action starts a workflow, whose id gets the time appended.

    `foreign` holds those parts of the action that this module has no fields for, so that updating a schedule of another SDK loses
    nothing.
    """

    action: StartWorkflow
    spec: EngineScheduleSpec = EngineScheduleSpec()
    policy: EngineSchedulePolicy = EngineSchedulePolicy()
    state: EngineScheduleState = EngineScheduleState()
    foreign: bytes = b""


class ScheduleAction(msgspec.Struct, frozen=True, kw_only=True):
    """One action that a schedule took."""

    schedule_time_ns: int
    actual_time_ns: int = 0
    workflow_id: str = ""
    run_id: str = ""


class EngineScheduleInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The past and the next actions of a schedule."""

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


class ScheduleDetails(ReadAnswer, frozen=True, kw_only=True):
    """A schedule in detail. `conflict_token` protects an update against concurrent updates."""

    schedule_id: str
    schedule: EngineSchedule
    info: EngineScheduleInfo = EngineScheduleInfo()
    memo: dict[str, Payload] = {}
    search_attributes: dict[str, Payload] = {}
    conflict_token: bytes = b""


class ScheduleSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule in a list."""

    schedule_id: str
    workflow_type: str = ""
    paused: bool = False
    note: str = ""
    spec: EngineScheduleSpec = EngineScheduleSpec()
    recent_actions: tuple[ScheduleAction, ...] = ()
    next_times_ns: tuple[int, ...] = ()
    memo: dict[str, Payload] = {}
    search_attributes: dict[str, Payload] = {}


class SchedulePage(ReadAnswer, frozen=True):
    """A page of a list of schedules; `next_page_token` is empty at the end."""

    schedules: tuple[ScheduleSummary, ...]
    next_page_token: bytes = b""


class Backfill(msgspec.Struct, frozen=True, kw_only=True):
    """A range of past times for which the schedule acts now."""

    start_ns: int
    end_ns: int
    overlap: OverlapPolicy = OverlapPolicy.UNSPECIFIED


class CreateSchedule(Request[Nothing], frozen=True, kw_only=True):
    """Create a schedule. Raises `ScheduleAlreadyExistsError` if its id is in use."""

    effect: ClassVar[Effect] = Effect.CHANGE
    schedule_id: str
    schedule: EngineSchedule
    request_id: str
    identity: str = ""
    trigger_immediately: bool = False
    backfill: tuple[Backfill, ...] = ()
    memo: dict[str, Payload] = {}
    search_attributes: dict[str, Payload] = {}


class DescribeSchedule(Request[ScheduleDetails], frozen=True, kw_only=True):
    """Return the description of a schedule."""

    effect: ClassVar[Effect] = Effect.READ
    schedule_id: str


class UpdateSchedule(Request[Nothing], frozen=True, kw_only=True):
    """Replace a schedule. With a `conflict_token`: only if no other client has replaced it since."""

    effect: ClassVar[Effect] = Effect.CHANGE
    schedule_id: str
    schedule: EngineSchedule
    request_id: str
    conflict_token: bytes = b""
    identity: str = ""


class PatchSchedule(Request[Nothing], frozen=True, kw_only=True):
    """Trigger, backfill, pause or unpause a schedule. `pause` and `unpause` are the notes to leave."""

    effect: ClassVar[Effect] = Effect.CHANGE
    schedule_id: str
    request_id: str
    trigger: OverlapPolicy | None = None
    backfill: tuple[Backfill, ...] = ()
    pause: str | None = None
    unpause: str | None = None
    identity: str = ""


class DeleteSchedule(Request[Nothing], frozen=True, kw_only=True):
    """Delete a schedule. Workflows that it started continue."""

    effect: ClassVar[Effect] = Effect.CHANGE
    schedule_id: str
    identity: str = ""


class ListSchedules(Request[SchedulePage], frozen=True, kw_only=True):
    """List schedules."""

    effect: ClassVar[Effect] = Effect.READ
    query: str = ""
    page_size: int = 100
    next_page_token: bytes = b""
