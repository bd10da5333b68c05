"""Interceptors: code of yours between callers and what they call, with headers that travel along.

    class Timing(Interceptor):
        def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
            return TimedActivities(next)

    class TimedActivities(ActivityInboundInterceptor):
        def execute_activity(self, input: ExecuteActivityInput) -> object:
            with timed(input.activity):
                return self.next.execute_activity(input)

    Client.connect("local:", interceptors=[Timing()])

For tracing, authentication, context that follows a request, logging. In workflows they are plain functions and must be
deterministic, as everything there; where none is given, nothing is paid.
"""

from __future__ import annotations

from hourglass._engine.interception import (
    ContinueAsNewInput,
    ExecuteWorkflowInput,
    HandleQueryInput,
    HandleSignalInput,
    HandleUpdateInput,
    Headers,
    InfoInput,
    SignalChildWorkflowInput,
    SignalExternalWorkflowInput,
    SleepInput,
    StartActivityInput,
    StartChildWorkflowInput,
    StartLocalActivityInput,
    StartNexusOperationInput,
    WorkflowInboundInterceptor,
    WorkflowOutboundInterceptor,
)
from hourglass.activity._context import (
    ActivityInboundInterceptor,
    ActivityOutboundInterceptor,
    ExecuteActivityInput,
)
from hourglass.client._interception import (
    AsyncActivityInput,
    AsyncClientOutboundInterceptor,
    BackfillScheduleInput,
    CancelWorkflowInput,
    ClientOutboundInterceptor,
    CompleteAsyncActivityInput,
    CountWorkflowsInput,
    CreateScheduleInput,
    DeleteScheduleInput,
    DescribeScheduleInput,
    DescribeWorkflowInput,
    FailAsyncActivityInput,
    FetchWorkflowHistoryEventsInput,
    HeartbeatAsyncActivityInput,
    Interceptor,
    ListSchedulesInput,
    ListWorkflowsInput,
    PauseScheduleInput,
    QueryWorkflowInput,
    ReportCancellationAsyncActivityInput,
    SignalWorkflowInput,
    StartUpdateWithStartInput,
    StartWorkflowInput,
    StartWorkflowUpdateInput,
    TerminateWorkflowInput,
    TriggerScheduleInput,
    UnpauseScheduleInput,
    UpdateScheduleInput,
)
from hourglass.nexus import (
    ExecuteNexusOperationCancelInput,
    ExecuteNexusOperationStartInput,
    NexusOperationInboundInterceptor,
)

__all__ = [
    "ActivityInboundInterceptor",
    "ActivityOutboundInterceptor",
    "AsyncActivityInput",
    "AsyncClientOutboundInterceptor",
    "BackfillScheduleInput",
    "CancelWorkflowInput",
    "ClientOutboundInterceptor",
    "CompleteAsyncActivityInput",
    "ContinueAsNewInput",
    "CountWorkflowsInput",
    "CreateScheduleInput",
    "DeleteScheduleInput",
    "DescribeScheduleInput",
    "DescribeWorkflowInput",
    "ExecuteActivityInput",
    "ExecuteNexusOperationCancelInput",
    "ExecuteNexusOperationStartInput",
    "ExecuteWorkflowInput",
    "FailAsyncActivityInput",
    "FetchWorkflowHistoryEventsInput",
    "HandleQueryInput",
    "HandleSignalInput",
    "HandleUpdateInput",
    "Headers",
    "HeartbeatAsyncActivityInput",
    "InfoInput",
    "Interceptor",
    "ListSchedulesInput",
    "ListWorkflowsInput",
    "NexusOperationInboundInterceptor",
    "PauseScheduleInput",
    "QueryWorkflowInput",
    "ReportCancellationAsyncActivityInput",
    "SignalChildWorkflowInput",
    "SignalExternalWorkflowInput",
    "SignalWorkflowInput",
    "SleepInput",
    "StartActivityInput",
    "StartChildWorkflowInput",
    "StartLocalActivityInput",
    "StartNexusOperationInput",
    "StartUpdateWithStartInput",
    "StartWorkflowInput",
    "StartWorkflowUpdateInput",
    "TerminateWorkflowInput",
    "TriggerScheduleInput",
    "UnpauseScheduleInput",
    "UpdateScheduleInput",
    "WorkflowInboundInterceptor",
    "WorkflowOutboundInterceptor",
]
