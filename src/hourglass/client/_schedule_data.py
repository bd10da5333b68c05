"""Schedules as authors write them and clients show them, with the action's values decoded: frozen data with Temporal's names.

Times, policies and state are the classes of `_contract.schedule_specs`. The operations are in `_schedules`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypedDict, TypeVarTuple, Unpack, overload

from hourglass._contract.schedule_specs import (
    ScheduleActionResult,
    ScheduleInfo,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleState,
)
from hourglass._contract.workflows import StartWorkflow
from hourglass._evaluator.options import (
    Duration,
    RetryPolicy,
)
from hourglass.converter import Payload, SearchAttributes

Ts = TypeVarTuple("Ts")


class ScheduleStartOptions(TypedDict, total=False):
    """Options of the workflows that a schedule starts. All are optional."""

    id: str
    """The prefix of the workflows' ids, to which the time is appended; the schedule's own id by default."""
    task_queue: str
    """The task queue of the workflows; "default" by default."""
    execution_timeout: Duration | None
    """The timeout of all runs of one workflow together."""
    run_timeout: Duration | None
    """The timeout of one run."""
    task_timeout: Duration | None
    """The timeout of one workflow task, after which another worker receives it; values above 120 s count as 120 s."""
    retry_policy: RetryPolicy | None
    """The retry policy of a failed workflow; None: no retries."""
    memo: Mapping[str, Any]
    """Notes stored with each workflow; not searchable."""
    search_attributes: SearchAttributes
    """Values by which each workflow can be found; never encrypted."""
    static_summary: str
    """A one-line summary for Temporal's UI."""
    static_details: str
    """Further details for Temporal's UI."""
    priority_key: int
    """The priority in the task queue: lower is sooner, 0 is the default."""
    headers: Mapping[str, Payload]
    """Payloads for interceptors of the workflows, beside the arguments; not encoded by a codec."""


class ScheduleActionStartWorkflow:
    """The action of a schedule: start a workflow, named as for `client.start_workflow`.

    In a description the workflow is its name, and the arguments are decoded as far as possible without types.
    """

    workflow: object
    args: Sequence[Any]
    options: Mapping[str, Any]

    @overload
    def __init__(self, workflow: str, /, *args: Any, **options: Unpack[ScheduleStartOptions]) -> None: ...
    @overload
    def __init__(
        self, workflow: Callable[[*Ts], Any], /, *args: *Ts, **options: Unpack[ScheduleStartOptions]
    ) -> None: ...
    def __init__(self, workflow: Any, /, *args: Any, **options: Any) -> None:  # type: ignore[misc]
        self.workflow = workflow
        self.args = args
        self.options = options
        self._known: tuple[StartWorkflow, bytes] | None = None

    @classmethod
    def _from_service(
        cls, action: StartWorkflow, foreign: bytes, args: Sequence[Any], options: Mapping[str, Any]
    ) -> ScheduleActionStartWorkflow:
        """Return an action of an existing schedule, which an update sends back unchanged."""
        made = cls(action.workflow_type, *args)
        made.options = options
        made._known = (action, foreign)
        return made

    def __repr__(self) -> str:
        name = getattr(self.workflow, "__name__", None) or self.workflow
        return f"<ScheduleActionStartWorkflow {name} with {len(self.args)} arguments>"


_POLICY, _STATE = SchedulePolicy(), ScheduleState()


@dataclass(frozen=True)
class Schedule:
    """The definition of a schedule: its action, and its times."""

    action: ScheduleActionStartWorkflow
    spec: ScheduleSpec
    policy: SchedulePolicy = _POLICY
    state: ScheduleState = _STATE


@dataclass(frozen=True, kw_only=True)
class ScheduleDescription:
    """A schedule in detail.

    `memo` and `search_attributes` are decoded; an entry that cannot be decoded remains a `Payload`.
    """

    id: str
    schedule: Schedule
    info: ScheduleInfo
    memo: Mapping[str, Any]
    search_attributes: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ScheduleListDescription:
    """A schedule in a list."""

    id: str
    workflow_type: str
    spec: ScheduleSpec
    paused: bool
    note: str
    recent_actions: tuple[ScheduleActionResult, ...]
    next_action_times: tuple[datetime, ...]
    memo: Mapping[str, Any]
    search_attributes: Mapping[str, Any]
