"""Activity threads that hang, die or fork, and blocked activity loops: the worker continues and reports them."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from hourglass import activity
from hourglass._contract.handle import AttemptCancelled, HandleBroken
from hourglass._evaluator.specs import RetryRule
from hourglass._worker.activities.activity_threads import ThreadPool
from hourglass._worker.activities.attempts import Attempt
from hourglass.errors import ApplicationError

from ..scripted import attempt, payloads
from .executing import failure, running_executor, until, value, with_executor

pytestmark = pytest.mark.usefixtures("each_event_loop")


class Place:
    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.go = threading.Event()
        self.seen: list[object] = []


place = Place()


@pytest.fixture(autouse=True)
def _fresh_place():
    place.__init__()
    yield
    place.go.set()


@activity.defn
def hangs() -> str:
    place.begun.release()
    place.go.wait()
    return "late"


@activity.defn
def echo(text: str) -> str:
    return text


@activity.defn
async def echo_async(text: str) -> str:
    return text


@activity.defn
async def blocks() -> str:
    place.begun.release()
    place.go.wait()
    return "unblocked"


@activity.defn
async def blocks_in_a_task() -> str:
    return await asyncio.create_task(blocks.fn())


@activity.defn
async def blocks_in_a_group() -> str:
    return (await asyncio.gather(asyncio.sleep(0), blocks.fn()))[1]


@activity.defn
async def waits_on_the_loop() -> str:
    place.begun.release()
    while not place.go.is_set():  # noqa: ASYNC110 - it is set in another thread
        await asyncio.sleep(0.001)
    return "continued"


@activity.defn
async def waits_async() -> None:
    place.begun.release()
    await asyncio.get_running_loop().create_future()


@activity.defn
async def ignores_cancellation() -> str:
    place.begun.release()
    while not place.go.is_set():
        try:
            await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            place.seen.append("swallowed")
    return "late"


@activity.defn
def raises(how: str) -> str:
    match how:
        case "generator":
            raise GeneratorExit
        case "recursion":
            return raises.fn(how)
        case "memory":
            raise MemoryError("no more")
        case "base":
            raise BaseException("bare")
        case "evil":
            raise UnprintableError
        case "large":
            return "x" * 3_000_000
        case "large details":
            raise ApplicationError("no", "x" * 3_000_000, type="Big", non_retryable=True)
        case "large heartbeat":
            activity.heartbeat("x" * 3_000_000)
    return how


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise SystemExit(9)


@activity.defn
def interrupted() -> None:
    """An exception is raised in this thread from outside, as by debuggers and timeout libraries."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(threading.get_ident()), ctypes.py_object(SystemExit)
    )
    while True:
        threading.Event().wait(0.001)


@activity.defn
def get_client() -> object:
    return activity.client()


@activity.defn
async def get_client_async() -> object:
    return activity.client()


ALL = [item for item in list(globals().values()) if isinstance(item, activity.Activity)]


def executing(**options):
    return running_executor(ALL, **options)


def script(run, **options):
    return with_executor(ALL, run, **options)


def run(activity_type, *args, **options):
    return script(lambda executor, _: executor.execute(attempt(activity_type, *args)), **options)


async def begun(count: int = 1) -> None:
    for _ in range(count):
        assert await asyncio.to_thread(place.begun.acquire, timeout=30)


@pytest.mark.parametrize("reason", ["TIMED_OUT", "NOT_FOUND"])
async def test_hung_activity_threads_are_replaced(reason, caplog):
    caplog.set_level(logging.ERROR, logger="hourglass.worker")
    async with executing(max_threads=2, hang_grace=0.01) as (executor, _):
        tokens = [b"1", b"2"]
        running = [
            asyncio.ensure_future(executor.execute(attempt("hangs", token=item, activity_id=item.decode())))
            for item in tokens
        ]
        await begun(2)
        waiting = asyncio.ensure_future(executor.execute(attempt("echo", "next", activity_id="3")))
        for item in tokens:
            executor.cancel(item, reason)
        results = [await item for item in running]
        following = value(await waiting)
        lost = executor.runner.statistics(), executor.running
        place.go.set()
        await until(lambda: executor.runner.statistics().lost_threads == 0)
        after = value(await executor.execute(attempt("echo", "after")))
    assert all(isinstance(item, AttemptCancelled) for item in results)
    assert (following, after) == ("next", "after")
    assert (lost[0].lost_threads, lost[1]) == (2, 0)
    assert "2 threads are abandoned now" in caplog.text


