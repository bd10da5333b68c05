"""What a client is asked to do, as its interceptors see it: each call is an `…Input` with the arguments as they were given,
before they are encoded. Data only; `_interception` passes them on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from hourglass._contract.workflows import HistoryEventFilter, QueryRejectCondition, UpdateStage
from hourglass._evaluator.interception import InterceptedCall
from hourglass._evaluator.options import Priority

if TYPE_CHECKING:
    from hourglass._contract.schedules import OverlapPolicy
    from hourglass.client._options import RpcOptions
    from hourglass.client._schedule_data import Schedule, ScheduleBackfill, ScheduleDescription
    from hourglass.converter import SearchAttributes


class _Option:
    """An entry of a call's `options` as an attribute: None where the caller did not give it."""

    def __init__(self, name: str = "") -> None:
        self._name = name

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = self._name or name

    def __get__(self, call: Any, owner: type | None = None) -> Any:
        return self if call is None else call.options.get(self._name)

    def __set__(self, call: Any, value: Any) -> None:
        if value is None:
            call.options.pop(self._name, None)
        else:
            call.options[self._name] = value


class _PriorityOption:
    """The three options of a call's priority as one `Priority`."""

    def __get__(self, call: Any, owner: type | None = None) -> Any:
        if call is None:
            return self
        return Priority(*(call.options.get(name) or None for name in Priority.default.options()))

    def __set__(self, call: Any, value: Priority | None) -> None:
        call.options.update((value or Priority.default).options())


class _Alias:
    """A field under the name that it has in temporalio."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, call: Any, owner: type | None = None) -> Any:
        return self if call is None else getattr(call, self._name)

    def __set__(self, call: Any, value: Any) -> None:
        setattr(call, self._name, value)


@dataclass(kw_only=True)
class ClientCall(InterceptedCall):
    """A client's call on its way through a chain. `rpc_timeout` is seconds for each request; `rpc_metadata` are headers
    that a server gets with it, beside the client's own.
    """

    _method: ClassVar[str]

    rpc_timeout: float | None = field(default=None, repr=False)
    rpc_metadata: dict[str, str] = field(default_factory=dict, repr=False)

    def _rpc(self) -> RpcOptions:
        return {"rpc_timeout": self.rpc_timeout, "rpc_metadata": self.rpc_metadata}


@dataclass(kw_only=True)
class FilterInput(ClientCall):
    """What matches a filter is meant: all, where it is empty."""

    query: str = ""


@dataclass(kw_only=True)
class ListInput(FilterInput):
    """A page of what matches a filter is to be fetched: a list is so many of these as it has pages."""

    page_size: int = 100
    next_page_token: bytes = b""


# --- workflows ------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class StartWorkflowInput(ClientCall):
    """A workflow is to be started. `options` are those of `client.StartOptions` that were given, but for the id; each is an
    attribute, too: `input.memo = {…}`.
    """

    _method = "start_workflow"

    id: str
    workflow: str
    options: dict[str, Any] = field(default_factory=dict, repr=False)
    result_type: Any = field(default=None, repr=False)

    task_queue = _Option()
    execution_timeout = _Option()
    run_timeout = _Option()
    task_timeout = _Option()
    start_delay = _Option()
    id_reuse_policy = _Option()
    id_conflict_policy = _Option()
    retry_policy = _Option()
    cron_schedule = _Option()
    memo = _Option()
    search_attributes = _Option()
    static_summary = _Option()
    static_details = _Option()
    start_signal = _Option()
    start_signal_args = _Option()
    request_id = _Option()
    request_eager_start = _Option()
    versioning_override = _Option()
    time_skipping = _Option()
    time_skipping_config = _Option("time_skipping")
    callbacks = _Option()
    priority = _PriorityOption()
    priority_key = _Option()
    fairness_key = _Option()
    fairness_weight = _Option()
    ret_type = _Alias("result_type")


@dataclass(kw_only=True)
class WorkflowInput(ClientCall):
    """A workflow that exists is meant, or with a `run_id` that run alone."""

    id: str
    run_id: str | None = None


@dataclass(kw_only=True)
class SignalWorkflowInput(WorkflowInput):
    """A workflow is to be signalled."""

    _method = "signal_workflow"

    signal: str


@dataclass(kw_only=True)
class QueryWorkflowInput(WorkflowInput):
    """A workflow is to be asked."""

    _method = "query_workflow"

    query: str
    reject_condition: QueryRejectCondition | None = None
    result_type: Any = field(default=None, repr=False)

    ret_type = _Alias("result_type")


@dataclass(kw_only=True)
class StartWorkflowUpdateInput(WorkflowInput):
    """An update is to be asked for; `update_id` is its own id, empty where a fresh one will be made."""

    _method = "start_workflow_update"

    update: str
    update_id: str = ""
    wait_for_stage: UpdateStage = UpdateStage.ACCEPTED
    first_execution_run_id: str | None = None
    result_type: Any = field(default=None, repr=False)

    ret_type = _Alias("result_type")


@dataclass(kw_only=True)
class StartUpdateWithStartInput(ClientCall):
    """A workflow is to be started, unless it runs, and an update asked of it; each of the two has arguments and headers."""

    _method = "start_update_with_start_workflow"

    id: str
    start: StartWorkflowInput
    update: StartWorkflowUpdateInput

    start_workflow_input = _Alias("start")
    update_workflow_input = _Alias("update")


@dataclass(kw_only=True)
class WorkflowEndInput(WorkflowInput):
    """A workflow is to end, for a reason; with a `first_execution_run_id` only if its chain began with that run."""

    reason: str = ""
    first_execution_run_id: str | None = None


@dataclass(kw_only=True)
class CancelWorkflowInput(WorkflowEndInput):
    """A workflow is to be asked to cancel."""

    _method = "cancel_workflow"


@dataclass(kw_only=True)
class TerminateWorkflowInput(WorkflowEndInput):
    """A workflow is to be ended. `args` are the details."""

    _method = "terminate_workflow"


@dataclass(kw_only=True)
class DescribeWorkflowInput(WorkflowInput):
    """A workflow is to be looked at."""

    _method = "describe_workflow"


@dataclass(kw_only=True)
class CountWorkflowsInput(FilterInput):
    """Runs that match a filter are to be counted."""

    _method = "count_workflows"


@dataclass(kw_only=True)
class ListWorkflowsInput(ListInput):
    """A page of the runs that match a filter is to be fetched: a list is so many of these as it has pages."""

    _method = "list_workflows"


@dataclass(kw_only=True)
class FetchWorkflowHistoryEventsInput(WorkflowInput):
    """Events of a run's history are to be fetched: all of them, or a page where there is a `page_size`."""

    _method = "fetch_workflow_history_events"

    page_size: int | None = None
    next_page_token: bytes = b""
    newest_first: bool = False
    wait_new_event: bool = False
    event_filter: HistoryEventFilter = HistoryEventFilter.ALL_EVENT

    event_filter_type = _Alias("event_filter")


