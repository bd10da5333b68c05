"""A scripted engine: handles and connections that follow a test's script and fail as real ones do.

As with Core, a handle's polls end only when all items that it delivered are completed, and it may be finalized once,
with no call in flight.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from tests.specs import made

from hourglass._contract.engine_status import EngineStatus
from hourglass._contract.handle import (
    ActivityItem,
    ActivityResult,
    ActivityTask,
    CompletionResult,
    HandleConfig,
    OnActivations,
    OnActivities,
    OnEnd,
    Shutdown,
    WorkKind,
)
from hourglass._evaluator.commands import Completion, Succeeded, TaskFailed
from hourglass._evaluator.events import Activation, RunEvicted, SignalReceived
from hourglass._evaluator.specs import Payloads
from hourglass._worker.handles.calls import Condition
from hourglass._worker.handles.handles import (
    AlreadyRegistered,
    HandleEvents,
    HandleRecord,
    StaleCompletion,
    WorkerNotRegistered,
)
from hourglass._worker.handles.holder import BridgeHolder, HandleTables
from hourglass._worker.handles.life import HandleLimits
from hourglass.converter import Failure
from hourglass.metrics import Family

from .virtual_loop import settle

Q = "orders"


VIOLATIONS: list[str] = []
"""Rules of a real engine that a holder has broken; `conftest` checks this list after each test."""

WORLDS: list[World] = []
"""The worlds of the current test; `conftest` stops their holders."""


class RustPanic(BaseException):
    """A stand-in for the exception that a Rust panic raises in Python."""


def activation(run_id: str = "run-1") -> Activation:
    return Activation(run_id=run_id, events=(SignalReceived("go"),))


def eviction(run_id: str = "run-1") -> Activation:
    return Activation(run_id=run_id, events=(RunEvicted("CACHE_FULL"),))


def attempt(token: bytes = b"a-1", **more: Any) -> ActivityTask:
    return made(ActivityTask, token=token, activity_id="1", activity_type="charge", **more)


def done(run_id: str = "run-1") -> Succeeded:
    return Succeeded(run_id)


def raises_unregistered() -> AbstractContextManager[object]:
    """Expect the error for a queue without a registration, or with one that ended."""
    return pytest.raises(WorkerNotRegistered)


def raises_stale() -> AbstractContextManager[object]:
    """Expect the error for completing a task that the handle no longer has."""
    return pytest.raises(StaleCompletion)


def raises_already_registered() -> AbstractContextManager[object]:
    """Expect the error for registering a queue twice."""
    return pytest.raises(AlreadyRegistered)


def is_unregistered(result: object) -> bool:
    """Whether a call failed because its registration ended."""
    return isinstance(result, WorkerNotRegistered)


class ScriptedHandle:
    """A `Handle` that accepts completions immediately, as the embedded engine does."""

    is_slow = False

    def __init__(self, config: HandleConfig | None = None) -> None:
        self.config = HandleConfig(task_queue=Q) if config is None else config
        self.pending: dict[str, deque[Any]] = {"workflow": deque(), "activity": deque()}
        self.errors: dict[str, Exception] = {}
        self.open_runs: set[str] = set()
        self.open_attempts: set[bytes] = set()
        # Runs whose task waits for local activities; the handle ends after them.
        self.waiting_runs: set[str] = set()
        self.completions: list[Completion] = []
        self.results: list[ActivityResult] = []
        self.beats: list[bytes] = []
        self.heartbeats: list[tuple[bytes, Payloads]] = []
        self.evictions: list[str] = []
        self.log: list[str] = []
        self.calls = 0
        self.cancelled = 0
        self.closing = False
        self.finalized = 0
        # Scripted faults.
        self.gates: dict[str, asyncio.Event] = {}  # by run id: set to let the completion return
        self.completion_errors: deque[BaseException] = deque()  # raised by the next completions
        self.rejections = 0  # so many completions are rejected; the handle fails their tasks
        self.result_errors: deque[BaseException] = deque()
        self.slow_results: asyncio.Event | None = None
        self.ignores_shutdown = False
        self.finalize_hangs = False
        self.finalize_error: BaseException | None = None
        self.shutdown_error: BaseException | None = None
        self.changed = Condition()
        self._receivers: tuple[OnActivations, OnActivities, OnEnd] | None = None
        self._forced: deque[Activation | ActivityItem] = deque()
        self._paused: set[str] = set()
        self._ended: set[str] = set()

    def start(self, on_activations: OnActivations, on_activities: OnActivities, on_end: OnEnd) -> None:
        self._receivers = on_activations, on_activities, on_end
        self.wake()

    def pause(self, kind: WorkKind) -> None:
        if not self.closing:
            self._paused.add(kind.value)

    def resume(self, kind: WorkKind) -> None:
        self._paused.discard(kind.value)
        self.wake()

    @property
    def active_kinds(self) -> int:
        """The number of kinds of work that it currently delivers."""
        return 0 if self._receivers is None else len({"workflow", "activity"} - self._paused - self._ended)

    def deliver(self, item: Activation | ActivityItem) -> None:
        """Deliver an item in a later turn of the loop."""
        self.pending["workflow" if isinstance(item, Activation) else "activity"].append(item)
        self.wake()

    def deliver_while_paused(self, item: Activation | ActivityItem) -> None:
        """Deliver an item although its kind is paused, as a raw poll does that was already in flight."""
        self._forced.append(item)
        self.wake()

    def break_poll(self, kind: str, error: Exception) -> None:
        """End the delivery of this kind with an error."""
        self.errors[kind] = error
        self.wake()

    def wake(self) -> None:
        """Deliver what can be delivered, in the loop's next turn."""
        self.changed.notify_all()
        asyncio.get_running_loop().call_soon(self._deliver)

    def _deliver(self) -> None:
        if self._receivers is None:
            return
        while self._forced:
            item = self._forced.popleft()
            self._mark_in_progress(item)
            self._receivers[0 if isinstance(item, Activation) else 1]((item,))  # type: ignore[arg-type]
        for kind in WorkKind:
            name, items = kind.value, self.pending[kind.value]
            while items and name not in self._paused | self._ended and name not in self.errors:
                item = items.popleft()
                self._mark_in_progress(item)
                self._receivers[0 if kind is WorkKind.WORKFLOWS else 1]((item,))
            if name in self._ended:
                continue
            if name in self.errors:
                self._end(kind, self.errors[name])
            elif self.closing and not items and self._is_empty(kind) and not self.ignores_shutdown:
                self._end(kind, Shutdown("over"))

    def _end(self, kind: WorkKind, why: Exception) -> None:
        assert self._receivers is not None
        self._ended.add(kind.value)
        self._receivers[2](kind, why)

    def _is_empty(self, kind: WorkKind) -> bool:
        open_attempts = kind is WorkKind.ACTIVITIES and self.open_attempts
        return not (self.open_runs or self.waiting_runs or open_attempts)

    def _mark_in_progress(self, item: Activation | ActivityItem) -> None:
        if isinstance(item, Activation):
            self.open_runs.add(item.run_id)
        elif isinstance(item, ActivityTask):
            self.open_attempts.add(item.token)
            if item.is_local:
                self.waiting_runs.add(item.run_id)

    def complete_workflow_task(
        self, completion: Completion
    ) -> CompletionResult | asyncio.Future[CompletionResult]:
        self.log.append(f"begin {completion.run_id}")
        if not self.is_slow and completion.run_id not in self.gates:
            return self._accept_completion(completion)
        self.calls += 1
        return asyncio.ensure_future(self._complete_later(completion))

    async def _complete_later(self, completion: Completion) -> CompletionResult:
        try:
            if completion.run_id in self.gates:
                await self.gates[completion.run_id].wait()
            return self._accept_completion(completion)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.calls -= 1

    def _accept_completion(self, completion: Completion) -> CompletionResult:
        if self.completion_errors:
            raise self.completion_errors.popleft()
        result = CompletionResult.RECEIVED
        if self.rejections:
            self.rejections -= 1
            completion = TaskFailed(completion.run_id, Failure("malformed completion"))
            result = CompletionResult.REJECTED
        self.log.append(f"end {completion.run_id}")
        self.completions.append(completion)
        self.open_runs.discard(completion.run_id)
        self.waiting_runs.discard(completion.run_id)
        self.wake()
        return result

    def complete_activity(self, result: ActivityResult) -> asyncio.Future[None] | None:
        if not self.is_slow and self.slow_results is None:
            self._accept_result(result)
            return None
        self.calls += 1
        return asyncio.ensure_future(self._report_later(result))

    async def _report_later(self, result: ActivityResult) -> None:
        try:
            if self.slow_results is not None:
                await self.slow_results.wait()
            self._accept_result(result)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.calls -= 1

    def _accept_result(self, result: ActivityResult) -> None:
        if self.result_errors:
            raise self.result_errors.popleft()
        self.results.append(result)
        self.open_attempts.discard(result.token)
        self.wake()

    def heartbeat(self, token: bytes, details: Payloads) -> None:
        self.beats.append(token)
        self.heartbeats.append((token, details))
        self.changed.notify_all()

    def request_eviction(self, run_id: str) -> None:
        self.evictions.append(run_id)

    def initiate_shutdown(self) -> None:
        self.log.append("shutdown")
        self.closing = True
        self._paused.clear()
        self.wake()
        if self.shutdown_error is not None:
            raise self.shutdown_error

    async def finalize(self) -> None:
        self.log.append("finalize")
        self.finalized += 1
        if self.finalized > 1:
            VIOLATIONS.append("finalized twice")
        if self.active_kinds or self.calls:
            VIOLATIONS.append("finalized with a call in flight")
        if self.finalize_hangs:
            await asyncio.Event().wait()
        if self.finalize_error is not None:
            raise self.finalize_error

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for a condition that the worker's calls fulfil."""
        async with asyncio.timeout(20):
            while not holds():
                await self.changed.wait()


