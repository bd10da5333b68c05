"""Descriptions of workflows: frozen data, decoded from the service's answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Any

from hourglass._contract.workflows import (
    REPORTED_PROBLEMS,
    Count,
    Description,
    PendingActivity,
    TimeSkippingConfig,
    TimeSkippingState,
    WorkflowStatus,
    WorkflowSummary,
)
from hourglass._evaluator.specs import ParentClosePolicy, VersioningBehavior, WorkerDeploymentVersion
from hourglass.converter import Converter, Payload, decode_search_attribute
from hourglass.errors import PayloadError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


_REQUIRED: Any = object()


@dataclass(frozen=True, kw_only=True)
class WorkflowExecution:
    """A run in the results of a list.

    `memo` and `search_attributes` are decoded. An entry that cannot be decoded remains a `Payload`.
    """

    id: str
    run_id: str
    workflow_type: str
    status: WorkflowStatus
    task_queue: str
    start_time: datetime | None
    execution_time: datetime | None
    close_time: datetime | None
    history_length: int
    parent_id: str
    parent_run_id: str
    root_id: str
    root_run_id: str
    memo: Mapping[str, Any]
    search_attributes: Mapping[str, Any]
    raw_info: WorkflowSummary = field(repr=False, compare=False)
    """The engine's answer, with encoded payloads."""
    converter: Converter = field(repr=False, compare=False)
    reported_problems: tuple[str, ...] = ()
    """The problems of a run whose workflow task keeps failing or timing out, in Temporal's terms, such as
    `category=WorkflowTaskFailed` and `cause=WorkflowTaskFailedCauseNonDeterministicError`. The embedded engine reports them
    from the second consecutive failure, a server from the fifth. They are removed when a task completes; a terminated run
    keeps them. The embedded engine also reports `category=ActivityTaskFailed` while an activity of the run keeps failing.
    """

    def memo_value(self, key: str, default: Any = _REQUIRED, *, type: Any = Any) -> Any:
        """Return a value of the memo, decoded as this type. Raise `KeyError` if the memo has no such key and there is no
        default.
        """
        payload = self.raw_info.memo.get(key)
        if payload is None:
            if default is _REQUIRED:
                raise KeyError(f"workflow {self.id!r} has no memo entry {key!r}")
            return default
        return self.converter.decode(payload, type)


@dataclass(frozen=True)
class WorkflowExecutionPage:
    """A page of a list of runs. `next_page_token` is the token for the next page, or empty on the last page. `notice`
    describes a storage problem, if there is one. In that case the page shows the stored state, which may be outdated.
    """

    items: tuple[WorkflowExecution, ...]
    next_page_token: bytes
    notice: str = ""


@dataclass(frozen=True)
class HistoryEventPage:
    """A page of a history. The events are JSON objects in the format of Temporal's tools. `next_page_token` is the token for
    the next page, or empty on the last page.
    """

    events: tuple[dict[str, Any], ...]
    next_page_token: bytes


@dataclass(frozen=True)
class WorkflowExecutionCountAggregationGroup:
    """The number of matching runs that share these values of the grouping attributes."""

    count: int
    group_values: tuple[Any, ...]


class WorkflowExecutionCount(int):
    """The number of matching runs, as an `int`. `groups` is filled if the filter ends with `GROUP BY ExecutionStatus`."""

    groups: tuple[WorkflowExecutionCountAggregationGroup, ...]

    def __new__(
        cls, count: int, groups: Sequence[WorkflowExecutionCountAggregationGroup] = ()
    ) -> WorkflowExecutionCount:
        """Return a count with its groups."""
        made = super().__new__(cls, count)
        made.groups = tuple(groups)
        return made

    @property
    def count(self) -> int:
        """The count as a plain `int`."""
        return int(self)


@dataclass(frozen=True, kw_only=True)
class PendingActivityInfo:
    """A pending activity of a run."""

    id: str
    activity_type: str
    state: str
    attempt: int
    maximum_attempts: int
    last_failure: BaseException | None
    next_attempt_time: datetime | None
    last_started_time: datetime | None
    last_worker_identity: str
    last_heartbeat_time: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class PendingChildInfo:
    """An open child workflow. `run_id` is the child's first run; the child may have continued as a newer run."""

    id: str
    run_id: str
    workflow_type: str
    parent_close_policy: ParentClosePolicy


@dataclass(frozen=True)
class TimeSkippingInfo:
    """The virtual time of a run, its current skip, and how often time was skipped."""

    current_time: datetime | None
    config: TimeSkippingConfig
    skips: int = 0


@dataclass(frozen=True, kw_only=True)
class PendingUpdateInfo:
    """An update that was requested but that no worker has accepted yet.

    The embedded engine lists the updates of all clients while a worker runs on the file. A server lists none, so `describe`
    shows only the updates that this client waits for.
    """

    id: str
    name: str


