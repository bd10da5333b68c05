"""Serialization context: converters and codecs that know whose values they have, on both sides, on each engine."""

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

LIMIT = 60


def key_of(context: SerializationContext | None) -> str:
    """Whose key a value is locked with: each workflow has one, which its activities share."""
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


def locked(payload: Payload, key: str, name: str) -> Payload:
    return Payload(payload.data, payload.encoding, {**(payload.metadata or {}), name: key.encode()})


def opened(payload: Payload, key: str, name: str) -> Payload:
    found = dict(payload.metadata or {})
    if found.pop(name, b"").decode() != key:
        raise ValueError("another key")
    return Payload(payload.data, payload.encoding, found or None)


@dataclass(frozen=True)
class KeyedCodec:
    """Locks each payload for whom it belongs to, and opens only that."""

    context: SerializationContext | None = None

    def with_context(self, context: SerializationContext) -> KeyedCodec:
        return KeyedCodec(context)

    def encode(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        return [locked(each, key_of(self.context), "codec") for each in payloads]

    def decode(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        return [opened(each, key_of(self.context), "codec") for each in payloads]


class KeyedConverter(Converter):
    """The same where values become payloads."""

    def __init__(self, context: SerializationContext | None = None) -> None:
        self.context = context

    def with_context(self, context: SerializationContext) -> KeyedConverter:
        return KeyedConverter(context)

    def encode(self, value: Any) -> Payload:
        return locked(super().encode(value), key_of(self.context), "converter")

    def decode(self, payload: Payload, type: Any = Any) -> Any:
        try:
            return super().decode(opened(payload, key_of(self.context), "converter"), type)
        except ValueError:
            raise DecodeError("this value is locked with another key") from None


# --- what values go through -----------------------------------------------------------------------


@activity.defn(retry_policy=RetryPolicy(initial_interval=0.01, maximum_attempts=2), heartbeat_timeout=LIMIT)
def beats(text: str) -> str:
    if activity.info().attempt == 1:
        activity.heartbeat(text)
        raise ApplicationError("once more", text)
    return f"{text} {activity.heartbeat_details(str)}"


@activity.defn(retry_policy=RetryPolicy(maximum_attempts=1))
def breaks(text: str) -> None:
    raise ApplicationError("broken", text)


@activity.defn
def quick(text: str) -> str:
    return text.upper()


@workflow.defn
def child(text: str) -> str:
    if text == "fails":
        raise ApplicationError("the child failed", text)
    return f"child of {text}"


@workflow.defn
class Everything:
    """Takes values every way in, and sends them every way out."""

    def __init__(self) -> None:
        self.heard = ""

    @workflow.run
    def run(self, text: str, other: str) -> list[Any]:
        results: list[Any] = [beats(text), quick.local(text), workflow.step(str.title, text)]
        results.append(
            workflow.execute_activity("quick", text, result_type=str, start_to_close_timeout=LIMIT)
        )
        try:
            breaks(text)
        except ActivityError as error:
            results.append(getattr(error.cause, "details", None))
        results.append(workflow.execute_child_workflow(child, text))
        results.append(workflow.execute_child_workflow("child", text, result_type=str, id=f"{other}-child"))
        try:
            workflow.execute_child_workflow(child, "fails")
        except ChildWorkflowError as error:
            results.append(getattr(error.cause, "details", None))
        if text != "again":
            workflow.get_external_workflow_handle(other).signal("hear", text)
        workflow.upsert_memo({"said": text})
        results.append(workflow.memo()["first"])
        workflow.wait_condition(lambda: self.heard == "told")
        if text != "again":
            workflow.continue_as_new("again", other)
        return results

    @workflow.signal
    def hear(self, text: str) -> None:
        self.heard = text

    @workflow.query
    def asks(self, text: str) -> str:
        return f"{text}?"

    @workflow.update
    def tell(self, text: str) -> str:
        self.heard = text
        return f"heard {text}"


@workflow.defn
class Listens:
    def __init__(self) -> None:
        self.heard = ""

    @workflow.run
    def run(self) -> str:
        workflow.wait_condition(lambda: self.heard)
        return self.heard

    @workflow.signal
    def hear(self, text: str) -> None:
        self.heard = text


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
            workflows=[Everything, Listens, child],
            activities=[beats, breaks, quick, later],
            verify="always",
        ),
    ):
        yield client, queue


@activity.defn(heartbeat_timeout=None)
def later(text: str) -> str:
    given.append(activity.info())
    came.set()
    activity.complete_async()


given: list[activity.Info] = []
came = threading.Event()


