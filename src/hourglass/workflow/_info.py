"""`workflow.info()`: the identity, origin and current state of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from hourglass._evaluator.context import LiveRun, require_run
from hourglass._evaluator.events import Activation
from hourglass._evaluator.fibers import current_fiber
from hourglass._evaluator.interception import InfoInput
from hourglass._evaluator.messages import current_update
from hourglass._evaluator.options import RetryPolicy, policy_from
from hourglass._evaluator.specs import WorkerDeploymentVersion
from hourglass.converter import Payload, decode_search_attribute

# the limits at which Temporal suggests continuing as new
_LARGE_HISTORY, _LONG_HISTORY = 4 * 1024 * 1024, 4096


@dataclass(frozen=True, kw_only=True)
class BasicInfo:
    """The properties of a run that the blocking and the `async` API share."""

    workflow_id: str
    run_id: str
    workflow_type: str
    namespace: str
    task_queue: str
    attempt: int
    start_time: datetime
    """The time of the run's first workflow task."""
    workflow_start_time: datetime
    """The time when the run was started. Its first task may have waited for a worker."""
    first_execution_run_id: str
    original_execution_run_id: str
    """The run id with which the run started; a reset creates a new run id."""
    continued_run_id: str | None
    parent_namespace: str | None
    parent_workflow_id: str | None
    parent_run_id: str | None
    root_workflow_id: str | None
    root_run_id: str | None
    cron_schedule: str | None
    execution_timeout: timedelta | None
    run_timeout: timedelta | None
    task_timeout: timedelta | None
    retry_policy: RetryPolicy | None
    history_length: int
    history_size: int
    continue_as_new_reasons: tuple[str, ...]
    """The reasons why continuing as new is suggested: `HISTORY_SIZE_TOO_LARGE`, `TOO_MANY_HISTORY_EVENTS`,
    `TOO_MANY_UPDATES`.
    """
    cancel_requested: bool
    cancel_reason: str | None
    priority_key: int
    fairness_key: str
    fairness_weight: float
    headers: Mapping[str, Payload] = field(repr=False)
    raw_memo: Mapping[str, Payload] = field(repr=False)
    """The current memo, encoded. `workflow.memo()` returns it decoded."""
    raw_search_attributes: Mapping[str, Payload] = field(repr=False)
    current_deployment_version: WorkerDeploymentVersion | None = None
    """The deployment version of the worker that handles the current workflow task; None if the worker has none."""

    @property
    def parent(self) -> ParentInfo | None:
        """The parent workflow; None if this is not a child."""
        if self.parent_workflow_id is None:
            return None
        return ParentInfo(self.parent_namespace or "", self.parent_run_id or "", self.parent_workflow_id)

    @property
    def root(self) -> RootInfo | None:
        """The root of the tree of child workflows, or this workflow itself if it is not a child. None if the server does not
        report it.
        """
        if self.root_workflow_id is None:
            return None
        return RootInfo(self.root_run_id or "", self.root_workflow_id)

    @property
    def search_attributes(self) -> dict[str, Any]:
        """The search attributes when `info()` was called, with the types that they have on the server."""
        return {name: decode_search_attribute(value) for name, value in self.raw_search_attributes.items()}

    def get_current_history_length(self) -> int:
        """Return `history_length`, under its name in temporalio."""
        return self.history_length

    def get_current_history_size(self) -> int:
        """Return `history_size`, under its name in temporalio."""
        return self.history_size

    def get_current_deployment_version(self) -> WorkerDeploymentVersion | None:
        """Return `current_deployment_version`, under its name in temporalio."""
        return self.current_deployment_version

    def get_current_build_id(self) -> str:
        """Return the build id of the worker that handles the current workflow task, or "" if the worker has none."""
        version = self.current_deployment_version
        return "" if version is None else version.build_id


@dataclass(frozen=True, kw_only=True)
class Info(BasicInfo):
    """The properties of a run."""

    is_continue_as_new_suggested: bool
    is_target_worker_deployment_version_changed: bool = False
    """Whether this pinned run would get another version if it started now, so that it should continue as new."""


@dataclass(frozen=True)
class ParentInfo:
    """The workflow that started this one as a child."""

    namespace: str
    run_id: str
    workflow_id: str


