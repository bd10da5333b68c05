"""What may stand between callers and what they call: `Interceptor`, and the chains of both faces of the client.

A client's chain runs where the caller is: in its thread, or on its event loop. The last interceptor hands the call (see
`_calls`) to the session, which runs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hourglass._evaluator.interception import InterceptWorkflow, WorkflowInboundInterceptor
from hourglass.activity._context import ActivityChain, ActivityInboundInterceptor, LastActivityInbound
from hourglass.errors import UsageError
from hourglass.nexus import LastNexusInbound, NexusOperationInboundInterceptor

if TYPE_CHECKING:
    from hourglass.client._calls import (
        BackfillScheduleInput,
        CancelActivityInput,
        CancelWorkflowInput,
        ClientCall,
        CompleteAsyncActivityInput,
        CountActivitiesInput,
        CountWorkflowsInput,
        CreateScheduleInput,
        DeleteScheduleInput,
        DescribeActivityInput,
        DescribeScheduleInput,
        DescribeWorkflowInput,
        FailAsyncActivityInput,
        FetchWorkflowHistoryEventsInput,
        HeartbeatAsyncActivityInput,
        ListActivitiesInput,
        ListSchedulesInput,
        ListWorkflowsInput,
        PauseActivityInput,
        PauseScheduleInput,
        QueryWorkflowInput,
        ReportCancellationAsyncActivityInput,
        SignalWorkflowInput,
        StartActivityExecutionInput,
        StartUpdateWithStartInput,
        StartWorkflowInput,
        StartWorkflowUpdateInput,
        TerminateActivityInput,
        TerminateWorkflowInput,
        TriggerScheduleInput,
        UnpauseActivityInput,
        UnpauseScheduleInput,
        UpdateActivityOptionsInput,
        UpdateScheduleInput,
    )
    from hourglass.client._session import ClientSession


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
