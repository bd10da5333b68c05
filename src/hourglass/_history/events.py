"""The events of a run's history as frozen data. The kinds, names and attributes are Temporal's.

Must not know: JSON (see `codec`), decisions, clocks. Invariants: event ids count from 1 without gaps. An event never
changes. References such as `scheduled_event_id` refer to earlier events. Durations are in seconds and times in
nanoseconds since the epoch. 0 or an empty value means unset. Namespaces are always written, because histories are also
read elsewhere. An empty run id means the latest run of a workflow.

The following are not recorded: an attempt of a local activity, unless it is the last one or the interval before the next
is long; a rejected update; and an update that has not been accepted yet. An unaccepted update stays in memory unless a
reset admits it again.
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


class ForeignAttributes(Attributes, frozen=True, kw_only=True):
    """The attributes of a kind of event that occurs only in histories of servers. Not a kind of event itself."""


NO_INDEX = -1
"""The activation index of a marker that does not contain one."""


class LocalActivityMarkerRecorded(Attributes, frozen=True, kw_only=True, tag="LocalActivityMarkerRecorded"):
    """Core's marker for a local activity that has ended, or that will be retried after a long backoff (`backoff_ns`).

    `activation_index` is the position of the activation that delivered the result, among the activations of its workflow
    task. A replay delivers the result in the same activation.
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


class ForeignMarkerRecorded(ForeignAttributes, frozen=True, kw_only=True):
    """A marker of another SDK, or a marker whose details cannot be read. The embedded engine never writes this event."""

    marker_name: str
    details: dict[str, Payloads] = {}
    failure: Failure | None = None
    task_completed_event_id: int = 0


def kind_of(attributes: Attributes) -> str:
    """Return Temporal's name for the kind of an event. All markers are of the same kind."""
    return name_of(type(attributes))


def name_of(kind: type[Attributes]) -> str:
    """Return Temporal's name for a kind of event, given the class of its attributes."""
    return "MarkerRecorded" if kind in (LocalActivityMarkerRecorded, ForeignMarkerRecorded) else kind.__name__


class RecordLocalActivity(Command, frozen=True):
    """Core's own command to write this marker. The marker's workflow task is not set yet."""

    marker: LocalActivityMarkerRecorded


class StartChildFailedCause(IntEnum):
    """The reason why a child could not be started (Temporal's numbers)."""

    WORKFLOW_ALREADY_EXISTS = 1
    NAMESPACE_NOT_FOUND = 2
    INVALID_VERSIONING_OVERRIDE = 3


class ExternalFailedCause(IntEnum):
    """The reason why a signal or a cancellation request was not delivered (Temporal's numbers)."""

    EXTERNAL_WORKFLOW_EXECUTION_NOT_FOUND = 1
    NAMESPACE_NOT_FOUND = 2
    SIGNAL_COUNT_LIMIT_EXCEEDED = 3


class StartChildWorkflowExecutionInitiated(Attributes, frozen=True, kw_only=True):
    """The run requested the start of a child. The timeouts include the engine's defaults."""

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
    """A child could not be started."""

    namespace: str
    workflow_id: str
    workflow_type: str
    cause: StartChildFailedCause
    initiated_event_id: int


class ChildWorkflowExecutionStarted(Attributes, frozen=True, kw_only=True):
    """A child has started. `run_id` is the child's first run."""

    namespace: str
    workflow_id: str
    workflow_type: str
    run_id: str
    initiated_event_id: int
    headers: Fields = {}


class ChildEnd(Attributes, frozen=True, kw_only=True):
    """The common attributes of the events that report a child's result. `run_id` is the child's last run. Not a kind of
    event itself.
    """

    namespace: str
    workflow_id: str
    workflow_type: str
    run_id: str
    initiated_event_id: int
    started_event_id: int


class ChildWorkflowExecutionCompleted(ChildEnd, frozen=True, kw_only=True):
    """A child completed with this result."""

    result: Payload | None = None


class ChildWorkflowExecutionFailed(ChildEnd, frozen=True, kw_only=True):
    """A child failed."""

    failure: Failure
    retry_state: RetryState


