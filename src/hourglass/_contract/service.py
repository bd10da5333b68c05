"""What a client can ask of an engine: requests and answers as frozen data, and the one-method seam `Service.call`.

Each request class names its answer as its type parameter, so that `await service.call(Describe(…))` is typed. Payloads
are encoded; conversion happens above, transport below. Refusals are raised as `hourglass.errors.ServiceError` and its
kinds by the engine.

In this order: runs, their histories and activities; changes of a running workflow that wait for its answer
(updates, update with start, reset); deployments of workers; and what watchdogs and people ask about an engine and
its pollers, which an engine that cannot tell answers with the status `UNIMPLEMENTED`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from enum import Enum, IntEnum
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

import msgspec

from hourglass._contract.handle import Handle, HandleConfig
from hourglass._engine.specs import IdReusePolicy, ParentClosePolicy, Payloads, StartSpec
from hourglass._engine.versions import VersioningBehavior, VersioningOverride, WorkerDeploymentVersion
from hourglass.converter import Failure, Payload
from hourglass.nexus import NexusCallback

# --- runs ---------------------------------------------------------------------------------------------------


A = TypeVar("A")


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


class Effect(Enum):
    """What happens if a request is carried out, and what if that happens twice because its answer was lost."""

    CHANGE = "changes something, and must do so once"
    IDEMPOTENT = "may be carried out twice: the engine knows it by an id, or nothing comes of the second time"
    READ = "only reads what is stored: it can be answered while nothing can be written"


class Request(msgspec.Struct, Generic[A], frozen=True, kw_only=True):
    """Something asked of an engine; `A` is the answer's type. `rpc_timeout` is seconds for this one call, after which
    it fails, or (`waits`) the engine answers how it is then. `needs_worker`: an engine without a worker cannot answer.
    """

    effect: ClassVar[Effect]
    needs_worker: ClassVar[bool] = False
    waits: ClassVar[bool] = False
    default_timeout: ClassVar[float | None] = None

    rpc_timeout: float | None = None
    rpc_metadata: dict[str, str] | None = None
    """Headers of this one call, beside those of the connection; an engine in this process reads none."""

    @property
    def time_limit(self) -> float | None:
        """How long the client waits for an answer, in seconds; None: as long as it takes."""
        return self.default_timeout if self.rpc_timeout is None else self.rpc_timeout


class Nothing(msgspec.Struct, frozen=True):
    """The answer to a request that has none."""


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


class CancelWorkflow(Request[Nothing], frozen=True, kw_only=True):
    """Ask a workflow to cancel."""

    effect: ClassVar[Effect] = Effect.CHANGE
    workflow_id: str
    request_id: str
    run_id: str = ""
    first_execution_run_id: str = ""
    reason: str = ""
    identity: str = ""


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


class PauseWorkflow(Request[Nothing], frozen=True, kw_only=True):
    """Let a run rest: no worker gets its tasks, nor new attempts of its activities, until `UnpauseWorkflow`. What happens
    meanwhile is written into its history. `FAILED_PRECONDITION`: it is paused already.
    """

    effect: ClassVar[Effect] = Effect.CHANGE
    workflow_id: str
    request_id: str
    run_id: str = ""
    reason: str = ""
    identity: str = ""


class UnpauseWorkflow(Request[Nothing], frozen=True, kw_only=True):
    """Let a run that was paused go on. `FAILED_PRECONDITION`: it is not paused."""

    effect: ClassVar[Effect] = Effect.CHANGE
    workflow_id: str
    request_id: str
    run_id: str = ""
    reason: str = ""
    identity: str = ""


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


class PendingActivity(msgspec.Struct, frozen=True, kw_only=True):
    """An activity that a run waits for."""

    activity_id: str
    activity_type: str
    state: str
    attempt: int = 1
    maximum_attempts: int = 0
    last_failure: Failure | None = None
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
    """An update that no worker has accepted yet: it stands in no history. Only the embedded engine tells."""

    update_id: str
    name: str


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


class Description(msgspec.Struct, frozen=True, kw_only=True):
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
    notice: str = ""
    """What is wrong with the engine at present, if it answers nevertheless; "" if nothing is."""
    time_skipping: TimeSkippingState | None = None
    """Where its time was ever skipped."""
    pending_updates: tuple[PendingUpdate, ...] = ()


class DescribeWorkflow(Request[Description], frozen=True, kw_only=True):
    """Look at one run."""

    effect: ClassVar[Effect] = Effect.READ
    workflow_id: str
    run_id: str = ""


class Page(msgspec.Struct, frozen=True):
    """Some runs, and where to go on (empty at the end)."""

    workflows: tuple[WorkflowSummary, ...]
    next_page_token: bytes = b""
    notice: str = ""


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


class Count(msgspec.Struct, frozen=True):
    """How many runs match, and how many of them there are in each group."""

    count: int
    groups: tuple[CountGroup, ...] = ()
    notice: str = ""


class CountWorkflows(Request[Count], frozen=True, kw_only=True):
    """Count runs that match a filter, which may end with `GROUP BY ExecutionStatus`."""

    effect: ClassVar[Effect] = Effect.READ
    query: str = ""


class RunCompleted(msgspec.Struct, frozen=True):
    """The run returned."""

    result: Payloads = ()
    new_run_id: str = ""


class RunFailed(msgspec.Struct, frozen=True):
    """The run failed."""

    failure: Failure
    new_run_id: str = ""


class RunCanceled(msgspec.Struct, frozen=True):
    """The run ended as cancelled."""

    details: Payloads = ()


class RunTerminated(msgspec.Struct, frozen=True):
    """The run was terminated."""

    reason: str = ""
    details: Payloads = ()


class RunTimedOut(msgspec.Struct, frozen=True):
    """The run took too long."""

    new_run_id: str = ""


class RunContinued(msgspec.Struct, frozen=True):
    """The run continued as a new one."""

    new_run_id: str


class StillOpen(msgspec.Struct, frozen=True):
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


class HistoryEventFilter(IntEnum):
    """Which events of a history are told (Temporal's numbers)."""

    ALL_EVENT = 1
    CLOSE_EVENT = 2
    """The last one alone: where it is waited for, the one that closes the run."""


class HistoryPage(msgspec.Struct, frozen=True):
    """A page of a history: Temporal's JSON form of each event, as bytes, and where to go on."""

    events: tuple[bytes, ...]
    next_page_token: bytes = b""
    notice: str = ""


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


class CompleteActivity(Request[Nothing], frozen=True, kw_only=True):
    """End an activity from outside, by its token, or by workflow id, run id and activity id.

    Exactly one of `result`, `failure` and `cancelled_details` counts: a failure if there is one, then cancellation.
    """

    effect: ClassVar[Effect] = Effect.CHANGE
    token: bytes = b""
    workflow_id: str = ""
    run_id: str = ""
    activity_id: str = ""
    result: Payload | None = None
    failure: Failure | None = None
    last_heartbeat_details: Payloads = ()
    """With a failure: what the next attempt finds as the details of the last heartbeat; without, they stay as they are."""
    cancelled: bool = False
    cancelled_details: Payloads = ()
    identity: str = ""


class ResetActivity(Request[Nothing], frozen=True, kw_only=True):
    """Begin the attempts of a pending activity anew: at the first, now. One that a worker has goes on; the attempt after it
    is the first. `reset_heartbeat` also forgets the details of its last heartbeat.
    """

    effect: ClassVar[Effect] = Effect.IDEMPOTENT
    workflow_id: str
    activity_id: str
    run_id: str = ""
    reset_heartbeat: bool = False
    identity: str = ""


class HeartbeatAnswer(msgspec.Struct, frozen=True):
    """Whether the activity was asked to stop."""

    cancel_requested: bool = False


class HeartbeatActivity(Request[HeartbeatAnswer], frozen=True, kw_only=True):
    """Report that an activity that is completed elsewhere lives."""

    effect: ClassVar[Effect] = Effect.IDEMPOTENT
    token: bytes = b""
    workflow_id: str = ""
    run_id: str = ""
    activity_id: str = ""
    details: Payloads = ()
    identity: str = ""


class Service(Protocol):
    """The seam between client and engine."""

    def call(self, request: Request[A]) -> Coroutine[Any, Any, A]:
        """Ask, and wait for the answer."""
        ...


class Connection(Service, Protocol):
    """An open connection to an engine, for one target and namespace. All its methods run on the control loop."""

    @property
    def target(self) -> str:
        """What it is connected to, without secrets."""
        ...

    @property
    def namespace(self) -> str:
        """The namespace it works in."""
        ...

    @property
    def identity(self) -> str:
        """The identity that the engine is told."""
        ...

    async def open_handle(self, config: HandleConfig) -> Handle:
        """Open a handle for a task queue. Raises `ServiceError` where the engine refuses."""
        ...

    async def close(self) -> None:
        """Let go of everything."""
        ...


@runtime_checkable
class Remote(Protocol):
    """A connection to a server: it has credentials, which can change while it is open, and raw gRPC services. All may be
    called in any thread but `rpc`, which runs on the control loop.
    """

    def set_api_key(self, api_key: str | None) -> None:
        """Send this key from now on."""
        ...

    def set_rpc_metadata(self, metadata: Mapping[str, str]) -> None:
        """Send these headers from now on, and not those of before."""
        ...

    async def rpc(self, call: RawCall) -> Any:
        """Send a message to a service of the server, and wait for its answer. Raises `ServiceError`."""
        ...


class RawCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a gRPC service of a server, as Temporal's own messages."""

    service: str
    rpc: str
    message: Any
    answer: Any
    """The class of the answer."""
    retry: bool = False
    metadata: Mapping[str, str | bytes] = {}
    timeout: float | None = None


RawRpc: TypeAlias = Callable[[RawCall], Any]
"""What carries out a raw call: gives something to await."""


class Executed(msgspec.Struct, frozen=True):
    """A workflow was started, or an existing one was used, and how its run closed; `StillOpen` if it has not yet."""

    run_id: str
    outcome: Outcome


class Executes(Protocol):
    """A connection to an engine on this machine: a start and the wait for its end are one call, which waits for the disk
    once. What a caller hears is what the answers to the two requests would say.
    """

    def execute(self, request: StartWorkflow) -> Coroutine[Any, Any, Executed]:
        """Start a workflow, and wait until its run closes, or for as long as a wait lasts."""
        ...


# --- updates and resets -------------------------------------------------------------------------------------


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


# --- deployments --------------------------------------------------------------------------------------------


class CurrentVersionSet(msgspec.Struct, frozen=True):
    """Another version is current; `previous` was before, None if none was."""

    previous: WorkerDeploymentVersion | None = None


class SetCurrentVersion(Request[CurrentVersionSet], frozen=True, kw_only=True):
    """Send new runs, and those that move on, to workers of this build; an empty one: to workers without a version."""

    effect: ClassVar[Effect] = Effect.CHANGE
    deployment_name: str
    build_id: str
    identity: str = ""
    ignore_missing_task_queues: bool = False


class RampingVersionSet(msgspec.Struct, frozen=True):
    """Another version ramps; `previous` did before, with that percentage, None if none did."""

    previous: WorkerDeploymentVersion | None = None
    previous_percentage: float = 0.0


class SetRampingVersion(Request[RampingVersionSet], frozen=True, kw_only=True):
    """Send so many in a hundred of the runs that would go to the current version to workers of this build instead; with an empty
    one, or 0, none.
    """

    effect: ClassVar[Effect] = Effect.CHANGE
    deployment_name: str
    build_id: str
    percentage: float = 0.0
    identity: str = ""
    ignore_missing_task_queues: bool = False


class KnownVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A version that workers have had. `status` is Temporal's name for its part, such as `CURRENT` or `DRAINED`."""

    version: WorkerDeploymentVersion
    status: str = ""
    create_time_ns: int = 0


class DeploymentInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A deployment: its versions, newest first, which of them is current, and which ramps."""

    name: str
    current: WorkerDeploymentVersion | None = None
    changed_ns: int = 0
    ramping: WorkerDeploymentVersion | None = None
    ramping_percentage: float = 0.0
    versions: tuple[KnownVersion, ...] = ()


class DescribeDeployment(Request[DeploymentInfo], frozen=True, kw_only=True):
    """Look at a deployment."""

    effect: ClassVar[Effect] = Effect.READ
    deployment_name: str


# --- pollers ------------------------------------------------------------------------------------------------


class Namespace(msgspec.Struct, frozen=True):
    """A namespace that the engine serves."""

    name: str


class DescribeNamespace(Request[Namespace], frozen=True, kw_only=True):
    """Does the engine answer, and does it serve the namespace of this connection? Asked once, and not repeated in vain."""

    effect: ClassVar[Effect] = Effect.IDEMPOTENT


class CreateNamespace(Request[Nothing], frozen=True, kw_only=True):
    """Make a namespace, whose closed workflows are kept for so many seconds."""

    effect: ClassVar[Effect] = Effect.CHANGE
    name: str
    retention: float
    description: str = ""


class CreateNexusEndpoint(Request[Nothing], frozen=True, kw_only=True):
    """Make an endpoint of Nexus that leads to a task queue of a namespace; an empty one is the connection's."""

    effect: ClassVar[Effect] = Effect.CHANGE
    name: str
    task_queue: str
    namespace: str = ""
    description: str = ""


class NexusEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint of Nexus, by its name; empty fields: there is none. A server knows it by its id, and this version of it."""

    id: str = ""
    version: int = 0


class FindNexusEndpoint(Request[NexusEndpoint], frozen=True, kw_only=True):
    """Look for an endpoint of Nexus."""

    effect: ClassVar[Effect] = Effect.READ
    name: str


class DeleteNexusEndpoint(Request[Nothing], frozen=True, kw_only=True):
    """Remove an endpoint of Nexus."""

    effect: ClassVar[Effect] = Effect.CHANGE
    id: str
    version: int


class SearchAttributeTypes(msgspec.Struct, frozen=True):
    """The search attributes that users have made, with Temporal's names of their types."""

    types: dict[str, str]


class AddSearchAttributes(Request[Nothing], frozen=True, kw_only=True):
    """Make search attributes of these types. One that is there with the same type stays."""

    effect: ClassVar[Effect] = Effect.IDEMPOTENT
    types: dict[str, str]


class ListSearchAttributes(Request[SearchAttributeTypes], frozen=True, kw_only=True):
    """Which search attributes have users made?"""

    effect: ClassVar[Effect] = Effect.IDEMPOTENT


class Sighting(msgspec.Struct, frozen=True):
    """When an engine last saw a poll of an identity, by its own clock, in nanoseconds; 0 if it knows of none.

    To be compared with other sightings only: the engine's clock is not ours.
    """

    time_ns: int = 0


class LastSeen(Request[Sighting], frozen=True, kw_only=True):
    """When did the engine last see this identity poll this queue, for activities or for workflow tasks?"""

    effect: ClassVar[Effect] = Effect.IDEMPOTENT
    task_queue: str
    polled_by: str
    activities: bool = False


class Poller(msgspec.Struct, frozen=True):
    """A worker that polls, when the engine last saw that, in nanoseconds of its clock, and as which version. The rest only
    the embedded engine knows: the worker's process, whether the engine runs there, and how many workflow tasks and attempts
    of activities it has in hand.
    """

    identity: str
    last_seen_ns: int = 0
    version: WorkerDeploymentVersion | None = None
    process_id: int = 0
    is_owner: bool = False
    in_hand: int = 0


class WorkerProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that works on a file, and what it has in hand. `is_owner`: the engine runs there."""

    process_id: int
    identities: tuple[str, ...] = ()
    is_owner: bool = False
    task_queues: tuple[str, ...] = ()
    tasks: int = 0
    attempts: int = 0


class QueueStats(msgspec.Struct, frozen=True):
    """What waits on a queue, since when at most, and how much came and was taken a second of late."""

    backlog: int = 0
    age: float = 0.0
    add_rate: float = 0.0
    dispatch_rate: float = 0.0


class Pollers(msgspec.Struct, frozen=True):
    """The workers that poll a queue. `served` names all queues that are polled; empty where the engine does not know.
    `current` is the version that takes what is not pinned; None: workers without a version do. `stats` are None where they
    were not asked for, or the server does not tell.
    """

    pollers: tuple[Poller, ...] = ()
    served: tuple[str, ...] = ()
    current: WorkerDeploymentVersion | None = None
    stats: QueueStats | None = None
    ramping: WorkerDeploymentVersion | None = None
    """The version that takes a part of that."""


class GetPollers(Request[Pollers], frozen=True, kw_only=True):
    """Which workers poll this queue, for activities or for workflow tasks? With `stats`: and what waits on it?"""

    effect: ClassVar[Effect] = Effect.READ
    task_queue: str
    activities: bool = False
    stats: bool = False
