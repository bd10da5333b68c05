"""Schedules as users define them and clients display them, with decoded action values. Frozen data with Temporal's names.

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
    """The prefix of the workflow ids, to which the time is appended; the schedule's own id by default."""
    task_queue: str
    """The task queue of the workflows; "default" by default."""
    execution_timeout: Duration | None
    """The timeout of each workflow, including all its runs."""
    run_timeout: Duration | None
    """The timeout of a single run."""
    task_timeout: Duration | None
    """The timeout of a workflow task, after which another worker receives the task. Values above 120 s count as 120 s."""
    retry_policy: RetryPolicy | None
    """The retry policy of a failed workflow; None means no retries."""
    memo: Mapping[str, Any]
    """Additional data stored with each workflow; not searchable."""
    search_attributes: SearchAttributes
    """Attributes by which each workflow can be found; never encrypted."""
    static_summary: str
    """A one-line summary for Temporal's UI."""
    static_details: str
    """Further details for Temporal's UI."""
    priority_key: int
    """The priority in the task queue: lower values are dispatched first, 0 is the default."""
    headers: Mapping[str, Payload]
    """Payloads for the workflows' interceptors, in addition to the arguments. They are not encoded by a codec."""


class ScheduleActionStartWorkflow:
    """A schedule action that starts a workflow, with the same arguments as `client.start_workflow`.

    In a description, the workflow is a name, and the arguments are decoded without types as far as possible.
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
        """Return an action of an existing schedule. An update sends the action back unchanged."""
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
    """The definition of a schedule: its action, its times, its policy and its state."""

    action: ScheduleActionStartWorkflow
    spec: ScheduleSpec
    policy: SchedulePolicy = _POLICY
    state: ScheduleState = _STATE


@dataclass(frozen=True, kw_only=True)
class ScheduleDescription:
    """Details of a schedule.

    `memo` and `search_attributes` are decoded. An entry that cannot be decoded remains a `Payload`.
    """

    id: str
    schedule: Schedule
    info: ScheduleInfo
    memo: Mapping[str, Any]
    search_attributes: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ScheduleListDescription:
    """A schedule in the results of a list."""

    id: str
    workflow_type: str
    spec: ScheduleSpec
    paused: bool
    note: str
    recent_actions: tuple[ScheduleActionResult, ...]
    next_action_times: tuple[datetime, ...]
    memo: Mapping[str, Any]
    search_attributes: Mapping[str, Any]