async def test_cancelled_activity_keeps_its_thread_for_clean_up():
    async with executing(hang_grace=0.0, cancel_grace=0.0) as (executor, _):
        running = asyncio.ensure_future(executor.execute(attempt("hangs")))
        await begun()
        executor.cancel(b"t", "CANCELLED")
        for _ in range(20):
            await asyncio.sleep(0)
        place.go.set()
        assert (value(await running), executor.runner.statistics().lost_threads) == ("late", 0)


async def test_hung_attempt_keeps_its_slot_at_the_limit_of_lost_threads(caplog):
    caplog.set_level(logging.ERROR, logger="hourglass.worker")
    async with executing(max_threads=2, max_lost_threads=1, hang_grace=0.01) as (executor, _):
        running = [
            asyncio.ensure_future(executor.execute(attempt("hangs", token=item, activity_id=item.decode())))
            for item in (b"1", b"2")
        ]
        await begun(2)
        executor.cancel(b"1", "TIMED_OUT")
        await running[0]
        executor.cancel(b"2", "TIMED_OUT")
        await until(lambda: "keeps its slot" in caplog.text)
        statistics, in_progress = executor.runner.statistics(), executor.running
        place.go.set()
        second = await running[1]
    assert (statistics.lost_threads, in_progress) == (1, 1)
    assert second is not None


async def test_hung_attempt_is_abandoned_when_a_later_attempt_starts():
    async with executing(max_threads=2, hang_grace=0.01) as (executor, _):
        former = asyncio.ensure_future(executor.execute(attempt("hangs", token=b"1")))
        await begun()
        later = value(await executor.execute(attempt("echo", "second", token=b"2", attempt=2)))
        assert (failure(await former)[0], later) == ("AttemptStopped", "second")


async def test_dead_activity_thread_is_replaced():
    async with executing(max_threads=1) as (executor, _):
        first = await executor.execute(attempt("interrupted"))
        following = [value(await executor.execute(attempt("echo", str(n)))) for n in range(5)]
    assert failure(first)[0] in ("SystemExit", "ThreadDied")
    assert following == ["0", "1", "2", "3", "4"]


def test_thread_pool_never_runs_an_abandoned_job():
    pool = ThreadPool("pool", 1)
    gate, ran = threading.Event(), threading.Event()
    try:
        running = pool.submit(gate.wait)
        waiting = pool.submit(lambda: place.seen.append("run"))
        assert pool.abandon(waiting)
        pool.submit(ran.set)
        gate.set()
        assert ran.wait(30)
        assert place.seen == []
        assert pool.size == 1
        assert pool.abandon(running)  # already over
        assert pool.lost == 0
    finally:
        pool.stop()


async def test_ended_attempts_are_freed_without_the_garbage_collector():
    async with executing() as (executor, _):
        gc.collect()
        gc.disable()
        try:
            for number in range(10):
                await executor.execute(attempt("echo", str(number)))
            await until(lambda: not any(isinstance(item, Attempt) for item in gc.get_objects()))
        finally:
            gc.enable()


def test_thread_pool_runs_waiting_jobs_in_parallel_up_to_its_limit():
    pool = ThreadPool("pool", 8)
    together = threading.Barrier(9)
    try:
        for _ in range(8):
            pool.submit(lambda: together.wait(30) and None)
        together.wait(30)
        assert pool.size == 8
    finally:
        pool.stop()


