from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable

import pytest

from hourglass import activity, workflow
from hourglass._bridge.handle import ActivityCancel, ActivityFailed, ActivityOk, HandleBroken
from hourglass._engine.commands import CompleteRun, Succeeded, TaskFailed
from hourglass._engine.context import RunSettings
from hourglass._engine.events import ActivityCompleted
from hourglass._runtime import queue_worker
from hourglass._runtime.cache import CacheLimits
from hourglass._runtime.evaluation import Evaluations
from hourglass._runtime.executors import ActivityExecutor
from hourglass._runtime.lanes import Lane, Lanes
from hourglass._runtime.queue_worker import QueueWorker
from hourglass._runtime.resolver import Resolver
from hourglass.converter import ApplicationFailure, default_converter

from .scripted import ScriptedHandle, attempt, evict, on, payloads, settled, start


class Place:
    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go = threading.Event()
        self.threads: dict[str, set[str]] = {}


place = Place()


@pytest.fixture(autouse=True)
def _fresh_place():
    place.__init__()
    yield
    place.go.set()


@activity.defn
def step(number: int) -> int:
    place.threads.setdefault("activity", set()).add(threading.current_thread().name)
    return number


@activity.defn
def blocks() -> str:
    place.begun.set()
    place.go.wait()
    return "late"


@activity.defn
def obeys() -> None:
    place.begun.set()
    while True:
        activity.heartbeat()
        place.go.wait(0.001)


@workflow.defn
def one_step(name: str) -> int:
    place.threads.setdefault(name, set()).add(threading.current_thread().name)
    try:
        return step(1)
    finally:
        place.threads[name].add(threading.current_thread().name)


@workflow.defn
def at_once() -> str:
    return "done"


@workflow.defn
def hangs() -> None:
    place.begun.set()
    place.go.wait()


Script = Callable[[QueueWorker, ScriptedHandle], Awaitable[None]]


def with_worker(
    script: Script,
    *,
    lanes: int = 1,
    limits: CacheLimits | None = None,
    graceful: float = 0.0,
    kind: type[ScriptedHandle] = ScriptedHandle,
) -> ScriptedHandle:
    """Run a script against a worker on a scripted handle, then shut the worker down."""

    async def main() -> ScriptedHandle:
        handle = kind()
        loop = asyncio.get_running_loop()
        resolver = Resolver(workflows=[one_step, at_once, hangs], activities=[step, blocks, obeys])
        parts = [
            Lane(
                f"lane-{n}", Evaluations(resolver.workflow, RunSettings(task_queue="q"), limits=limits), loop
            )
            for n in range(lanes)
        ]
        executor = ActivityExecutor(resolver, default_converter, handle.heartbeat, max_threads=8)
        gathered = Lanes(parts)
        worker = QueueWorker(handle, gathered, executor, name="worker", graceful_timeout=graceful)
        worker.start()
        try:
            async with asyncio.timeout(30):
                await script(worker, handle)
        finally:
            await worker.stop()
            place.go.set()
            assert await asyncio.to_thread(gathered.join, 10)
        return handle

    return asyncio.run(main())


def test_activations_are_answered_through_a_lane():
    """A run starts, goes on and closes; its code runs on a lane and its activity in a thread of its own."""

    async def script(worker, handle):
        handle.activations.put_nowait(start("r", "one_step", "a"))
        await handle.until(lambda: len(handle.completions) == 1)
        handle.activities.put_nowait(attempt("step", 1))
        await handle.until(lambda: len(handle.results) == 1)
        handle.activations.put_nowait(on("r", ActivityCompleted(1, payloads(1)[0])))
        await handle.until(lambda: len(handle.completions) == 2)

    handle = with_worker(script)
    assert handle.results == [ActivityOk(b"t", payloads(1)[0])]
    assert handle.completions[1] == Succeeded("r", (CompleteRun(payloads(1)[0]),))
    assert place.threads["a"] == {"lane-0"}
    assert place.threads["activity"] == {"hourglass-activity-1"}


