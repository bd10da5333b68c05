"""A handle: an open connection of a worker to an engine, for one task queue.

Rules that every engine must follow:

- A handle delivers work to the receivers passed to `start`, in order of arrival. It never calls a receiver inside
  `start`, `resume` or a completion. A receiver must not raise, and may call the handle only in a later iteration of the
  event loop.
- Every activation is completed exactly once, including evictions. Completions of a run are sent in order, each after the
  previous one was accepted.
- A run in a worker's cache is evicted before the engine forgets the run. There is one exception: an engine in this
  process may answer a completion with `RUN_FORGOTTEN`, and no eviction follows. In that case the worker may not know that
  the run is closed, because the run can be terminated while the worker answers a query.
- A completion is never cancelled. It raises only `HandleBroken`, except for bugs.
- `initiate_shutdown` stops new work and may be called more than once. `finalize` is awaited once, after `on_end` was
  called for both kinds of work, while no completion is in progress.

All methods must be called on the event loop that opened the handle.
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
    """The handle has been shut down and delivers no more work."""


class HandleBroken(HourglassError):
    """The handle has failed permanently. The worker needs a new one."""


class ActivityTask(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An attempt of an activity that this worker must execute. The spec contains the engine's defaults. Times are
    nanoseconds since the epoch.
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
    """The run id of a standalone activity, whose `workflow_id` is empty."""
    headers: dict[str, Payload] = {}
    heartbeat_details: Payloads = ()
    scheduled_time_ns: int = 0
    current_attempt_scheduled_time_ns: int = 0
    started_time_ns: int = 0


class ActivityCancel(msgspec.Struct, frozen=True, gc=False):
    """A request to stop an attempt. `reason` is Core's name for the cause, such as `CANCELLED` or `TIMED_OUT`."""

    token: bytes
    reason: str = "CANCELLED"


ActivityItem: TypeAlias = ActivityTask | ActivityCancel


class ActivityOk(msgspec.Struct, frozen=True, gc=False):
    """The attempt succeeded with this result."""

    token: bytes
    result: Payload | None = None


class AttemptFailed(msgspec.Struct, frozen=True):
    """The attempt failed with this failure."""

    token: bytes
    failure: Failure
    is_last_here: bool = False
    """Whether the worker is stopping. Core normally retries local activities on the same handle, but must not retry this
    attempt.
    """


class AttemptCancelled(msgspec.Struct, frozen=True):
    """The attempt ended because of a cancellation."""

    token: bytes
    failure: Failure


def context_of(task: ActivityTask) -> ActivitySerializationContext:
    """Return the serialization context for the arguments and the result of an activity."""
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
    """The attempt will be completed later, by a client that has the token."""

    token: bytes


ActivityResult: TypeAlias = ActivityOk | AttemptFailed | AttemptCancelled | ActivityDeferred


@dataclass(frozen=True)
class NexusServices:
    """The Nexus services of a worker, by name, and the objects that the Nexus operations use."""

    services: Mapping[str, Any]
    executor: Executor
    converter: Converter
    codec: Codec | None
    client: Callable[[], Any]
    inbound: Any
    """The first interceptor of the chain (`NexusOperationInboundInterceptor`) that leads to the operations."""
    registry: Any
    polls: PollerBehavior
    slots: int


class HandleConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a handle. `check` validates them before an engine receives them."""

    task_queue: str
    identity: str = ""
    build_id: str = ""
    workflows: bool = True
    activities: bool = True
    max_cached_workflows: int = 1000
    max_busy_workflows: int = 0
    """The maximum number of cached runs, including runs beyond `max_cached_workflows` that have activities in progress.
    Engines that do not track activities per run ignore this option.
    """
    max_concurrent_workflow_tasks: int = 100
    max_concurrent_activities: int = 100
    max_concurrent_local_activities: int = 100
    workflow_pollers: int = 5
    activity_pollers: int = 5
    sticky_timeout: float = 5.0
    heartbeat_throttle: float = 5.0
    """The maximum interval between two heartbeats of an attempt that are sent to the engine, in seconds."""
    default_heartbeat_throttle: float = 5.0
    """The maximum interval between heartbeats for activities without a heartbeat timeout, in seconds."""
    max_activities_per_second: float | None = None
    max_task_queue_activities_per_second: float | None = None
    """The maximum rate for all workers of the task queue together. Only a server enforces it."""
    remote_activities: bool = True
    """Whether the worker receives activity tasks of the queue. If not, the worker executes only local activities."""
    max_eager_activities: int = 3
    """The maximum number of activities scheduled by one workflow task that the server may return with its response,
    without a poll.
    """
    nonsticky_poll_ratio: float = 0.2
    """The fraction of workflow task polls that are for runs outside the worker's cache."""
    workflow_scaling: PollerBehaviorAutoscaling | None = None
    """The scaling of the number of workflow task polls. None means that the number is always `workflow_pollers`."""
    activity_scaling: PollerBehaviorAutoscaling | None = None
    nexus: Any = None
    """The worker's `NexusServices`, or None."""
    tuner: Any = None
    """The worker's `WorkerTuner`, or None if the numbers of slots are fixed."""
    graceful_shutdown: float = 0.0
    version: WorkerDeploymentVersion | None = None
    default_behavior: VersioningBehavior = VersioningBehavior.UNSPECIFIED
    """The versioning behavior of workflows that declare none. Used only if the worker has a version."""
    workflow_types: frozenset[str] | None = None
    """The workflow types that the worker is known to execute, or None for any. If a queue has several workers, an engine
    prefers one that can execute the task's type.
    """
    activity_types: frozenset[str] | None = None
    """The activity types that the worker is known to execute, or None for any."""

    def check(self) -> None:
        """Raise ValueError for a value that an engine would accept at first but fail on later."""
        if not self.task_queue.strip():
            raise ValueError("the name of the task queue must not be empty")
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
            raise ValueError("a worker needs workflows, activities or both")
        if not (self.workflows or self.remote_activities or self.nexus):
            raise ValueError("a worker without workflows must execute remote activities")
        if not 0 < self.nonsticky_poll_ratio <= 1:
            raise ValueError(
                f"nonsticky_to_sticky_poll_ratio must be above 0 and at most 1, not {self.nonsticky_poll_ratio}"
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

    def reject_tuning(self) -> None:
        """Raise `UsageError` for options that only Core and a server support. Called by engines that count slots
        themselves.
        """
        if self.tuner is not None:
            raise UsageError(
                "the embedded engine supports only fixed numbers of slots: resource-based and custom slot suppliers "
                "need a Temporal server. Use WorkerTuner.create_fixed, or max_concurrent_activities"
            )
        if self.nexus is not None:
            raise UsageError(
                "the embedded engine does not support Nexus, because it has only one namespace: nexus_services need a "
                "Temporal server"
            )
        if self.max_task_queue_activities_per_second is not None:
            raise UsageError(
                "max_task_queue_activities_per_second needs a Temporal server. On the embedded engine, limit the rate "
                "of all workers with hourglass.limits.throttle, or the rate of one worker with max_activities_per_second"
            )


class WorkKind(Enum):
    """The two kinds of work that a handle delivers, each to a separate receiver."""

    WORKFLOWS = "workflow"
    ACTIVITIES = "activity"


class CompletionResult(Enum):
    """The response of a handle to the completion of a workflow task."""

    RECEIVED = "received"
    """The engine has received the completion. If the engine rejects it later, the run is evicted."""
    RUN_FORGOTTEN = "run forgotten"
    """The run is closed and the engine has forgotten the run. No eviction follows, so the worker must forget the run,
    too.
    """
    REJECTED = "rejected"
    """The engine has rejected the completion, and the handle has failed the task instead."""


OnActivations: TypeAlias = Callable[[Sequence[Activation]], object]
OnActivities: TypeAlias = Callable[[Sequence[ActivityItem]], object]
OnEnd: TypeAlias = Callable[[WorkKind, Exception], object]


class Handle(Protocol):
    """The interface of an engine for a worker, for one task queue. The module describes the rules."""

    def start(self, on_activations: OnActivations, on_activities: OnActivities, on_end: OnEnd) -> None:
        """Start to deliver both kinds of work. Must be called once.

        `on_end` is called once for each kind, after the last item of that kind: with `Shutdown` once the handle has been
        shut down and all delivered work is completed, or with `HandleBroken`.
        """
        ...

    def pause(self, kind: WorkKind) -> None:
        """Receive no new work of this kind until `resume`. Work that is already in transit may still be delivered. Never
        raises.
        """
        ...

    def resume(self, kind: WorkKind) -> None:
        """Resume receiving work of this kind. Never raises."""
        ...

    def complete_workflow_task(
        self, completion: Completion, /
    ) -> CompletionResult | asyncio.Future[CompletionResult]:
        """Complete an activation. Return the result, or a future of the result if the engine needs time."""
        ...

    def complete_activity(self, result: ActivityResult, /) -> asyncio.Future[None] | None:
        """Report the result of an attempt. Return None if the engine has accepted the report, or else a future that is
        done once the engine has accepted it.
        """
        ...

    def heartbeat(self, token: bytes, details: Payloads) -> None:
        """Report that an attempt is alive. The engine throttles heartbeats. Never blocks."""
        ...

    def request_eviction(self, run_id: str) -> None:
        """Request the eviction of a run. The eviction is delivered as an activation with `RunEvicted`."""
        ...

    def initiate_shutdown(self) -> None:
        """Receive no new work. Deliver the remaining work, even of a paused kind, until both kinds have ended."""
        ...

    async def finalize(self) -> None:
        """Release all resources. The handle cannot be used afterwards."""
        ...
