from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from tests.worker.activities.executing import AwaitedExecutor

from hourglass import activity
from hourglass._contract.handle import ActivityDeferred, ActivityOk, AttemptCancelled, AttemptFailed
from hourglass._evaluator.specs import Payloads
from hourglass.converter import ApplicationFailure, CanceledFailure, default_converter
from hourglass.errors import ApplicationError, Cancelled, UsageError

from ..scripted import attempt, payloads, settled

pytestmark = pytest.mark.usefixtures("each_event_loop")

leftover: ContextVar[str] = ContextVar("leftover", default="clean")


@dataclass
class Order:
    id: str
    cents: int


class Place:
    """State shared between tests and activities."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go = threading.Event()
        self.seen: list[object] = []


place = Place()


@pytest.fixture(autouse=True)
def _fresh_place():
    place.__init__()
    yield
    place.go.set()


@activity.defn
def add(one: int, two: int = 10) -> int:
    return one + two


@activity.defn
async def shout(text: str) -> str:
    await asyncio.sleep(0)
    return text.upper()


@activity.defn
def price(order: Order) -> int:
    return order.cents


@activity.defn
def raises(kind: str) -> None:
    raise {
        "value": ValueError("bad value"),
        "app": ApplicationError("no", "detail", type="Refused", non_retryable=True),
        "exit": SystemExit(3),
        "interrupt": KeyboardInterrupt(),
        "cancelled": Cancelled(),
    }[kind]


@activity.defn
async def raises_async(kind: str) -> None:
    raise {"exit": SystemExit(3), "interrupt": KeyboardInterrupt(), "value": ValueError("bad value")}[kind]


@activity.defn
def unencodable() -> object:
    return object()


@activity.defn
def who() -> list[object]:
    facts = activity.info()
    return [
        facts.activity_id,
        facts.activity_type,
        facts.attempt,
        facts.workflow_id,
        facts.is_local,
        activity.in_activity(),
    ]


@activity.defn
async def who_everywhere() -> list[str]:
    async def task() -> str:
        return activity.info().activity_id

    return [
        activity.info().activity_id,
        await asyncio.create_task(task()),
        await asyncio.to_thread(lambda: activity.info().activity_id),
    ]


@activity.defn
def dirty() -> str:
    before = leftover.get()
    leftover.set("dirty")
    return before


@activity.defn
def beats_until_cancelled() -> str:
    place.begun.set()
    try:
        while True:
            activity.heartbeat("step", 1)
            place.go.wait(0.001)
    except Cancelled:
        activity.heartbeat("cleaning")  # delivered once: this does not raise
        place.seen.append(activity.cancelled())
        raise


@activity.defn
def waits() -> bool:
    place.begun.set()
    told = activity.wait_cancelled()
    activity.heartbeat()  # it knows: not raised again
    return told


@activity.defn
def ignores_cancellation() -> str:
    place.begun.set()
    place.go.wait()
    return "done"


@activity.defn
async def sleeps_async() -> None:
    place.begun.set()
    try:
        await asyncio.get_running_loop().create_future()
    except asyncio.CancelledError:
        activity.heartbeat("async")  # never raises on the loop
        place.seen.append("cancelled")
        raise


@activity.defn
async def sleeps_in_thread() -> None:
    def work() -> None:
        place.begun.set()
        try:
            while True:
                activity.heartbeat()
                place.go.wait(0.001)
        except Cancelled:
            place.seen.append("thread saw it")

    job = asyncio.to_thread(work)
    try:
        await asyncio.shield(asyncio.ensure_future(job))
    finally:
        await settled(lambda: place.seen)


@activity.defn
def resumes() -> list[object]:
    return [
        activity.heartbeat_details(int),
        activity.heartbeat_details(),
        list(activity.info().heartbeat_details),
    ]


@activity.defn(heartbeat_timeout=None)
def deferred() -> str:
    place.seen.append(activity.info().task_token)
    activity.complete_async()


@activity.defn
def deferred_in_vain() -> str:
    activity.complete_async()


@activity.defn
def logs() -> None:
    activity.logger.info("hello %s", "you")


ALL = [value for value in list(globals().values()) if isinstance(value, activity.Activity)]

Script = Callable[[AwaitedExecutor, list[tuple[bytes, Payloads]]], Awaitable[object]]


def with_executor(script: Script, **options) -> object:
    """Run a script on a control loop with an executor."""

    async def main() -> object:
        beats: list[tuple[bytes, Payloads]] = []
        executor = AwaitedExecutor(
            ALL,
            default_converter,
            lambda token, details: beats.append((token, details)),
            **{"max_threads": 8, **options},
        )
        try:
            async with asyncio.timeout(20):
                return await script(executor, beats)
        finally:
            executor.stop()
            thread = executor.runner.loop.current._thread
            if thread is not None:
                await asyncio.to_thread(thread.join, 10)
                assert not thread.is_alive()

    return asyncio.run(main())


def run(activity_type: str, *args: object, **facts: object) -> object:
    """Run one attempt to its end."""
    return with_executor(lambda executor, _: executor.execute(attempt(activity_type, *args, **facts)))


def value(result: object) -> object:
    assert isinstance(result, ActivityOk), result
    assert result.result is not None
    return default_converter.decode(result.result)


def failure(result: object) -> tuple[str, bool, str]:
    assert isinstance(result, AttemptFailed), result
    assert isinstance(result.failure.info, ApplicationFailure)
    return result.failure.info.type, result.failure.info.non_retryable, result.failure.message


async def begun() -> None:
    await asyncio.to_thread(place.begun.wait)


def test_results_of_threads_and_coroutines():
    """`def` and `async def` activities run, and their results have their token."""
    assert value(run("add", 1)) == 11
    assert value(run("shout", "hi")) == "HI"
    assert run("add", 1, token=b"mine").token == b"mine"


def test_arguments_are_decoded_to_their_types():
    """A dataclass arrives as one."""
    assert value(run("price", {"id": "o", "cents": 5})) == 5


@pytest.mark.parametrize("args", [(), (1, 2, 3), ("x",)])
def test_wrong_arguments_fail_without_a_retry(args):
    """Too few, too many, of a wrong type: a failure that names the activity."""
    kind, hopeless, message = failure(run("add", *args))
    assert (kind, hopeless) == ("ArgumentError", True)
    assert "activity add" in message


def test_unknown_activity_lists_the_known_ones():
    """The failure may be retried, because another worker may know it."""
    kind, hopeless, message = failure(run("ad"))
    assert (kind, hopeless) == ("UnknownTypeError", False)
    assert "'ad'" in message
    assert "did you mean 'add'" in message
    assert "shout" in message


def test_exceptions_become_failures():
    """An ordinary exception keeps its class name, an ApplicationError its type and whether to retry."""
    assert failure(run("raises", "value")) == ("ValueError", False, "bad value")
    assert failure(run("raises", "app")) == ("Refused", True, "no")
    assert failure(run("raises_async", "value")) == ("ValueError", False, "bad value")


@pytest.mark.parametrize("kind", ["exit", "interrupt"])
@pytest.mark.parametrize("activity_type", ["raises", "raises_async"])
def test_system_exit_fails_the_attempt(activity_type, kind):
    """SystemExit and KeyboardInterrupt are failures; the next attempt runs."""

    async def script(executor, _):
        first = await executor.execute(attempt(activity_type, kind))
        return (
            first,
            await executor.execute(attempt("shout", "on")),
            await executor.execute(attempt("add", 1)),
        )

    first, second, third = with_executor(script)
    assert failure(first)[0] in ("SystemExit", "KeyboardInterrupt")
    assert value(second) == "ON"
    assert value(third) == 11


def test_unrequested_cancellation_is_a_failure():
    """`raise Cancelled` without a request must not be reported as cancelled: the server would reject it."""
    assert failure(run("raises", "cancelled"))[0] == "Cancelled"


def test_unencodable_result_fails_without_a_retry():
    """The message names the activity; a retry would only repeat its side effects."""
    kind, hopeless, message = failure(run("unencodable"))
    assert (kind, hopeless) == ("EncodeError", True)
    assert "the result of activity unencodable cannot be encoded" in message


def test_info_of_an_attempt():
    """Ids, attempt and kind are the task's."""
    task = run("who", activity_id="7", attempt=3, is_local=True)
    assert value(task) == ["7", "who", 3, "w", True, True]


