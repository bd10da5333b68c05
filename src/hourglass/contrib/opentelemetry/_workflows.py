"""Spans of workflows. This code runs inside workflow code. It is deterministic except for the spans, which do not affect the
run.

A run has no span that stays open while it waits, because it may wait for months and continue on another machine. Instead, it
emits complete spans at the time of its workflow task, and none during replay. Queries are not recorded in the history, and
always have a span. With `durations`, a span is emitted when it ends, with its start time. Both are times of workflow tasks,
and therefore the same in every execution.

A span is emitted once, but later spans of the run must become its children, even on another worker, after a crash, or years
later. Therefore its id is not random. The id is computed from the run's id and the span's role, and is the same in every
execution. This requires that the tracer's provider uses `RunIdGenerator`.

The context of a trace is sent as a header: a JSON object of strings, in the format of Temporal's SDKs. Reading a malformed
header never raises.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NoReturn, TypedDict, TypeVar, Unpack

from opentelemetry import trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import (
    INVALID_SPAN_ID,
    INVALID_TRACE_ID,
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from hourglass._evaluator.context import LiveRun, require_run
from hourglass._evaluator.interception import (
    ContinueAsNewInput,
    ExecuteWorkflowInput,
    HandleQueryInput,
    HandleSignalInput,
    HandleUpdateInput,
    Headers,
    SignalChildWorkflowInput,
    SignalExternalWorkflowInput,
    StartActivityInput,
    StartChildWorkflowInput,
    StartLocalActivityInput,
    StartNexusOperationInput,
    WorkflowInboundInterceptor,
    WorkflowOutboundInterceptor,
)
from hourglass._evaluator.messages import ContinueAsNewError
from hourglass.converter import default_converter
from hourglass.errors import PayloadError, UsageError
from hourglass.workflow import unsafe

T = TypeVar("T")

_assigned: ContextVar[tuple[int, int] | None] = ContextVar("hourglass_span_ids", default=None)


class RunIdGenerator:
    """An id generator for `TracerProvider(id_generator=RunIdGenerator())`. Workflow spans get ids computed from the run, all
    other spans random ids.

    Without this generator, the children of a run's spans are attached, after a replay, to the span that started the run.
    """

    def __init__(self) -> None:
        self._random = random.SystemRandom()

    def generate_span_id(self) -> int:
        """Return the id of a new span."""
        ids = _assigned.get()
        return self._drawn(64, INVALID_SPAN_ID) if ids is None else ids[1]

    def generate_trace_id(self) -> int:
        """Return the id of a new trace."""
        ids = _assigned.get()
        return self._drawn(128, INVALID_TRACE_ID) if ids is None else ids[0]

    def is_trace_id_random(self) -> bool:
        """Return whether samplers may treat trace ids as random. True, because the ids of runs are hashes and also uniformly
        distributed.
        """
        return True

    def _drawn(self, bits: int, invalid: int) -> int:
        number = invalid
        while number == invalid:
            number = self._random.getrandbits(bits)
        return number


def has_stable_ids(tracer: Tracer) -> bool:
    """Return whether the tracer uses `RunIdGenerator`."""
    return isinstance(getattr(tracer, "id_generator", None), RunIdGenerator)


def ids_of(run_id: str, key: str) -> tuple[int, int]:
    """Return the ids of a run's span: the trace id, used if the span is a root, and the span id."""
    trace = hashlib.sha256(f"hourglass trace {run_id}".encode()).digest()
    span = hashlib.sha256(f"hourglass span {run_id} {key}".encode()).digest()
    return int.from_bytes(trace[:16], "big") or 1, int.from_bytes(span[:8], "big") or 1


@contextmanager
def assigned_ids(ids: tuple[int, int] | None) -> Iterator[None]:
    """Assign these ids to the span that is created in the block."""
    token = _assigned.set(ids)
    try:
        yield
    finally:
        _assigned.reset(token)


HEADER = "_tracer-data"
"""The name of the header that contains the context of a trace."""

default_propagator: TextMapPropagator = CompositePropagator(
    [TraceContextTextMapPropagator(), W3CBaggagePropagator()]
)


