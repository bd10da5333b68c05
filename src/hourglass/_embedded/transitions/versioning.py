"""The worker version that a run belongs to, and the search attributes that report it. Pure.

Must not know: workers, task queues, which versions exist (see `matching.deployments`). The rules are Temporal's. A
pinned run stays with its version, and so do its children on the same queue and the runs that it continues as. Any other
run moves to the version that is current when a worker receives its next task.
"""

from __future__ import annotations

from typing import Any

import msgspec

from hourglass._embedded.transitions.run import Run
from hourglass._evaluator.specs import (
    OneTimeVersioningOverride,
    PinnedVersioningOverride,
    VersioningBehavior,
    VersioningOverride,
    WorkerDeploymentVersion,
)
from hourglass._history import events as h
from hourglass.converter import Payload

PINNED = VersioningBehavior.PINNED
UNSPECIFIED = VersioningBehavior.UNSPECIFIED

_NAMES = {PINNED: "Pinned", VersioningBehavior.AUTO_UPGRADE: "AutoUpgrade"}
_DEPLOYMENT = "TemporalWorkerDeployment"
_VERSION = "TemporalWorkerDeploymentVersion"
_BEHAVIOR = "TemporalWorkflowVersioningBehavior"
_USED = "TemporalUsedWorkerDeploymentVersions"
ATTRIBUTES = frozenset((_DEPLOYMENT, _VERSION, _BEHAVIOR, _USED))
"""The search attributes that report a run's version. The engine sets them. The next run of a chain starts without them."""


def override_of(run: Run) -> VersioningOverride | None:
    """Return the latest versioning override that a client has set, or None if there is none."""
    return run.override if run.override_changed else run.started.versioning_override


def pinned_version(run: Run) -> WorkerDeploymentVersion | None:
    """Return the version that a run must stay with or is about to move to once. Return None if the run follows the
    current version.
    """
    override = override_of(run)
    if isinstance(override, PinnedVersioningOverride):
        return override.version
    if isinstance(override, OneTimeVersioningOverride):
        return override.target_version
    return run.version if override is None and run.behavior is PINNED else None


def behavior(run: Run) -> VersioningBehavior:
    """Return the versioning behavior of a run: a client's override, or else the behavior that the workflow declares."""
    override = override_of(run)
    if override is None or isinstance(override, OneTimeVersioningOverride):
        return run.behavior
    return PINNED if isinstance(override, PinnedVersioningOverride) else VersioningBehavior.AUTO_UPGRADE


def inherited(run: Run, task_queue: str) -> WorkerDeploymentVersion | None:
    """Return the version that a child or the next run inherits on this queue. None means that the new run starts like
    any other run.
    """
    return pinned_version(run) if task_queue == run.started.spec.task_queue else None


def inherited_override(run: Run, task_queue: str) -> PinnedVersioningOverride | None:
    """Return the override that a child on the same queue inherits: only an override that pins the parent to a version is
    inherited.
    """
    override = override_of(run)
    pins = isinstance(override, PinnedVersioningOverride) and task_queue == run.started.spec.task_queue
    return override if pins else None  # type: ignore[return-value]


def without_version(attributes: h.Fields) -> h.Fields:
    """Return the search attributes that a run passes on: all except those that report its version."""
    if ATTRIBUTES.isdisjoint(attributes):
        return attributes
    return {name: value for name, value in attributes.items() if name not in ATTRIBUTES}


def after_task(
    run: Run, version: WorkerDeploymentVersion | None, behaves: VersioningBehavior
) -> dict[str, Any]:
    """Return the fields of a run that change because a worker of this version has completed its task. Usually none do."""
    once = run.override if run.override_changed else run.started.versioning_override
    if once is not None and isinstance(once, OneTimeVersioningOverride) and once.target_version == version:
        over = {"override": None, "override_changed": True}
        return over | after_task(msgspec.structs.replace(run, **over), version, behaves)
    if version == run.version and behaves is run.behavior:
        return {}
    return {
        "version": version,
        "behavior": behaves,
        "search_attributes": without_version(run.search_attributes) | _attributes(run, version, behaves),
    }


def _attributes(
    run: Run, version: WorkerDeploymentVersion | None, behaves: VersioningBehavior
) -> dict[str, Payload]:
    attribute = run.search_attributes.get(_USED)
    used = [] if attribute is None else msgspec.json.decode(attribute.data, type=list[str])
    if version is None:
        return {_USED: attribute} if attribute is not None else {}
    text = external_name(version)
    return {
        _DEPLOYMENT: _keyword(version.deployment_name),
        _VERSION: _keyword(text),
        _BEHAVIOR: _keyword(_NAMES.get(behaves, "Unspecified")),
        _USED: Payload(
            msgspec.json.encode(used if text in used else [*used, text]),
            "json/plain",
            {"type": b"KeywordList"},
        ),
    }


def _keyword(text: str) -> Payload:
    return Payload(msgspec.json.encode(text), "json/plain", {"type": b"Keyword"})


def external_name(version: WorkerDeploymentVersion) -> str:
    """Return a version in the format of Temporal's search attributes and messages."""
    return f"{version.deployment_name}:{version.build_id}"
