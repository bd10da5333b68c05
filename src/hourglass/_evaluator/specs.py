"""What an author may say of an activity, of a start of a workflow, of a child, and of the version of a worker that runs it: each
said once, as checked data.

A spec is made where the author's keywords are checked, and is handed on from there as it is: options, commands, history
events, requests and tasks hold it, none repeats its fields. An engine that completes it (with its own queue, with
Temporal's defaults) makes another spec. A spec says how; which activity or workflow (id, type) and with what
(arguments, headers) stands beside it, so that all calls of one activity share one spec.

Must not know: commands, events, engines, Temporal's names for these fields. To add an option: a field here, and what
CONTRIBUTING.md says; the test that walks all fields of all specs over both engines (`tests/architecture/test_specs.py`) names
what is forgotten.

Durations are seconds; 0 or empty means unset.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, TypeAlias

import msgspec

from hourglass.converter import Payload
from hourglass.errors import UsageError

# --- versions of workers ---------------------------------------------------------------------------------------
#
# Which build runs a workflow, and whether a run may move from one to another. Names and numbers are Temporal's (worker
# deployment versioning).


_LONGEST = 255


class VersioningBehavior(IntEnum):
    """Whether a run moves to the code of a newer version (Temporal's numbers)."""

    UNSPECIFIED = 0
    """Nothing is said: what the worker has as its default. A worker of a version needs one of the others."""
    PINNED = 1
    """A run stays with the version that it began on, to its end."""
    AUTO_UPGRADE = 2
    """A run moves to the current version with its next workflow task; its code must fit (see `workflow.patched`)."""


class ContinueAsNewVersioningBehavior(IntEnum):
    """Which version a run begins on that another continues as (Temporal's numbers)."""

    UNSPECIFIED = 0
    """A pinned run continues on its own version, any other on the current one."""
    AUTO_UPGRADE = 1
    """On the current version, also if the run before was pinned by its workflow; its code decides what comes after."""


class WorkerDeploymentVersion(msgspec.Struct, frozen=True, gc=False):
    """One build of one deployment: a deployment is what is deployed together, under one name for ever."""

    deployment_name: str
    build_id: str

    def to_canonical_string(self) -> str:
        """The version as one text, `deployment.build`."""
        return f"{self.deployment_name}.{self.build_id}"

    @staticmethod
    def from_canonical_string(canonical: str) -> WorkerDeploymentVersion:
        """The version that a text `deployment.build` names."""
        name, dot, build_id = canonical.partition(".")
        if not dot:
            raise UsageError(f"a version as text is <deployment>.<build>, not {canonical!r}")
        return WorkerDeploymentVersion(name, build_id)

    def __str__(self) -> str:
        return self.to_canonical_string()


class PinnedVersioningOverride(msgspec.Struct, frozen=True, tag="pinned"):
    """Whatever a workflow says of itself: this run stays with this version."""

    version: WorkerDeploymentVersion


class AutoUpgradeVersioningOverride(msgspec.Struct, frozen=True, tag="auto_upgrade"):
    """Whatever a workflow says of itself: this run moves to the current version."""


class OneTimeVersioningOverride(msgspec.Struct, frozen=True, tag="one_time"):
    """This run's next workflow task goes to this version; once a worker of it has answered one, its workflow decides again."""

    target_version: WorkerDeploymentVersion


VersioningOverride: TypeAlias = (
    PinnedVersioningOverride | AutoUpgradeVersioningOverride | OneTimeVersioningOverride
)


def check_version(version: Any, what: str) -> WorkerDeploymentVersion:
    """A version that engines take: names that are not empty, not too long, and can be told apart in one text."""
    if not isinstance(version, WorkerDeploymentVersion):
        raise UsageError(f"{what} must be a WorkerDeploymentVersion, not {type(version).__name__}")
    check_deployment_name(version.deployment_name)
    if not isinstance(version.build_id, str) or not version.build_id.strip():
        raise UsageError("the build id of a version must be a text that is not empty")
    if len(version.build_id) > _LONGEST:
        raise UsageError(f"the build id of a version is longer than {_LONGEST} characters")
    return version


def check_deployment_name(name: Any) -> str:
    """A name that a deployment can have."""
    if not isinstance(name, str) or not name.strip():
        raise UsageError("the name of a deployment must be a text that is not empty")
    if "." in name or ":" in name or name.startswith("__") or len(name) > _LONGEST:
        raise UsageError(
            f"a deployment cannot be called {name[:60]!r}: its name has no '.' and no ':', does not begin with '__' "
            f"and is not longer than {_LONGEST} characters"
        )
    return name


def check_override(override: Any) -> VersioningOverride | None:
    """An override as a caller may give it."""
    match override:
        case None | AutoUpgradeVersioningOverride():
            return override
        case PinnedVersioningOverride(version) | OneTimeVersioningOverride(version):
            check_version(version, "the version of an override")
            return override
        case _:
            raise UsageError(
                "versioning_override must be a PinnedVersioningOverride, an AutoUpgradeVersioningOverride or a "
                "OneTimeVersioningOverride, "
                f"not {type(override).__name__}"
            )


def check_behavior(behavior: Any, what: str) -> VersioningBehavior:
    """A behaviour as an author may give it."""
    if not isinstance(behavior, VersioningBehavior):
        raise UsageError(f"{what} must be a VersioningBehavior, not {type(behavior).__name__}")
    return behavior


# --- activities, starts and children ---------------------------------------------------------------------------


Payloads: TypeAlias = tuple[Payload, ...]


class ActivityCancellationType(IntEnum):
    """What cancelling an activity means for the workflow that waits for it (Temporal's numbers)."""

    TRY_CANCEL = 0
    WAIT_CANCELLATION_COMPLETED = 1
    ABANDON = 2


class ChildCancellationType(IntEnum):
    """What cancelling a child workflow means for the parent that waits for it (Core's numbers)."""

    ABANDON = 0
    TRY_CANCEL = 1
    WAIT_CANCELLATION_COMPLETED = 2
    WAIT_CANCELLATION_REQUESTED = 3


class ParentClosePolicy(IntEnum):
    """What happens to a child when its parent closes (Temporal's numbers)."""

    UNSPECIFIED = 0
    TERMINATE = 1
    ABANDON = 2
    REQUEST_CANCEL = 3


class IdReusePolicy(IntEnum):
    """Whether the id of a closed workflow may be used again (Temporal's numbers)."""

    UNSPECIFIED = 0
    ALLOW_DUPLICATE = 1
    ALLOW_DUPLICATE_FAILED_ONLY = 2
    REJECT_DUPLICATE = 3
    TERMINATE_IF_RUNNING = 4


class RetryRule(msgspec.Struct, frozen=True, omit_defaults=True):
    """A retry policy as data: seconds, and 0 for "no limit"."""

    initial_interval: float = 1.0
    backoff_coefficient: float = 2.0
    maximum_interval: float = 0.0
    maximum_attempts: int = 0
    non_retryable_error_types: tuple[str, ...] = ()


class Spec(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """What an author may say of one thing."""


class ActivitySpec(Spec, frozen=True, kw_only=True, cache_hash=True):
    """An activity, remote or local. An empty task queue means the run's own; no retry policy means Temporal's usual one.

    Hashable: what an engine makes of a spec is kept by the spec.
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
    """Of remote activities: whether the worker that asked must not take the first attempt at once."""
    local_retry_threshold: float = 0.0
    """Of local activities: the longest pause before an attempt that the worker itself waits through."""


THE_WORKERS = frozenset({"cancellation_type", "disable_eager_execution", "local_retry_threshold"})
"""Of an activity: what is between a workflow and its worker. No event, no task and no request of a client says it."""


class StartSpec(Spec, frozen=True, kw_only=True):
    """The start of a workflow: by a client or a schedule, as a child, or as the next run of the same workflow.

    For a child an empty task queue means the parent's; for the next run what is unset means the same as before.
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
    """What is said of a child beside its start."""

    parent_close_policy: ParentClosePolicy = ParentClosePolicy.TERMINATE
    id_reuse_policy: IdReusePolicy = IdReusePolicy.ALLOW_DUPLICATE
    cancellation_type: ChildCancellationType = ChildCancellationType.WAIT_CANCELLATION_COMPLETED
    versioning_override: VersioningOverride | None = None


SPECS: tuple[type[Spec], ...] = (ActivitySpec, StartSpec, ChildWorkflowSpec)
