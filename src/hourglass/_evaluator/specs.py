"""Specs: the options of activities, workflow starts, children and worker versions. Each option is defined once,
as checked data.

A spec is created where the author's keyword arguments are validated, and is passed on unchanged. Options,
commands, history events, requests and tasks contain the spec instead of repeating its fields. An engine that
fills in defaults (its own queue, Temporal's defaults) creates a new spec. The identity (id, type) and the input
(arguments, headers) of an activity or a workflow are not part of its spec, so that all calls of an activity can
share a spec.

Must not know: commands, events, engines, Temporal's names for these fields. To add an option, add a field here
and follow CONTRIBUTING.md; the test that sends all fields of all specs through both engines
(`tests/architecture/test_specs.py`) names missing places.

Durations are in seconds; 0 or empty means unset.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, TypeAlias

import msgspec

from hourglass.converter import Payload
from hourglass.errors import UsageError

# Worker versions: the build that runs a workflow, and whether a run may move to another build. Names and
# numbers are those of Temporal's worker deployment versioning.


_LONGEST = 255


class VersioningBehavior(IntEnum):
    """Whether a run moves to the code of a newer version (Temporal's numbers)."""

    UNSPECIFIED = 0
    """The worker's default applies. A worker with a version requires one of the other values."""
    PINNED = 1
    """A run stays on the version on which it started."""
    AUTO_UPGRADE = 2
    """A run moves to the current version with its next workflow task. The code of the versions must be
    compatible (see `workflow.patched`).
    """


class ContinueAsNewVersioningBehavior(IntEnum):
    """The version on which a continued run starts (Temporal's numbers)."""

    UNSPECIFIED = 0
    """A pinned run continues on its own version. Any other run continues on the current version."""
    AUTO_UPGRADE = 1
    """The new run starts on the current version even if the previous run was pinned. Afterwards, the definition
    of the new run applies.
    """


class WorkerDeploymentVersion(msgspec.Struct, frozen=True, gc=False):
    """One build of a deployment: the programs that are deployed together, under one permanent name."""

    deployment_name: str
    build_id: str

    def to_canonical_string(self) -> str:
        """Return the version as a string, `deployment.build`."""
        return f"{self.deployment_name}.{self.build_id}"

    @staticmethod
    def from_canonical_string(canonical: str) -> WorkerDeploymentVersion:
        """Return the version for a string `deployment.build`."""
        name, dot, build_id = canonical.partition(".")
        if not dot:
            raise UsageError(f"a version string must have the form <deployment>.<build>, not {canonical!r}")
        return WorkerDeploymentVersion(name, build_id)

    def __str__(self) -> str:
        return self.to_canonical_string()


class PinnedVersioningOverride(msgspec.Struct, frozen=True, tag="pinned"):
    """An override that pins a run to a version, regardless of the run's definition."""

    version: WorkerDeploymentVersion


class AutoUpgradeVersioningOverride(msgspec.Struct, frozen=True, tag="auto_upgrade"):
    """An override that moves a run to the current version, regardless of the run's definition."""


class OneTimeVersioningOverride(msgspec.Struct, frozen=True, tag="one_time"):
    """An override that sends the next workflow task of a run to a version. After that task, the run's
    definition applies again.
    """

    target_version: WorkerDeploymentVersion


VersioningOverride: TypeAlias = (
    PinnedVersioningOverride | AutoUpgradeVersioningOverride | OneTimeVersioningOverride
)


def check_version(version: Any, what: str) -> WorkerDeploymentVersion:
    """Return a valid version. Its names must not be empty or too long, and `deployment.build` must be separable
    into the two names.
    """
    if not isinstance(version, WorkerDeploymentVersion):
        raise UsageError(f"{what} must be a WorkerDeploymentVersion, not {type(version).__name__}")
    check_deployment_name(version.deployment_name)
    if not isinstance(version.build_id, str) or not version.build_id.strip():
        raise UsageError("the build id of a version must be a non-empty str")
    if len(version.build_id) > _LONGEST:
        raise UsageError(f"the build id of a version is longer than {_LONGEST} characters")
    return version


def check_deployment_name(name: Any) -> str:
    """Return a valid deployment name."""
    if not isinstance(name, str) or not name.strip():
        raise UsageError("the name of a deployment must be a non-empty str")
    if "." in name or ":" in name or name.startswith("__") or len(name) > _LONGEST:
        raise UsageError(
            f"invalid deployment name {name[:60]!r}: it must not contain '.' or ':', must not begin with '__', and may "
            f"have at most {_LONGEST} characters"
        )
    return name


def check_override(override: Any) -> VersioningOverride | None:
    """Return a valid override."""
    match override:
        case None | AutoUpgradeVersioningOverride():
            return override
        case PinnedVersioningOverride(version) | OneTimeVersioningOverride(version):
            check_version(version, "the version of an override")
            return override
        case _:
            raise UsageError(
                "versioning_override must be a PinnedVersioningOverride, AutoUpgradeVersioningOverride or "
                f"OneTimeVersioningOverride, not {type(override).__name__}"
            )


def check_behavior(behavior: Any, what: str) -> VersioningBehavior:
    """Return a valid versioning behavior."""
    if not isinstance(behavior, VersioningBehavior):
        raise UsageError(f"{what} must be a VersioningBehavior, not {type(behavior).__name__}")
    return behavior


Payloads: TypeAlias = tuple[Payload, ...]


class ActivityCancellationType(IntEnum):
    """The effect of cancelling an activity on the workflow that waits for it (Temporal's numbers)."""

    TRY_CANCEL = 0
    WAIT_CANCELLATION_COMPLETED = 1
    ABANDON = 2


class ChildCancellationType(IntEnum):
    """The effect of cancelling a child workflow on the parent that waits for it (Core's numbers)."""

    ABANDON = 0
    TRY_CANCEL = 1
    WAIT_CANCELLATION_COMPLETED = 2
    WAIT_CANCELLATION_REQUESTED = 3


class ParentClosePolicy(IntEnum):
    """The action taken on a child when its parent closes (Temporal's numbers)."""

    UNSPECIFIED = 0
    TERMINATE = 1
    ABANDON = 2
    REQUEST_CANCEL = 3


class IdReusePolicy(IntEnum):
    """Whether the id of a closed workflow may be reused (Temporal's numbers)."""

    UNSPECIFIED = 0
    ALLOW_DUPLICATE = 1
    ALLOW_DUPLICATE_FAILED_ONLY = 2
    REJECT_DUPLICATE = 3
    TERMINATE_IF_RUNNING = 4


class RetryRule(msgspec.Struct, frozen=True, omit_defaults=True):
    """A retry policy as data. Durations are in seconds, and 0 means no limit."""

    initial_interval: float = 1.0
    backoff_coefficient: float = 2.0
    maximum_interval: float = 0.0
    maximum_attempts: int = 0
    non_retryable_error_types: tuple[str, ...] = ()


class Spec(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The base class of specs."""


class ActivitySpec(Spec, frozen=True, kw_only=True, cache_hash=True):
    """The spec of an activity, remote or local. An empty task queue means the run's own; no retry policy means
    Temporal's default.

    Specs are hashable, because engines use them as cache keys.
    """

    task_queue: str = ""
    schedule_to_close_timeout: float = 0.0
    schedule_to_start_timeout: float = 0.0
    start_to_close_timeout: float = 0.0
    heartbeat_timeout: float = 0.0
    retry_policy: RetryRule | None = None
    cancellation_type: ActivityCancellationType = ActivityCancellationType.TRY_CANCEL
    priority_key: int = 0
    fairness_key: str = ""
    fairness_weight: float = 0.0
    disable_eager_execution: bool = False
    """For remote activities: whether the worker that requests the activity must not execute the first attempt
    immediately itself.
    """
    local_retry_threshold: float = 0.0
    """For local activities: the longest retry delay that passes within the worker. For a longer delay, the run
    starts a timer.
    """


WORKER_ONLY_FIELDS = frozenset({"cancellation_type", "disable_eager_execution", "local_retry_threshold"})
"""The fields of an activity spec that only concern the workflow and its worker. No history event, task or
client request contains these fields.
"""


class StartSpec(Spec, frozen=True, kw_only=True):
    """The spec of the start of a workflow by a client, a schedule or a parent, or of the next run of the same
    workflow.

    For a child, an empty task queue means the parent's task queue. For the next run, unset fields are inherited
    from the current run.
    """

    task_queue: str = ""
    execution_timeout: float = 0.0
    run_timeout: float = 0.0
    task_timeout: float = 0.0
    retry_policy: RetryRule | None = None
    cron_schedule: str = ""
    memo: dict[str, Payload] = {}
    search_attributes: dict[str, Payload] = {}
    priority_key: int = 0
    fairness_key: str = ""
    fairness_weight: float = 0.0
    static_summary: Payload | None = None
    static_details: Payload | None = None


class ChildWorkflowSpec(Spec, frozen=True, kw_only=True):
    """The options that only the start of a child workflow has."""

    parent_close_policy: ParentClosePolicy = ParentClosePolicy.TERMINATE
    id_reuse_policy: IdReusePolicy = IdReusePolicy.ALLOW_DUPLICATE
    cancellation_type: ChildCancellationType = ChildCancellationType.WAIT_CANCELLATION_COMPLETED
    versioning_override: VersioningOverride | None = None


SPECS: tuple[type[Spec], ...] = (ActivitySpec, StartSpec, ChildWorkflowSpec)
