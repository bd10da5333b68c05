"""Schedules as authors write them and clients show them: frozen data, with Temporal's names. Pure.

Durations are timedeltas or numbers of seconds, times are datetimes with a time zone. `_schedules` turns them into
what travels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias, TypedDict, TypeVarTuple, Unpack, overload

from hourglass._contract.schedules import OverlapPolicy
from hourglass._contract.workflows import StartWorkflow
from hourglass._engine.options import Duration, RetryPolicy
from hourglass.converter import Payload, SearchAttributes
from hourglass.errors import UsageError

Ts = TypeVarTuple("Ts")

ScheduleOverlapPolicy = OverlapPolicy


# --- when ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScheduleRange:
    """Every `step`-th number from `start` to `end`, both included; `start` alone where no `end` is given."""

    start: int
    end: int = 0
    step: int = 1


Numbers: TypeAlias = int | ScheduleRange | Sequence[int | ScheduleRange]
"""Numbers of a calendar: one, a range, or several of them."""

ALL_DAYS_OF_MONTH = ScheduleRange(1, 31)
ALL_MONTHS = ScheduleRange(1, 12)
ALL_DAYS_OF_WEEK = ScheduleRange(0, 6)


@dataclass(frozen=True, kw_only=True)
class ScheduleCalendarSpec:
    """The times whose every part is among these numbers; by default midnight, every day.

    `ScheduleCalendarSpec(hour=9, minute=30, day_of_week=ScheduleRange(1, 5))` is half past nine, Monday to Friday. Sunday
    is 0. No year means any.
    """

    second: Numbers = 0
    minute: Numbers = 0
    hour: Numbers = 0
    day_of_month: Numbers = ALL_DAYS_OF_MONTH
    month: Numbers = ALL_MONTHS
    day_of_week: Numbers = ALL_DAYS_OF_WEEK
    year: Numbers = ()
    comment: str = ""


@dataclass(frozen=True)
class ScheduleIntervalSpec:
    """Every so often, counted from the epoch (midnight of 1 January 1970, UTC), shifted by an offset."""

    every: Duration
    offset: Duration = 0.0


@dataclass(frozen=True, kw_only=True)
class ScheduleSpec:
    """When a schedule acts: at each time that a calendar, an interval or a cron string names and no `skip` does.

    Cron strings have 5 fields (minute, hour, day of month, month, day of week), 6 (and a year) or 7 (seconds first, a
    year last), or are `@daily` and its like or `@every 90m`. A day of the month and a day of the week must both match.
    `ScheduleSpec()` names no time: such a schedule acts when it is triggered, and only then.
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


# --- what ---------------------------------------------------------------------------------------------------


class ScheduleStartOptions(TypedDict, total=False):
    """How a schedule starts its workflows. All are optional."""

    id: str
    """What the workflows' ids begin with; the time is appended. The schedule's own id by default."""
    task_queue: str
    """The queue whose workers run them; "default" by default."""
    execution_timeout: Duration | None
    """The longest time for all runs of one workflow together."""
    run_timeout: Duration | None
    """The longest time for one run."""
    task_timeout: Duration | None
    """How long a worker may take for one workflow task before another gets it."""
    retry_policy: RetryPolicy | None
    """Whether and how a failed workflow is run again."""
    memo: Mapping[str, Any]
    """Notes that are kept with each workflow; not searchable."""
    search_attributes: SearchAttributes
    """Values by which each workflow can be found; never encrypted."""
    static_summary: str
    """One line about each of them, for Temporal's UI."""
    static_details: str
    """More lines."""
    priority_key: int
    """The priority of each on its queue: lower is sooner, 0 is the default."""
    headers: Mapping[str, Payload]
    """Payloads beside the arguments, for interceptors of the workflows; not encoded by a codec."""


class ScheduleActionStartWorkflow:
    """What a schedule does: start a workflow, given as for `client.start_workflow`.

    In a description the workflow is its name, and the arguments are decoded as far as that is possible without types.
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
        """An action that exists: it goes back to the service as it came."""
        made = cls(action.workflow_type, *args)
        made.options = options
        made._known = (action, foreign)
        return made

    def __repr__(self) -> str:
        name = getattr(self.workflow, "__name__", None) or self.workflow
        return f"<ScheduleActionStartWorkflow {name} with {len(self.args)} arguments>"


@dataclass(frozen=True, kw_only=True)
class SchedulePolicy:
    """What a schedule does when things do not go as planned.

    `overlap` says what happens if a workflow is due while the one before still runs, `catchup_window` how late one may
    still be started after an outage (a year by default, at least 10 s). With `pause_on_failure` the schedule pauses
    after a workflow that failed or timed out.
    """

    overlap: OverlapPolicy = OverlapPolicy.SKIP
    catchup_window: Duration | None = None
    pause_on_failure: bool = False
    keep_original_workflow_id: bool = False


@dataclass(frozen=True, kw_only=True)
class ScheduleState:
    """Whether a schedule acts, and why not. `remaining_actions` counts down where `limited_actions` is set."""

    note: str = ""
    paused: bool = False
    limited_actions: bool = False
    remaining_actions: int = 0


@dataclass(frozen=True)
class Schedule:
    """What is done when."""

    action: ScheduleActionStartWorkflow
    spec: ScheduleSpec
    policy: SchedulePolicy = SchedulePolicy()
    state: ScheduleState = ScheduleState()


@dataclass(frozen=True, kw_only=True)
class ScheduleBackfill:
    """Act for the times between two times of the past, both included, as if they were now."""

    start_at: datetime
    end_at: datetime
    overlap: OverlapPolicy | None = None

    def __post_init__(self) -> None:
        if self.end_at < self.start_at:
            raise UsageError("a backfill ends before it starts: end_at lies before start_at")


# --- what a client is told ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScheduleActionExecutionStartWorkflow:
    """A workflow that a schedule started."""

    workflow_id: str
    first_execution_run_id: str


@dataclass(frozen=True, kw_only=True)
class ScheduleActionResult:
    """One time that a schedule acted: when it was to, when it did, and what it started."""

    scheduled_at: datetime | None
    started_at: datetime | None
    action: ScheduleActionExecutionStartWorkflow


@dataclass(frozen=True, kw_only=True)
class ScheduleInfo:
    """What a schedule has done and will do."""

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

    `memo` and `search_attributes` are decoded; an entry that cannot be decoded is left as its `Payload`.
    """

    id: str
    schedule: Schedule
    info: ScheduleInfo
    memo: Mapping[str, Any]
    search_attributes: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ScheduleListDescription:
    """A schedule, as a list shows it."""

    id: str
    workflow_type: str
    spec: ScheduleSpec
    paused: bool
    note: str
    recent_actions: tuple[ScheduleActionResult, ...]
    next_action_times: tuple[datetime, ...]
    memo: Mapping[str, Any]
    search_attributes: Mapping[str, Any]