class Carrier:
    """Writes trace contexts into headers, and reads them."""

    def __init__(self, propagator: TextMapPropagator | None = None) -> None:
        self._propagator = propagator or default_propagator

    def put(self, headers: Headers, context: Context) -> None:
        """Write the trace context into the headers of a call."""
        fields: dict[str, str] = {}
        self._propagator.inject(fields, context)  # pyright: ignore[reportArgumentType] - its own default does not fit
        if fields:
            headers[HEADER] = default_converter.encode(fields)

    def inject(self, headers: dict[str, str], context: Context) -> None:
        """Write the trace context into headers that are strings."""
        self._propagator.inject(headers, context)  # pyright: ignore[reportArgumentType] - its own default does not fit

    def extract(self, headers: Mapping[str, str]) -> Context:
        """Return the trace context from headers that are strings."""
        return self._propagator.extract(headers, Context())

    def get(self, headers: Headers) -> Context | None:
        """Return the trace context from the headers of a call. Return None if it is absent or malformed."""
        payload = headers.get(HEADER)
        if payload is None:
            return None
        try:
            fields = default_converter.decode(payload, dict[str, str])
        except PayloadError:
            return None
        return self._propagator.extract(fields, Context())


Attributes = Mapping[str, AttributeValue]


class SpanDetails(TypedDict, total=False):
    """The optional data of a span: its kind, its attributes, and the context of a span to which it has a link."""

    kind: SpanKind
    attributes: Attributes | None
    linked: Context | None


class RunTrace:
    """The trace of a single execution of a run: holds the current context and creates spans."""

    def __init__(self, tracer: Tracer, carrier: Carrier) -> None:
        self.carrier = carrier
        self.context = Context()
        self._tracer = tracer
        self._emitted = 0

    @property
    def has_stable_ids(self) -> bool:
        """Whether span ids are computed from the run."""
        return has_stable_ids(self._tracer)

    def begin(self, headers: Headers) -> None:
        """Continue the trace of the caller that started the run."""
        self.context = self.carrier.get(headers) or self.context

    def add(
        self, name: str, *, key: str = "", error: BaseException | None = None, **details: Unpack[SpanDetails]
    ) -> Context:
        """Emit a span, except during replay, and return a context for its child spans."""
        live = require_run("tracing")
        ids = self._ids_for(live, key, name)
        if live.facts.is_replaying or live.quiet or live.dead:
            return self._replayed_context(ids)
        return self._emit(live, name, ids, self._parent(), live.facts.timestamp_ns, error, **details)

    def open(self, name: str, *, key: str = "", **details: Unpack[SpanDetails]) -> OpenSpan:
        """Begin a span with a duration. Its id is determined now, and the span is emitted when it ends."""
        live = require_run("tracing")
        ids = self._ids_for(live, key, name)
        context = self._replayed_context(ids)
        return OpenSpan(self, name, ids, details, live.facts.timestamp_ns, self._parent(), context)

    def close(self, span: OpenSpan, error: BaseException | None) -> None:
        """End a span and emit it, unless the run is replaying or was dropped."""
        live = require_run("tracing")
        if not (live.facts.is_replaying or live.quiet or live.dead):
            self._emit(live, span.name, span.ids, span.parent, span.start_ns, error, **span.details)

    def _parent(self) -> Context:
        return _enclosing_span.get() or self.context

    def answer(self, name: str, linked: Context | None) -> None:
        """Emit the span of a query. Queries are not recorded in the history."""
        live = require_run("tracing")
        now = live.facts.timestamp_ns
        self._emit(live, name, None, self._parent(), now, None, kind=SpanKind.SERVER, linked=linked)

    def _emit(
        self,
        live: LiveRun,
        name: str,
        ids: tuple[int, int] | None,
        parent: Context,
        start_ns: int,
        error: BaseException | None,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes | None = None,
        linked: Context | None = None,
    ) -> Context:
        links = [Link(trace.get_current_span(linked).get_span_context())] if linked is not None else []
        with unsafe(), assigned_ids(ids):
            span: Span = self._tracer.start_span(
                name,
                context=parent,
                kind=kind,
                attributes={**_run_attributes(live), **(attributes or {})},
                links=links,
                start_time=start_ns,
            )
            if error is not None:
                span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
            span.end(live.facts.timestamp_ns)
        return trace.set_span_in_context(span, parent)

    def _ids_for(self, live: LiveRun, key: str, name: str) -> tuple[int, int]:
        """Return the ids of the next span, computed from its key or, without a key, from its name and number."""
        if not key:
            self._emitted += 1
            key = f"{name} {self._emitted}"
        return ids_of(live.state.run_id, key)

    def _replayed_context(self, ids: tuple[int, int]) -> Context:
        """Return the context of a span that the first execution emitted, as far as it is known."""
        parent_context = self._parent()
        if not has_stable_ids(self._tracer):
            return parent_context
        parent = trace.get_current_span(parent_context).get_span_context()
        context = SpanContext(
            trace_id=parent.trace_id if parent.is_valid else ids[0],
            span_id=ids[1],
            is_remote=True,
            trace_flags=parent.trace_flags if parent.is_valid else TraceFlags(TraceFlags.SAMPLED),
            trace_state=parent.trace_state,
        )
        return trace.set_span_in_context(NonRecordingSpan(context), parent_context)


