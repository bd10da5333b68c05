"""Export of a registry's metrics to OpenTelemetry. User metrics are exported when they are recorded, a worker's statistics
when they are collected.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from opentelemetry import metrics as otel
from opentelemetry.metrics import CallbackOptions, Meter, Observation

from hourglass._worker.tree.worker_metrics import described
from hourglass.metrics import Registry, default_registry
from hourglass.metrics._registry import Metric
from hourglass.metrics._samples import Buckets, Labels


class _Bridge:
    """A sink that forwards a registry's records to OpenTelemetry instruments with the same names."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._instruments: dict[str, Callable[[float, Labels], None]] = {}
        self._lock = threading.Lock()

    def recorded(self, metric: Metric, value: float, labels: Labels) -> None:
        """Forward a single record."""
        record = self._instruments.get(metric.name)
        if record is None:
            with self._lock:
                record = self._instruments.get(metric.name) or self._made(metric)
                self._instruments[metric.name] = record
        record(value, labels)

    def _made(self, metric: Metric) -> Callable[[float, Labels], None]:
        facts: dict[str, Any] = {"unit": metric.unit, "description": metric.description}
        match metric.kind:
            case "counter":
                counter = self._meter.create_counter(metric.name, **facts)
                return lambda value, labels: counter.add(value, dict(labels))
            case "gauge":
                gauge = self._meter.create_gauge(metric.name, **facts)
                return lambda value, labels: gauge.set(value, dict(labels))
            case "histogram":
                histogram = self._meter.create_histogram(
                    metric.name, explicit_bucket_boundaries_advisory=list(metric.bounds), **facts
                )
                return lambda value, labels: histogram.record(value, dict(labels))


def export_metrics(registry: Registry | None = None, meter: Meter | None = None) -> Callable[[], None]:
    """Export the metrics of a registry (by default this process's registry) to an OpenTelemetry meter. Return a function
    that stops the export.
    """
    source = default_registry if registry is None else registry
    sink = otel.get_meter("hourglass") if meter is None else meter
    stopped = threading.Event()
    for name, kind, text in described():
        make = sink.create_observable_counter if kind == "counter" else sink.create_observable_gauge
        make(name, callbacks=[_observing(source, name, stopped)], description=text)
    remove = source.add_sink(_Bridge(sink))

    def end() -> None:
        stopped.set()
        remove()

    return end


def _observing(
    registry: Registry, name: str, stopped: threading.Event
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(_: CallbackOptions) -> Iterable[Observation]:
        if stopped.is_set():
            return []
        families = [family for family in registry.collect() if family.name == name]
        return [
            Observation(sample.value, dict(sample.labels))
            for family in families
            for sample in family.samples
            if not isinstance(sample.value, Buckets)
        ]

    return observe
