"""Tracing through clients, workflows and activities: parents of spans, links, durations, and no duplicates."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from hourglass import RetryPolicy, activity, workflow
from hourglass.client import AsyncClient, Client
from hourglass.contrib.opentelemetry import (
    HEADER,
    RunIdGenerator,
    TracingInterceptor,
    completed_span,
    workflow_span,
)
from hourglass.converter import default_converter
from hourglass.errors import NotInWorkflowError, UsageError, WorkflowFailedError, WorkflowParked
from hourglass.interceptors import Interceptor
from hourglass.replay import Replayer
from hourglass.testing import DevServer, Environment
from hourglass.worker import Worker


@activity.defn
def pack(item: str) -> str:
    with trace.get_tracer_provider().get_tracer("none").start_as_current_span("ignored"):
        return f"{item} {baggage.get_baggage('tenant')}"


@activity.defn
async def ship(item: str) -> str:
    return item


@activity.defn(retry_policy=RetryPolicy(maximum_attempts=1))
def burn() -> None:
    raise ValueError("hot")


@workflow.defn
def parcel(item: str) -> str:
    return pack(item)


@workflow.defn
class Shop:
    def __init__(self) -> None:
        self.open = True

    @workflow.run
    def run(self) -> list[str]:
        packed = [pack("tea"), pack.local("milk"), ship("salt"), parcel("rice")]
        completed_span("all is packed", attributes={"parcels": len(packed)})
        workflow.wait_condition(lambda: not self.open)
        return packed

    @workflow.signal
    def close(self) -> None:
        self.open = False

    @workflow.query
    def is_open(self) -> bool:
        return self.open

    @workflow.update
    def sell(self, item: str) -> str:
        return pack(item)

    @sell.validator
    def _(self, item: str) -> None:
        assert item


@workflow.defn
def fails_in_activity() -> None:
    burn()


@workflow.defn
def continues_as_new(left: int) -> str:
    if left:
        workflow.continue_as_new(left - 1)
    return pack("last")


WORKFLOWS: list[Any] = [Shop, parcel, fails_in_activity, continues_as_new]
ACTIVITIES: list[Any] = [pack, ship, burn]


class SpanRecorder:
    """A tracer with the spans that it has emitted."""

    def __init__(self, *, deterministic: bool = True) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(id_generator=RunIdGenerator()) if deterministic else TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = provider.get_tracer("test")

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()

    @property
    def names(self) -> Counter[str]:
        return Counter(each.name for each in self.spans)

    def paths(self) -> Counter[str]:
        """Count the spans by the path of their names from the root."""
        by_id = {each.context.span_id: each for each in self.spans if each.context}

        def path(span: ReadableSpan) -> str:
            parent = span.parent and by_id.get(span.parent.span_id)
            return f"{path(parent)} > {span.name}" if parent else span.name

        return Counter(path(each) for each in self.spans)

    def single(self, name: str) -> ReadableSpan:
        (paths,) = [each for each in self.spans if each.name == name]
        return paths


@pytest.fixture(params=["memory", "file", pytest.param("server", marks=pytest.mark.server)])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if request.param == "server":
        server: DevServer = request.getfixturevalue("quick_server")
        yield server.target
    elif request.param == "memory":
        yield "local:"
    else:
        yield f"local:{tmp_path_factory.mktemp('t') / 'runs.db'}"


RUN_PATH = "StartWorkflow:Shop > RunWorkflow:Shop"
EXPECTED = Counter(
    {
        "StartWorkflow:Shop": 1,
        RUN_PATH: 1,
        f"{RUN_PATH} > StartActivity:pack": 2,
        f"{RUN_PATH} > StartActivity:pack > RunActivity:pack": 2,
        f"{RUN_PATH} > StartActivity:ship": 1,
        f"{RUN_PATH} > StartActivity:ship > RunActivity:ship": 1,
        f"{RUN_PATH} > StartChildWorkflow:parcel": 1,
        f"{RUN_PATH} > StartChildWorkflow:parcel > RunWorkflow:parcel": 1,
        f"{RUN_PATH} > StartChildWorkflow:parcel > RunWorkflow:parcel > StartActivity:pack": 1,
        f"{RUN_PATH} > StartChildWorkflow:parcel > RunWorkflow:parcel > StartActivity:pack > RunActivity:pack": 1,
        f"{RUN_PATH} > StartChildWorkflow:parcel > RunWorkflow:parcel > CompleteWorkflow:parcel": 1,
        f"{RUN_PATH} > all is packed": 1,
        f"{RUN_PATH} > HandleSignal:close": 1,
        f"{RUN_PATH} > HandleQuery:is_open": 1,
        f"{RUN_PATH} > CompleteWorkflow:Shop": 1,
        "SignalWorkflow:close": 1,
        "QueryWorkflow:is_open": 1,
    }
)


@pytest.mark.parametrize("deterministic", [True, False])
def test_one_trace_spans_client_workflow_activities_and_child(target: str, deterministic: bool) -> None:
    """No span is emitted twice, although the run is executed a second time for verification."""
    recorder = SpanRecorder(deterministic=deterministic)
    queue = f"trace-{deterministic}"
    with (
        Client.connect(target, interceptors=[TracingInterceptor(recorder.tracer)]) as client,
        Worker(client, queue, workflows=WORKFLOWS, activities=ACTIVITIES, verify="always", watch="error"),
    ):
        token = context.attach(baggage.set_baggage("tenant", "acme"))
        try:
            handle = client.start_workflow(Shop.run, task_queue=queue)
        finally:
            context.detach(token)
        assert handle.query(Shop.is_open) is True
        handle.signal(Shop.close)
        assert handle.result(timeout=30) == ["tea acme", "milk acme", "salt", "rice acme"]
        history = handle.history()
    expected = EXPECTED.copy()
    if not deterministic:  # a verified run answers queries on a copy, which cannot know the id that was drawn
        expected["StartWorkflow:Shop > HandleQuery:is_open"] = expected.pop(
            f"{RUN_PATH} > HandleQuery:is_open"
        )
    assert recorder.paths() == expected
    shop = recorder.single("RunWorkflow:Shop")
    assert shop.attributes is not None
    assert shop.attributes["temporalWorkflowID"] == handle.id
    signal = recorder.single("HandleSignal:close")
    assert [each.context.span_id for each in signal.links] == [
        recorder.single("SignalWorkflow:close").get_span_context().span_id  # type: ignore[union-attr]
    ]
    replay_recorder = SpanRecorder(deterministic=deterministic)
    with Replayer(workflows=WORKFLOWS, interceptors=[TracingInterceptor(replay_recorder.tracer)]) as replayer:
        assert replayer.replay(history).ok
    assert not replay_recorder.spans


def test_spans_keep_their_parent_after_a_worker_replacement(target: str) -> None:
    recorder = SpanRecorder()
    with Client.connect(target, interceptors=[TracingInterceptor(recorder.tracer)]) as client:
        with Worker(client, "trace-move", workflows=WORKFLOWS, activities=ACTIVITIES):
            handle = client.start_workflow(Shop.run, task_queue="trace-move")
            assert handle.query(
                Shop.is_open
            )  # it has begun: a handler that runs before the body is beside its span
            assert handle.execute_update(Shop.sell, "tea")
            while "all is packed" not in recorder.names:
                assert handle.query(Shop.is_open)  # answered after the tasks before it
        with Worker(client, "trace-move", workflows=WORKFLOWS, activities=ACTIVITIES):
            assert handle.execute_update(Shop.sell, "salt")
            handle.signal(Shop.close)
            handle.result(timeout=30)
    assert recorder.names["RunWorkflow:Shop"] == 1
    assert recorder.paths()[f"{RUN_PATH} > HandleUpdate:sell"] == 2
    assert recorder.paths()[f"{RUN_PATH} > CompleteWorkflow:Shop"] == 1


def test_updates_and_failures_have_spans_with_link_and_status() -> None:
    recorder = SpanRecorder()
    with Environment(interceptors=[TracingInterceptor(recorder.tracer)]) as env:
        handle = env.start_workflow(Shop.run)
        assert handle.execute_update(Shop.sell, "tea") == "tea None"
        with pytest.raises(WorkflowFailedError):
            env.execute_workflow(fails_in_activity)
        env.client.with_start(Shop.run, id="x").signal(Shop.close)
        planned = env.client.with_start(Shop.run, id="y")
        assert planned.execute_update(Shop.sell, "tea") == "tea None"
    request_context = recorder.single("StartWorkflowUpdate:sell").get_span_context()
    update_spans = [each for each in recorder.spans if each.name == "HandleUpdate:sell"]
    assert request_context is not None
    assert [each.context.span_id for each in update_spans[0].links] == [request_context.span_id]
    assert recorder.names["ValidateUpdate:sell"] == 2
    assert recorder.names["SignalWithStartWorkflow:Shop"] == 1
    assert recorder.names["StartUpdateWithStartWorkflow:Shop"] == 1
    failed = recorder.single("CompleteWorkflow:fails_in_activity")
    assert failed.status.status_code is StatusCode.ERROR
    assert recorder.single("RunActivity:burn").status.status_code is StatusCode.ERROR


def test_continue_as_new_chain_is_one_trace_without_errors() -> None:
    recorder = SpanRecorder()
    with Environment(interceptors=[TracingInterceptor(recorder.tracer)]) as env:
        env.execute_workflow(continues_as_new, 2)
    assert len({each.context.trace_id for each in recorder.spans if each.context}) == 1
    assert (
        recorder.names["RunWorkflow:continues_as_new"]
        == recorder.names["CompleteWorkflow:continues_as_new"]
        == 3
    )
    assert not [each for each in recorder.spans if each.status.status_code is StatusCode.ERROR]


def test_async_client_emits_the_same_spans_below_the_current_span() -> None:
    recorder = SpanRecorder()

    async def call_client() -> None:
        async with (
            await AsyncClient.connect("local:", interceptors=[TracingInterceptor(recorder.tracer)]) as client,
            Worker(client, workflows=WORKFLOWS, activities=ACTIVITIES),
        ):
            with recorder.tracer.start_as_current_span("request"):
                handle = await client.start_workflow(Shop.run)
                await handle.execute_update(Shop.sell, "tea")
                await handle.query(Shop.is_open)
                await handle.signal(Shop.close)
            await handle.result()
            await client.with_start(Shop.run, id="x").execute_update(Shop.sell, "tea")

    asyncio.run(call_client())
    paths = recorder.paths()
    for name in ("StartWorkflow:Shop", "StartWorkflowUpdate:sell", "QueryWorkflow:is_open"):
        assert paths[f"request > {name}"] == 1
    assert recorder.names["StartUpdateWithStartWorkflow:Shop"] == 1


@pytest.mark.parametrize("value", [b"\x00", {"traceparent": 7}, "text", {"traceparent": "nonsense"}])
def test_unreadable_trace_header_starts_a_new_trace(value: Any) -> None:
    class HeaderCorruptor(Interceptor):
        def intercept_client(self, next: Any) -> Any:
            original = next.start_workflow

            def start_workflow(input: Any) -> Any:
                input.headers[HEADER] = default_converter.encode(value)
                return original(input)

            next.start_workflow = start_workflow
            return next

    recorder = SpanRecorder()
    with Environment(interceptors=[TracingInterceptor(recorder.tracer), HeaderCorruptor()]) as env:
        assert env.execute_workflow(parcel, "tea") == "tea None"
    assert recorder.single("RunWorkflow:parcel").parent is None


def test_completed_span_outside_a_traced_workflow_raises() -> None:
    with pytest.raises(NotInWorkflowError):
        completed_span("x")
    with (
        Environment() as env,
        pytest.raises(WorkflowParked, match="needs a worker with a TracingInterceptor"),
    ):
        env.execute_workflow(Shop.run)


def test_run_id_generator_draws_unique_ids_outside_workflows() -> None:
    ids = RunIdGenerator()
    assert (
        len({ids.generate_span_id() for _ in range(100)} | {ids.generate_trace_id() for _ in range(100)})
        == 200
    )


# --- durations ------------------------------------------------------------------------------------


@workflow.defn
class WaitingWorkflow:
    def __init__(self) -> None:
        self.messages: list[str] = []

    @workflow.run
    def run(self) -> list[str]:
        with workflow_span("waiting", attributes={"for": "two"}):
            pack("tea")
            workflow.wait_condition(lambda: len(self.messages) == 2)
        with workflow_span("nothing"):
            pass
        try:
            with workflow_span("fails"):
                workflow.sleep(0.01)
                raise ValueError("in vain")
        except ValueError:
            return self.messages

    @workflow.signal
    def tell(self, text: str) -> None:
        workflow.sleep(0.02)
        self.messages.append(text)

    @workflow.query
    def heard(self) -> list[str]:
        return self.messages

    @workflow.update
    def ask(self, text: str) -> str:
        self.messages.append(pack(text))
        return "asked"


class UniqueSpanRecorder(SpanRecorder):
    """Spans without duplicates by id: a workflow task that the server rejected emits its spans again, with the same
    ids.
    """

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        paths = {each.context.span_id: each for each in super().spans if each.context}
        return tuple(paths.values())


def duration_ns(span: ReadableSpan) -> int:
    assert span.start_time is not None
    assert span.end_time is not None
    return span.end_time - span.start_time


def test_workflow_spans_last_across_workers_and_are_emitted_once(target: str) -> None:
    recorder = UniqueSpanRecorder()
    tracing = TracingInterceptor(recorder.tracer, durations=True)
    with Client.connect(target, interceptors=[tracing]) as client:
        with Worker(client, workflows=[WaitingWorkflow], activities=[pack]):
            handle = client.start_workflow(WaitingWorkflow)
            handle.signal(WaitingWorkflow.tell, "one")
            while not handle.query(WaitingWorkflow.heard):
                pass  # until the signal's handler has slept
        # Another worker, which knows nothing of the spans that have begun.
        with Worker(
            client, workflows=[WaitingWorkflow], activities=[pack], max_cached_workflows=0, verify="always"
        ):
            assert handle.execute_update(WaitingWorkflow.ask, "two") == "asked"
            assert handle.result() == ["one", "two None"]
        history = handle.history()
    names = recorder.names
    for name in (
        "RunWorkflow:WaitingWorkflow",
        "waiting",
        "nothing",
        "fails",
        "HandleSignal:tell",
        "HandleUpdate:ask",
    ):
        assert names[name] == 1, names
    assert "CompleteWorkflow:WaitingWorkflow" not in names
    run, waiting = recorder.single("RunWorkflow:WaitingWorkflow"), recorder.single("waiting")
    assert duration_ns(run) >= duration_ns(waiting) + duration_ns(recorder.single("fails")) > 0
    assert duration_ns(recorder.single("fails")) >= 10_000_000
    assert duration_ns(recorder.single("HandleSignal:tell")) >= 20_000_000
    assert duration_ns(recorder.single("nothing")) == 0
    assert recorder.single("fails").status.status_code is StatusCode.ERROR
    assert (waiting.attributes or {})["for"] == "two"
    paths = recorder.paths()
    run_path = "StartWorkflow:WaitingWorkflow > RunWorkflow:WaitingWorkflow"
    assert paths[f"{run_path} > waiting > StartActivity:pack > RunActivity:pack"] == 1
    assert paths[f"{run_path} > HandleUpdate:ask > StartActivity:pack > RunActivity:pack"] == 1
    assert paths[f"{run_path} > HandleSignal:tell"] == 1
    with Replayer(workflows=[WaitingWorkflow], interceptors=[tracing]) as replayer:
        replayer.replay(history)
    assert recorder.names == names


def test_span_durations_require_the_run_id_generator() -> None:
    """Otherwise the id of a span would be unknown before it ends."""
    with pytest.raises(UsageError, match="RunIdGenerator"):
        TracingInterceptor(SpanRecorder(deterministic=False).tracer, durations=True)
    with pytest.raises(NotInWorkflowError), workflow_span("nowhere"):
        pass
