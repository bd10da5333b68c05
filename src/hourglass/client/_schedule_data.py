"""Schedules as authors write them and clients show them: frozen data with Temporal's names.

Durations are timedeltas or numbers of seconds, times are datetimes with a time zone. The operations are in `_schedules`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias, TypedDict, TypeVarTuple, Unpack, overload

from hourglass._contract import schedules as sc
from hourglass._contract.workflows import StartWorkflow
from hourglass._evaluator.options import (
    Duration,
    RetryPolicy,
)
from hourglass.converter import Payload, SearchAttributes
from hourglass.errors import UsageError

Ts = TypeVarTuple("Ts")

ScheduleOverlapPolicy = sc.OverlapPolicy


@dataclass(frozen=True)
class ScheduleRange:
    """Every `step`-th number from `start` to `end`, both included; only `start` if there is no `end`."""

    start: int
    end: int = 0
    step: int = 1


Numbers: TypeAlias = int | ScheduleRange | Sequence[int | ScheduleRange]
"""Numbers of a calendar: one, a range, or a sequence of both."""

ALL_DAYS_OF_MONTH = ScheduleRange(1, 31)
ALL_MONTHS = ScheduleRange(1, 12)
ALL_DAYS_OF_WEEK = ScheduleRange(0, 6)


@dataclass(frozen=True)
class ScheduleCalendarSpec:
    """The times that match these numbers in every field; by default midnight, every day.

    `ScheduleCalendarSpec(hour=9, minute=30, day_of_week=ScheduleRange(1, 5))` is half past nine, Monday to Friday. Sunday is 0.
    An empty year matches every year.
    """

    second: Numbers = 0
    minute: Numbers = 0
    hour: Numbers = 0
    day_of_month: Numbers = ALL_DAYS_OF_MONTH
    month: Numbers = ALL_MONTHS
    year: Numbers = ()
    day_of_week: Numbers = ALL_DAYS_OF_WEEK
    comment: str | None = ""


@dataclass(frozen=True)
class ScheduleIntervalSpec:
    """The multiples of `every` since the epoch (midnight of 1 January 1970, UTC), shifted by `offset`."""

    every: Duration
    offset: Duration | None = 0.0


@dataclass(frozen=True)
class ScheduleSpec:
    """The times at which a schedule acts: each time of a calendar, an interval or a cron string that no `skip` matches.

    Cron strings have 5 fields (minute, hour, day of month, month, day of week), 6 (and a year) or 7 (seconds first, a year last),
    or are `@daily` and similar shorthands or `@every 90m`. A day of the month and a day of the week must both match.
    `ScheduleSpec()` names no time: such a schedule only acts when it is triggered.
    """

    calendars: Sequence[ScheduleCalendarSpec] = ()
    intervals: Sequence[ScheduleIntervalSpec] = ()
    cron_expressions: Sequence[str] = ()
    skip: Sequence[ScheduleCalendarSpec] = ()
    start_at: datetime | None = None
    end_at: datetime | None = None
    jitter: Duration | None = None
    time_zone_name: str | None = None
    _time_zone_data: bytes = field(default=b"", repr=False)


class ScheduleStartOptions(TypedDict, total=False):
    """Options of the workflows that a schedule starts. All are optional."""

    id: str
    """The prefix of the workflows' ids, to which the time is appended; the schedule's own id by default."""
    task_queue: str
    """The task queue of the workflows; "default" by default."""
    execution_timeout: Duration | None
    """The timeout of all runs of one workflow together."""
    run_timeout: Duration | None
    """The timeout of one run."""
    task_timeout: Duration | None
    """The timeout of one workflow task, after which another worker receives it; values above 120 s count as 120 s."""
    retry_policy: RetryPolicy | None
    """The retry policy of a failed workflow; None: no retries."""
    memo: Mapping[str, Any]
    """Notes stored with each workflow; not searchable."""
    search_attributes: SearchAttributes
    """Values by which each workflow can be found; never encrypted."""
    static_summary: str
    """A one-line summary for Temporal's UI."""
    static_details: str
    """Further details for Temporal's UI."""
    priority_key: int
    """The priority in the task queue: lower is sooner, 0 is the default."""
    headers: Mapping[str, Payload]
    """Payloads for interceptors of the workflows, beside the arguments; not encoded by a codec."""