@dataclass(frozen=True, kw_only=True)
class WorkflowDescription(WorkflowExecution):
    """Details of a run. A `task_attempt` above 1 means that the run's workflow task keeps failing: the run is parked.

    `next_task_time` is the time at which the task will be retried next, if the engine reports it.
    """

    raw_description: Description = field(repr=False, compare=False)
    """The engine's answer, with encoded payloads."""
    first_execution_run_id: str
    task_attempt: int
    pending_activities: tuple[PendingActivityInfo, ...]
    static_summary: str | None
    static_details: str | None
    pending_children: tuple[PendingChildInfo, ...] = ()
    next_task_time: datetime | None = None
    versioning_behavior: VersioningBehavior = VersioningBehavior.UNSPECIFIED
    deployment_version: WorkerDeploymentVersion | None = None
    """The version that the run is pinned to, or the version of the worker that completed its last workflow task."""
    time_skipping: TimeSkippingInfo | None = None
    """Set if time was ever skipped in the run; see `WorkflowHandle.fast_forward`."""
    pending_updates: tuple[PendingUpdateInfo, ...] = ()

    @property
    def parked(self) -> bool:
        """Whether the run's workflow task keeps failing, and is retried until the code is fixed."""
        return self.status == WorkflowStatus.RUNNING and self.task_attempt > 1


def values_of(kind: type, answer: object, **values: Any) -> dict[str, Any]:
    """Return the arguments for a description of this class: these values, and for all other fields the answer's fields of the
    same name, or times from its fields with the suffix `_ns`.
    """
    for name in (parameter.name for parameter in fields(kind)):
        if name not in values:
            value = getattr(answer, name, None)
            values[name] = value if hasattr(answer, name) else time_from(getattr(answer, f"{name}_ns"))
    return values


def execution_from(summary: WorkflowSummary, converter: Converter) -> WorkflowExecution:
    """Return a run for the results of a list."""
    return WorkflowExecution(**_common(summary, converter))


def description_from(answer: Description, converter: Converter) -> WorkflowDescription:
    """Return the details of a run."""
    children = tuple(
        PendingChildInfo(**values_of(PendingChildInfo, child, id=child.workflow_id))
        for child in answer.pending_children
    )
    values = values_of(
        WorkflowDescription,
        answer,
        **_common(answer.summary, converter),
        raw_description=answer,
        pending_activities=tuple(_activity(pending, converter) for pending in answer.pending_activities),
        static_summary=note(answer.static_summary, converter),
        static_details=note(answer.static_details, converter),
        pending_children=children,
        time_skipping=_skipping(answer.time_skipping),
        pending_updates=tuple(
            PendingUpdateInfo(id=update.update_id, name=update.name) for update in answer.pending_updates
        ),
    )
    return WorkflowDescription(**values)


def _skipping(state: TimeSkippingState | None) -> TimeSkippingInfo | None:
    if state is None:
        return None
    return TimeSkippingInfo(time_from(state.current_time_ns), state.config, state.skips)


def count_from(answer: Count) -> WorkflowExecutionCount:
    """Return the count of runs from an answer."""
    groups = [WorkflowExecutionCountAggregationGroup(group.count, group.values) for group in answer.groups]
    return WorkflowExecutionCount(answer.count, groups)


def time_from(nanoseconds: int) -> datetime | None:
    """Return a UTC time for nanoseconds since the epoch; None for 0, which means unset."""
    return _EPOCH + timedelta(microseconds=nanoseconds // 1000) if nanoseconds else None


def memo_from(memo: Mapping[str, Payload], converter: Converter) -> dict[str, Any]:
    """Return the decoded memo by name. A value that cannot be decoded remains a payload."""
    return {name: decoded(payload, Any, converter) for name, payload in memo.items()}


def attributes_from(attributes: Mapping[str, Payload]) -> dict[str, Any]:
    """Return the decoded search attributes. A value that cannot be decoded remains a payload."""
    return {name: _attribute(payload) for name, payload in attributes.items()}


def _problems(attributes: Mapping[str, Any]) -> tuple[str, ...]:
    value = attributes.get(REPORTED_PROBLEMS)
    return tuple(problem for problem in value if isinstance(problem, str)) if isinstance(value, list) else ()


def _common(summary: WorkflowSummary, converter: Converter) -> dict[str, Any]:
    attributes = attributes_from(summary.search_attributes)
    return values_of(
        WorkflowExecution,
        summary,
        id=summary.workflow_id,
        parent_id=summary.parent_workflow_id,
        root_id=summary.root_workflow_id,
        raw_info=summary,
        converter=converter,
        memo=memo_from(summary.memo, converter),
        search_attributes=attributes,
        reported_problems=_problems(attributes),
    )


def _activity(pending: PendingActivity, converter: Converter) -> PendingActivityInfo:
    failure = None if pending.last_failure is None else converter.from_failure(pending.last_failure)
    values = values_of(PendingActivityInfo, pending, id=pending.activity_id, last_failure=failure)
    return PendingActivityInfo(**values)


def _attribute(payload: Payload) -> Any:
    try:
        return decode_search_attribute(payload)
    except PayloadError:
        return payload


def note(payload: Payload | None, converter: Converter) -> str | None:
    """Return a decoded summary or details; None if there is none."""
    value = None if payload is None else decoded(payload, str, converter)
    return value if isinstance(value, str) else None


def decoded(payload: Payload, type: Any, converter: Converter) -> Any:
    """Return the decoded value. An undecodable entry from another program remains a payload, and its run visible."""
    try:
        return converter.decode(payload, type)
    except PayloadError:
        return payload