@dataclass(frozen=True)
class RootInfo:
    """The workflow at the root of a tree of child workflows."""

    run_id: str
    workflow_id: str


@dataclass(frozen=True)
class UpdateInfo:
    """The update that the current handler, or a task spawned by it, processes."""

    id: str
    name: str


def info() -> Info:
    """Return the properties of this run."""
    live = require_run("workflow.info")
    if live.outbound is None:
        return _info_of(live)
    intercepted: Info = live.outbound.info(InfoInput(_proceed=lambda _: _info_of(live)))
    return intercepted


def _info_of(live: LiveRun) -> Info:
    return Info(
        **facts_of(live),
        is_continue_as_new_suggested=live.facts.continue_as_new_suggested,
        is_target_worker_deployment_version_changed=live.facts.target_version_changed,
    )


def facts_of(live: LiveRun) -> dict[str, Any]:
    """Return the fields of `BasicInfo`."""
    started = live.started
    assert started is not None
    facts = live.facts
    return {
        "workflow_id": started.workflow_id,
        "run_id": live.state.run_id,
        "workflow_type": started.workflow_type,
        "namespace": live.settings.namespace,
        "task_queue": live.settings.task_queue,
        "attempt": started.attempt,
        "start_time": _moment(live.begun_ns),
        "workflow_start_time": _moment(started.start_time_ns),
        "original_execution_run_id": started.original_execution_run_id or live.state.run_id,
        "first_execution_run_id": started.first_execution_run_id or live.state.run_id,
        "continued_run_id": started.continued_run_id or None,
        "parent_namespace": started.parent_namespace or None,
        "parent_workflow_id": started.parent_workflow_id or None,
        "parent_run_id": started.parent_run_id or None,
        "root_workflow_id": started.root_workflow_id or None,
        "root_run_id": started.root_run_id or None,
        "cron_schedule": started.spec.cron_schedule or None,
        "execution_timeout": _span(started.spec.execution_timeout),
        "run_timeout": _span(started.spec.run_timeout),
        "task_timeout": _span(started.spec.task_timeout),
        "retry_policy": policy_from(started.spec.retry_policy),
        "history_length": facts.history_length,
        "history_size": facts.history_size,
        "continue_as_new_reasons": _reasons(facts),
        "cancel_requested": live.cancel_reason is not None,
        "cancel_reason": live.cancel_reason,
        "priority_key": started.spec.priority_key,
        "fairness_key": started.spec.fairness_key,
        "fairness_weight": started.spec.fairness_weight,
        "headers": dict(started.headers),
        "raw_memo": dict(live.notes.memo),
        "raw_search_attributes": dict(live.notes.search_attributes),
        "current_deployment_version": facts.deployment_version,
    }


def current_update_info() -> UpdateInfo | None:
    """Return the update of the current handler, validator, or task spawned by them; None elsewhere."""
    live = require_run("workflow.current_update_info")
    update = current_update.get()
    if update is not None:
        return UpdateInfo(*update)
    fiber = current_fiber()
    path = () if fiber is None else fiber.path
    if fiber is None or len(path) < 2 or path[0] != "update":
        return None
    key = str(path[1])
    if len(path) == 2:
        return UpdateInfo(key, fiber.label.removeprefix("update "))
    return UpdateInfo(key, (live.handlers.running or {}).get(key, ""))


def _span(value: float) -> timedelta | None:
    return timedelta(seconds=value) if value else None


def _moment(nanoseconds: int) -> datetime:
    # Integer arithmetic, because a float of seconds since the epoch is inaccurate by up to a microsecond.
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=nanoseconds // 1000)


def _reasons(facts: Activation) -> tuple[str, ...]:
    """Return the reasons for continuing as new. If the engine reports none, apply Temporal's limits."""
    if facts.continue_as_new_reasons or not facts.continue_as_new_suggested:
        return facts.continue_as_new_reasons
    too_large = ("HISTORY_SIZE_TOO_LARGE",) if facts.history_size >= _LARGE_HISTORY else ()
    too_many = ("TOO_MANY_HISTORY_EVENTS",) if facts.history_length >= _LONG_HISTORY else ()
    return too_large + too_many