# --- activities that are completed from outside ---------------------------------------------------


@dataclass(kw_only=True)
class AsyncActivityInput(ClientCall):
    """An activity, by its token or by ids: what the four calls from outside have in common."""

    token: bytes = field(default=b"", repr=False)
    workflow_id: str = ""
    run_id: str = ""
    activity_id: str = ""


@dataclass(kw_only=True)
class CompleteAsyncActivityInput(AsyncActivityInput):
    """An activity returned; the only one of `args` is its result."""

    _method = "complete_async_activity"


@dataclass(kw_only=True)
class FailAsyncActivityInput(AsyncActivityInput):
    """An activity failed. `args` are the details of a last heartbeat."""

    _method = "fail_async_activity"

    error: BaseException

    last_heartbeat_details = _Alias("args")


@dataclass(kw_only=True)
class HeartbeatAsyncActivityInput(AsyncActivityInput):
    """An activity lives. `args` are the details."""

    _method = "heartbeat_async_activity"

    details = _Alias("args")


@dataclass(kw_only=True)
class ReportCancellationAsyncActivityInput(AsyncActivityInput):
    """An activity ended because it was asked to. `args` are the details."""

    _method = "report_cancellation_async_activity"

    details = _Alias("args")


# --- activities that belong to no workflow --------------------------------------------------------


@dataclass(kw_only=True)
class StartActivityExecutionInput(ClientCall):
    """An activity is to be started by itself. `options` are those of `client.StartActivityOptions` that were given, but for the
    id; each is an attribute, too.
    """

    _method = "start_activity"

    id: str
    activity: str
    options: dict[str, Any] = field(default_factory=dict, repr=False)
    result_type: Any = field(default=None, repr=False)

    task_queue = _Option()
    schedule_to_close_timeout = _Option()
    schedule_to_start_timeout = _Option()
    start_to_close_timeout = _Option()
    heartbeat_timeout = _Option()
    start_delay = _Option()
    id_reuse_policy = _Option()
    id_conflict_policy = _Option()
    retry_policy = _Option()
    search_attributes = _Option()
    static_summary = _Option()
    static_details = _Option()
    summary = _Option("static_summary")
    request_id = _Option()
    priority = _PriorityOption()
    priority_key = _Option()
    fairness_key = _Option()
    fairness_weight = _Option()
    activity_type = _Alias("activity")