def test_context_reaches_tasks_and_threads_of_a_coroutine():
    """`info` works in the coroutine, in its tasks and in `asyncio.to_thread`."""
    assert value(run("who_everywhere", activity_id="7")) == ["7", "7", "7"]


def test_activities_in_one_thread_do_not_share_context_variables():
    """A context variable that one activity sets is not visible to the next one in the same thread."""

    async def script(executor, _):
        one = await executor.execute(attempt("dirty"))
        two = await executor.execute(attempt("dirty"))
        return value(one), value(two)

    assert with_executor(script, max_threads=1) == ("clean", "clean")


def test_activity_calls_need_an_activity():
    """Outside an activity, each call raises an error that says so."""
    for call in (
        activity.info,
        activity.heartbeat,
        activity.heartbeat_details,
        activity.cancelled,
        activity.wait_cancelled,
        activity.complete_async,
    ):
        with pytest.raises(UsageError, match="only inside a running activity"):
            call()
    assert not activity.in_activity()


def test_cancellation_reaches_a_thread_once_at_its_heartbeat():
    """`heartbeat` raises Cancelled, the clean-up may beat, the attempt ends as cancelled."""

    async def script(executor, beats):
        running = asyncio.ensure_future(executor.execute(attempt("beats_until_cancelled")))
        await begun()
        executor.cancel(b"t", "CANCELLED")
        return await running, list(beats)

    result, beats = with_executor(script)
    assert isinstance(result, AttemptCancelled)
    assert isinstance(result.failure.info, CanceledFailure)
    assert place.seen == [True]
    assert beats[0] == (b"t", payloads("step", 1))
    assert beats[-1] == (b"t", payloads("cleaning"))


