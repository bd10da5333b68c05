"""Spans of workflows. Runs inside workflow code: all is deterministic but for the spans, which change nothing there.

A run has no span that is open while it waits, for it may wait for months and on another machine: it emits spans that
are complete, at the time of its task, and none while it catches up with its history. Queries are no part of the
history, and always have one. With `durations`, a span is emitted when what it is of ends, with the time at which that began:
both are times of tasks, and known again wherever the run is executed.

A span is emitted once, but what the run does later must go on from it, also on another worker, after a crash, years
later. So its id is not drawn: it follows from the run's id and from what the span is, and is the same however often,
and wherever, the run is executed. For that the tracer's provider must ask `RunIdGenerator`.

A trace's context travels as a header: a JSON object of texts, as Temporal's SDKs write it. Reading one never raises.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn

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

# --- ids of spans ---------------------------------------------------------------------------------


_assigned: ContextVar[tuple[int, int] | None] = ContextVar("hourglass_span_ids", default=None)


class RunIdGenerator:
    """For `TracerProvider(id_generator=RunIdGenerator())`: ids that follow from the run for spans of workflows, and are drawn
    for all others. Without it a run that is executed again goes on from the span that started it.
    """

    def __init__(self) -> None:
        self._random = random.SystemRandom()

    def generate_span_id(self) -> int:
        """The id of a new span."""
        wanted = _assigned.get()
        return self._drawn(64, INVALID_SPAN_ID) if wanted is None else wanted[1]

    def generate_trace_id(self) -> int:
        """The id of a new trace."""
        wanted = _assigned.get()
        return self._drawn(128, INVALID_TRACE_ID) if wanted is None else wanted[0]

    def is_trace_id_random(self) -> bool:
        """Whether samplers may take the id for randomness: those of runs are hashes, which is as good."""
        return True

    def _drawn(self, bits: int, invalid: int) -> int:
        number = invalid
        while number == invalid:
            number = self._random.getrandbits(bits)
        return number


def has_stable_ids(tracer: Tracer) -> bool:
    """Whether the tracer asks us for ids."""
    return isinstance(getattr(tracer, "id_generator", None), RunIdGenerator)


def ids_of(run_id: str, key: str) -> tuple[int, int]:
    """The ids of a span of a run: of its trace, should it begin one, and its own."""
    trace = hashlib.sha256(f"hourglass trace {run_id}".encode()).digest()
    span = hashlib.sha256(f"hourglass span {run_id} {key}".encode()).digest()
    return int.from_bytes(trace[:16], "big") or 1, int.from_bytes(span[:8], "big") or 1


@contextmanager
def assigned_ids(ids: tuple[int, int] | None) -> Iterator[None]:
    """While a span with these ids is made."""
    token = _assigned.set(ids)
    try:
        yield
    finally:
        _assigned.reset(token)


# --- the header -----------------------------------------------------------------------------------


HEADER = "_tracer-data"
"""The header that carries a trace's context."""

default_propagator: TextMapPropagator = CompositePropagator(
    [TraceContextTextMapPropagator(), W3CBaggagePropagator()]
)


class Carrier:
    """Puts contexts into headers and takes them out."""

    def __init__(self, propagator: TextMapPropagator | None = None) -> None:
        self._propagator = propagator or default_propagator

    def put(self, headers: Headers, context: Context) -> None:
        """Have the context travel with these headers."""
        fields: dict[str, str] = {}
        self._propagator.inject(fields, context)  # pyright: ignore[reportArgumentType] - its own default does not fit
        if fields:
            headers[HEADER] = default_converter.encode(fields)

    def inject(self, headers: dict[str, str], context: Context) -> None:
        """Have the context travel with headers that are texts."""
        self._propagator.inject(headers, context)  # pyright: ignore[reportArgumentType] - its own default does not fit

    def extract(self, headers: Mapping[str, str]) -> Context:
        """The context that came with headers that are texts."""
        return self._propagator.extract(headers, Context())

    def get(self, headers: Headers) -> Context | None:
        """The context that came with these headers; None if none came, or it cannot be read."""
        payload = headers.get(HEADER)
        if payload is None:
            return None
        try:
            fields = default_converter.decode(payload, dict[str, str])
        except PayloadError:
            return None
        return self._propagator.extract(fields, Context())


# --- spans ----------------------------------------------------------------------------------------