class SlowScriptedHandle(ScriptedHandle):
    """A handle that accepts completions in a later turn of the loop, as Core does."""

    is_slow = True


class ScriptedConnection:
    """A scripted `Connection`."""

    target, namespace, identity = "scripted", "default", "me"

    def __init__(self, engine: ScriptedEngine) -> None:
        self.engine = engine
        self.handles: list[ScriptedHandle] = []
        self.requests: list[Any] = []
        self.answers: deque[BaseException] = deque()
        self.closed = 0

    async def call(self, request: Any) -> Any:
        self.requests.append(request)
        if self.answers:
            raise self.answers.popleft()

    async def open_handle(self, config: HandleConfig) -> ScriptedHandle:
        await self.engine.behave(self.engine.openings)
        live = [handle for handle in self.handles if handle.config.task_queue == config.task_queue]
        if not all(handle.finalized for handle in live):
            VIOLATIONS.append("a second handle for a queue on one connection")
        handle = self.engine.handle_type(config)
        self.handles.append(handle)
        self.engine.handles.append(handle)
        for change in self.engine.changes[:1]:
            change(handle)
        return handle

    def status(self) -> EngineStatus:
        return EngineStatus()

    def metrics(self) -> list[Family]:
        return []

    async def close(self) -> None:
        self.closed += 1
        if self.closed > 1:
            VIOLATIONS.append("a connection closed twice")


