"""Progress published by workflows, on virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from hourglass import workflow
from hourglass.errors import UsageError, WorkflowFailedError, WorkflowParked
from hourglass.progress import Progress, ProgressStream
from hourglass.progress._buffer import MOST_AT_ONCE, MOST_BYTES, Buffer
from hourglass.testing import Environment


@dataclass
class Step:
    done: int
    total: int


steps = Progress("steps", Step)
lines = Progress("lines", str)
bounded = Progress("few", int, keep=3)


@workflow.defn
def publish_steps(total: int, pause: float) -> str:
    for done in range(total):
        steps.publish(Step(done, total))
        workflow.sleep(pause)
    return "done"


@workflow.defn
def publish_nothing() -> str:
    workflow.sleep(60)
    return "silent"


@workflow.defn
def publish_all_immediately(count: int) -> None:
    for number in range(count):
        bounded.publish(number)
        lines.publish(f"line {number}")


@workflow.defn
def publish_in_each_run(left: int) -> str:
    lines.publish(f"{left} left")
    workflow.sleep(1)
    if left:
        workflow.continue_as_new(left - 1)
    return "end"


@workflow.defn
def change_published_step() -> None:
    step = Step(1, 2)
    steps.publish(step)
    step.done = 99
    workflow.sleep(1)


@workflow.defn
class PublishesInQuery:
    @workflow.query
    def look(self) -> str:
        lines.publish("no")
        return "looked"

    @workflow.run
    def run(self) -> None:
        workflow.sleep(60)


@pytest.fixture
def env() -> Iterator[Environment]:
    with Environment() as env:
        yield env


def test_progress_follower_receives_every_item_in_order_until_the_run_ends(env: Environment) -> None:
    handle = env.start_workflow(publish_steps, 5, 10.0)
    assert list(steps.follow(handle)) == [Step(done, 5) for done in range(5)]
    assert handle.result() == "done"
    assert list(steps.follow(handle)) == [Step(done, 5) for done in range(5)]


def test_progress_items_arrive_when_they_are_published(env: Environment) -> None:
    handle = env.start_workflow(publish_steps, 3, 10.0)
    start, moments = env.now(), []
    for _ in steps.follow(handle):
        moments.append((env.now() - start).total_seconds())
    assert moments == [0, 10, 20]


def test_ten_progress_followers_add_no_history_events() -> None:
    event_types = []
    for followers in (0, 10):
        with Environment() as env:
            handle = env.start_workflow(publish_steps, 4, 1.0)
            streams = [iter(steps.follow(handle)) for _ in range(followers)]
            for stream in streams:
                next(stream)
            assert [len(list(stream)) for stream in streams] == [3] * followers
            handle.result()
            event_types.append([event["eventType"] for event in handle.history().events])
    assert event_types[0] == event_types[1]


def test_progress_stream_resumes_after_a_position(env: Environment) -> None:
    handle = env.start_workflow(publish_steps, 5, 10.0)
    stream = steps.follow(handle)
    assert [next(stream).done, next(stream).done] == [0, 1]
    reconnected = env.client.get_workflow_handle(handle.id)
    assert [step.done for step in steps.follow(reconnected, after=stream.position)] == [2, 3, 4]


def test_progress_position_counts_consumed_items_only(env: Environment) -> None:
    """Items that were fetched but not read are delivered again."""
    handle = env.start_workflow(publish_all_immediately, 5)
    stream = lines.follow(handle)
    assert next(stream) == "line 0"
    assert list(lines.follow(handle, after=stream.position)) == [f"line {number}" for number in range(1, 5)]


def test_progress_stream_can_start_with_the_last_items_or_new_ones(env: Environment) -> None:
    handle = env.start_workflow(publish_steps, 4, 10.0)
    env.skip(15)
    assert [step.done for step in steps.follow(handle, last=1)] == [1, 2, 3]
    handle = env.start_workflow(publish_steps, 4, 10.0)
    env.skip(15)
    assert [step.done for step in steps.follow(handle, last=0)] == [2, 3]


def test_progress_buffer_drops_old_items_and_counts_them(env: Environment) -> None:
    handle = env.start_workflow(publish_all_immediately, 10)
    stream = bounded.follow(handle)
    assert list(stream) == [7, 8, 9]
    assert stream.missed == 7


def test_many_progress_items_are_fetched_in_several_queries() -> None:
    count = 3 * MOST_AT_ONCE + 7
    with Environment() as env:
        handle = env.start_workflow(publish_all_immediately, count)
        assert list(lines.follow(handle)) == [f"line {number}" for number in range(count)]


def test_progress_stream_follows_continue_as_new(env: Environment) -> None:
    handle = env.start_workflow(publish_in_each_run, 3)
    stream = lines.follow(handle)
    assert [next(stream), next(stream)] == ["3 left", "2 left"]
    position = stream.position
    assert list(stream) == ["1 left", "0 left"]
    assert list(lines.follow(handle, after=position)) == ["1 left", "0 left"]


def test_progress_stream_without_items_ends_with_the_run(env: Environment) -> None:
    handle = env.start_workflow(publish_nothing)
    assert list(lines.follow(handle)) == []
    assert lines.latest(handle) is None


def test_progress_stream_ends_when_the_run_is_terminated(env: Environment) -> None:
    handle = env.start_workflow(publish_steps, 5, 10.0)
    env.after(seconds=15).terminate(handle)
    assert [step.done for step in steps.follow(handle)] == [0, 1]
    with pytest.raises(WorkflowFailedError, match="terminated"):
        handle.result()


def test_latest_progress_item_is_returned(env: Environment) -> None:
    handle = env.start_workflow(publish_steps, 5, 10.0)
    env.skip(25)
    assert steps.latest(handle) == Step(2, 5)


def test_progress_stream_can_continue_after_a_timeout(env: Environment) -> None:
    handle = env.start_workflow(publish_steps, 2, 10.0)
    stream = steps.follow(handle, timeout=4)
    assert next(stream).done == 0
    with pytest.raises(TimeoutError, match="within 4 s"):
        next(stream)
    with pytest.raises(TimeoutError):
        next(stream)
    assert next(stream).done == 1


def test_published_progress_item_is_a_copy(env: Environment) -> None:
    handle = env.start_workflow(change_published_step)
    assert list(steps.follow(handle)) == [Step(1, 2)]


def test_progress_stream_continues_after_worker_crashes(env: Environment) -> None:
    handle = env.start_workflow(publish_steps, 4, 10.0)
    stream: ProgressStream[Step] = steps.follow(handle)
    seen = []
    for step in stream:
        seen.append(step.done)
        env.crash()
    assert seen == [0, 1, 2, 3]
    assert stream.missed == 0


async def test_async_client_follows_progress() -> None:
    async with Environment() as env:
        handle = await env.start_workflow(publish_steps, 3, 10.0)
        assert [step.done async for step in steps.follow(handle)] == [0, 1, 2]
        assert await steps.latest(handle) == Step(2, 3)


def test_publishing_progress_in_a_query_or_outside_a_run_raises(env: Environment) -> None:
    handle = env.start_workflow(PublishesInQuery.run)
    with pytest.raises(Exception, match="publishing progress"):
        handle.query(PublishesInQuery.look)
    with pytest.raises(UsageError):
        lines.publish("outside")


def test_invalid_progress_arguments_are_rejected() -> None:
    with Environment() as env:
        handle = env.start_workflow(publish_nothing)
        with pytest.raises(UsageError, match="after="):
            lines.follow(handle, after="nonsense")
        with pytest.raises(UsageError, match="not both"):
            lines.follow(handle, after="run/1", last=1)
        with pytest.raises(UsageError, match="0 or more"):
            lines.follow(handle, last=-1)
        with pytest.raises(UsageError, match="handle"):
            lines.follow("id")  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="keep must be"):
        Progress("p", keep=0)


def test_unencodable_progress_item_raises_at_publish() -> None:
    token = Progress("odd")

    @workflow.defn
    def odd() -> None:
        token.publish(object())

    with Environment() as env, pytest.raises(WorkflowParked):
        env.execute_workflow(odd)


def test_large_progress_items_are_split_across_answers() -> None:
    """An answer contains at least one item; an item above the limit is rejected."""
    buffer = Buffer(10)
    for number in range(4):
        buffer.add(number, MOST_BYTES // 2)
    buffer.add(4, 2 * MOST_BYTES)
    assert buffer.read(0, 10) == (0, 5, [0, 1])
    assert buffer.read(3, 10) == (3, 5, [3])
    assert buffer.read(4, 10) == (4, 5, [4])

    @workflow.defn
    def large() -> None:
        lines.publish("x" * MOST_BYTES)

    with Environment() as env, pytest.raises(WorkflowParked) as caught:
        env.execute_workflow(large)
    assert "bytes" in str(caught.value.__cause__)


def test_progress_buffer_reads_from_any_position() -> None:
    """Positions before the oldest item start at the oldest; negative positions count from the end."""
    buffer = Buffer(3)
    for number in range(5):
        buffer.add(number, 1)
    assert buffer.read(0, 10) == (2, 5, [2, 3, 4])
    assert buffer.read(3, 1) == (3, 5, [3])
    assert buffer.read(9, 10) == (5, 5, [])
    assert buffer.read(-1, 10) == (4, 5, [4])
    assert buffer.read(-9, 10) == (2, 5, [2, 3, 4])
