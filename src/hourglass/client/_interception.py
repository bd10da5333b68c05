"""What may stand between callers and what they call: `Interceptor`, and the chains of both faces of the client.

A client's chain runs where the caller is: in its thread, or on its event loop. Each call is an `…Input` with the
arguments as they were given, before they are encoded; the last interceptor hands it to the session, which runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from hourglass._contract.workflows import HistoryEventFilter
from hourglass._engine.interception import InterceptedCall, InterceptWorkflow, WorkflowInboundInterceptor
from hourglass.activity._context import ActivityChain, ActivityInboundInterceptor, LastActivityInbound
from hourglass.errors import UsageError
from hourglass.nexus import LastNexusInbound, NexusOperationInboundInterceptor

if TYPE_CHECKING:
    from hourglass._contract.schedules import OverlapPolicy
    from hourglass.client._options import RpcOptions
    from hourglass.client._schedule_data import Schedule, ScheduleBackfill, ScheduleDescription
    from hourglass.client._session import ClientSession
    from hourglass.converter import SearchAttributes


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
class StartWorkflowInput(ClientCall):
    """A workflow is to be started. `options` are those of `client.StartOptions`, but for the id."""

    _method = "start_workflow"

    id: str
    workflow: str
    options: dict[str, Any] = field(default_factory=dict, repr=False)


@dataclass(kw_only=True)
class SignalWorkflowInput(ClientCall):
    """A workflow is to be signalled."""

    _method = "signal_workflow"

    id: str
    run_id: str | None = None
    signal: str


@dataclass(kw_only=True)
class QueryWorkflowInput(ClientCall):
    """A workflow is to be asked."""

    _method = "query_workflow"

    id: str
    run_id: str | None = None
    query: str


@dataclass(kw_only=True)
class StartWorkflowUpdateInput(ClientCall):
    """An update is to be asked for; `update_id` is its own id, empty where a fresh one will be made."""

    _method = "start_workflow_update"

    id: str
    run_id: str | None = None
    update: str
    update_id: str = ""


@dataclass(kw_only=True)
class StartUpdateWithStartInput(ClientCall):
    """A workflow is to be started, unless it runs, and an update asked of it; each of the two has arguments and headers."""

    _method = "start_update_with_start_workflow"

    id: str
    start: StartWorkflowInput
    update: StartWorkflowUpdateInput


@dataclass(kw_only=True)
class CancelWorkflowInput(ClientCall):
    """A workflow is to be asked to cancel."""

    _method = "cancel_workflow"

    id: str
    run_id: str | None = None
    reason: str = ""


@dataclass(kw_only=True)
class TerminateWorkflowInput(ClientCall):
    """A workflow is to be ended. `args` are the details."""

    _method = "terminate_workflow"

    id: str
    run_id: str | None = None
    reason: str = ""


@dataclass(kw_only=True)
class DescribeWorkflowInput(ClientCall):
    """A workflow is to be looked at."""

    _method = "describe_workflow"

    id: str
    run_id: str | None = None


@dataclass(kw_only=True)
class CountWorkflowsInput(ClientCall):
    """Runs that match a filter are to be counted."""

    _method = "count_workflows"

    query: str = ""


@dataclass(kw_only=True)
class ListWorkflowsInput(ClientCall):
    """A page of the runs that match a filter is to be fetched: a list is so many of these as it has pages."""

    _method = "list_workflows"

    query: str = ""
    page_size: int = 100
    next_page_token: bytes = b""


@dataclass(kw_only=True)
class FetchWorkflowHistoryEventsInput(ClientCall):
    """Events of a run's history are to be fetched: all of them, or a page where there is a `page_size`."""

    _method = "fetch_workflow_history_events"

    id: str
    run_id: str | None = None
    page_size: int | None = None
    next_page_token: bytes = b""
    newest_first: bool = False
    wait_new_event: bool = False
    event_filter: HistoryEventFilter = HistoryEventFilter.ALL_EVENT


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


@dataclass(kw_only=True)
class HeartbeatAsyncActivityInput(AsyncActivityInput):
    """An activity lives. `args` are the details."""

    _method = "heartbeat_async_activity"


@dataclass(kw_only=True)
class ReportCancellationAsyncActivityInput(AsyncActivityInput):
    """An activity ended because it was asked to. `args` are the details."""

    _method = "report_cancellation_async_activity"


