"""The calls of a client as its interceptors see them. Data only.

Each call is an `…Input` that contains the arguments before they are encoded. It declares the interceptor method that the
call passes through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, dataclass_transform

from hourglass._contract.workflows import HistoryEventFilter, QueryRejectCondition, UpdateStage
from hourglass._evaluator.interception import InterceptedCall
from hourglass._evaluator.options import Priority

if TYPE_CHECKING:
    from hourglass._contract.schedule_specs import ScheduleBackfill, ScheduleOverlapPolicy
    from hourglass.client._options import RpcOptions
    from hourglass.client._schedule_data import Schedule, ScheduleDescription
    from hourglass.converter import SearchAttributes


class _Option:
    """A descriptor for an entry of a call's `options`; None if the caller did not set the option."""

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
    """A descriptor for the three priority options of a call, combined as a `Priority`."""

    def __get__(self, call: Any, owner: type | None = None) -> Any:
        if call is None:
            return self
        return Priority(*(call.options.get(name) or None for name in Priority.default.options()))

    def __set__(self, call: Any, value: Priority | None) -> None:
        call.options.update((value or Priority.default).options())


class _Alias:
    """A descriptor that gives a field temporalio's name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, call: Any, owner: type | None = None) -> Any:
        return self if call is None else getattr(call, self._name)

    def __set__(self, call: Any, value: Any) -> None:
        setattr(call, self._name, value)


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
@dataclass(kw_only=True)
class ClientCall(InterceptedCall):
    """A client call on its way through a chain of interceptors. `rpc_timeout` limits each request, in seconds.
    `rpc_metadata` contains headers that are sent to a server in addition to the client's own.

    A subclass is a dataclass, too. Its class arguments declare the interceptor method of the call: `method`, the docstring
    `does`, and the type that it `returns`. `make faces` generates the methods of both clients from these.
    """

    _method: ClassVar[str]

    rpc_timeout: float | None = field(default=None, repr=False)
    rpc_metadata: dict[str, str] = field(default_factory=dict, repr=False)

    def __init_subclass__(cls, method: str = "", does: str = "", returns: str = "None") -> None:
        cls._method = method
        dataclass(kw_only=True)(cls)

    def _rpc(self) -> RpcOptions:
        return {"rpc_timeout": self.rpc_timeout, "rpc_metadata": self.rpc_metadata}


class FilterInput(ClientCall):
    """A call about all objects that match a filter. An empty filter matches all of them."""

    query: str = ""


class ListInput(FilterInput):
    """A request for one page of a list. Iterating over a list makes such a call for each page."""

    page_size: int = 100
    next_page_token: bytes = b""


class StartWorkflowInput(
    ClientCall, method="start_workflow", does="Start a workflow and return its handle.", returns="Any"
):
    """The start of a workflow. `options` contains the `client.StartOptions` that were set, except the id. Each option is
    also an attribute: `input.memo = {…}`.
    """

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


class WorkflowInput(ClientCall):
    """A call about an existing workflow, or, with `run_id`, about that run only."""

    id: str
    run_id: str | None = None


class SignalWorkflowInput(WorkflowInput, method="signal_workflow", does="Send a signal to a workflow."):
    """A signal to a workflow."""

    signal: str


class QueryWorkflowInput(
    WorkflowInput, method="query_workflow", does="Query a workflow and return the answer.", returns="Any"
):
    """A query to a workflow."""

    query: str
    reject_condition: QueryRejectCondition | None = None
    result_type: Any = field(default=None, repr=False)

    ret_type = _Alias("result_type")


class StartWorkflowUpdateInput(
    WorkflowInput,
    method="start_workflow_update",
    does="Request an update and return its handle.",
    returns="Any",
):
    """A request for an update. If `update_id` is empty, a new id is generated."""

    update: str
    update_id: str = ""
    wait_for_stage: UpdateStage = UpdateStage.ACCEPTED
    first_execution_run_id: str | None = None
    result_type: Any = field(default=None, repr=False)

    ret_type = _Alias("result_type")


class StartUpdateWithStartInput(
    ClientCall,
    method="start_update_with_start_workflow",
    does="Start a workflow unless it is running, request an update, and return the update's handle.",
    returns="Any",
):
    """A start of a workflow, unless it is running, together with an update request. Both have arguments and headers."""

    id: str
    start: StartWorkflowInput
    update: StartWorkflowUpdateInput

    start_workflow_input = _Alias("start")
    update_workflow_input = _Alias("update")


class WorkflowEndInput(WorkflowInput):
    """A cancellation or termination of a workflow. If `first_execution_run_id` is set, the call applies only if the
    workflow's chain began with that run.
    """

    reason: str = ""
    first_execution_run_id: str | None = None


class CancelWorkflowInput(
    WorkflowEndInput, method="cancel_workflow", does="Request the cancellation of a workflow."
):
    """A request for the cancellation of a workflow."""


class TerminateWorkflowInput(WorkflowEndInput, method="terminate_workflow", does="Terminate a workflow."):
    """A termination of a workflow. `args` are the details."""


class DescribeWorkflowInput(
    WorkflowInput, method="describe_workflow", does="Return the description of a workflow.", returns="Any"
):
    """A request for the description of a workflow."""


class CountWorkflowsInput(
    FilterInput, method="count_workflows", does="Return the number of matching runs.", returns="Any"
):
    """A request for the number of matching runs."""


class ListWorkflowsInput(
    ListInput, method="list_workflows", does="Return one page of a list of runs.", returns="Any"
):
    """A request for one page of the matching runs. Iterating over a list makes such a call for each page."""


class FetchWorkflowHistoryEventsInput(
    WorkflowInput,
    method="fetch_workflow_history_events",
    does="Return the history of a run, or one page of it.",
    returns="Any",
):
    """A request for the history of a run, or, with `page_size`, for one page of the history."""

    page_size: int | None = None
    next_page_token: bytes = b""
    newest_first: bool = False
    wait_new_event: bool = False
    event_filter: HistoryEventFilter = HistoryEventFilter.ALL_EVENT

    event_filter_type = _Alias("event_filter")


class AsyncActivityInput(ClientCall):
    """A call about an activity that completes asynchronously, identified by its task token or by its ids."""

    token: bytes = field(default=b"", repr=False)
    workflow_id: str = ""
    run_id: str = ""
    activity_id: str = ""


class CompleteAsyncActivityInput(
    AsyncActivityInput, method="complete_async_activity", does="Complete an activity with its result."
):
    """The completion of an activity. `args` contains only its result."""


class FailAsyncActivityInput(AsyncActivityInput, method="fail_async_activity", does="Fail an activity."):
    """The failure of an activity. `args` are the details that replace the last heartbeat's details."""

    error: BaseException

    last_heartbeat_details = _Alias("args")


