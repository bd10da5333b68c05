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
other_progress = Progress("others", int)

may_finish = threading.Event()
items_read = threading.Event()
"""Lets failing attempts fail once their items were read. On a busy server the two seconds in which a follower can fetch the last
items of a failing attempt may be too short. On the embedded engine it is set from the start.
"""


@activity.defn
def publish_words(text: str) -> int:
    for word in text.split():
        words.publish(word)
    return len(text.split())


@activity.defn
async def publish_words_on_loop(text: str) -> int:
    for word in text.split():
        activity.publish("words", word)
        await asyncio.sleep(0)
    return len(text.split())


@activity.defn(executor="process")
def publish_words_in_process(text: str) -> int:
    for word in text.split():
        words.publish(word)
    return len(text.split())


@activity.defn(retry_policy=RetryPolicy(initial_interval=0.01, maximum_attempts=2))
def publish_and_fail_once(text: str) -> str:
    attempt = activity.info().attempt
    for number, word in enumerate(text.split()):
        if attempt == 1 and number == 2:
            assert items_read.wait(LIMIT)
            raise ValueError("stumbled")
        words.publish(f"{word}{attempt}")
    return text


@activity.defn
def publish_and_wait_for_reader() -> str:
    words.publish("now")
    assert may_finish.wait(LIMIT)
    return "read"


@activity.defn
def heartbeat_and_publish(cursor: int) -> list[int]:
    activity.heartbeat(cursor)
    words.publish("between")
    activity.heartbeat(cursor + 1)
    if activity.info().attempt == 1:
        assert items_read.wait(LIMIT)
        raise ValueError("again")
    return list(activity.info().heartbeat_details)


@activity.defn(retry_policy=RetryPolicy(maximum_attempts=1))
def publish_and_fail(text: str) -> None:
    words.publish(text)
    assert items_read.wait(LIMIT)
    raise ValueError("broken")


@workflow.defn
def publish_around_activities(kinds: list[str]) -> int:
    total = 0
    for kind in kinds:
        words.publish(f"<{kind}>")
        function = {
            "thread": publish_words,
            "loop": publish_words_on_loop,
            "process": publish_words_in_process,
        }[kind]
        total += function(f"{kind} says a b c")
        words.publish(f"</{kind}>")
    return total


@workflow.defn
def runs_failing_activity() -> str:
    return publish_and_fail_once("one two three four")


@workflow.defn
def runs_waiting_activity() -> str:
    return publish_and_wait_for_reader()


@workflow.defn
def runs_heartbeating_activity() -> list[int]:
    return heartbeat_and_publish(5)


@workflow.defn
def publishes_after_failed_activity() -> str:
    try:
        publish_and_fail("last words")
    except ActivityError:
        words.publish("it failed")
    return "done"


@workflow.defn
def runs_local_activity() -> int:
    return publish_words.local("x")


@workflow.defn
def runs_concurrent_activities(texts: list[str]) -> list[int]:
    return workflow.map(publish_words, texts)


WORKFLOWS = [
    publish_around_activities,
    runs_failing_activity,
    runs_waiting_activity,
    runs_heartbeating_activity,
    publishes_after_failed_activity,
    runs_concurrent_activities,
]
ACTIVITIES = [
    publish_words,
    publish_words_on_loop,
    publish_words_in_process,
    publish_and_fail_once,
    publish_and_wait_for_reader,
    heartbeat_and_publish,
    publish_and_fail,
]


@pytest.fixture(params=["memory", "file", "server"])
def client(request: pytest.FixtureRequest, quick_server: DevServer, tmp_path: Path) -> Iterator[Client]:
    targets = {"memory": "local:", "file": f"local:{tmp_path / 'p.db'}", "server": quick_server.target}
    if request.param == "server":
        items_read.clear()
    else:
        items_read.set()
    with Client.connect(targets[request.param]) as client:
        yield client


def signal_when_read(stream: Iterator[str], last: str) -> Iterator[str]:
    """Yield the stream's items. After `last`, set `items_read`, so that the attempt may fail."""
    for word in stream:
        if word == last:
            items_read.set()
        yield word


@pytest.fixture
def queue(client: Client) -> Iterator[str]:
    name = f"published-{uuid.uuid4().hex[:8]}"
    with Worker(client, name, workflows=WORKFLOWS, activities=ACTIVITIES, verify="always"):
        yield name


def test_progress_items_of_workflow_and_activities_form_one_ordered_stream(
    client: Client, queue: str
) -> None:
    """The activities run in threads, on the event loop and in processes. Publishing adds no history events."""
    kinds = ["thread", "loop", "process", "thread"]
    handle = client.start_workflow(publish_around_activities, kinds, task_queue=queue)
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