# --- schedules ------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class StartActivityExecutionInput(ClientCall):
    """An activity is to be started by itself. `options` are those of `client.StartActivityOptions`, but for the id."""

    _method = "start_activity"

    id: str
    activity: str
    options: dict[str, Any] = field(default_factory=dict, repr=False)


@dataclass(kw_only=True)
class ActivityExecutionInput(ClientCall):
    """Something is to be done with an activity that a client started; with a `workflow_id`, with that workflow's."""

    id: str
    run_id: str | None = None
    workflow_id: str = ""


@dataclass(kw_only=True)
class DescribeActivityInput(ActivityExecutionInput):
    """An activity is to be looked at."""

    _method = "describe_activity"


@dataclass(kw_only=True)
class CancelActivityInput(ActivityExecutionInput):
    """An activity is to be asked to cancel."""

    _method = "cancel_activity"

    reason: str = ""


@dataclass(kw_only=True)
class TerminateActivityInput(ActivityExecutionInput):
    """An activity is to be ended."""

    _method = "terminate_activity"

    reason: str = ""


@dataclass(kw_only=True)
class PauseActivityInput(ActivityExecutionInput):
    """An activity is to rest."""

    _method = "pause_activity"

    reason: str = ""


@dataclass(kw_only=True)
class UnpauseActivityInput(ActivityExecutionInput):
    """An activity that rests is to go on."""

    _method = "unpause_activity"

    reason: str = ""


@dataclass(kw_only=True)
class UpdateActivityOptionsInput(ActivityExecutionInput):
    """What was said of an activity is to be changed: `changes` by name, or (`restore_original`) back to what was said first."""

    _method = "update_activity_options"

    changes: dict[str, Any] = field(default_factory=dict)
    restore_original: bool = False


@dataclass(kw_only=True)
class ListActivitiesInput(ClientCall):
    """A page of a list of activities is to be fetched."""

    _method = "list_activities"

    query: str = ""
    page_size: int = 100
    next_page_token: bytes = b""


@dataclass(kw_only=True)
class CountActivitiesInput(ClientCall):
    """Activities that match a filter are to be counted."""

    _method = "count_activities"

    query: str = ""


@dataclass(kw_only=True)
class CreateScheduleInput(ClientCall):
    """A schedule is to be created."""

    _method = "create_schedule"

    id: str
    schedule: Schedule
    trigger_immediately: bool = False
    backfill: Sequence[ScheduleBackfill] = ()
    memo: Mapping[str, Any] | None = field(default=None, repr=False)
    search_attributes: SearchAttributes | None = None


@dataclass(kw_only=True)
class ListSchedulesInput(ClientCall):
    """A page of the schedules that match a filter is to be fetched."""

    _method = "list_schedules"

    query: str = ""
    page_size: int = 100
    next_page_token: bytes = b""


@dataclass(kw_only=True)
class DescribeScheduleInput(ClientCall):
    """A schedule is to be looked at."""

    _method = "describe_schedule"

    id: str


@dataclass(kw_only=True)
class UpdateScheduleInput(ClientCall):
    """A schedule is to be changed: `change` makes the new one from its description."""

    _method = "update_schedule"

    id: str
    change: Callable[[ScheduleDescription], Schedule | None] = field(repr=False)


@dataclass(kw_only=True)
class PauseScheduleInput(ClientCall):
    """A schedule is to rest."""

    _method = "pause_schedule"

    id: str
    note: str = ""


@dataclass(kw_only=True)
class UnpauseScheduleInput(ClientCall):
    """A schedule is to act again."""

    _method = "unpause_schedule"

    id: str
    note: str = ""


@dataclass(kw_only=True)
class TriggerScheduleInput(ClientCall):
    """A schedule is to act now."""

    _method = "trigger_schedule"

    id: str
    overlap: OverlapPolicy | None = None


@dataclass(kw_only=True)
class BackfillScheduleInput(ClientCall):
    """A schedule is to act for times of the past."""

    _method = "backfill_schedule"

    id: str
    backfill: Sequence[ScheduleBackfill] = ()


@dataclass(kw_only=True)
class DeleteScheduleInput(ClientCall):
    """A schedule is to be deleted."""

    _method = "delete_schedule"

    id: str


