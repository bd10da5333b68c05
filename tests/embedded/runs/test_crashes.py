"""Generated programs over an engine whose process dies at any moment: durable state is complete, and answers to clients
hold.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import cases
from tests.embedded.stores import memory_store
from tests.specs import made

from hourglass._contract import service as s
from hourglass._contract import workflows as wf
from hourglass._contract.handle import (
    ActivityCancel,
    ActivityDeferred,
    ActivityOk,
    ActivityTask,
    AttemptFailed,
)
from hourglass._embedded import VirtualClock
from hourglass._embedded.store.store import RunChange, Store
from hourglass._embedded.transitions.run import Run
from hourglass._embedded.transitions.transitions import needs_recovery
from hourglass._history import events as h
from hourglass.errors import HourglassError, ServiceError

from ..activations.test_replay_equals_live import Batch, Life
from ..memory_world import World, app_failure, run_async, text
from ..store.scripted_store import ScriptedStore

State = tuple[Run, tuple[h.HistoryEvent, ...]]


class Watched(ScriptedStore):
    """A store that records the engine's memory after each change."""

    def __init__(self, disk: Store) -> None:
        super().__init__(disk)
        self.world: World | None = None
        self.states: list[dict[str, State]] = []

    def append(self, change: RunChange) -> int:
        assert self.world is not None
        seen: dict[str, State] = {}
        for each in (change, *change.also):
            record = self.world.engine.runs.in_memory(each.run.run_id)
            assert record is not None
            seen[each.run.run_id] = (record.run, tuple(record.events))
        self.states.append(seen)
        return super().append(change)


