"""OpenTelemetry: traces that follow a request through clients, workflows and activities, and metrics. `pip install
'hourglass-temporal[opentelemetry]'`.

Span names, and the header that carries a trace, are those of Temporal's own SDKs: a trace goes on through workers of theirs.

    _metrics    a registry's metrics handed to OpenTelemetry
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
