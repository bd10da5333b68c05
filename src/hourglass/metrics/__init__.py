"""Metrics: your own counters, gauges and histograms, and those of the worker, in one registry.

def charge(order: str, cents: int) -> str:          # inside an activity or a workflow
    activity.metric_meter().create_counter("charges").add(1, {"currency": "eur"})

_meter      creates counters, gauges and histograms with fixed attributes
_registry   every metric of a process or a worker; its sinks and sources
_telemetry  the destination of metrics and logs of Temporal's Core
_samples    metrics as data, and as text for Prometheus
"""

from __future__ import annotations

from hourglass.metrics._meter import MetricCounter, MetricGauge, MetricHistogram, MetricMeter
from hourglass.metrics._registry import Registry, Sink, default_registry
from hourglass.metrics._samples import Attributes, Buckets, Family, Kind, Sample, prometheus_text
from hourglass.metrics._telemetry import (
    LoggingConfig,
    OpenTelemetryConfig,
    OpenTelemetryMetricTemporality,
    PrometheusConfig,
    TelemetryConfig,
    TelemetryFilter,
    set_telemetry,
)

__all__ = [
    "Attributes",
    "Buckets",
    "Family",
    "Kind",
    "LoggingConfig",
    "MetricCounter",
    "MetricGauge",
    "MetricHistogram",
    "MetricMeter",
    "OpenTelemetryConfig",
    "OpenTelemetryMetricTemporality",
    "PrometheusConfig",
    "Registry",
    "Sample",
    "Sink",
    "TelemetryConfig",
    "TelemetryFilter",
    "default_registry",
    "prometheus_text",
    "set_telemetry",
]
