"""Metrics: counters, gauges and histograms of your own, and those of the worker, in one registry.

def charge(order: str, cents: int) -> str:          # inside an activity or a workflow
    activity.metric_meter().create_counter("charges").add(1, {"currency": "eur"})

_meter      makes counters, gauges and histograms with fixed attributes
_registry   every metric of a process or a worker; its sinks and sources
_telemetry  what Temporal's Core counts and logs of itself, and where that goes
_samples    metrics as data, and as the text that Prometheus reads
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