def test_progress_item_arrives_while_the_activity_runs(client: Client, queue: str) -> None:
    may_finish.clear()
    handle = client.start_workflow(runs_waiting_activity, task_queue=queue)
    assert words.latest(handle) in (None, "now")
    stream = words.follow(handle, timeout=LIMIT)
    assert next(stream) == "now"
    assert words.latest(handle) == "now"
    assert stream.origin == Origin("1", "publish_and_wait_for_reader", 1, 0)
    may_finish.set()
    assert handle.result() == "read"
    assert list(stream) == []


def test_retried_activity_publishes_again_from_its_first_item(client: Client, queue: str) -> None:
    handle = client.start_workflow(runs_failing_activity, task_queue=queue)
    stream = words.follow(handle, timeout=LIMIT)
    found = []
    for word in signal_when_read(stream, "two1"):
        assert stream.origin is not None
        found.append((word, stream.origin.attempt, stream.origin.number))
    assert found[:2] == [("one1", 1, 0), ("two1", 1, 1)]
    assert found[2:] == [("one2", 2, 0), ("two2", 2, 1), ("three2", 2, 2), ("four2", 2, 3)]


def test_progress_position_includes_items_of_activities(client: Client, queue: str) -> None:
    may_finish.clear()
    handle = client.start_workflow(runs_waiting_activity, task_queue=queue)
    stream = words.follow(handle, timeout=LIMIT)
    assert next(stream) == "now"
    position = stream.position
    may_finish.set()
    handle.result()
    assert list(words.follow(client.get_workflow_handle(handle.id), after=position, timeout=LIMIT)) == []


def test_publishing_progress_does_not_change_heartbeat_details(client: Client, queue: str) -> None:
    handle = client.start_workflow(runs_heartbeating_activity, task_queue=queue)
    assert list(signal_when_read(words.follow(handle, timeout=LIMIT), "between")) == ["between", "between"]
    assert handle.result() == [6]


