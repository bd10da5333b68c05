"""`TracingInterceptor`: spans of client calls and activities, and the interceptor for the spans of workflows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import SpanKind, Tracer
from opentelemetry.util.types import AttributeValue

from hourglass import activity
from hourglass.contrib.opentelemetry._workflows import NO_IDS, Carrier, TracedWorkflow, has_stable_ids
from hourglass.errors import UsageError
from hourglass.interceptors import (
    ActivityInboundInterceptor,
    AsyncClientOutboundInterceptor,
    ClientOutboundInterceptor,
    ExecuteActivityInput,
    ExecuteNexusOperationCancelInput,
    ExecuteNexusOperationStartInput,
    Headers,
    Interceptor,
    NexusOperationInboundInterceptor,
    QueryWorkflowInput,
    SignalWorkflowInput,
    StartUpdateWithStartInput,
    StartWorkflowInput,
    StartWorkflowUpdateInput,
    WorkflowInboundInterceptor,
)


class TracingInterceptor(Interceptor):
    """Traces the calls of a client and its workers, or of a single worker if it is passed to that worker.

    `tracer` defaults to OpenTelemetry's global tracer, and `propagator` to W3C trace context and baggage. With `durations`,
    a run and each signal and update that the run handles have a span from start to end. This requires a `RunIdGenerator` in
    the tracer's provider. Without `durations`, they have spans of zero length that are exported immediately.
    """

    def __init__(
        self,
        tracer: Tracer | None = None,
        *,
        propagator: TextMapPropagator | None = None,
        durations: bool = False,
    ) -> None:
        self._tracer = trace.get_tracer("hourglass") if tracer is None else tracer
        self._carrier = Carrier(propagator)
        self._durations = durations
        if durations and not has_stable_ids(self._tracer):
            raise UsageError(NO_IDS)

    def intercept_client(self, next: ClientOutboundInterceptor) -> ClientOutboundInterceptor:
        """Return an interceptor that traces a `Client`."""
        return _TracedClient(next, _Calls(self._tracer, self._carrier))

    def intercept_async_client(self, next: AsyncClientOutboundInterceptor) -> AsyncClientOutboundInterceptor:
        """Return an interceptor that traces an `AsyncClient`."""
        return _AsyncTracedClient(next, _Calls(self._tracer, self._carrier))

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """Return an interceptor that traces activities."""
        return _TracedActivities(next, self._tracer, self._carrier)

    def intercept_workflow(self, next: WorkflowInboundInterceptor) -> WorkflowInboundInterceptor:
        """Return an interceptor that traces a run."""
        return TracedWorkflow(next, self._tracer, self._carrier, self._durations)

    def intercept_nexus_operation(
        self, next: NexusOperationInboundInterceptor
    ) -> NexusOperationInboundInterceptor:
        """Return an interceptor that traces Nexus operations."""
        return _TracedOperations(next, self._tracer, self._carrier)


class _Calls:
    """Creates the spans of client calls, for the blocking and the asynchronous client."""

    def __init__(self, tracer: Tracer, carrier: Carrier) -> None:
        self._tracer = tracer
        self._carrier = carrier

    @contextmanager
    def span(self, name: str, workflow_id: str, *headers: Headers, **more: AttributeValue) -> Iterator[None]:
        """Start a span around a call, and write its context into the headers."""
        attributes: dict[str, AttributeValue] = {"temporalWorkflowID": workflow_id, **more}
        with self._tracer.start_as_current_span(name, attributes=attributes, kind=SpanKind.CLIENT):
            for call_headers in headers:
                self._carrier.put(call_headers, context.get_current())
            yield

    def start(self, input: StartWorkflowInput) -> Any:
        prefix = "SignalWithStartWorkflow" if input.options.get("start_signal") else "StartWorkflow"
        return self.span(f"{prefix}:{input.workflow}", input.id, input.headers)

    def signal(self, input: SignalWorkflowInput) -> Any:
        return self.span(f"SignalWorkflow:{input.signal}", input.id, input.headers)

    def query(self, input: QueryWorkflowInput) -> Any:
        return self.span(f"QueryWorkflow:{input.query}", input.id, input.headers)

    def update(self, input: StartWorkflowUpdateInput) -> Any:
        name = f"StartWorkflowUpdate:{input.update}"
        return self.span(name, input.id, input.headers, temporalUpdateID=input.update_id)

    def update_with_start(self, input: StartUpdateWithStartInput) -> Any:
        name = f"StartUpdateWithStartWorkflow:{input.start.workflow}"
        headers = input.start.headers, input.update.headers
        return self.span(name, input.id, *headers, temporalUpdateID=input.update.update_id)


# --- faces: awaited, the source of what follows ---


class _AsyncTracedClient(AsyncClientOutboundInterceptor):
    def __init__(self, next: AsyncClientOutboundInterceptor, calls: _Calls) -> None:
        super().__init__(next)
        self._calls = calls

    async def start_workflow(self, input: StartWorkflowInput) -> Any:
        with self._calls.start(input):
            return await super().start_workflow(input)

    async def signal_workflow(self, input: SignalWorkflowInput) -> None:
        with self._calls.signal(input):
            return await super().signal_workflow(input)

    async def query_workflow(self, input: QueryWorkflowInput) -> Any:
        with self._calls.query(input):
            return await super().query_workflow(input)

    async def start_workflow_update(self, input: StartWorkflowUpdateInput) -> Any:
        with self._calls.update(input):
            return await super().start_workflow_update(input)

    async def start_update_with_start_workflow(self, input: StartUpdateWithStartInput) -> Any:
        with self._calls.update_with_start(input):
            return await super().start_update_with_start_workflow(input)


# --- faces: blocking, made by `make faces` from the lines above: edit those ---


class _TracedClient(ClientOutboundInterceptor):
    def __init__(self, next: ClientOutboundInterceptor, calls: _Calls) -> None:
        super().__init__(next)
        self._calls = calls

    def start_workflow(self, input: StartWorkflowInput) -> Any:
        with self._calls.start(input):
            return super().start_workflow(input)

    def signal_workflow(self, input: SignalWorkflowInput) -> None:
        with self._calls.signal(input):
            return super().signal_workflow(input)

    def query_workflow(self, input: QueryWorkflowInput) -> Any:
        with self._calls.query(input):
            return super().query_workflow(input)

    def start_workflow_update(self, input: StartWorkflowUpdateInput) -> Any:
        with self._calls.update(input):
            return super().start_workflow_update(input)

    def start_update_with_start_workflow(self, input: StartUpdateWithStartInput) -> Any:
        with self._calls.update_with_start(input):
            return super().start_update_with_start_workflow(input)


# --- faces: end ---


class _TracedOperations(NexusOperationInboundInterceptor):
    """Creates a span for each call of an operation. The span is current while the operation's function runs."""

    def __init__(self, next: NexusOperationInboundInterceptor, tracer: Tracer, carrier: Carrier) -> None:
        super().__init__(next)
        self._tracer = tracer
        self._carrier = carrier

    def execute_nexus_operation_start(self, input: ExecuteNexusOperationStartInput) -> Any:
        with self._span("RunStartNexusOperationHandler", input):
            return super().execute_nexus_operation_start(input)

    async def execute_async_nexus_operation_start(self, input: ExecuteNexusOperationStartInput) -> Any:
        with self._span("RunStartNexusOperationHandler", input):
            return await super().execute_async_nexus_operation_start(input)

    def execute_nexus_operation_cancel(self, input: ExecuteNexusOperationCancelInput) -> None:
        with self._span("RunCancelNexusOperationHandler", input):
            super().execute_nexus_operation_cancel(input)

    async def execute_async_nexus_operation_cancel(self, input: ExecuteNexusOperationCancelInput) -> None:
        with self._span("RunCancelNexusOperationHandler", input):
            await super().execute_async_nexus_operation_cancel(input)

    def _span(
        self, prefix: str, input: ExecuteNexusOperationStartInput | ExecuteNexusOperationCancelInput
    ) -> AbstractContextManager[None]:
        name = f"{prefix}:{input.operation.service}/{input.operation.name}"
        return _server_span(self._tracer, name, self._carrier.extract(input.headers), {})


