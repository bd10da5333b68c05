"""Export of a registry's metrics to OpenTelemetry."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from hourglass import activity, workflow
from hourglass.client import Client
from hourglass.contrib.opentelemetry import export_metrics
from hourglass.metrics import MetricMeter, Registry
from hourglass.worker import Worker


@activity.defn
def step() -> None:
    activity.metric_meter().create_counter("steps", "Steps.").add(1, {"kind": "small"})


@workflow.defn
def walk() -> None:
    for _ in range(3):
        step()


def data_points(reader: InMemoryMetricReader) -> dict[str, list[Any]]:
    """Collect the data points of each metric."""
    data = reader.get_metrics_data()
    if data is None:
        return {}
    return {
        metric.name: list(metric.data.data_points)
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def test_opentelemetry_exports_recorded_and_worker_metrics_until_stopped() -> None:
    registry, reader = Registry(), InMemoryMetricReader()
    stop_export = export_metrics(registry, MeterProvider([reader]).get_meter("test"))
    meter = MetricMeter(registry)
    with (
        Client.connect("local:") as client,
        Worker(client, workflows=[walk], activities=[step], metrics=registry),
    ):
        client.execute_workflow(walk)
        meter.create_gauge("depth").set(4)
        meter.create_histogram("sizes", buckets=[1, 2]).record(1.5)
        metrics_by_name = data_points(reader)
    (steps,) = metrics_by_name["steps"]
    assert steps.value == 3
    assert dict(steps.attributes)["kind"] == "small"
    assert metrics_by_name["depth"][0].value == 4
    assert metrics_by_name["sizes"][0].explicit_bounds == (1.0, 2.0)
    assert list(metrics_by_name["sizes"][0].bucket_counts) == [0, 1, 0]
    assert metrics_by_name["hourglass_polls"][0].value == 2
    assert metrics_by_name["hourglass_workflows_closed"][0].value == 1
    assert metrics_by_name["hourglass_activity_executions"][0].value == 3
    stop_export()
    meter.create_gauge("depth").set(9)
    after = data_points(reader)
    assert all(point.value == 4 for point in after.get("depth", []))
    assert not after.get("hourglass_restarts")
