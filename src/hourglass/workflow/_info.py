"""What `workflow.info()` says: who a run is, who began it, and what has become of it so far."""

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

_LARGE_HISTORY, _LONG_HISTORY = 4 * 1024 * 1024, 4096  # where Temporal begins to suggest


@dataclass(frozen=True, kw_only=True)
class BasicInfo:
    """Who a workflow is: what both faces of `info()` tell in the same way."""

    workflow_id: str
    run_id: str
    workflow_type: str
    namespace: str
    task_queue: str
    attempt: int
    start_time: datetime
    """When its first task began."""
    workflow_start_time: datetime
    """When it was started; its first task may have waited for a worker."""
    first_execution_run_id: str
    original_execution_run_id: str
    """The run id with which it began: a run that was reset has another since."""
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
    """Why, if it is suggested: `HISTORY_SIZE_TOO_LARGE`, `TOO_MANY_HISTORY_EVENTS`, `TOO_MANY_UPDATES`."""
    cancel_requested: bool
    cancel_reason: str | None
    priority_key: int
    fairness_key: str
    fairness_weight: float
    headers: Mapping[str, Payload] = field(repr=False)
    raw_memo: Mapping[str, Payload] = field(repr=False)
    """The memo as it stands, not decoded; `workflow.memo()` decodes it."""
    raw_search_attributes: Mapping[str, Payload] = field(repr=False)
    current_deployment_version: WorkerDeploymentVersion | None = None
    """The version of the worker that handles the current workflow task; None where it has none."""

    @property
    def parent(self) -> ParentInfo | None:
        """The workflow that this one is a child of; None where it is no child."""
        if self.parent_workflow_id is None:
            return None
        return ParentInfo(self.parent_namespace or "", self.parent_run_id or "", self.parent_workflow_id)

    @property
    def root(self) -> RootInfo | None:
        """The workflow at the top of the family: for one that is no child, itself, or None where the server does not say."""
        if self.root_workflow_id is None:
            return None
        return RootInfo(self.root_run_id or "", self.root_workflow_id)

    @property
    def search_attributes(self) -> dict[str, Any]:
        """The search attributes as they stood when this was asked for, each of the type that it has on the server."""
        return {name: decode_search_attribute(value) for name, value in self.raw_search_attributes.items()}

    def get_current_history_length(self) -> int:
        """The same as `history_length`, by the name that it has elsewhere."""
        return self.history_length

    def get_current_history_size(self) -> int:
        """The same as `history_size`, by the name that it has elsewhere."""
        return self.history_size

    def get_current_deployment_version(self) -> WorkerDeploymentVersion | None:
        """The same as `current_deployment_version`, by the name that it has elsewhere."""
        return self.current_deployment_version

    def get_current_build_id(self) -> str:
        """The build id of the worker that handles the current workflow task; empty where it has none."""
        version = self.current_deployment_version
        return "" if version is None else version.build_id


@dataclass(frozen=True, kw_only=True)
class Info(BasicInfo):
    """Who a workflow is, and where it stands."""

    is_continue_as_new_suggested: bool
    is_target_worker_deployment_version_changed: bool = False
    """Whether this run, which is pinned, would go to another version were it begun now: a good time to continue as new."""


@dataclass(frozen=True)
class ParentInfo:
    """The workflow that started this one as a child."""

    namespace: str
    run_id: str
    workflow_id: str


@dataclass(frozen=True)
class RootInfo:
    """The workflow at the top of a family of workflows."""

    run_id: str
    workflow_id: str


@dataclass(frozen=True)
class UpdateInfo:
    """Which update a handler, or what it spawned, works for."""

    id: str
    name: str


def info() -> Info:
    """Who this workflow is, and where it stands."""
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
    """The fields of `BasicInfo`."""
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
    """The update whose handler or validator this is, or that spawned this function; None elsewhere."""
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
    # Integer arithmetic: a float of seconds since the epoch is off by up to a microsecond.
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=nanoseconds // 1000)


def _reasons(facts: Activation) -> tuple[str, ...]:
    """Why continuing as new is suggested. An engine that does not say has Temporal's own limits."""
    if facts.continue_as_new_reasons or not facts.continue_as_new_suggested:
        return facts.continue_as_new_reasons
    too_large = ("HISTORY_SIZE_TOO_LARGE",) if facts.history_size >= _LARGE_HISTORY else ()
    too_many = ("TOO_MANY_HISTORY_EVENTS",) if facts.history_length >= _LONG_HISTORY else ()
    return too_large + too_many