# --- chains ---------------------------------------------------------------------------------------


class Interceptor:
    """Stands between callers and what they call, wherever it is put: override those `intercept_…` that you want.

    Given to `Client.connect(interceptors=[…])` it serves the client and every worker of that client; given to
    `Worker(interceptors=[…])` that worker alone. The first of a list is the outermost.
    """

    def intercept_client(self, next: ClientOutboundInterceptor) -> ClientOutboundInterceptor:
        """Put an interceptor before the next one, for a `Client`."""
        return next

    def intercept_async_client(self, next: AsyncClientOutboundInterceptor) -> AsyncClientOutboundInterceptor:
        """Put an interceptor before the next one, for an `AsyncClient`."""
        return next

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """Put an interceptor before the next one, for the activities of a worker."""
        return next

    def intercept_workflow(self, next: WorkflowInboundInterceptor) -> WorkflowInboundInterceptor:
        """Put an interceptor before the next one, for one execution of a run. Must be deterministic, as workflow code is."""
        return next

    def intercept_nexus_operation(
        self, next: NexusOperationInboundInterceptor
    ) -> NexusOperationInboundInterceptor:
        """Put an interceptor before the next one, for the Nexus operations of a worker."""
        return next


# --- faces: awaited, the source of what follows ---


class AsyncClientOutboundInterceptor:
    """What an `AsyncClient` asks for, on its way out: as `ClientOutboundInterceptor`, and awaited."""

    def __init__(self, next: AsyncClientOutboundInterceptor) -> None:
        self.next = next

    async def start_workflow(self, input: StartWorkflowInput) -> Any:
        """Start a workflow; its handle."""
        return await self.next.start_workflow(input)

    async def signal_workflow(self, input: SignalWorkflowInput) -> None:
        """Send a signal."""
        return await self.next.signal_workflow(input)

    async def query_workflow(self, input: QueryWorkflowInput) -> Any:
        """Ask a question; the answer."""
        return await self.next.query_workflow(input)

    async def start_workflow_update(self, input: StartWorkflowUpdateInput) -> Any:
        """Ask for an update; its handle."""
        return await self.next.start_workflow_update(input)

    async def start_update_with_start_workflow(self, input: StartUpdateWithStartInput) -> Any:
        """Start a workflow, unless it runs, and ask for an update; its handle."""
        return await self.next.start_update_with_start_workflow(input)

    async def cancel_workflow(self, input: CancelWorkflowInput) -> None:
        """Ask a workflow to cancel."""
        return await self.next.cancel_workflow(input)

    async def terminate_workflow(self, input: TerminateWorkflowInput) -> None:
        """End a workflow."""
        return await self.next.terminate_workflow(input)

    async def describe_workflow(self, input: DescribeWorkflowInput) -> Any:
        """Look at a workflow; what is seen."""
        return await self.next.describe_workflow(input)

    async def count_workflows(self, input: CountWorkflowsInput) -> Any:
        """Count workflows; how many there are."""
        return await self.next.count_workflows(input)

    async def list_workflows(self, input: ListWorkflowsInput) -> Any:
        """Fetch a page of a list of workflows."""
        return await self.next.list_workflows(input)

    async def fetch_workflow_history_events(self, input: FetchWorkflowHistoryEventsInput) -> Any:
        """Fetch a history, or a page of it."""
        return await self.next.fetch_workflow_history_events(input)

    async def complete_async_activity(self, input: CompleteAsyncActivityInput) -> None:
        """Give an activity its result."""
        return await self.next.complete_async_activity(input)

    async def fail_async_activity(self, input: FailAsyncActivityInput) -> None:
        """Fail an activity."""
        return await self.next.fail_async_activity(input)

    async def heartbeat_async_activity(self, input: HeartbeatAsyncActivityInput) -> bool:
        """Tell that an activity lives; whether it is asked to stop."""
        return await self.next.heartbeat_async_activity(input)

    async def report_cancellation_async_activity(self, input: ReportCancellationAsyncActivityInput) -> None:
        """End an activity as cancelled."""
        return await self.next.report_cancellation_async_activity(input)

    async def start_activity(self, input: StartActivityExecutionInput) -> Any:
        """Start an activity by itself; its handle."""
        return await self.next.start_activity(input)

    async def describe_activity(self, input: DescribeActivityInput) -> Any:
        """Look at an activity that a client started; what is seen."""
        return await self.next.describe_activity(input)

    async def cancel_activity(self, input: CancelActivityInput) -> None:
        """Ask an activity to cancel."""
        return await self.next.cancel_activity(input)

    async def terminate_activity(self, input: TerminateActivityInput) -> None:
        """End an activity."""
        return await self.next.terminate_activity(input)

    async def pause_activity(self, input: PauseActivityInput) -> None:
        """Let an activity rest."""
        return await self.next.pause_activity(input)

    async def unpause_activity(self, input: UnpauseActivityInput) -> None:
        """Let an activity go on."""
        return await self.next.unpause_activity(input)

    async def update_activity_options(self, input: UpdateActivityOptionsInput) -> Any:
        """Change what was said of an activity; what holds now."""
        return await self.next.update_activity_options(input)

    async def list_activities(self, input: ListActivitiesInput) -> Any:
        """Fetch a page of a list of activities."""
        return await self.next.list_activities(input)

    async def count_activities(self, input: CountActivitiesInput) -> Any:
        """Count activities; how many there are."""
        return await self.next.count_activities(input)

    async def create_schedule(self, input: CreateScheduleInput) -> Any:
        """Create a schedule; its handle."""
        return await self.next.create_schedule(input)

    async def list_schedules(self, input: ListSchedulesInput) -> Any:
        """Fetch a page of a list of schedules."""
        return await self.next.list_schedules(input)

    async def describe_schedule(self, input: DescribeScheduleInput) -> Any:
        """Look at a schedule; what is seen."""
        return await self.next.describe_schedule(input)

    async def update_schedule(self, input: UpdateScheduleInput) -> None:
        """Change a schedule."""
        return await self.next.update_schedule(input)

    async def pause_schedule(self, input: PauseScheduleInput) -> None:
        """Let a schedule rest."""
        return await self.next.pause_schedule(input)

    async def unpause_schedule(self, input: UnpauseScheduleInput) -> None:
        """Let a schedule act again."""
        return await self.next.unpause_schedule(input)

    async def trigger_schedule(self, input: TriggerScheduleInput) -> None:
        """Let a schedule act now."""
        return await self.next.trigger_schedule(input)

    async def backfill_schedule(self, input: BackfillScheduleInput) -> None:
        """Let a schedule act for times of the past."""
        return await self.next.backfill_schedule(input)

    async def delete_schedule(self, input: DeleteScheduleInput) -> None:
        """Delete a schedule."""
        return await self.next.delete_schedule(input)