def all_ways(target: str, parts: dict[str, Any]) -> None:
    with client_of(target, parts) as (client, queue):
        other = client.start_workflow(Listens, id=f"{queue}-other", task_queue=queue)
        run = client.start_workflow(
            Everything,
            "hello",
            other.id,
            id=queue,
            task_queue=queue,
            memo={"first": "memo"},
            static_summary="s",
        )
        assert run.query(Everything.asks, "well") == "well?"
        assert run.execute_update(Everything.tell, "told") == "heard told"
        found = client.get_workflow_handle(queue)
        while found.describe().run_id == run.run_id:
            pass
        found.signal(Everything.hear, "told")
        assert found.result(timeout=LIMIT) == run.result(timeout=LIMIT) == EXPECTED
        assert other.result(timeout=LIMIT) == "hello"
        assert dict(found.describe().memo) == {"first": "memo", "said": "again"}
        assert (
            client.execute_activity(quick, "alone", task_queue=queue, start_to_close_timeout=LIMIT) == "ALONE"
        )
        assert (
            client.with_start(Listens, id=f"{queue}-third", task_queue=queue)
            .signal(Listens.hear, "x")
            .result()
            == "x"
        )
        histories = [found.history(), other.history()]
        with Replayer(workflows=[Everything, Listens, child], **parts) as replayer:
            for history in histories:
                replayer.replay(history)


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
def test_serialization_context_of_every_value(parts: dict[str, Any]) -> None:
    """Embedded engine: every value of a workflow or an activity is encoded and decoded with its context, on both sides."""
    all_ways("local:", parts)


@pytest.mark.server
def test_serialization_context_of_every_value_on_a_server(quick_server: DevServer) -> None:
    """The same on a Temporal server, with replays."""
    all_ways(quick_server.target, PARTS["both, intercepted"])


def test_serialization_context_of_an_asynchronous_completion() -> None:
    """If only a token is known, the caller sets the context."""
    given.clear()
    came.clear()
    with client_of("local:", PARTS["converter"]) as (client, queue):
        run = client.start_activity(later, "x", id="a-1", task_queue=queue, start_to_close_timeout=LIMIT)
        assert came.wait(LIMIT)
        context = ActivitySerializationContext("default", "a-1")
        handle = client.get_activity_handle(token=given[0].task_token).with_context(context)
        handle.complete("done")
        assert run.result() == "done"
        with pytest.raises(UsageError, match="context must be a SerializationContext"):
            handle.with_context("a-1")  # type: ignore[arg-type]


def test_scheduled_workflow_id_is_encoded_without_its_time() -> None:
    """What a schedule starts is encoded for the id as the schedule says it, and read so again."""
    with client_of("local:", PARTS["converter"]) as (client, queue):
        action = ScheduleActionStartWorkflow(child, "x", id="of-schedule", task_queue=queue)
        handle = client.create_schedule(
            f"s-{queue}", Schedule(action=action, spec=ScheduleSpec()), trigger_immediately=False
        )
        assert list(handle.describe().schedule.action.args) == ["x"]
        handle.delete()


class Text(EncodingConverter):
    """An encoding that writes its context into what it makes."""

    encoding = "text/keyed"  # type: ignore[assignment]

    def __init__(self, key: str = "") -> None:
        self.key = key

    def with_context(self, context: SerializationContext) -> Text:
        return Text(key_of(context))

    def encode(self, value: Any) -> Payload | None:
        return Payload(f"{self.key}:{value}".encode(), "text/keyed") if isinstance(value, str) else None

    def decode(self, payload: Payload, type: Any) -> Any:
        key, _, text = payload.data.decode().partition(":")
        assert key == self.key
        return text


class Kept(JSONTypeConverter):
    def __init__(self, key: str = "") -> None:
        self.key = key

    def with_context(self, context: SerializationContext) -> Kept:
        return Kept(key_of(context))

    def to_json(self, value: Any) -> Any:
        return [self.key] if isinstance(value, complex) else self.Unhandled


def test_composite_converter_passes_on_the_context(tmp_path: Any) -> None:
    """Parts of a composite converter, and the codec of a storage, receive it."""
    context = WorkflowSerializationContext("default", "w-1")
    composed = CompositeConverter(Text(), json_types=[Kept()], rest=KeyedConverter())
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


class Forgets(Converter):
    def with_context(self, context: SerializationContext) -> Any:
        return None


def test_with_context_must_not_return_none() -> None:
    """None raises an error at once."""
    with (
        Client.connect("local:", converter=Forgets()) as client,
        pytest.raises(UsageError, match="returned None"),
    ):
        client.start_workflow("x")