class HeartbeatAsyncActivityInput(
    AsyncActivityInput,
    method="heartbeat_async_activity",
    does="Send a heartbeat of an activity; return whether its cancellation was requested.",
    returns="bool",
):
    """A heartbeat of an activity. `args` are the details."""

    details = _Alias("args")


class ReportCancellationAsyncActivityInput(
    AsyncActivityInput,
    method="report_cancellation_async_activity",
    does="Report that an activity ended as cancelled.",
):
    """A report that an activity was cancelled. `args` are the details."""

    details = _Alias("args")


class StartActivityExecutionInput(
    ClientCall,
    method="start_activity",
    does="Start a standalone activity and return its handle.",
    returns="Any",
):
    """The start of a standalone activity. `options` contains the `client.StartActivityOptions` that were set, except the id.
    Each option is also an attribute.
    """

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


class ActivityExecutionInput(ClientCall):
    """A call about a standalone activity, or, with `workflow_id`, about an activity of that workflow."""

    id: str
    run_id: str | None = None
    workflow_id: str = ""

    activity_id = _Alias("id")
    activity_run_id = _Alias("run_id")


class DescribeActivityInput(
    ActivityExecutionInput,
    method="describe_activity",
    does="Return the description of a standalone activity.",
    returns="Any",
):
    """A request for the description of a standalone activity."""