_enclosing_span: ContextVar[Context | None] = ContextVar("hourglass_span", default=None)
"""The user's span that encloses the current code of a fiber. Spans for the commands that the code issues become its
children.
"""


@dataclass(frozen=True)
class OpenSpan:
    """A span that has begun, with all data needed to emit it when it ends."""

    run: RunTrace
    name: str
    ids: tuple[int, int]
    details: SpanDetails
    start_ns: int
    parent: Context
    context: Context

    @contextmanager
    def around(self) -> Iterator[None]:
        """Make the span the parent of all calls in the block. The span ends with the block."""
        token = _enclosing_span.set(self.context)
        try:
            with _ending(lambda error: self.run.close(self, error)):
                yield
        finally:
            _enclosing_span.reset(token)


@contextmanager
def _ending(end: Callable[[BaseException | None], object]) -> Iterator[None]:
    """Call `end` after the block with the block's error, unless the run was dropped. Continuing as new is no error."""
    error: BaseException | None = None
    try:
        yield
    except BaseException as raised:
        error = None if isinstance(raised, ContinueAsNewError) else raised
        raise
    finally:
        if not require_run("tracing").dead:
            end(error)


class TracedWorkflow(WorkflowInboundInterceptor):
    """Traces the inbound calls of a run."""

    def __init__(
        self, next: WorkflowInboundInterceptor, tracer: Tracer, carrier: Carrier, durations: bool = False
    ) -> None:
        super().__init__(next)
        self.trace = RunTrace(tracer, carrier)
        self._durations = durations
        self._run_span: OpenSpan | None = None

    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        """Install the tracing of outbound calls, and begin the trace immediately, because a signal handler may run before
        the workflow's body.
        """
        started = require_run("tracing").started
        assert started is not None
        run = self.trace
        run.begin(dict(started.headers))
        if self._durations:
            name = f"RunWorkflow:{started.workflow_type}"
            self._run_span = run.open(name, key="RunWorkflow", kind=SpanKind.SERVER)
            run.context = self._run_span.context
        super().init(_TracedCalls(outbound, run))

    def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
        """Emit a span for the start and a span for the end of the run, or with `durations` a single span for the whole run."""
        run = self.trace
        if self._run_span is not None:
            with self._run_span.around():
                return super().execute_workflow(input)
        run.context = run.add(f"RunWorkflow:{input.type}", key="RunWorkflow", kind=SpanKind.SERVER)
        name = f"CompleteWorkflow:{input.type}"
        with _ending(lambda error: run.add(name, key="CompleteWorkflow", error=error)):
            return super().execute_workflow(input)

    def handle_signal(self, input: HandleSignalInput) -> None:
        """Emit a span in the run's trace, with a link to the sender's span."""
        sender, name = self.trace.carrier.get(input.headers), f"HandleSignal:{input.signal}"
        if self._durations:
            with self.trace.open(name, kind=SpanKind.SERVER, linked=sender).around():
                super().handle_signal(input)
        else:
            self.trace.add(name, kind=SpanKind.SERVER, linked=sender)
            super().handle_signal(input)

    def handle_query(self, input: HandleQueryInput) -> Any:
        """Emit a span in the run's trace, with a link to the caller's span."""
        self.trace.answer(f"HandleQuery:{input.query}", self.trace.carrier.get(input.headers))
        return super().handle_query(input)

    def handle_update_validator(self, input: HandleUpdateInput) -> None:
        """Emit a span whose id depends on the update's id, because a replay does not run validators."""
        self._update("ValidateUpdate", input, self.trace.add)
        super().handle_update_validator(input)

    def handle_update_handler(self, input: HandleUpdateInput) -> Any:
        """Emit a span with a link to the caller's span."""
        if self._durations:
            span = self._update("HandleUpdate", input, self.trace.open)
            with span.around():
                return super().handle_update_handler(input)
        self._update("HandleUpdate", input, self.trace.add)
        return super().handle_update_handler(input)

    def _update(self, prefix: str, input: HandleUpdateInput, begin: Callable[..., T]) -> T:
        return begin(
            f"{prefix}:{input.update}",
            key=f"{prefix} {input.id}",
            kind=SpanKind.SERVER,
            attributes={"temporalUpdateID": input.id},
            linked=self.trace.carrier.get(input.headers),
        )