Attributes = Mapping[str, AttributeValue]


class RunTrace:
    """The trace of one execution of a run: where it stands, and how spans are added."""

    def __init__(self, tracer: Tracer, carrier: Carrier) -> None:
        self.carrier = carrier
        self.context = Context()
        self._tracer = tracer
        self._emitted = 0

    @property
    def has_stable_ids(self) -> bool:
        """Whether ids of spans follow from the run."""
        return has_stable_ids(self._tracer)

    def begin(self, headers: Headers) -> None:
        """The run begins, in the trace of the caller that started it."""
        self.context = self.carrier.get(headers) or self.context

    def add(
        self,
        name: str,
        *,
        key: str = "",
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes | None = None,
        linked: Context | None = None,
        error: BaseException | None = None,
    ) -> Context:
        """Emit a span, unless the run catches up, and return the context that goes on from it."""
        live = require_run("tracing")
        ids = self._ids_for(live, key, name)
        if live.facts.is_replaying or live.quiet or live.dead:
            return self._replayed_context(ids)
        return self._emit(live, name, ids, kind, attributes, linked, error)

    def open(
        self,
        name: str,
        *,
        key: str = "",
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes | None = None,
        linked: Context | None = None,
    ) -> OpenSpan:
        """Begin a span that has a duration. Its id is known from here on; it is emitted when it ends."""
        live = require_run("tracing")
        ids = self._ids_for(live, key, name)
        parent = self._parent()
        return OpenSpan(
            self,
            name,
            ids,
            kind,
            attributes,
            linked,
            live.facts.timestamp_ns,
            parent,
            self._replayed_context(ids),
        )

    def close(self, span: OpenSpan, error: BaseException | None) -> None:
        """End a span: it is emitted, unless the run catches up, or is thrown away."""
        live = require_run("tracing")
        if not (live.facts.is_replaying or live.quiet or live.dead):
            self._emit(
                live,
                span.name,
                span.ids,
                span.kind,
                span.attributes,
                span.linked,
                error,
                span.began,
                span.parent,
            )

    def _parent(self) -> Context:
        return _enclosing_span.get() or self.context

    def answer(self, name: str, linked: Context | None) -> None:
        """Emit the span of a query, which is in no history."""
        self._emit(require_run("tracing"), name, None, SpanKind.SERVER, None, linked, None)

    def _emit(
        self,
        live: LiveRun,
        name: str,
        ids: tuple[int, int] | None,
        kind: SpanKind,
        attributes: Attributes | None,
        linked: Context | None,
        error: BaseException | None,
        began: int | None = None,
        parent: Context | None = None,
    ) -> Context:
        now = live.facts.timestamp_ns
        parent = self._parent() if parent is None else parent
        links = [Link(trace.get_current_span(linked).get_span_context())] if linked is not None else []
        with unsafe(), assigned_ids(ids):
            span: Span = self._tracer.start_span(
                name,
                context=parent,
                kind=kind,
                attributes={**_run_attributes(live), **(attributes or {})},
                links=links,
                start_time=now if began is None else began,
            )
            if error is not None:
                span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
            span.end(now)
        return trace.set_span_in_context(span, parent)

    def _ids_for(self, live: LiveRun, key: str, name: str) -> tuple[int, int]:
        """The ids of the next span: by its key, or else by its name and how many came before it."""
        if not key:
            self._emitted += 1
            key = f"{name} {self._emitted}"
        return ids_of(live.state.run_id, key)

    def _replayed_context(self, ids: tuple[int, int]) -> Context:
        """The context of a span that was emitted when this happened for the first time, as far as it can be known."""
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
"""The span of the author's that a fiber is in: what it asks for is traced below it."""


class OpenSpan:
    """A span that has begun: all that is needed to emit it when it ends."""

    def __init__(
        self,
        run: RunTrace,
        name: str,
        ids: tuple[int, int],
        kind: SpanKind,
        attributes: Attributes | None,
        linked: Context | None,
        start_ns: int,
        parent: Context,
        context: Context,
    ) -> None:
        self.run = run
        self.name = name
        self.ids = ids
        self.kind = kind
        self.attributes = attributes
        self.linked = linked
        self.began = start_ns
        self.parent = parent
        self.context = context

    @contextmanager
    def around(self) -> Iterator[None]:
        """Within the block what is asked for is traced below it; it ends with the block."""
        token = _enclosing_span.set(self.context)
        error: BaseException | None = None
        try:
            yield
        except BaseException as raised:
            error = None if isinstance(raised, ContinueAsNewError) else raised
            raise
        finally:
            _enclosing_span.reset(token)
            if not require_run("tracing").dead:
                self.run.close(self, error)


