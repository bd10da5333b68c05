"""Requests about workflows, and their answers: starts, messages and changes; descriptions, lists, results and histories;
updates, resets and imports. `service` describes the properties that all requests share.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar, TypeAlias

import msgspec

from hourglass._contract.service import Effect, Nothing, ReadAnswer, Request
from hourglass._evaluator.specs import (
    IdReusePolicy,
    ParentClosePolicy,
    Payloads,
    StartSpec,
    VersioningBehavior,
    VersioningOverride,
    WorkerDeploymentVersion,
)
from hourglass.converter import Failure, Payload
from hourglass.nexus import NexusCallback


class WorkflowStatus(IntEnum):
    """The status of a run (Temporal's numbers)."""

    UNSPECIFIED = 0
    RUNNING = 1
    COMPLETED = 2
    FAILED = 3
    CANCELED = 4
    TERMINATED = 5
    CONTINUED_AS_NEW = 6
    TIMED_OUT = 7
    PAUSED = 8


class IdConflictPolicy(IntEnum):
    """The action if a workflow with the same id is running (Temporal's numbers)."""

    UNSPECIFIED = 0
    FAIL = 1
    USE_EXISTING = 2
    TERMINATE_EXISTING = 3


class QueryRejectCondition(IntEnum):
    """The states of a run in which a query must be rejected (Temporal's numbers)."""

    NONE = 1
    NOT_OPEN = 2
    NOT_COMPLETED_CLEANLY = 3


class Started(msgspec.Struct, frozen=True):
    """The answer to a start: the new run, or an existing run (`started` is False). `becomes` is set for a debounced call
    that the engine itself collects. It is the id of the workflow that this call, and other calls that arrive before its
    start, will become.
    """

    run_id: str
    started: bool = True
    becomes: str = ""


class TimeSkippingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Time skipping for a run, for tests, on a server that supports it. While the run only waits, its time advances
    immediately.
    """

    enabled: bool = True
    disable_propagation: bool = False
    """Whether the run's children do not skip time."""
    max_session_skip_count: int = 0
    """The maximum number of skips, after which time advances normally. 0 means as many as the server allows."""


class StartWorkflow(Request[Started], frozen=True, kw_only=True):
    """Start a workflow. With `signal_name`, start and signal the workflow in one step."""

    effect: ClassVar[Effect] = Effect.CHANGE
    workflow_id: str
    workflow_type: str
    request_id: str
    arguments: Payloads = ()
    headers: dict[str, Payload] = {}
    spec: StartSpec = StartSpec()
    identity: str = ""
    start_delay: float | None = None
    id_reuse_policy: IdReusePolicy = IdReusePolicy.ALLOW_DUPLICATE
    id_conflict_policy: IdConflictPolicy = IdConflictPolicy.UNSPECIFIED
    signal_name: str = ""
    signal_arguments: Payloads = ()
    versioning_override: VersioningOverride | None = None
    callbacks: tuple[NexusCallback, ...] = ()
    """The callers of the Nexus operation that this workflow implements. They are notified when the workflow closes. An
    engine without Nexus rejects callbacks.
    """
    time_skipping: TimeSkippingConfig | None = None
    request_eager_start: bool = False
    """Whether a worker on the same connection may receive the first task in the answer. An embedded engine always passes
    the task to one of its workers.
    """


class SignalWorkflow(Request[Nothing], frozen=True, kw_only=True):
    """Send a signal to a workflow."""

    effect: ClassVar[Effect] = Effect.CHANGE
    workflow_id: str
    signal_name: str
    request_id: str
    run_id: str = ""
    arguments: Payloads = ()
    identity: str = ""
    headers: dict[str, Payload] = {}


class QueryAnswer(msgspec.Struct, frozen=True):
    """The result of a query handler. If `rejected` is set, the query was rejected because the run has this status."""

    result: Payloads = ()
    rejected: WorkflowStatus = WorkflowStatus.UNSPECIFIED


class QueryWorkflow(Request[QueryAnswer], frozen=True, kw_only=True):
    """Query a workflow. An exception in the handler is raised as `QueryFailedError`."""

    effect: ClassVar[Effect] = Effect.IDEMPOTENT
    needs_worker: ClassVar[bool] = True
    default_timeout: ClassVar[float | None] = 30.0  # as on a server
    workflow_id: str
    query_name: str
    run_id: str = ""
    arguments: Payloads = ()
    headers: dict[str, Payload] = {}
    reject_condition: QueryRejectCondition = QueryRejectCondition.NONE


class OpenRunRequest(Request[Nothing], frozen=True, kw_only=True):
    """A change of an open run, with a reason. The base class of the requests below."""

    workflow_id: str
    request_id: str
    run_id: str = ""
    reason: str = ""
    identity: str = ""


class CancelWorkflow(OpenRunRequest, frozen=True, kw_only=True):
    """Request the cancellation of a workflow."""

    effect: ClassVar[Effect] = Effect.CHANGE
    first_execution_run_id: str = ""


class PauseWorkflow(OpenRunRequest, frozen=True, kw_only=True):
    """Pause the run: no worker receives its tasks, or new attempts of its activities, until `unpause`.

    A running attempt may finish; signals, timers and results are recorded, and wait. Fails with `FAILED_PRECONDITION` if the
    run is already paused. A server may have this disabled (`frontend.WorkflowPauseEnabled`), and then rejects it.
    """

    effect: ClassVar[Effect] = Effect.CHANGE
    method: ClassVar[str] = "pause"


class UnpauseWorkflow(OpenRunRequest, frozen=True, kw_only=True):
    """Resume the run after a pause. Fails with `FAILED_PRECONDITION` if it is not paused."""

    effect: ClassVar[Effect] = Effect.CHANGE
    method: ClassVar[str] = "unpause"


class TerminateWorkflow(Request[Nothing], frozen=True, kw_only=True):
    """Terminate a workflow immediately. Only the embedded engine uses `request_id`, because a server does not support it
    here.
    """

    effect: ClassVar[Effect] = Effect.CHANGE
    workflow_id: str
    run_id: str = ""
    first_execution_run_id: str = ""
    reason: str = ""
    details: Payloads = ()
    identity: str = ""
    request_id: str = ""


class UpdateWorkflowOptions(Request[Nothing], frozen=True, kw_only=True):
    """Change the options of a run: the new values of `fields` replace the old ones. Of `spec`, only the priority fields
    can be changed. If the versioning override is None, the current override is removed.
    """

    effect: ClassVar[Effect] = Effect.IDEMPOTENT
    workflow_id: str
    run_id: str = ""
    fields: tuple[str, ...] = ("versioning_override",)
    versioning_override: VersioningOverride | None = None
    spec: StartSpec = StartSpec()
    identity: str = ""


class SkipTime(Request[Nothing], frozen=True, kw_only=True):
    """Start skipping time in a run: until the run ends or, if `fast_forward_id` is set, by `seconds`."""

    effect: ClassVar[Effect] = Effect.IDEMPOTENT
    workflow_id: str
    run_id: str = ""
    config: TimeSkippingConfig = TimeSkippingConfig()
    fast_forward_id: str = ""
    seconds: float = 0.0
    identity: str = ""


class FastForwarded(msgspec.Struct, frozen=True):
    """The state of a fast forward. If it is not `over`, the request must be repeated. `reason` says why the fast forward
    was aborted.
    """

    over: bool = True
    reached: bool = False
    reason: str = ""


class WaitForFastForward(Request[FastForwarded], frozen=True, kw_only=True):
    """Wait until a fast forward of a run's time is complete, or until the engine ends the long poll."""

    effect: ClassVar[Effect] = Effect.READ
    waits: ClassVar[bool] = True
    workflow_id: str
    fast_forward_id: str


class TimeSkippingState(msgspec.Struct, frozen=True, kw_only=True):
    """A run's own time, the settings for skipping it, and the number of skips so far."""

    current_time_ns: int
    config: TimeSkippingConfig
    skips: int = 0


class DeleteWorkflow(Request[Nothing], frozen=True, kw_only=True):
    """Remove the run and its history. An open run is terminated first; a server takes a moment."""

    effect: ClassVar[Effect] = Effect.IDEMPOTENT
    method: ClassVar[str] = "delete"
    workflow_id: str
    run_id: str = ""


class PendingActivity(msgspec.Struct, frozen=True, kw_only=True):
    """A pending activity of a run."""

    activity_id: str
    activity_type: str
    state: str
    task_queue: str = ""
    """The task queue of the activity. Empty if the server does not report it (before 1.28)."""
    attempt: int = 1
    maximum_attempts: int = 0
    last_failure: Failure | None = None
    scheduled_time_ns: int = 0
    """The scheduled time of the activity, or of its latest attempt."""
    next_attempt_time_ns: int = 0
    last_started_time_ns: int = 0
    last_worker_identity: str = ""
    last_heartbeat_time_ns: int = 0


class PendingChild(msgspec.Struct, frozen=True, kw_only=True):
    """An open child workflow. `run_id` is the child's first run."""

    workflow_id: str
    run_id: str
    workflow_type: str
    parent_close_policy: ParentClosePolicy = ParentClosePolicy.UNSPECIFIED


class PendingUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """An update that no worker has accepted yet and that is therefore not in the history. Only the embedded engine
    reports these.
    """

    update_id: str
    name: str


REPORTED_PROBLEMS = "TemporalReportedProblems"
"""The search attribute that engines set on a run whose workflow task keeps failing."""

TASK_FAILS, TASK_TIMES_OUT = "category=WorkflowTaskFailed", "category=WorkflowTaskTimedOut"
"""The values of `REPORTED_PROBLEMS` for a parked run."""

PARKED_RUNS = f"ExecutionStatus = 'Running' AND {REPORTED_PROBLEMS} IN ('{TASK_FAILS}', '{TASK_TIMES_OUT}')"
"""The list filter that matches the open runs that engines report as parked."""

ACTIVITY_FAILS = "category=ActivityTaskFailed"
"""The value of `REPORTED_PROBLEMS` for a run with an activity that keeps failing. Only the embedded engine reports these
activities.
"""


class WorkflowSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A summary of a run. Times are nanoseconds since the epoch, or 0 if unset."""

    workflow_id: str
    run_id: str
    workflow_type: str
    status: WorkflowStatus
    task_queue: str = ""
    start_time_ns: int = 0
    execution_time_ns: int = 0
    close_time_ns: int = 0
    history_length: int = 0
    parent_workflow_id: str = ""
    parent_run_id: str = ""
    root_workflow_id: str = ""
    root_run_id: str = ""
    memo: dict[str, Payload] = {}
    search_attributes: dict[str, Payload] = {}


def reports_task_problem(run: WorkflowSummary) -> bool:
    """Whether the engine reports that the run's workflow task keeps failing or timing out."""
    payload = run.search_attributes.get(REPORTED_PROBLEMS)
    return payload is not None and any(
        problem.encode() in payload.data for problem in (TASK_FAILS, TASK_TIMES_OUT)
    )


class Description(ReadAnswer, frozen=True, kw_only=True):
    """The details of a run. `next_task_time_ns` is the time of the next attempt of a failed workflow task, if the engine
    reports that time.

    `deployment_version` is the version that a pinned run belongs to, or the version that completed the last task of an
    unpinned run.
    """

    summary: WorkflowSummary
    pending_activities: tuple[PendingActivity, ...] = ()
    task_attempt: int = 0
    first_execution_run_id: str = ""
    static_summary: Payload | None = None
    static_details: Payload | None = None
    pending_children: tuple[PendingChild, ...] = ()
    next_task_time_ns: int = 0
    versioning_behavior: VersioningBehavior = VersioningBehavior.UNSPECIFIED
    deployment_version: WorkerDeploymentVersion | None = None
    time_skipping: TimeSkippingState | None = None
    """The state of time skipping, or None if the run's time has never been skipped."""
    pending_updates: tuple[PendingUpdate, ...] = ()


class DescribeWorkflow(Request[Description], frozen=True, kw_only=True):
    """Return the description of a run."""

    effect: ClassVar[Effect] = Effect.READ
    workflow_id: str
    run_id: str = ""


class Page(ReadAnswer, frozen=True):
    """A page of a list of runs. `next_page_token` is empty on the last page."""

    workflows: tuple[WorkflowSummary, ...]
    next_page_token: bytes = b""


class ListWorkflows(Request[Page], frozen=True, kw_only=True):
    """List the runs that match a filter in Temporal's list filter language. An empty filter matches all."""

    effect: ClassVar[Effect] = Effect.READ
    query: str = ""
    page_size: int = 100
    next_page_token: bytes = b""


class CountGroup(msgspec.Struct, frozen=True):
    """The number of runs with these values of the attributes in `GROUP BY`."""

    values: tuple[str | int | float | bool, ...]
    count: int


class Count(ReadAnswer, frozen=True):
    """The number of matching runs, in total and by group."""

    count: int
    groups: tuple[CountGroup, ...] = ()


class CountWorkflows(Request[Count], frozen=True, kw_only=True):
    """Count the runs that match a filter, which may end with `GROUP BY ExecutionStatus`."""

    effect: ClassVar[Effect] = Effect.READ
    query: str = ""


class RunCompleted(msgspec.Struct, frozen=True, tag=True):
    """The run completed with this result."""

    result: Payloads = ()
    new_run_id: str = ""


class RunFailed(msgspec.Struct, frozen=True, tag=True):
    """The run failed."""

    failure: Failure
    new_run_id: str = ""


class RunCanceled(msgspec.Struct, frozen=True, tag=True):
    """The run was cancelled."""

    details: Payloads = ()


class RunTerminated(msgspec.Struct, frozen=True, tag=True):
    """The run was terminated."""

    reason: str = ""
    details: Payloads = ()


class RunTimedOut(msgspec.Struct, frozen=True, tag=True):
    """The run timed out."""

    new_run_id: str = ""


class RunContinued(msgspec.Struct, frozen=True, tag=True):
    """The run continued as new, as another run."""

    new_run_id: str


class StillOpen(msgspec.Struct, frozen=True, tag=True):
    """The run was still open when the wait ended, so the request must be repeated. `run_id` is the run that was observed."""

    run_id: str = ""


Outcome: TypeAlias = (
    RunCompleted | RunFailed | RunCanceled | RunTerminated | RunTimedOut | RunContinued | StillOpen
)


class WaitForClose(Request[Outcome], frozen=True, kw_only=True):
    """Wait until a run closes, or until the engine ends the long poll. In that case the answer is `StillOpen`."""

    effect: ClassVar[Effect] = Effect.IDEMPOTENT
    waits: ClassVar[bool] = True
    workflow_id: str
    run_id: str = ""


class Executed(msgspec.Struct, frozen=True):
    """The answer to `ExecuteWorkflow`: the run that was started or used, and its outcome. The outcome is `StillOpen` if
    the run has not closed.
    """

    run_id: str
    outcome: Outcome


class ExecuteWorkflow(Request[Executed], frozen=True, kw_only=True):
    """Start a workflow and wait until its run closes, in one request. An engine in this process then waits for a disk
    sync once instead of twice. A server cannot wait, and answers `StillOpen` after the start.

    This is a shortcut beside `StartWorkflow` and `WaitForClose`. With it, workflows of one activity, 50 at a time, take
    20 % less CPU time (0.49 ms instead of 0.61 ms each).
    """

    effect: ClassVar[Effect] = Effect.CHANGE
    waits: ClassVar[bool] = True
    start: StartWorkflow


class HistoryEventFilter(IntEnum):
    """The events of a history to return (Temporal's numbers)."""

    ALL_EVENT = 1
    CLOSE_EVENT = 2
    """Only the last event. With `wait_new`, wait for the event that closes the run."""


class HistoryPage(ReadAnswer, frozen=True):
    """A page of a history: each event in Temporal's JSON form, as bytes. `next_page_token` is empty on the last page."""

    events: tuple[bytes, ...]
    next_page_token: bytes = b""


class GetHistory(Request[HistoryPage], frozen=True, kw_only=True):
    """Return a page of a run's history, in chronological order or with the newest events first. With `wait_new`, wait
    for events that do not exist yet. A `page_size` of 0 means the engine's default. A server never splits the events of
    a workflow task, so the number of events may differ slightly.
    """

    effect: ClassVar[Effect] = Effect.READ
    waits: ClassVar[bool] = True
    workflow_id: str
    run_id: str = ""
    next_page_token: bytes = b""
    wait_new: bool = False
    page_size: int = 0
    newest_first: bool = False
    event_filter: HistoryEventFilter = HistoryEventFilter.ALL_EVENT


class UpdateStage(IntEnum):
    """The stage of an update (Temporal's numbers)."""

    UNSPECIFIED = 0
    ADMITTED = 1
    ACCEPTED = 2
    COMPLETED = 3


class UpdateState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of an update. At the stage COMPLETED, the update has either a failure or a result.

    If the stage is lower than requested, the engine has ended the long poll, and the client must repeat the wait with
    `PollUpdate`.
    """

    update_id: str
    workflow_id: str
    run_id: str = ""
    stage: UpdateStage = UpdateStage.UNSPECIFIED
    result: Payload | None = None
    failure: Failure | None = None


class UpdateWorkflow(Request[UpdateState], frozen=True, kw_only=True):
    """Request an update and wait until it has reached `wait_stage`. Requests with the same `update_id` refer to the same
    update.

    `request_id` identifies the call, however often the request is sent. Only the embedded engine uses this id, because a
    server does not support it here.
    """

    effect: ClassVar[Effect] = Effect.IDEMPOTENT
    needs_worker: ClassVar[bool] = True
    waits: ClassVar[bool] = True
    workflow_id: str
    update_id: str
    update_name: str
    run_id: str = ""
    first_execution_run_id: str = ""
    arguments: Payloads = ()
    headers: dict[str, Payload] = {}
    identity: str = ""
    wait_stage: UpdateStage = UpdateStage.ACCEPTED
    request_id: str = ""


class PollUpdate(Request[UpdateState], frozen=True, kw_only=True):
    """Wait until an update has reached `wait_stage`."""

    effect: ClassVar[Effect] = Effect.IDEMPOTENT
    needs_worker: ClassVar[bool] = True
    waits: ClassVar[bool] = True
    workflow_id: str
    update_id: str
    run_id: str = ""
    identity: str = ""
    wait_stage: UpdateStage = UpdateStage.COMPLETED


class UpdateStarted(msgspec.Struct, frozen=True):
    """The run that was started or used, and the state of its update."""

    start: Started
    update: UpdateState


class UpdateWithStart(Request[UpdateStarted], frozen=True, kw_only=True):
    """Start a workflow, or use the running one, and send it an update in one step."""

    effect: ClassVar[Effect] = Effect.IDEMPOTENT
    needs_worker: ClassVar[bool] = True
    start: StartWorkflow
    update: UpdateWorkflow


class ResetWorkflow(Request[Started], frozen=True, kw_only=True):
    """Terminate a run and start a new run from one of its workflow tasks. The answer contains the new run.

    `event_id` is the id of the WorkflowTaskCompleted event after which the history is dropped. The id of a failed,
    timed-out or started event is also accepted. Messages that arrived later are sent to the new run, unless they are
    excluded.
    """

    effect: ClassVar[Effect] = Effect.CHANGE
    workflow_id: str
    event_id: int
    request_id: str
    run_id: str = ""
    reason: str = ""
    identity: str = ""
    reapply_signals: bool = True
    reapply_updates: bool = True


class ImportWorkflow(Request[Started], frozen=True, kw_only=True):
    """Start a run from an existing history. `events` are its events in Temporal's JSON form, beginning with the start of
    the workflow.

    `dry_run`: only validate the history. The answer then contains no run. `hold`: withhold the run from workers until
    the request is repeated without `hold`. An engine that creates the run in one step ignores `hold`.
    """

    effect: ClassVar[Effect] = Effect.CHANGE
    workflow_id: str
    events: tuple[bytes, ...]
    request_id: str
    identity: str = ""
    dry_run: bool = False
    hold: bool = False
