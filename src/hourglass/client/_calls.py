"""The calls of a client as its interceptors see them. Data only.

Each call is an `…Input` that contains the arguments before they are encoded. It declares the interceptor method that the
call passes through (`CallPoint`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from hourglass._contract.workflows import HistoryEventFilter, QueryRejectCondition, UpdateStage
from hourglass._evaluator.interception import InterceptedCall
from hourglass._evaluator.options import Priority

if TYPE_CHECKING:
    from hourglass._contract.schedule_specs import ScheduleBackfill, ScheduleOverlapPolicy
    from hourglass.client._options import RpcOptions
    from hourglass.client._schedule_data import Schedule, ScheduleDescription
    from hourglass.converter import SearchAttributes


class CallPoint(NamedTuple):
    """The interceptor method that a call passes through. `make faces` generates the methods of both clients from these."""

    method: str
    doc: str
    returns: str = "None"


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


@dataclass(kw_only=True)
class ClientCall(InterceptedCall):
    """A client call on its way through a chain of interceptors. `rpc_timeout` limits each request, in seconds.
    `rpc_metadata` contains headers that are sent to a server in addition to the client's own.
    """

    _point: ClassVar[CallPoint]

    rpc_timeout: float | None = field(default=None, repr=False)
    rpc_metadata: dict[str, str] = field(default_factory=dict, repr=False)

    def _rpc(self) -> RpcOptions:
        return {"rpc_timeout": self.rpc_timeout, "rpc_metadata": self.rpc_metadata}


@dataclass(kw_only=True)
class FilterInput(ClientCall):
    """A call about all objects that match a filter. An empty filter matches all of them."""

    query: str = ""


@dataclass(kw_only=True)
class ListInput(FilterInput):
    """A request for one page of a list. Iterating over a list makes such a call for each page."""

    page_size: int = 100
    next_page_token: bytes = b""


@dataclass(kw_only=True)
class StartWorkflowInput(ClientCall):
    """The start of a workflow. `options` contains the `client.StartOptions` that were set, except the id. Each option is
    also an attribute: `input.memo = {…}`.
    """

    _point = CallPoint("start_workflow", "Start a workflow and return its handle.", returns="Any")

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
    """A call about an existing workflow, or, with `run_id`, about that run only."""

    id: str
    run_id: str | None = None


@dataclass(kw_only=True)
class SignalWorkflowInput(WorkflowInput):
    """A signal to a workflow."""

    _point = CallPoint("signal_workflow", "Send a signal to a workflow.")

    signal: str


@dataclass(kw_only=True)
class QueryWorkflowInput(WorkflowInput):
    """A query to a workflow."""

    _point = CallPoint("query_workflow", "Query a workflow and return the answer.", returns="Any")

    query: str
    reject_condition: QueryRejectCondition | None = None
    result_type: Any = field(default=None, repr=False)

    ret_type = _Alias("result_type")


@dataclass(kw_only=True)
class StartWorkflowUpdateInput(WorkflowInput):
    """A request for an update. If `update_id` is empty, a new id is generated."""

    _point = CallPoint("start_workflow_update", "Request an update and return its handle.", returns="Any")

    update: str
    update_id: str = ""
    wait_for_stage: UpdateStage = UpdateStage.ACCEPTED
    first_execution_run_id: str | None = None
    result_type: Any = field(default=None, repr=False)

    ret_type = _Alias("result_type")


@dataclass(kw_only=True)
class StartUpdateWithStartInput(ClientCall):
    """A start of a workflow, unless it is running, together with an update request. Both have arguments and headers."""

    _point = CallPoint(
        "start_update_with_start_workflow",
        "Start a workflow unless it is running, request an update, and return the update's handle.",
        returns="Any",
    )

    id: str
    start: StartWorkflowInput
    update: StartWorkflowUpdateInput

    start_workflow_input = _Alias("start")
    update_workflow_input = _Alias("update")


@dataclass(kw_only=True)
class WorkflowEndInput(WorkflowInput):
    """A cancellation or termination of a workflow. If `first_execution_run_id` is set, the call applies only if the
    workflow's chain began with that run.
    """

    reason: str = ""
    first_execution_run_id: str | None = None


@dataclass(kw_only=True)
class CancelWorkflowInput(WorkflowEndInput):
    """A request for the cancellation of a workflow."""

    _point = CallPoint("cancel_workflow", "Request the cancellation of a workflow.")


@dataclass(kw_only=True)
class TerminateWorkflowInput(WorkflowEndInput):
    """A termination of a workflow. `args` are the details."""

    _point = CallPoint("terminate_workflow", "Terminate a workflow.")


@dataclass(kw_only=True)
class DescribeWorkflowInput(WorkflowInput):
    """A request for the description of a workflow."""

    _point = CallPoint("describe_workflow", "Return the description of a workflow.", returns="Any")


@dataclass(kw_only=True)
class CountWorkflowsInput(FilterInput):
    """A request for the number of matching runs."""

    _point = CallPoint("count_workflows", "Return the number of matching runs.", returns="Any")


@dataclass(kw_only=True)
class ListWorkflowsInput(ListInput):
    """A request for one page of the matching runs. Iterating over a list makes such a call for each page."""

    _point = CallPoint("list_workflows", "Return one page of a list of runs.", returns="Any")


@dataclass(kw_only=True)
class FetchWorkflowHistoryEventsInput(WorkflowInput):
    """A request for the history of a run, or, with `page_size`, for one page of the history."""

    _point = CallPoint(
        "fetch_workflow_history_events", "Return the history of a run, or one page of it.", returns="Any"
    )

    page_size: int | None = None
    next_page_token: bytes = b""
    newest_first: bool = False
    wait_new_event: bool = False
    event_filter: HistoryEventFilter = HistoryEventFilter.ALL_EVENT

    event_filter_type = _Alias("event_filter")


@dataclass(kw_only=True)
class AsyncActivityInput(ClientCall):
    """A call about an activity that completes asynchronously, identified by its task token or by its ids."""

    token: bytes = field(default=b"", repr=False)
    workflow_id: str = ""
    run_id: str = ""
    activity_id: str = ""


@dataclass(kw_only=True)
class CompleteAsyncActivityInput(AsyncActivityInput):
    """The completion of an activity. `args` contains only its result."""

    _point = CallPoint("complete_async_activity", "Complete an activity with its result.")


@dataclass(kw_only=True)
class FailAsyncActivityInput(AsyncActivityInput):
    """The failure of an activity. `args` are the details that replace the last heartbeat's details."""

    _point = CallPoint("fail_async_activity", "Fail an activity.")

    error: BaseException

    last_heartbeat_details = _Alias("args")