def test_shutdown_initiates_first_and_finalises_last():
    """Everything that is open is answered in between."""

    async def script(worker, handle):
        handle.activations.put_nowait(start("r", "one_step", "a"))
        handle.activities.put_nowait(attempt("step", 1))
        await handle.until(lambda: len(handle.completions) == 1 and len(handle.results) == 1)
        await asyncio.gather(worker.stop(), worker.stop())

    log = with_worker(script).log
    assert log[-2:] == ["initiate", "finalize"]
    assert log.count("initiate") == log.count("finalize") == 1


def test_a_run_stays_on_its_lane_and_runs_spread():
    """New runs go to the lane with the fewest; all activations of a run go to the same one, until it is
    evicted.
    """

    async def script(worker, handle):
        for name in "abcd":
            handle.activations.put_nowait(start(name, "one_step", name))
        await handle.until(lambda: len(handle.completions) == 4)
        for name in "abcd":
            handle.activations.put_nowait(on(name, ActivityCompleted(1, payloads(1)[0])))
        await handle.until(lambda: len(handle.completions) == 8)
        for name in "abcd":
            handle.activations.put_nowait(evict(name))
        await handle.until(lambda: len(handle.completions) == 12)

    with_worker(script, lanes=2)
    homes = [place.threads[name] for name in "abcd"]
    assert all(len(home) == 1 for home in homes)
    assert sorted(next(iter(home)) for home in homes) == ["lane-0", "lane-0", "lane-1", "lane-1"]


def test_completions_of_one_run_are_in_order_and_runs_do_not_wait_for_each_other():
    """A slow send of one run holds back its own next one, and nobody else's."""

    async def script(worker, handle):
        gate = handle.gate["slow"] = asyncio.Event()
        handle.activations.put_nowait(start("slow", "one_step", "a"))
        await settled(lambda: "a" in place.threads and not worker.statistics()["open_activations"])
        handle.activations.put_nowait(on("slow", ActivityCompleted(1, payloads(1)[0])))
        handle.activations.put_nowait(start("fast", "at_once"))
        await handle.until(lambda: handle.log == ["completed fast"])
        gate.set()
        await handle.until(lambda: len(handle.completions) == 3)

    handle = with_worker(script)
    _, first, second = handle.completions
    assert isinstance(first, Succeeded)
    assert isinstance(second, Succeeded)
    assert not isinstance(first.commands[0], CompleteRun)
    assert isinstance(second.commands[0], CompleteRun)


def test_local_results_of_a_closed_run_wait_for_its_eviction():
    """From the terminal command to the eviction the ends of its local activities are held back; others are
    not.
    """

    async def script(worker, handle):
        handle.activities.put_nowait(attempt("blocks", token=b"local", run_id="r", is_local=True))
        await asyncio.to_thread(place.begun.wait)
        handle.activations.put_nowait(start("r", "at_once"))
        await handle.until(lambda: "completed r" in handle.log)
        place.go.set()
        handle.activities.put_nowait(attempt("step", 1, token=b"remote", run_id="r", activity_id="2"))
        handle.activities.put_nowait(
            attempt("step", 1, token=b"other", run_id="s", activity_id="3", is_local=True)
        )
        await handle.until(lambda: {"activity remote", "activity other"} <= set(handle.log))
        assert "activity local" not in handle.log
        handle.activations.put_nowait(evict("r"))
        await handle.until(lambda: "activity local" in handle.log)

    log = with_worker(script).log
    assert log.count("completed r") == 2
    assert log.index("activity local") > len(log) - 1 - log[::-1].index("completed r")


def test_a_cancellation_finds_its_attempt():
    """An `ActivityCancel` reaches the attempt of that token."""

    async def script(worker, handle):
        handle.activities.put_nowait(attempt("obeys"))
        await asyncio.to_thread(place.begun.wait)
        handle.activities.put_nowait(ActivityCancel(b"t"))
        await handle.until(lambda: len(handle.results) == 1)

    assert type(with_worker(script).results[0]).__name__ == "ActivityCancelled"


def test_evictions_are_asked_for_after_the_answer():
    """A run that the cache wants to lose is given back to the engine."""

    async def script(worker, handle):
        for name in "ab":
            handle.activations.put_nowait(start(name, "one_step", name))
        await handle.until(lambda: handle.evictions == ["a"])

    log = with_worker(script, limits=CacheLimits(states=1)).log
    assert log.index("evict a") > log.index("completed b")