class _TracedActivities(ActivityInboundInterceptor):
    """Creates a span for each attempt. The span is current while the attempt runs, so that spans of the activity's code are
    its children.
    """

    def __init__(self, next: ActivityInboundInterceptor, tracer: Tracer, carrier: Carrier) -> None:
        super().__init__(next)
        self._tracer = tracer
        self._carrier = carrier

    def execute_activity(self, input: ExecuteActivityInput) -> Any:
        with self._span(input):
            return super().execute_activity(input)

    async def execute_async_activity(self, input: ExecuteActivityInput) -> Any:
        with self._span(input):
            return await super().execute_async_activity(input)

    def _span(self, input: ExecuteActivityInput) -> AbstractContextManager[None]:
        facts = activity.info()
        attributes: dict[str, AttributeValue] = {
            "temporalWorkflowID": facts.workflow_id,
            "temporalRunID": facts.workflow_run_id,
            "temporalActivityID": facts.activity_id,
            "temporalActivityAttempt": facts.attempt,
        }
        parent = self._carrier.get(input.headers)
        return _server_span(self._tracer, f"RunActivity:{input.activity}", parent, attributes)


@contextmanager
def _server_span(
    tracer: Tracer, name: str, parent: Context | None, attributes: dict[str, AttributeValue]
) -> Iterator[None]:
    """Start a span around the code that serves a call. `parent` is the caller's context, with its baggage."""
    token = None if parent is None else context.attach(parent)
    try:
        with tracer.start_as_current_span(name, attributes=attributes, kind=SpanKind.SERVER):
            yield
    finally:
        if token is not None:
            context.detach(token)
