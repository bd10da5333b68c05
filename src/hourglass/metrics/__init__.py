"""Metrics: counters, gauges and histograms of your own, and those of the worker, in one registry.

def charge(order: str, cents: int) -> str:          # inside an activity or a workflow
    activity.metric_meter().create_counter("charges").add(1, {"currency": "eur"})

_meter     a meter
_registry  a registry
_samples   metrics as data
"""

from __future__ import annotations

from hourglass.metrics._meter import MetricCounter, MetricGauge, MetricHistogram, MetricMeter
from hourglass.metrics._registry import Registry, Sink, default_registry
from hourglass.metrics._samples import Attributes, Buckets, Family, Kind, Sample, prometheus_text

__all__ = [
    "Attributes",
    "Buckets",
    "Family",
    "Kind",
    "MetricCounter",
    "MetricGauge",
    "MetricHistogram",
    "MetricMeter",
    "Registry",
    "Sample",
    "Sink",
    "default_registry",
    "prometheus_text",
]
