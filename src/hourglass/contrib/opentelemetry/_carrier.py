"""A trace's context as a header, and back: a JSON object of texts, as Temporal's SDKs write it. Never raises on the way in."""

from __future__ import annotations

from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from hourglass._engine.interception import Headers
from hourglass.converter import default_converter
from hourglass.errors import PayloadError

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
        texts: dict[str, str] = {}
        self._propagator.inject(texts, context)  # pyright: ignore[reportArgumentType] - its own default does not fit
        if texts:
            headers[HEADER] = default_converter.encode(texts)

    def get(self, headers: Headers) -> Context | None:
        """The context that came with these headers; None if none came, or nobody can read it."""
        payload = headers.get(HEADER)
        if payload is None:
            return None
        try:
            texts = default_converter.decode(payload, dict[str, str])
        except PayloadError:
            return None
        return self._propagator.extract(texts, Context())