class ChildWorkflowExecutionCanceled(ChildEnd, frozen=True, kw_only=True):
    """A child was cancelled."""

    details: Payloads = ()


class ChildWorkflowExecutionTimedOut(ChildEnd, frozen=True, kw_only=True):
    """A child exceeded its timeout."""

    retry_state: RetryState


class ChildWorkflowExecutionTerminated(ChildEnd, frozen=True, kw_only=True):
    """A child was terminated."""


class SignalExternalWorkflowExecutionInitiated(Attributes, frozen=True, kw_only=True):
    """The run requested to send a signal to another workflow. With `child_only`, the target must be the run's own child."""

    namespace: str
    workflow_id: str
    signal_name: str
    task_completed_event_id: int
    run_id: str = ""
    arguments: Payloads = ()
    headers: Fields = {}
    child_only: bool = False


class SignalExternalWorkflowExecutionFailed(Attributes, frozen=True, kw_only=True):
    """A signal to another workflow was not delivered."""

    namespace: str
    workflow_id: str
    cause: ExternalFailedCause
    initiated_event_id: int
    run_id: str = ""


class ExternalWorkflowExecutionSignaled(Attributes, frozen=True, kw_only=True):
    """A signal to another workflow was delivered."""

    namespace: str
    workflow_id: str
    initiated_event_id: int
    run_id: str = ""


class RequestCancelExternalWorkflowExecutionInitiated(Attributes, frozen=True, kw_only=True):
    """The run requested the cancellation of another workflow. With `child_only`, the target must be the run's own child."""

    namespace: str
    workflow_id: str
    task_completed_event_id: int
    run_id: str = ""
    reason: str = ""
    child_only: bool = False


class RequestCancelExternalWorkflowExecutionFailed(Attributes, frozen=True, kw_only=True):
    """A cancellation request was not delivered to another workflow."""

    namespace: str
    workflow_id: str
    cause: ExternalFailedCause
    initiated_event_id: int
    run_id: str = ""


class ExternalWorkflowExecutionCancelRequested(Attributes, frozen=True, kw_only=True):
    """A cancellation request was delivered to another workflow, or was not needed because that workflow has closed."""

    namespace: str
    workflow_id: str
    initiated_event_id: int
    run_id: str = ""


class UpdateRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A client's request for an update."""

    update_id: str
    name: str
    arguments: Payloads = ()
    headers: Fields = {}
    identity: str = ""


class WorkflowExecutionUpdateAdmitted(Attributes, frozen=True, kw_only=True):
    """An update was requested from the run that this run was reset from. Occurs only in histories of reset runs."""

    request: UpdateRequest


class WorkflowExecutionUpdateAccepted(Attributes, frozen=True, kw_only=True):
    """An update was accepted by its validator.

    `sequencing_event_id` is the last event before the worker received the update. The request is part of this event
    unless the history contains the request in the update's admission event.
    """

    update_id: str
    sequencing_event_id: int
    request: UpdateRequest | None = None


class WorkflowExecutionUpdateCompleted(Attributes, frozen=True, kw_only=True):
    """An update's handler has ended, with a failure or with a result."""

    update_id: str
    accepted_event_id: int
    identity: str = ""
    result: Payload | None = None
    failure: Failure | None = None


class WorkflowExecutionUpdateRejected(ForeignAttributes, frozen=True, kw_only=True):
    """An update was rejected by its validator. Neither the embedded engine nor current servers write this event."""

    update_id: str
    request: UpdateRequest | None = None
    failure: Failure | None = None


