"""Interceptors that pass the caller's name in a header, and record each call with the name that arrived."""

from __future__ import annotations

import contextvars
from typing import Any, NoReturn

from hourglass import activity, workflow
from hourglass.converter import default_converter
from hourglass.interceptors import (
    ActivityInboundInterceptor,
    AsyncClientOutboundInterceptor,
    CancelWorkflowInput,
    ClientOutboundInterceptor,
    ContinueAsNewInput,
    DescribeWorkflowInput,
    ExecuteActivityInput,
    ExecuteWorkflowInput,
    HandleQueryInput,
    HandleSignalInput,
    HandleUpdateInput,
    Headers,
    Interceptor,
    QueryWorkflowInput,
    SignalChildWorkflowInput,
    SignalExternalWorkflowInput,
    SignalWorkflowInput,
    SleepInput,
    StartActivityInput,
    StartChildWorkflowInput,
    StartLocalActivityInput,
    StartUpdateWithStartInput,
    StartWorkflowInput,
    StartWorkflowUpdateInput,
    TerminateWorkflowInput,
    WorkflowInboundInterceptor,
    WorkflowOutboundInterceptor,
)

caller: contextvars.ContextVar[str] = contextvars.ContextVar("caller", default="nobody")


def with_outbound(
    next: WorkflowInboundInterceptor, outbound: type[WorkflowOutboundInterceptor]
) -> WorkflowInboundInterceptor:
    """Return an inbound interceptor that only adds this outbound interceptor to the chain."""

    class Inbound(WorkflowInboundInterceptor):
        def init(self, last: WorkflowOutboundInterceptor) -> None:
            super().init(outbound(last))

    return Inbound(next)


def put_caller(headers: Headers, name: str) -> None:
    headers["who"] = default_converter.encode(name)


def get_caller(headers: Headers) -> str:
    payload = headers.get("who")
    return "nobody" if payload is None else str(default_converter.decode(payload, str))


