"""History: what happened to a run, as frozen data. Kinds, names and attributes are Temporal's.

Must not know: JSON (see `json`), decisions, clocks. Invariants: event ids count from 1 without a gap; an event is
never changed; links (`scheduled_event_id` and the like) point backwards. Durations are seconds, times nanoseconds
since the epoch; 0 or empty means unset. A namespace is written out, since histories are read elsewhere; an empty run
id means the latest run of a workflow.

What leaves no event: an attempt of a local activity, until it ends for good or waits long for the next; an update
that was refused; and one that is not accepted yet, which waits in memory, but for those that a reset admits again.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, TypeAlias

import msgspec

from hourglass._engine.commands import Command, EventGroupMarker, TaskFailureCause
from hourglass._engine.specs import (
    ActivitySpec,
    ChildWorkflowSpec,
    ContinueAsNewVersioningBehavior,
    Payloads,
    StartSpec,
    VersioningBehavior,
    VersioningOverride,
    WorkerDeploymentVersion,
)
from hourglass.converter import Failure, Payload
from hourglass.errors import RetryState, TimeoutType

Fields: TypeAlias = dict[str, Payload]


class Attributes(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True, omit_defaults=True):
    """What one kind of history event says."""


# --- local activities ---------------------------------------------------------------------------------------

NO_INDEX = -1
"""In a marker that does not say in which activation of its task the run heard of it."""


class LocalActivityMarkerRecorded(Attributes, frozen=True, kw_only=True, tag="LocalActivityMarkerRecorded"):
    """A local activity ended for good, or waits long (`backoff_ns`) for its next attempt: Core's marker for it.

    `activation_index` is the place, among the activations of its task, of the one that the run heard it in: a replay
    tells it in the same one.
    """

    seq: int
    activity_id: str
    activity_type: str
    task_completed_event_id: int
    attempt: int = 0
    complete_ns: int = 0
    backoff_ns: int = 0
    original_schedule_ns: int = 0
    activation_index: int = NO_INDEX
    result: Payload | None = None
    failure: Failure | None = None
    summary: Payload | None = None


class ForeignMarkerRecorded(Attributes, frozen=True, kw_only=True):
    """A marker of another SDK, or one whose details cannot be read. The embedded engine writes none."""

    marker_name: str
    details: dict[str, Payloads] = {}
    failure: Failure | None = None
    task_completed_event_id: int = 0


def kind_of(attributes: Attributes) -> str:
    """Temporal's name for a kind of event. A marker is one kind there, whatever its name says that it marks."""
    return name_of(type(attributes))


def name_of(kind: type[Attributes]) -> str:
    """The same for the type of its attributes."""
    return "MarkerRecorded" if kind in (LocalActivityMarkerRecorded, ForeignMarkerRecorded) else kind.__name__


class RecordLocalActivity(Command, frozen=True):
    """Core's own command: write this marker (but for the task that it belongs to)."""

    marker: LocalActivityMarkerRecorded


LOCAL_KINDS: tuple[type[Attributes], ...] = (LocalActivityMarkerRecorded,)


# --- other runs: children, signals to other workflows, requests to cancel them ------------------------------


class StartChildFailedCause(IntEnum):
    """Why a child could not be started (Temporal's numbers)."""

    WORKFLOW_ALREADY_EXISTS = 1
    NAMESPACE_NOT_FOUND = 2
    INVALID_VERSIONING_OVERRIDE = 3


class ExternalFailedCause(IntEnum):
    """Why a signal or a request to cancel did not arrive (Temporal's numbers, the same for both)."""

    EXTERNAL_WORKFLOW_EXECUTION_NOT_FOUND = 1
    NAMESPACE_NOT_FOUND = 2
    SIGNAL_COUNT_LIMIT_EXCEEDED = 3


class StartChildWorkflowExecutionInitiated(Attributes, frozen=True, kw_only=True):
    """The run asked for a child. The timeouts are as the engine understood them."""

    namespace: str
    workflow_id: str
    workflow_type: str
    task_completed_event_id: int
    arguments: Payloads = ()
    headers: Fields = {}
    spec: StartSpec = StartSpec()
    child: ChildWorkflowSpec = ChildWorkflowSpec()
    inherit_build_id: bool = False


