"""The events of a run's history as frozen data. Kinds, names and attributes are Temporal's.

Must not know: JSON (see `codec`), decisions, clocks. Invariants: event ids count from 1 without gaps; an
event never changes; references (`scheduled_event_id` and the like) point backwards. Durations are seconds,
times nanoseconds since the epoch; 0 or empty means unset. Namespaces are always written, since histories are
also read elsewhere; an empty run id means the latest run of a workflow.

Not recorded: an attempt of a local activity, until it ends for good or has a long interval before the next; a
rejected update; and an update that is not accepted yet, which stays in memory unless a reset admits it again.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, TypeAlias

import msgspec

from hourglass._evaluator.commands import Command, EventGroupMarker, TaskFailureCause
from hourglass._evaluator.specs import (
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
    """The attributes of one kind of history event."""


NO_INDEX = -1
"""The activation index of a marker that does not record it."""


class LocalActivityMarkerRecorded(Attributes, frozen=True, kw_only=True, tag="LocalActivityMarkerRecorded"):
    """Core's marker for a local activity that has ended, or whose next attempt follows after a long back-off
    (`backoff_ns`).

    `activation_index` is the number, among the activations of its workflow task, of the one that delivered
    the result: a replay delivers it in the same one.
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
    """Return Temporal's name for the kind of an event. All markers are one kind, whatever they mark."""
    return name_of(type(attributes))


def name_of(kind: type[Attributes]) -> str:
    """Return Temporal's name for a kind of event, given its type."""
    return "MarkerRecorded" if kind in (LocalActivityMarkerRecorded, ForeignMarkerRecorded) else kind.__name__


class RecordLocalActivity(Command, frozen=True):
    """Core's own command to write this marker (without the workflow task it belongs to)."""

    marker: LocalActivityMarkerRecorded


LOCAL_KINDS: tuple[type[Attributes], ...] = (LocalActivityMarkerRecorded,)


class StartChildFailedCause(IntEnum):
    """Temporal's numbers for the reason that a child could not be started."""

    WORKFLOW_ALREADY_EXISTS = 1
    NAMESPACE_NOT_FOUND = 2
    INVALID_VERSIONING_OVERRIDE = 3


class ExternalFailedCause(IntEnum):
    """Temporal's numbers for the reason that a signal or a cancel request was not delivered."""

    EXTERNAL_WORKFLOW_EXECUTION_NOT_FOUND = 1
    NAMESPACE_NOT_FOUND = 2
    SIGNAL_COUNT_LIMIT_EXCEEDED = 3


class StartChildWorkflowExecutionInitiated(Attributes, frozen=True, kw_only=True):
    """The run requested a child. The timeouts include the engine's defaults."""

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
    """The child could not be started."""

    namespace: str
    workflow_id: str
    workflow_type: str
    cause: StartChildFailedCause
    initiated_event_id: int


class ChildWorkflowExecutionStarted(Attributes, frozen=True, kw_only=True):
    """The child has started; `run_id` is its first run."""

    namespace: str
    workflow_id: str
    workflow_type: str
    run_id: str
    initiated_event_id: int
    headers: Fields = {}


class ChildEnd(Attributes, frozen=True, kw_only=True):
    """The common attributes of all ends of a child; `run_id` is its last run. Not a kind of its own."""

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
    """The child exceeded its timeout."""

    retry_state: RetryState


class ChildWorkflowExecutionTerminated(ChildEnd, frozen=True, kw_only=True):
    """The child was terminated."""


class SignalExternalWorkflowExecutionInitiated(Attributes, frozen=True, kw_only=True):
    """The run sends a signal; with `child_only` the target must be its own child."""

    namespace: str
    workflow_id: str
    signal_name: str
    task_completed_event_id: int
    run_id: str = ""
    arguments: Payloads = ()
    headers: Fields = {}
    child_only: bool = False