# Causes of failed workflow tasks. The numbers are Temporal's; `TASK_FAILURE_CAUSES` of `tables` contains all names.
UNHANDLED_COMMAND = 1  # the task tried to close its run while new events had arrived
BAD_SCHEDULE_ACTIVITY = 2
BAD_REQUEST_CANCEL_EXTERNAL = 10  # also: started a child and immediately cancelled it
BAD_CONTINUE_AS_NEW = 11
BAD_SIGNAL = 15
BAD_START_CHILD = 16
FORCE_CLOSE_COMMAND = 17  # withdrawn because too many events had arrived in the meantime
RESET_WORKFLOW = 20  # the task at which a reset run diverges from the original run
SCHEDULE_ACTIVITY_DUPLICATE_ID = 22  # the id of a pending activity
BAD_SEARCH_ATTRIBUTES = 23
PENDING_CHILDREN_LIMIT_EXCEEDED = 26
PENDING_ACTIVITIES_LIMIT_EXCEEDED = 27
PENDING_SIGNALS_LIMIT_EXCEEDED = 28
PENDING_CANCELS_LIMIT_EXCEEDED = 29
FEATURE_DISABLED = 35  # the engine does not support a command
PAYLOADS_TOO_LARGE = 37


NO_RESULT = Payload(b"", "binary/null")
"""The placeholder for the result of a run if the history does not contain one."""

PATCHES = "TemporalChangeVersion"
"""The search attribute in which Temporal records the patches of a run."""


class Initiator(IntEnum):
    """The reason why a run continues another run (Temporal's numbers)."""

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
    """The version that the previous run declined to move to when it continued as this run."""


class WorkflowTaskScheduled(Attributes, frozen=True, kw_only=True):
    """A workflow task was scheduled and waits for a worker."""

    task_queue: str
    task_timeout: float
    attempt: int = 1


class WorkflowTaskStarted(Attributes, frozen=True, kw_only=True):
    """A worker received the workflow task."""

    scheduled_event_id: int
    identity: str = ""
    history_size: int = 0
    suggest_continue_as_new: bool = False
    target_version_changed: bool = False


CORE_FLAGS = (1, 2, 3)
"""Core's own flags that describe the histories of the embedded engine: ids and types are checked, patches are indexed,
and terminal commands come last.
"""


class WorkflowTaskCompleted(Attributes, frozen=True, kw_only=True):
    """A worker completed the workflow task. The events of its commands follow."""

    scheduled_event_id: int
    started_event_id: int
    identity: str = ""
    sdk_name: str = ""
    core_flags: tuple[int, ...] = CORE_FLAGS
    flags: tuple[int, ...] = ()
    version: WorkerDeploymentVersion | None = None
    behavior: VersioningBehavior = VersioningBehavior.UNSPECIFIED


class WorkflowTaskFailed(Attributes, frozen=True, kw_only=True):
    """A worker failed the workflow task, or its completion was rejected."""

    scheduled_event_id: int
    started_event_id: int
    cause: int = TaskFailureCause.WORKFLOW_WORKER_UNHANDLED_FAILURE
    failure: Failure | None = None
    identity: str = ""
    base_run_id: str = ""
    new_run_id: str = ""


class WorkflowTaskTimedOut(Attributes, frozen=True, kw_only=True):
    """A worker did not complete the workflow task before its timeout."""

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
    """The last attempt of an activity was started.

    As in Temporal, this event is written together with the attempt's result. `began_ns` is the attempt's start time, or
    0 if the event's own timestamp is that time.
    """

    scheduled_event_id: int
    attempt: int = 1
    identity: str = ""
    last_failure: Failure | None = None
    began_ns: int = 0


class ActivityTaskCompleted(Attributes, frozen=True, kw_only=True):
    """An activity completed with this result."""

    scheduled_event_id: int
    started_event_id: int
    result: Payload | None = None
    identity: str = ""


class ActivityTaskFailed(Attributes, frozen=True, kw_only=True):
    """An activity failed and will not be retried."""

    scheduled_event_id: int
    started_event_id: int
    failure: Failure
    retry_state: RetryState
    identity: str = ""


class ActivityTaskTimedOut(Attributes, frozen=True, kw_only=True):
    """An activity timed out and will not be retried."""

    scheduled_event_id: int
    started_event_id: int
    failure: Failure
    retry_state: RetryState


class ActivityTaskCancelRequested(Attributes, frozen=True, kw_only=True):
    """The run requested the cancellation of an activity."""

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
    """The run executed the new branch of a patch."""

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
    """A client or another run requested the cancellation of the run."""

    reason: str = ""
    identity: str = ""
    external_initiated_event_id: int = 0
    external_workflow_id: str = ""
    external_run_id: str = ""


