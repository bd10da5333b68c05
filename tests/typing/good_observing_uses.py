"""Correct uses of facts, metrics, interceptors and tracing, with the types that both checkers must find. Never run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, assert_type

from hourglass import AsyncClient, Client, Replayer, RetryPolicy, Worker, activity, workflow
from hourglass.contrib.opentelemetry import RunIdGenerator, TracingInterceptor, completed_span, export_metrics
from hourglass.contrib.s3 import S3Storage
from hourglass.converter import (
    CompositeConverter,
    ExternalStorage,
    FolderStorage,
    HeaderCodecBehavior,
    Payload,
)
from hourglass.interceptors import (
    ActivityInboundInterceptor,
    AsyncClientOutboundInterceptor,
    ClientOutboundInterceptor,
    ExecuteActivityInput,
    ExecuteWorkflowInput,
    Interceptor,
    SleepInput,
    StartActivityInput,
    StartWorkflowInput,
    WorkflowInboundInterceptor,
    WorkflowOutboundInterceptor,
)
from hourglass.metrics import (
    Family,
    MetricCounter,
    MetricGauge,
    MetricHistogram,
    MetricMeter,
    Registry,
    default_registry,
    prometheus_text,
)
from hourglass.plugins import ClientConfig, Plugin, SimplePlugin, WorkerConfig
from hourglass.testing import Environment
from hourglass.worker import PollerBehaviorAutoscaling, WorkerTuner


@activity.defn
def observed(number: int) -> int:
    meter = activity.metric_meter()
    assert_type(meter, MetricMeter)
    meter.create_counter("n", "N.", "1").add(1, {"a": "b", "c": 1, "d": True, "e": 0.5})
    info = activity.info()
    assert_type(info.retry_policy, RetryPolicy | None)
    assert_type(info.in_workflow, bool)
    assert_type(info.headers, Mapping[str, Payload])
    return number


@workflow.defn
def observes(number: int) -> int:
    meter = workflow.metric_meter().with_additional_attributes({"a": "b"})
    assert_type(meter.create_counter("n"), MetricCounter)
    assert_type(meter.create_gauge("g"), MetricGauge)
    histogram = meter.create_histogram("h", buckets=[1, 2.5]).with_additional_attributes({"x": 1})
    assert_type(histogram, MetricHistogram)
    histogram.record(2.5)
    histogram.record(timedelta(seconds=3))
    info = workflow.info()
    assert_type(info.parent, workflow.ParentInfo | None)
    assert_type(info.root, workflow.RootInfo | None)
    assert_type(info.workflow_start_time, datetime)
    assert_type(info.search_attributes, dict[str, Any])
    assert_type(info.continue_as_new_reasons, tuple[str, ...])
    assert_type(info.original_execution_run_id, str)
    assert_type(workflow.is_catching_up(), bool)
    completed_span("s", attributes={"a": 1}, error=ValueError("x"))
    return observed(number)


class Outbound(WorkflowOutboundInterceptor):
    def start_activity(self, input: StartActivityInput) -> Any:
        assert_type(input.activity, str)
        assert_type(input.args, list[Any])
        assert_type(input.headers, dict[str, Payload])
        return self.next.start_activity(input)

    def sleep(self, input: SleepInput) -> None:
        assert_type(input.duration, float)
        self.next.sleep(input)


class Inbound(WorkflowInboundInterceptor):
    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        self.next.init(Outbound(outbound))

    def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
        assert_type(input.type, str)
        return super().execute_workflow(input)


class Activities(ActivityInboundInterceptor):
    def execute_activity(self, input: ExecuteActivityInput) -> Any:
        return self.next.execute_activity(input)

    async def execute_async_activity(self, input: ExecuteActivityInput) -> Any:
        await asyncio.sleep(0)
        return await self.next.execute_async_activity(input)


class Calls(ClientOutboundInterceptor):
    def start_workflow(self, input: StartWorkflowInput) -> Any:
        assert_type(input.options, dict[str, Any])
        return self.next.start_workflow(input)


class AsyncCalls(AsyncClientOutboundInterceptor):
    async def start_workflow(self, input: StartWorkflowInput) -> Any:
        return await self.next.start_workflow(input)


class Everything(Interceptor):
    def intercept_client(self, next: ClientOutboundInterceptor) -> ClientOutboundInterceptor:
        return Calls(next)

    def intercept_async_client(self, next: AsyncClientOutboundInterceptor) -> AsyncClientOutboundInterceptor:
        return AsyncCalls(next)

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return Activities(next)

    def intercept_workflow(self, next: WorkflowInboundInterceptor) -> WorkflowInboundInterceptor:
        return Inbound(next)


def use_all() -> None:
    registry = Registry(max_series=10)
    interceptors = [Everything(), TracingInterceptor()]
    client = Client.connect(interceptors=interceptors)
    Worker(client, workflows=[observes], interceptors=[Everything()], metrics=registry)
    Environment(interceptors=[Everything()], metrics=default_registry)
    Replayer(workflows=[observes], interceptors=[Everything()])
    assert_type(registry.collect(), list[Family])
    assert_type(prometheus_text(registry.collect()), str)
    MetricMeter(registry, {"a": 1}).create_counter("n").add(2)
    RunIdGenerator().generate_span_id()
    export_metrics(registry)()


async def use_async() -> None:
    await AsyncClient.connect(interceptors=[Everything()])


class Setting(Plugin):
    def configure_client(self, config: ClientConfig) -> ClientConfig:
        config["identity"] = "me"
        return config

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        assert_type(config["lanes"], int)
        return {**config, "lanes": 2}

    @contextmanager
    def run_worker(self, worker: Worker) -> Iterator[object]:
        yield worker


class Coded:
    async def encode(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        return payloads

    def decode(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        return payloads


def use_settings(client: Client) -> None:
    Client.connect(plugins=[Setting(), SimplePlugin("x", codec=Coded())], codec=Coded())
    storage = ExternalStorage(
        [FolderStorage("/tmp/x"), S3Storage("b", endpoint="https://s3")], lambda _, each: None
    )
    Client.connect(
        codec=storage, header_codec_behavior=HeaderCodecBehavior.CODEC, converter=CompositeConverter()
    )
    worker = Worker(
        client,
        tuner=WorkerTuner.create_fixed(activity_slots=3),
        activity_task_poller_behavior=PollerBehaviorAutoscaling(),
        patch_activation_callback=lambda asked: asked.patch_id == "x",
    )
    Worker(**worker.config())