class SignalExternalWorkflowExecutionFailed(Attributes, frozen=True, kw_only=True):
    """The signal was not delivered."""

    namespace: str
    workflow_id: str
    cause: ExternalFailedCause
    initiated_event_id: int
    run_id: str = ""


class ExternalWorkflowExecutionSignaled(Attributes, frozen=True, kw_only=True):
    """The signal was delivered."""

    namespace: str
    workflow_id: str
    initiated_event_id: int
    run_id: str = ""


class RequestCancelExternalWorkflowExecutionInitiated(Attributes, frozen=True, kw_only=True):
    """The run requests cancellation of another workflow; with `child_only` the target must be its own child."""

    namespace: str
    workflow_id: str
    task_completed_event_id: int
    run_id: str = ""
    reason: str = ""
    child_only: bool = False


class RequestCancelExternalWorkflowExecutionFailed(Attributes, frozen=True, kw_only=True):
    """The cancel request was not delivered."""

    namespace: str
    workflow_id: str
    cause: ExternalFailedCause
    initiated_event_id: int
    run_id: str = ""


class ExternalWorkflowExecutionCancelRequested(Attributes, frozen=True, kw_only=True):
    """The cancel request was delivered, or was not needed because the target has closed."""

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


class UpdateRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """An update as a client requested it."""

    update_id: str
    name: str
    arguments: Payloads = ()
    headers: Fields = {}
    identity: str = ""


class WorkflowExecutionUpdateAdmitted(Attributes, frozen=True, kw_only=True):
    """The update was requested from the run that this one was reset from. Only in histories of reset runs."""

    request: UpdateRequest


class WorkflowExecutionUpdateAccepted(Attributes, frozen=True, kw_only=True):
    """The update passed its validator.

    `sequencing_event_id` is the last event before the worker received it. The request is part of this event
    unless the history contains it in the event of its admission.
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
    """The update was rejected by its validator. Neither the embedded engine nor current servers write this
    event.
    """

    update_id: str
    request: UpdateRequest | None = None
    failure: Failure | None = None


UPDATE_KINDS: tuple[type[Attributes], ...] = (
    WorkflowExecutionUpdateAdmitted,
    WorkflowExecutionUpdateAccepted,
    WorkflowExecutionUpdateCompleted,
)


UNHANDLED_COMMAND = 1
"""Cause of a failed workflow task that tried to close its run while new events had arrived. Temporal's number,
as below.
"""

FORCE_CLOSE_COMMAND = 17
"""Cause of a workflow task that was withdrawn because too many events had arrived meanwhile."""

BAD_SCHEDULE_ACTIVITY = 2
"""Cause of a workflow task that scheduled an invalid activity."""

BAD_REQUEST_CANCEL_EXTERNAL = 10
"""Cause of a workflow task that started a child and cancelled it at once, or sent a cancel request to an invalid
id.
"""

BAD_CONTINUE_AS_NEW = 11
"""Cause of a workflow task with an invalid continue-as-new."""

BAD_SIGNAL = 15
"""Cause of a workflow task that sent a signal to an invalid target."""

BAD_START_CHILD = 16
"""Cause of a workflow task that started an invalid child."""

BAD_SEARCH_ATTRIBUTES = 23
"""Cause of a workflow task that set invalid search attributes."""

PENDING_CHILDREN_LIMIT_EXCEEDED = 26
"""Cause of a workflow task that exceeded the number of pending children."""

PENDING_SIGNALS_LIMIT_EXCEEDED = 28
"""Cause of a workflow task that exceeded the number of pending signals to other workflows."""

PENDING_CANCELS_LIMIT_EXCEEDED = 29
"""Cause of a workflow task that exceeded the number of pending cancel requests."""

PENDING_ACTIVITIES_LIMIT_EXCEEDED = 27
"""Cause of a workflow task that exceeded the number of pending activities."""

SCHEDULE_ACTIVITY_DUPLICATE_ID = 22
"""Cause of a workflow task that scheduled an activity with the id of a pending one."""

PAYLOADS_TOO_LARGE = 37
"""Cause of a workflow task with a command whose payloads exceed the size limit."""

RESET_WORKFLOW = 20
"""Cause of the workflow task at which a reset run diverges from its original."""

FEATURE_DISABLED = 35
"""Cause of a workflow task with a command that the engine does not support."""


NO_RESULT = Payload(b"", "binary/null")
"""The result of a run if the history does not contain it."""

PATCHES = "TemporalChangeVersion"
"""The search attribute in which Temporal records the patches of a run."""


class Initiator(IntEnum):
    """Temporal's numbers for the reason that a run continues another."""

    NONE = 0
    WORKFLOW = 1
    RETRY = 2
    CRON_SCHEDULE = 3