class CallerInterceptor(Interceptor):
    """Adds the caller's name to outbound calls and records inbound calls in `seen`, in any order."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def note(self, call: str, name: str) -> None:
        self.seen.append(f"{call} by {name}")

    def intercept_client(self, next: ClientOutboundInterceptor) -> ClientOutboundInterceptor:
        return _Client(next, self)

    def intercept_async_client(self, next: AsyncClientOutboundInterceptor) -> AsyncClientOutboundInterceptor:
        return _AsyncClient(next, self)

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Activities(next, self)

    def intercept_workflow(self, next: WorkflowInboundInterceptor) -> WorkflowInboundInterceptor:
        return _Workflow(next, self)


class _Client(ClientOutboundInterceptor):
    def __init__(self, next: ClientOutboundInterceptor, log: CallerInterceptor) -> None:
        super().__init__(next)
        self._log = log

    def start_workflow(self, input: StartWorkflowInput) -> Any:
        put_caller(input.headers, caller.get())
        return super().start_workflow(input)

    def signal_workflow(self, input: SignalWorkflowInput) -> None:
        put_caller(input.headers, caller.get())
        super().signal_workflow(input)

    def query_workflow(self, input: QueryWorkflowInput) -> Any:
        put_caller(input.headers, caller.get())
        return super().query_workflow(input)

    def start_workflow_update(self, input: StartWorkflowUpdateInput) -> Any:
        put_caller(input.headers, caller.get())
        return super().start_workflow_update(input)

    def start_update_with_start_workflow(self, input: StartUpdateWithStartInput) -> Any:
        put_caller(input.start.headers, caller.get())
        put_caller(input.update.headers, caller.get())
        return super().start_update_with_start_workflow(input)

    def cancel_workflow(self, input: CancelWorkflowInput) -> None:
        self._log.note(f"cancel ({input.reason})", caller.get())
        super().cancel_workflow(input)

    def terminate_workflow(self, input: TerminateWorkflowInput) -> None:
        self._log.note(f"terminate ({input.reason})", caller.get())
        super().terminate_workflow(input)

    def describe_workflow(self, input: DescribeWorkflowInput) -> Any:
        self._log.note(f"describe {input.id}", caller.get())
        return super().describe_workflow(input)


class _AsyncClient(AsyncClientOutboundInterceptor):
    def __init__(self, next: AsyncClientOutboundInterceptor, log: CallerInterceptor) -> None:
        super().__init__(next)
        self._log = log

    async def start_workflow(self, input: StartWorkflowInput) -> Any:
        put_caller(input.headers, caller.get())
        return await super().start_workflow(input)

    async def signal_workflow(self, input: SignalWorkflowInput) -> None:
        put_caller(input.headers, caller.get())
        await super().signal_workflow(input)

    async def query_workflow(self, input: QueryWorkflowInput) -> Any:
        put_caller(input.headers, caller.get())
        return await super().query_workflow(input)

    async def start_workflow_update(self, input: StartWorkflowUpdateInput) -> Any:
        put_caller(input.headers, caller.get())
        return await super().start_workflow_update(input)

    async def start_update_with_start_workflow(self, input: StartUpdateWithStartInput) -> Any:
        put_caller(input.start.headers, caller.get())
        put_caller(input.update.headers, caller.get())
        return await super().start_update_with_start_workflow(input)

    async def describe_workflow(self, input: DescribeWorkflowInput) -> Any:
        self._log.note(f"describe {input.id}", caller.get())
        return await super().describe_workflow(input)


class _Activities(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, log: CallerInterceptor) -> None:
        super().__init__(next)
        self._log = log

    def execute_activity(self, input: ExecuteActivityInput) -> Any:
        self._log.note(f"activity {activity.info().activity_type}", get_caller(input.headers))
        caller.set(get_caller(input.headers))
        return super().execute_activity(input)

    async def execute_async_activity(self, input: ExecuteActivityInput) -> Any:
        self._log.note(f"async activity {input.activity}", get_caller(input.headers))
        caller.set(get_caller(input.headers))
        return await super().execute_async_activity(input)


class _Workflow(WorkflowInboundInterceptor):
    """Adds the name of the run's starter to all calls of the run."""

    def __init__(self, next: WorkflowInboundInterceptor, log: CallerInterceptor) -> None:
        super().__init__(next)
        self._log = log
        self.starter = "nobody"

    def note(self, call: str, name: str) -> None:
        if not workflow.is_catching_up():
            self._log.note(call, name)

    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        self.starter = get_caller(dict(workflow.info().headers))
        super().init(_Outbound(outbound, self))

    def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
        self.note(f"workflow {input.type}", get_caller(input.headers))
        return super().execute_workflow(input)

    def handle_signal(self, input: HandleSignalInput) -> None:
        self.note(f"signal {input.signal}", get_caller(input.headers))
        super().handle_signal(input)

    def handle_query(self, input: HandleQueryInput) -> Any:
        self._log.note(f"query {input.query}", get_caller(input.headers))
        return super().handle_query(input)

    def handle_update_validator(self, input: HandleUpdateInput) -> None:
        self.note(f"validator {input.update}", get_caller(input.headers))
        super().handle_update_validator(input)

    def handle_update_handler(self, input: HandleUpdateInput) -> Any:
        self.note(f"update {input.update}", get_caller(input.headers))
        return super().handle_update_handler(input)


class _Outbound(WorkflowOutboundInterceptor):
    def __init__(self, next: WorkflowOutboundInterceptor, run: _Workflow) -> None:
        super().__init__(next)
        self._run = run

    def start_activity(self, input: StartActivityInput) -> Any:
        put_caller(input.headers, self._run.starter)
        return super().start_activity(input)

    def start_local_activity(self, input: StartLocalActivityInput) -> Any:
        put_caller(input.headers, self._run.starter)
        return super().start_local_activity(input)

    def start_child_workflow(self, input: StartChildWorkflowInput) -> Any:
        put_caller(input.headers, self._run.starter)
        return super().start_child_workflow(input)

    def signal_child_workflow(self, input: SignalChildWorkflowInput) -> None:
        put_caller(input.headers, self._run.starter)
        super().signal_child_workflow(input)

    def signal_external_workflow(self, input: SignalExternalWorkflowInput) -> None:
        put_caller(input.headers, self._run.starter)
        super().signal_external_workflow(input)

    def continue_as_new(self, input: ContinueAsNewInput) -> NoReturn:
        put_caller(input.headers, self._run.starter)
        super().continue_as_new(input)

    def sleep(self, input: SleepInput) -> None:
        self._run.note(f"sleep {input.duration:g}", self._run.starter)
        super().sleep(input)
