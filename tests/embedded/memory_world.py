"""A minimal worker for tests: polls an `EngineHandle` and answers by scripts, without our runtime.

A script is a function `(events so far, new events) -> commands`. It receives every event of its run since the last
eviction, and so also shows what a worker without a cache receives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, ClassVar, TypeVar

from tests.embedded.stores import memory_store
from tests.polled import PolledEngine
from tests.specs import made

from hourglass._contract.handle import (
    ActivityCancel,
    ActivityItem,
    ActivityOk,
    ActivityTask,
    AttemptFailed,
    Handle,
    HandleConfig,
)
from hourglass._contract.service import Nothing, Request
from hourglass._contract.workflows import GetHistory, SignalWorkflow, Started, StartWorkflow, WaitForClose
from hourglass._embedded import EngineConnection, RealClock, VirtualClock
from hourglass._embedded.activations.handle import EngineHandle
from hourglass._embedded.engine import Engine
from hourglass._embedded.matching.pollers import HostProcess
from hourglass._embedded.matching.task_queues import DispatchPolicy
from hourglass._embedded.runs.run import LoadedRun, run_wake_ns
from hourglass._embedded.store.store import Store
from hourglass._embedded.transitions.run import Run
from hourglass._embedded.transitions.size_limits import Limits
from hourglass._evaluator.commands import Command, ScheduleActivity, Succeeded, TaskFailed
from hourglass._evaluator.events import Activation, Event, RunEvicted
from hourglass._history.events import kind_of
from hourglass.converter import ApplicationFailure, Failure, Payload

SECOND = 10**9
"""A second, in nanoseconds."""

T = TypeVar("T")
Script = Callable[[list[Event], Sequence[Event]], Sequence[Command]]


def text(value: str) -> Payload:
    return Payload(f'"{value}"'.encode(), "json/plain")


def app_failure(message: str, type: str = "Oops", **more: Any) -> Failure:
    return Failure(message, ApplicationFailure(type=type, **more))


def activity(seq: int = 1, **options: Any) -> ScheduleActivity:
    """Return a command that schedules an activity of type `a`, whose id is its number."""
    named = {"activity_id": str(seq), "activity_type": "a", "start_to_close_timeout": 60.0, **options}
    return made(ScheduleActivity, seq=seq, **named)


def run_async(body: Callable[[], Coroutine[Any, Any, T]]) -> T:
    async def limited() -> T:
        async with asyncio.timeout(20):
            return await World.closing(body())

    return asyncio.run(limited())


async def settle() -> None:
    """Let all runnable tasks run; nothing here waits for real time."""
    for _ in range(20):
        await asyncio.sleep(0)


async def start_waiting(call: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start a call that may have to wait, and let it run as far as it can."""
    task = asyncio.create_task(call)
    await settle()
    return task


