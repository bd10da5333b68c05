"""Serialization context: the workflow or activity that a converter or codec receives, on both sides, on each engine."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest

from hourglass import RetryPolicy, activity, workflow
from hourglass.client import Client, Schedule, ScheduleActionStartWorkflow, ScheduleSpec
from hourglass.converter import (
    ActivitySerializationContext,
    CompositeConverter,
    Converter,
    EncodingConverter,
    ExternalStorage,
    FolderStorage,
    JSONTypeConverter,
    NexusSerializationContext,
    Payload,
    SerializationContext,
    WithSerializationContext,
    WorkflowSerializationContext,
)
from hourglass.errors import ActivityError, ApplicationError, ChildWorkflowError, DecodeError, UsageError
from hourglass.interceptors import Interceptor
from hourglass.replay import Replayer
from hourglass.testing import DevServer
from hourglass.worker import Worker

TIMEOUT = 60


def key_of(context: SerializationContext | None) -> str:
    """Return the key of a context: workflows have one each, which their activities share."""
    match context:
        case WorkflowSerializationContext():
            assert context.namespace == "default"
            return context.workflow_id
        case ActivitySerializationContext():
            assert context.namespace == "default"
            return context.workflow_id or context.activity_id or ""
        case NexusSerializationContext():
            return f"{context.service}.{context.operation}"
        case _:
            return ""


def add_key(payload: Payload, key: str, name: str) -> Payload:
    return Payload(payload.data, payload.encoding, {**(payload.metadata or {}), name: key.encode()})


def remove_key(payload: Payload, key: str, name: str) -> Payload:
    metadata = dict(payload.metadata or {})
    if metadata.pop(name, b"").decode() != key:
        raise ValueError("another key")
    return Payload(payload.data, payload.encoding, metadata or None)


@dataclass(frozen=True)
class KeyedCodec:
    """Adds the key of the context to each payload, and decodes only payloads with this key."""

    context: SerializationContext | None = None

    def with_context(self, context: SerializationContext) -> KeyedCodec:
        return KeyedCodec(context)

    def encode(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        return [add_key(payload, key_of(self.context), "codec") for payload in payloads]

    def decode(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        return [remove_key(payload, key_of(self.context), "codec") for payload in payloads]


class KeyedConverter(Converter):
    """A converter that does the same as `KeyedCodec`."""

    def __init__(self, context: SerializationContext | None = None) -> None:
        self.context = context

    def with_context(self, context: SerializationContext) -> KeyedConverter:
        return KeyedConverter(context)

    def encode(self, value: Any) -> Payload:
        return add_key(super().encode(value), key_of(self.context), "converter")

    def decode(self, payload: Payload, type: Any = Any) -> Any:
        try:
            return super().decode(remove_key(payload, key_of(self.context), "converter"), type)
        except ValueError:
            raise DecodeError("this value is locked with another key") from None


# --- workflows and activities ---------------------------------------------------------------------


@activity.defn(retry_policy=RetryPolicy(initial_interval=0.01, maximum_attempts=2), heartbeat_timeout=TIMEOUT)
def heartbeats(text: str) -> str:
    if activity.info().attempt == 1:
        activity.heartbeat(text)
        raise ApplicationError("once more", text)
    return f"{text} {activity.heartbeat_details(str)}"


@activity.defn(retry_policy=RetryPolicy(maximum_attempts=1))
def fails(text: str) -> None:
    raise ApplicationError("broken", text)


@activity.defn
def upper(text: str) -> str:
    return text.upper()


@workflow.defn
def child(text: str) -> str:
    if text == "fails":
        raise ApplicationError("the child failed", text)
    return f"child of {text}"


@workflow.defn
class ValuesInAndOut:
    """Receives and sends values in every way."""

    def __init__(self) -> None:
        self.received = ""

    @workflow.run
    def run(self, text: str, other: str) -> list[Any]:
        results: list[Any] = [heartbeats(text), upper.local(text), workflow.step(str.title, text)]
        results.append(
            workflow.execute_activity("upper", text, result_type=str, start_to_close_timeout=TIMEOUT)
        )
        try:
            fails(text)
        except ActivityError as error:
            results.append(getattr(error.cause, "details", None))
        results.append(workflow.execute_child_workflow(child, text))
        results.append(workflow.execute_child_workflow("child", text, result_type=str, id=f"{other}-child"))
        try:
            workflow.execute_child_workflow(child, "fails")
        except ChildWorkflowError as error:
            results.append(getattr(error.cause, "details", None))
        if text != "again":
            workflow.get_external_workflow_handle(other).signal("receive", text)
        workflow.upsert_memo({"said": text})
        results.append(workflow.memo()["first"])
        workflow.wait_condition(lambda: self.received == "told")
        if text != "again":
            workflow.continue_as_new("again", other)
        return results

    @workflow.signal
    def receive(self, text: str) -> None:
        self.received = text

    @workflow.query
    def ask(self, text: str) -> str:
        return f"{text}?"

    @workflow.update
    def set_text(self, text: str) -> str:
        self.received = text
        return f"received {text}"


@workflow.defn
class ReceivesSignal:
    def __init__(self) -> None:
        self.received = ""

    @workflow.run
    def run(self) -> str:
        workflow.wait_condition(lambda: self.received)
        return self.received

    @workflow.signal
    def receive(self, text: str) -> None:
        self.received = text


EXPECTED = [
    "again again",
    "AGAIN",
    "Again",
    "AGAIN",
    ["again"],
    "child of again",
    "child of again",
    ["fails"],
    "memo",
]
PARTS: dict[str, dict[str, Any]] = {
    "codec": {"codec": KeyedCodec()},
    "converter": {"converter": KeyedConverter()},
    "both, intercepted": {
        "codec": KeyedCodec(),
        "converter": KeyedConverter(),
        "interceptors": [Interceptor()],
    },
}


@contextmanager
def client_of(target: str, parts: dict[str, Any]) -> Iterator[tuple[Client, str]]:
    queue = f"context-{uuid4().hex[:8]}"
    with (
        Client.connect(target, **parts) as client,
        Worker(
            client,
            queue,
            workflows=[ValuesInAndOut, ReceivesSignal, child],
            activities=[heartbeats, fails, upper, complete_later],
            verify="always",
        ),
    ):
        yield client, queue


@activity.defn(heartbeat_timeout=None)
def complete_later(text: str) -> str:
    completion_infos.append(activity.info())
    started.set()
    activity.complete_async()


completion_infos: list[activity.Info] = []
started = threading.Event()


def check_all_values(target: str, parts: dict[str, Any]) -> None:
    with client_of(target, parts) as (client, queue):
        other = client.start_workflow(ReceivesSignal, id=f"{queue}-other", task_queue=queue)
        run = client.start_workflow(
            ValuesInAndOut,
            "hello",
            other.id,
            id=queue,
            task_queue=queue,
            memo={"first": "memo"},
            static_summary="s",
        )
        assert run.query(ValuesInAndOut.ask, "well") == "well?"
        assert run.execute_update(ValuesInAndOut.set_text, "told") == "received told"
        latest = client.get_workflow_handle(queue)
        while latest.describe().run_id == run.run_id:
            pass
        latest.signal(ValuesInAndOut.receive, "told")
        assert latest.result(timeout=TIMEOUT) == run.result(timeout=TIMEOUT) == EXPECTED
        assert other.result(timeout=TIMEOUT) == "hello"
        assert dict(latest.describe().memo) == {"first": "memo", "said": "again"}
        assert (
            client.execute_activity(upper, "alone", task_queue=queue, start_to_close_timeout=TIMEOUT)
            == "ALONE"
        )
        assert (
            client.with_start(ReceivesSignal, id=f"{queue}-third", task_queue=queue)
            .signal(ReceivesSignal.receive, "x")
            .result()
            == "x"
        )
        histories = [latest.history(), other.history()]
        with Replayer(workflows=[ValuesInAndOut, ReceivesSignal, child], **parts) as replayer:
            for history in histories:
                replayer.replay(history)


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
def test_every_value_is_converted_with_its_serialization_context(parts: dict[str, Any]) -> None:
    check_all_values("local:", parts)


@pytest.mark.server
def test_every_value_is_converted_with_its_serialization_context_on_a_server(quick_server: DevServer) -> None:
    check_all_values(quick_server.target, PARTS["both, intercepted"])


def test_asynchronous_completion_uses_the_serialization_context_of_the_caller() -> None:
    """An engine that knows only a task token cannot derive the context."""
    completion_infos.clear()
    started.clear()
    with client_of("local:", PARTS["converter"]) as (client, queue):
        run = client.start_activity(
            complete_later, "x", id="a-1", task_queue=queue, start_to_close_timeout=TIMEOUT
        )
        assert started.wait(TIMEOUT)
        context = ActivitySerializationContext("default", "a-1")
        handle = client.get_activity_handle(token=completion_infos[0].task_token).with_context(context)
        handle.complete("done")
        assert run.result() == "done"
        with pytest.raises(UsageError, match="context must be a SerializationContext"):
            handle.with_context("a-1")  # type: ignore[arg-type]


def test_schedule_arguments_use_the_context_of_the_id_without_its_time() -> None:
    with client_of("local:", PARTS["converter"]) as (client, queue):
        action = ScheduleActionStartWorkflow(child, "x", id="of-schedule", task_queue=queue)
        handle = client.create_schedule(
            f"s-{queue}", Schedule(action=action, spec=ScheduleSpec()), trigger_immediately=False
        )
        assert list(handle.describe().schedule.action.args) == ["x"]
        handle.delete()


class KeyedText(EncodingConverter):
    """An encoding that adds the key of its context to the data."""

    encoding = "text/keyed"  # type: ignore[assignment]

    def __init__(self, key: str = "") -> None:
        self.key = key

    def with_context(self, context: SerializationContext) -> KeyedText:
        return KeyedText(key_of(context))

    def encode(self, value: Any) -> Payload | None:
        return Payload(f"{self.key}:{value}".encode(), "text/keyed") if isinstance(value, str) else None

    def decode(self, payload: Payload, type: Any) -> Any:
        key, _, text = payload.data.decode().partition(":")
        assert key == self.key
        return text


class KeyedComplex(JSONTypeConverter):
    def __init__(self, key: str = "") -> None:
        self.key = key

    def with_context(self, context: SerializationContext) -> KeyedComplex:
        return KeyedComplex(key_of(context))

    def to_json(self, value: Any) -> Any:
        return [self.key] if isinstance(value, complex) else self.Unhandled


def test_composite_converter_passes_the_context_to_its_parts(tmp_path: Any) -> None:
    context = WorkflowSerializationContext("default", "w-1")
    composed = CompositeConverter(KeyedText(), json_types=[KeyedComplex()], rest=KeyedConverter())
    known = composed.with_context(context)
    assert known.encode("x").data == b"w-1:x"
    assert known.encode(1j).data == b'["w-1"]'
    assert known.encode(5).metadata == {"converter": b"w-1"}
    assert composed.wants_context
    assert not CompositeConverter().wants_context
    assert isinstance(KeyedCodec(), WithSerializationContext)
    stored = ExternalStorage([FolderStorage(tmp_path)], codec=KeyedCodec())
    assert stored.wants_context
    assert stored.with_context(context).codec == KeyedCodec(context)
    assert not ExternalStorage([FolderStorage(tmp_path)]).wants_context


class ReturnsNoContext(Converter):
    def with_context(self, context: SerializationContext) -> Any:
        return None


def test_with_context_that_returns_none_is_rejected() -> None:
    with (
        Client.connect("local:", converter=ReturnsNoContext()) as client,
        pytest.raises(UsageError, match="returned None"),
    ):
        client.start_workflow("x")
