"""A minimal worker over a holder: two poll loops that may be cancelled at any time, and workflows without state, whose
next command follows from the activation alone.
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

from .scripted import DispatchedItem, Worker, complete

STEPS = 3


def next_commands(activation: Activation) -> tuple[Command, ...]:
    """Return the commands of a workflow that runs three activities in sequence and returns the last result."""
    commands: list[Command] = []
    for event in activation.events:
        match event:
            case RunStarted():
                finished = 0
            case ActivityCompleted():
                finished = event.seq
            case _:
                continue
        if finished == STEPS:
            assert isinstance(event, ActivityCompleted)
            commands.append(CompleteRun(event.result or Payload(b"null")))
        else:
            step = finished + 1
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
    """A worker on one queue. `hang` decides for each activation whether its evaluator never completes it."""

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
            self.queue, HandleConfig(task_queue=self.queue, **config), self.worker.add_death_callback
        )
        for kind in ("workflow", "activity"):
            self._loop(kind)

    def _loop(self, kind: str) -> None:
        self.loops[kind] = asyncio.get_running_loop().create_task(
            self._workflows() if kind == "workflow" else self._activities()
        )

    def restart_loop(self, kind: str) -> None:
        """Cancel a poll loop wherever it is, and start a new one."""
        self.loops[kind].cancel()
        self.cancelled_loops += 1
        self._loop(kind)

    async def _workflows(self) -> None:
        with suppress(Shutdown):
            await self.holder.serve_activations(
                self.queue,
                lambda record: lambda item: self._keep(self._evaluate(DispatchedItem(record, item))),
            )

    async def _activities(self) -> None:
        def receiver_of(record: HandleRecord) -> Callable[[ActivityItem], None]:
            def receive(item: ActivityItem) -> None:
                taken = DispatchedItem(record, item)
                if isinstance(item, ActivityTask):
                    self._keep(self._execute(taken.generation, item))

            return receive

        with suppress(Shutdown):
            await self.holder.serve_activities(self.queue, receiver_of)

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def _evaluate(self, ticket: DispatchedItem) -> None:
        if self._hang(ticket.item):
            return
        try:
            await complete(self.holder, ticket, Succeeded(ticket.item.run_id, next_commands(ticket.item)))
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
        """Unregister, which ends the loops, and stop the holder."""
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
    """Wait until the workflow is closed and return its outcome."""
    while True:
        end = await connection.call(WaitForClose(workflow_id=workflow_id))
        if not isinstance(end, StillOpen):
            return end


async def cancel_loops_randomly(
    worker: LoopsOverHolder, rng: random.Random, *, recycle_after: list[int]
) -> None:
    """Cancel loops at random times, and recycle after these numbers of executed attempts, until cancelled."""
    while True:
        await asyncio.sleep(rng.random() * 0.01)
        worker.restart_loop(rng.choice(("workflow", "activity")))
        if recycle_after and worker.executed >= recycle_after[0]:
            del recycle_after[0]
            await worker.holder.recycle(worker.queue, "chaos")
