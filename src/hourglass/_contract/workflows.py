"""Requests about workflows, and their answers: starting, messages, changes; descriptions, lists, results, histories; updates,
resets and imports. `service` describes what all requests have in common.
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
    """The action if a workflow with this id is running (Temporal's numbers)."""

    UNSPECIFIED = 0
    FAIL = 1
    USE_EXISTING = 2
    TERMINATE_EXISTING = 3


class QueryRejectCondition(IntEnum):
    """The states of a run in which a query is rejected (Temporal's numbers)."""

    NONE = 1
    NOT_OPEN = 2
    NOT_COMPLETED_CLEANLY = 3


class Started(msgspec.Struct, frozen=True):
    """The answer to a start: the new run, or (`started` False) an existing one. `becomes` is set for a debounced call that the
    engine collects itself: the id of the workflow that this call, and others that arrive meanwhile, will become.
    """

    run_id: str
    started: bool = True
    becomes: str = ""


class TimeSkippingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Time skipping for a run on a server that supports it, for tests: while the run only waits, its time advances at once."""

    enabled: bool = True
    disable_propagation: bool = False
    """Whether children of the run keep real time."""
    max_session_skip_count: int = 0
    """The maximum number of skips, after which time advances normally; 0: as many as the server allows."""


class StartWorkflow(Request[Started], frozen=True, kw_only=True):
    """Start a workflow; with `signal_name`, start and signal it in one step."""

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
    """Callers of the Nexus operation that this workflow implements: they are notified of its end. An engine without Nexus rejects
    them.
    """
    time_skipping: TimeSkippingConfig | None = None
    request_eager_start: bool = False
    """Whether a worker on the same connection may receive the first task with the answer. An embedded engine always passes it to
    one of its workers.
    """


class SignalWorkflow(Request[Nothing], frozen=True, kw_only=True):
    """Send a signal."""

    effect: ClassVar[Effect] = Effect.CHANGE
    workflow_id: str
    signal_name: str
    request_id: str
    run_id: str = ""
    arguments: Payloads = ()
    identity: str = ""
    headers: dict[str, Payload] = {}


class QueryAnswer(msgspec.Struct, frozen=True):
    """The result of a query handler; or, with a status, a rejection because of the run's status."""

    result: Payloads = ()
    rejected: WorkflowStatus = WorkflowStatus.UNSPECIFIED


class QueryWorkflow(Request[QueryAnswer], frozen=True, kw_only=True):
    """Query a workflow. A handler that raises becomes `QueryFailedError`."""

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
    """A change of an open run, with a reason. The base of the requests below."""

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
    """Terminate a workflow now. Only the embedded engine uses `request_id`; a server has none here."""

    effect: ClassVar[Effect] = Effect.CHANGE
    workflow_id: str
    run_id: str = ""
    first_execution_run_id: str = ""
    reason: str = ""
    details: Payloads = ()
    identity: str = ""
    request_id: str = ""


class UpdateWorkflowOptions(Request[Nothing], frozen=True, kw_only=True):
    """Change the options of a run: the new values of `fields` replace the old ones. Only the priority fields of `spec` can be
    changed; no versioning override removes the present one.
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
    """The state of a fast forward: ask again until it is `over`; `reason` says why it was aborted."""

    over: bool = True
    reached: bool = False
    reason: str = ""


class WaitForFastForward(Request[FastForwarded], frozen=True, kw_only=True):
    """Wait until a run's time has been skipped that far, or until the engine's long poll ends."""

    effect: ClassVar[Effect] = Effect.READ
    waits: ClassVar[bool] = True
    workflow_id: str
    fast_forward_id: str


class TimeSkippingState(msgspec.Struct, frozen=True, kw_only=True):
    """A run's own time, whether it is being skipped, and how often it was."""

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
    """Empty on a server that does not report it (before 1.28)."""
    attempt: int = 1
    maximum_attempts: int = 0
    last_failure: Failure | None = None
    scheduled_time_ns: int = 0
    """The time at which the run scheduled it, or its latest attempt."""
    next_attempt_time_ns: int = 0
    last_started_time_ns: int = 0
    last_worker_identity: str = ""
    last_heartbeat_time_ns: int = 0


class PendingChild(msgspec.Struct, frozen=True, kw_only=True):
    """A child workflow that is open; `run_id` is its first run."""

    workflow_id: str
    run_id: str
    workflow_type: str
    parent_close_policy: ParentClosePolicy = ParentClosePolicy.UNSPECIFIED


class PendingUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """An update that no worker has accepted yet, and that is therefore in no history. Only the embedded engine lists them."""

    update_id: str
    name: str


REPORTED_PROBLEMS = "TemporalReportedProblems"
"""The search attribute under which engines report a run whose workflow task keeps failing."""

TASK_FAILS, TASK_TIMES_OUT = "category=WorkflowTaskFailed", "category=WorkflowTaskTimedOut"
"""The values of `REPORTED_PROBLEMS` for a parked run."""

PARKED_RUNS = f"ExecutionStatus = 'Running' AND {REPORTED_PROBLEMS} IN ('{TASK_FAILS}', '{TASK_TIMES_OUT}')"
"""The list filter for open runs that engines report as parked."""

ACTIVITY_FAILS = "category=ActivityTaskFailed"
"""The value of `REPORTED_PROBLEMS` for a run with an activity that keeps failing. Only the embedded engine reports
it.
"""


class WorkflowSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A summary of one run. Times are nanoseconds since the epoch, 0 if unset."""

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
    """A run in detail. `next_task_time_ns` is the time of the retry of a failed workflow task, if the engine reports it.

    `deployment_version` is the version that a pinned run belongs to, or that handled its last task.
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
    """Set if the run's time was ever skipped."""
    pending_updates: tuple[PendingUpdate, ...] = ()


class DescribeWorkflow(Request[Description], frozen=True, kw_only=True):
    """Return the description of a run."""

    effect: ClassVar[Effect] = Effect.READ
    workflow_id: str
    run_id: str = ""


class Page(ReadAnswer, frozen=True):
    """A page of a list of runs; `next_page_token` is empty at the end."""

    workflows: tuple[WorkflowSummary, ...]
    next_page_token: bytes = b""


class ListWorkflows(Request[Page], frozen=True, kw_only=True):
    """List runs that match a filter of Temporal's list filter language; empty lists all."""

    effect: ClassVar[Effect] = Effect.READ
    query: str = ""
    page_size: int = 100
    next_page_token: bytes = b""


class CountGroup(msgspec.Struct, frozen=True):
    """The number of runs with these values of the grouping attributes."""

    values: tuple[str | int | float | bool, ...]
    count: int


class Count(ReadAnswer, frozen=True):
    """The number of matching runs, in total and per group."""

    count: int
    groups: tuple[CountGroup, ...] = ()


class CountWorkflows(Request[Count], frozen=True, kw_only=True):
    """Count runs that match a filter, which may end with `GROUP BY ExecutionStatus`."""

    effect: ClassVar[Effect] = Effect.READ
    query: str = ""


class RunCompleted(msgspec.Struct, frozen=True, tag=True):
    """The run returned."""

    result: Payloads = ()
    new_run_id: str = ""


class RunFailed(msgspec.Struct, frozen=True, tag=True):
    """The run failed."""

    failure: Failure
    new_run_id: str = ""


class RunCanceled(msgspec.Struct, frozen=True, tag=True):
    """The run ended as cancelled."""

    details: Payloads = ()


class RunTerminated(msgspec.Struct, frozen=True, tag=True):
    """The run was terminated."""

    reason: str = ""
    details: Payloads = ()


class RunTimedOut(msgspec.Struct, frozen=True, tag=True):
    """The run timed out."""

    new_run_id: str = ""


class RunContinued(msgspec.Struct, frozen=True, tag=True):
    """The run continued as a new run."""

    new_run_id: str


class StillOpen(msgspec.Struct, frozen=True, tag=True):
    """The run did not close within the wait; ask again. `run_id` is the observed run."""

    run_id: str = ""


Outcome: TypeAlias = (
    RunCompleted | RunFailed | RunCanceled | RunTerminated | RunTimedOut | RunContinued | StillOpen
)


class WaitForClose(Request[Outcome], frozen=True, kw_only=True):
    """Wait until a run closes, or until the engine's long poll ends; then the answer is `StillOpen`."""

    effect: ClassVar[Effect] = Effect.IDEMPOTENT
    waits: ClassVar[bool] = True
    workflow_id: str
    run_id: str = ""


class Executed(msgspec.Struct, frozen=True):
    """The answer to `ExecuteWorkflow`: the run that was started or used, and its outcome; `StillOpen` if it is open."""

    run_id: str
    outcome: Outcome


class ExecuteWorkflow(Request[Executed], frozen=True, kw_only=True):
    """Start a workflow and wait until its run closes, in one request: an engine in this process then waits for its disk
    once instead of twice. A server cannot wait, and answers `StillOpen` after the start.

    A shortcut beside `StartWorkflow` and `WaitForClose`: workflows of one activity, 50 at a time, take 20 % less CPU time with
    it (0.49 instead of 0.61 ms each).
    """

    effect: ClassVar[Effect] = Effect.CHANGE
    waits: ClassVar[bool] = True
    start: StartWorkflow


class HistoryEventFilter(IntEnum):
    """The events of a history to return (Temporal's numbers)."""

    ALL_EVENT = 1
    CLOSE_EVENT = 2
    """Only the last event; with `wait_new` the event that closes the run."""


class HistoryPage(ReadAnswer, frozen=True):
    """A page of a history: each event in Temporal's JSON form, as bytes; `next_page_token` is empty at the end."""

    events: tuple[bytes, ...]
    next_page_token: bytes = b""


class GetHistory(Request[HistoryPage], frozen=True, kw_only=True):
    """Return a page of a run's history, from its beginning or from its end; with `wait_new` wait for events that do not exist
    yet. `page_size` 0 is the engine's default. A server returns entire workflow tasks, so the number may differ slightly.
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
    """The state of an update. At COMPLETED it has a failure, or else a result.

    A stage below the requested one means that the engine's long poll ended: ask again with `PollUpdate`.
    """

    update_id: str
    workflow_id: str
    run_id: str = ""
    stage: UpdateStage = UpdateStage.UNSPECIFIED
    result: Payload | None = None
    failure: Failure | None = None


class UpdateWorkflow(Request[UpdateState], frozen=True, kw_only=True):
    """Request an update and wait until it has reached `wait_stage`. Requests with the same `update_id` are one update.

    `request_id` identifies the call, however often it is sent. Only the embedded engine uses it; a server has none here.
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
    """The run that was started or used, and its update."""

    start: Started
    update: UpdateState


class UpdateWithStart(Request[UpdateStarted], frozen=True, kw_only=True):
    """Start a workflow, or use the running one, and update it in one step."""

    effect: ClassVar[Effect] = Effect.IDEMPOTENT
    needs_worker: ClassVar[bool] = True
    start: StartWorkflow
    update: UpdateWorkflow


class ResetWorkflow(Request[Started], frozen=True, kw_only=True):
    """Terminate a run and start a new one from one of its workflow tasks; the answer names the new run.

    `event_id` is the id of the WorkflowTaskCompleted (or failed, timed out, started) event after which history is dropped.
    Messages that arrived later are sent to the new run, unless excluded.
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
    """Start a run that already has a history: `events`, in Temporal's JSON form, of which the first is its start.

    `dry_run`: only validate the history; the answer names no run. `hold`: withhold the run from workers until
    the request is repeated without `hold`. An engine that starts a run in one step ignores it.
    """

    effect: ClassVar[Effect] = Effect.CHANGE
    workflow_id: str
    events: tuple[bytes, ...]
    request_id: str
    identity: str = ""
    dry_run: bool = False
    hold: bool = False