def test_thread_pool_runs_every_job_once():
    pool = ThreadPool("pool", 4)
    lock, ran, over = threading.Lock(), [], threading.Event()

    def job(number):
        if number % 50 == 0:
            threading.Event().wait(0.001)
        with lock:
            ran.append(number)
            if len(ran) == 2000:
                over.set()

    def submit(begin):
        for number in range(begin, begin + 500):
            pool.submit(partial(job, number))

    submitters = [threading.Thread(target=submit, args=(500 * item,)) for item in range(4)]
    try:
        for item in submitters:
            item.start()
        for item in submitters:
            item.join(30)
        assert over.wait(30)
        assert len(ran) == 2000
        assert pool.size <= 4
    finally:
        pool.stop()


def test_stopped_thread_pool_finishes_waiting_jobs():
    pool = ThreadPool("stopping", 1)
    gate, ran = threading.Event(), threading.Event()
    pool.submit(gate.wait)
    pool.submit(ran.set)
    pool.stop()
    gate.set()
    assert ran.wait(30)
    for thread in threading.enumerate():
        if thread.name.startswith("stopping"):
            thread.join(30)
    assert pool.size == 0


@pytest.mark.parametrize(
    ("how", "kind", "hopeless", "text"),
    [
        ("generator", "GeneratorExit", False, ""),
        ("recursion", "RecursionError", False, "recursion"),
        ("memory", "MemoryError", False, "no more"),
        ("base", "BaseException", False, "bare"),
        ("evil", "SystemExit", False, ""),
        ("large", "EncodeError", True, "3,000,012 bytes, more than the limit of 2,097,152"),
        ("large details", "Big", True, "more than the limit"),
        ("large heartbeat", "EncodeError", False, "a heartbeat of activity raises has 3,000,012 bytes"),
    ],
)
async def test_exception_or_oversized_value_of_an_activity_fails_only_its_attempt(how, kind, hopeless, text):
    async with executing(max_threads=1) as (executor, _):
        first, second = (
            await executor.execute(attempt("raises", how)),
            await executor.execute(attempt("raises", "ok")),
        )
    assert failure(first)[:2] == (kind, hopeless)
    assert text in failure(first)[2]
    assert value(second) == "ok"


def test_payload_limit_of_activity_results_is_configurable():
    assert failure(run("echo", "x" * 50, payload_limit=20))[0] == "EncodeError"
    assert value(run("raises", "large", payload_limit=None)) == "x" * 3_000_000


