"""`async def` activities of `hourglass.aio.worker.Worker` run on the event loop of `async with Worker(...)`, as under
temporalio.
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


class Program:
    """What `main()` makes, and what its activities use."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.event: asyncio.Event | None = None
        self.begun = threading.Semaphore(0)
        self.go = threading.Event()
        self.seen: list[object] = []


program = Program()


@pytest.fixture(autouse=True)
def _fresh_program() -> Iterator[None]:
    program.__init__()  # type: ignore[misc]
    yield
    program.go.set()


@activity.defn
async def uses_event() -> list[object]:
    program.begun.release()
    assert program.event is not None
    await program.event.wait()
    return [asyncio.get_running_loop() is program.loop, colour.get()]


@activity.defn
def in_thread() -> list[object]:
    return [threading.current_thread() is threading.main_thread(), colour.get()]


@activity.defn
async def blocks() -> str:
    program.begun.release()
    program.go.wait(60)
    return "unblocked"


@activity.defn
async def waits() -> str:
    program.begun.release()
    try:
        await asyncio.get_running_loop().create_future()
    except asyncio.CancelledError:
        program.seen.append("cancelled")
        raise
    return "never"


@activity.defn
async def swallows() -> str:
    program.begun.release()
    while not program.go.is_set():
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            program.seen.append("swallowed")
    program.seen.append("late")
    return "late"


@activity.defn
async def beats_and_blocks() -> str:
    activity.heartbeat("half")
    program.go.wait(60)
    return "done"


@activity.defn
async def which_loop() -> int:
    return id(asyncio.get_running_loop())


@workflow.defn
class Calls:
    """Calls one activity by its name."""

    @workflow.run
    async def run(self, name: str) -> Any:
        return await workflow.execute_activity(name, start_to_close_timeout=60, heartbeat_timeout=30)


ACTIVITIES: list[Any] = [uses_event, in_thread, blocks, waits, swallows, beats_and_blocks, which_loop]


@asynccontextmanager
async def working(target: str = "local:", **options: Any) -> AsyncIterator[tuple[Client, Worker]]:
    """A client with a worker on this loop."""
    client = await Client.connect(target)
    async with Worker(
        client, task_queue=QUEUE, workflows=[Calls], activities=ACTIVITIES, **options
    ) as worker:
        yield client, worker
    await client.close()


async def begun() -> None:
    """Wait until an activity has begun."""
    assert await asyncio.to_thread(program.begun.acquire, timeout=60)


async def until(holds: Callable[[], object]) -> None:
    """Look until something holds that no event tells."""
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_async_activity_uses_event_of_main(tmp_path: Path, kind: str) -> None:
    """An event that `main()` made wakes an activity, which runs on main's loop and sees main's context variables."""

    async def main() -> None:
        program.loop, program.event = asyncio.get_running_loop(), asyncio.Event()
        colour.set("blue")
        async with working("local:" if kind == "memory" else f"local:{tmp_path}/app.db") as (client, _):
            handle = await client.start_workflow(Calls.run, "uses_event", id="w", task_queue=QUEUE)
            await begun()
            program.event.set()
            assert await handle.result() == [True, "blue"]

    asyncio.run(main())


def test_def_activity_sees_context_variables_of_main() -> None:
    """A `def` activity runs in a thread, with the context variables as they were at `async with Worker(...)`."""

    async def main() -> None:
        colour.set("red")
        async with working() as (client, _):
            found = await client.execute_workflow(Calls.run, "in_thread", id="w", task_queue=QUEUE)
            assert found == [False, "red"]

    asyncio.run(main())


def test_plain_worker_keeps_its_own_activity_loop() -> None:
    """`hourglass.Worker` runs the same activity on a loop of its own, also where it is entered with `async with`."""

    async def main() -> None:
        client = await hourglass.AsyncClient.connect("local:")
        async with hourglass.Worker(client, QUEUE, workflows=[Calls], activities=ACTIVITIES):
            found = await client.execute_workflow(Calls.run, "which_loop", task_queue=QUEUE)
            assert found != id(asyncio.get_running_loop())
        await client.close()

    asyncio.run(main())


