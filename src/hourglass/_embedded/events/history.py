"""History: what happened to a run, as frozen data. Kinds, names and attributes are Temporal's.

The events that tell of other runs are in `history_others`, those of updates in `history_updates`. Must not
know: JSON (see `history_json`), decisions, clocks. Invariants: event ids count from 1 without a gap; an event is
never changed; links (`scheduled_event_id` and the like) point backwards. Durations are seconds, times nanoseconds
since the epoch; 0 or empty means unset.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from hourglass._embedded.events.history_base import Attributes as Attributes
from hourglass._embedded.events.history_base import Fields as Fields
from hourglass._embedded.events.history_local import LOCAL_KINDS
from hourglass._embedded.events.history_others import OTHER_KINDS
from hourglass._embedded.events.history_updates import UPDATE_KINDS
from hourglass._engine.commands import TaskFailureCause
from hourglass._engine.events import Payloads, RetryRule
from hourglass._engine.versions import (
    ContinueAsNewVersioningBehavior,
    VersioningBehavior,
    VersioningOverride,
    WorkerDeploymentVersion,
)
from hourglass.converter import Failure, Payload
from hourglass.errors import RetryState, TimeoutType

UNHANDLED_COMMAND = 1
"""Temporal's number for a task that tried to close a run while something new had arrived."""

FORCE_CLOSE_COMMAND = 17
"""Temporal's number for a task that is taken back because too much has arrived meanwhile."""

BAD_SCHEDULE_ACTIVITY = 2
"""Temporal's number for a task that asked for an activity that cannot be."""

BAD_REQUEST_CANCEL_EXTERNAL = 10
"""Temporal's number for a task that started a child and asked to cancel it at once, or named no workflow that can be."""

BAD_CONTINUE_AS_NEW = 11
"""Temporal's number for a task that would continue as what cannot be."""

BAD_SIGNAL = 15
"""Temporal's number for a task that sent a signal to what cannot be."""

BAD_START_CHILD = 16
"""Temporal's number for a task that asked for a child that cannot be."""

BAD_SEARCH_ATTRIBUTES = 23
"""Temporal's number for a task that set search attributes that cannot be."""

PENDING_CHILDREN_LIMIT_EXCEEDED = 26
"""Temporal's number for a task that asked for more children than may be pending at once."""

PENDING_SIGNALS_LIMIT_EXCEEDED = 28
"""Temporal's number for a task that sent more signals than may be on their way at once."""

PENDING_CANCELS_LIMIT_EXCEEDED = 29
"""Temporal's number for a task that asked more workflows to cancel than may be asked at once."""

PENDING_ACTIVITIES_LIMIT_EXCEEDED = 27
"""Temporal's number for a task that asked for more activities than may be pending at once."""

SCHEDULE_ACTIVITY_DUPLICATE_ID = 22
"""Temporal's number for a task that gave an activity the id of one that is pending."""

PAYLOADS_TOO_LARGE = 37
"""Temporal's number for a task with a command whose values are larger than one may be."""

RESET_WORKFLOW = 20
"""Temporal's number for the task at which a reset run leaves the one that it was reset from."""

FEATURE_DISABLED = 35
"""Temporal's number for a task with a command that the engine cannot carry out."""

PATCHES = "TemporalChangeVersion"
"""The search attribute under which Temporal keeps the patches of a run."""


class Initiator(IntEnum):
    """Why a run follows another (Temporal's numbers)."""

    NONE = 0
    WORKFLOW = 1
    RETRY = 2
    CRON_SCHEDULE = 3


class WorkflowExecutionStarted(Attributes, frozen=True, kw_only=True):
    """The first event of every history."""

    workflow_id: str
    workflow_type: str
    task_queue: str
    original_run_id: str
    first_run_id: str
    arguments: Payloads = ()
    execution_timeout: float = 0.0
    run_timeout: float = 0.0
    task_timeout: float = 10.0
    expiration_ns: int = 0
    identity: str = ""
    attempt: int = 1
    retry_policy: RetryRule | None = None
    cron_schedule: str = ""
    memo: Fields = {}
    search_attributes: Fields = {}
    headers: Fields = {}
    continued_run_id: str = ""
    initiator: Initiator = Initiator.NONE
    continued_failure: Failure | None = None
    last_completion_result: Payloads = ()
    first_task_backoff: float = 0.0
    priority_key: int = 0
    static_summary: Payload | None = None
    static_details: Payload | None = None
    parent_namespace: str = ""
    parent_workflow_id: str = ""
    parent_run_id: str = ""
    parent_initiated_event_id: int = 0
    root_workflow_id: str = ""
    root_run_id: str = ""
    versioning_override: VersioningOverride | None = None
    inherited_pinned_version: WorkerDeploymentVersion | None = None
    declined_version: WorkerDeploymentVersion | None = None
    """The version that the run before could have moved to when it continued as this one, and did not."""


