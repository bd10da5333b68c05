"""A handle: an open connection of a worker to an engine, for one task queue.

Rules that hold for every engine:

- A handle delivers the engine's work for the worker to the receivers of `start`, in the order in which it came. It calls them
  neither inside `start` or `resume` nor while it takes a completion. A receiver raises nothing, and calls the handle back
  in a later turn of the loop only.
- Every activation is completed exactly once, evictions included. Completions of one run are sent in order: the next one after
  the previous one was taken.
- A run that a worker knows is evicted before it is forgotten. The exception: an engine in this process may answer a completion
  with `RUN_FORGOTTEN`; then no eviction follows. The worker may not know that the run is closed: it may have been
  terminated while the worker answered a query.
- A completion is never cancelled. Only `HandleBroken`, and a bug of ours, is raised by one.
- `initiate_shutdown` stops new work and may be called more than once; `finalize` is awaited once, after `on_end` was called for
  both kinds and with no completion in progress.

All methods belong to the loop that opened the handle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec

from hourglass._contract.tuning import PollerBehavior, PollerBehaviorAutoscaling
from hourglass._evaluator.commands import Completion
from hourglass._evaluator.events import Activation
from hourglass._evaluator.specs import ActivitySpec, Payloads, VersioningBehavior, WorkerDeploymentVersion
from hourglass.converter import ActivitySerializationContext, Codec, Converter, Failure, Payload
from hourglass.errors import HourglassError, UsageError

if TYPE_CHECKING:
    import asyncio


class Shutdown(HourglassError):
    """The handle is shut down: there is nothing more to poll."""


class HandleBroken(HourglassError):
    """The handle failed for good; a new one is needed."""


class ActivityTask(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One attempt of an activity, to be executed here: its spec as the engine understood it. Times are nanoseconds since
    the epoch.
    """

    token: bytes
    activity_id: str
    activity_type: str
    spec: ActivitySpec = ActivitySpec()
    arguments: Payloads = ()
    attempt: int = 1
    is_local: bool = False
    namespace: str = ""
    workflow_id: str = ""
    run_id: str = ""
    workflow_type: str = ""
    activity_run_id: str = ""
    """Of one that belongs to no workflow: its own run. It has no workflow's id then."""
    headers: dict[str, Payload] = {}
    heartbeat_details: Payloads = ()
    scheduled_time_ns: int = 0
    current_attempt_scheduled_time_ns: int = 0
    started_time_ns: int = 0


class ActivityCancel(msgspec.Struct, frozen=True, gc=False):
    """Stop an attempt that is running here. `reason` is Core's name for why, such as `CANCELLED` or `TIMED_OUT`."""

    token: bytes
    reason: str = "CANCELLED"


ActivityItem: TypeAlias = ActivityTask | ActivityCancel


class ActivityOk(msgspec.Struct, frozen=True, gc=False):
    """The attempt returned."""

    token: bytes
    result: Payload | None = None


class AttemptFailed(msgspec.Struct, frozen=True):
    """The attempt failed."""

    token: bytes
    failure: Failure
    is_last_here: bool = False
    """Whether its worker stops. An engine that retries local activities on the same handle (Core) must not retry this one."""


class AttemptCancelled(msgspec.Struct, frozen=True):
    """The attempt ended because it was cancelled."""

    token: bytes
    failure: Failure


def context_of(task: ActivityTask) -> ActivitySerializationContext:
    """Whose values an activity's arguments and its result are."""
    return ActivitySerializationContext(
        namespace=task.namespace,
        activity_id=task.activity_id,
        activity_type=task.activity_type,
        activity_task_queue=task.spec.task_queue or None,
        workflow_id=task.workflow_id or None,
        workflow_type=task.workflow_type or None,
        is_local=task.is_local,
    )


class ActivityDeferred(msgspec.Struct, frozen=True, gc=False):
    """The attempt will be completed later, by a client that has its token."""

    token: bytes


