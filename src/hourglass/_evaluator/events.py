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


class OutcomeEvent(Event, frozen=True):
    """An event about the command with this number. Not a kind of event itself."""

    seq: int


class ResultEvent(OutcomeEvent, frozen=True):
    """A result. None means that there is no payload. Not a kind of event itself."""

    result: Payload | None = None


class FailureEvent(OutcomeEvent, frozen=True):
    """A failure or a cancellation. Not a kind of event itself."""

    failure: Failure


class ExternalResolved(OutcomeEvent, frozen=True):
    """The delivery of a request to another workflow, or its failure. Not a kind of event itself."""

    failure: Failure | None = None


class TimerFired(OutcomeEvent, frozen=True):
    """The firing of a timer."""


class ActivityCompleted(ResultEvent, frozen=True):
    """The result of an activity."""

    is_local: bool = False


class ActivityFailed(FailureEvent, frozen=True):
    """The final failure of an activity, after all retries."""

    is_local: bool = False


class ActivityCancelled(FailureEvent, frozen=True):
    """The end of an activity as cancelled."""

    is_local: bool = False


class ActivityBackedOff(OutcomeEvent, frozen=True):
    """A long retry delay of a local activity. The run must start a timer and reschedule the activity when the
    timer fires.
    """

    attempt: int
    backoff: float
    original_schedule_time_ns: int
    is_local: bool = True


class ChildStarted(OutcomeEvent, frozen=True):
    """The start of a child workflow."""

    run_id: str


class ChildStartFailed(OutcomeEvent, frozen=True):
    """The failed start of a child workflow: its id is in use, or no worker has the requested version."""

    workflow_id: str
    workflow_type: str
    already_exists: bool = True
    invalid_override: bool = False


class ChildStartCancelled(FailureEvent, frozen=True):
    """The cancellation of a child workflow before its start."""


class ChildCompleted(ResultEvent, frozen=True):
    """The result of a child workflow."""


class ChildFailed(FailureEvent, frozen=True):
    """The failure of a child workflow."""


class ChildCancelled(FailureEvent, frozen=True):
    """The end of a child workflow as cancelled."""


class NexusStarted(OutcomeEvent, frozen=True):
    """The start of a Nexus operation. `token` is empty if the operation completed synchronously."""

    token: str = ""


class NexusStartFailed(FailureEvent, frozen=True):
    """The failed start of a Nexus operation."""


class NexusCompleted(ResultEvent, frozen=True):
    """The result of a Nexus operation."""


class NexusFailed(FailureEvent, frozen=True):
    """The failure, cancellation or timeout of a Nexus operation."""


class ExternalSignalResolved(ExternalResolved, frozen=True):
    """The outcome of a signal to another workflow."""


class ExternalCancelResolved(ExternalResolved, frozen=True):
    """The outcome of a cancel request to another workflow."""


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