def ready(address: str | None) -> bool:
    """Whether a worker says that it is ready."""
    try:
        with urllib.request.urlopen(f"http://{address}/ready", timeout=10) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError as error:
        if error.code != 503:
            raise
        return False


@pytest.mark.parametrize("who", ["an activity", "main"])
def test_blocked_program_loop_is_reported_and_unready(caplog: pytest.LogCaptureFixture, who: str) -> None:
    """While something blocks the loop the worker is not ready and the log has the stack; then both recover."""
    caplog.set_level(logging.WARNING, "hourglass.worker")
    verdicts: list[bool] = []

    def look(address: str | None) -> None:
        waiting.until(lambda: "blocks the event loop" in caplog.text)
        verdicts.append(ready(address))
        program.go.set()

    async def main() -> None:
        async with working(status_address="127.0.0.1:0") as (client, worker):
            address = worker.wrapped.status_address
            await until(lambda: ready(address))
            looking = threading.Thread(target=look, args=(address,))
            looking.start()
            if who == "main":
                program.go.wait(60)  # a mistake that programs make
            else:
                assert (
                    await client.execute_workflow(Calls.run, "blocks", id="w", task_queue=QUEUE)
                    == "unblocked"
                )
            await asyncio.to_thread(looking.join)
            await until(lambda: ready(address))

    asyncio.run(main())
    assert verdicts == [False]
    assert "program.go.wait(60)" in caplog.text
    assert ("code of the program blocks" in caplog.text) is (who == "main")
    assert "responds again" in caplog.text


def test_blocked_loop_does_not_stop_workflows_and_threads() -> None:
    """Workflows and `def` activities of the worker go on while its event loop is blocked."""
    found: list[object] = []

    def elsewhere(client: hourglass.Client) -> None:
        found.append(client.execute_workflow(Calls.run, "in_thread", task_queue=QUEUE))
        program.go.set()

    async def main() -> None:
        async with working() as (client, _):
            blocking = hourglass.Client(client.wrapped._session)
            thread = threading.Thread(target=elsewhere, args=(blocking,))
            thread.start()
            assert program.go.wait(60)
            await asyncio.to_thread(thread.join)

    asyncio.run(main())
    assert found == [[False, "none"]]


def test_two_workers_share_a_loop() -> None:
    """The activities of two workers run on the loop that entered both; one of them can end before the other."""

    async def main() -> None:
        async with working() as (client, _):
            async with Worker(client, task_queue="other", workflows=[Calls], activities=ACTIVITIES):
                both = await asyncio.gather(
                    *[
                        client.execute_workflow(Calls.run, "which_loop", id=queue, task_queue=queue)
                        for queue in (QUEUE, "other")
                    ]
                )
            last = await client.execute_workflow(Calls.run, "which_loop", id="last", task_queue=QUEUE)
            assert {*both, last} == {id(asyncio.get_running_loop())}

    asyncio.run(main())


async def with_open_activity() -> tuple[Client, Worker, asyncio.Task[None]]:
    """Return a client, and a running worker whose activity waits."""
    client = await Client.connect("local:")
    worker = Worker(
        client,
        task_queue=QUEUE,
        workflows=[Calls],
        activities=ACTIVITIES,
        graceful_shutdown_timeout=0.1,
    )
    running = asyncio.create_task(worker.run())
    await client.start_workflow(Calls.run, "waits", id="w", task_queue=QUEUE)
    await begun()
    return client, worker, running


def test_cancelled_run_cancels_activities_and_ends_worker() -> None:
    """`worker.run()` in a task that is cancelled ends the worker; its activity is cancelled after the graceful time."""

    async def main() -> None:
        client, worker, running = await with_open_activity()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not worker.is_running
        assert program.seen == ["cancelled"]
        await client.close()

    asyncio.run(main())


def test_run_cancelled_while_it_starts_leaves_nothing() -> None:
    """Whenever the task of `worker.run()` is cancelled while the worker starts, the queue is free again afterwards."""

    async def main() -> None:
        client = await Client.connect("local:")
        for turns in range(12):
            worker = Worker(client, task_queue=QUEUE, workflows=[Calls], activities=ACTIVITIES)
            running = asyncio.create_task(worker.run())
            for _ in range(turns):
                await asyncio.sleep(0.001)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert not worker.is_running
        async with Worker(client, task_queue=QUEUE, workflows=[Calls], activities=ACTIVITIES):
            found = await client.execute_workflow(Calls.run, "which_loop", id="w", task_queue=QUEUE)
            assert found == id(asyncio.get_running_loop())
        await client.close()

    asyncio.run(main())