class StartChildWorkflowExecutionFailed(Attributes, frozen=True, kw_only=True):
    """There will be no such child."""

    namespace: str
    workflow_id: str
    workflow_type: str
    cause: StartChildFailedCause
    initiated_event_id: int


class ChildWorkflowExecutionStarted(Attributes, frozen=True, kw_only=True):
    """The child has begun; `run_id` is its first run."""

    namespace: str
    workflow_id: str
    workflow_type: str
    run_id: str
    initiated_event_id: int
    headers: Fields = {}


class ChildEnd(Attributes, frozen=True, kw_only=True):
    """What all ends of a child say; `run_id` is its last run. No kind of its own."""

    namespace: str
    workflow_id: str
    workflow_type: str
    run_id: str
    initiated_event_id: int
    started_event_id: int


class ChildWorkflowExecutionCompleted(ChildEnd, frozen=True, kw_only=True):
    """The child returned."""

    result: Payload | None = None


class ChildWorkflowExecutionFailed(ChildEnd, frozen=True, kw_only=True):
    """The child failed."""

    failure: Failure
    retry_state: RetryState


class ChildWorkflowExecutionCanceled(ChildEnd, frozen=True, kw_only=True):
    """The child ended as cancelled."""

    details: Payloads = ()


class ChildWorkflowExecutionTimedOut(ChildEnd, frozen=True, kw_only=True):
    """The child took too long."""

    retry_state: RetryState


class ChildWorkflowExecutionTerminated(ChildEnd, frozen=True, kw_only=True):
    """The child was ended without being asked."""


class SignalExternalWorkflowExecutionInitiated(Attributes, frozen=True, kw_only=True):
    """The run sends a signal; with `child_only` the target must be a child of its own."""

    namespace: str
    workflow_id: str
    signal_name: str
    task_completed_event_id: int
    run_id: str = ""
    arguments: Payloads = ()
    headers: Fields = {}
    child_only: bool = False


class SignalExternalWorkflowExecutionFailed(Attributes, frozen=True, kw_only=True):
    """The signal did not arrive."""

    namespace: str
    workflow_id: str
    cause: ExternalFailedCause
    initiated_event_id: int
    run_id: str = ""


class ExternalWorkflowExecutionSignaled(Attributes, frozen=True, kw_only=True):
    """The signal arrived."""

    namespace: str
    workflow_id: str
    initiated_event_id: int
    run_id: str = ""


class RequestCancelExternalWorkflowExecutionInitiated(Attributes, frozen=True, kw_only=True):
    """The run asks another to cancel; with `child_only` the target must be a child of its own."""

    namespace: str
    workflow_id: str
    task_completed_event_id: int
    run_id: str = ""
    reason: str = ""
    child_only: bool = False


class RequestCancelExternalWorkflowExecutionFailed(Attributes, frozen=True, kw_only=True):
    """The request did not arrive."""

    namespace: str
    workflow_id: str
    cause: ExternalFailedCause
    initiated_event_id: int
    run_id: str = ""


class ExternalWorkflowExecutionCancelRequested(Attributes, frozen=True, kw_only=True):
    """The request arrived, or was no longer needed: the other has closed."""

    namespace: str
    workflow_id: str
    initiated_event_id: int
    run_id: str = ""


OTHER_KINDS: tuple[type[Attributes], ...] = (
    StartChildWorkflowExecutionInitiated,
    StartChildWorkflowExecutionFailed,
    ChildWorkflowExecutionStarted,
    ChildWorkflowExecutionCompleted,
    ChildWorkflowExecutionFailed,
    ChildWorkflowExecutionCanceled,
    ChildWorkflowExecutionTimedOut,
    ChildWorkflowExecutionTerminated,
    SignalExternalWorkflowExecutionInitiated,
    SignalExternalWorkflowExecutionFailed,
    ExternalWorkflowExecutionSignaled,
    RequestCancelExternalWorkflowExecutionInitiated,
    RequestCancelExternalWorkflowExecutionFailed,
    ExternalWorkflowExecutionCancelRequested,
)


# --- updates ------------------------------------------------------------------------------------------------


class UpdateRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """An update as a client asked for it."""

    update_id: str
    name: str
    arguments: Payloads = ()
    headers: Fields = {}
    identity: str = ""


class WorkflowExecutionUpdateAdmitted(Attributes, frozen=True, kw_only=True):
    """The update was asked of the run that this one was reset from. Stands only in histories of such runs."""

    request: UpdateRequest


