"""A scripted engine: handles and connections that do what a test tells them, and misbehave as real ones do.

As Core does, a handle's polls end only when everything that it gave out has come back, and it may be finalized
once, with nothing in flight.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
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
    HandleRecord,
    StaleCompletion,
    WorkerNotRegistered,
)
from hourglass._worker.handles.holder import BridgeHolder, HandleTables
from hourglass._worker.handles.life import HandleLimits
from hourglass.converter import Failure
from hourglass.metrics import Family

Q = "orders"


VIOLATIONS: list[str] = []
"""What a holder did that a real engine does not forgive; `conftest` looks at it after each test."""


class RustPanic(BaseException):
    """What a panic in Rust looks like from Python."""


def activation(run_id: str = "run-1") -> Activation:
    return Activation(run_id=run_id, events=(SignalReceived("go"),))


def eviction(run_id: str = "run-1") -> Activation:
    return Activation(run_id=run_id, events=(RunEvicted("CACHE_FULL"),))


def attempt(token: bytes = b"a-1", **more: Any) -> ActivityTask:
    return made(ActivityTask, token=token, activity_id="1", activity_type="charge", **more)


def done(run_id: str = "run-1") -> Succeeded:
    return Succeeded(run_id)


def refused_as_unregistered() -> AbstractContextManager[object]:
    """Expect that a holder refuses a queue without a registration, or a registration that ended."""
    return pytest.raises(WorkerNotRegistered)


def refused_as_stale() -> AbstractContextManager[object]:
    """Expect that a holder refuses the completion of a task that its handle no longer has."""
    return pytest.raises(StaleCompletion)


def refused_as_registered() -> AbstractContextManager[object]:
    """Expect that a holder refuses the second registration of a queue."""
    return pytest.raises(AlreadyRegistered)


def is_unregistered(result: object) -> bool:
    """Whether a call ended because its registration did."""
    return isinstance(result, WorkerNotRegistered)


class ScriptedHandle:
    """Implements `hourglass._contract.handle.Handle`. It takes completions at once, as the embedded engine does."""

    takes_time = False

    def __init__(self, config: HandleConfig | None = None) -> None:
        self.config = HandleConfig(task_queue=Q) if config is None else config
        self.given: dict[str, deque[Any]] = {"workflow": deque(), "activity": deque()}
        self.errors: dict[str, Exception] = {}
        self.open_runs: set[str] = set()
        self.open_attempts: set[bytes] = set()
        self.resting: set[str] = (
            set()
        )  # runs whose task waits for local activities: the handle does not end before it
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
        # How it misbehaves.
        self.gates: dict[str, asyncio.Event] = {}  # run id -> when its completion returns
        self.refusals: deque[BaseException] = deque()  # what completing raises, one after another
        self.rejected = 0  # completions that the engine does not accept; the handle fails their tasks
        self.result_errors: deque[BaseException] = deque()
        self.slow_results: asyncio.Event | None = None
        self.deaf = False  # it never ends
        self.hangs_at_the_end = False
        self.error_at_the_end: BaseException | None = None
        self.shutdown_error: BaseException | None = None
        self.changed = Condition()
        self._receivers: tuple[OnActivations, OnActivities, OnEnd] | None = None
        self._brought: deque[Activation | ActivityItem] = deque()
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
    def polling(self) -> int:
        """How many kinds of work it delivers now."""
        return 0 if self._receivers is None else len({"workflow", "activity"} - self._paused - self._ended)

    def give(self, item: Activation | ActivityItem) -> None:
        """Something to deliver, in a turn of its own."""
        self.given["workflow" if isinstance(item, Activation) else "activity"].append(item)
        self.wake()

    def bring(self, item: Activation | ActivityItem) -> None:
        """Deliver an item although its kind is paused, as a raw poll does that was out by then."""
        self._brought.append(item)
        self.wake()

    def break_poll(self, kind: str, error: Exception) -> None:
        """End this kind with an error."""
        self.errors[kind] = error
        self.wake()

    def wake(self) -> None:
        """Look in the loop's next turn what can be delivered."""
        self.changed.notify_all()
        asyncio.get_running_loop().call_soon(self._deliver)

    def _deliver(self) -> None:
        if self._receivers is None:
            return
        while self._brought:
            item = self._brought.popleft()
            self._is_out(item)
            self._receivers[0 if isinstance(item, Activation) else 1]((item,))  # type: ignore[arg-type]
        for kind in WorkKind:
            name, given = kind.value, self.given[kind.value]
            while given and name not in self._paused | self._ended and name not in self.errors:
                item = given.popleft()
                self._is_out(item)
                self._receivers[0 if kind is WorkKind.WORKFLOWS else 1]((item,))
            if name in self._ended:
                continue
            if name in self.errors:
                self._end(kind, self.errors[name])
            elif self.closing and not given and self._is_empty(kind) and not self.deaf:
                self._end(kind, Shutdown("over"))

    def _end(self, kind: WorkKind, why: Exception) -> None:
        assert self._receivers is not None
        self._ended.add(kind.value)
        self._receivers[2](kind, why)

    def _is_empty(self, kind: WorkKind) -> bool:
        open_attempts = kind is WorkKind.ACTIVITIES and self.open_attempts
        return not (self.open_runs or self.resting or open_attempts)

    def _is_out(self, item: Activation | ActivityItem) -> None:
        if isinstance(item, Activation):
            self.open_runs.add(item.run_id)
        elif isinstance(item, ActivityTask):
            self.open_attempts.add(item.token)
            if item.is_local:
                self.resting.add(item.run_id)

    def complete_workflow_task(
        self, completion: Completion
    ) -> CompletionResult | asyncio.Future[CompletionResult]:
        self.log.append(f"begin {completion.run_id}")
        if not self.takes_time and completion.run_id not in self.gates:
            return self._take_completion(completion)
        self.calls += 1
        return asyncio.ensure_future(self._complete_later(completion))

    async def _complete_later(self, completion: Completion) -> CompletionResult:
        try:
            if completion.run_id in self.gates:
                await self.gates[completion.run_id].wait()
            return self._take_completion(completion)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.calls -= 1

    def _take_completion(self, completion: Completion) -> CompletionResult:
        if self.refusals:
            raise self.refusals.popleft()
        result = CompletionResult.TAKEN
        if self.rejected:
            self.rejected -= 1
            completion = TaskFailed(completion.run_id, Failure("malformed completion"))
            result = CompletionResult.REFUSED
        self.log.append(f"end {completion.run_id}")
        self.completions.append(completion)
        self.open_runs.discard(completion.run_id)
        self.resting.discard(completion.run_id)
        self.wake()
        return result

    def complete_activity(self, result: ActivityResult) -> asyncio.Future[None] | None:
        if not self.takes_time and self.slow_results is None:
            self._take_result(result)
            return None
        self.calls += 1
        return asyncio.ensure_future(self._report_later(result))

    async def _report_later(self, result: ActivityResult) -> None:
        try:
            if self.slow_results is not None:
                await self.slow_results.wait()
            self._take_result(result)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.calls -= 1

    def _take_result(self, result: ActivityResult) -> None:
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
        if self.polling or self.calls:
            VIOLATIONS.append("finalized with a call in flight")
        if self.hangs_at_the_end:
            await asyncio.Event().wait()
        if self.error_at_the_end is not None:
            raise self.error_at_the_end

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds that the worker's calls bring about."""
        async with asyncio.timeout(20):
            while not holds():
                await self.changed.wait()