class TracedWorkflow(WorkflowInboundInterceptor):
    """What comes to a run, traced."""

    def __init__(
        self, next: WorkflowInboundInterceptor, tracer: Tracer, carrier: Carrier, durations: bool = False
    ) -> None:
        super().__init__(next)
        self.trace = RunTrace(tracer, carrier)
        self._durations = durations
        self._run_span: OpenSpan | None = None

    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        """See what goes out, too. The trace begins here: a signal's handler may run before the body."""
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
        """A span for the beginning, one for the end; or one of both."""
        run = self.trace
        if self._run_span is not None:
            with self._run_span.around():
                return super().execute_workflow(input)
        run.context = run.add(f"RunWorkflow:{input.type}", key="RunWorkflow", kind=SpanKind.SERVER)
        error: BaseException | None = None
        try:
            return super().execute_workflow(input)
        except BaseException as raised:
            error = None if isinstance(raised, ContinueAsNewError) else raised
            raise
        finally:
            if not require_run("tracing").dead:
                run.add(f"CompleteWorkflow:{input.type}", key="CompleteWorkflow", error=error)

    def handle_signal(self, input: HandleSignalInput) -> None:
        """A span in the run's trace, linked to the sender's."""
        sender, name = self.trace.carrier.get(input.headers), f"HandleSignal:{input.signal}"
        if self._durations:
            with self.trace.open(name, kind=SpanKind.SERVER, linked=sender).around():
                super().handle_signal(input)
        else:
            self.trace.add(name, kind=SpanKind.SERVER, linked=sender)
            super().handle_signal(input)

    def handle_query(self, input: HandleQueryInput) -> Any:
        """A span in the run's trace, linked to the caller's."""
        self.trace.answer(f"HandleQuery:{input.query}", self.trace.carrier.get(input.headers))
        return super().handle_query(input)

    def handle_update_validator(self, input: HandleUpdateInput) -> None:
        """A span; by the update's id, for a validator does not run again."""
        self._update("ValidateUpdate", input)
        super().handle_update_validator(input)

    def handle_update_handler(self, input: HandleUpdateInput) -> Any:
        """A span, linked to the caller's."""
        if self._durations:
            with self.trace.open(
                f"HandleUpdate:{input.update}", **self._update_options("HandleUpdate", input)
            ).around():
                return super().handle_update_handler(input)
        self._update("HandleUpdate", input)
        return super().handle_update_handler(input)

    def _update(self, prefix: str, input: HandleUpdateInput) -> None:
        self.trace.add(f"{prefix}:{input.update}", **self._update_options(prefix, input))

    def _update_options(self, prefix: str, input: HandleUpdateInput) -> dict[str, Any]:
        return {
            "key": f"{prefix} {input.id}",
            "kind": SpanKind.SERVER,
            "attributes": {"temporalUpdateID": input.id},
            "linked": self.trace.carrier.get(input.headers),
        }


class _TracedCalls(WorkflowOutboundInterceptor):
    """What a run asks for, traced: each has a span, from which the other side goes on."""

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
        """A span; the trace travels in texts, as Nexus has it."""
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
    """Add a span of your own to this run's trace: complete, at the time of the task, and not again when the run is replayed."""
    _trace_of("completed_span").add(name, attributes=attributes, error=error)


@contextmanager
def workflow_span(name: str, *, attributes: Attributes | None = None) -> Iterator[None]:
    """A span of your own around a part of a workflow, with a real duration however long the run waits there; what the run asks
    for within it is traced below it. It is emitted when it ends, by the worker that the run is on then, and not again when
    the run is replayed. The tracer's provider must have a `RunIdGenerator`.
    """
    run = _trace_of("workflow_span")
    if not run.has_stable_ids:
        raise UsageError(NO_IDS)
    with run.open(name, attributes=attributes).around():
        yield


NO_IDS = "spans of workflows with durations need ids that follow from the run: TracerProvider(id_generator=RunIdGenerator())"


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
