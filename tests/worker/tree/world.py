"""An Application on the test's own loop: over an engine in memory, or over a scripted one.

Here a test can act between two turns of the loop, while the public `Worker` runs on a thread of its own.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tests.specs import made

from hourglass import RetryPolicy, activity, workflow
from hourglass._contract.handle import AttemptFailed, HandleConfig
from hourglass._contract.workflows import StartWorkflow, StillOpen, WaitForClose
from hourglass._embedded import connect_memory
from hourglass._evaluator.commands import TaskFailed
from hourglass._evaluator.events import Activation, RunStarted
from hourglass._worker.handles.handles import HandleRecord
from hourglass._worker.handles.life import HandleLimits
from hourglass._worker.resolver import Resolver
from hourglass._worker.tree.application import Application
from hourglass._worker.tree.plan import Plan
from hourglass._worker.tree.services import QueueServices
from hourglass._worker.tree.watchdog import WatchLimits
from hourglass.converter import ApplicationFailure, default_converter
from worker.handles.scripted import ScriptedConnection, ScriptedEngine, ScriptedHandle, attempt

LIMIT = 20.0  # seconds; a longer test has failed

EVALUATORS = "Application/EvaluatorSupervisor"
EXECUTORS = "Application/ExecutorSupervisor"
LANES = "Application/LaneSupervisor"
SUBSYSTEM = "Application/Subsystem"
HOLDER = f"{SUBSYSTEM}/BridgeHolder"
WORKERS = f"{SUBSYSTEM}/WorkerSupervisor"
WORKER = f"{WORKERS}/default"


class Stage:
    """Synchronization between a test and its activities and workflows."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go = threading.Event()
        self.attempts = 0
        self.ended = 0
        self.evaluations = 0


stage = Stage()


@activity.defn
def double(number: int) -> int:
    return number * 2


@activity.defn(retry_policy=RetryPolicy(initial_interval=0.01))
def waits(number: int) -> int:
    stage.attempts += 1
    stage.begun.set()
    stage.go.wait(LIMIT)
    stage.ended += 1
    return number * 2


@workflow.defn
def steps(number: int) -> int:
    return double(double(number))


@workflow.defn
def waiting(number: int) -> int:
    return waits(number) + 1


@workflow.defn
def slow(number: int) -> int:
    """Workflow code that blocks during its first evaluation."""
    stage.evaluations += 1
    stage.begun.set()
    if stage.evaluations == 1:
        stage.go.wait(LIMIT)
    return number


WORKFLOWS: Sequence[object] = (steps, waiting, slow)
ACTIVITIES: Sequence[object] = (double, waits)


def plan(queue: str = "default", *, more: Any = None, **config: Any) -> Plan:
    resolver = Resolver(workflows=WORKFLOWS, activities=ACTIVITIES)
    return Plan(
        config=HandleConfig(task_queue=queue, identity="test", **config),
        resolver=resolver,
        converter=default_converter,
        deadlock_timeout=None,
        **(more or {}),
    )


class World:
    """An Application and shortcuts to use it."""

    def __init__(self, app: Application) -> None:
        self.app = app

    async def serve(self, queue: str = "default", **options: Any) -> QueueServices:
        services = self.app.reserve(plan(queue, **options))
        await self.app.serve(services)
        return services

    async def start(self, workflow: Any, *args: Any, id: str = "w", queue: str = "default") -> None:
        await self.app.raw.call(
            made(
                StartWorkflow,
                workflow_id=id,
                workflow_type=workflow.__name__,
                task_queue=queue,
                request_id=uuid.uuid4().hex,
                arguments=default_converter.encode_all(args),
            )
        )

    async def result(self, id: str = "w") -> Any:
        while True:
            end = await self.app.raw.call(WaitForClose(workflow_id=id))
            if not isinstance(end, StillOpen):
                (payload,) = end.result  # type: ignore[union-attr] - a failed run has no result
                return default_converter.decode(payload)

    async def run(self, workflow: Any, *args: Any, id: str, queue: str = "default") -> Any:
        await self.start(workflow, *args, id=id, queue=queue)
        return await self.result(id)

    def paths(self) -> list[str]:
        return self.app.require_tree().paths()

    def kill(self, path: str) -> None:
        self.app.require_tree().kill(path)

    def find(self, path: str) -> Any:
        return self.app.require_tree().find(path)

    def record(self, queue: str = "default") -> HandleRecord:
        """The newest handle of a queue."""
        return self.app.tables.of_queue(queue)[-1]

    def is_polling(self, queue: str = "default") -> bool:
        """Whether a worker polls the queue."""
        records = self.app.tables.of_queue(queue)
        if not records or self.app.registry.whereis(queue) is None:
            return False
        return all(inbox.is_attended for inbox in records[-1].inboxes())


