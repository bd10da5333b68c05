"""A minimal worker over a handle, and shortcuts for the tests on a server."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tests.specs import made

from hourglass._contract import workflows as wf
from hourglass._contract.handle import (
    ActivityItem,
    ActivityOk,
    ActivityResult,
    ActivityTask,
    HandleConfig,
    WorkKind,
)
from hourglass._evaluator import commands as cmd
from hourglass._evaluator import events as ev
from hourglass._temporal import connection as temporal
from hourglass._temporal.connection import TemporalConnection
from hourglass._temporal.handle import CoreHandle
from hourglass.converter import Payload

LIMIT = 30.0
"""The time limit of a test, in seconds."""

Evaluate = Callable[[ev.Activation], tuple[cmd.Command, ...]]
Execute = Callable[[ActivityItem], Awaitable[ActivityResult | None]]


def value(thing: Any) -> Payload:
    return Payload(json.dumps(thing).encode())


def unique(name: str) -> str:
    """Return a name that no other test uses."""
    return f"{name}-{uuid.uuid4().hex[:8]}"


def start(queue: str, workflow_id: str, **options: Any) -> wf.StartWorkflow:
    request = {"workflow_type": "Sample", "task_queue": queue, "request_id": uuid.uuid4().hex, **options}
    return made(wf.StartWorkflow, workflow_id=workflow_id, **request)


async def echo(item: ActivityItem) -> ActivityResult | None:
    """Return an activity's first argument."""
    return ActivityOk(item.token, item.arguments[0]) if isinstance(item, ActivityTask) else None


def one_activity(activation: ev.Activation) -> tuple[cmd.Command, ...]:
    """A workflow that calls one activity and returns its result; its next command follows from the activation alone."""
    for event in activation.events:
        if isinstance(event, ev.RunStarted):
            return (
                made(
                    cmd.ScheduleActivity,
                    seq=1,
                    activity_id="1",
                    activity_type="echo",
                    arguments=event.arguments or (value("hello"),),
                    start_to_close_timeout=20.0,
                ),
            )
        if isinstance(event, ev.ActivityCompleted):
            return (cmd.CompleteRun(event.result or value(None)),)
    return ()


class HandleWorker:
    """A minimal worker over a handle."""

    def __init__(self, handle: CoreHandle, evaluate: Evaluate, execute: Execute = echo) -> None:
        self.handle = handle
        self.seen: list[ev.Activation] = []
        self.failed_tasks = 0
        self._evaluate = evaluate
        self._execute = execute
        self._work: set[asyncio.Task[None]] = set()
        self._ends: dict[WorkKind, Exception] = {}
        self._ended = asyncio.Event()
        handle.start(self._activated, self._handed, self._end)

    def _activated(self, activations: Sequence[ev.Activation]) -> None:
        for activation in activations:
            self._keep(self._evaluated(activation))

    def _handed(self, items: Sequence[ActivityItem]) -> None:
        for item in items:
            self._keep(self._executed(item))

    def _end(self, kind: WorkKind, why: Exception) -> None:
        self._ends[kind] = why
        if len(self._ends) == len(WorkKind):
            self._ended.set()

    def _keep(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def _evaluated(self, activation: ev.Activation) -> None:
        self.seen.append(activation)
        evicted = any(isinstance(event, ev.RunEvicted) for event in activation.events)
        commands = () if evicted else self._evaluate(activation)
        await self.handle.complete_workflow_task(cmd.Succeeded(activation.run_id, commands))

    async def _executed(self, item: ActivityItem) -> None:
        result = await self._execute(item)
        if result is not None:
            await self.handle.complete_activity(result)

    async def stop(self) -> None:
        """Shut the handle down, wait until its work is completed, and finalize it."""
        self.handle.initiate_shutdown()
        await self._ended.wait()
        if self._work:
            await asyncio.gather(*self._work)
        await self.handle.finalize()

    def events(self, kind: type[ev.Event]) -> list[ev.Event]:
        """Return all events of a kind received so far."""
        return [event for activation in self.seen for event in activation.events if isinstance(event, kind)]


async def connect(target: str, **options: Any) -> TemporalConnection:
    return await temporal.connect(target, **options)


@asynccontextmanager
async def connected(target: str, **options: Any) -> AsyncIterator[TemporalConnection]:
    """A connection that is closed at the end."""
    connection = await connect(target, **options)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def working(
    connection: TemporalConnection, queue: str, evaluate: Evaluate = one_activity, execute: Execute = echo
) -> AsyncIterator[HandleWorker]:
    """A worker on a queue that is shut down at the end."""
    loops = HandleWorker(await connection.open_handle(HandleConfig(task_queue=queue)), evaluate, execute)
    try:
        yield loops
    finally:
        await loops.stop()


def run(
    test: Callable[[], Awaitable[None]],
    loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
) -> None:
    """Run a test with a time limit."""

    async def limited() -> None:
        async with asyncio.timeout(LIMIT):
            await test()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(limited())


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Poll the server or Core until a condition holds; `run` sets the time limit."""
    while not await condition():  # noqa: ASYNC110 - no event exists
        await asyncio.sleep(0.01)


async def outcome(connection: TemporalConnection, workflow_id: str, run_id: str = "") -> wf.Outcome:
    """Wait until a workflow is closed, and return its outcome."""
    while True:
        answer = await connection.call(wf.WaitForClose(workflow_id=workflow_id, run_id=run_id))
        if not isinstance(answer, wf.StillOpen):
            return answer


async def history(connection: TemporalConnection, workflow_id: str) -> list[bytes]:
    """Return all events of a workflow, in JSON."""
    events: list[bytes] = []
    token = b""
    while True:
        page = await connection.call(wf.GetHistory(workflow_id=workflow_id, next_page_token=token))
        events += page.events
        token = page.next_page_token
        if not token:
            return events


def kinds(events: list[bytes]) -> list[str]:
    """Return the types of these events, without their prefix."""
    return [json.loads(event)["eventType"].removeprefix("EVENT_TYPE_") for event in events]
