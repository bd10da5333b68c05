"""`async def` activities of `hourglass.aio.worker.Worker`: as under temporalio, they run on the event loop that
entered the worker.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests import waiting

import hourglass
from hourglass.aio import activity, workflow
from hourglass.aio.client import Client
from hourglass.aio.worker import Worker

pytestmark = pytest.mark.usefixtures("each_event_loop")

QUEUE = "program"
colour: contextvars.ContextVar[str] = contextvars.ContextVar("colour", default="none")


class Shared:
    """State shared by the program and its activities."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.event: asyncio.Event | None = None
        self.activity_begun = threading.Semaphore(0)
        self.release = threading.Event()
        self.notes: list[object] = []


shared = Shared()


@pytest.fixture(autouse=True)
def _reset_program() -> Iterator[None]:
    shared.__init__()  # type: ignore[misc]
    yield
    shared.release.set()


@activity.defn
async def uses_event() -> list[object]:
    shared.activity_begun.release()
    assert shared.event is not None
    await shared.event.wait()
    return [asyncio.get_running_loop() is shared.loop, colour.get()]


@activity.defn
def in_thread() -> list[object]:
    return [threading.current_thread() is threading.main_thread(), colour.get()]


@activity.defn
async def blocks() -> str:
    shared.activity_begun.release()
    shared.release.wait(60)
    return "unblocked"


@activity.defn
async def waits() -> str:
    shared.activity_begun.release()
    try:
        await asyncio.get_running_loop().create_future()
    except asyncio.CancelledError:
        shared.notes.append("cancelled")
        raise
    return "never"


@activity.defn
async def swallows() -> str:
    shared.activity_begun.release()
    while not shared.release.is_set():
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            shared.notes.append("swallowed")
    shared.notes.append("late")
    return "late"


@activity.defn
async def beats_and_blocks() -> str:
    activity.heartbeat("half")
    shared.release.wait(60)
    return "done"


@activity.defn
async def which_loop() -> int:
    return id(asyncio.get_running_loop())


@workflow.defn
class CallsActivity:
    @workflow.run
    async def run(self, name: str) -> Any:
        return await workflow.execute_activity(name, start_to_close_timeout=60, heartbeat_timeout=30)


ACTIVITIES: list[Any] = [uses_event, in_thread, blocks, waits, swallows, beats_and_blocks, which_loop]


@asynccontextmanager
async def running_worker(target: str = "local:", **options: Any) -> AsyncIterator[tuple[Client, Worker]]:
    client = await Client.connect(target)
    async with Worker(
        client, task_queue=QUEUE, workflows=[CallsActivity], activities=ACTIVITIES, **options
    ) as worker:
        yield client, worker
    await client.close()


async def wait_until_begun() -> None:
    assert await asyncio.to_thread(shared.activity_begun.acquire, timeout=60)


