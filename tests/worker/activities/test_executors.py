"""The activity executor: threads and coroutines, contexts, failures, cancellation and heartbeats."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import pytest
from tests.worker.activities.executing import AwaitedExecutor

from hourglass import activity
from hourglass._contract.handle import ActivityDeferred, AttemptCancelled, AttemptFailed
from hourglass.converter import CanceledFailure, default_converter
from hourglass.errors import ApplicationError, Cancelled, UsageError

from ..scripted import attempt, payloads, settled
from .executing import Beats, failure, value

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
def facts_of_the_attempt() -> list[object]:
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
async def activity_ids() -> list[str]:
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
    requested = activity.wait_cancelled()
    activity.heartbeat()  # does not raise: the request was consumed
    return requested


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


@asynccontextmanager
async def executing(**options: Any) -> AsyncIterator[tuple[AwaitedExecutor, Beats]]:
    """An executor on the running event loop; afterwards its activity loop must have ended."""
    beats: Beats = []
    executor = AwaitedExecutor(
        ALL,
        default_converter,
        lambda token, details: beats.append((token, details)),
        **{"max_threads": 8, **options},
    )
    try:
        async with asyncio.timeout(20):
            yield executor, beats
    finally:
        executor.stop()
        ident = executor.runner.loop.current._thread_id
        for thread in threading.enumerate():
            if thread.ident == ident:
                await asyncio.to_thread(thread.join, 10)
                assert not thread.is_alive()


def run(activity_type: str, *args: object, **facts: object) -> object:
    async def main() -> object:
        async with executing() as (executor, _):
            return await executor.execute(attempt(activity_type, *args, **facts))

    return asyncio.run(main())


async def begun() -> None:
    await asyncio.to_thread(place.begun.wait)


def test_executor_runs_functions_in_threads_and_coroutines_on_the_activity_loop():
    assert value(run("add", 1)) == 11
    assert value(run("shout", "hi")) == "HI"
    assert run("add", 1, token=b"mine").token == b"mine"


def test_activity_arguments_are_decoded_to_their_annotated_types():
    assert value(run("price", {"id": "o", "cents": 5})) == 5


@pytest.mark.parametrize("args", [(), (1, 2, 3), ("x",)])
def test_attempt_with_wrong_arguments_fails_without_retry(args):
    kind, hopeless, message = failure(run("add", *args))
    assert (kind, hopeless) == ("ArgumentError", True)
    assert "activity add" in message


def test_unknown_activity_fails_retryably_and_lists_registered_activities():
    """Retryable, because another worker may have the activity."""
    kind, hopeless, message = failure(run("ad"))
    assert (kind, hopeless) == ("UnknownTypeError", False)
    assert "'ad'" in message
    assert "did you mean 'add'" in message
    assert "shout" in message


def test_activity_exception_becomes_a_failure_with_its_type():
    assert failure(run("raises", "value")) == ("ValueError", False, "bad value")
    assert failure(run("raises", "app")) == ("Refused", True, "no")
    assert failure(run("raises_async", "value")) == ("ValueError", False, "bad value")


@pytest.mark.parametrize("kind", ["exit", "interrupt"])
@pytest.mark.parametrize("activity_type", ["raises", "raises_async"])
async def test_system_exit_in_an_activity_fails_only_the_attempt(activity_type, kind):
    async with executing() as (executor, _):
        first = await executor.execute(attempt(activity_type, kind))
        second, third = (
            await executor.execute(attempt("shout", "on")),
            await executor.execute(attempt("add", 1)),
        )
    assert failure(first)[0] in ("SystemExit", "KeyboardInterrupt")
    assert value(second) == "ON"
    assert value(third) == 11


def test_cancelled_raised_without_a_request_fails_the_attempt():
    """A server rejects an attempt reported as cancelled without a request."""
    assert failure(run("raises", "cancelled"))[0] == "Cancelled"


def test_unencodable_activity_result_fails_without_retry():
    kind, hopeless, message = failure(run("unencodable"))
    assert (kind, hopeless) == ("EncodeError", True)
    assert "the result of activity unencodable cannot be encoded" in message


def test_activity_info_has_the_ids_and_attempt_number_of_the_task():
    task = run("facts_of_the_attempt", activity_id="7", attempt=3, is_local=True)
    assert value(task) == ["7", "facts_of_the_attempt", 3, "w", True, True]


def test_activity_context_reaches_tasks_and_threads_of_an_async_activity():
    assert value(run("activity_ids", activity_id="7")) == ["7", "7", "7"]


async def test_activities_run_by_the_same_thread_do_not_share_context_variables():
    async with executing(max_threads=1) as (executor, _):
        first = await executor.execute(attempt("dirty"))
        second = await executor.execute(attempt("dirty"))
        assert (value(first), value(second)) == ("clean", "clean")


def test_activity_functions_are_rejected_outside_an_activity():
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


async def test_heartbeat_raises_cancelled_once_in_a_threaded_activity():
    async with executing() as (executor, beats):
        running = asyncio.ensure_future(executor.execute(attempt("beats_until_cancelled")))
        await begun()
        executor.cancel(b"t", "CANCELLED")
        result, beats = await running, list(beats)
    assert isinstance(result, AttemptCancelled)
    assert isinstance(result.failure.info, CanceledFailure)
    assert place.seen == [True]
    assert beats[0] == (b"t", payloads("step", 1))
    assert beats[-1] == (b"t", payloads("cleaning"))


async def test_activity_completes_normally_after_wait_cancelled():
    async with executing() as (executor, _):
        running = asyncio.ensure_future(executor.execute(attempt("waits")))
        await begun()
        executor.cancel(b"t", "CANCELLED")
        assert value(await running) is True


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
async def test_async_activity_is_cancelled_by_asyncio(reason, kind):
    """Reported as cancelled only if the server expects that."""
    async with executing() as (executor, _):
        running = asyncio.ensure_future(executor.execute(attempt("sleeps_async")))
        await begun()
        executor.cancel(b"t", reason)
        assert isinstance(await running, kind)
    assert place.seen == ["cancelled"]


async def test_heartbeat_raises_cancelled_in_a_thread_of_an_async_activity():
    async with executing() as (executor, _):
        running = asyncio.ensure_future(executor.execute(attempt("sleeps_in_thread")))
        await begun()
        executor.cancel(b"t", "CANCELLED")
        assert isinstance(await running, AttemptCancelled)
    assert place.seen == ["thread saw it"]


async def test_later_attempt_cancels_the_earlier_attempt_of_the_same_activity():
    async with executing() as (executor, _):
        first = asyncio.ensure_future(executor.execute(attempt("beats_until_cancelled", token=b"1")))
        await begun()
        second = await executor.execute(attempt("add", 1, token=b"2", attempt=2))
        first = await first
    assert failure(first)[0] == "AttemptStopped"
    assert value(second) == 11


async def test_abandoned_attempt_reports_no_result():
    async with executing() as (executor, _):
        results = []
        running = executor.begin(attempt("ignores_cancellation"), results.append)
        await begun()
        executor.abandon(running)
        left = executor.running, running.over, running.context.cancel_reason
        place.go.set()
        assert value(await executor.execute(attempt("add", 1, token=b"next"))) == 11
    assert left == (0, True, "WORKER_SHUTDOWN")
    assert results == []


async def test_cancelling_an_attempt_with_an_unknown_token_does_nothing():
    async with executing() as (executor, _):
        executor.cancel(b"unknown", "CANCELLED")


def test_attempt_reads_the_heartbeat_details_of_the_previous_attempt():
    assert value(run("resumes", heartbeat_details=payloads(5, "x"))) == [5, 5, [5, "x"]]
    assert value(run("resumes")) == [None, None, []]


async def beats_of(executor: AwaitedExecutor, beats: list, task) -> list:
    running = asyncio.ensure_future(executor.execute(task))
    await begun()
    await settled(lambda: len(beats) >= 2)
    place.go.set()
    await running
    return list(beats)


async def test_automatic_heartbeats_repeat_the_details_of_the_previous_attempt():
    task = attempt("ignores_cancellation", heartbeat_timeout=30.0, heartbeat_details=payloads("cursor"))
    async with executing(beat_interval=0.001) as (executor, beats):
        assert set(await beats_of(executor, beats, task)) == {(b"t", payloads("cursor"))}


@pytest.mark.parametrize("facts", [{"heartbeat_timeout": 7.0}, {"is_local": True, "heartbeat_timeout": 30.0}])
async def test_no_automatic_heartbeats_for_explicit_timeouts_or_local_activities(facts):
    automatic = attempt("ignores_cancellation", heartbeat_timeout=30.0)
    other = attempt("ignores_cancellation", token=b"other", activity_id="other", **facts)
    async with executing(beat_interval=0.001) as (executor, beats):
        running = asyncio.ensure_future(executor.execute(other))
        await begun()
        await beats_of(executor, beats, automatic)
        await running
        assert {token for token, _ in beats} == {b"t"}


def test_complete_async_leaves_the_attempt_open():
    assert run("deferred") == ActivityDeferred(b"t")
    assert place.seen == [b"t"]


def test_complete_async_is_rejected_with_automatic_heartbeats():
    """Automatic heartbeats end with the function, so the attempt would time out."""
    kind, hopeless, message = failure(run("deferred_in_vain", heartbeat_timeout=30.0))
    assert (kind, hopeless) == ("UsageError", True)
    assert "heartbeat_timeout=None" in message


def test_activity_log_records_carry_the_attempts_ids(caplog):
    with caplog.at_level(logging.INFO, logger="hourglass.activity"):
        run("logs", activity_id="7", workflow_id="100%")
    (record,) = caplog.records
    assert record.getMessage() == "hello you (logs 7, attempt 1, workflow 100_)"
    assert record.activity_id == "7"
    activity.logger.info("outside is fine")


def test_activity_info_repr_hides_token_and_heartbeat_details():
    from hourglass._worker.activities.attempts import info_of

    shown = repr(
        info_of(attempt("add", token=b"secret", heartbeat_details=payloads("private")), default_converter)
    )
    assert "secret" not in shown
    assert "private" not in shown
