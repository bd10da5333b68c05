"""Versions of workers, as data: which build runs a workflow, and whether a run may move from one to another.

Must not know: engines, how a task finds its worker. Names and numbers are Temporal's (worker deployment versioning).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, TypeAlias

import msgspec

from hourglass.errors import UsageError

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