class WorkflowTaskScheduled(Attributes, frozen=True, kw_only=True):
    """A worker is wanted."""

    task_queue: str
    task_timeout: float
    attempt: int = 1


class WorkflowTaskStarted(Attributes, frozen=True, kw_only=True):
    """A worker took the task."""

    scheduled_event_id: int
    identity: str = ""
    history_size: int = 0
    suggest_continue_as_new: bool = False
    target_version_changed: bool = False


class WorkflowTaskCompleted(Attributes, frozen=True, kw_only=True):
    """The worker answered; the events of its commands follow."""

    scheduled_event_id: int
    started_event_id: int
    identity: str = ""
    flags: tuple[int, ...] = ()
    version: WorkerDeploymentVersion | None = None
    behavior: VersioningBehavior = VersioningBehavior.UNSPECIFIED


class WorkflowTaskFailed(Attributes, frozen=True, kw_only=True):
    """The worker could not handle the task, or its answer could not be accepted."""

    scheduled_event_id: int
    started_event_id: int
    cause: int = TaskFailureCause.WORKFLOW_WORKER_UNHANDLED_FAILURE
    failure: Failure | None = None
    identity: str = ""
    base_run_id: str = ""
    new_run_id: str = ""


class WorkflowTaskTimedOut(Attributes, frozen=True, kw_only=True):
    """The worker did not answer in time."""

    scheduled_event_id: int
    started_event_id: int


class ActivityTaskScheduled(Attributes, frozen=True, kw_only=True):
    """An activity is wanted. The timeouts are as the engine understood them."""

    activity_id: str
    activity_type: str
    task_queue: str
    task_completed_event_id: int
    arguments: Payloads = ()
    headers: Fields = {}
    schedule_to_close_timeout: float = 0.0
    schedule_to_start_timeout: float = 0.0
    start_to_close_timeout: float = 0.0
    heartbeat_timeout: float = 0.0
    retry_policy: RetryRule = RetryRule()
    summary: Payload | None = None
    priority_key: int = 0


class ActivityTaskStarted(Attributes, frozen=True, kw_only=True):
    """The last attempt of an activity began. Written together with its end, as Temporal does, with the time when it
    began (`began_ns`; 0 where that is the time of writing).
    """

    scheduled_event_id: int
    attempt: int = 1
    identity: str = ""
    last_failure: Failure | None = None
    began_ns: int = 0


class ActivityTaskCompleted(Attributes, frozen=True, kw_only=True):
    """An activity returned."""

    scheduled_event_id: int
    started_event_id: int
    result: Payload | None = None
    identity: str = ""


class ActivityTaskFailed(Attributes, frozen=True, kw_only=True):
    """An activity failed for good."""

    scheduled_event_id: int
    started_event_id: int
    failure: Failure
    retry_state: RetryState
    identity: str = ""


class ActivityTaskTimedOut(Attributes, frozen=True, kw_only=True):
    """An activity took too long, for good."""

    scheduled_event_id: int
    started_event_id: int
    failure: Failure
    retry_state: RetryState


class ActivityTaskCancelRequested(Attributes, frozen=True, kw_only=True):
    """The run asked to cancel an activity."""

    scheduled_event_id: int
    task_completed_event_id: int


class ActivityTaskCanceled(Attributes, frozen=True, kw_only=True):
    """An activity ended as cancelled."""

    scheduled_event_id: int
    started_event_id: int
    cancel_requested_event_id: int
    details: Payloads = ()
    identity: str = ""


class TimerStarted(Attributes, frozen=True, kw_only=True):
    """A timer runs."""

    timer_id: str
    duration_ns: int
    task_completed_event_id: int
    summary: Payload | None = None


class TimerFired(Attributes, frozen=True, kw_only=True):
    """A timer's time has come."""

    timer_id: str
    started_event_id: int


class TimerCanceled(Attributes, frozen=True, kw_only=True):
    """The run no longer wants a timer."""

    timer_id: str
    started_event_id: int
    task_completed_event_id: int
    identity: str = ""


class MarkerRecorded(Attributes, frozen=True, kw_only=True):
    """The run took the new way at a patch."""

    patch_id: str
    deprecated: bool
    task_completed_event_id: int


