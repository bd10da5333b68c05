"""What can happen to a run: frozen data, named in the past tense. Core calls these jobs.

Payloads are still encoded here, so that an event is the same bytes wherever it is kept, and decoding it twice gives two
objects (I6). `EVENTS` lists every kind; tests walk it: each has a handler, a translation and an example.
"""

from __future__ import annotations

from typing import TypeAlias, get_args

import msgspec

from hourglass._evaluator.specs import Payloads, StartSpec, WorkerDeploymentVersion
from hourglass.converter import Failure, Payload


class Event(msgspec.Struct, frozen=True, gc=False, tag=True):
    """One thing that happened to a run."""


class RunStarted(Event, frozen=True, kw_only=True):
    """The run begins. Times are nanoseconds since the epoch; 0 or empty means unset."""

    workflow_type: str
    workflow_id: str
    arguments: Payloads = ()
    headers: dict[str, Payload] = {}
    spec: StartSpec = StartSpec()
    seed: int = 0
    attempt: int = 1
    identity: str = ""
    parent_namespace: str = ""
    parent_workflow_id: str = ""
    parent_run_id: str = ""
    root_workflow_id: str = ""
    root_run_id: str = ""
    continued_run_id: str = ""
    first_execution_run_id: str = ""
    original_execution_run_id: str = ""
    last_completion_result: Payloads = ()
    last_failure: Failure | None = None
    start_time_ns: int = 0


class TimerFired(Event, frozen=True):
    """A timer's time has come."""

    seq: int


class ActivityCompleted(Event, frozen=True):
    """An activity returned; `result` is None where it sent no payload at all."""

    seq: int
    result: Payload | None = None
    is_local: bool = False


class ActivityFailed(Event, frozen=True):
    """An activity failed for good: retries are over."""

    seq: int
    failure: Failure
    is_local: bool = False


class ActivityCancelled(Event, frozen=True):
    """An activity ended as cancelled."""

    seq: int
    failure: Failure
    is_local: bool = False


class ActivityBackedOff(Event, frozen=True):
    """A local activity wants a long pause before its next attempt: a timer, then schedule it again."""

    seq: int
    attempt: int
    backoff: float
    original_schedule_time_ns: int
    is_local: bool = True


class ChildStarted(Event, frozen=True):
    """A child workflow has started."""

    seq: int
    run_id: str


class ChildStartFailed(Event, frozen=True):
    """A child workflow could not be started: its id is taken, or there is no worker of the version that it was meant for."""

    seq: int
    workflow_id: str
    workflow_type: str
    already_exists: bool = True
    invalid_override: bool = False


class ChildStartCancelled(Event, frozen=True):
    """A child workflow was cancelled before it started."""

    seq: int
    failure: Failure


class ChildCompleted(Event, frozen=True):
    """A child workflow returned."""

    seq: int
    result: Payload | None = None


class ChildFailed(Event, frozen=True):
    """A child workflow failed."""

    seq: int
    failure: Failure


class ChildCancelled(Event, frozen=True):
    """A child workflow ended as cancelled."""

    seq: int
    failure: Failure


class NexusStarted(Event, frozen=True):
    """A Nexus operation has started; `token` is empty where its result is there at once."""

    seq: int
    token: str = ""


class NexusStartFailed(Event, frozen=True):
    """A Nexus operation could not be started."""

    seq: int
    failure: Failure


class NexusCompleted(Event, frozen=True):
    """A Nexus operation has a result."""

    seq: int
    result: Payload | None = None


class NexusFailed(Event, frozen=True):
    """A Nexus operation failed, was cancelled, or timed out."""

    seq: int
    failure: Failure


class ExternalSignalResolved(Event, frozen=True):
    """A signal to another workflow was delivered, or not."""

    seq: int
    failure: Failure | None = None


class ExternalCancelResolved(Event, frozen=True):
    """A request to cancel another workflow was delivered, or not."""

    seq: int
    failure: Failure | None = None


class SignalReceived(Event, frozen=True):
    """A client or another workflow sent a signal."""

    name: str
    arguments: Payloads = ()
    identity: str = ""
    headers: dict[str, Payload] = {}


class UpdateReceived(Event, frozen=True, kw_only=True):
    """A client asks for an update. It must be accepted or rejected in this very activation."""

    id: str
    protocol_instance_id: str
    name: str
    arguments: Payloads = ()
    headers: dict[str, Payload] = {}
    run_validator: bool = True


class QueryReceived(Event, frozen=True):
    """A client asks a question. Queries come alone and leave no trace."""

    id: str
    name: str
    arguments: Payloads = ()
    headers: dict[str, Payload] = {}


class CancelRequested(Event, frozen=True):
    """A client, the parent or another workflow asked to cancel this run."""

    reason: str = ""


class PatchNoticed(Event, frozen=True):
    """The history holds a marker of this patch."""

    patch_id: str


class SeedChanged(Event, frozen=True):
    """The run was reset: randomness goes on from another seed."""

    seed: int


class RunEvicted(Event, frozen=True):
    """The engine forgets this run for now. `reason` is Core's name for why, such as `CACHE_FULL`."""

    reason: str = "UNSPECIFIED"
    message: str = ""


AnyEvent: TypeAlias = (
    RunStarted
    | TimerFired
    | ActivityCompleted
    | ActivityFailed
    | ActivityCancelled
    | ActivityBackedOff
    | ChildStarted
    | ChildStartFailed
    | ChildStartCancelled
    | ChildCompleted
    | ChildFailed
    | ChildCancelled
    | NexusStarted
    | NexusStartFailed
    | NexusCompleted
    | NexusFailed
    | ExternalSignalResolved
    | ExternalCancelResolved
    | SignalReceived
    | UpdateReceived
    | QueryReceived
    | CancelRequested
    | PatchNoticed
    | SeedChanged
    | RunEvicted
)

EVENTS: tuple[type[Event], ...] = get_args(AnyEvent)


class Activation(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A batch of new events for one run, delivered together, and the facts that hold while it is handled.

    `deployment_version` is that of the worker whose task this is, or was; None where it has none. With
    `target_version_changed` a run that is pinned would go to another version now, were it begun now.
    """

    run_id: str
    events: tuple[AnyEvent, ...]
    timestamp_ns: int = 0
    is_replaying: bool = False
    history_length: int = 0
    history_size: int = 0
    continue_as_new_suggested: bool = False
    continue_as_new_reasons: tuple[str, ...] = ()
    flags: tuple[int, ...] = ()
    deployment_version: WorkerDeploymentVersion | None = None
    target_version_changed: bool = False


def is_eviction(activation: Activation) -> bool:
    """Whether the engine wants this run forgotten."""
    for event in activation.events:  # noqa: SIM110 - asked for each activation: a generator costs more than the answer
        if type(event) is RunEvicted:
            return True
    return False
