"""Progress items published by activities, on each engine: order, retries, positions, codec and errors."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hourglass import AsyncClient, Client, RetryPolicy, Worker, activity, workflow
from hourglass._evaluator.specs import Payloads
from hourglass._temporal.handle import CoreHandle
from hourglass._worker.activities.publishing import _Publishing
from hourglass.converter import Payload
from hourglass.errors import ActivityError, UsageError, WorkflowFailedError, WorkflowParked
from hourglass.progress import Origin, Progress
from hourglass.testing import ActivityEnvironment, DevServer, Environment

pytestmark = pytest.mark.server

LIMIT = 60.0

words = Progress("words", str)
others = Progress("others", int)

seen = threading.Event()
heard = threading.Event()
"""On a server a follower has two seconds for the last items of an attempt that fails, which may be too few on a busy
machine: there the attempts of these tests fail once the follower has them. On our own engine they never wait.
"""


@activity.defn
def speak(text: str) -> int:
    for word in text.split():
        words.publish(word)
    return len(text.split())


@activity.defn
async def speak_async(text: str) -> int:
    for word in text.split():
        activity.publish("words", word)
        await asyncio.sleep(0)
    return len(text.split())


@activity.defn(executor="process")
def speak_apart(text: str) -> int:
    for word in text.split():
        words.publish(word)
    return len(text.split())


@activity.defn(retry_policy=RetryPolicy(initial_interval=0.01, maximum_attempts=2))
def stumble(text: str) -> str:
    attempt = activity.info().attempt
    for number, word in enumerate(text.split()):
        if attempt == 1 and number == 2:
            assert heard.wait(LIMIT)
            raise ValueError("stumbled")
        words.publish(f"{word}{attempt}")
    return text


@activity.defn
def wait_for_reader() -> str:
    words.publish("now")
    assert seen.wait(LIMIT)
    return "read"


@activity.defn
def beat(cursor: int) -> list[int]:
    activity.heartbeat(cursor)
    words.publish("between")
    activity.heartbeat(cursor + 1)
    if activity.info().attempt == 1:
        assert heard.wait(LIMIT)
        raise ValueError("again")
    return list(activity.info().heartbeat_details)


@activity.defn(retry_policy=RetryPolicy(maximum_attempts=1))
def fail(text: str) -> None:
    words.publish(text)
    assert heard.wait(LIMIT)
    raise ValueError("broken")


@workflow.defn
def tell(kinds: list[str]) -> int:
    total = 0
    for kind in kinds:
        words.publish(f"<{kind}>")
        function = {"thread": speak, "loop": speak_async, "process": speak_apart}[kind]
        total += function(f"{kind} says a b c")
        words.publish(f"</{kind}>")
    return total


@workflow.defn
def try_again() -> str:
    return stumble("one two three four")


@workflow.defn
def live() -> str:
    return wait_for_reader()


@workflow.defn
def beats() -> list[int]:
    return beat(5)


@workflow.defn
def fails() -> str:
    try:
        fail("last words")
    except ActivityError:
        words.publish("it failed")
    return "done"


@workflow.defn
def local() -> int:
    return speak.local("x")


@workflow.defn
def both(texts: list[str]) -> list[int]:
    return workflow.map(speak, texts)


WORKFLOWS = [tell, try_again, live, beats, fails, both]
ACTIVITIES = [speak, speak_async, speak_apart, stumble, wait_for_reader, beat, fail]


@pytest.fixture(params=["memory", "file", "server"])
def client(request: pytest.FixtureRequest, quick_server: DevServer, tmp_path: Path) -> Iterator[Client]:
    targets = {"memory": "local:", "file": f"local:{tmp_path / 'p.db'}", "server": quick_server.target}
    if request.param == "server":
        heard.clear()
    else:
        heard.set()
    with Client.connect(targets[request.param]) as client:
        yield client


def hear(stream: Iterator[str], last: str) -> Iterator[str]:
    """Yield the stream's items. After `last`, set `items_read`, so that the attempt may fail."""
    for word in stream:
        if word == last:
            heard.set()
        yield word


@pytest.fixture
def queue(client: Client) -> Iterator[str]:
    name = f"published-{uuid.uuid4().hex[:8]}"
    with Worker(client, name, workflows=WORKFLOWS, activities=ACTIVITIES, verify="always"):
        yield name


