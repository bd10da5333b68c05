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
    SignalChildWorkflowInput,
    SignalExternalWorkflowInput,
    SleepInput,
    StartActivityInput,
    StartChildWorkflowInput,
    StartLocalActivityInput,
    WorkflowInboundInterceptor,
    WorkflowOutboundInterceptor,
)
from hourglass.activity._context import ActivityInboundInterceptor, ExecuteActivityInput
from hourglass.client._interception import (
    AsyncClientOutboundInterceptor,
    CancelWorkflowInput,
    ClientOutboundInterceptor,
    DescribeWorkflowInput,
    Interceptor,
    QueryWorkflowInput,
    SignalWorkflowInput,
    StartUpdateWithStartInput,
    StartWorkflowInput,
    StartWorkflowUpdateInput,
    TerminateWorkflowInput,
)

__all__ = [
    "ActivityInboundInterceptor",
    "AsyncClientOutboundInterceptor",
    "CancelWorkflowInput",
    "ClientOutboundInterceptor",
    "ContinueAsNewInput",
    "DescribeWorkflowInput",
    "ExecuteActivityInput",
    "ExecuteWorkflowInput",
    "HandleQueryInput",
    "HandleSignalInput",
    "HandleUpdateInput",
    "Headers",
    "Interceptor",
    "QueryWorkflowInput",
    "SignalChildWorkflowInput",
    "SignalExternalWorkflowInput",
    "SignalWorkflowInput",
    "SleepInput",
    "StartActivityInput",
    "StartChildWorkflowInput",
    "StartLocalActivityInput",
    "StartUpdateWithStartInput",
    "StartWorkflowInput",
    "StartWorkflowUpdateInput",
    "TerminateWorkflowInput",
    "WorkflowInboundInterceptor",
    "WorkflowOutboundInterceptor",
]
