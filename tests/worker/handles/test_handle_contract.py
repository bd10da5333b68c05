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


class Place:
    """A handle, the queue that it serves, and calls on its engine."""

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

    async def answer_evictions(self) -> None:
        """Complete the evictions of runs that have closed, until the handle has ended."""
        try:
            while True:
                activation = await self.handle.poll_activation()
                await self.complete(activation.run_id)
        except Shutdown:
            pass


@pytest.fixture
def on_a_handle(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., None]:
    """Run a test on a handle, which is then shut down in order."""
    kind: str = request.param
    target = request.getfixturevalue("hourglass_server").target if kind == "core" else ""

    def run(test: Callable[[Place], Awaitable[None]], **options: Any) -> None:
        async def limited() -> None:
            async with asyncio.timeout(60), opened(kind, tmp_path / "a.db", target) as (open_handle, call):
                queue = f"q-{uuid.uuid4().hex[:8]}"
                config = HandleConfig(task_queue=queue, identity="me", **options)
                place = Place(Polled(await open_handle(config)), queue, call)
                await test(place)
                if len(place.handle.ends) < len(WorkKind):
                    evictions = asyncio.ensure_future(place.answer_evictions())
                    await place.handle.stop()
                    await evictions

        asyncio.run(limited())

    return run


on_every_handle = pytest.mark.parametrize("on_a_handle", KINDS, indirect=True)

SCHEDULE = made(c.ScheduleActivity, seq=1, activity_id="1", activity_type="a", start_to_close_timeout=30.0)
DONE = c.CompleteRun(Payload(b"1"))


@on_every_handle
def test_run_with_one_activity(on_a_handle: Callable[..., None]) -> None:
    """Activation, completion, attempt, result, activation, completion."""

    async def test(place: Place) -> None:
        run_id = await place.start()
        first = await place.handle.poll_activation()
        assert (first.run_id, type(first.events[0])) == (run_id, e.RunStarted)
        await place.complete(run_id, SCHEDULE)
        task = await place.handle.poll_activity()
        assert isinstance(task, ActivityTask)
        place.handle.heartbeat(task.token, (Payload(b"2"),))
        await place.handle.complete_activity(ActivityOk(task.token, Payload(b"3")))
        second = await place.handle.poll_activation()
        assert [type(event) for event in second.events] == [e.ActivityCompleted]
        await place.complete(run_id, DONE)
        assert isinstance(await place.outcome(), wf.RunCompleted)

    on_a_handle(test)


@on_every_handle
def test_requested_eviction_is_delivered(on_a_handle: Callable[..., None]) -> None:
    """It is completed like any activation, and the next activation of the run begins with its start."""

    async def test(place: Place) -> None:
        run_id = await place.start()
        await place.handle.poll_activation()
        await place.complete(run_id, SCHEDULE)
        task = await place.handle.poll_activity()
        place.handle.request_eviction(run_id)
        eviction = await place.handle.poll_activation()
        assert [type(event) for event in eviction.events] == [e.RunEvicted]
        await place.complete(run_id)
        await place.handle.complete_activity(ActivityOk(task.token, Payload(b"3")))
        again = await place.handle.poll_activation()
        assert isinstance(again.events[0], e.RunStarted)
        await place.terminate()
        await place.complete(run_id)

    on_a_handle(test)


@on_every_handle
def test_paused_kind_receives_nothing_new(on_a_handle: Callable[..., None]) -> None:
    """Except items on their way; after `resume` the rest is delivered, and nothing is lost."""

    async def test(place: Place) -> None:
        place.handle.pause(WorkKind.WORKFLOWS)
        run_ids = {await place.start(f"w{number}") for number in range(4)}
        await asyncio.sleep(0.2)  # as long as an engine takes that does not care
        assert len(place.handle.activations) <= 1
        place.handle.resume(WorkKind.WORKFLOWS)
        got = {(await place.handle.poll_activation()).run_id for _ in run_ids}
        assert got == run_ids
        for run_id in run_ids:
            await place.complete(run_id, DONE)

    on_a_handle(test)


@on_every_handle
def test_end_is_reported_after_all_completions(on_a_handle: Callable[..., None]) -> None:
    """`Shutdown` is reported once per kind, not while an activation or an attempt is in progress, and also if a kind is
    paused.
    """

    async def test(place: Place) -> None:
        handle = place.handle
        run_id = await place.start()
        await handle.poll_activation()
        await place.complete(run_id, SCHEDULE)
        task = await handle.poll_activity()
        assert isinstance(task, ActivityTask)
        handle.pause(WorkKind.WORKFLOWS)
        handle.initiate_shutdown()
        handle.initiate_shutdown()
        await asyncio.sleep(0.05)  # time for a wrong end
        assert WorkKind.ACTIVITIES not in handle.ends
        evictions = asyncio.ensure_future(place.answer_evictions())
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
def test_finalized_handle_rejects_completions(on_a_handle: Callable[..., None]) -> None:
    """It raises `HandleBroken`, or does nothing; it never hangs."""

    async def test(place: Place) -> None:
        await place.handle.stop()
        completion: Completion = Succeeded("unknown")
        try:
            async with asyncio.timeout(5):
                await place.handle.complete_activation(completion)
        except HandleBroken:
            pass
        assert len(place.handle.ends) == len(WorkKind)

    on_a_handle(test)


@on_every_handle
def test_disabled_kind_ends_with_the_others(on_a_handle: Callable[..., None]) -> None:
    """Nothing is delivered for it, and it does not end before the shutdown."""

    async def test(place: Place) -> None:
        await place.start()
        await asyncio.sleep(0.05)  # time for a wrong end
        assert (place.handle.ends, list(place.handle.activations)) == ({}, [])
        await place.handle.stop()
        assert set(place.handle.ends) == set(WorkKind)

    on_a_handle(test, workflows=False)
