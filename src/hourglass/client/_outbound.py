# Made by `make faces` from _calls.py: edit that one.

"""The outbound interceptors of both clients: one method for each call of `_calls`."""

from __future__ import annotations

from typing import Any

from hourglass.client._calls import (
    BackfillScheduleInput,
    CancelActivityInput,
    CancelWorkflowInput,
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


class AsyncClientOutboundInterceptor:
    """The calls of an `AsyncClient`: as `ClientOutboundInterceptor`, awaited."""

    def __init__(self, next: AsyncClientOutboundInterceptor) -> None:
        self.next = next

    async def start_workflow(self, input: StartWorkflowInput) -> Any:
        """Start a workflow and return its handle."""
        return await self.next.start_workflow(input)

    async def signal_workflow(self, input: SignalWorkflowInput) -> None:
        """Send a signal to a workflow."""
        return await self.next.signal_workflow(input)

    async def query_workflow(self, input: QueryWorkflowInput) -> Any:
        """Query a workflow and return the answer."""
        return await self.next.query_workflow(input)

    async def start_workflow_update(self, input: StartWorkflowUpdateInput) -> Any:
        """Request an update and return its handle."""
        return await self.next.start_workflow_update(input)

    async def start_update_with_start_workflow(self, input: StartUpdateWithStartInput) -> Any:
        """Start a workflow unless it is running, request an update, and return the update's handle."""
        return await self.next.start_update_with_start_workflow(input)

    async def cancel_workflow(self, input: CancelWorkflowInput) -> None:
        """Request the cancellation of a workflow."""
        return await self.next.cancel_workflow(input)

    async def terminate_workflow(self, input: TerminateWorkflowInput) -> None:
        """Terminate a workflow."""
        return await self.next.terminate_workflow(input)

    async def describe_workflow(self, input: DescribeWorkflowInput) -> Any:
        """Return the description of a workflow."""
        return await self.next.describe_workflow(input)

    async def count_workflows(self, input: CountWorkflowsInput) -> Any:
        """Return the number of matching runs."""
        return await self.next.count_workflows(input)

    async def list_workflows(self, input: ListWorkflowsInput) -> Any:
        """Return one page of a list of runs."""
        return await self.next.list_workflows(input)

    async def fetch_workflow_history_events(self, input: FetchWorkflowHistoryEventsInput) -> Any:
        """Return the history of a run, or one page of it."""
        return await self.next.fetch_workflow_history_events(input)

    async def complete_async_activity(self, input: CompleteAsyncActivityInput) -> None:
        """Complete an activity with its result."""
        return await self.next.complete_async_activity(input)

    async def fail_async_activity(self, input: FailAsyncActivityInput) -> None:
        """Fail an activity."""
        return await self.next.fail_async_activity(input)

    async def heartbeat_async_activity(self, input: HeartbeatAsyncActivityInput) -> bool:
        """Send a heartbeat of an activity; return whether its cancellation was requested."""
        return await self.next.heartbeat_async_activity(input)

    async def report_cancellation_async_activity(self, input: ReportCancellationAsyncActivityInput) -> None:
        """Report that an activity ended as cancelled."""
        return await self.next.report_cancellation_async_activity(input)

    async def start_activity(self, input: StartActivityExecutionInput) -> Any:
        """Start a standalone activity and return its handle."""
        return await self.next.start_activity(input)

    async def describe_activity(self, input: DescribeActivityInput) -> Any:
        """Return the description of a standalone activity."""
        return await self.next.describe_activity(input)

    async def cancel_activity(self, input: CancelActivityInput) -> None:
        """Request the cancellation of a standalone activity."""
        return await self.next.cancel_activity(input)

    async def terminate_activity(self, input: TerminateActivityInput) -> None:
        """Terminate a standalone activity."""
        return await self.next.terminate_activity(input)

    async def pause_activity(self, input: PauseActivityInput) -> None:
        """Pause an activity."""
        return await self.next.pause_activity(input)

    async def unpause_activity(self, input: UnpauseActivityInput) -> None:
        """Resume a paused activity."""
        return await self.next.unpause_activity(input)

    async def update_activity_options(self, input: UpdateActivityOptionsInput) -> Any:
        """Change the options of an activity and return its current options."""
        return await self.next.update_activity_options(input)

    async def list_activities(self, input: ListActivitiesInput) -> Any:
        """Return one page of a list of standalone activities."""
        return await self.next.list_activities(input)

    async def count_activities(self, input: CountActivitiesInput) -> Any:
        """Return the number of matching standalone activities."""
        return await self.next.count_activities(input)

    async def create_schedule(self, input: CreateScheduleInput) -> Any:
        """Create a schedule and return its handle."""
        return await self.next.create_schedule(input)

    async def list_schedules(self, input: ListSchedulesInput) -> Any:
        """Return one page of a list of schedules."""
        return await self.next.list_schedules(input)

    async def describe_schedule(self, input: DescribeScheduleInput) -> Any:
        """Return the description of a schedule."""
        return await self.next.describe_schedule(input)

    async def update_schedule(self, input: UpdateScheduleInput) -> None:
        """Change a schedule."""
        return await self.next.update_schedule(input)

    async def pause_schedule(self, input: PauseScheduleInput) -> None:
        """Pause a schedule."""
        return await self.next.pause_schedule(input)

    async def unpause_schedule(self, input: UnpauseScheduleInput) -> None:
        """Resume a paused schedule."""
        return await self.next.unpause_schedule(input)

    async def trigger_schedule(self, input: TriggerScheduleInput) -> None:
        """Run the action of a schedule now."""
        return await self.next.trigger_schedule(input)

    async def backfill_schedule(self, input: BackfillScheduleInput) -> None:
        """Run the action of a schedule for past times."""
        return await self.next.backfill_schedule(input)

    async def delete_schedule(self, input: DeleteScheduleInput) -> None:
        """Delete a schedule."""
        return await self.next.delete_schedule(input)


class ClientOutboundInterceptor:
    """The calls of a `Client`. Override the methods of the calls to intercept; call `self.next` to continue."""

    def __init__(self, next: ClientOutboundInterceptor) -> None:
        self.next = next

    def start_workflow(self, input: StartWorkflowInput) -> Any:
        """Start a workflow and return its handle."""
        return self.next.start_workflow(input)

    def signal_workflow(self, input: SignalWorkflowInput) -> None:
        """Send a signal to a workflow."""
        return self.next.signal_workflow(input)

    def query_workflow(self, input: QueryWorkflowInput) -> Any:
        """Query a workflow and return the answer."""
        return self.next.query_workflow(input)

    def start_workflow_update(self, input: StartWorkflowUpdateInput) -> Any:
        """Request an update and return its handle."""
        return self.next.start_workflow_update(input)

    def start_update_with_start_workflow(self, input: StartUpdateWithStartInput) -> Any:
        """Start a workflow unless it is running, request an update, and return the update's handle."""
        return self.next.start_update_with_start_workflow(input)

    def cancel_workflow(self, input: CancelWorkflowInput) -> None:
        """Request the cancellation of a workflow."""
        return self.next.cancel_workflow(input)

    def terminate_workflow(self, input: TerminateWorkflowInput) -> None:
        """Terminate a workflow."""
        return self.next.terminate_workflow(input)

    def describe_workflow(self, input: DescribeWorkflowInput) -> Any:
        """Return the description of a workflow."""
        return self.next.describe_workflow(input)

    def count_workflows(self, input: CountWorkflowsInput) -> Any:
        """Return the number of matching runs."""
        return self.next.count_workflows(input)

    def list_workflows(self, input: ListWorkflowsInput) -> Any:
        """Return one page of a list of runs."""
        return self.next.list_workflows(input)

    def fetch_workflow_history_events(self, input: FetchWorkflowHistoryEventsInput) -> Any:
        """Return the history of a run, or one page of it."""
        return self.next.fetch_workflow_history_events(input)

    def complete_async_activity(self, input: CompleteAsyncActivityInput) -> None:
        """Complete an activity with its result."""
        return self.next.complete_async_activity(input)

    def fail_async_activity(self, input: FailAsyncActivityInput) -> None:
        """Fail an activity."""
        return self.next.fail_async_activity(input)

    def heartbeat_async_activity(self, input: HeartbeatAsyncActivityInput) -> bool:
        """Send a heartbeat of an activity; return whether its cancellation was requested."""
        return self.next.heartbeat_async_activity(input)

    def report_cancellation_async_activity(self, input: ReportCancellationAsyncActivityInput) -> None:
        """Report that an activity ended as cancelled."""
        return self.next.report_cancellation_async_activity(input)

    def start_activity(self, input: StartActivityExecutionInput) -> Any:
        """Start a standalone activity and return its handle."""
        return self.next.start_activity(input)

    def describe_activity(self, input: DescribeActivityInput) -> Any:
        """Return the description of a standalone activity."""
        return self.next.describe_activity(input)

    def cancel_activity(self, input: CancelActivityInput) -> None:
        """Request the cancellation of a standalone activity."""
        return self.next.cancel_activity(input)

    def terminate_activity(self, input: TerminateActivityInput) -> None:
        """Terminate a standalone activity."""
        return self.next.terminate_activity(input)

    def pause_activity(self, input: PauseActivityInput) -> None:
        """Pause an activity."""
        return self.next.pause_activity(input)

    def unpause_activity(self, input: UnpauseActivityInput) -> None:
        """Resume a paused activity."""
        return self.next.unpause_activity(input)

    def update_activity_options(self, input: UpdateActivityOptionsInput) -> Any:
        """Change the options of an activity and return its current options."""
        return self.next.update_activity_options(input)

    def list_activities(self, input: ListActivitiesInput) -> Any:
        """Return one page of a list of standalone activities."""
        return self.next.list_activities(input)

    def count_activities(self, input: CountActivitiesInput) -> Any:
        """Return the number of matching standalone activities."""
        return self.next.count_activities(input)

    def create_schedule(self, input: CreateScheduleInput) -> Any:
        """Create a schedule and return its handle."""
        return self.next.create_schedule(input)

    def list_schedules(self, input: ListSchedulesInput) -> Any:
        """Return one page of a list of schedules."""
        return self.next.list_schedules(input)

    def describe_schedule(self, input: DescribeScheduleInput) -> Any:
        """Return the description of a schedule."""
        return self.next.describe_schedule(input)

    def update_schedule(self, input: UpdateScheduleInput) -> None:
        """Change a schedule."""
        return self.next.update_schedule(input)

    def pause_schedule(self, input: PauseScheduleInput) -> None:
        """Pause a schedule."""
        return self.next.pause_schedule(input)

    def unpause_schedule(self, input: UnpauseScheduleInput) -> None:
        """Resume a paused schedule."""
        return self.next.unpause_schedule(input)

    def trigger_schedule(self, input: TriggerScheduleInput) -> None:
        """Run the action of a schedule now."""
        return self.next.trigger_schedule(input)

    def backfill_schedule(self, input: BackfillScheduleInput) -> None:
        """Run the action of a schedule for past times."""
        return self.next.backfill_schedule(input)

    def delete_schedule(self, input: DeleteScheduleInput) -> None:
        """Delete a schedule."""
        return self.next.delete_schedule(input)