def test_wait_cancelled_consumes_the_request():
    """It returns True, and the activity's return value is its result."""

    async def script(executor, _):
        running = asyncio.ensure_future(executor.execute(attempt("waits")))
        await begun()
        executor.cancel(b"t", "CANCELLED")
        return await running

    assert value(with_executor(script)) is True


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("CANCELLED", AttemptCancelled),
        ("TIMED_OUT", AttemptCancelled),
        ("NOT_FOUND", AttemptCancelled),
        ("WORKER_SHUTDOWN", AttemptFailed),
        ("PAUSED", AttemptFailed),
    ],
)
def test_coroutines_are_cancelled_by_their_loop(reason, kind):
    """An async activity is cancelled by asyncio. The attempt is reported as cancelled only if the server
    expects that.
    """

    async def script(executor, _):
        running = asyncio.ensure_future(executor.execute(attempt("sleeps_async")))
        await begun()
        executor.cancel(b"t", reason)
        return await running

    assert isinstance(with_executor(script), kind)
    assert place.seen == ["cancelled"]


def test_cancellation_reaches_a_thread_of_an_async_activity():
    """A thread that an async activity started with to_thread gets Cancelled at its heartbeat."""

    async def script(executor, _):
        running = asyncio.ensure_future(executor.execute(attempt("sleeps_in_thread")))
        await begun()
        executor.cancel(b"t", "CANCELLED")
        return await running

    assert isinstance(with_executor(script), AttemptCancelled)
    assert place.seen == ["thread saw it"]


def test_later_attempt_cancels_the_earlier_one():
    """The server has abandoned the earlier attempt of the same activity."""

    async def script(executor, _):
        first = asyncio.ensure_future(executor.execute(attempt("beats_until_cancelled", token=b"1")))
        await begun()
        second = await executor.execute(attempt("add", 1, token=b"2", attempt=2))
        return await first, second

    first, second = with_executor(script)
    assert failure(first)[0] == "AttemptStopped"
    assert value(second) == 11