class WorkflowExecutionCompleted(Attributes, frozen=True, kw_only=True):
    """The run completed with this result."""

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
    """The run ended, and a new run with this spec continues it after the backoff."""

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
    """Together with `initiator` and `failure`, this explains a run that early servers ended this way in order to retry
    it.
    """


class WorkflowExecutionOptionsUpdated(Attributes, frozen=True, kw_only=True):
    """A client changed options of the run: its versioning override or its priority."""

    identity: str = ""
    versioning_override: VersioningOverride | None = None
    priority_key: int = 0
    fairness_key: str = ""
    fairness_weight: float = 0.0


class WorkflowExecutionPaused(Attributes, frozen=True, kw_only=True):
    """A client paused the run."""

    identity: str = ""
    reason: str = ""


class WorkflowExecutionUnpaused(Attributes, frozen=True, kw_only=True):
    """A client unpaused the run."""

    identity: str = ""
    reason: str = ""


class WorkflowPropertiesModifiedExternally(ForeignAttributes, frozen=True, kw_only=True):
    """An operator changed properties of the run."""


class ActivityPropertiesModifiedExternally(ForeignAttributes, frozen=True, kw_only=True):
    """An operator changed properties of an activity."""

    scheduled_event_id: int


class NexusOperationScheduled(ForeignAttributes, frozen=True, kw_only=True):
    """The run scheduled a Nexus operation."""

    endpoint: str
    service: str
    operation: str
    task_completed_event_id: int
    argument: Payload | None = None


class NexusOperationStarted(ForeignAttributes, frozen=True, kw_only=True):
    """A Nexus operation was started. Its service identifies the operation by the token."""

    scheduled_event_id: int
    operation_token: str = ""


class NexusOperationCompleted(ForeignAttributes, frozen=True, kw_only=True):
    """A Nexus operation completed with this result."""

    scheduled_event_id: int
    result: Payload | None = None


class NexusOperationEnd(ForeignAttributes, frozen=True, kw_only=True):
    """The common attributes of the other events that report an operation's result. Not a kind of event itself."""

    scheduled_event_id: int
    failure: Failure | None = None


class NexusOperationFailed(NexusOperationEnd, frozen=True, kw_only=True):
    """A Nexus operation failed."""


class NexusOperationCanceled(NexusOperationEnd, frozen=True, kw_only=True):
    """A Nexus operation was cancelled."""


class NexusOperationTimedOut(NexusOperationEnd, frozen=True, kw_only=True):
    """A Nexus operation exceeded its timeout."""


class NexusOperationCancelRequested(ForeignAttributes, frozen=True, kw_only=True):
    """The run requested the cancellation of a Nexus operation."""

    scheduled_event_id: int
    task_completed_event_id: int


class UnknownEvent(Attributes, frozen=True, kw_only=True):
    """An event of an unknown kind: its name, such as `TIMER_FIRED`, and its attributes as JSON.

    `may_be_ignored`: whether the server allows workers to ignore the event.
    """

    name: str
    document: dict[str, Any] = {}
    may_be_ignored: bool = False


def _kinds_below(base: type[Attributes]) -> tuple[type[Attributes], ...]:
    """Return the kinds of events that are derived from a class, in order of definition, without common base classes."""
    below = base.__subclasses__()
    return tuple([kind for child in below for kind in _kinds_below(child)]) if below else (base,)


FOREIGN_KINDS = _kinds_below(ForeignAttributes)
KINDS = tuple(kind for kind in _kinds_below(Attributes) if kind not in {*FOREIGN_KINDS, UnknownEvent})

TASK_KINDS: frozenset[type[Attributes]] = frozenset(
    {
        WorkflowTaskScheduled,
        WorkflowTaskStarted,
        WorkflowTaskCompleted,
        WorkflowTaskFailed,
        WorkflowTaskTimedOut,
    }
)
"""The kinds of events that concern workflow tasks."""

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
    """An event with its id, its timestamp, and the event groups of the command that caused the event."""

    id: int
    time_ns: int
    attributes: Attributes
    event_groups: tuple[EventGroupMarker, ...] = ()
