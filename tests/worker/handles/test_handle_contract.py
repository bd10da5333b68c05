"""The contract of a handle, on every engine: in memory, on a file, in another process, with a codec, and through Core."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.polled import Polled
from tests.specs import made

from hourglass._contract import workflows as wf
from hourglass._contract.handle import (
    ActivityCancel,
    ActivityOk,
    ActivityTask,
    HandleBroken,
    HandleConfig,
    Shutdown,
    WorkKind,
)
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass._evaluator.commands import Completion, Succeeded
from hourglass.converter import Payload

from .engines import Call, opened

KINDS = [
    "memory",
    "file",
    "another process",
    "codec",
    pytest.param("core", marks=pytest.mark.server),
]


class HandleWorld:
    """A handle, the queue that it serves, and calls to its engine."""

    def __init__(self, handle: Polled, queue: str, call: Call) -> None:
        self.handle = handle
        self.queue = queue
        self._call = call

    async def start(self, name: str = "w") -> str:
        request = made(
            wf.StartWorkflow,
            workflow_id=f"{name} of {self.queue}",
            workflow_type="t",
            task_queue=self.queue,
            request_id=uuid.uuid4().hex,
        )
        run_id: str = (await self._call(request)).run_id
        return run_id

    async def outcome(self, name: str = "w") -> wf.Outcome:
        while True:
            end = await self._call(wf.WaitForClose(workflow_id=f"{name} of {self.queue}"))
            if not isinstance(end, wf.StillOpen):
                return end  # type: ignore[no-any-return]

    async def terminate(self, name: str = "w") -> None:
        await self._call(wf.TerminateWorkflow(workflow_id=f"{name} of {self.queue}"))

    async def complete(self, run_id: str, *commands: c.Command) -> None:
        await self.handle.complete_activation(Succeeded(run_id, commands))

    async def complete_evictions(self) -> None:
        """Complete the evictions of closed runs until the handle has ended."""
        try:
            while True:
                activation = await self.handle.poll_activation()
                await self.complete(activation.run_id)
        except Shutdown:
            pass


@pytest.fixture
def on_a_handle(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., None]:
    """Return a function that runs a test on a handle and then shuts the handle down."""
    kind: str = request.param
    target = request.getfixturevalue("hourglass_server").target if kind == "core" else ""

    def run(test: Callable[[HandleWorld], Awaitable[None]], **options: Any) -> None:
        async def limited() -> None:
            async with asyncio.timeout(60), opened(kind, tmp_path / "a.db", target) as (open_handle, call):
                queue = f"q-{uuid.uuid4().hex[:8]}"
                config = HandleConfig(task_queue=queue, identity="me", **options)
                world = HandleWorld(Polled(await open_handle(config)), queue, call)
                await test(world)
                if len(world.handle.ends) < len(WorkKind):
                    evictions = asyncio.ensure_future(world.complete_evictions())
                    await world.handle.stop()
                    await evictions

        asyncio.run(limited())

    return run


on_every_handle = pytest.mark.parametrize("on_a_handle", KINDS, indirect=True)

SCHEDULE = made(c.ScheduleActivity, seq=1, activity_id="1", activity_type="a", start_to_close_timeout=30.0)
DONE = c.CompleteRun(Payload(b"1"))


@on_every_handle
def test_handle_delivers_and_completes_a_run_with_an_activity(on_a_handle: Callable[..., None]) -> None:
    async def test(world: HandleWorld) -> None:
        run_id = await world.start()
        first = await world.handle.poll_activation()
        assert (first.run_id, type(first.events[0])) == (run_id, e.RunStarted)
        await world.complete(run_id, SCHEDULE)
        task = await world.handle.poll_activity()
        assert isinstance(task, ActivityTask)
        world.handle.heartbeat(task.token, (Payload(b"2"),))
        await world.handle.complete_activity(ActivityOk(task.token, Payload(b"3")))
        second = await world.handle.poll_activation()
        assert [type(event) for event in second.events] == [e.ActivityCompleted]
        await world.complete(run_id, DONE)
        assert isinstance(await world.outcome(), wf.RunCompleted)

    on_a_handle(test)


@on_every_handle
def test_requested_eviction_is_delivered_and_the_next_activation_replays(
    on_a_handle: Callable[..., None],
) -> None:
    async def test(world: HandleWorld) -> None:
        run_id = await world.start()
        await world.handle.poll_activation()
        await world.complete(run_id, SCHEDULE)
        task = await world.handle.poll_activity()
        world.handle.request_eviction(run_id)
        eviction = await world.handle.poll_activation()
        assert [type(event) for event in eviction.events] == [e.RunEvicted]
        await world.complete(run_id)
        await world.handle.complete_activity(ActivityOk(task.token, Payload(b"3")))
        replayed = await world.handle.poll_activation()
        assert isinstance(replayed.events[0], e.RunStarted)
        await world.terminate()
        await world.complete(run_id)

    on_a_handle(test)


@on_every_handle
def test_paused_kind_of_work_receives_at_most_one_task_until_resumed(
    on_a_handle: Callable[..., None],
) -> None:
    async def test(world: HandleWorld) -> None:
        world.handle.pause(WorkKind.WORKFLOWS)
        run_ids = {await world.start(f"w{number}") for number in range(4)}
        await asyncio.sleep(0.2)  # long enough for an engine that ignores the pause
        assert len(world.handle.activations) <= 1
        world.handle.resume(WorkKind.WORKFLOWS)
        got = {(await world.handle.poll_activation()).run_id for _ in run_ids}
        assert got == run_ids
        for run_id in run_ids:
            await world.complete(run_id, DONE)

    on_a_handle(test)


@on_every_handle
def test_handle_reports_its_end_after_all_tasks_are_completed(on_a_handle: Callable[..., None]) -> None:
    async def test(world: HandleWorld) -> None:
        handle = world.handle
        run_id = await world.start()
        await handle.poll_activation()
        await world.complete(run_id, SCHEDULE)
        task = await handle.poll_activity()
        assert isinstance(task, ActivityTask)
        handle.pause(WorkKind.WORKFLOWS)
        handle.initiate_shutdown()
        handle.initiate_shutdown()
        await asyncio.sleep(0.05)  # time for a premature end
        assert WorkKind.ACTIVITIES not in handle.ends
        evictions = asyncio.ensure_future(world.complete_evictions())
        await handle.complete_activity(ActivityOk(task.token, Payload(b"3")))
        while WorkKind.ACTIVITIES not in handle.ends:
            try:
                assert isinstance(await handle.poll_activity(), ActivityCancel)
            except Shutdown:
                break
        await evictions
        assert {type(why) for why in handle.ends.values()} == {Shutdown}
        await handle.finalize()

    on_a_handle(test)


@on_every_handle
def test_completion_on_a_finalized_handle_does_not_hang(on_a_handle: Callable[..., None]) -> None:
    async def test(world: HandleWorld) -> None:
        await world.handle.stop()
        completion: Completion = Succeeded("unknown")
        try:
            async with asyncio.timeout(5):
                await world.handle.complete_activation(completion)
        except HandleBroken:
            pass
        assert len(world.handle.ends) == len(WorkKind)

    on_a_handle(test)


@on_every_handle
def test_handle_without_workflows_receives_none_and_ends_at_shutdown(
    on_a_handle: Callable[..., None],
) -> None:
    async def test(world: HandleWorld) -> None:
        await world.start()
        await asyncio.sleep(0.05)  # time for a premature end
        assert (world.handle.ends, list(world.handle.activations)) == ({}, [])
        await world.handle.stop()
        assert set(world.handle.ends) == set(WorkKind)

    on_a_handle(test, workflows=False)