class WorkflowExecutionStarted(Attributes, frozen=True, kw_only=True):
    """The first event of every history. The timeouts include the engine's defaults."""

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
    """The version that the previous run declined when it continued as this one."""


class WorkflowTaskScheduled(Attributes, frozen=True, kw_only=True):
    """A workflow task waits for a worker."""

    task_queue: str
    task_timeout: float
    attempt: int = 1


class WorkflowTaskStarted(Attributes, frozen=True, kw_only=True):
    """A worker received the task."""

    scheduled_event_id: int
    identity: str = ""
    history_size: int = 0
    suggest_continue_as_new: bool = False
    target_version_changed: bool = False


CORE_FLAGS = (1, 2, 3)
"""Core's own flags, for the behaviour that the histories of the embedded engine comply with: ids and types are
checked, patches are indexed, and terminal commands come last.
"""


class WorkflowTaskCompleted(Attributes, frozen=True, kw_only=True):
    """The worker completed the task; the events of its commands follow."""

    scheduled_event_id: int
    started_event_id: int
    identity: str = ""
    sdk_name: str = ""
    core_flags: tuple[int, ...] = CORE_FLAGS
    flags: tuple[int, ...] = ()
    version: WorkerDeploymentVersion | None = None
    behavior: VersioningBehavior = VersioningBehavior.UNSPECIFIED


class WorkflowTaskFailed(Attributes, frozen=True, kw_only=True):
    """The worker failed the task, or its completion was rejected."""

    scheduled_event_id: int
    started_event_id: int
    cause: int = TaskFailureCause.WORKFLOW_WORKER_UNHANDLED_FAILURE
    failure: Failure | None = None
    identity: str = ""
    base_run_id: str = ""
    new_run_id: str = ""


class WorkflowTaskTimedOut(Attributes, frozen=True, kw_only=True):
    """The worker did not complete the task before its timeout."""

    scheduled_event_id: int
    started_event_id: int
    timeout_type: TimeoutType = TimeoutType.START_TO_CLOSE


class ActivityTaskScheduled(Attributes, frozen=True, kw_only=False):
    """The run scheduled an activity. Timeouts, task queue and retry policy include the engine's defaults."""

    activity_id: str
    activity_type: str
    spec: ActivitySpec
    task_completed_event_id: int
    arguments: Payloads = ()
    headers: Fields = {}
    summary: Payload | None = None


