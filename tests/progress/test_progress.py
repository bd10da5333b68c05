"""What a workflow publishes, followed on virtual time."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from hourglass import workflow
from hourglass.errors import UsageError, WorkflowFailedError, WorkflowParked
from hourglass.progress import Progress, ProgressStream
from hourglass.progress._buffer import MOST_AT_ONCE, MOST_BYTES, Buffer
from hourglass.testing import Environment


@dataclass
class Step:
    """How far it is."""

    done: int
    total: int


steps = Progress("steps", Step)
lines = Progress("lines", str)
few = Progress("few", int, keep=3)


@workflow.defn
def work(total: int, pause: float) -> str:
    """Publish each step."""
    for done in range(total):
        steps.publish(Step(done, total))
        workflow.sleep(pause)
    return "done"


@workflow.defn
def silent() -> str:
    """Publish nothing."""
    workflow.sleep(60)
    return "silent"


@workflow.defn
def burst(count: int) -> None:
    """Publish all at once."""
    for number in range(count):
        few.publish(number)
        lines.publish(f"line {number}")


@workflow.defn
def chain(left: int) -> str:
    """Publish in each of several runs."""
    lines.publish(f"{left} left")
    workflow.sleep(1)
    if left:
        workflow.continue_as_new(left - 1)
    return "end"


@workflow.defn
def careless() -> None:
    """Change what was published."""
    step = Step(1, 2)
    steps.publish(step)
    step.done = 99
    workflow.sleep(1)


@workflow.defn
class Wrong:
    """Publish in a query."""

    @workflow.query
    def look(self) -> str:
        """Must only look."""
        lines.publish("no")
        return "looked"

    @workflow.run
    def run(self) -> None:
        """Wait to be asked."""
        workflow.sleep(60)


def test_follower_gets_every_item_in_order() -> None:
    """All that is published comes, typed and in order, and the loop ends with the run."""
    with Environment() as env:
        handle = env.start_workflow(work, 5, 10.0)
        assert list(steps.follow(handle)) == [Step(done, 5) for done in range(5)]
        assert handle.result() == "done"
        assert list(steps.follow(handle)) == [Step(done, 5) for done in range(5)]


def test_items_arrive_when_they_are_published() -> None:
    """A follower does not wait for the end, nor ask on and on: it hears of each at its time."""
    with Environment() as env:
        handle = env.start_workflow(work, 3, 10.0)
        begin, moments = env.now(), []
        for _ in steps.follow(handle):
            moments.append((env.now() - begin).total_seconds())
        assert moments == [0, 10, 20]


def test_followers_add_no_events() -> None:
    """The history is the same, event by event, whether ten follow or none."""
    kinds = []
    for followers in (0, 10):
        with Environment() as env:
            handle = env.start_workflow(work, 4, 1.0)
            streams = [iter(steps.follow(handle)) for _ in range(followers)]
            for stream in streams:
                next(stream)
            assert [len(list(stream)) for stream in streams] == [3] * followers
            handle.result()
            kinds.append([event["eventType"] for event in handle.history().events])
    assert kinds[0] == kinds[1]


def test_stream_resumes_at_a_position() -> None:
    """A position is a text that can be kept; what came before it does not come again."""
    with Environment() as env:
        handle = env.start_workflow(work, 5, 10.0)
        stream = steps.follow(handle)
        assert [next(stream).done, next(stream).done] == [0, 1]
        again = env.client.get_workflow_handle(handle.id)
        assert [step.done for step in steps.follow(again, after=stream.position)] == [2, 3, 4]


def test_position_counts_consumed_items() -> None:
    """Items that were fetched together and not looked at are still to come."""
    with Environment() as env:
        handle = env.start_workflow(burst, 5)
        stream = lines.follow(handle)
        assert next(stream) == "line 0"
        assert list(lines.follow(handle, after=stream.position)) == [
            f"line {number}" for number in range(1, 5)
        ]


def test_last_items_or_only_new_ones() -> None:
    """`last` begins with the newest so many; 0 with what is still to come."""
    with Environment() as env:
        handle = env.start_workflow(work, 4, 10.0)
        env.skip(15)
        assert [step.done for step in steps.follow(handle, last=1)] == [1, 2, 3]
        handle = env.start_workflow(work, 4, 10.0)
        env.skip(15)
        assert [step.done for step in steps.follow(handle, last=0)] == [2, 3]


def test_old_items_are_dropped_and_counted() -> None:
    """A buffer is bounded: what was dropped is counted."""
    with Environment() as env:
        handle = env.start_workflow(burst, 10)
        stream = few.follow(handle)
        assert list(stream) == [7, 8, 9]
        assert stream.missed == 7


def test_many_items_are_fetched_in_several_answers() -> None:
    """More than fit into one answer are fetched one after another."""
    count = 3 * MOST_AT_ONCE + 7
    with Environment() as env:
        handle = env.start_workflow(burst, count)
        assert list(lines.follow(handle)) == [f"line {number}" for number in range(count)]


def test_stream_follows_continue_as_new() -> None:
    """Every run of the chain is followed, in order, also from a position in one of them."""
    with Environment() as env:
        handle = env.start_workflow(chain, 3)
        stream = lines.follow(handle)
        assert [next(stream), next(stream)] == ["3 left", "2 left"]
        position = stream.position
        assert list(stream) == ["1 left", "0 left"]
        assert list(lines.follow(handle, after=position)) == ["1 left", "0 left"]


def test_stream_without_items_is_empty() -> None:
    """A run that publishes nothing is followed to its end all the same."""
    with Environment() as env:
        handle = env.start_workflow(silent)
        assert list(lines.follow(handle)) == []
        assert lines.latest(handle) is None


def test_stream_ends_with_a_terminated_run() -> None:
    """However a run ends, the loop does; the result says how."""
    with Environment() as env:
        handle = env.start_workflow(work, 5, 10.0)
        env.after(seconds=15).terminate(handle)
        assert [step.done for step in steps.follow(handle)] == [0, 1]
        with pytest.raises(WorkflowFailedError, match="terminated"):
            handle.result()


def test_latest_item_is_returned() -> None:
    """One question, one answer: how far is it?"""
    with Environment() as env:
        handle = env.start_workflow(work, 5, 10.0)
        env.skip(25)
        assert steps.latest(handle) == Step(2, 5)


def test_latest_item_times_out() -> None:
    """After the time limit there is a TimeoutError, and the same stream can be asked again."""
    with Environment() as env:
        handle = env.start_workflow(work, 2, 10.0)
        stream = steps.follow(handle, timeout=4)
        assert next(stream).done == 0
        with pytest.raises(TimeoutError, match="within 4 s"):
            next(stream)
        with pytest.raises(TimeoutError):
            next(stream)
        assert next(stream).done == 1


def test_published_items_are_not_shared() -> None:
    """Changing the object afterwards changes nothing."""
    with Environment() as env:
        handle = env.start_workflow(careless)
        assert list(steps.follow(handle)) == [Step(1, 2)]


def test_items_survive_worker_crashes() -> None:
    """A worker that comes back has executed the run again, and its items with it."""
    with Environment() as env:
        handle = env.start_workflow(work, 4, 10.0)
        stream: ProgressStream[Step] = steps.follow(handle)
        seen = []
        for step in stream:
            seen.append(step.done)
            env.crash()
        assert seen == [0, 1, 2, 3]
        assert stream.missed == 0


async def test_async_client_follows_progress() -> None:
    """`async for` follows, and `latest` is awaited."""

    async with Environment() as env:
        handle = await env.start_workflow(work, 3, 10.0)
        assert [step.done async for step in steps.follow(handle)] == [0, 1, 2]
        assert await steps.latest(handle) == Step(2, 3)


def test_query_cannot_publish() -> None:
    """Who may only look may not publish."""
    with Environment() as env:
        handle = env.start_workflow(Wrong.run)
        with pytest.raises(Exception, match="publishing progress"):
            handle.query(Wrong.look)
        with pytest.raises(UsageError):
            lines.publish("outside")


def test_invalid_progress_arguments_are_rejected() -> None:
    """Positions, numbers and names that make no sense are told at once."""
    with Environment() as env:
        handle = env.start_workflow(silent)
        with pytest.raises(UsageError, match="after="):
            lines.follow(handle, after="nonsense")
        with pytest.raises(UsageError, match="not both"):
            lines.follow(handle, after="run/1", last=1)
        with pytest.raises(UsageError, match="0 or more"):
            lines.follow(handle, last=-1)
        with pytest.raises(UsageError, match="handle"):
            lines.follow("id")  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="keeps"):
        Progress("p", keep=0)


def test_unencodable_item_is_rejected_at_publish() -> None:
    """An item that cannot be encoded is a mistake of the line that publishes it."""
    token = Progress("odd")

    @workflow.defn
    def odd() -> None:
        token.publish(object())

    with Environment() as env, pytest.raises(WorkflowParked):
        env.execute_workflow(odd)


def test_large_items_come_in_several_answers() -> None:
    """An answer holds no more than an engine takes, and at least one item; what is too large for any is refused."""
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


def test_buffer_reads_from_any_position() -> None:
    """Before the oldest it begins with the oldest, past the newest there is nothing, and negative counts from the end."""
    buffer = Buffer(3)
    for number in range(5):
        buffer.add(number, 1)
    assert buffer.read(0, 10) == (2, 5, [2, 3, 4])
    assert buffer.read(3, 1) == (3, 5, [3])
    assert buffer.read(9, 10) == (5, 5, [])
    assert buffer.read(-1, 10) == (4, 5, [4])
    assert buffer.read(-9, 10) == (2, 5, [2, 3, 4])
