"""Eager dispatch and combined start-and-wait requests in the embedded engine."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import cases
from tests.embedded.stores import memory_store

from hourglass._contract.handle import ActivityItem, ActivityOk
from hourglass._contract.workflows import ExecuteWorkflow, RunCompleted, SignalWorkflow, StartWorkflow
from hourglass._embedded.api.requests import answer as answer_request
from hourglass._embedded.matching.activity_dispatch import ActivityDispatch
from hourglass._embedded.matching.task_dispatch import TaskDispatch
from hourglass._embedded.matching.task_queues import DispatchPolicy
from hourglass._embedded.transitions import tasks
from hourglass._embedded.transitions.run import Pause
from hourglass._embedded.transitions.size_limits import Limits
from hourglass._embedded.transitions.task_starts import Eager
from hourglass._evaluator import commands as c
from hourglass._evaluator.commands import Succeeded
from hourglass._evaluator.events import Activation, ActivityCompleted, RunEvicted, RunStarted
from hourglass._evaluator.specs import ActivitySpec, StartSpec
from hourglass.errors import WorkflowAlreadyStartedError, WorkflowNotFoundError

from ..memory_world import World, run_async, settle, start_waiting, text
from ..store.scripted_store import ScriptedStore
from ..store.store_conformance import Life

NO_LIMITS = Limits()


@contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, value)
        yield


def scheduled(seq: int, **more: Any) -> c.ScheduleActivity:
    spec = ActivitySpec(**{"start_to_close_timeout": 5.0, **more})
    return c.ScheduleActivity(seq, str(seq), "echo", spec, (text("x"),), {"h": text("1")})


def test_paused_run_starts_no_attempts() -> None:
    """The run was paused while its workflow task was in progress."""
    life = Life("r")
    life.take_task()
    paused = msgspec.structs.replace(life.run, paused=Pause())
    answer = tasks.TaskCompletion(commands=(tasks.Sent(scheduled(1)),), identity="me")
    step = tasks.complete_task(paused, answer, "", NO_LIMITS, Eager("me", "q", NO_LIMITS, 9), life.now)
    (activity,) = step.run.activities.values()
    assert not activity.started_ns


# --- through an engine ----------------------------------------------------------------------------------------


class Numbered(DispatchPolicy):
    """A policy that numbers run ids, so that they are equal in every world."""

    def __init__(self) -> None:
        numbers = itertools.count(1)
        self.new_run_id = lambda: f"run-{next(numbers)}"


class Worker:
    """A worker that answers its items in random order: each run schedules activities, one or two at a time, and
    completes.
    """

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.chance = world, random.Random(seed)
        self.activations: list[Activation] = []
        self.attempts: list[ActivityItem] = []
        self.all_activations: list[Activation] = []
        self.all_attempts: list[ActivityItem] = []
        self.scheduled_count: dict[str, int] = {}
        self.completed_count: dict[str, int] = {}
        world.handle.start(self._activated, self._received)

    def _activated(self, given: Sequence[Activation]) -> None:
        self.activations += given
        self.all_activations += given

    def _received(self, given: Sequence[ActivityItem]) -> None:
        self.attempts += given
        self.all_attempts += given

    async def run_to_completion(self, signals: int) -> None:
        """Work until nothing is left to do, and send that many signals at random times."""
        await settle()
        while self.activations or self.attempts:
            if signals and self.chance.random() < 0.1:
                signals -= 1
                await self._signal(signals)
            elif self.activations and (not self.attempts or self.chance.random() < 0.5):
                self._complete(self.activations.pop(self.chance.randrange(len(self.activations))))
            else:
                item = self.attempts.pop(self.chance.randrange(len(self.attempts)))
                self.world.handle.inner.complete_activity(ActivityOk(item.token, text("r")))
            await settle()

    async def _signal(self, number: int) -> None:
        request = SignalWorkflow(workflow_id="w0", signal_name="s", request_id=f"s{number}")
        with contextlib.suppress(WorkflowNotFoundError):
            await self.world.call(request)

    def _complete(self, activation: Activation) -> None:
        run_id, events = activation.run_id, activation.events
        if isinstance(events[0], RunStarted):  # it may be executed again
            self.scheduled_count[run_id] = self.completed_count[run_id] = 0
        self.completed_count[run_id] = self.completed_count.get(run_id, 0) + sum(
            isinstance(e, ActivityCompleted) for e in events
        )
        scheduled_count = self.scheduled_count.get(run_id, 0)
        commands: list[c.Command] = []
        if isinstance(events[0], RunEvicted) or scheduled_count > self.completed_count[run_id]:
            pass
        elif scheduled_count < 5:
            commands = [
                scheduled(scheduled_count + 1 + number)
                for number in range(2 if scheduled_count % 3 == 1 else 1)
            ]
            self.scheduled_count[run_id] = scheduled_count + len(commands)
        else:
            commands = [c.CompleteRun(text(str(scheduled_count)))]
        self.world.handle.inner.complete_workflow_task(
            Succeeded(run_id, tuple(commands), () if scheduled_count else (1001,))
        )


async def _run_scenario(seed: int) -> tuple[object, ...]:
    """Run three workflows from start to completion. Return everything observable."""
    store = memory_store()
    world = await World.new(store=store, policy=Numbered())
    worker = Worker(world, seed)
    await settle()
    for number in range(3):
        await world.start(f"w{number}")
    await worker.run_to_completion(signals=3)
    runs = [store.load(f"run-{number}") for number in (1, 2, 3)]
    await world.close()
    return runs, worker.all_activations, worker.all_attempts


@given(seed=st.integers(0, 10_000))
@settings(max_examples=cases(15, 250))
def test_eager_dispatch_has_no_visible_effect(seed: int) -> None:
    """Activations, attempts and stored runs are equal with and without eager dispatch."""
    eager = run_async(lambda: _run_scenario(seed))
    with patched(ActivityDispatch, "eager", lambda *_: None), patched(TaskDispatch, "eager", lambda *_: None):
        assert run_async(lambda: _run_scenario(seed)) == eager
    assert all(stored is not None and not stored.run.is_open for stored in eager[0])  # type: ignore[attr-defined]


async def test_unencodable_command_fails_only_its_own_workflow_task(world: World) -> None:
    worker = Worker(world, 1)
    await settle()
    await world.start()
    await settle()
    (first,) = worker.activations
    broken = c.ScheduleActivity(1, "1", "echo", ActivitySpec(), (object(),))  # type: ignore[arg-type]
    world.handle.forgets(Succeeded(first.run_id, (broken,)))
    await settle()
    assert world.kinds()[-1] == "WorkflowTaskFailed"


async def test_repeated_execute_workflow_returns_the_same_result(world: World) -> None:
    worker = Worker(world, 1)
    await settle()
    request = StartWorkflow(
        workflow_id="w", workflow_type="W", request_id="one", spec=StartSpec(task_queue="q")
    )
    call = await start_waiting(answer_request(world.engine, ExecuteWorkflow(start=request)))
    assert not call.done()
    await worker.run_to_completion(signals=0)
    answer = await call
    assert isinstance(answer.outcome, RunCompleted)
    assert await answer_request(world.engine, ExecuteWorkflow(start=request)) == answer


async def test_execute_workflow_returns_after_the_close_is_durable() -> None:
    store = ScriptedStore()
    world = await World.new(store=store)
    request = StartWorkflow(
        workflow_id="w", workflow_type="W", request_id="one", spec=StartSpec(task_queue="q")
    )
    call = asyncio.ensure_future(answer_request(world.engine, ExecuteWorkflow(start=request)))
    run_id = (await world.activation()).run_id
    await world.complete(run_id, c.CompleteRun(text("1")))
    await settle()
    record = world.record()
    assert not record.run.is_open
    assert not call.done()
    store.commit()
    assert (await call).run_id == run_id


async def test_execute_workflow_is_rejected_after_the_conflicting_start_is_durable() -> None:
    store = ScriptedStore()
    world = await World.new(store=store)
    started = asyncio.ensure_future(world.start())
    request = StartWorkflow(
        workflow_id="w", workflow_type="W", request_id="two", spec=StartSpec(task_queue="q")
    )
    await settle()
    call = await start_waiting(answer_request(world.engine, ExecuteWorkflow(start=request)))
    assert not call.done()
    assert not started.done()
    store.commit()
    with pytest.raises(WorkflowAlreadyStartedError):
        await call
    await started
