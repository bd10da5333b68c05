"""Wrong uses of facts, metrics, interceptors and tracing: each line that ends in `# E` must be reported. Never run."""

from __future__ import annotations

from typing import Any

from good_observing_uses import Calls, Everything, Inbound, Outbound

from hourglass import Client, Replayer, Worker, activity, workflow
from hourglass.contrib.opentelemetry import TracingInterceptor, completed_span, export_metrics
from hourglass.converter import ExternalStorage
from hourglass.interceptors import (
    ClientOutboundInterceptor,
    Interceptor,
    StartActivityInput,
    WorkflowInboundInterceptor,
    WorkflowOutboundInterceptor,
)
from hourglass.metrics import MetricMeter, Registry, prometheus_text
from hourglass.testing import Environment
from hourglass.worker import WorkerTuner


def use_metrics(registry: Registry) -> None:
    meter = workflow.metric_meter()
    meter.create_counter(5)  # E
    meter.create_counter("n").add("1")  # E
    meter.create_counter("n").add(1, {"a": None})  # E
    meter.create_counter("n").set(1)  # E
    meter.create_gauge("g").add(1)  # E
    meter.create_histogram("h", buckets="1,2")  # E
    meter.create_histogram("h").record("1")  # E
    activity.metric_meter().with_additional_attributes("a")  # E
    MetricMeter()  # E
    prometheus_text(registry)  # E
    registry.metric("n", "meter")  # E


def use_interceptors(client: Client) -> None:
    Client.connect(interceptors=[Everything])  # E
    Worker(client, interceptors=[Calls])  # E
    Worker(client, metrics="prometheus")  # E
    Environment(interceptors=Everything())  # E
    Replayer(interceptors=["x"])  # E
    Inbound()  # E
    Outbound("next")  # E


class Wrong(Interceptor):
    def intercept_client(self, next: ClientOutboundInterceptor) -> WorkflowInboundInterceptor:  # E
        raise NotImplementedError


class WrongCalls(WorkflowOutboundInterceptor):
    def start_activity(self, input: str) -> Any:  # E
        return input

    def start_local_activity(self, input: Any) -> Any:
        return self.next.start_activity("charge")  # E


def use_facts(input: StartActivityInput) -> None:
    workflow.info().history_length = 3  # E
    workflow.info().parent.workflow_id  # E
    input.headers["x"] = "text"  # E


def use_tracing() -> None:
    TracingInterceptor("tracer")  # E
    completed_span()  # E
    export_metrics("registry")  # E


def use_settings(client: Client) -> None:
    Client.connect(plugins=["x"])  # E
    Worker(client, tuner=5)  # E
    ExternalStorage(["folder"])  # E
    WorkerTuner.create_resource_based(target_memory_usage="much", target_cpu_usage=1)  # E
    client.config()["no such"]  # E