@dataclass(kw_only=True)
class HeartbeatAsyncActivityInput(AsyncActivityInput):
    """A heartbeat of an activity. `args` are the details."""

    _point = CallPoint(
        "heartbeat_async_activity",
        "Send a heartbeat of an activity; return whether its cancellation was requested.",
        returns="bool",
    )

    details = _Alias("args")


@dataclass(kw_only=True)
class ReportCancellationAsyncActivityInput(AsyncActivityInput):
    """A report that an activity was cancelled. `args` are the details."""

    _point = CallPoint("report_cancellation_async_activity", "Report that an activity ended as cancelled.")

    details = _Alias("args")


@dataclass(kw_only=True)
class StartActivityExecutionInput(ClientCall):
    """The start of a standalone activity. `options` contains the `client.StartActivityOptions` that were set, except the id.
    Each option is also an attribute.
    """

    _point = CallPoint("start_activity", "Start a standalone activity and return its handle.", returns="Any")

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
    """A call about a standalone activity, or, with `workflow_id`, about an activity of that workflow."""

    id: str
    run_id: str | None = None
    workflow_id: str = ""

    activity_id = _Alias("id")
    activity_run_id = _Alias("run_id")


@dataclass(kw_only=True)
class DescribeActivityInput(ActivityExecutionInput):
    """A request for the description of a standalone activity."""

    _point = CallPoint("describe_activity", "Return the description of a standalone activity.", returns="Any")


@dataclass(kw_only=True)
class ActivityChangeInput(ActivityExecutionInput):
    """A change of an activity's state, with a reason."""

    reason: str = ""


@dataclass(kw_only=True)
class CancelActivityInput(ActivityChangeInput):
    """A request for the cancellation of a standalone activity."""

    _point = CallPoint("cancel_activity", "Request the cancellation of a standalone activity.")