def test_items_of_workflow_and_activities_are_one_stream(client: Client, queue: str) -> None:
    """The activities run in threads, on the event loop and in processes. Publishing adds no history events."""
    kinds = ["thread", "loop", "process", "thread"]
    handle = client.start_workflow(tell, kinds, task_queue=queue)
    stream = words.follow(handle, timeout=LIMIT)
    assert list(stream) == [
        word for kind in kinds for word in (f"<{kind}>", *f"{kind} says a b c".split(), f"</{kind}>")
    ]
    assert stream.missed == 0
    assert handle.result() == 20
    assert {event["eventType"].removeprefix("EVENT_TYPE_") for event in handle.history().events} == {
        "WORKFLOW_EXECUTION_STARTED",
        "WORKFLOW_TASK_SCHEDULED",
        "WORKFLOW_TASK_STARTED",
        "WORKFLOW_TASK_COMPLETED",
        "ACTIVITY_TASK_SCHEDULED",
        "ACTIVITY_TASK_STARTED",
        "ACTIVITY_TASK_COMPLETED",
        "WORKFLOW_EXECUTION_COMPLETED",
    }


def test_item_arrives_while_the_activity_runs(client: Client, queue: str) -> None:
    seen.clear()
    handle = client.start_workflow(live, task_queue=queue)
    assert words.latest(handle) in (None, "now")
    stream = words.follow(handle, timeout=LIMIT)
    assert next(stream) == "now"
    assert words.latest(handle) == "now"
    assert stream.origin == Origin("1", "wait_for_reader", 1, 0)
    seen.set()
    assert handle.result() == "read"
    assert list(stream) == []


def test_retry_publishes_from_its_first_item(client: Client, queue: str) -> None:
    handle = client.start_workflow(try_again, task_queue=queue)
    stream = words.follow(handle, timeout=LIMIT)
    found = []
    for word in hear(stream, "two1"):
        assert stream.origin is not None
        found.append((word, stream.origin.attempt, stream.origin.number))
    assert found[:2] == [("one1", 1, 0), ("two1", 1, 1)]
    assert found[2:] == [("one2", 2, 0), ("two2", 2, 1), ("three2", 2, 2), ("four2", 2, 3)]


def test_reader_resumes_at_its_position(client: Client, queue: str) -> None:
    seen.clear()
    handle = client.start_workflow(live, task_queue=queue)
    stream = words.follow(handle, timeout=LIMIT)
    assert next(stream) == "now"
    position = stream.position
    seen.set()
    handle.result()
    assert list(words.follow(client.get_workflow_handle(handle.id), after=position, timeout=LIMIT)) == []


def test_published_items_do_not_change_heartbeat_details(client: Client, queue: str) -> None:
    handle = client.start_workflow(beats, task_queue=queue)
    assert list(hear(words.follow(handle, timeout=LIMIT), "between")) == ["between", "between"]
    assert handle.result() == [6]