class CrashingLife(Life):
    """One workflow, its clients, its worker, and crashes of the process."""

    disturbance = 0.0  # a crash would take the task along

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.seed = seed
        self.evictions = []
        self.disk = memory_store()
        self.clock = VirtualClock()
        self.durable: dict[str, State] = {}
        self.pending_requests: dict[str, asyncio.Task[Any]] = {}
        self.unanswered: list[str] = []
        self.acknowledged: set[str] = set()
        self.known: list[Batch] = []
        self.runs: set[str] = set()
        self.signals = 0

    async def begin_process(self) -> None:
        self.store = Watched(self.disk)
        self.world = await self._world(self.store)
        self.handle = self.world.handle
        self.program = self.program_type(self.seed)
        self.attempts: list[ActivityTask] = []
        for request_id in self.unanswered:  # clients repeat requests without an answer
            self.request(request_id)
        self.unanswered = []

    async def _world(self, store: Watched) -> World:
        world = await World.new(
            store=store, clock=self.clock, max_cached_workflows=self.rng.choice([0, 1000])
        )
        store.world = world
        await world.engine.open_existing()
        assert not any(needs_recovery(record.run) for record in world.engine.runs.records())
        return world

    def request(self, request_id: str) -> None:
        """Send a start or a signal without waiting for the answer."""
        request: s.Request[Any]
        if request_id == "start":
            request = made(
                wf.StartWorkflow, workflow_id="w", workflow_type="W", task_queue="q", request_id=request_id
            )
        else:
            request = wf.SignalWorkflow(workflow_id="w", signal_name=request_id, request_id=request_id)
        self.pending_requests[request_id] = asyncio.ensure_future(self.world.call(request))

    def collect_answers(self) -> None:
        for request_id, task in tuple(self.pending_requests.items()):
            if task.done():
                del self.pending_requests[request_id]
                if task.exception() is None:
                    self.acknowledged.add(request_id)
                    if request_id == "start":
                        self.runs.add(task.result().run_id)
                elif not isinstance(task.exception(), ServiceError):  # it had closed, or was never there
                    raise AssertionError(task.exception())

    async def crash(self) -> None:
        """End the process, and compare the disk with the engine's memory after the last durable change."""
        self.collect_answers()
        for number in range(self.store.committed):
            self.durable |= self.store.states[number]
        for run_id, (run, events) in self.durable.items():
            stored = self.disk.load(run_id)
            assert stored is not None
            assert (stored.run, stored.events) == (run, events)
        for request_id, task in self.pending_requests.items():
            task.cancel()
            self.unanswered.append(request_id)
        await asyncio.gather(*self.pending_requests.values(), return_exceptions=True)
        self.pending_requests = {}
        self.world.crash()
        self.check_acknowledged()
        await self.begin_process()

    def check_acknowledged(self) -> None:
        """Check that no acknowledged start or signal is lost, and that none is stored twice."""
        events = [event.attributes for _, events in self.durable.values() for event in events]
        ids = [event.request_id for event in events if isinstance(event, h.WorkflowExecutionSignaled)]
        held = [
            each.request_id
            for run, _ in self.durable.values()
            for each in run.held
            if isinstance(each, h.WorkflowExecutionSignaled)
        ]
        assert len(set(ids + held)) == len(ids + held)
        open_now = any(run.is_open for run, _ in self.durable.values())
        lost = self.acknowledged - set(ids + held) - {"start"}
        assert not lost or not open_now
        assert self.runs <= set(self.durable)
        assert len(self.runs) <= 1

    async def apply_random_event(self) -> None:
        match self.rng.randint(0, 9):
            case 0:
                self.clock.advance(self.rng.randint(0, 8))
            case 1:
                self.signals += 1
                self.request(f"s{self.signals}")
            case 2 | 3 | 4:
                self.store.commit(self.rng.randint(0, len(self.store.queue)))
            case 5:
                self.store.commit()
            case 6 if self.rng.random() < 0.5:
                if self.rng.random() < 0.5:  # durable, but the answer is lost
                    self.store.commit(self.rng.randint(0, len(self.store.queue)))
                await self.crash()
            case 7 if self.rng.random() < 0.3:
                self.world.engine._upkeep.tick()
            case _:
                await self._complete_random_attempt()
        for _ in range(5):
            await asyncio.sleep(0)
        self.collect_answers()

    async def _complete_random_attempt(self) -> None:
        handle = self.world.handle
        while (item := handle.stepper.next_activity()) is not None:
            if not isinstance(item, ActivityCancel):
                stored = self.disk.load(item.run_id)
                assert stored is not None
                open_attempts = {
                    activity.scheduled.activity_id: (activity.attempt, activity.started_ns)
                    for activity in stored.run.activities.values()
                }
                attempt, started_ns = open_attempts[item.activity_id]
                # It begins when it is handed out, which may be later than when it was taken for this worker.
                assert item.attempt == attempt
                assert 0 < started_ns <= item.started_time_ns <= self.clock.now_ns()
                self.attempts.append(item)
        if self.attempts:
            token = self.attempts.pop(self.rng.randrange(len(self.attempts))).token
            await handle.complete_activity(
                self.rng.choice(
                    [
                        AttemptFailed(token, app_failure("no")),
                        ActivityDeferred(token),
                        ActivityOk(token, text("r")),
                        ActivityOk(token, text("r")),
                    ]
                )
            )


@settings(max_examples=cases(50, 1000), deadline=None)
@given(seed=st.integers(0, 10**6))
def test_durable_state_equals_memory_state_after_a_crash(seed: int) -> None:
    async def body() -> None:
        life = CrashingLife(seed)
        await life.begin_process()
        life.request("start")
        for _ in range(100):
            try:
                await life.complete_tasks()
            except HourglassError as error:  # pragma: no cover - names the seed
                raise AssertionError(f"seed {seed}") from error
            await life.apply_random_event()
        life.store.commit()
        await life.crash()
        life.store.commit()
        await life.world.close()
        for task in life.pending_requests.values():
            task.cancel()
        await asyncio.gather(*life.pending_requests.values(), return_exceptions=True)

    run_async(body)