async def wait_for(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("kind", ["memory", "file"])
async def test_async_activity_runs_on_the_loop_and_context_of_the_program(tmp_path: Path, kind: str) -> None:
    shared.loop, shared.event = asyncio.get_running_loop(), asyncio.Event()
    colour.set("blue")
    async with running_worker("local:" if kind == "memory" else f"local:{tmp_path}/app.db") as (
        client,
        _,
    ):
        handle = await client.start_workflow(CallsActivity.run, "uses_event", id="w", task_queue=QUEUE)
        await wait_until_begun()
        shared.event.set()
        assert await handle.result() == [True, "blue"]


async def test_def_activity_runs_in_a_thread_with_context_variables_of_the_program() -> None:
    colour.set("red")
    async with running_worker() as (client, _):
        found = await client.execute_workflow(CallsActivity.run, "in_thread", id="w", task_queue=QUEUE)
        assert found == [False, "red"]


async def test_hourglass_worker_runs_async_activities_on_its_own_loop() -> None:
    client = await hourglass.AsyncClient.connect("local:")
    async with hourglass.Worker(client, QUEUE, workflows=[CallsActivity], activities=ACTIVITIES):
        found = await client.execute_workflow(CallsActivity.run, "which_loop", task_queue=QUEUE)
        assert found != id(asyncio.get_running_loop())
    await client.close()


def is_ready(address: str | None) -> bool:
    """Return whether the worker's status address reports it as ready."""
    try:
        with urllib.request.urlopen(f"http://{address}/ready", timeout=10) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError as error:
        if error.code != 503:
            raise
        return False


@pytest.mark.parametrize("blocker", ["an activity", "main"])
async def test_blocked_event_loop_is_logged_and_makes_the_worker_unready(
    caplog: pytest.LogCaptureFixture, blocker: str
) -> None:
    caplog.set_level(logging.WARNING, "hourglass.worker")
    readiness: list[bool] = []

    def observe(address: str | None) -> None:
        waiting.until(lambda: "blocks the event loop" in caplog.text)
        readiness.append(is_ready(address))
        shared.release.set()

    async with running_worker(status_address="127.0.0.1:0") as (client, worker):
        address = worker.wrapped.status_address
        await wait_for(lambda: is_ready(address))
        observer = threading.Thread(target=observe, args=(address,))
        observer.start()
        if blocker == "main":
            shared.release.wait(60)  # a mistake that programs make
        else:
            assert (
                await client.execute_workflow(CallsActivity.run, "blocks", id="w", task_queue=QUEUE)
                == "unblocked"
            )
        await asyncio.to_thread(observer.join)
        await wait_for(lambda: is_ready(address))
    assert readiness == [False]
    assert "shared.release.wait(60)" in caplog.text
    assert ("code of the program blocks" in caplog.text) is (blocker == "main")
    assert "responds again" in caplog.text


async def test_workflows_and_def_activities_run_while_the_event_loop_is_blocked() -> None:
    found: list[object] = []

    def call_from_thread(client: hourglass.Client) -> None:
        found.append(client.execute_workflow(CallsActivity.run, "in_thread", task_queue=QUEUE))
        shared.release.set()

    async with running_worker() as (client, _):
        blocking = hourglass.Client(client.wrapped._session)
        thread = threading.Thread(target=call_from_thread, args=(blocking,))
        thread.start()
        assert shared.release.wait(60)
        await asyncio.to_thread(thread.join)
    assert found == [[False, "none"]]


async def test_two_workers_run_their_activities_on_one_event_loop() -> None:
    async with running_worker() as (client, _):
        async with Worker(client, task_queue="other", workflows=[CallsActivity], activities=ACTIVITIES):
            both = await asyncio.gather(
                *[
                    client.execute_workflow(CallsActivity.run, "which_loop", id=queue, task_queue=queue)
                    for queue in (QUEUE, "other")
                ]
            )
        last = await client.execute_workflow(CallsActivity.run, "which_loop", id="last", task_queue=QUEUE)
        assert {*both, last} == {id(asyncio.get_running_loop())}


async def start_with_open_activity() -> tuple[Client, Worker, asyncio.Task[None]]:
    """Return a client, its running worker and the task of `run()`, while an activity waits."""
    client = await Client.connect("local:")
    worker = Worker(
        client,
        task_queue=QUEUE,
        workflows=[CallsActivity],
        activities=ACTIVITIES,
        graceful_shutdown_timeout=0.1,
    )
    running = asyncio.create_task(worker.run())
    await client.start_workflow(CallsActivity.run, "waits", id="w", task_queue=QUEUE)
    await wait_until_begun()
    return client, worker, running


async def test_cancelling_worker_run_cancels_its_activities_and_stops_it() -> None:
    client, worker, running = await start_with_open_activity()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not worker.is_running
    assert shared.notes == ["cancelled"]
    await client.close()


async def test_cancelling_worker_run_during_startup_frees_its_task_queue() -> None:
    """Cancels at twelve points of the startup."""
    client = await Client.connect("local:")
    for turns in range(12):
        worker = Worker(client, task_queue=QUEUE, workflows=[CallsActivity], activities=ACTIVITIES)
        running = asyncio.create_task(worker.run())
        for _ in range(turns):
            await asyncio.sleep(0.001)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not worker.is_running
    async with Worker(client, task_queue=QUEUE, workflows=[CallsActivity], activities=ACTIVITIES):
        found = await client.execute_workflow(CallsActivity.run, "which_loop", id="w", task_queue=QUEUE)
        assert found == id(asyncio.get_running_loop())
    await client.close()


async def test_worker_run_returns_after_shutdown_has_ended_activities() -> None:
    client, worker, running = await start_with_open_activity()
    ending = asyncio.create_task(worker.shutdown())
    await running
    assert shared.notes == ["cancelled"]
    await ending
    await client.close()


async def test_worker_can_be_started_again_after_shutdown() -> None:
    client = await Client.connect("local:")
    worker = Worker(client, task_queue=QUEUE, workflows=[CallsActivity], activities=ACTIVITIES)
    await worker.shutdown()
    await asyncio.wait_for(worker.run(), 60)
    for number in range(2):
        async with worker:
            found = await client.execute_workflow(
                CallsActivity.run, "which_loop", id=f"w-{number}", task_queue=QUEUE
            )
            assert found == id(asyncio.get_running_loop())
    await client.close()


async def test_shutdown_abandons_activity_that_swallows_its_cancellation() -> None:
    async with running_worker(graceful_shutdown_timeout=0.1) as (client, _):
        await client.start_workflow(CallsActivity.run, "swallows", id="w", task_queue=QUEUE)
        await wait_until_begun()
    assert "swallowed" in shared.notes
    assert "late" not in shared.notes
    shared.release.set()
    await wait_for(lambda: "late" in shared.notes)


async def test_worker_shuts_down_while_an_activity_blocks_the_event_loop() -> None:
    async with running_worker(graceful_shutdown_timeout=0.1) as (client, worker):
        await client.start_workflow(CallsActivity.run, "blocks", id="w", task_queue=QUEUE)

        def end() -> None:
            shared.activity_begun.acquire(timeout=60)
            worker.wrapped.shutdown()
            shared.notes.append("ended")
            shared.release.set()

        thread = threading.Thread(target=end)
        thread.start()
        await asyncio.to_thread(thread.join)
        assert shared.notes == ["ended"]


def test_worker_shuts_down_when_its_event_loop_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    workers: list[Worker] = []

    async def main() -> None:
        client = await Client.connect("local:")
        worker = Worker(client, task_queue=QUEUE, workflows=[CallsActivity], activities=ACTIVITIES)
        workers.append(await worker.__aenter__())
        await client.start_workflow(CallsActivity.run, "swallows", id="w", task_queue=QUEUE)
        await wait_until_begun()
        shared.release.set()

    asyncio.run(main())
    waiting.until(lambda: workers[0].wrapped._life.state == "stopped")
    assert "was closed before the worker" in caplog.text


async def test_heartbeats_are_sent_while_the_event_loop_is_blocked() -> None:
    """The control loop, in another thread, sends them."""
    async with running_worker() as (client, _):
        blocking: Any = hourglass.Client(client.wrapped._session).get_workflow_handle("w")

        def observe() -> None:
            try:
                waiting.until(
                    lambda: any(each.last_heartbeat_time for each in blocking.describe().pending_activities)
                )
                shared.notes.append("heartbeat")
            finally:
                shared.release.set()

        await client.start_workflow(CallsActivity.run, "beats_and_blocks", id="w", task_queue=QUEUE)
        thread = threading.Thread(target=observe)
        thread.start()
        await asyncio.to_thread(thread.join)
    assert shared.notes == ["heartbeat"]