class ScheduleActionStartWorkflow:
    """The action of a schedule: start a workflow, named as for `client.start_workflow`.

    In a description the workflow is its name, and the arguments are decoded as far as possible without types.
    """

    workflow: object
    args: Sequence[Any]
    options: Mapping[str, Any]

    @overload
    def __init__(self, workflow: str, /, *args: Any, **options: Unpack[ScheduleStartOptions]) -> None: ...
    @overload
    def __init__(
        self, workflow: Callable[[*Ts], Any], /, *args: *Ts, **options: Unpack[ScheduleStartOptions]
    ) -> None: ...
    def __init__(self, workflow: Any, /, *args: Any, **options: Any) -> None:  # type: ignore[misc]
        self.workflow = workflow
        self.args = args
        self.options = options
        self._known: tuple[StartWorkflow, bytes] | None = None

    @classmethod
    def _from_service(
        cls, action: StartWorkflow, foreign: bytes, args: Sequence[Any], options: Mapping[str, Any]
    ) -> ScheduleActionStartWorkflow:
        """Return an action of an existing schedule, which an update sends back unchanged."""
        made = cls(action.workflow_type, *args)
        made.options = options
        made._known = (action, foreign)
        return made

    def __repr__(self) -> str:
        name = getattr(self.workflow, "__name__", None) or self.workflow
        return f"<ScheduleActionStartWorkflow {name} with {len(self.args)} arguments>"


@dataclass(frozen=True)
class SchedulePolicy:
    """The policies of a schedule.

    `overlap` is the action if a workflow is due while the previous one is running, `catchup_window` how late a workflow may be
    started after an outage (a year by default, at least 10 s). With `pause_on_failure` the schedule pauses after a workflow that
    failed or timed out.
    """

    overlap: ScheduleOverlapPolicy = ScheduleOverlapPolicy.SKIP
    catchup_window: Duration | None = None
    pause_on_failure: bool = False
    keep_original_workflow_id: bool = False


@dataclass(frozen=True)
class ScheduleState:
    """Whether a schedule is paused, and why. `remaining_actions` counts down if `limited_actions` is set."""

    note: str | None = ""
    paused: bool = False
    limited_actions: bool = False
    remaining_actions: int = 0


@dataclass(frozen=True)
class Schedule:
    """The definition of a schedule: its action, and its times."""

    action: ScheduleActionStartWorkflow
    spec: ScheduleSpec
    policy: SchedulePolicy = SchedulePolicy()
    state: ScheduleState = ScheduleState()


@dataclass(frozen=True)
class ScheduleBackfill:
    """A range of past times, both ends included, for which the schedule acts now."""

    start_at: datetime
    end_at: datetime
    overlap: ScheduleOverlapPolicy | None = None

    def __post_init__(self) -> None:
        if self.end_at < self.start_at:
            raise UsageError("a backfill ends before it starts: end_at lies before start_at")


@dataclass(frozen=True)
class ScheduleActionExecutionStartWorkflow:
    """A workflow that a schedule started."""

    workflow_id: str
    first_execution_run_id: str


@dataclass(frozen=True, kw_only=True)
class ScheduleActionResult:
    """An action that a schedule took: its scheduled time, its actual time, and the workflow it started."""

    scheduled_at: datetime | None
    started_at: datetime | None
    action: ScheduleActionExecutionStartWorkflow


@dataclass(frozen=True, kw_only=True)
class ScheduleInfo:
    """The past and the next actions of a schedule."""

    num_actions: int
    num_actions_missed_catchup_window: int
    num_actions_skipped_overlap: int
    num_actions_dropped: int
    num_actions_waiting: int
    running_actions: tuple[ScheduleActionExecutionStartWorkflow, ...]
    recent_actions: tuple[ScheduleActionResult, ...]
    next_action_times: tuple[datetime, ...]
    created_at: datetime | None
    last_updated_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class ScheduleDescription:
    """A schedule in detail.

    `memo` and `search_attributes` are decoded; an entry that cannot be decoded remains a `Payload`.
    """

    id: str
    schedule: Schedule
    info: ScheduleInfo
    memo: Mapping[str, Any]
    search_attributes: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ScheduleListDescription:
    """A schedule in a list."""

    id: str
    workflow_type: str
    spec: ScheduleSpec
    paused: bool
    note: str
    recent_actions: tuple[ScheduleActionResult, ...]
    next_action_times: tuple[datetime, ...]
    memo: Mapping[str, Any]
    search_attributes: Mapping[str, Any]
