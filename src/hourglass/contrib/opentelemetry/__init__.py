"""OpenTelemetry: metrics, and traces that follow a request through clients, workflows and activities.

Install the bridge with `pip install 'hourglass-temporal[opentelemetry]'`. Span names and the trace header are the same as in
Temporal's SDKs, so a trace continues across workers that use them.

    _metrics    exports a registry's metrics to OpenTelemetry
    _tracing    `TracingInterceptor`
    _workflows  spans of workflows
"""

from __future__ import annotations

from hourglass.contrib import _require_extra

with _require_extra("opentelemetry"):
    from hourglass.contrib.opentelemetry._metrics import export_metrics
    from hourglass.contrib.opentelemetry._tracing import TracingInterceptor
    from hourglass.contrib.opentelemetry._workflows import (
        HEADER,
        RunIdGenerator,
        completed_span,
        workflow_span,
    )

__all__ = [
    "HEADER",
    "RunIdGenerator",
    "TracingInterceptor",
    "completed_span",
    "export_metrics",
    "workflow_span",
]