class _LastAsyncClientOutbound(AsyncClientOutboundInterceptor):
    """The end of the chain: the call itself."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session

    async def _go_on(self, input: ClientCall) -> Any:
        return await self._session.with_rpc(input._rpc()).aperform(input._proceed(input))

    start_workflow = signal_workflow = query_workflow = start_workflow_update = _go_on
    start_update_with_start_workflow = cancel_workflow = terminate_workflow = describe_workflow = _go_on
    count_workflows = list_workflows = fetch_workflow_history_events = _go_on
    complete_async_activity = fail_async_activity = heartbeat_async_activity = _go_on
    start_activity = describe_activity = cancel_activity = terminate_activity = pause_activity = _go_on
    unpause_activity = update_activity_options = list_activities = count_activities = _go_on
    report_cancellation_async_activity = create_schedule = list_schedules = describe_schedule = _go_on
    pause_schedule = unpause_schedule = trigger_schedule = backfill_schedule = delete_schedule = _go_on

    async def update_schedule(self, input: UpdateScheduleInput) -> None:
        """Change it, in several calls."""
        await self._session.with_rpc(input._rpc()).aperform_steps(input._proceed(input))


def async_client_chain(session: ClientSession) -> AsyncClientOutboundInterceptor:
    """What stands between an `AsyncClient` and its session."""
    outbound: AsyncClientOutboundInterceptor = _LastAsyncClientOutbound(session)
    for each in reversed(session.interceptors):
        outbound = each.intercept_async_client(outbound)
    return outbound


# --- faces: blocking, made by `make faces` from the lines above: edit those ---


class ClientOutboundInterceptor:
    """What a `Client` asks for, on its way out. Override what you want to see; call `self.next` to go on."""

    def __init__(self, next: ClientOutboundInterceptor) -> None:
        self.next = next

    def start_workflow(self, input: StartWorkflowInput) -> Any:
        """Start a workflow; its handle."""
        return self.next.start_workflow(input)

    def signal_workflow(self, input: SignalWorkflowInput) -> None:
        """Send a signal."""
        return self.next.signal_workflow(input)

    def query_workflow(self, input: QueryWorkflowInput) -> Any:
        """Ask a question; the answer."""
        return self.next.query_workflow(input)

    def start_workflow_update(self, input: StartWorkflowUpdateInput) -> Any:
        """Ask for an update; its handle."""
        return self.next.start_workflow_update(input)

    def start_update_with_start_workflow(self, input: StartUpdateWithStartInput) -> Any:
        """Start a workflow, unless it runs, and ask for an update; its handle."""
        return self.next.start_update_with_start_workflow(input)

    def cancel_workflow(self, input: CancelWorkflowInput) -> None:
        """Ask a workflow to cancel."""
        return self.next.cancel_workflow(input)

    def terminate_workflow(self, input: TerminateWorkflowInput) -> None:
        """End a workflow."""
        return self.next.terminate_workflow(input)

    def describe_workflow(self, input: DescribeWorkflowInput) -> Any:
        """Look at a workflow; what is seen."""
        return self.next.describe_workflow(input)

    def count_workflows(self, input: CountWorkflowsInput) -> Any:
        """Count workflows; how many there are."""
        return self.next.count_workflows(input)

    def list_workflows(self, input: ListWorkflowsInput) -> Any:
        """Fetch a page of a list of workflows."""
        return self.next.list_workflows(input)

    def fetch_workflow_history_events(self, input: FetchWorkflowHistoryEventsInput) -> Any:
        """Fetch a history, or a page of it."""
        return self.next.fetch_workflow_history_events(input)

    def complete_async_activity(self, input: CompleteAsyncActivityInput) -> None:
        """Give an activity its result."""
        return self.next.complete_async_activity(input)

    def fail_async_activity(self, input: FailAsyncActivityInput) -> None:
        """Fail an activity."""
        return self.next.fail_async_activity(input)

    def heartbeat_async_activity(self, input: HeartbeatAsyncActivityInput) -> bool:
        """Tell that an activity lives; whether it is asked to stop."""
        return self.next.heartbeat_async_activity(input)

    def report_cancellation_async_activity(self, input: ReportCancellationAsyncActivityInput) -> None:
        """End an activity as cancelled."""
        return self.next.report_cancellation_async_activity(input)

    def start_activity(self, input: StartActivityExecutionInput) -> Any:
        """Start an activity by itself; its handle."""
        return self.next.start_activity(input)

    def describe_activity(self, input: DescribeActivityInput) -> Any:
        """Look at an activity that a client started; what is seen."""
        return self.next.describe_activity(input)

    def cancel_activity(self, input: CancelActivityInput) -> None:
        """Ask an activity to cancel."""
        return self.next.cancel_activity(input)

    def terminate_activity(self, input: TerminateActivityInput) -> None:
        """End an activity."""
        return self.next.terminate_activity(input)

    def pause_activity(self, input: PauseActivityInput) -> None:
        """Let an activity rest."""
        return self.next.pause_activity(input)

    def unpause_activity(self, input: UnpauseActivityInput) -> None:
        """Let an activity go on."""
        return self.next.unpause_activity(input)

    def update_activity_options(self, input: UpdateActivityOptionsInput) -> Any:
        """Change what was said of an activity; what holds now."""
        return self.next.update_activity_options(input)

    def list_activities(self, input: ListActivitiesInput) -> Any:
        """Fetch a page of a list of activities."""
        return self.next.list_activities(input)

    def count_activities(self, input: CountActivitiesInput) -> Any:
        """Count activities; how many there are."""
        return self.next.count_activities(input)

    def create_schedule(self, input: CreateScheduleInput) -> Any:
        """Create a schedule; its handle."""
        return self.next.create_schedule(input)

    def list_schedules(self, input: ListSchedulesInput) -> Any:
        """Fetch a page of a list of schedules."""
        return self.next.list_schedules(input)

    def describe_schedule(self, input: DescribeScheduleInput) -> Any:
        """Look at a schedule; what is seen."""
        return self.next.describe_schedule(input)

    def update_schedule(self, input: UpdateScheduleInput) -> None:
        """Change a schedule."""
        return self.next.update_schedule(input)

    def pause_schedule(self, input: PauseScheduleInput) -> None:
        """Let a schedule rest."""
        return self.next.pause_schedule(input)

    def unpause_schedule(self, input: UnpauseScheduleInput) -> None:
        """Let a schedule act again."""
        return self.next.unpause_schedule(input)

    def trigger_schedule(self, input: TriggerScheduleInput) -> None:
        """Let a schedule act now."""
        return self.next.trigger_schedule(input)

    def backfill_schedule(self, input: BackfillScheduleInput) -> None:
        """Let a schedule act for times of the past."""
        return self.next.backfill_schedule(input)

    def delete_schedule(self, input: DeleteScheduleInput) -> None:
        """Delete a schedule."""
        return self.next.delete_schedule(input)


class _LastClientOutbound(ClientOutboundInterceptor):
    """The end of the chain: the call itself."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session

    def _go_on(self, input: ClientCall) -> Any:
        return self._session.with_rpc(input._rpc()).perform(input._proceed(input))

    start_workflow = signal_workflow = query_workflow = start_workflow_update = _go_on
    start_update_with_start_workflow = cancel_workflow = terminate_workflow = describe_workflow = _go_on
    count_workflows = list_workflows = fetch_workflow_history_events = _go_on
    complete_async_activity = fail_async_activity = heartbeat_async_activity = _go_on
    start_activity = describe_activity = cancel_activity = terminate_activity = pause_activity = _go_on
    unpause_activity = update_activity_options = list_activities = count_activities = _go_on
    report_cancellation_async_activity = create_schedule = list_schedules = describe_schedule = _go_on
    pause_schedule = unpause_schedule = trigger_schedule = backfill_schedule = delete_schedule = _go_on

    def update_schedule(self, input: UpdateScheduleInput) -> None:
        """Change it, in several calls."""
        self._session.with_rpc(input._rpc()).perform_steps(input._proceed(input))