@pytest.mark.parametrize("codec", [None, "upside"])
def test_late_heartbeat_does_not_lose_a_published_item(
    codec: str | None, quick_server: DevServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server stores items and heartbeat details in one place, but receives them in two ways. A delayed heartbeat
    overwrites the item, which is then sent again while the activity runs.
    """
    applied = threading.Event()
    delayed: list[Callable[[], None]] = []
    delay_next = iter([True])

    def heartbeat(handle: CoreHandle, token: bytes, details: Payloads) -> None:
        if next(delay_next, False):
            delayed.append(lambda: send_heartbeat(handle, token, details))
        else:
            send_heartbeat(handle, token, details)

    def record_apply(publishing: _Publishing, *what: Any) -> None:
        apply(publishing, *what)
        while delayed:
            delayed.pop()()
        applied.set()

    send_heartbeat, apply = CoreHandle.heartbeat, _Publishing.apply
    monkeypatch.setattr(CoreHandle, "heartbeat", heartbeat)
    monkeypatch.setattr(_Publishing, "apply", record_apply)
    items_read.clear()
    queue = f"published-{uuid.uuid4().hex[:8]}"
    with (
        Client.connect(quick_server.target, codec=ReversingCodec() if codec else None) as client,  # type: ignore[arg-type]
        Worker(client, queue, workflows=WORKFLOWS, activities=ACTIVITIES),
    ):
        handle = client.start_workflow(runs_heartbeating_activity, task_queue=queue)
        assert applied.wait(LIMIT)
        assert list(signal_when_read(words.follow(handle, timeout=LIMIT), "between")) == [
            "between",
            "between",
        ]
        assert handle.result() == [6]


def test_items_of_a_failed_attempt_precede_later_workflow_items(client: Client, queue: str) -> None:
    handle = client.start_workflow(publishes_after_failed_activity, task_queue=queue)
    assert list(signal_when_read(words.follow(handle, timeout=LIMIT), "last words")) == [
        "last words",
        "it failed",
    ]


def test_progress_follower_receives_only_items_of_its_name(client: Client, queue: str) -> None:
    handle = client.start_workflow(publish_around_activities, ["thread"], task_queue=queue)
    assert list(other_progress.follow(handle, timeout=LIMIT)) == []
    handle.result()
    assert list(words.follow(handle, last=0, timeout=LIMIT)) == []


def test_progress_items_of_concurrent_activities_keep_their_order(client: Client, queue: str) -> None:
    texts = [" ".join(f"{name}{number}" for number in range(50)) for name in "abc"]
    handle = client.start_workflow(runs_concurrent_activities, texts, task_queue=queue)
    found = list(words.follow(handle, timeout=LIMIT))
    for text, name in zip(texts, "abc", strict=True):
        assert [word for word in found if word.startswith(name)] == text.split()


class ReversingCodec:
    def encode(self, payloads: list[Payload]) -> list[Payload]:
        return [Payload(to_bytes(each)[::-1], "binary/upside") for each in payloads]

    def decode(self, payloads: list[Payload]) -> list[Payload]:
        return [from_bytes(each.data[::-1]) for each in payloads]


def to_bytes(payload: Payload) -> bytes:
    import msgspec

    return msgspec.msgpack.encode(payload)


def from_bytes(data: bytes) -> Payload:
    import msgspec

    return msgspec.msgpack.decode(data, type=Payload)


def test_progress_items_on_a_server_are_encoded_by_the_codec(quick_server: DevServer) -> None:
    queue = f"published-{uuid.uuid4().hex[:8]}"
    with (
        Client.connect(quick_server.target, codec=ReversingCodec()) as client,  # type: ignore[arg-type]
        Worker(client, queue, workflows=[publish_around_activities], activities=[publish_words]),
    ):
        handle = client.start_workflow(publish_around_activities, ["thread"], task_queue=queue)
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


def test_reader_process_receives_progress_from_the_owner_of_the_file(tmp_path: Path) -> None:
    target = f"local:{tmp_path / 'p.db'}"
    may_finish.clear()
    with (
        Client.connect(target) as client,
        Worker(client, "q", workflows=[runs_waiting_activity], activities=ACTIVITIES),
    ):
        handle = client.start_workflow(runs_waiting_activity, task_queue="q")
        with subprocess.Popen(
            [sys.executable, "-c", READER, target, handle.id], stdout=subprocess.PIPE, text=True
        ) as reader:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "now\n"
            may_finish.set()
            assert reader.stdout.read() == ""
            assert reader.wait() == 0


async def test_async_client_follows_progress_of_an_activity(tmp_path: Path) -> None:
    async with (
        await AsyncClient.connect(f"local:{tmp_path / 'p.db'}") as client,
        Worker(client, "q", workflows=[publish_around_activities], activities=ACTIVITIES),
    ):
        handle = await client.start_workflow(publish_around_activities, ["thread"], task_queue="q")
        result = [word async for word in words.follow(handle)]
    assert result[1:-1] == ["thread", "says", "a", "b", "c"]


# --- on virtual time ----------------------------------------------------------------------------------


def test_activities_and_fakes_publish_progress_on_virtual_time() -> None:
    with Environment() as env:
        handle = env.start_workflow(publish_around_activities, ["thread", "loop"])
        assert [word for word in words.follow(handle) if word.startswith("<")] == [
            "<thread>",
            "</thread>",
            "<loop>",
            "</loop>",
        ]
        env.fake(publish_words, lambda text: words.publish("fake") or 1)
        handle = env.start_workflow(publish_around_activities, ["thread"])
        assert list(words.follow(handle)) == ["<thread>", "fake", "</thread>"]
        assert words.latest(handle) == "</thread>"


def test_activity_retried_after_worker_crash_publishes_again() -> None:
    with Environment() as env:
        handle = env.start_workflow(runs_concurrent_activities, ["a b", "c d"])
        env.crash()
        assert handle.result() == [2, 2]
        assert sorted(words.follow(handle)) == sorted(["a", "b", "c", "d"])


def test_publishing_progress_in_a_local_activity_raises() -> None:
    with Environment() as env, pytest.raises((WorkflowFailedError, WorkflowParked)) as caught:
        env.execute_workflow(runs_local_activity)
    assert "local activity" in _chain(caught.value)


def _chain(error: BaseException | None) -> str:
    messages = []
    while error is not None:
        messages.append(str(error))
        error = error.__cause__ or getattr(error, "cause", None)
    return " ".join(messages)


def test_publish_rejects_large_items_and_invalid_progress() -> None:
    env = ActivityEnvironment()
    with pytest.raises(UsageError, match="65,536"):
        env.run(publish_words, "x" * 70_000)
    with pytest.raises(UsageError, match="takes a Progress or its name"):
        env.run(lambda: activity.publish(7, "x"))  # type: ignore[arg-type]
    assert env.run(publish_words, "a b") == 2
    assert env.published == [("words", "a"), ("words", "b")]


def test_publishing_progress_outside_a_run_raises() -> None:
    with pytest.raises(UsageError):
        activity.publish("words", "x")