class ScriptedEngine:
    """An engine that opens scripted connections. `connects` and `openings` script the next ones: an error, or an event
    to wait for.
    """

    handle_type: type[ScriptedHandle] = ScriptedHandle

    def __init__(self) -> None:
        self.connections: list[ScriptedConnection] = []
        self.handles: list[ScriptedHandle] = []
        self.connects: deque[BaseException | asyncio.Event] = deque()
        self.openings: deque[BaseException | asyncio.Event] = deque()
        self.changes: list[Callable[[ScriptedHandle], None]] = []

    async def connect(self) -> ScriptedConnection:
        await self.behave(self.connects)
        connection = ScriptedConnection(self)
        self.connections.append(connection)
        return connection

    async def behave(self, script: deque[BaseException | asyncio.Event]) -> None:
        match script.popleft() if script else None:
            case asyncio.Event() as gate:
                await _wait_uncancellably(gate)
            case BaseException() as error:
                raise error
            case _:
                return


async def _wait_uncancellably(gate: asyncio.Event) -> None:
    """Wait for the event even if the caller is cancelled, as a call into Rust does."""
    while not gate.is_set():
        try:
            await gate.wait()
        except asyncio.CancelledError:
            pass


class Worker:
    """A worker that registers, and may die."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[], object]] = []
        self.dead = False

    def add_death_callback(self, callback: Callable[[], object]) -> Callable[[], object]:
        if self.dead:
            callback()
            return lambda: None
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback) if callback in self.callbacks else None

    def die(self) -> None:
        self.dead = True
        callbacks, self.callbacks = self.callbacks, []
        for callback in callbacks:
            callback()


class DispatchedItem:
    """An item that a test has dispatched and may complete at any time; it registers itself in its handle's record."""

    is_dispatched = is_in_work = True

    def forgotten(self) -> bool:
        return False

    def __init__(self, record: HandleRecord, item: Any) -> None:
        self.item = item
        self.queue, self.generation, self.token = record.queue, record.generation, record.next_token()
        if isinstance(item, Activation):
            record.runs.open[item.run_id] = self
        elif isinstance(item, ActivityTask):
            record.attempts.open[item.token] = self