class UpsertWorkflowSearchAttributes(Attributes, frozen=True, kw_only=True):
    """The run changed its search attributes."""

    search_attributes: Fields
    task_completed_event_id: int


class WorkflowPropertiesModified(Attributes, frozen=True, kw_only=True):
    """The run changed its memo."""

    memo: Fields
    task_completed_event_id: int


class WorkflowExecutionSignaled(Attributes, frozen=True, kw_only=True):
    """Somebody sent a signal."""

    signal_name: str
    arguments: Payloads = ()
    identity: str = ""
    headers: Fields = {}
    request_id: str = ""
    external_workflow_id: str = ""
    external_run_id: str = ""


class WorkflowExecutionCancelRequested(Attributes, frozen=True, kw_only=True):
    """Somebody asked the run to cancel."""

    reason: str = ""
    identity: str = ""
    external_initiated_event_id: int = 0
    external_workflow_id: str = ""
    external_run_id: str = ""


class WorkflowExecutionCompleted(Attributes, frozen=True, kw_only=True):
    """The run returned."""

    result: Payload
    task_completed_event_id: int
    new_run_id: str = ""


class WorkflowExecutionFailed(Attributes, frozen=True, kw_only=True):
    """The run failed."""

    failure: Failure
    retry_state: RetryState
    task_completed_event_id: int
    new_run_id: str = ""


class WorkflowExecutionCanceled(Attributes, frozen=True, kw_only=True):
    """The run ended as cancelled."""

    task_completed_event_id: int
    details: Payloads = ()


class WorkflowExecutionTerminated(Attributes, frozen=True, kw_only=True):
    """The run was ended without being asked."""

    reason: str = ""
    details: Payloads = ()
    identity: str = ""


class WorkflowExecutionTimedOut(Attributes, frozen=True, kw_only=True):
    """The run took too long."""

    retry_state: RetryState
    new_run_id: str = ""


class WorkflowExecutionContinuedAsNew(Attributes, frozen=True, kw_only=True):
    """The run ended and another took its place."""

    new_run_id: str
    workflow_type: str
    task_queue: str
    task_completed_event_id: int
    arguments: Payloads = ()
    run_timeout: float = 0.0
    task_timeout: float = 10.0
    headers: Fields = {}
    memo: Fields = {}
    search_attributes: Fields = {}
    versioning: ContinueAsNewVersioningBehavior = ContinueAsNewVersioningBehavior.UNSPECIFIED


KINDS: tuple[type[Attributes], ...] = (
    WorkflowExecutionStarted,
    WorkflowTaskScheduled,
    WorkflowTaskStarted,
    WorkflowTaskCompleted,
    WorkflowTaskFailed,
    WorkflowTaskTimedOut,
    ActivityTaskScheduled,
    ActivityTaskStarted,
    ActivityTaskCompleted,
    ActivityTaskFailed,
    ActivityTaskTimedOut,
    ActivityTaskCancelRequested,
    ActivityTaskCanceled,
    TimerStarted,
    TimerFired,
    TimerCanceled,
    MarkerRecorded,
    UpsertWorkflowSearchAttributes,
    WorkflowPropertiesModified,
    WorkflowExecutionSignaled,
    WorkflowExecutionCancelRequested,
    WorkflowExecutionCompleted,
    WorkflowExecutionFailed,
    WorkflowExecutionCanceled,
    WorkflowExecutionTerminated,
    WorkflowExecutionTimedOut,
    WorkflowExecutionContinuedAsNew,
    *LOCAL_KINDS,
    *OTHER_KINDS,
    *UPDATE_KINDS,
)

ATTEMPT_ENDS: frozenset[type[Attributes]] = frozenset(
    {ActivityTaskCompleted, ActivityTaskFailed, ActivityTaskTimedOut, ActivityTaskCanceled}
)

FINAL: tuple[type[Attributes], ...] = (
    WorkflowExecutionCompleted,
    WorkflowExecutionFailed,
    WorkflowExecutionCanceled,
    WorkflowExecutionTerminated,
    WorkflowExecutionTimedOut,
    WorkflowExecutionContinuedAsNew,
)

TIMEOUT_NAMES = {
    TimeoutType.START_TO_CLOSE: "StartToClose",
    TimeoutType.SCHEDULE_TO_START: "ScheduleToStart",
    TimeoutType.SCHEDULE_TO_CLOSE: "ScheduleToClose",
    TimeoutType.HEARTBEAT: "Heartbeat",
}


class HistoryEvent(msgspec.Struct, frozen=True, gc=False):
    """One event at its place in a history."""

    id: int
    time_ns: int
    attributes: Attributes