def client_chain(session: ClientSession) -> ClientOutboundInterceptor:
    """What stands between a `Client` and its session."""
    outbound: ClientOutboundInterceptor = _LastClientOutbound(session)
    for each in reversed(session.interceptors):
        outbound = each.intercept_client(outbound)
    return outbound


# --- faces: end ---


def checked(interceptors: Sequence[Interceptor]) -> tuple[Interceptor, ...]:
    """Interceptors as given, or a `UsageError` that says which is none."""
    given: Sequence[Any] = interceptors
    for each in given:
        if not isinstance(each, Interceptor):
            hint = ": give an instance" if isinstance(each, type) and issubclass(each, Interceptor) else ""
            raise UsageError(f"interceptors are objects of Interceptor's subclasses, not {each!r:.80}{hint}")
    return tuple(interceptors)


def activity_chain(interceptors: Sequence[Interceptor]) -> ActivityChain | None:
    """What stands between a worker and its activities; None, which costs nothing, where no interceptor wants to."""
    wanted = [each for each in interceptors if _overrides(each, "intercept_activity")]
    if not wanted:
        return None
    last = LastActivityInbound()
    inbound: ActivityInboundInterceptor = last
    for each in reversed(wanted):
        inbound = each.intercept_activity(inbound)
    return ActivityChain(inbound, last)


def workflow_interceptors(interceptors: Sequence[Interceptor]) -> tuple[InterceptWorkflow, ...]:
    """What makes the chain of a run; empty, which costs nothing, where no interceptor wants to see runs."""
    return tuple(each.intercept_workflow for each in interceptors if _overrides(each, "intercept_workflow"))


def nexus_chain(interceptors: Sequence[Interceptor]) -> NexusOperationInboundInterceptor:
    """What stands between a worker and its Nexus operations, and they themselves."""
    inbound: NexusOperationInboundInterceptor = LastNexusInbound()
    for each in reversed(interceptors):
        inbound = each.intercept_nexus_operation(inbound)
    return inbound


def _overrides(interceptor: Interceptor, method: str) -> bool:
    return getattr(type(interceptor), method) is not getattr(Interceptor, method)