class WorkflowExecutionUpdateAccepted(Attributes, frozen=True, kw_only=True):
    """The update passed its validator.

    `sequencing_event_id` is the event after which the worker saw it. The request is here unless the history has it
    in the event of its admission.
    """

    update_id: str
    sequencing_event_id: int
    request: UpdateRequest | None = None


class WorkflowExecutionUpdateCompleted(Attributes, frozen=True, kw_only=True):
    """The update's handler ended: with a failure if there is one, else with the result."""

    update_id: str
    accepted_event_id: int
    identity: str = ""
    result: Payload | None = None
    failure: Failure | None = None


class WorkflowExecutionUpdateRejected(Attributes, frozen=True, kw_only=True):
    """The update did not pass its validator. The embedded engine writes none, and neither do servers of today."""

    update_id: str
    request: UpdateRequest | None = None
    failure: Failure | None = None


UPDATE_KINDS: tuple[type[Attributes], ...] = (
    WorkflowExecutionUpdateAdmitted,
    WorkflowExecutionUpdateAccepted,
    WorkflowExecutionUpdateCompleted,
)


# --- why a workflow task failed, by Temporal's numbers ------------------------------------------------------

UNHANDLED_COMMAND = 1
"""Temporal's number for a task that tried to close a run while something new had arrived."""

FORCE_CLOSE_COMMAND = 17
"""Temporal's number for a task that is taken back because too much has arrived meanwhile."""

BAD_SCHEDULE_ACTIVITY = 2
"""Temporal's number for a task that asked for an activity that cannot be."""

BAD_REQUEST_CANCEL_EXTERNAL = 10
"""Temporal's number for a task that started a child and asked to cancel it at once, or named no workflow that can be.
"""

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

# --- the run itself, its tasks, activities and timers -------------------------------------------------------

NO_RESULT = Payload(b"", "binary/null")
"""What a run returned of which the history says nothing."""

PATCHES = "TemporalChangeVersion"
"""The search attribute under which Temporal keeps the patches of a run."""


class Initiator(IntEnum):
    """Why a run follows another (Temporal's numbers)."""

    NONE = 0
    WORKFLOW = 1
    RETRY = 2
    CRON_SCHEDULE = 3


class WorkflowExecutionStarted(Attributes, frozen=True, kw_only=True):
    """The first event of every history. The timeouts are as the engine understood them."""

    workflow_id: str
    workflow_type: str
    original_run_id: str
    first_run_id: str
    arguments: Payloads = ()
    headers: Fields = {}
    spec: StartSpec = StartSpec()
    expiration_ns: int = 0
    identity: str = ""
    attempt: int = 1
    continued_run_id: str = ""
    initiator: Initiator = Initiator.NONE
    continued_failure: Failure | None = None
    last_completion_result: Payloads = ()
    first_task_backoff: float = 0.0
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


CORE_FLAGS = (1, 2, 3)
"""Core's own flags that fit what the embedded engine writes: ids and types are checked, patches are indexed, terminal
commands come last.
"""


class WorkflowTaskCompleted(Attributes, frozen=True, kw_only=True):
    """The worker answered; the events of its commands follow."""

    scheduled_event_id: int
    started_event_id: int
    identity: str = ""
    sdk_name: str = ""
    core_flags: tuple[int, ...] = CORE_FLAGS
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
    timeout_type: TimeoutType = TimeoutType.START_TO_CLOSE


class ActivityTaskScheduled(Attributes, frozen=True, kw_only=False):
    """An activity is wanted. The timeouts, the queue and the retry policy are as the engine understood them."""

    activity_id: str
    activity_type: str
    spec: ActivitySpec
    task_completed_event_id: int
    arguments: Payloads = ()
    headers: Fields = {}
    summary: Payload | None = None


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
    """A client or another run sent a signal."""

    signal_name: str
    arguments: Payloads = ()
    identity: str = ""
    headers: Fields = {}
    request_id: str = ""
    external_workflow_id: str = ""
    external_run_id: str = ""