def test_shutdown_waits_for_activities_within_the_graceful_time():
    """What ends in time is reported as it ended."""

    async def script(worker, handle):
        handle.activities.put_nowait(attempt("blocks"))
        await asyncio.to_thread(place.begun.wait)
        stopping = asyncio.ensure_future(worker.stop())
        await handle.until(lambda: "initiate" in handle.log)
        place.go.set()
        await stopping

    assert with_worker(script, graceful=30.0).results == [ActivityOk(b"t", payloads("late")[0])]


def _failure_type(result) -> str:
    assert isinstance(result, (ActivityFailed, TaskFailed)), result
    assert isinstance(result.failure.info, ApplicationFailure)
    return result.failure.info.type


def test_shutdown_stops_activities_that_listen_and_fails_those_that_do_not(monkeypatch):
    """After the graceful time: cancelled, then given up; both fail so that another worker may try."""
    monkeypatch.setattr(queue_worker, "CANCEL_GRACE", 0.05)

    async def script(worker, handle):
        handle.activities.put_nowait(attempt("blocks", token=b"deaf", activity_id="1"))
        await asyncio.to_thread(place.begun.wait)
        place.begun.clear()
        handle.activities.put_nowait(attempt("obeys", token=b"listens", activity_id="2"))
        await asyncio.to_thread(place.begun.wait)
        await worker.stop()

    handle = with_worker(script)
    assert {result.token: _failure_type(result) for result in handle.results} == {
        b"deaf": "WorkerShutdown",
        b"listens": "WorkerShutdown",
    }
    assert handle.log[-1] == "finalize"


def test_shutdown_fails_what_a_hung_lane_does_not_answer(monkeypatch):
    """The activation is completed as failed; what the lane says later is fenced off."""
    monkeypatch.setattr(queue_worker, "WORKFLOW_GRACE", 0.05)
    fenced = []

    async def script(worker, handle):
        handle.activations.put_nowait(start("r", "hangs"))
        await asyncio.to_thread(place.begun.wait)
        await worker.stop()
        place.go.set()
        await settled(lambda: worker.fenced)
        fenced.append(worker.fenced)

    handle = with_worker(script)
    (completion,) = handle.completions
    assert _failure_type(completion) == "WorkerShutdown"
    assert fenced == [1]


def test_a_failing_poll_is_tried_again_and_a_broken_handle_ends_it(caplog):
    """A passing error backs off; `HandleBroken` ends the worker and says so."""
    errors = [RuntimeError("hiccup"), HandleBroken("gone")]
    seen = []

    async def script(worker, handle):
        with pytest.raises(HandleBroken):
            await worker.ended()
        seen.append(worker.polling)

    class Failing(ScriptedHandle):
        async def poll_activation(self):
            raise errors.pop(0)

    with caplog.at_level(logging.ERROR):
        with_worker(script, kind=Failing)
    assert seen == [False]
    assert "poll failed, again in" in caplog.text
    assert "takes no more work" in caplog.text


def test_a_send_that_fails_stops_nobody(caplog):
    """An answer that cannot be sent is logged; the next run is served."""

    async def script(worker, handle):
        keep = handle.complete_activation

        async def fails_once(completion):
            handle.complete_activation = keep
            raise RuntimeError("no wire")

        handle.complete_activation = fails_once
        handle.activations.put_nowait(start("r", "at_once"))
        handle.activations.put_nowait(start("s", "at_once"))
        await handle.until(lambda: len(handle.completions) == 1)

    with_worker(script)
    assert "could not be sent" in caplog.text


def test_many_runs_through_few_threads():
    """A thousand runs are all answered, each once."""

    async def script(worker, handle):
        for number in range(1000):
            handle.activations.put_nowait(start(f"r{number}", "at_once"))
        await handle.until(lambda: len(handle.completions) == 1000)

    handle = with_worker(script, lanes=3)
    assert len({completion.run_id for completion in handle.completions}) == 1000