class _TracedCalls(WorkflowOutboundInterceptor):
    """Traces the outbound calls of a run. Each call has a span, and the receiver's spans become its children."""

    def __init__(self, next: WorkflowOutboundInterceptor, run: RunTrace) -> None:
        super().__init__(next)
        self._trace = run

    def start_activity(self, input: StartActivityInput) -> Any:
        self._begin(f"StartActivity:{input.activity}", input.headers)
        return super().start_activity(input)

    def start_local_activity(self, input: StartLocalActivityInput) -> Any:
        self._begin(f"StartActivity:{input.activity}", input.headers)
        return super().start_local_activity(input)

    def start_child_workflow(self, input: StartChildWorkflowInput) -> Any:
        self._begin(f"StartChildWorkflow:{input.workflow}", input.headers)
        return super().start_child_workflow(input)

    def signal_child_workflow(self, input: SignalChildWorkflowInput) -> None:
        self._begin(f"SignalChildWorkflow:{input.signal}", input.headers)
        super().signal_child_workflow(input)

    def signal_external_workflow(self, input: SignalExternalWorkflowInput) -> None:
        self._begin(f"SignalExternalWorkflow:{input.signal}", input.headers)
        super().signal_external_workflow(input)

    def start_nexus_operation(self, input: StartNexusOperationInput) -> Any:
        """Emit a span. Nexus headers contain the trace context as strings."""
        context = self._trace.add(
            f"StartNexusOperation:{input.service}/{input.operation}", kind=SpanKind.CLIENT
        )
        self._trace.carrier.inject(input.nexus_headers, context)
        return super().start_nexus_operation(input)

    def continue_as_new(self, input: ContinueAsNewInput) -> NoReturn:
        self._trace.carrier.put(input.headers, self._trace.context)
        super().continue_as_new(input)

    def _begin(self, name: str, headers: Headers) -> None:
        self._trace.carrier.put(headers, self._trace.add(name, kind=SpanKind.CLIENT))


def completed_span(
    name: str, *, attributes: Attributes | None = None, error: BaseException | None = None
) -> None:
    """Add a custom span to this run's trace. The span is complete, has the time of the workflow task, and is not repeated
    during replay.
    """
    _trace_of("completed_span").add(name, attributes=attributes, error=error)


@contextmanager
def workflow_span(name: str, *, attributes: Attributes | None = None) -> Iterator[None]:
    """Create a custom span around a part of a workflow. Its duration is the actual duration, however long the run waits.

    Calls of the run inside the block become child spans. The worker that executes the end of the block emits the span. The
    span is not repeated during replay. The tracer's provider must have a `RunIdGenerator`.
    """
    run = _trace_of("workflow_span")
    if not run.has_stable_ids:
        raise UsageError(NO_IDS)
    with run.open(name, attributes=attributes).around():
        yield


NO_IDS = "workflow spans with durations need ids that are derived from the run: use TracerProvider(id_generator=RunIdGenerator())"


def _trace_of(function: str) -> RunTrace:
    live = require_run(function)
    if live.latched:
        raise UsageError(f"{function} is not allowed in {live.read_only or 'a run that is dropped'}")
    inbound: Any = live.inbound
    while inbound is not None and not isinstance(inbound, TracedWorkflow):
        inbound = getattr(inbound, "next", None)
    if inbound is None:
        raise UsageError(f"{function} needs a worker with a TracingInterceptor")
    trace_of_run: RunTrace = inbound.trace
    return trace_of_run


def _run_attributes(live: LiveRun) -> dict[str, AttributeValue]:
    assert live.started is not None
    return {"temporalWorkflowID": live.started.workflow_id, "temporalRunID": live.state.run_id}
