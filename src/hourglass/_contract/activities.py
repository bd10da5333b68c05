"""What a client can ask of activities, as requests and answers: of those that belong to no workflow (standalone ones), and of
those that are completed from outside. Pausing, and changing options, is also for those of workflows: then `workflow_id` names
theirs.
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
    """Start an activity by itself."""

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
    """How an activity ended: a failure if there is one, else its result. Not `closed`: it has not within the wait; ask again."""

    closed: bool = True
    result: Payloads = ()
    failure: Failure | None = None


class WaitForActivity(Request[ActivityOutcome], frozen=True, kw_only=True):
    """Wait until a standalone activity ends, or until the engine's long poll does."""

    effect: ClassVar[Effect] = Effect.IDEMPOTENT
    waits: ClassVar[bool] = True
    activity_id: str
    run_id: str = ""


class ActivitySummary(msgspec.Struct, frozen=True, kw_only=True):
    """A standalone activity as lists show it."""

    activity_id: str
    run_id: str
    activity_type: str
    status: ActivityExecutionStatus
    task_queue: str = ""
    schedule_time_ns: int = 0
    close_time_ns: int = 0
    search_attributes: dict[str, Payload] = {}


class ActivityDescription(ReadAnswer, frozen=True, kw_only=True):
    """A standalone activity in detail. `state` is Temporal's name for what an open one does."""

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
    """Look at a standalone activity."""

    effect: ClassVar[Effect] = Effect.READ
    activity_id: str
    run_id: str = ""


class ActivityChange(Request[Nothing], frozen=True, kw_only=True):
    """A change of an open activity, with the reason for it: what those below have in common."""

    activity_id: str
    request_id: str
    run_id: str = ""
    reason: str = ""
    identity: str = ""


class CancelActivity(ActivityChange, frozen=True, kw_only=True):
    """Ask a standalone activity to cancel."""

    effect: ClassVar[Effect] = Effect.CHANGE


class TerminateActivity(ActivityChange, frozen=True, kw_only=True):
    """End a standalone activity now."""

    effect: ClassVar[Effect] = Effect.CHANGE


class PauseActivity(ActivityChange, frozen=True, kw_only=True):
    """Let an activity rest: no new attempt begins. One that runs may end."""

    effect: ClassVar[Effect] = Effect.IDEMPOTENT
    workflow_id: str = ""


class UnpauseActivity(ActivityChange, frozen=True, kw_only=True):
    """Let an activity that was paused go on."""

    effect: ClassVar[Effect] = Effect.IDEMPOTENT
    workflow_id: str = ""


class DeleteActivity(Request[Nothing], frozen=True, kw_only=True):
    """Remove a standalone activity; one that is open is terminated first."""

    effect: ClassVar[Effect] = Effect.IDEMPOTENT
    activity_id: str
    run_id: str = ""


class ActivityOptionsNow(msgspec.Struct, frozen=True):
    """What holds for an activity after its options were changed."""

    spec: ActivitySpec


class UpdateActivityOptions(Request[ActivityOptionsNow], frozen=True, kw_only=True):
    """Change what was said of an activity: the fields of `spec` that are named, by the next attempt; with `restore_original`
    all is as it was said at first.
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
    """Some standalone activities, and where to go on (empty at the end)."""

    activities: tuple[ActivitySummary, ...]
    next_page_token: bytes = b""


class ListActivities(Request[ActivityPage], frozen=True, kw_only=True):
    """List standalone activities that match a filter; empty lists all."""

    effect: ClassVar[Effect] = Effect.READ
    query: str = ""
    page_size: int = 100
    next_page_token: bytes = b""


class CountActivities(Request[Count], frozen=True, kw_only=True):
    """Count standalone activities that match a filter."""

    effect: ClassVar[Effect] = Effect.READ
    query: str = ""


# --- activities that are completed from outside -------------------------------------------------------------


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
