"""The events of a run: immutable data with names in the past tense. Core calls them jobs.

Payloads are still encoded, so that an event has the same bytes wherever it is stored, and each decoding returns
a new object (I6). `EVENTS` lists every kind of event. Tests check that each has a handler, a translation and an
example.
"""

from __future__ import annotations

from typing import TypeAlias, get_args

import msgspec

from hourglass._evaluator.specs import Payloads, StartSpec, WorkerDeploymentVersion
from hourglass.converter import Failure, Payload


class Event(msgspec.Struct, frozen=True, gc=False, tag=True):
    """An event of a run."""


class RunStarted(Event, frozen=True, kw_only=True):
    """The start of the run. Times are nanoseconds since the epoch; 0 or empty means unset."""

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
    """The firing of a timer."""

    seq: int


class ActivityCompleted(Event, frozen=True):
    """The result of an activity. `result` is None if the activity returned no payload."""

    seq: int
    result: Payload | None = None
    is_local: bool = False


class ActivityFailed(Event, frozen=True):
    """The final failure of an activity, after all retries."""

    seq: int
    failure: Failure
    is_local: bool = False


class ActivityCancelled(Event, frozen=True):
    """The end of an activity as cancelled."""

    seq: int
    failure: Failure
    is_local: bool = False


class ActivityBackedOff(Event, frozen=True):
    """A long retry delay of a local activity. The run must start a timer and reschedule the activity when the
    timer fires.
    """

    seq: int
    attempt: int
    backoff: float
    original_schedule_time_ns: int
    is_local: bool = True


class ChildStarted(Event, frozen=True):
    """The start of a child workflow."""

    seq: int
    run_id: str


class ChildStartFailed(Event, frozen=True):
    """The failed start of a child workflow: its id is in use, or no worker has the requested version."""

    seq: int
    workflow_id: str
    workflow_type: str
    already_exists: bool = True
    invalid_override: bool = False


class ChildStartCancelled(Event, frozen=True):
    """The cancellation of a child workflow before its start."""

    seq: int
    failure: Failure


class ChildCompleted(Event, frozen=True):
    """The result of a child workflow."""

    seq: int
    result: Payload | None = None


class ChildFailed(Event, frozen=True):
    """The failure of a child workflow."""

    seq: int
    failure: Failure


class ChildCancelled(Event, frozen=True):
    """The end of a child workflow as cancelled."""

    seq: int
    failure: Failure


class NexusStarted(Event, frozen=True):
    """The start of a Nexus operation. `token` is empty if the operation completed synchronously."""

    seq: int
    token: str = ""


class NexusStartFailed(Event, frozen=True):
    """The failed start of a Nexus operation."""

    seq: int
    failure: Failure


class NexusCompleted(Event, frozen=True):
    """The result of a Nexus operation."""

    seq: int
    result: Payload | None = None


class NexusFailed(Event, frozen=True):
    """The failure, cancellation or timeout of a Nexus operation."""

    seq: int
    failure: Failure


class ExternalSignalResolved(Event, frozen=True):
    """The delivery of a signal to another workflow, or its failure."""

    seq: int
    failure: Failure | None = None


class ExternalCancelResolved(Event, frozen=True):
    """The delivery of a cancel request to another workflow, or its failure."""

    seq: int
    failure: Failure | None = None


class SignalReceived(Event, frozen=True):
    """A signal from a client or another workflow."""

    name: str
    arguments: Payloads = ()
    identity: str = ""
    headers: dict[str, Payload] = {}


class UpdateReceived(Event, frozen=True, kw_only=True):
    """An update request from a client. It must be accepted or rejected in this activation."""

    id: str
    protocol_instance_id: str
    name: str
    arguments: Payloads = ()
    headers: dict[str, Payload] = {}
    run_validator: bool = True


class QueryReceived(Event, frozen=True):
    """A query from a client. Queries are delivered alone and are not recorded."""

    id: str
    name: str
    arguments: Payloads = ()
    headers: dict[str, Payload] = {}


class CancelRequested(Event, frozen=True):
    """A request from a client, the parent or another workflow to cancel this run."""

    reason: str = ""


class PatchNoticed(Event, frozen=True):
    """A history marker that shows that the run uses this patch."""

    patch_id: str


class SeedChanged(Event, frozen=True):
    """A reset of the run, which changes the seed of its random numbers."""

    seed: int


class RunEvicted(Event, frozen=True):
    """The eviction of this run from the engine's cache. `reason` is Core's name for the cause, such as
    `CACHE_FULL`.
    """

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
    """A batch of new events for one run, delivered together, with the facts that apply while the run handles
    the batch. `deployment_version` is the version of the worker that handles or handled the task, or None for a
    worker without a version. `target_version_changed` is whether a pinned run would start on another version if
    it started now.
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
    """Return whether the activation evicts the run."""
    for event in activation.events:  # noqa: SIM110 - asked for each activation: a generator costs more than the answer
        if type(event) is RunEvicted:
            return True
    return False
