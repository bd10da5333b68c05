"""Records the corpus on a dev server: `python -m tests.compat.record [NAME …]` writes `histories/`.

Workflow worker and activity worker are separate, so that a script can stop one while activities continue: their events then
arrive in one workflow task, in order. Every history is replayed by Temporal's replayer before it is written. This is not
part of the test suite: recordings are kept as the SDK of their time wrote them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.client import (
    Client,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowHistory,
    WorkflowUpdateStage,
)
from temporalio.service import RPCError
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, Worker

from .activities import Activities
from .generated import SEEDS, make_course, make_program
from .programs import PROGRAMS
from .programs.interpreted import Interpreted
from .programs.later import Kid

HISTORIES = Path(__file__).parent / "histories"
DEFINITIONS = [*(program.definition for program in PROGRAMS.values()), Interpreted, Kid]
AT_ONCE = 4
_PERSONAL = {"identity": "recorder", "stackTrace": ""}

EVENTS = {
    "scheduled": ["ACTIVITY_TASK_SCHEDULED"],
    "completed": ["ACTIVITY_TASK_COMPLETED"],
    "failed": ["ACTIVITY_TASK_FAILED"],
    "canceled": ["ACTIVITY_TASK_CANCELED"],
    "ended": [f"ACTIVITY_TASK_{end}" for end in ("COMPLETED", "FAILED", "CANCELED", "TIMED_OUT")],
    "timers": ["TIMER_STARTED"],
    "fired": ["TIMER_FIRED"],
    "tasks": ["WORKFLOW_TASK_COMPLETED"],
    "cancels": ["WORKFLOW_EXECUTION_CANCEL_REQUESTED"],
}


class Recording:
    """One workflow on the server: its workers, its handle, and the steps of its script."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name
        self.queue = f"record-{uuid.uuid4().hex[:8]}"
        self.activities = Activities()
        self.handle: WorkflowHandle[Any, Any]
        self.updates: list[asyncio.Task[Any]] = []
        self._worker: Worker | None = None
        self._running: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def serving(self, *, held: bool) -> AsyncIterator[None]:
        """Run the activity worker, and unless `held` also the workflow worker."""
        activities = Worker(
            await self.connect(),
            task_queue=self.queue,
            activities=self.activities.all(),
            max_heartbeat_throttle_interval=timedelta(milliseconds=20),
            default_heartbeat_throttle_interval=timedelta(milliseconds=20),
        )
        async with activities:
            if not held:
                await self.go()
            try:
                yield
            finally:
                for gate in self.activities.gates.values():
                    gate.set()
                for update in self.updates:
                    update.cancel()
                await self.stop()

    async def connect(self) -> Client:
        """Open a new connection: Core rejects two workers for one queue on one connection."""
        return await Client.connect(self.client.service_client.config.target_host)

    async def go(self) -> None:
        """Start a workflow worker."""
        self._worker = Worker(
            await self.connect(),
            task_queue=self.queue,
            workflows=DEFINITIONS,
            activities=self.activities.all(),
            no_remote_activities=True,
            workflow_runner=UnsandboxedWorkflowRunner(),
            sticky_queue_schedule_to_start_timeout=timedelta(milliseconds=300),
            disable_eager_activity_execution=True,
        )
        self._running = asyncio.create_task(self._worker.run())

    async def stop(self) -> None:
        """Stop the workflow worker."""
        if self._worker is not None and self._running is not None:
            await self._worker.shutdown()
            await self._running
            self._worker = None

    async def count(self, event: str) -> int:
        """Count these events in the history."""
        wanted = {EventType.Value("EVENT_TYPE_" + name) for name in EVENTS[event]}
        return sum(one.event_type in wanted for one in (await self.handle.fetch_history()).events)

    async def until(self, event: str, number: int) -> None:
        """Wait until the history has `number` of these events."""
        async with asyncio.timeout(20):
            while await self.count(event) < number:  # noqa: ASYNC110 - the server tells nobody
                await asyncio.sleep(0.03)

    async def perform(self, step: str) -> None:
        """Carry out one step of a script."""
        verb, *words = step.split()
        match verb:
            case "go":
                await self.go()
            case "stop":
                await self.stop()
            case "open":
                for word in words:
                    ended = await self.count("ended")
                    self.activities.gate(word).set()
                    await self.until("ended", ended + 1)
            case "release":
                for word in words:
                    self.activities.gate(word).set()
            case "signal":
                await self.handle.signal(words[0], args=[_value(word) for word in words[1:]])
            case "update":
                await self._update(*words)
            case "query":
                await self.handle.query(words[0])
            case "cancel":
                await self.handle.cancel()
                await self.until("cancels", 1)
            case _:
                await self.until(verb, int(words[0]))

    async def _update(self, name: str, *words: str) -> None:
        request = self.handle.start_update(
            name, args=list(words), wait_for_stage=WorkflowUpdateStage.ACCEPTED, id="-".join((name, *words))
        )
        self.updates.append(asyncio.create_task(request))
        await asyncio.sleep(0.3)  # the server keeps no trace of an update before a worker takes it

    async def finish(self) -> WorkflowHistory:
        """Wait for the end of the run; check the history with Temporal's replayer."""
        run_id = self.handle.first_execution_run_id
        first = self.client.get_workflow_handle(self.handle.id, run_id=run_id)
        try:
            async with asyncio.timeout(60):
                await first.result(follow_runs=False)
        except WorkflowFailureError:
            pass  # failed and cancelled runs belong to the corpus
        except Exception as error:
            if type(error).__name__ != "WorkflowContinuedAsNewError":
                raise
        history = await first.fetch_history()
        replayer = Replayer(workflows=DEFINITIONS, workflow_runner=UnsandboxedWorkflowRunner())
        await replayer.replay_workflow(history)
        return history