class WorkflowExecutionCancelRequested(Attributes, frozen=True, kw_only=True):
    """A client or another run asked the run to cancel."""

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
    """The run ended and another took its place, which begins with this spec, after the back-off."""

    new_run_id: str
    workflow_type: str
    task_completed_event_id: int
    arguments: Payloads = ()
    headers: Fields = {}
    spec: StartSpec = StartSpec()
    versioning: ContinueAsNewVersioningBehavior = ContinueAsNewVersioningBehavior.UNSPECIFIED
    backoff_start_interval: float = 0.0
    initiator: Initiator = Initiator.NONE
    failure: Failure | None = None
    last_completion_result: Payloads = ()
    """These three say why, where servers of the first years ended so a run that was to be tried again."""


class WorkflowExecutionOptionsUpdated(Attributes, frozen=True, kw_only=True):
    """An operator changed the run's options: the version that it belongs to, or its priority."""

    identity: str = ""
    versioning_override: VersioningOverride | None = None
    priority_key: int = 0
    fairness_key: str = ""
    fairness_weight: float = 0.0


class WorkflowExecutionPaused(Attributes, frozen=True, kw_only=True):
    """An operator paused the run."""

    identity: str = ""
    reason: str = ""


class WorkflowExecutionUnpaused(Attributes, frozen=True, kw_only=True):
    """An operator let the run go on."""

    identity: str = ""
    reason: str = ""


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
    WorkflowExecutionOptionsUpdated,
    WorkflowExecutionPaused,
    WorkflowExecutionUnpaused,
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

# --- what the embedded engine does not write: read from histories of servers --------------------------------


class WorkflowPropertiesModifiedExternally(Attributes, frozen=True, kw_only=True):
    """An operator changed the run's properties."""


class ActivityPropertiesModifiedExternally(Attributes, frozen=True, kw_only=True):
    """An operator changed an activity's properties."""

    scheduled_event_id: int


class NexusOperationScheduled(Attributes, frozen=True, kw_only=True):
    """The run asked for an operation of another service."""

    endpoint: str
    service: str
    operation: str
    task_completed_event_id: int
    argument: Payload | None = None


class NexusOperationStarted(Attributes, frozen=True, kw_only=True):
    """The operation has begun; its service knows it by the token."""

    scheduled_event_id: int
    operation_token: str = ""


class NexusOperationCompleted(Attributes, frozen=True, kw_only=True):
    """The operation returned."""

    scheduled_event_id: int
    result: Payload | None = None


class NexusOperationEnd(Attributes, frozen=True, kw_only=True):
    """What the other ends of an operation say. No kind of its own."""

    scheduled_event_id: int
    failure: Failure | None = None


class NexusOperationFailed(NexusOperationEnd, frozen=True, kw_only=True):
    """The operation failed."""


class NexusOperationCanceled(NexusOperationEnd, frozen=True, kw_only=True):
    """The operation ended as cancelled."""


class NexusOperationTimedOut(NexusOperationEnd, frozen=True, kw_only=True):
    """The operation took too long."""


class NexusOperationCancelRequested(Attributes, frozen=True, kw_only=True):
    """The run asked to cancel the operation."""

    scheduled_event_id: int
    task_completed_event_id: int


class UnknownEvent(Attributes, frozen=True, kw_only=True):
    """An event of a kind that this version does not know: its name, such as `TIMER_FIRED`, and its attributes in JSON.

    `may_be_ignored`: the server says that a worker need not understand it.
    """

    name: str
    document: dict[str, Any] = {}
    may_be_ignored: bool = False


FOREIGN_KINDS: tuple[type[Attributes], ...] = (
    ForeignMarkerRecorded,
    WorkflowExecutionUpdateRejected,
    WorkflowPropertiesModifiedExternally,
    ActivityPropertiesModifiedExternally,
    NexusOperationScheduled,
    NexusOperationStarted,
    NexusOperationCompleted,
    NexusOperationFailed,
    NexusOperationCanceled,
    NexusOperationTimedOut,
    NexusOperationCancelRequested,
)
"""Kinds that only histories of servers have."""

TASK_KINDS: frozenset[type[Attributes]] = frozenset(
    {
        WorkflowTaskScheduled,
        WorkflowTaskStarted,
        WorkflowTaskCompleted,
        WorkflowTaskFailed,
        WorkflowTaskTimedOut,
    }
)
"""The kinds that tell of workflow tasks."""

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


class HistoryEvent(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One event at its place in a history, and the groups that the command which led to it was of."""

    id: int
    time_ns: int
    attributes: Attributes
    event_groups: tuple[EventGroupMarker, ...] = ()
