"""Interceptors: your own code around calls, with headers that are sent with each call.

    class Timing(Interceptor):
        def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
            return TimedActivities(next)

    class TimedActivities(ActivityInboundInterceptor):
        def execute_activity(self, input: ExecuteActivityInput) -> object:
            with timed(input.activity):
                return self.next.execute_activity(input)

    Client.connect("local:", interceptors=[Timing()])

Use them for tracing, authentication, request context or logging. In workflows, interceptors are plain functions and must be
deterministic, like all workflow code. Without interceptors there is no overhead.
"""

from __future__ import annotations

from hourglass._evaluator.interception import (
    ContinueAsNewInput,
    ExecuteWorkflowInput,
    HandleQueryInput,
    HandleSignalInput,
    HandleUpdateInput,
    Headers,
    InfoInput,
    SignalChildWorkflowInput,
    SignalExternalWorkflowInput,
    SignalWithStartWorkflowInput,
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
from hourglass.client._calls import (
    ActivityExecutionInput,
    AsyncActivityInput,
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
from hourglass.client._interception import Interceptor
from hourglass.client._outbound import AsyncClientOutboundInterceptor, ClientOutboundInterceptor
from hourglass.nexus import (
    ExecuteNexusOperationCancelInput,
    ExecuteNexusOperationStartInput,
    NexusOperationInboundInterceptor,
)

__all__ = [
    "ActivityExecutionInput",
    "ActivityInboundInterceptor",
    "ActivityOutboundInterceptor",
    "AsyncActivityInput",
    "AsyncClientOutboundInterceptor",
    "BackfillScheduleInput",
    "CancelActivityInput",
    "CancelWorkflowInput",
    "ClientOutboundInterceptor",
    "CompleteAsyncActivityInput",
    "ContinueAsNewInput",
    "CountActivitiesInput",
    "CountWorkflowsInput",
    "CreateScheduleInput",
    "DeleteScheduleInput",
    "DescribeActivityInput",
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
    "ListActivitiesInput",
    "ListSchedulesInput",
    "ListWorkflowsInput",
    "NexusOperationInboundInterceptor",
    "PauseActivityInput",
    "PauseScheduleInput",
    "QueryWorkflowInput",
    "ReportCancellationAsyncActivityInput",
    "SignalChildWorkflowInput",
    "SignalExternalWorkflowInput",
    "SignalWithStartWorkflowInput",
    "SignalWorkflowInput",
    "SleepInput",
    "StartActivityExecutionInput",
    "StartActivityInput",
    "StartChildWorkflowInput",
    "StartLocalActivityInput",
    "StartNexusOperationInput",
    "StartUpdateWithStartInput",
    "StartWorkflowInput",
    "StartWorkflowUpdateInput",
    "TerminateActivityInput",
    "TerminateWorkflowInput",
    "TriggerScheduleInput",
    "UnpauseActivityInput",
    "UnpauseScheduleInput",
    "UpdateActivityOptionsInput",
    "UpdateScheduleInput",
    "WorkflowInboundInterceptor",
    "WorkflowOutboundInterceptor",
]