@dataclass(kw_only=True)
class ActivityExecutionInput(ClientCall):
    """Something is to be done with an activity that a client started; with a `workflow_id`, with that workflow's."""

    id: str
    run_id: str | None = None
    workflow_id: str = ""

    activity_id = _Alias("id")
    activity_run_id = _Alias("run_id")


@dataclass(kw_only=True)
class DescribeActivityInput(ActivityExecutionInput):
    """An activity is to be looked at."""

    _method = "describe_activity"


@dataclass(kw_only=True)
class ActivityChangeInput(ActivityExecutionInput):
    """An activity is to end, to rest or to go on, for a reason."""

    reason: str = ""


@dataclass(kw_only=True)
class CancelActivityInput(ActivityChangeInput):
    """An activity is to be asked to cancel."""

    _method = "cancel_activity"


@dataclass(kw_only=True)
class TerminateActivityInput(ActivityChangeInput):
    """An activity is to be ended."""

    _method = "terminate_activity"


@dataclass(kw_only=True)
class PauseActivityInput(ActivityChangeInput):
    """An activity is to rest."""

    _method = "pause_activity"


@dataclass(kw_only=True)
class UnpauseActivityInput(ActivityChangeInput):
    """An activity that rests is to go on."""

    _method = "unpause_activity"


@dataclass(kw_only=True)
class UpdateActivityOptionsInput(ActivityExecutionInput):
    """What was said of an activity is to be changed: `changes` by name, or (`restore_original`) back to what was said first."""

    _method = "update_activity_options"

    changes: dict[str, Any] = field(default_factory=dict)
    restore_original: bool = False


@dataclass(kw_only=True)
class ListActivitiesInput(ListInput):
    """A page of a list of activities is to be fetched."""

    _method = "list_activities"


@dataclass(kw_only=True)
class CountActivitiesInput(FilterInput):
    """Activities that match a filter are to be counted."""

    _method = "count_activities"


# --- schedules ------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class ScheduleInput(ClientCall):
    """A schedule is meant."""

    id: str


@dataclass(kw_only=True)
class CreateScheduleInput(ScheduleInput):
    """A schedule is to be created."""

    _method = "create_schedule"

    schedule: Schedule
    trigger_immediately: bool = False
    backfill: Sequence[ScheduleBackfill] = ()
    memo: Mapping[str, Any] | None = field(default=None, repr=False)
    search_attributes: SearchAttributes | None = None


@dataclass(kw_only=True)
class ListSchedulesInput(ListInput):
    """A page of the schedules that match a filter is to be fetched."""

    _method = "list_schedules"


@dataclass(kw_only=True)
class DescribeScheduleInput(ScheduleInput):
    """A schedule is to be looked at."""

    _method = "describe_schedule"


@dataclass(kw_only=True)
class UpdateScheduleInput(ScheduleInput):
    """A schedule is to be changed: `change` makes the new one from its description."""

    _method = "update_schedule"

    change: Callable[[ScheduleDescription], Schedule | None] = field(repr=False)

    updater = _Alias("change")


@dataclass(kw_only=True)
class ScheduleNoteInput(ScheduleInput):
    """A schedule is to rest or to act again; `note` says why."""

    note: str = ""


@dataclass(kw_only=True)
class PauseScheduleInput(ScheduleNoteInput):
    """A schedule is to rest."""

    _method = "pause_schedule"


@dataclass(kw_only=True)
class UnpauseScheduleInput(ScheduleNoteInput):
    """A schedule is to act again."""

    _method = "unpause_schedule"


@dataclass(kw_only=True)
class TriggerScheduleInput(ScheduleInput):
    """A schedule is to act now."""

    _method = "trigger_schedule"

    overlap: OverlapPolicy | None = None


@dataclass(kw_only=True)
class BackfillScheduleInput(ScheduleInput):
    """A schedule is to act for times of the past."""

    _method = "backfill_schedule"

    backfill: Sequence[ScheduleBackfill] = ()

    backfills = _Alias("backfill")


@dataclass(kw_only=True)
class DeleteScheduleInput(ScheduleInput):
    """A schedule is to be deleted."""

    _method = "delete_schedule"