async def until(condition: Callable[[], object]) -> None:
    """Yield to other tasks and threads until a condition holds."""
    while not condition():  # noqa: ASYNC110 - fulfilled by other tasks and threads without an event
        await asyncio.sleep(0.001)


async def begun() -> None:
    """Wait until an activity or workflow has begun."""
    await until(stage.begun.is_set)


async def stop_all(app: Application) -> None:
    """Stop all workers."""
    await asyncio.gather(*[app.stop_worker(queue) for queue in tuple(app._services)])


@asynccontextmanager
async def memory(
    *,
    serve: bool = True,
    limits: HandleLimits | None = None,
    watch: WatchLimits | None = None,
    **options: Any,
) -> AsyncIterator[World]:
    """A world over an engine in memory."""
    connection = await connect_memory(identity="test")

    async def another() -> Any:
        return connection

    app = Application(
        connection,
        another,
        converter=default_converter,
        codec=None,
        client=None,
        limits=limits,
        watch=watch,
    )
    world = World(app)
    try:
        if serve:
            await world.serve(**options)
        yield world
    finally:
        stage.go.set()
        await stop_all(app)
        await connection.close()


class ScriptedWorld(World):
    """A world over a scripted engine."""

    def __init__(self, app: Application, engine: ScriptedEngine) -> None:
        super().__init__(app)
        self.engine = engine

    @property
    def handle(self) -> ScriptedHandle:
        """The newest handle."""
        return self.engine.handles[-1]


@asynccontextmanager
async def scripted(
    *, serve: bool = True, limits: HandleLimits | None = None, **options: Any
) -> AsyncIterator[ScriptedWorld]:
    """A world over a scripted engine."""
    engine = ScriptedEngine()
    app = Application(
        ScriptedConnection(engine),
        engine.connect,
        converter=default_converter,
        codec=None,
        client=None,
        limits=limits,
    )
    world = ScriptedWorld(app, engine)
    try:
        if serve:
            await world.serve(**options)
        yield world
    finally:
        stage.go.set()
        await stop_all(app)


def play(script: Callable[[], Awaitable[None]]) -> None:
    """Run a script on a new loop within the time limit; afterwards no task may be left."""

    async def main() -> None:
        async with asyncio.timeout(LIMIT):
            await script()
        await until(lambda: len(asyncio.all_tasks()) == 1)

    async def limited() -> None:
        async with asyncio.timeout(LIMIT + 5):
            await main()

    asyncio.run(limited())


def start_of(run_id: str, workflow: str, *args: object) -> Activation:
    event = RunStarted(workflow_type=workflow, workflow_id="w", arguments=default_converter.encode_all(args))
    return Activation(run_id=run_id, events=(event,))


def failure_type(answer: object) -> str:
    assert isinstance(answer, (TaskFailed, AttemptFailed)), answer
    assert isinstance(answer.failure.info, ApplicationFailure)
    return answer.failure.info.type


def attempt_of(name: str, *args: object, token: bytes = b"t", **more: object):
    return attempt(token, **more).__replace__(  # type: ignore[attr-defined]
        activity_type=name, arguments=default_converter.encode_all(args)
    )
