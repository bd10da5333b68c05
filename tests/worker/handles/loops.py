"""The least that makes a worker over a holder: two poll loops that may be cancelled at any instant, and workflows that need no
state: each activation says what is next, also when it is replayed.
"""

from __future__ import annotations

import asyncio
import json
import random
import uuid
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from tests.specs import made

from hourglass._contract.handle import ActivityItem, ActivityOk, ActivityTask, HandleConfig, Shutdown
from hourglass._contract.service import Connection
from hourglass._contract.workflows import Outcome, StartWorkflow, StillOpen, WaitForClose
from hourglass._evaluator.commands import Command, CompleteRun, ScheduleActivity, Succeeded
from hourglass._evaluator.events import Activation, ActivityCompleted, RunStarted
from hourglass._worker.handles.handles import HandleRecord
from hourglass._worker.handles.holder import BridgeHolder, WorkerNotRegistered
from hourglass.converter import Payload

from .scripted import Taken, Worker, complete

STEPS = 3


def answer(activation: Activation) -> tuple[Command, ...]:
    """A workflow of three activities in a row that returns the last one's result."""
    commands: list[Command] = []
    for event in activation.events:
        done = (
            0
            if isinstance(event, RunStarted)
            else event.seq
            if isinstance(event, ActivityCompleted)
            else None
        )
        if done is None:
            continue
        if done == STEPS:
            assert isinstance(event, ActivityCompleted)
            commands.append(CompleteRun(event.result or Payload(b"null")))
        else:
            step = done + 1
            commands.append(
                made(
                    ScheduleActivity,
                    seq=step,
                    activity_id=str(step),
                    activity_type="step",
                    arguments=(Payload(json.dumps(step).encode()),),
                    start_to_close_timeout=30.0,
                )
            )
    return tuple(commands)


class LoopsOverHolder:
    """A worker on one queue. `hang` says of each activation whether its evaluator never answers."""

    def __init__(
        self, holder: BridgeHolder, queue: str, hang: Callable[[Activation], bool] = lambda _: False
    ) -> None:
        self.holder = holder
        self.queue = queue
        self.worker = Worker()
        self.fenced = 0
        self.executed = 0
        self.cancelled_loops = 0
        self._hang = hang
        self._work: set[asyncio.Task[None]] = set()
        self.loops: dict[str, asyncio.Task[None]] = {}

    async def start(self, **config: Any) -> None:
        await self.holder.register_worker(
            self.queue, HandleConfig(task_queue=self.queue, **config), self.worker
        )
        for kind in ("workflow", "activity"):
            self._loop(kind)

    def _loop(self, kind: str) -> None:
        self.loops[kind] = asyncio.get_running_loop().create_task(
            self._workflows() if kind == "workflow" else self._activities()
        )

    def kill_a_loop(self, kind: str) -> None:
        """Cancel a loop in whatever it is doing, and begin a new one."""
        self.loops[kind].cancel()
        self.cancelled_loops += 1
        self._loop(kind)

    async def _workflows(self) -> None:
        with suppress(Shutdown):
            await self.holder.serve_activations(
                self.queue, lambda record: lambda item: self._keep(self._evaluate(Taken(record, item)))
            )

    async def _activities(self) -> None:
        def receiver_of(record: HandleRecord) -> Callable[[ActivityItem], None]:
            def receive(item: ActivityItem) -> None:
                taken = Taken(record, item)
                if isinstance(item, ActivityTask):
                    self._keep(self._execute(taken.generation, item))

            return receive

        with suppress(Shutdown):
            await self.holder.serve_activities(self.queue, receiver_of)

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def _evaluate(self, ticket: Taken) -> None:
        if self._hang(ticket.item):
            return
        try:
            await complete(self.holder, ticket, Succeeded(ticket.item.run_id, answer(ticket.item)))
        except WorkerNotRegistered:
            self.fenced += 1

    async def _execute(self, generation: int, task: ActivityTask) -> None:
        self.executed += 1
        try:
            await self.holder.complete_activity(
                self.queue, generation, ActivityOk(task.token, task.arguments[0])
            )
        except WorkerNotRegistered:
            self.fenced += 1

    async def stop(self) -> None:
        """Farewell first; the loops then end by themselves."""
        await self.holder.unregister_worker(self.queue)
        await asyncio.gather(*self.loops.values())
        await self.holder.stop()
        if self._work:
            await asyncio.gather(*self._work)


async def start_workflow(connection: Connection, queue: str, workflow_id: str) -> None:
    await connection.call(
        made(
            StartWorkflow,
            workflow_id=workflow_id,
            workflow_type="Steps",
            task_queue=queue,
            request_id=uuid.uuid4().hex,
        )
    )


async def outcome(connection: Connection, workflow_id: str) -> Outcome:
    """How a workflow ended; waits as long as it takes."""
    while True:
        end = await connection.call(WaitForClose(workflow_id=workflow_id))
        if not isinstance(end, StillOpen):
            return end


async def harass(worker: LoopsOverHolder, rng: random.Random, *, recycle_after: list[int]) -> None:
    """Cancel loops at random instants, and recycle after so many attempts were executed, until cancelled."""
    while True:
        await asyncio.sleep(rng.random() * 0.01)
        worker.kill_a_loop(rng.choice(("workflow", "activity")))
        if recycle_after and worker.executed >= recycle_after[0]:
            del recycle_after[0]
            await worker.holder.recycle(worker.queue, "chaos")