def test_abandoned_attempt_reports_nothing():
    """An attempt that ignores its cancellation is abandoned; its later result is dropped."""

    async def script(executor, _):
        told = []
        waiter = SimpleNamespace(executed=told.append)
        running = executor.begin(attempt("ignores_cancellation"), waiter)
        await begun()
        executor.abandon(running)
        left = executor.running, running.over, running.context.cancel_reason
        place.go.set()
        assert value(await executor.execute(attempt("add", 1, token=b"next"))) == 11
        return left, told

    left, told = with_executor(script)
    assert left == (0, True, "WORKER_SHUTDOWN")
    assert told == []


def test_cancelling_an_unknown_token_does_nothing():
    """It has ended already."""

    async def script(executor, _):
        executor.cancel(b"nobody", "CANCELLED")

    with_executor(script)


def test_heartbeat_details_of_an_earlier_attempt():
    """The first detail, typed and untyped, and all of them in `info`."""
    assert value(run("resumes", heartbeat_details=payloads(5, "x"))) == [5, 5, [5, "x"]]
    assert value(run("resumes")) == [None, None, []]


async def _beaten(executor: AwaitedExecutor, beats: list, task) -> list:
    running = asyncio.ensure_future(executor.execute(task))
    await begun()
    await settled(lambda: len(beats) >= 2)
    place.go.set()
    await running
    return list(beats)


def test_automatic_heartbeats_repeat_inherited_details():
    """Without an author's promise the worker beats, with the details of the attempt before."""
    task = attempt("ignores_cancellation", heartbeat_timeout=30.0, heartbeat_details=payloads("cursor"))
    beats = with_executor(lambda executor, beats: _beaten(executor, beats, task), beat_interval=0.001)
    assert set(beats) == {(b"t", payloads("cursor"))}


@pytest.mark.parametrize("facts", [{"heartbeat_timeout": 7.0}, {"is_local": True, "heartbeat_timeout": 30.0}])
def test_no_automatic_heartbeats_with_a_heartbeat_timeout(facts):
    """Neither with the author's own timeout nor for local activities."""
    left_to_us = attempt("ignores_cancellation", heartbeat_timeout=30.0)
    other = attempt("ignores_cancellation", token=b"other", activity_id="other", **facts)

    async def script(executor, beats):
        running = asyncio.ensure_future(executor.execute(other))
        await begun()
        await _beaten(executor, beats, left_to_us)
        await running
        return {token for token, _ in beats}

    assert with_executor(script, beat_interval=0.001) == {b"t"}


def test_complete_async_leaves_the_attempt_open():
    """`complete_async` leaves the attempt open under its token."""
    assert run("deferred") == ActivityDeferred(b"t")
    assert place.seen == [b"t"]


def test_complete_async_needs_a_heartbeat_setting():
    """With automatic heartbeats it would time out after it returned: rejected with the remedy."""
    kind, hopeless, message = failure(run("deferred_in_vain", heartbeat_timeout=30.0))
    assert (kind, hopeless) == ("UsageError", True)
    assert "heartbeat_timeout=None" in message


def test_logger_names_the_attempt(caplog):
    """Records carry the ids, as attributes and in the text."""
    with caplog.at_level(logging.INFO, logger="hourglass.activity"):
        run("logs", activity_id="7", workflow_id="100%")
    (record,) = caplog.records
    assert record.getMessage() == "hello you (logs 7, attempt 1, workflow 100_)"
    assert record.activity_id == "7"
    activity.logger.info("outside is fine")


def test_info_shows_no_token_and_no_details():
    """Secrets and payloads stay out of reprs."""
    from hourglass._worker.activities.attempts import info_of

    shown = repr(
        info_of(attempt("add", token=b"secret", heartbeat_details=payloads("private")), default_converter)
    )
    assert "secret" not in shown
    assert "private" not in shown
