"""Requests about activities, and their answers: standalone activities, and activities that complete asynchronously. The
requests to pause an activity and to change its options also apply to activities of a workflow, identified by
`workflow_id`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar

import msgspec

from hourglass._contract.service import Effect, Nothing, ReadAnswer, Request
from hourglass._contract.workflows import Count, IdConflictPolicy, Started
from hourglass._evaluator.specs import ActivitySpec, IdReusePolicy, Payloads, WorkerDeploymentVersion
from hourglass.converter import Failure, Payload
from hourglass.nexus import NexusCallback


class ActivityExecutionStatus(IntEnum):
    """The status of a standalone activity (Temporal's numbers)."""

    UNSPECIFIED = 0
    RUNNING = 1
    COMPLETED = 2
    FAILED = 3
    CANCELED = 4
    TERMINATED = 5
    TIMED_OUT = 6
    PAUSED = 7


class StartActivity(Request[Started], frozen=True, kw_only=True):
    """Start a standalone activity."""

    effect: ClassVar[Effect] = Effect.CHANGE
    activity_id: str
    activity_type: str
    request_id: str
    spec: ActivitySpec
    arguments: Payloads = ()
    headers: dict[str, Payload] = {}
    identity: str = ""
    start_delay: float = 0.0
    id_reuse_policy: IdReusePolicy = IdReusePolicy.ALLOW_DUPLICATE
    id_conflict_policy: IdConflictPolicy = IdConflictPolicy.FAIL
    search_attributes: dict[str, Payload] = {}
    static_summary: Payload | None = None
    static_details: Payload | None = None
    callbacks: tuple[NexusCallback, ...] = ()


class ActivityOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of an activity: its failure, or its result if there is no failure. If `closed` is false, the activity
    is still open and the request must be repeated.
    """

    closed: bool = True
    result: Payloads = ()
    failure: Failure | None = None


class WaitForActivity(Request[ActivityOutcome], frozen=True, kw_only=True):
    """Wait until a standalone activity ends or the engine ends the long poll."""

    effect: ClassVar[Effect] = Effect.IDEMPOTENT
    waits: ClassVar[bool] = True
    activity_id: str
    run_id: str = ""


class ActivitySummary(msgspec.Struct, frozen=True, kw_only=True):
    """A standalone activity as a list entry."""

    activity_id: str
    run_id: str
    activity_type: str
    status: ActivityExecutionStatus
    task_queue: str = ""
    schedule_time_ns: int = 0
    close_time_ns: int = 0
    search_attributes: dict[str, Payload] = {}


class ActivityDescription(ReadAnswer, frozen=True, kw_only=True):
    """The details of a standalone activity. `state` is Temporal's name for the state of an open activity."""

    summary: ActivitySummary
    spec: ActivitySpec = ActivitySpec()
    state: str = ""
    attempt: int = 1
    arguments: Payloads = ()
    heartbeat_details: Payloads = ()
    last_heartbeat_time_ns: int = 0
    last_started_time_ns: int = 0
    last_worker_identity: str = ""
    last_failure: Failure | None = None
    next_attempt_time_ns: int = 0
    canceled_reason: str = ""
    version: WorkerDeploymentVersion | None = None
    static_summary: Payload | None = None
    static_details: Payload | None = None


class DescribeActivity(Request[ActivityDescription], frozen=True, kw_only=True):
    """Return the description of a standalone activity."""

    effect: ClassVar[Effect] = Effect.READ
    activity_id: str
    run_id: str = ""


class ActivityChange(Request[Nothing], frozen=True, kw_only=True):
    """A change of an open activity, with a reason. The base class of the requests below."""

    activity_id: str
    request_id: str
    run_id: str = ""
    reason: str = ""
    identity: str = ""


class CancelActivity(ActivityChange, frozen=True, kw_only=True):
    """Request the cancellation of a standalone activity."""

    effect: ClassVar[Effect] = Effect.CHANGE


class TerminateActivity(ActivityChange, frozen=True, kw_only=True):
    """Terminate a standalone activity immediately."""

    effect: ClassVar[Effect] = Effect.CHANGE


class PauseActivity(ActivityChange, frozen=True, kw_only=True):
    """Pause an activity: no new attempt starts. A running attempt may finish."""

    effect: ClassVar[Effect] = Effect.IDEMPOTENT
    workflow_id: str = ""


class UnpauseActivity(ActivityChange, frozen=True, kw_only=True):
    """Resume a paused activity."""

    effect: ClassVar[Effect] = Effect.IDEMPOTENT
    workflow_id: str = ""


class DeleteActivity(Request[Nothing], frozen=True, kw_only=True):
    """Delete a standalone activity. An open activity is terminated first."""

    effect: ClassVar[Effect] = Effect.IDEMPOTENT
    activity_id: str
    run_id: str = ""


class ActivityOptionsNow(msgspec.Struct, frozen=True):
    """The options of an activity after a change."""

    spec: ActivitySpec


class UpdateActivityOptions(Request[ActivityOptionsNow], frozen=True, kw_only=True):
    """Change the options of an activity, from its next attempt on. `fields` names the fields of `spec` to apply. With
    `restore_original`, the original options are restored instead.
    """

    effect: ClassVar[Effect] = Effect.IDEMPOTENT
    activity_id: str
    request_id: str
    workflow_id: str = ""
    run_id: str = ""
    spec: ActivitySpec = ActivitySpec()
    fields: tuple[str, ...] = ()
    restore_original: bool = False
    identity: str = ""


class ActivityPage(ReadAnswer, frozen=True):
    """A page of a list of standalone activities. `next_page_token` is empty on the last page."""

    activities: tuple[ActivitySummary, ...]
    next_page_token: bytes = b""


class ListActivities(Request[ActivityPage], frozen=True, kw_only=True):
    """List the standalone activities that match a filter. An empty filter matches all."""

    effect: ClassVar[Effect] = Effect.READ
    query: str = ""
    page_size: int = 100
    next_page_token: bytes = b""


class CountActivities(Request[Count], frozen=True, kw_only=True):
    """Count the standalone activities that match a filter."""

    effect: ClassVar[Effect] = Effect.READ
    query: str = ""


class CompleteActivity(Request[Nothing], frozen=True, kw_only=True):
    """Complete an activity from outside its code. The activity is identified by its token, or by workflow id, run id and
    activity id.

    The outcome is the failure if it is set, otherwise the cancellation if `cancelled` is set, otherwise the result.
    """

    effect: ClassVar[Effect] = Effect.CHANGE
    token: bytes = b""
    workflow_id: str = ""
    run_id: str = ""
    activity_id: str = ""
    result: Payload | None = None
    failure: Failure | None = None
    last_heartbeat_details: Payloads = ()
    """With a failure: the heartbeat details for the next attempt. If empty, the recorded details are kept."""
    cancelled: bool = False
    cancelled_details: Payloads = ()
    identity: str = ""


class ResetActivity(Request[Nothing], frozen=True, kw_only=True):
    """Restart a pending activity immediately, at its first attempt. A running attempt continues, and the next attempt
    has number 1. `reset_heartbeat` also clears the heartbeat details.
    """

    effect: ClassVar[Effect] = Effect.IDEMPOTENT
    workflow_id: str
    activity_id: str
    run_id: str = ""
    reset_heartbeat: bool = False
    identity: str = ""


class HeartbeatAnswer(msgspec.Struct, frozen=True):
    """The answer to a heartbeat: whether cancellation of the activity was requested."""

    cancel_requested: bool = False


class HeartbeatActivity(Request[HeartbeatAnswer], frozen=True, kw_only=True):
    """Send a heartbeat for an activity that completes asynchronously."""

    effect: ClassVar[Effect] = Effect.IDEMPOTENT
    token: bytes = b""
    workflow_id: str = ""
    run_id: str = ""
    activity_id: str = ""
    details: Payloads = ()
    identity: str = ""