class SlowScriptedHandle(ScriptedHandle):
    """A handle that takes completions in a later turn of the loop, as Core's does."""

    takes_time = True


class ScriptedConnection:
    """Implements `hourglass._contract.service.Connection`."""

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
        live = [each for each in self.handles if each.config.task_queue == config.task_queue]
        if not all(each.finalized for each in live):
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
    """Makes connections. `connects` and `openings` say how the next ones go: an error, or an event to wait for."""

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
                await _stubborn(gate)
            case BaseException() as error:
                raise error
            case _:
                return


async def _stubborn(gate: asyncio.Event) -> None:
    """A call into another world: cancelling it changes nothing."""
    while not gate.is_set():
        try:
            await gate.wait()
        except asyncio.CancelledError:
            pass


class Worker:
    """Somebody who registers, and may die."""

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


class Taken:
    """An item that a test has dispatched, to complete it when it likes: the entry of its handle's book."""

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


async def take_activation(holder: BridgeHolder, queue: str = Q) -> Taken:
    """The next activation. A caller that is cancelled before has taken nothing."""
    return await _take(holder.serve_activations, queue)


async def take_activity(holder: BridgeHolder, queue: str = Q) -> Taken:
    """The next activity task or cancellation."""
    return await _take(holder.serve_activities, queue)


async def _take(serve: Callable[..., Any], queue: str) -> Taken:
    taken: asyncio.Future[Taken] = asyncio.get_running_loop().create_future()

    def receiver_of(record: HandleRecord) -> Callable[[Any], None]:
        def receive(item: Any) -> None:
            if taken.done():
                raise LookupError("one is enough")
            taken.set_result(Taken(record, item))

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


async def complete(holder: BridgeHolder, taken: Taken, completion: Completion) -> None:
    """Answer an activation that was taken."""
    await holder.complete_activation(taken.queue, taken.generation, taken.token, completion)


class World:
    """A scripted engine, tables, a holder on them, and what it told."""

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

    def new_holder(self) -> BridgeHolder:
        return BridgeHolder(
            self.engine.connect,
            shared=self.shared,
            tables=self.tables,
            limits=self.limits,
            on_attempt_cancelled=lambda _, generation, c: self.cancels.append(
                (generation, c.token, c.reason)
            ),
            on_handle_ended=lambda queue, generation: self.ended.append((queue, generation)),
            on_too_many_abandoned=self._alarm,
            on_item=self._dispatch,
        )

    def _dispatch(self, record: HandleRecord, item: Any) -> None:
        if self.dispatches:
            self.dispatched.append(Taken(record, item))

    def _alarm(self) -> None:
        self.alarms += 1

    @staticmethod
    async def started(queue: str = Q, *, shared: bool = False, config: Any = None, **limits: Any) -> World:
        """A holder that serves one queue."""
        world = World(shared=shared, **limits)
        await world.holder.start()
        await world.register(queue, **(config or {}))
        return world

    async def register(self, queue: str = Q, **config: Any) -> None:
        await self.holder.register_worker(queue, HandleConfig(task_queue=queue, **config), self.worker)

    @property
    def handle(self) -> ScriptedHandle:
        """The newest handle."""
        return self.engine.handles[-1]

    @property
    def counters(self) -> Any:
        return self.tables.counters

    @property
    def record(self) -> HandleRecord:
        """The oldest handle's that is not closed."""
        return next(iter(self.tables.records.values()))

    @property
    def generation(self) -> int:
        """Of the handle that serves the queue; 0 while there is none."""
        current = self.tables.registrations[Q].current
        return 0 if current is None else current.generation

    def is_served(self, queue: str = Q) -> bool:
        """Also while its handle is being replaced."""
        found = self.tables.registrations.get(queue)
        return found is not None and found.was_active

    def states(self) -> list[str]:
        return [each.state.value for each in self.tables.records.values()]