@pytest.mark.parametrize(("name", "code"), [("forks", "0"), ("forks_and_raises", "1"), ("forks_async", "0")])
def test_fork_of_the_worker_exits_when_it_leaves_the_activity(name, code, each_event_loop):
    if name == "forks_async" and each_event_loop == "uvloop" and sys.version_info >= (3, 14):
        code = "1"  # a coroutine of the copy cannot continue: its loop is not the running one
    done = subprocess.run(
        [sys.executable, "-m", "tests.worker.activities.forking", name, each_event_loop],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines() == [f"('{code}', 'on', [])"]
    assert done.stderr.count("forked") == 1


async def test_blocked_activity_loop_is_logged_with_its_stack_and_replaced(caplog):
    caplog.set_level(logging.WARNING, logger="hourglass.worker")
    async with executing(loop_tick=0.05, loop_limit=0.5) as (executor, _):
        running = asyncio.ensure_future(executor.execute(attempt("blocks")))
        await begun()
        await until(lambda: executor.runner.statistics().loop_blocked)
        place.go.set()
        result = value(await running)
        await until(lambda: not executor.runner.statistics().loop_blocked)
        statistics = executor.runner.statistics()
    assert (result, statistics.replaced_loops) == ("unblocked", 1)
    assert "activity blocks (1) of workflow w (run r) blocks its event loop" in caplog.text
    assert "place.go.wait()" in caplog.text
    assert "run_forever" not in caplog.text
    assert "responds again" in caplog.text


@pytest.mark.parametrize("name", ["blocks_in_a_task", "blocks_in_a_group"])
async def test_task_that_blocks_the_loop_is_attributed_to_its_activity(name, caplog):
    caplog.set_level(logging.WARNING, logger="hourglass.worker")
    async with executing(loop_tick=0.01, loop_limit=0.02) as (executor, _):
        running = asyncio.ensure_future(executor.execute(attempt(name, activity_id="7")))
        await begun()
        await until(lambda: executor.runner.statistics().loop_blocked)
        place.go.set()
        assert value(await running) == "unblocked"
    assert f"activity {name} (7) of workflow w (run r) blocks its event loop" in caplog.text


async def test_activities_leave_a_blocked_activity_loop():
    """New attempts run on a new loop, waiting attempts fail retryably, and the blocking attempt may still complete."""
    async with executing(loop_tick=0.05, loop_limit=0.5, waiting_least=0.05) as (executor, _):
        waiting = asyncio.ensure_future(executor.execute(attempt("waits_async", token=b"1", activity_id="1")))
        await begun()
        blocked = asyncio.ensure_future(executor.execute(attempt("blocks", token=b"2", activity_id="2")))
        await begun()
        queued = [
            asyncio.ensure_future(
                executor.execute(attempt("echo_async", str(n), token=b"b%d" % n, activity_id=f"b{n}"))
            )
            for n in range(20)
        ]
        moved = [value(await item) for item in queued]
        following = value(await executor.execute(attempt("echo_async", "new", token=b"3", activity_id="3")))
        lost = await waiting
        statistics, in_progress = executor.runner.statistics(), executor.running
        place.go.set()
        late = value(await blocked)
    assert moved == [str(n) for n in range(20)]
    assert (following, late) == ("new", "unblocked")
    assert (statistics.replaced_loops, statistics.loop_blocked, in_progress) == (1, True, 1)
    kind, hopeless, message = failure(lost)
    assert (kind, hopeless) == ("ActivityLoopBlocked", False)
    assert "activity blocks (2)" in message
    assert "place.go.wait()" in lost.failure.stack_trace


@pytest.mark.parametrize(
    "rule", [RetryRule(maximum_attempts=1), RetryRule(non_retryable_error_types=("ActivityLoopBlocked",))]
)
async def test_last_attempt_waits_for_its_blocked_activity_loop(rule):
    """An attempt without a following retry is not abandoned."""
    async with executing() as (executor, _):
        task = attempt("waits_on_the_loop", token=b"1", retry_policy=rule)
        waiting = asyncio.ensure_future(executor.execute(task))
        await begun()
        blocked = asyncio.ensure_future(executor.execute(attempt("blocks", token=b"2", activity_id="2")))
        await begun()
        executor.runner.still_blocked(executor.attempts[b"1"].work.loop, 3600.0)
        place.go.set()
        assert (value(await waiting), value(await blocked)) == ("continued", "unblocked")


@pytest.mark.parametrize(
    ("ran_for", "blocked_for", "given_up"),
    [(0.5, 1.9, False), (0.5, 2.0, True), (10.0, 9.0, False), (10.0, 11.0, True), (3600.0, 30.5, True)],
)
async def test_attempt_leaves_a_blocked_loop_after_waiting_as_long_as_it_ran(ran_for, blocked_for, given_up):
    async with executing() as (executor, _):
        running = asyncio.ensure_future(executor.execute(attempt("waits_async")))
        await begun()
        attempt_in_progress = executor.attempts[b"t"]
        attempt_in_progress.since -= ran_for + blocked_for
        executor.runner.still_blocked(attempt_in_progress.work.loop, blocked_for)
        over = attempt_in_progress.over
        executor.cancel(b"t", "CANCELLED")
        await running
        assert over is given_up


async def test_attempts_wait_for_the_last_loop_at_the_limit_of_blocked_loops(caplog):
    caplog.set_level(logging.WARNING, logger="hourglass.worker")
    async with executing(loop_tick=0.05, loop_limit=0.5, max_blocked_loops=1) as (executor, _):
        blocked = []
        for number in range(2):
            task = attempt("blocks", token=b"g%d" % number, activity_id=f"g{number}")
            blocked.append(asyncio.ensure_future(executor.execute(task)))
            await begun()
            await until(lambda: executor.runner.statistics().loop_blocked)
            await until(
                lambda n=number: (
                    executor.runner.statistics().replaced_loops > n
                    or "are blocked: no other loop" in caplog.text
                )
            )
        waiting = asyncio.ensure_future(executor.execute(attempt("echo_async", "late", token=b"w")))
        place.go.set()
        late, ends, statistics = (
            value(await waiting),
            [value(await item) for item in blocked],
            executor.runner.statistics(),
        )
    assert (late, ends, statistics.replaced_loops) == ("late", ["unblocked"] * 2, 1)
    assert "1 activity loops are blocked: no other loop" in caplog.text


@pytest.mark.parametrize("moved", [False, True])
async def test_async_attempt_cancelled_before_its_first_line_ends(moved):
    async with executing(loop_tick=0.01, loop_limit=0.02 if moved else 600.0) as (executor, _):
        blocked = asyncio.ensure_future(executor.execute(attempt("blocks", token=b"g", activity_id="g")))
        await begun()
        waiting = asyncio.ensure_future(executor.execute(attempt("waits_async")))
        await asyncio.sleep(0)
        executor.cancel(b"t", "CANCELLED")
        if not moved:
            place.go.set()
        result = await waiting
        place.go.set()
        assert value(await blocked) == "unblocked"
    assert isinstance(result, AttemptCancelled)


async def test_async_activity_that_swallows_its_cancellation_is_abandoned():
    async with executing(hang_grace=0.01) as (executor, _):
        running = asyncio.ensure_future(executor.execute(attempt("ignores_cancellation")))
        await begun()
        executor.cancel(b"t", "TIMED_OUT")
        result, left = await running, executor.running
    assert isinstance(result, AttemptCancelled)
    assert left == 0


async def test_failed_automatic_heartbeats_do_not_end_the_attempt(caplog):
    tried = []

    def heartbeat(token, details):
        tried.append(details)
        raise HandleBroken("gone")

    caplog.set_level(logging.WARNING, logger="hourglass.worker")
    async with executing(heartbeat=heartbeat, beat_interval=0.001) as (executor, _):
        task = attempt("hangs", heartbeat_timeout=30.0, heartbeat_details=payloads("cursor"))
        running = asyncio.ensure_future(executor.execute(task))
        await until(lambda: len(tried) >= 3)
        place.go.set()
        assert value(await running) == "late"
    assert set(tried) == {payloads("cursor")}
    assert caplog.text.count("heartbeats cannot be sent") == 1


@pytest.mark.parametrize("name", ["get_client", "get_client_async"])
def test_activity_client_is_the_workers_client(name):
    assert value(run(name, client=lambda: "the client")) == "the client"
    assert "connect a client" in failure(run(name))[2]


async def test_async_activity_is_cancelled_when_its_attempt_is_abandoned():
    async with executing() as (executor, _):
        running = asyncio.ensure_future(executor.execute(attempt("waits_async")))
        await begun()
        running.cancel()
        await asyncio.wait({running})
        assert executor.running == 0


@pytest.mark.parametrize("is_local", [False, True])
async def test_abandoning_an_attempt_does_not_affect_another_with_the_same_token(is_local):
    async with executing() as (executor, _):
        first, second = [], []
        facts = {"token": b"same", "is_local": is_local}
        old = executor.begin(attempt("hangs", **facts), first.append, 1)
        await begun()
        new = executor.begin(attempt("hangs", activity_id="2", **facts), second.append, 2)
        await begun()
        executor.abandon(old)
        executor.cancel(b"same", "CANCELLED", 1)
        seen = (executor.running, old.over, new.over, old.context.cancel_reason, new.context.cancel_reason)
        executor.cancel(b"same", "CANCELLED", 2)
        asked = new.context.cancel_reason
        place.go.set()
        await until(lambda: second)
    assert seen == (1, True, False, "WORKER_SHUTDOWN", None)
    assert (asked, first, value(second[0])) == ("CANCELLED", [], "late")