class ActivityTaskStarted(Attributes, frozen=True, kw_only=True):
    """The last attempt of an activity started.

    As in Temporal it is written together with the end of the attempt; `began_ns` is the time of the start, 0
    if that equals the time of the event.
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
    """An activity timed out for good."""

    scheduled_event_id: int
    started_event_id: int
    failure: Failure
    retry_state: RetryState


class ActivityTaskCancelRequested(Attributes, frozen=True, kw_only=True):
    """The run requested cancellation of an activity."""

    scheduled_event_id: int
    task_completed_event_id: int


class ActivityTaskCanceled(Attributes, frozen=True, kw_only=True):
    """An activity was cancelled."""

    scheduled_event_id: int
    started_event_id: int
    cancel_requested_event_id: int
    details: Payloads = ()
    identity: str = ""


class TimerStarted(Attributes, frozen=True, kw_only=True):
    """The run started a timer."""

    timer_id: str
    duration_ns: int
    task_completed_event_id: int
    summary: Payload | None = None


class TimerFired(Attributes, frozen=True, kw_only=True):
    """A timer fired."""

    timer_id: str
    started_event_id: int


class TimerCanceled(Attributes, frozen=True, kw_only=True):
    """The run cancelled a timer."""

    timer_id: str
    started_event_id: int
    task_completed_event_id: int
    identity: str = ""


class MarkerRecorded(Attributes, frozen=True, kw_only=True):
    """The run took the new branch of a patch."""

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
    """A client or another run requested cancellation of the run."""

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
    """The run was cancelled."""

    task_completed_event_id: int
    details: Payloads = ()


class WorkflowExecutionTerminated(Attributes, frozen=True, kw_only=True):
    """The run was terminated."""

    reason: str = ""
    details: Payloads = ()
    identity: str = ""


class WorkflowExecutionTimedOut(Attributes, frozen=True, kw_only=True):
    """The run exceeded its timeout."""

    retry_state: RetryState
    new_run_id: str = ""


class WorkflowExecutionContinuedAsNew(Attributes, frozen=True, kw_only=True):
    """The run ended and a new run with this spec continues it, after the back-off."""

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
    """These three explain why early servers ended a run this way that was to be retried."""


class WorkflowExecutionOptionsUpdated(Attributes, frozen=True, kw_only=True):
    """An operator changed options of the run: its version or its priority."""

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
    """An operator resumed the run."""

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


class WorkflowPropertiesModifiedExternally(Attributes, frozen=True, kw_only=True):
    """An operator changed the run's properties."""


class ActivityPropertiesModifiedExternally(Attributes, frozen=True, kw_only=True):
    """An operator changed an activity's properties."""

    scheduled_event_id: int


class NexusOperationScheduled(Attributes, frozen=True, kw_only=True):
    """The run scheduled a Nexus operation."""

    endpoint: str
    service: str
    operation: str
    task_completed_event_id: int
    argument: Payload | None = None


class NexusOperationStarted(Attributes, frozen=True, kw_only=True):
    """The operation started; its service identifies it by the token."""

    scheduled_event_id: int
    operation_token: str = ""


class NexusOperationCompleted(Attributes, frozen=True, kw_only=True):
    """The operation returned."""

    scheduled_event_id: int
    result: Payload | None = None


class NexusOperationEnd(Attributes, frozen=True, kw_only=True):
    """The common attributes of the other ends of an operation. Not a kind of its own."""

    scheduled_event_id: int
    failure: Failure | None = None


class NexusOperationFailed(NexusOperationEnd, frozen=True, kw_only=True):
    """The operation failed."""


class NexusOperationCanceled(NexusOperationEnd, frozen=True, kw_only=True):
    """The operation was cancelled."""


class NexusOperationTimedOut(NexusOperationEnd, frozen=True, kw_only=True):
    """The operation exceeded its timeout."""


class NexusOperationCancelRequested(Attributes, frozen=True, kw_only=True):
    """The run requested cancellation of the operation."""

    scheduled_event_id: int
    task_completed_event_id: int


class UnknownEvent(Attributes, frozen=True, kw_only=True):
    """An event of an unknown kind: its name, such as `TIMER_FIRED`, and its attributes in JSON.

    `may_be_ignored`: the server allows workers to ignore it.
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
"""Kinds that occur only in histories of servers."""

TASK_KINDS: frozenset[type[Attributes]] = frozenset(
    {
        WorkflowTaskScheduled,
        WorkflowTaskStarted,
        WorkflowTaskCompleted,
        WorkflowTaskFailed,
        WorkflowTaskTimedOut,
    }
)
"""The kinds of events about workflow tasks."""

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
    """An event at its position in a history, with the event groups of the command that caused it."""

    id: int
    time_ns: int
    attributes: Attributes
    event_groups: tuple[EventGroupMarker, ...] = ()