@dataclass(kw_only=True)
class TerminateActivityInput(ActivityChangeInput):
    """A termination of a standalone activity."""

    _point = CallPoint("terminate_activity", "Terminate a standalone activity.")


@dataclass(kw_only=True)
class PauseActivityInput(ActivityChangeInput):
    """A request to pause an activity."""

    _point = CallPoint("pause_activity", "Pause an activity.")


@dataclass(kw_only=True)
class UnpauseActivityInput(ActivityChangeInput):
    """A request to resume a paused activity."""

    _point = CallPoint("unpause_activity", "Resume a paused activity.")


@dataclass(kw_only=True)
class UpdateActivityOptionsInput(ActivityExecutionInput):
    """A change of an activity's options. `changes` maps names to new values; with `restore_original` the original options
    are restored.
    """

    _point = CallPoint(
        "update_activity_options",
        "Change the options of an activity and return its current options.",
        returns="Any",
    )

    changes: dict[str, Any] = field(default_factory=dict)
    restore_original: bool = False


@dataclass(kw_only=True)
class ListActivitiesInput(ListInput):
    """A request for one page of the matching standalone activities."""

    _point = CallPoint(
        "list_activities", "Return one page of a list of standalone activities.", returns="Any"
    )


@dataclass(kw_only=True)
class CountActivitiesInput(FilterInput):
    """A request for the number of matching standalone activities."""

    _point = CallPoint(
        "count_activities", "Return the number of matching standalone activities.", returns="Any"
    )


@dataclass(kw_only=True)
class ScheduleInput(ClientCall):
    """A call about a schedule."""

    id: str


@dataclass(kw_only=True)
class CreateScheduleInput(ScheduleInput):
    """The creation of a schedule."""

    _point = CallPoint("create_schedule", "Create a schedule and return its handle.", returns="Any")

    schedule: Schedule
    trigger_immediately: bool = False
    backfill: Sequence[ScheduleBackfill] = ()
    memo: Mapping[str, Any] | None = field(default=None, repr=False)
    search_attributes: SearchAttributes | None = None


@dataclass(kw_only=True)
class ListSchedulesInput(ListInput):
    """A request for one page of the matching schedules."""

    _point = CallPoint("list_schedules", "Return one page of a list of schedules.", returns="Any")


@dataclass(kw_only=True)
class DescribeScheduleInput(ScheduleInput):
    """A request for the description of a schedule."""

    _point = CallPoint("describe_schedule", "Return the description of a schedule.", returns="Any")


@dataclass(kw_only=True)
class UpdateScheduleInput(ScheduleInput):
    """A change of a schedule: `change` receives the description and returns the new schedule."""

    _point = CallPoint("update_schedule", "Change a schedule.")

    change: Callable[[ScheduleDescription], Schedule | None] = field(repr=False)

    updater = _Alias("change")


@dataclass(kw_only=True)
class ScheduleNoteInput(ScheduleInput):
    """A request to pause or resume a schedule. `note` is the reason."""

    note: str = ""


@dataclass(kw_only=True)
class PauseScheduleInput(ScheduleNoteInput):
    """A request to pause a schedule."""

    _point = CallPoint("pause_schedule", "Pause a schedule.")


@dataclass(kw_only=True)
class UnpauseScheduleInput(ScheduleNoteInput):
    """A request to resume a paused schedule."""

    _point = CallPoint("unpause_schedule", "Resume a paused schedule.")


@dataclass(kw_only=True)
class TriggerScheduleInput(ScheduleInput):
    """A request to run the action of a schedule now."""

    _point = CallPoint("trigger_schedule", "Run the action of a schedule now.")

    overlap: ScheduleOverlapPolicy | None = None


@dataclass(kw_only=True)
class BackfillScheduleInput(ScheduleInput):
    """A request to run the action of a schedule for past times."""

    _point = CallPoint("backfill_schedule", "Run the action of a schedule for past times.")

    backfill: Sequence[ScheduleBackfill] = ()

    backfills = _Alias("backfill")


@dataclass(kw_only=True)
class DeleteScheduleInput(ScheduleInput):
    """The deletion of a schedule."""

    _point = CallPoint("delete_schedule", "Delete a schedule.")