async def record_program(client: Client, name: str) -> WorkflowHistory:
    """Record a program with its script."""
    program = PROGRAMS[name]
    recording = Recording(client, name)
    steps = list(program.script)
    held = steps[:1] == ["held"]
    async with recording.serving(held=held):
        recording.handle = await client.start_workflow(
            name, args=program.arguments, id=f"compat-{name}", task_queue=recording.queue
        )
        for step in steps[held:]:
            await recording.perform(step)
        return await recording.finish()


async def record_generated(client: Client, seed: int) -> WorkflowHistory:
    """Record a random program with its random events."""
    recording = Recording(client, f"Interpreted-{seed:02}")
    async with recording.serving(held=False):
        recording.handle = await client.start_workflow(
            "Interpreted", make_program(seed), id=f"compat-{recording.name}", task_queue=recording.queue
        )
        try:
            for pause, step in make_course(seed).steps:
                await asyncio.sleep(pause / 1000)
                verb, *words = step.split()
                if verb == "signal":
                    await recording.handle.signal("poke", int(words[0]))
                elif verb == "cancel":
                    await recording.handle.cancel()
                else:
                    await recording.perform(step)
        except RPCError:
            pass  # it ended before its course did
        if recording._worker is None:
            await recording.go()
        return await recording.finish()


def write(name: str, history: WorkflowHistory) -> None:
    """Write a history as compact JSON in Temporal's format, without identities and stack traces."""
    text = json.dumps(_anonymous(json.loads(history.to_json())), separators=(",", ":"), sort_keys=True)
    (HISTORIES / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def _anonymous(value: Any) -> Any:
    if isinstance(value, dict):
        if value.get("kind") == "TASK_QUEUE_KIND_STICKY":
            value = {**value, "name": "sticky"}
        return {key: _PERSONAL[key] if key in _PERSONAL else _anonymous(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_anonymous(item) for item in value]
    return value


def _value(word: str) -> Any:
    return int(word) if word.isdigit() else word


@asynccontextmanager
async def _server() -> AsyncIterator[Client]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(Path(sys.executable).with_name("temporal")), "server", "start-dev", "--headless"]
    command += ["--port", str(port), "--log-level", "error"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: ASYNC220
    try:
        async with asyncio.timeout(60):
            while True:
                try:
                    client = await Client.connect(f"127.0.0.1:{port}")
                    break
                except RuntimeError:
                    await asyncio.sleep(0.2)
        yield client
    finally:
        server.terminate()
        server.wait()


async def main(names: list[str]) -> int:
    """Record the named programs, or all; print the result of each."""
    logging.disable(logging.CRITICAL)
    HISTORIES.mkdir(exist_ok=True)
    jobs: dict[str, Any] = {name: (record_program, name) for name in PROGRAMS}
    jobs |= {f"Interpreted-{seed:02}": (record_generated, seed) for seed in SEEDS}
    places = asyncio.Semaphore(AT_ONCE)
    failed = []

    async def one(client: Client, name: str) -> None:
        async with places:
            record, argument = jobs[name]
            try:
                history = await record(client, argument)
            except Exception as error:
                failed.append(name)
                print(f"{name:24} NOT RECORDED: {error!r:.300}", flush=True)
            else:
                write(name, history)
                print(f"{name:24} {len(history.events)} events", flush=True)

    async with _server() as client:
        await asyncio.gather(*[one(client, name) for name in names or jobs])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
