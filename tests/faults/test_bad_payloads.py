"""Payloads that cannot be decoded, sent to everything that decodes payloads, on both engines."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from tests.waiting import until

from hourglass import RetryPolicy, activity, workflow
from hourglass.client import Client
from hourglass.converter import Payload
from hourglass.errors import (
    ActivityError,
    DecodeError,
    PayloadError,
    QueryFailedError,
    WorkflowFailedError,
)
from hourglass.worker import Worker

from .histories import kinds, task_failures

SECRET = "sesame"

BAD: dict[str, tuple[Payload, str]] = {
    "no JSON": (Payload(b'{"sesame": '), "not valid JSON"),
    "empty": (Payload(b""), "empty, expected JSON"),
    "wrong shape": (Payload(b'"sesame"'), "expected"),
    "unknown encoding": (Payload(b"sesame", "xml/fancy"), "xml/fancy"),
    "no encoding": (Payload(b"sesame", ""), "no encoding"),
    "bytes for a number": (Payload(b"sesame", "binary/plain"), "expected"),
    "null with data": (Payload(b"sesame", "binary/null"), "must not contain data"),
    "too deep": (Payload(b"[" * 100_000 + b"]" * 100_000), "nested too deeply|expected"),
    "too many digits": (Payload(b"9" * 5_000), "digits|expected"),
    "not UTF-8": (Payload(b'"\xff\xfe"'), "UTF-8|expected"),
}
bad_payloads = pytest.mark.parametrize(("payload", "words"), BAD.values(), ids=list(BAD))


@activity.defn(retry_policy=RetryPolicy(initial_interval=0.01))
def wants_number(number: int) -> int:
    return number


@activity.defn(name="returns_bad")
def returns_bad(name: str) -> Any:
    return BAD[name][0]


@workflow.defn
def takes_number(number: int) -> int:
    return number


@workflow.defn
def listens() -> list[int]:
    seen: list[int] = []

    @workflow.signal
    def put(number: int) -> None:
        seen.append(number)

    @workflow.query
    def plus(number: int) -> int:
        return number + len(seen)

    workflow.wait_condition(lambda: -1 in seen)
    return seen


@workflow.defn
def receives() -> int:
    return workflow.Channel("number", int).receive()


@workflow.defn
def sends_on(name: str) -> str:
    try:
        workflow.execute_activity(
            "wants_number", BAD[name][0], retry_policy=RetryPolicy(initial_interval=0.01)
        )
    except ActivityError as error:
        return f"{getattr(error.cause, 'type', '')}: {error.cause}"
    return "accepted"


@workflow.defn
def gets_back(name: str) -> str:
    try:
        return str(workflow.execute_activity("returns_bad", name, result_type=int))
    except PayloadError as error:
        return f"{type(error).__name__}: {error}"


@workflow.defn
def returns_raw(name: str) -> Any:
    return BAD[name][0]


@pytest.fixture
def queue(client: Client) -> Iterator[str]:
    """A queue with a worker."""
    name = f"faults-{uuid.uuid4().hex[:8]}"
    flows = [takes_number, listens, receives, sends_on, gets_back, returns_raw]
    with Worker(client, name, workflows=flows, activities=[wants_number, returns_bad], verify="always"):
        yield name


@bad_payloads
def test_undecodable_workflow_argument_parks_the_run(
    client: Client, queue: str, payload: Payload, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    handle = client.start_workflow("takes_number", payload, task_queue=queue, task_timeout=1)
    (message, *_) = until(lambda: task_failures(handle))
    assert "argument 'number' of workflow takes_number" in message
    assert any(word in message for word in words.split("|"))
    assert SECRET not in message
    assert client.execute_workflow(takes_number, 1, task_queue=queue) == 1
    handle.terminate("hopeless")
    assert SECRET not in caplog.text


@pytest.mark.parametrize("name", ["no JSON", "unknown encoding", "no encoding", "too deep", "not UTF-8"])
def test_undecodable_signal_is_dropped(
    client: Client, queue: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    handle = client.start_workflow(listens, task_queue=queue)
    handle.signal("put", BAD[name][0])
    handle.signal("put")
    handle.signal("put", 1, 2)
    handle.signal("put", 7)
    handle.signal("put", -1)
    assert handle.result(timeout=20) == [7, -1]
    assert "signal 'put' was dropped: argument 'number' of signal put" in caplog.text
    assert "takes 1 argument (number), got 0" in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.parametrize("name", ["no JSON", "unknown encoding", "no encoding", "too deep", "not UTF-8"])
def test_undecodable_channel_message_is_dropped(
    client: Client, queue: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    handle = client.start_workflow(receives, task_queue=queue)
    handle.signal("number", BAD[name][0])
    handle.signal("number", 7)
    assert handle.result(timeout=20) == 7
    assert "a message to channel 'number' was dropped" in caplog.text
    assert SECRET not in caplog.text


@bad_payloads
def test_undecodable_query_is_rejected(client: Client, queue: str, payload: Payload, words: str) -> None:
    handle = client.start_workflow(listens, task_queue=queue)
    with pytest.raises(QueryFailedError, match="argument 'number' of query plus"):
        handle.query("plus", payload)
    with pytest.raises(QueryFailedError, match=r"takes 1 argument \(number\), got 0"):
        handle.query("plus")
    assert handle.query("plus", 1) == 1
    handle.signal("put", -1)
    assert handle.result(timeout=20) == [-1]


@pytest.mark.parametrize("name", list(BAD))
def test_undecodable_activity_argument_fails_without_retry(client: Client, queue: str, name: str) -> None:
    outcome = client.execute_workflow(sends_on, name, task_queue=queue)
    assert outcome.startswith("ArgumentError: argument 'number' of activity wants_number")
    assert SECRET not in outcome


@pytest.mark.parametrize("name", list(BAD))
def test_undecodable_activity_result_raises_in_the_workflow(client: Client, queue: str, name: str) -> None:
    outcome = client.execute_workflow(gets_back, name, task_queue=queue)
    assert outcome.startswith("DecodeError: ")
    assert SECRET not in outcome


@pytest.mark.parametrize("name", ["no JSON", "unknown encoding", "no encoding", "too deep", "not UTF-8"])
def test_undecodable_workflow_result_raises_at_the_client(client: Client, queue: str, name: str) -> None:
    handle = client.start_workflow("returns_raw", name, task_queue=queue, result_type=int)
    with pytest.raises(DecodeError):
        handle.result(timeout=20)
    assert kinds(handle)[-1] == "WORKFLOW_EXECUTION_COMPLETED"


@pytest.mark.parametrize("arguments", [(), (1, 2), ("one",), ({"a": 1},), (None,)])
def test_wrong_arguments_of_another_client_park_the_run(
    client: Client, queue: str, arguments: tuple[Any, ...]
) -> None:
    handle = client.start_workflow("takes_number", *arguments, task_queue=queue, task_timeout=1)
    (message, *_) = until(lambda: task_failures(handle))
    assert "workflow takes_number" in message
    assert "number" in message
    handle.terminate("hopeless")
    with pytest.raises(WorkflowFailedError):
        handle.result(timeout=20)