async def receive_activation(holder: BridgeHolder, queue: str = Q) -> DispatchedItem:
    """Return the next activation. A caller that is cancelled before that has received nothing."""
    return await _receive(holder.serve_activations, queue)


async def receive_activity(holder: BridgeHolder, queue: str = Q) -> DispatchedItem:
    """Return the next activity task or cancellation."""
    return await _receive(holder.serve_activities, queue)


async def _receive(serve: Callable[..., Any], queue: str) -> DispatchedItem:
    taken: asyncio.Future[DispatchedItem] = asyncio.get_running_loop().create_future()

    def receiver_of(record: HandleRecord) -> Callable[[Any], None]:
        def receive(item: Any) -> None:
            if taken.done():
                raise LookupError("already received")
            taken.set_result(DispatchedItem(record, item))

        return receive

    serving = asyncio.ensure_future(serve(queue, receiver_of))
    try:
        await asyncio.wait({taken, serving}, return_when=asyncio.FIRST_COMPLETED)
        if not taken.done():
            await serving
        return taken.result()
    finally:
        taken.cancel()
        serving.cancel()
        serving.add_done_callback(lambda done: done.cancelled() or done.exception())


async def complete(holder: BridgeHolder, taken: DispatchedItem, completion: Completion) -> None:
    """Complete an activation that was dispatched."""
    await holder.complete_activation(taken.queue, taken.generation, taken.token, completion)