def test_run_returns_after_shutdown_has_ended() -> None:
    """Where another task calls `shutdown`, `run` returns when the worker has ended, and not while activities still end."""

    async def main() -> None:
        client, worker, running = await with_open_activity()
        ending = asyncio.create_task(worker.shutdown())
        await running
        assert program.seen == ["cancelled"]
        await ending
        await client.close()

    asyncio.run(main())


def test_worker_starts_again_after_shutdown() -> None:
    """A worker can be entered again; one that was shut down before it ran ends at once."""

    async def main() -> None:
        client = await Client.connect("local:")
        worker = Worker(client, task_queue=QUEUE, workflows=[Calls], activities=ACTIVITIES)
        await worker.shutdown()
        await asyncio.wait_for(worker.run(), 60)
        for number in range(2):
            async with worker:
                found = await client.execute_workflow(
                    Calls.run, "which_loop", id=f"w-{number}", task_queue=QUEUE
                )
                assert found == id(asyncio.get_running_loop())
        await client.close()

    asyncio.run(main())


def test_shutdown_leaves_activities_that_do_not_stop() -> None:
    """An activity that swallows its cancellation is given up, and its task goes on until the program ends it."""

    async def main() -> None:
        async with working(graceful_shutdown_timeout=0.1) as (client, _):
            await client.start_workflow(Calls.run, "swallows", id="w", task_queue=QUEUE)
            await begun()
        assert "swallowed" in program.seen
        assert "late" not in program.seen
        program.go.set()
        await until(lambda: "late" in program.seen)

    asyncio.run(main())


def test_shutdown_while_loop_is_blocked() -> None:
    """A worker that is shut down from another thread ends although an activity blocks the loop."""

    async def main() -> None:
        async with working(graceful_shutdown_timeout=0.1) as (client, worker):
            await client.start_workflow(Calls.run, "blocks", id="w", task_queue=QUEUE)

            def end() -> None:
                program.begun.acquire(timeout=60)
                worker.wrapped.shutdown()
                program.seen.append("ended")
                program.go.set()

            thread = threading.Thread(target=end)
            thread.start()
            await asyncio.to_thread(thread.join)
            assert program.seen == ["ended"]

    asyncio.run(main())


def test_closed_loop_shuts_worker_down(caplog: pytest.LogCaptureFixture) -> None:
    """Where `main()` ends without leaving the worker, its loop is closed: that is said, and the worker ends."""
    workers: list[Worker] = []

    async def main() -> None:
        client = await Client.connect("local:")
        worker = Worker(client, task_queue=QUEUE, workflows=[Calls], activities=ACTIVITIES)
        workers.append(await worker.__aenter__())
        await client.start_workflow(Calls.run, "swallows", id="w", task_queue=QUEUE)
        await begun()
        program.go.set()

    asyncio.run(main())
    waiting.until(lambda: workers[0].wrapped._life.state == "stopped")
    assert "was closed before the worker" in caplog.text


def test_heartbeats_go_out_while_loop_is_blocked() -> None:
    """A heartbeat that was made right before the loop was blocked is sent by the control loop, which is another thread."""

    async def main() -> None:
        async with working() as (client, _):
            blocking: Any = hourglass.Client(client.wrapped._session).get_workflow_handle("w")

            def look() -> None:
                try:
                    waiting.until(
                        lambda: any(
                            each.last_heartbeat_time for each in blocking.describe().pending_activities
                        )
                    )
                    program.seen.append("heartbeat")
                finally:
                    program.go.set()

            await client.start_workflow(Calls.run, "beats_and_blocks", id="w", task_queue=QUEUE)
            thread = threading.Thread(target=look)
            thread.start()
            await asyncio.to_thread(thread.join)

    asyncio.run(main())
    assert program.seen == ["heartbeat"]
