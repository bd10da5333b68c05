"""Requests about schedules, and their answers.

Times, policies and state are the classes of `schedule_specs`. Authors use the same classes. Only the action has two
forms: one with values in the client, and one with payloads here.
"""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

import msgspec

from hourglass._contract.schedule_specs import (
    ScheduleActionResult,
    ScheduleBackfill,
    ScheduleInfo,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleState,
)
from hourglass._contract.service import Effect, Nothing, ReadAnswer, Request
from hourglass._contract.workflows import StartWorkflow
from hourglass.converter import Payload


class EngineSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule. Its action starts a workflow whose id has the scheduled time appended.

    `foreign` contains the parts of the action that this module has no fields for. An update of a schedule that another
    SDK created therefore preserves them.
    """

    action: StartWorkflow
    spec: ScheduleSpec = ScheduleSpec()
    policy: SchedulePolicy = SchedulePolicy()
    state: ScheduleState = ScheduleState()
    foreign: bytes = b""


class ScheduleDetails(ReadAnswer, frozen=True, kw_only=True):
    """The details of a schedule. `conflict_token` protects an update against concurrent updates."""

    schedule_id: str
    schedule: EngineSchedule
    info: ScheduleInfo = ScheduleInfo()
    memo: dict[str, Payload] = {}
    search_attributes: dict[str, Payload] = {}
    conflict_token: bytes = b""


class ScheduleSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as a list entry."""

    schedule_id: str
    workflow_type: str = ""
    paused: bool = False
    note: str = ""
    spec: ScheduleSpec = ScheduleSpec()
    recent_actions: tuple[ScheduleActionResult, ...] = ()
    next_action_times: tuple[datetime, ...] = ()
    memo: dict[str, Payload] = {}
    search_attributes: dict[str, Payload] = {}


class SchedulePage(ReadAnswer, frozen=True):
    """A page of a list of schedules. `next_page_token` is empty on the last page."""

    schedules: tuple[ScheduleSummary, ...]
    next_page_token: bytes = b""


class CreateSchedule(Request[Nothing], frozen=True, kw_only=True):
    """Create a schedule. Raises `ScheduleAlreadyExistsError` if the schedule id is in use."""

    effect: ClassVar[Effect] = Effect.CHANGE
    schedule_id: str
    schedule: EngineSchedule
    request_id: str
    identity: str = ""
    trigger_immediately: bool = False
    backfill: tuple[ScheduleBackfill, ...] = ()
    memo: dict[str, Payload] = {}
    search_attributes: dict[str, Payload] = {}


class DescribeSchedule(Request[ScheduleDetails], frozen=True, kw_only=True):
    """Return the description of a schedule."""

    effect: ClassVar[Effect] = Effect.READ
    schedule_id: str


class UpdateSchedule(Request[Nothing], frozen=True, kw_only=True):
    """Replace a schedule. With a `conflict_token`, only if no other client has replaced the schedule in the meantime."""

    effect: ClassVar[Effect] = Effect.CHANGE
    schedule_id: str
    schedule: EngineSchedule
    request_id: str
    conflict_token: bytes = b""
    identity: str = ""


class PatchSchedule(Request[Nothing], frozen=True, kw_only=True):
    """Trigger, backfill, pause or unpause a schedule. `pause` and `unpause` are the notes to record."""

    effect: ClassVar[Effect] = Effect.CHANGE
    schedule_id: str
    request_id: str
    trigger: ScheduleOverlapPolicy | None = None
    backfill: tuple[ScheduleBackfill, ...] = ()
    pause: str | None = None
    unpause: str | None = None
    identity: str = ""


class DeleteSchedule(Request[Nothing], frozen=True, kw_only=True):
    """Delete a schedule. Workflows that the schedule has started keep running."""

    effect: ClassVar[Effect] = Effect.CHANGE
    schedule_id: str
    identity: str = ""


class ListSchedules(Request[SchedulePage], frozen=True, kw_only=True):
    """List schedules."""

    effect: ClassVar[Effect] = Effect.READ
    query: str = ""
    page_size: int = 100
    next_page_token: bytes = b""