class World:
    """A scripted engine, tables, a holder on them, and the events that the holder reported."""

    def __init__(self, *, shared: bool = False, **limits: Any) -> None:
        self.engine = ScriptedEngine()
        loop = asyncio.get_running_loop()
        self.tables = HandleTables(now_ns=lambda: round(loop.time() * 1e9))
        self.limits = HandleLimits(**limits)
        self.shared = ScriptedConnection(self.engine) if shared else None
        self.cancels: list[tuple[int, bytes, str]] = []
        self.ended: list[tuple[str, int]] = []
        self.alarms = 0
        self.dispatched: list[Any] = []
        self.dispatches = True
        self.worker = Worker()
        self.holder = self.new_holder()
        WORLDS.append(self)

    def new_holder(self) -> BridgeHolder:
        return BridgeHolder(
            self.engine.connect,
            shared=self.shared,
            tables=self.tables,
            limits=self.limits,
            events=HandleEvents(
                attempt_cancelled=lambda record, c: self.cancels.append(
                    (record.generation, c.token, c.reason)
                ),
                ended=lambda record: self.ended.append((record.queue, record.generation)),
                too_many_abandoned=self._alarm,
                item_arrived=self._dispatch,
            ),
        )

    async def crash(self) -> None:
        """Replace the holder by a new one on the same tables, without stopping it."""
        self.holder = self.new_holder()
        await self.holder.start()

    def _dispatch(self, record: HandleRecord, item: Any) -> None:
        if self.dispatches:
            self.dispatched.append(DispatchedItem(record, item))

    def _alarm(self) -> None:
        self.alarms += 1

    @staticmethod
    async def idle(*, shared: bool = False, **limits: Any) -> World:
        """Create a world whose holder serves no queue yet."""
        world = World(shared=shared, **limits)
        await world.holder.start()
        return world

    @staticmethod
    async def started(queue: str = Q, *, shared: bool = False, config: Any = None, **limits: Any) -> World:
        """Create a world whose holder serves one queue."""
        world = await World.idle(shared=shared, **limits)
        await world.register(queue, **(config or {}))
        return world

    async def register(self, queue: str = Q, **config: Any) -> None:
        await self.holder.register_worker(
            queue, HandleConfig(task_queue=queue, **config), self.worker.add_death_callback
        )

    @property
    def handle(self) -> ScriptedHandle:
        """The newest handle."""
        return self.engine.handles[-1]

    @property
    def counters(self) -> Any:
        return self.tables.counters

    @property
    def record(self) -> HandleRecord:
        """The record of the oldest open handle."""
        return next(iter(self.tables.records.values()))

    @property
    def generation(self) -> int:
        """The generation of the handle that serves the queue, or 0."""
        current = self.tables.registrations[Q].current
        return 0 if current is None else current.generation

    def is_served(self, queue: str = Q) -> bool:
        """Whether the queue is registered; true also while its handle is being replaced."""
        registration = self.tables.registrations.get(queue)
        return registration is not None and registration.was_active

    def states(self) -> list[str]:
        return [record.state.value for record in self.tables.records.values()]


async def start_poll(world: World) -> asyncio.Future[DispatchedItem]:
    """Start to wait for an activation."""
    poll = asyncio.ensure_future(receive_activation(world.holder))
    await settle()
    return poll


async def start_polls(world: World) -> list[asyncio.Future[DispatchedItem]]:
    """Start to wait for an activation and for an activity task."""
    receivers = (receive_activation, receive_activity)
    polls = [asyncio.ensure_future(receive(world.holder)) for receive in receivers]
    await settle()
    return polls


async def start_blocked(
    script: deque[BaseException | asyncio.Event], call: Awaitable[Any]
) -> tuple[asyncio.Event, asyncio.Future[Any]]:
    """Start a call whose next connect or open blocks until the returned event is set."""
    gate = asyncio.Event()
    script.append(gate)
    task = asyncio.ensure_future(call)
    await settle()
    return gate, task


async def dispatch(world: World, *items: Activation | ActivityItem) -> list[DispatchedItem]:
    """Deliver these items and receive them from the holder."""
    tickets: list[DispatchedItem] = []
    for item in items:
        world.handle.deliver(item)
        receive = receive_activation if isinstance(item, Activation) else receive_activity
        tickets.append(await receive(world.holder))
    return tickets