class ActivityChangeInput(ActivityExecutionInput):
    """A change of an activity's state, with a reason."""

    reason: str = ""


class CancelActivityInput(
    ActivityChangeInput, method="cancel_activity", does="Request the cancellation of a standalone activity."
):
    """A request for the cancellation of a standalone activity."""


class TerminateActivityInput(
    ActivityChangeInput, method="terminate_activity", does="Terminate a standalone activity."
):
    """A termination of a standalone activity."""


class PauseActivityInput(ActivityChangeInput, method="pause_activity", does="Pause an activity."):
    """A request to pause an activity."""


class UnpauseActivityInput(ActivityChangeInput, method="unpause_activity", does="Resume a paused activity."):
    """A request to resume a paused activity."""


class UpdateActivityOptionsInput(
    ActivityExecutionInput,
    method="update_activity_options",
    does="Change the options of an activity and return its current options.",
    returns="Any",
):
    """A change of an activity's options. `changes` maps names to new values; with `restore_original` the original options
    are restored.
    """

    changes: dict[str, Any] = field(default_factory=dict)
    restore_original: bool = False


class ListActivitiesInput(
    ListInput,
    method="list_activities",
    does="Return one page of a list of standalone activities.",
    returns="Any",
):
    """A request for one page of the matching standalone activities."""


class CountActivitiesInput(
    FilterInput,
    method="count_activities",
    does="Return the number of matching standalone activities.",
    returns="Any",
):
    """A request for the number of matching standalone activities."""


class ScheduleInput(ClientCall):
    """A call about a schedule."""

    id: str


class CreateScheduleInput(
    ScheduleInput, method="create_schedule", does="Create a schedule and return its handle.", returns="Any"
):
    """The creation of a schedule."""

    schedule: Schedule
    trigger_immediately: bool = False
    backfill: Sequence[ScheduleBackfill] = ()
    memo: Mapping[str, Any] | None = field(default=None, repr=False)
    search_attributes: SearchAttributes | None = None


class ListSchedulesInput(
    ListInput, method="list_schedules", does="Return one page of a list of schedules.", returns="Any"
):
    """A request for one page of the matching schedules."""


class DescribeScheduleInput(
    ScheduleInput, method="describe_schedule", does="Return the description of a schedule.", returns="Any"
):
    """A request for the description of a schedule."""


class UpdateScheduleInput(ScheduleInput, method="update_schedule", does="Change a schedule."):
    """A change of a schedule: `change` receives the description and returns the new schedule."""

    change: Callable[[ScheduleDescription], Schedule | None] = field(repr=False)

    updater = _Alias("change")


class ScheduleNoteInput(ScheduleInput):
    """A request to pause or resume a schedule. `note` is the reason."""

    note: str = ""


class PauseScheduleInput(ScheduleNoteInput, method="pause_schedule", does="Pause a schedule."):
    """A request to pause a schedule."""


class UnpauseScheduleInput(ScheduleNoteInput, method="unpause_schedule", does="Resume a paused schedule."):
    """A request to resume a paused schedule."""


class TriggerScheduleInput(
    ScheduleInput, method="trigger_schedule", does="Run the action of a schedule now."
):
    """A request to run the action of a schedule now."""

    overlap: ScheduleOverlapPolicy | None = None


class BackfillScheduleInput(
    ScheduleInput, method="backfill_schedule", does="Run the action of a schedule for past times."
):
    """A request to run the action of a schedule for past times."""

    backfill: Sequence[ScheduleBackfill] = ()

    backfills = _Alias("backfill")


class DeleteScheduleInput(ScheduleInput, method="delete_schedule", does="Delete a schedule."):
    """The deletion of a schedule."""
