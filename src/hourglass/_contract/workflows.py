"""What a client can ask of workflows, as requests and answers.

In this order: to begin a run, to send it something, to change it; to look at it, at many, at its end, at its history; and
updates, resets and imports. What is said of every request is in `service`.
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

# --- runs: begun, told, changed -----------------------------------------------------------------------------


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
    """What to do when a workflow of this id is running (Temporal's numbers)."""

    UNSPECIFIED = 0
    FAIL = 1
    USE_EXISTING = 2
    TERMINATE_EXISTING = 3


class QueryRejectCondition(IntEnum):
    """Which runs a question is not put to (Temporal's numbers)."""

    NONE = 1
    NOT_OPEN = 2
    NOT_COMPLETED_CLEANLY = 3


class Started(msgspec.Struct, frozen=True):
    """A workflow was started, or (`started` False) an existing one was used. With `becomes` it was a call that the engine
    debounces itself: it, and what else is called meanwhile, will be a workflow of that id.
    """

    run_id: str
    started: bool = True
    becomes: str = ""


class TimeSkippingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a run's time goes on a server that can skip it, for tests: where the run only waits, it goes on at once."""

    enabled: bool = True
    disable_propagation: bool = False
    """Whether its children keep real time."""
    max_session_skip_count: int = 0
    """So many skips at most, then time goes on as it does; 0: as many as the server allows."""


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
    """Who is told when it has ended: callers of the Nexus operation that it is. An engine without Nexus refuses them."""
    time_skipping: TimeSkippingConfig | None = None
    request_eager_start: bool = False
    """Whether a worker on the same connection may have the first task with the answer. An engine in this process gives it to
    one of its workers anyway.
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
    """What a query handler returned; or, with a status, that no worker was asked, for the run is in that one."""

    result: Payloads = ()
    rejected: WorkflowStatus = WorkflowStatus.UNSPECIFIED


class QueryWorkflow(Request[QueryAnswer], frozen=True, kw_only=True):
    """Ask a question. A handler that raises becomes `QueryFailedError`."""

    effect: ClassVar[Effect] = Effect.IDEMPOTENT
    needs_worker: ClassVar[bool] = True
    default_timeout: ClassVar[float | None] = 30.0  # as long as on a server
    workflow_id: str
    query_name: str
    run_id: str = ""
    arguments: Payloads = ()
    headers: dict[str, Payload] = {}
    reject_condition: QueryRejectCondition = QueryRejectCondition.NONE


class RunChange(Request[Nothing], frozen=True, kw_only=True):
    """A change of an open run, with the reason for it: what those below have in common."""

    workflow_id: str
    request_id: str
    run_id: str = ""
    reason: str = ""
    identity: str = ""


class CancelWorkflow(RunChange, frozen=True, kw_only=True):
    """Ask a workflow to cancel."""

    effect: ClassVar[Effect] = Effect.CHANGE
    first_execution_run_id: str = ""


class PauseWorkflow(RunChange, frozen=True, kw_only=True):
    """Let a run rest: no worker gets its tasks, nor new attempts of its activities, until `UnpauseWorkflow`. What happens
    meanwhile is written into its history. `FAILED_PRECONDITION`: it is paused already.
    """

    effect: ClassVar[Effect] = Effect.CHANGE


class UnpauseWorkflow(RunChange, frozen=True, kw_only=True):
    """Let a run that was paused go on. `FAILED_PRECONDITION`: it is not paused."""

    effect: ClassVar[Effect] = Effect.CHANGE


class TerminateWorkflow(Request[Nothing], frozen=True, kw_only=True):
    """End a workflow now, without asking it. `request_id` is for the embedded engine: a server knows none here."""

    effect: ClassVar[Effect] = Effect.CHANGE
    workflow_id: str
    run_id: str = ""
    first_execution_run_id: str = ""
    reason: str = ""
    details: Payloads = ()
    identity: str = ""
    request_id: str = ""


class UpdateWorkflowOptions(Request[Nothing], frozen=True, kw_only=True):
    """Change what was said of a run: those of `fields` hold from now on, in place of what was said before. No override takes back
    what was said of its version; of the spec only its priority can be changed.
    """

    effect: ClassVar[Effect] = Effect.IDEMPOTENT
    workflow_id: str
    run_id: str = ""
    fields: tuple[str, ...] = ("versioning_override",)
    versioning_override: VersioningOverride | None = None
    spec: StartSpec = StartSpec()
    identity: str = ""


class SkipTime(Request[Nothing], frozen=True, kw_only=True):
    """Have a run's time skipped from now on: without `fast_forward_id` until it ends, else by so many seconds."""

    effect: ClassVar[Effect] = Effect.IDEMPOTENT
    workflow_id: str
    run_id: str = ""
    config: TimeSkippingConfig = TimeSkippingConfig()
    fast_forward_id: str = ""
    seconds: float = 0.0
    identity: str = ""


class FastForwarded(msgspec.Struct, frozen=True):
    """What became of it: not `over`, ask again; `reason` says why it did not come to its end."""

    over: bool = True
    reached: bool = False
    reason: str = ""


class WaitForFastForward(Request[FastForwarded], frozen=True, kw_only=True):
    """Wait until a run's time has come so far, or until the engine's long poll ends."""

    effect: ClassVar[Effect] = Effect.READ
    waits: ClassVar[bool] = True
    workflow_id: str
    fast_forward_id: str


class TimeSkippingState(msgspec.Struct, frozen=True, kw_only=True):
    """A run's own time, and whether it is skipped now, how often it was."""

    current_time_ns: int
    config: TimeSkippingConfig
    skips: int = 0


class DeleteWorkflow(Request[Nothing], frozen=True, kw_only=True):
    """Remove a run and its history for good; one that is open is terminated first. A server may take a moment."""

    effect: ClassVar[Effect] = Effect.IDEMPOTENT
    workflow_id: str
    run_id: str = ""


# --- runs as they are ---------------------------------------------------------------------------------------


class PendingActivity(msgspec.Struct, frozen=True, kw_only=True):
    """An activity that a run waits for."""

    activity_id: str
    activity_type: str
    state: str
    task_queue: str = ""
    """Where it waits for a worker; empty of a server that does not say (before 1.28)."""
    attempt: int = 1
    maximum_attempts: int = 0
    last_failure: Failure | None = None
    scheduled_time_ns: int = 0
    """When the run asked for it, or for its latest attempt."""
    next_attempt_time_ns: int = 0
    last_started_time_ns: int = 0
    last_worker_identity: str = ""
    last_heartbeat_time_ns: int = 0


class PendingChild(msgspec.Struct, frozen=True, kw_only=True):
    """A child workflow that has not ended; `run_id` is its first run."""

    workflow_id: str
    run_id: str
    workflow_type: str
    parent_close_policy: ParentClosePolicy = ParentClosePolicy.UNSPECIFIED


class PendingUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """An update that no worker has accepted yet: it is in no history. Only the embedded engine lists them."""

    update_id: str
    name: str


REPORTED_PROBLEMS = "TemporalReportedProblems"
"""The search attribute under which engines report a run whose workflow task keeps failing."""

TASK_FAILS, TASK_TIMES_OUT = "category=WorkflowTaskFailed", "category=WorkflowTaskTimedOut"
"""Its values for a run that is parked."""

PARKED_RUNS = f"ExecutionStatus = 'Running' AND {REPORTED_PROBLEMS} IN ('{TASK_FAILS}', '{TASK_TIMES_OUT}')"
"""The filter of the open runs that engines report as parked."""

ACTIVITY_FAILS = "category=ActivityTaskFailed"
"""Its value for a run of which an activity keeps failing. Only the embedded engine reports it."""


class WorkflowSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one run. Times are nanoseconds since the epoch, 0 where unset."""

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
    return payload is not None and any(each.encode() in payload.data for each in (TASK_FAILS, TASK_TIMES_OUT))


class Description(ReadAnswer, frozen=True, kw_only=True):
    """A run in detail. `next_task_time_ns`: when a task that failed is tried again, where the engine tells.

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
    """Where its time was ever skipped."""
    pending_updates: tuple[PendingUpdate, ...] = ()


class DescribeWorkflow(Request[Description], frozen=True, kw_only=True):
    """Look at one run."""

    effect: ClassVar[Effect] = Effect.READ
    workflow_id: str
    run_id: str = ""


class Page(ReadAnswer, frozen=True):
    """Some runs, and where to go on (empty at the end)."""

    workflows: tuple[WorkflowSummary, ...]
    next_page_token: bytes = b""


class ListWorkflows(Request[Page], frozen=True, kw_only=True):
    """List runs that match a filter of Temporal's list filter language; empty lists all."""

    effect: ClassVar[Effect] = Effect.READ
    query: str = ""
    page_size: int = 100
    next_page_token: bytes = b""


class CountGroup(msgspec.Struct, frozen=True):
    """How many runs have these values of what was grouped by."""

    values: tuple[str | int | float | bool, ...]
    count: int


class Count(ReadAnswer, frozen=True):
    """How many runs match, and how many of them there are in each group."""

    count: int
    groups: tuple[CountGroup, ...] = ()


class CountWorkflows(Request[Count], frozen=True, kw_only=True):
    """Count runs that match a filter, which may end with `GROUP BY ExecutionStatus`."""

    effect: ClassVar[Effect] = Effect.READ
    query: str = ""


# --- how a run closed ---------------------------------------------------------------------------------------


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
    """The run took too long."""

    new_run_id: str = ""


class RunContinued(msgspec.Struct, frozen=True, tag=True):
    """The run continued as a new one."""

    new_run_id: str


class StillOpen(msgspec.Struct, frozen=True, tag=True):
    """The run did not close within the wait; ask again. `run_id` is the run that was watched."""

    run_id: str = ""


Outcome: TypeAlias = (
    RunCompleted | RunFailed | RunCanceled | RunTerminated | RunTimedOut | RunContinued | StillOpen
)


class WaitForClose(Request[Outcome], frozen=True, kw_only=True):
    """Wait until a run closes, or until the engine's long poll ends (then the answer is `StillOpen`)."""

    effect: ClassVar[Effect] = Effect.IDEMPOTENT
    waits: ClassVar[bool] = True
    workflow_id: str
    run_id: str = ""


class Executed(msgspec.Struct, frozen=True):
    """The answer to `ExecuteWorkflow`: the run that was started or used, and how it closed; `StillOpen` if it has not yet."""

    run_id: str
    outcome: Outcome


class ExecuteWorkflow(Request[Executed], frozen=True, kw_only=True):
    """Start a workflow and wait until its run closes, in one request: an engine in this process then waits for its disk
    once instead of twice. An engine that cannot wait, such as a server, answers `StillOpen` after the start.
    """

    effect: ClassVar[Effect] = Effect.CHANGE
    waits: ClassVar[bool] = True
    start: StartWorkflow


# --- histories ----------------------------------------------------------------------------------------------


class HistoryEventFilter(IntEnum):
    """Which events of a history are told (Temporal's numbers)."""

    ALL_EVENT = 1
    CLOSE_EVENT = 2
    """The last one alone: where it is waited for, the one that closes the run."""


class HistoryPage(ReadAnswer, frozen=True):
    """A page of a history: Temporal's JSON form of each event, as bytes, and where to go on."""

    events: tuple[bytes, ...]
    next_page_token: bytes = b""


class GetHistory(Request[HistoryPage], frozen=True, kw_only=True):
    """Fetch a page of a run's history, from its beginning or from its end; with `wait_new` wait for what is not there yet.
    `page_size` 0 is the engine's own; a server gives whole workflow tasks, so it may be a few more or less.
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


# --- updates, resets, imports -------------------------------------------------------------------------------


class UpdateStage(IntEnum):
    """How far an update has come (Temporal's numbers)."""

    UNSPECIFIED = 0
    ADMITTED = 1
    ACCEPTED = 2
    COMPLETED = 3


class UpdateState(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an update: at COMPLETED exactly one of `result` and `failure` counts (a failure if there is one).

    A stage below the one that was waited for means that the engine's long poll ended: ask again with `PollUpdate`.
    """

    update_id: str
    workflow_id: str
    run_id: str = ""
    stage: UpdateStage = UpdateStage.UNSPECIFIED
    result: Payload | None = None
    failure: Failure | None = None


class UpdateWorkflow(Request[UpdateState], frozen=True, kw_only=True):
    """Ask for an update and wait until it has come to `wait_stage`. The same `update_id` again is the same update.

    `request_id` names the call, however often it is sent: for the embedded engine, a server knows none here.
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
    """Wait on for an update."""

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
    """Start a workflow, or use the one that runs, and update it in one step."""

    effect: ClassVar[Effect] = Effect.IDEMPOTENT
    needs_worker: ClassVar[bool] = True
    start: StartWorkflow
    update: UpdateWorkflow


class ResetWorkflow(Request[Started], frozen=True, kw_only=True):
    """End a run and begin it anew from one of its workflow tasks; the answer names the new run.

    `event_id` is the id of the WorkflowTaskCompleted (or failed, timed out, started) event after which history is dropped.
    What arrived after that is sent to the new run again, unless it is excluded.
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
    """Begin a run of this id that has a history already: `events`, in Temporal's JSON form, the first of them its start.
    It goes on from their end.

    `dry_run`: only refuse what cannot be, and begin nothing (the answer names no run). `hold`: let no worker have it yet; the
    same request without it lets it go. An engine that begins a run in one step has nothing to hold.
    """

    effect: ClassVar[Effect] = Effect.CHANGE
    workflow_id: str
    events: tuple[bytes, ...]
    request_id: str
    identity: str = ""
    dry_run: bool = False
    hold: bool = False