@pytest.mark.parametrize("codec", [None, "upside"])
def test_late_heartbeat_loses_no_item(
    codec: str | None, quick_server: DevServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server stores items and heartbeat details in one place, but receives them in two ways. A delayed heartbeat
    overwrites the item, which is then sent again while the activity runs.
    """
    taken = threading.Event()
    late: list[Callable[[], None]] = []
    held_back = iter([True])

    def heartbeat(handle: CoreHandle, token: bytes, details: Payloads) -> None:
        if next(held_back, False):
            late.append(lambda: send(handle, token, details))
        else:
            send(handle, token, details)

    def is_taken(publishing: _Publishing, *what: Any) -> None:
        is_in(publishing, *what)
        while late:
            late.pop()()
        taken.set()

    send, is_in = CoreHandle.heartbeat, _Publishing.apply
    monkeypatch.setattr(CoreHandle, "heartbeat", heartbeat)
    monkeypatch.setattr(_Publishing, "apply", is_taken)
    heard.clear()
    queue = f"published-{uuid.uuid4().hex[:8]}"
    with (
        Client.connect(quick_server.target, codec=Upside() if codec else None) as client,  # type: ignore[arg-type]
        Worker(client, queue, workflows=WORKFLOWS, activities=ACTIVITIES),
    ):
        handle = client.start_workflow(beats, task_queue=queue)
        assert taken.wait(LIMIT)
        assert list(hear(words.follow(handle, timeout=LIMIT), "between")) == ["between", "between"]
        assert handle.result() == [6]


def test_last_items_of_a_failed_attempt(client: Client, queue: str) -> None:
    handle = client.start_workflow(fails, task_queue=queue)
    assert list(hear(words.follow(handle, timeout=LIMIT), "last words")) == ["last words", "it failed"]


def test_follower_receives_one_name(client: Client, queue: str) -> None:
    handle = client.start_workflow(tell, ["thread"], task_queue=queue)
    assert list(others.follow(handle, timeout=LIMIT)) == []
    handle.result()
    assert list(words.follow(handle, last=0, timeout=LIMIT)) == []


def test_concurrent_activities_keep_their_order(client: Client, queue: str) -> None:
    texts = [" ".join(f"{name}{number}" for number in range(50)) for name in "abc"]
    handle = client.start_workflow(both, texts, task_queue=queue)
    found = list(words.follow(handle, timeout=LIMIT))
    for text, name in zip(texts, "abc", strict=True):
        assert [word for word in found if word.startswith(name)] == text.split()


class Upside:
    def encode(self, payloads: list[Payload]) -> list[Payload]:
        return [Payload(repr_of(each)[::-1], "binary/upside") for each in payloads]

    def decode(self, payloads: list[Payload]) -> list[Payload]:
        return [read(each.data[::-1]) for each in payloads]


def repr_of(payload: Payload) -> bytes:
    import msgspec

    return msgspec.msgpack.encode(payload)


def read(data: bytes) -> Payload:
    import msgspec

    return msgspec.msgpack.decode(data, type=Payload)


def test_published_items_are_encoded_by_the_codec(quick_server: DevServer) -> None:
    queue = f"published-{uuid.uuid4().hex[:8]}"
    with (
        Client.connect(quick_server.target, codec=Upside()) as client,  # type: ignore[arg-type]
        Worker(client, queue, workflows=[tell], activities=[speak]),
    ):
        handle = client.start_workflow(tell, ["thread"], task_queue=queue)
        found = list(words.follow(handle, timeout=LIMIT))
    assert found == ["<thread>", *["thread", "says", "a", "b", "c"], "</thread>"]
    with Client.connect(quick_server.target) as plain:
        assert "says" not in str(plain.get_workflow_handle(handle.id).history().events)


READER = """
import sys
from hourglass import Client
from tests.progress.test_activities import words

with Client.connect(sys.argv[1]) as client:
    for word in words.follow(client.get_workflow_handle(sys.argv[2]), timeout=60):
        print(word, flush=True)
"""


def test_reader_in_another_process(tmp_path: Path) -> None:
    target = f"local:{tmp_path / 'p.db'}"
    seen.clear()
    with Client.connect(target) as client, Worker(client, "q", workflows=[live], activities=ACTIVITIES):
        handle = client.start_workflow(live, task_queue="q")
        with subprocess.Popen(
            [sys.executable, "-c", READER, target, handle.id], stdout=subprocess.PIPE, text=True
        ) as reader:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "now\n"
            seen.set()
            assert reader.stdout.read() == ""
            assert reader.wait() == 0


def test_async_reader_of_activity_items(tmp_path: Path) -> None:
    async def main() -> list[str]:
        async with (
            await AsyncClient.connect(f"local:{tmp_path / 'p.db'}") as client,
            Worker(client, "q", workflows=[tell], activities=ACTIVITIES),
        ):
            handle = await client.start_workflow(tell, ["thread"], task_queue="q")
            return [word async for word in words.follow(handle)]

    assert asyncio.run(main())[1:-1] == ["thread", "says", "a", "b", "c"]


# --- on virtual time ----------------------------------------------------------------------------------


def test_activity_items_on_virtual_time() -> None:
    with Environment() as env:
        handle = env.start_workflow(tell, ["thread", "loop"])
        assert [word for word in words.follow(handle) if word.startswith("<")] == [
            "<thread>",
            "</thread>",
            "<loop>",
            "</loop>",
        ]
        env.fake(speak, lambda text: words.publish("fake") or 1)
        handle = env.start_workflow(tell, ["thread"])
        assert list(words.follow(handle)) == ["<thread>", "fake", "</thread>"]
        assert words.latest(handle) == "</thread>"


def test_retry_after_worker_crash_publishes_again() -> None:
    with Environment() as env:
        handle = env.start_workflow(both, ["a b", "c d"])
        env.crash()
        assert handle.result() == [2, 2]
        assert sorted(words.follow(handle)) == sorted(["a", "b", "c", "d"])


def test_local_activity_cannot_publish() -> None:
    with Environment() as env, pytest.raises((WorkflowFailedError, WorkflowParked)) as caught:
        env.execute_workflow(local)
    assert "local activity" in _chain(caught.value)


def _chain(error: BaseException | None) -> str:
    told = []
    while error is not None:
        told.append(str(error))
        error = error.__cause__ or getattr(error, "cause", None)
    return " ".join(told)


def test_too_large_item_is_rejected() -> None:
    env = ActivityEnvironment()
    with pytest.raises(UsageError, match="65,536"):
        env.run(speak, "x" * 70_000)
    with pytest.raises(UsageError, match="takes a Progress or its name"):
        env.run(lambda: activity.publish(7, "x"))  # type: ignore[arg-type]
    assert env.run(speak, "a b") == 2
    assert env.published == [("words", "a"), ("words", "b")]


def test_publish_outside_a_run_is_rejected() -> None:
    with pytest.raises(UsageError):
        activity.publish("words", "x")
