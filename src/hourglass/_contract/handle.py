"""A handle: an open connection to an engine for one task queue, which can be polled and completed.

The contract, the same for every engine:

- `poll_*` waits for the next item and raises `Shutdown` once the handle is shutting down and has nothing left to give.
  A poll must never be cancelled: a caller that may be cancelled shields it.
- Every activation is completed exactly once, evictions included. Completions of one run are sent in order.
- A run that a worker knows is evicted before it is forgotten, with one exception: an engine in this process may say, when it is
  given the last answer that it wants of a closed run, that it has forgotten it. The worker may not know that it is closed: it
  may have been terminated while it answered a query.
- A completion begins in the turn of its caller, and has a task of its own only from its first wait on: before that
  it must not ask for the current task, as `asyncio.timeout` does. One that never waits costs no turn of the loop.
- `initiate_shutdown` stops new work and may be called more than once; `finalize_shutdown` is awaited once, after both polls
  have raised `Shutdown` and no call is in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

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


class Receivers(Protocol):
    """How a handle gives its worker what there is: to a receiver, without waking a poll for it.

    Where a receiver is set, the handle gives it what may leave, in the turn in which it may, instead of waking the poll of
    that kind for it. The poll stays out all the same: while none is out nothing is given to the receiver, and the ends
    (`Shutdown`, `HandleBroken`) are raised by the poll alone. An item comes one way only. A receiver raises nothing, and
    calls the handle back in a later turn of the loop only. What it is given is in the worker's hands, as if polled.
    """

    on_activations: Callable[[Sequence[Activation]], object] | None
    """The receiver of activations; None: they wait for a poll."""
    on_activities: Callable[[Sequence[ActivityItem]], object] | None
    """The receiver of activity tasks and cancellations."""


class InProcess(Receivers, Protocol):
    """The calls of a handle whose engine lives on the same loop: what is there is taken, what is said is heard, at once."""

    def take_activations(self) -> list[Activation]:
        """The activations that could be polled now without waiting; none while there are none, or at the end."""
        ...

    def take_activities(self) -> list[ActivityItem]:
        """The same, of activity tasks and cancellations."""
        ...

    def answer_activation(self, completion: Completion) -> bool:
        """As `complete_activation`; whether the engine has forgotten the run, which is closed, with that: then no eviction
        follows, and the worker is to forget it, too.
        """
        ...

    def answer_activity(self, result: ActivityResult) -> None:
        """As `complete_activity`."""
        ...


@runtime_checkable
class RawCalls(Receivers, Protocol):
    """The calls of a handle whose engine works them off by itself: each is begun at once, and has a future for its end,
    which no caller cancels, and which the caller sees to its end: the handle is not finalized before. What is raised,
    there or at once, is told to the coroutine that mends it.
    """

    def send_activation(self, completion: Completion, /) -> asyncio.Future[None]:
        """Begin `complete_activation`."""
        ...

    async def mend_activation(self, completion: Completion, error: BaseException, /) -> None:
        """The completion was not taken: fail its task, or raise what says that the handle is broken."""
        ...

    def send_activity(self, result: ActivityResult, /) -> asyncio.Future[None]:
        """Begin `complete_activity`."""
        ...

    async def mend_activity(self, result: ActivityResult, error: BaseException, /) -> None:
        """The result was not taken: fail the attempt, or raise what says that the handle is broken."""
        ...


class Handle(Protocol):
    """What a worker needs of an engine, for one task queue."""

    @property
    def in_process(self) -> InProcess | None:
        """The same without waiting, where the engine is here; it may come while the handle lives."""
        ...

    async def poll_activation(self) -> Activation:
        """Wait for the next activation; raise `Shutdown` at the end."""
        ...

    async def poll_activity(self) -> ActivityItem:
        """Wait for the next activity task or cancellation; raise `Shutdown` at the end."""
        ...

    async def complete_activation(self, completion: Completion) -> None:
        """Answer an activation. A malformed completion is turned into a failed task by the handle itself."""
        ...

    async def complete_activity(self, result: ActivityResult) -> None:
        """Report the end of an attempt."""
        ...

    def heartbeat(self, token: bytes, details: Payloads) -> None:
        """Report that an attempt lives. Throttled by the engine; never blocks."""
        ...

    def request_eviction(self, run_id: str) -> None:
        """Ask the engine to evict a run, which arrives as an activation with `RunEvicted`."""
        ...

    def initiate_shutdown(self) -> None:
        """Take no new work."""
        ...

    async def finalize_shutdown(self) -> None:
        """Free everything. The handle is gone afterwards."""
        ...