ActivityResult: TypeAlias = ActivityOk | AttemptFailed | AttemptCancelled | ActivityDeferred


@dataclass(frozen=True)
class NexusServices:
    """The Nexus services that a worker serves, by name, and what their operations need."""

    services: Mapping[str, Any]
    executor: Executor
    converter: Converter
    codec: Codec | None
    client: Callable[[], Any]
    inbound: Any
    """`NexusOperationInboundInterceptor`: what stands before the functions, and they themselves."""
    registry: Any
    polls: PollerBehavior
    slots: int


class HandleConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a handle behaves; checked by `check` before any engine sees it."""

    task_queue: str
    identity: str = ""
    build_id: str = ""
    workflows: bool = True
    activities: bool = True
    max_cached_workflows: int = 1000
    max_busy_workflows: int = 0
    """So many runs are kept in all, beyond `max_cached_workflows`, while those are busy: their activities are under way, and
    they will be back soon. An engine that does not know which are keeps none.
    """
    max_concurrent_workflow_tasks: int = 100
    max_concurrent_activities: int = 100
    max_concurrent_local_activities: int = 100
    workflow_pollers: int = 5
    activity_pollers: int = 5
    sticky_timeout: float = 5.0
    heartbeat_throttle: float = 5.0
    """The longest pause between two heartbeats of an attempt that reach the engine."""
    default_heartbeat_throttle: float = 5.0
    """The same where the activity has no heartbeat timeout."""
    max_activities_per_second: float | None = None
    max_task_queue_activities_per_second: float | None = None
    """The same for all workers of the queue together, which a server keeps."""
    remote_activities: bool = True
    """Whether it takes activities of the queue, too, or executes local ones alone."""
    max_eager_activities: int = 3
    """How many activities that a task asks for may come back with its answer, without a poll."""
    nonsticky_poll_ratio: float = 0.2
    """What part of the polls for workflow tasks is for runs that the worker does not know yet."""
    workflow_scaling: PollerBehaviorAutoscaling | None = None
    """Where set, how the number of polls for workflow tasks changes; else `workflow_pollers` is that number."""
    activity_scaling: PollerBehaviorAutoscaling | None = None
    nexus: Any = None
    """`NexusServices`, where there are any."""
    tuner: Any = None
    """A `WorkerTuner`, where slots are more than the numbers above."""
    graceful_shutdown: float = 0.0
    version: WorkerDeploymentVersion | None = None
    default_behavior: VersioningBehavior = VersioningBehavior.UNSPECIFIED
    """What holds for workflows that say nothing, where the worker has a version."""
    workflow_types: frozenset[str] | None = None
    """The workflow types that the worker knows; None: it may know any. An engine that has several workers for a queue
    gives a task to one that knows its type, if there is one.
    """
    activity_types: frozenset[str] | None = None
    """The same for activities."""

    def check(self) -> None:
        """Raise ValueError for what an engine would silently accept and then fail on."""
        if not self.task_queue.strip():
            raise ValueError("the task queue must have a name")
        for field in (
            "max_concurrent_workflow_tasks",
            "max_concurrent_activities",
            "max_concurrent_local_activities",
            "workflow_pollers",
            "activity_pollers",
        ):
            if getattr(self, field) < 1:
                raise ValueError(f"{field} must be at least 1, not {getattr(self, field)}")
        if self.max_cached_workflows < 0:
            raise ValueError(f"max_cached_workflows must not be negative, not {self.max_cached_workflows}")
        if not (self.workflows or self.activities or self.nexus):
            raise ValueError("a worker needs workflows or activities, or both")
        if not (self.workflows or self.remote_activities or self.nexus):
            raise ValueError("a worker without workflows and without remote activities has nothing to do")
        if not 0 < self.nonsticky_poll_ratio <= 1:
            raise ValueError(
                f"nonsticky_to_sticky_poll_ratio is above 0 and at most 1, not {self.nonsticky_poll_ratio}"
            )
        if self.max_eager_activities < 0:
            raise ValueError(
                "max_eager_activity_reservations_per_workflow_task must not be negative, not "
                f"{self.max_eager_activities}"
            )
        for field in ("max_activities_per_second", "max_task_queue_activities_per_second"):
            rate = getattr(self, field)
            if rate is not None and not rate > 0:
                raise ValueError(f"{field} must be above 0, not {rate}")

    def refuse_tuning(self) -> None:
        """For an engine that counts slots itself: raise `UsageError` for what only Core and a server can do."""
        if self.tuner is not None:
            raise UsageError(
                "the embedded engine gives a worker fixed numbers of slots: resource-based and custom slot suppliers need a "
                "Temporal server. Use WorkerTuner.create_fixed, or max_concurrent_activities"
            )
        if self.nexus is not None:
            raise UsageError(
                "the embedded engine has no Nexus, for there is no other namespace that could call: nexus_services need a "
                "Temporal server"
            )
        if self.max_task_queue_activities_per_second is not None:
            raise UsageError(
                "max_task_queue_activities_per_second is kept by a Temporal server. On the embedded engine "
                "hourglass.limits.throttle limits a rate for all workers, and max_activities_per_second for one"
            )


class WorkKind(Enum):
    """The two kinds of work that a handle delivers, each with a receiver of its own."""

    WORKFLOWS = "workflow"
    ACTIVITIES = "activity"


class CompletionResult(Enum):
    """The answer of a handle to the completion of a workflow task."""

    TAKEN = "taken"
    """The engine has it. Its verdict comes later: an eviction if the engine disagrees."""
    RUN_FORGOTTEN = "run forgotten"
    """The run is closed and the engine has forgotten it: no eviction follows, and the worker must forget it, too."""
    REFUSED = "refused"
    """The engine did not accept the completion; the handle has failed the task in its place."""


OnActivations: TypeAlias = Callable[[Sequence[Activation]], object]
OnActivities: TypeAlias = Callable[[Sequence[ActivityItem]], object]
OnEnd: TypeAlias = Callable[[WorkKind, Exception], object]


class Handle(Protocol):
    """The interface of an engine to a worker, for one task queue. See the module for the rules."""

    def start(self, on_activations: OnActivations, on_activities: OnActivities, on_end: OnEnd) -> None:
        """Begin to deliver both kinds of work. Called once.

        `on_end` is called once for each kind, after its last item: with `Shutdown` once the handle has been shut down and
        everything that was delivered is completed, or with `HandleBroken`.
        """
        ...

    def pause(self, kind: WorkKind) -> None:
        """Take no new work of this kind until `resume`. What is on its way may still be delivered. Never raises."""
        ...

    def resume(self, kind: WorkKind) -> None:
        """Take new work of this kind again. Never raises."""
        ...

    def complete_workflow_task(
        self, completion: Completion, /
    ) -> CompletionResult | asyncio.Future[CompletionResult]:
        """Complete an activation. Return the result, or a future of it if the engine needs time."""
        ...

    def complete_activity(self, result: ActivityResult, /) -> asyncio.Future[None] | None:
        """Report the end of an attempt. Return None if the engine has it, or a future that is done once it has."""
        ...

    def heartbeat(self, token: bytes, details: Payloads) -> None:
        """Report that an attempt is alive. Throttled by the engine; never blocks."""
        ...

    def request_eviction(self, run_id: str) -> None:
        """Ask the engine to evict a run; the eviction is delivered as an activation with `RunEvicted`."""
        ...

    def initiate_shutdown(self) -> None:
        """Take no new work, and deliver what is left, also of a kind that is paused, until both kinds have ended."""
        ...

    async def finalize(self) -> None:
        """Free everything. The handle is unusable afterwards."""
        ...