class World:
    """An engine on a virtual clock, a handle, and the activations that its worker received.

    Worlds that a coroutine test leaves open are closed at its end.
    """

    opened: ClassVar[list[World]] = []

    def __init__(self, connection: EngineConnection, clock: VirtualClock, handle: PolledEngine) -> None:
        self.connection = connection
        self.clock = clock
        self.handle = handle
        self.seen: list[Activation] = []
        self.journals: dict[str, list[Event]] = {}
        self.opened.append(self)

    @staticmethod
    async def new(
        queue: str = "q",
        *,
        store: Store | None = None,
        clock: VirtualClock | None = None,
        limits: Limits | None = None,
        retention: float = 30.0 * 86_400,
        opened: bool = False,
        policy: DispatchPolicy | None = None,
        living: frozenset[str] = frozenset(),
        **config: Any,
    ) -> World:
        """Open an engine. An existing store starts a new epoch. `opened` recovers work in progress, except that of the
        `living` workers.
        """
        clock = VirtualClock() if clock is None else clock
        store = memory_store() if store is None else store
        engine = Engine(store=store, clock=clock, limits=limits, retention=retention, policy=policy)
        if opened:
            await engine.open_existing(took_over=bool(living), living=living)
        connection = EngineConnection(engine, identity="client", owns_engine=True)
        options = {"task_queue": queue, "identity": "worker", **config}
        return World(connection, clock, PolledEngine(await connection.open_handle(HandleConfig(**options))))

    async def successor(self, **options: Any) -> World:
        """Open another engine over the same store and clock, as after a crash."""
        return await World.new(store=self.engine.store, clock=self.clock, opened=True, **options)

    def other_handle(self, process_id: int, process_key: int, **config: Any) -> Handle:
        """Open a handle of the queue `q` for a worker of another process."""
        options = HandleConfig(task_queue="q", **config)
        process = HostProcess(process_id, key=process_key if process_id else 0)
        return EngineHandle(self.engine, options, process=process)

    @property
    def has_out(self) -> bool:
        """Whether the worker has an activation in progress."""
        return bool(self.handle.poller.active_runs)

    @property
    def is_idle(self) -> bool:
        """Whether only time can cause progress: no task is in progress or available."""
        engine = self.engine
        in_flight = any(record.is_in_flight for record in engine.runs.records())
        return not (in_flight or engine.queues.waiting_tasks() or engine.queues.waiting_attempts())

    @property
    def engine(self) -> Engine:
        return self.connection.engine

    def wake_ns(self, run: Run) -> int:
        """Return when a run is next due by itself, or 0."""
        return run_wake_ns(run, self.clock.now_ns())

    async def call(self, request: Request[T]) -> T:
        return await self.connection.call(request)

    async def start(self, workflow_id: str = "w", **more: Any) -> Started:
        options: dict[str, Any] = {"workflow_type": "W", "task_queue": "q", "request_id": "", **more}
        return await self.connection.call(made(StartWorkflow, workflow_id=workflow_id, **options))

    async def begin(self, workflow_id: str = "w", **options: Any) -> str:
        """Start a run and receive its first activation. Return its run id."""
        run_id = (await self.start(workflow_id, **options)).run_id
        await self.activation()
        return run_id

    async def start_run(self, *commands: Command, **options: Any) -> str:
        """Start a run and complete its first workflow task with these commands. Return its run id."""
        run_id = await self.begin(**options)
        await self.complete(run_id, *commands)
        return run_id

    async def signal(self, name: str = "s", request_id: str = "", workflow_id: str = "w") -> Nothing:
        request = SignalWorkflow(workflow_id=workflow_id, signal_name=name, request_id=request_id)
        return await self.call(request)

    async def activation(self) -> Activation:
        activation = await self.handle.poll_activation()
        self.seen.append(activation)
        return activation

    async def eviction(self) -> RunEvicted:
        """Receive an eviction and confirm it."""
        activation = await self.activation()
        (event,) = activation.events
        assert isinstance(event, RunEvicted)
        await self.complete(activation.run_id)
        return event

    async def complete(self, run_id: str, *commands: Command, flags: tuple[int, ...] = ()) -> None:
        await self.handle.complete_activation(Succeeded(run_id, commands, flags))

    async def fail(self, run_id: str, message: str = "bug") -> None:
        await self.handle.complete_activation(TaskFailed(run_id, app_failure(message)))

    async def step(self, script: Script) -> Activation:
        """Receive one activation, and answer it by the script."""
        activation = await self.activation()
        journal = self.journals.setdefault(activation.run_id, [])
        if isinstance(activation.events[0], RunEvicted):
            del self.journals[activation.run_id]
            await self.complete(activation.run_id)
            return activation
        commands = script(list(journal), activation.events)
        journal += activation.events
        await self.complete(activation.run_id, *commands)
        return activation

    async def activity(self) -> ActivityTask:
        item = await self.handle.poll_activity()
        assert isinstance(item, ActivityTask)
        return item

    async def succeed(self, task: ActivityTask, result: Payload | None = None) -> None:
        await self.handle.complete_activity(ActivityOk(task.token, result))

    async def fail_attempt(self, task: ActivityTask, failure: Failure) -> None:
        await self.handle.complete_activity(AttemptFailed(task.token, failure))

    async def cancel(self) -> ActivityCancel:
        item: ActivityItem = await self.handle.poll_activity()
        assert isinstance(item, ActivityCancel)
        return item

    async def outcome(self, workflow_id: str = "w", run_id: str = "") -> object:
        return await self.call(WaitForClose(workflow_id=workflow_id, run_id=run_id, rpc_timeout=0.0))

    async def history(self, workflow_id: str = "w", run_id: str = "") -> list[bytes]:
        return list((await self.call(GetHistory(workflow_id=workflow_id, run_id=run_id))).events)

    def record(self, workflow_id: str = "w", run_id: str = "") -> LoadedRun:
        """Return a run of the engine, which must exist: the latest of a workflow, or the one with this id."""
        record = self.engine.record(run_id) if run_id else self.engine.current(workflow_id)
        assert record is not None
        return record

    def kinds(self, workflow_id: str = "w") -> list[str]:
        return [kind_of(event.attributes) for event in self.record(workflow_id).events]

    def crash(self) -> None:
        """Drop the engine as the end of its process does, without closing it."""
        self.engine.runs.stop()
        self.engine._upkeep.close()
        self.opened.remove(self)

    async def close(self) -> None:
        if self in self.opened:
            self.opened.remove(self)
            await self.connection.close()

    @classmethod
    async def closing(cls, body: Coroutine[Any, Any, T]) -> T:
        """Run a test, and close the worlds that it has left open."""
        try:
            result = await body
        except BaseException:
            cls.opened.clear()
            raise
        while cls.opened:
            await cls.opened[-1].close()
        return result


async def open_engine(
    clock: RealClock, store: Store | None = None, *, recovered: bool = True
) -> EngineConnection:
    """Open an engine on a clock that reads real time, by default over what the store has; its connection owns it."""
    engine = Engine(store=memory_store() if store is None else store, clock=clock)
    if recovered:
        await engine.open_existing()
    return EngineConnection(engine, owns_engine=True)
