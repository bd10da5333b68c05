"""The steps that most runs take, each in one piece, are what the drafts of the general transitions lead to, byte for byte."""

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

from hourglass._contract.handle import ActivityItem, ActivityOk
from hourglass._contract.workflows import RunCompleted, SignalWorkflow, StartWorkflow
from hourglass._embedded.activations.cache import Cache
from hourglass._embedded.api.requests import execute
from hourglass._embedded.matching.task_queues import DispatchPolicy
from hourglass._embedded.runs.runs import RunTable
from hourglass._embedded.store.memory import MemoryStore
from hourglass._embedded.transitions import command_checks, steps, tasks, transitions
from hourglass._embedded.transitions.draft import Draft, Eager, begin_task
from hourglass._embedded.transitions.run import Pause, Run, Transition
from hourglass._embedded.transitions.size_limits import Limits
from hourglass._evaluator import commands as c
from hourglass._evaluator.commands import Succeeded
from hourglass._evaluator.events import Activation, ActivityCompleted, RunEvicted, RunStarted
from hourglass._evaluator.specs import ActivitySpec, StartSpec
from hourglass._history import events as h
from hourglass.errors import WorkflowAlreadyStartedError, WorkflowNotFoundError

from .memory_world import World, run_async, settle, text
from .scripted_store import ScriptedStore
from .store_conformance import Life

NO_LIMITS = Limits()


@contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, value)
        yield


@given(earlier=st.booleans())
def test_a_run_begins_as_a_draft_begins_it(earlier: bool) -> None:
    """Its first two events, and the run that they lead to, are a draft's."""
    started = h.WorkflowExecutionStarted(
        workflow_id="w",
        workflow_type="t",
        original_run_id="r",
        first_run_id="r",
        spec=StartSpec(task_queue="q", task_timeout=3.0, memo={"m": text("1")}),
        arguments=(text("a"),),
    )
    run = Run(run_id="r", started=started, start_ns=90 if earlier else 100, memo=started.spec.memo)
    draft = Draft(run, 100)
    draft.write(started)
    draft.want_task()
    assert steps.open_run(run, 100) == draft.step()
    assert transitions.open_run("r", started, 100).events == draft.step().events


@given(now=st.integers(1, 200), latest=st.integers(1, 200), length=st.integers(2, 5))
def test_a_task_is_taken_as_a_draft_takes_it(now: int, latest: int, length: int) -> None:
    """The start of a task, with its suggestion to continue as new, is a draft's."""
    limits = Limits(suggest_events=4)
    run = Run(
        run_id="r",
        started=Life("r").first,
        start_ns=1,
        length=length,
        latest_ns=latest,
        history_size=77,
        task=tasks.PendingTask(number=2, scheduled_event_id=length, available_ns=1),
        task_count=2,
    )
    draft = Draft(run, now)
    assert run.task is not None
    begin_task(draft, run.task, "me", limits)
    assert tasks.start_task(run, "me", limits, now) == draft.step()


def scheduled(seq: int, **more: Any) -> c.ScheduleActivity:
    spec = ActivitySpec(**{"start_to_close_timeout": 5.0, **more})
    return c.ScheduleActivity(seq, str(seq), "echo", spec, (text("x"),), {"h": text("1")})


@given(
    count=st.integers(1, 3),
    flags=st.sampled_from([(), (1001,)]),
    now=st.integers(-5, 5),
    rooms=st.integers(0, 4),
    queue=st.sampled_from(["", "q", "other"]),
    limits=st.sampled_from([NO_LIMITS, Limits(pending=2), Limits(history_events=5), Limits(blob_bytes=40)]),
)
def test_an_answer_that_asks_for_activities_is_what_a_draft_makes_of_it(
    count: int, flags: tuple[int, ...], now: int, rooms: int, queue: str, limits: Limits
) -> None:
    """All of it in one piece, or nothing: then it is one of those that the draft refuses, or does not take whole."""
    life = Life("r")
    life.take_task()
    commands = [scheduled(1 + number, task_queue=queue) for number in range(count)]
    now_ns = life.now + now
    reply = tasks.TaskAnswer(commands=tuple(map(tasks.Sent, commands)), flags=flags, identity="me")
    eager = Eager("me", "q", limits, rooms)
    step = steps.ask_for_activities(life.run, commands, flags, eager, now_ns)
    try:
        drafted: Transition | None = tasks.complete_task(life.run, reply, "", limits, now_ns, eager)
    except command_checks.AnswerRefused:
        drafted = None
    if step is not None:
        assert step == drafted
    elif drafted is not None:  # what is left to the draft: nothing is taken, or not all of it
        assert not all(each.started_ns for each in drafted.run.activities.values()) or limits.blob_bytes == 40


@given(flags=st.sampled_from([(), (1001,)]), late=st.integers(-5, 5), pending=st.booleans())
def test_a_run_returns_as_a_draft_ends_it(flags: tuple[int, ...], late: int, pending: bool) -> None:
    """Its last two events, and what was pending and is gone, are a draft's."""
    life = Life("r")
    life.take_task()
    if pending:
        life.answer(scheduled(1), c.StartTimer(1, 10))
        life.signal()
        life.take_task()
    reply = tasks.TaskAnswer(commands=(tasks.Sent(c.CompleteRun(text("done"))),), flags=flags, identity="me")
    now_ns = life.now + late
    step = tasks.complete_task(life.run, reply, "next", NO_LIMITS, now_ns)
    with patched(steps, "complete_run", lambda *_: None):
        assert tasks.complete_task(life.run, reply, "next", NO_LIMITS, now_ns) == step
    assert not step.run.is_open


def test_an_end_of_which_others_must_hear_is_left_to_the_draft() -> None:
    """A child tells its parent, a cron workflow is followed, a parent leaves its children: none of them is short."""
    for more in ({"parent_run_id": "p", "parent_workflow_id": "p"}, {"cron_schedule": "@daily"}):
        life = Life("r", **more)
        life.take_task()
        assert steps.complete_run(life.run, c.CompleteRun(text("1")), (), "me", NO_LIMITS, life.now) is None


def test_of_a_paused_run_nothing_is_taken_at_once() -> None:
    """What a worker answers for a run that was paused meanwhile is the draft's: its activities wait, its end ends the pause."""
    life = Life("r")
    life.take_task()
    paused = msgspec.structs.replace(life.run, paused=Pause())
    assert (
        steps.ask_for_activities(paused, [scheduled(1)], (), Eager("me", "q", NO_LIMITS, 9), life.now) is None
    )
    assert steps.complete_run(paused, c.CompleteRun(text("1")), (), "me", NO_LIMITS, life.now) is None


# --- through an engine ----------------------------------------------------------------------------------------


class Numbered(DispatchPolicy):
    """Run ids that are the same in every world."""

    def __init__(self) -> None:
        numbers = itertools.count(1)
        self.new_run_id = lambda: f"run-{next(numbers)}"


class Worker:
    """Answers what a handle gives it, in an order that chance decides: each run asks for some activities, one or two at a
    time, and returns.
    """

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.chance = world, random.Random(seed)
        self.activations: list[Activation] = []
        self.attempts: list[ActivityItem] = []
        self.heard: list[Activation] = []
        self.handed: list[ActivityItem] = []
        self.asked: dict[str, int] = {}
        self.ended: dict[str, int] = {}
        world.handle.start(self._activated, self._handed)

    def _activated(self, given: Sequence[Activation]) -> None:
        self.activations += given
        self.heard += given

    def _handed(self, given: Sequence[ActivityItem]) -> None:
        self.attempts += given
        self.handed += given

    async def work(self, signals: int) -> None:
        """Until nothing is left to do; so many signals come at any time."""
        await settle()
        while self.activations or self.attempts:
            if signals and self.chance.random() < 0.1:
                signals -= 1
                await self._signal(signals)
            elif self.activations and (not self.attempts or self.chance.random() < 0.5):
                self._answer(self.activations.pop(self.chance.randrange(len(self.activations))))
            else:
                item = self.attempts.pop(self.chance.randrange(len(self.attempts)))
                self.world.handle.inner.complete_activity(ActivityOk(item.token, text("r")))
            await settle()

    async def _signal(self, number: int) -> None:
        request = SignalWorkflow(workflow_id="w0", signal_name="s", request_id=f"s{number}")
        with contextlib.suppress(WorkflowNotFoundError):
            await self.world.call(request)

    def _answer(self, activation: Activation) -> None:
        run_id, events = activation.run_id, activation.events
        if isinstance(events[0], RunStarted):  # it may be executed again
            self.asked[run_id] = self.ended[run_id] = 0
        self.ended[run_id] = self.ended.get(run_id, 0) + sum(isinstance(e, ActivityCompleted) for e in events)
        asked = self.asked.get(run_id, 0)
        commands: list[c.Command] = []
        if isinstance(events[0], RunEvicted) or asked > self.ended[run_id]:
            pass
        elif asked < 5:
            commands = [scheduled(asked + 1 + number) for number in range(2 if asked % 3 == 1 else 1)]
            self.asked[run_id] = asked + len(commands)
        else:
            commands = [c.CompleteRun(text(str(asked)))]
        self.world.handle.inner.complete_workflow_task(
            Succeeded(run_id, tuple(commands), () if asked else (1001,))
        )


async def _led(seed: int) -> tuple[object, ...]:
    """All that can be seen of a few runs, from their starts to their ends."""
    store = MemoryStore()
    world = await World.new(store=store, policy=Numbered())
    worker = Worker(world, seed)
    await settle()
    for number in range(3):
        await world.start(f"w{number}")
    await worker.work(signals=3)
    runs = [store.load(f"run-{number}") for number in (1, 2, 3)]
    await world.close()
    return runs, worker.heard, worker.handed


@given(seed=st.integers(0, 10_000))
@settings(max_examples=cases(15, 250))
def test_the_short_way_is_the_long_way(seed: int) -> None:
    """Runs that take the short steps wherever they can, and runs that never do, get the same activations and attempts, and
    leave the same in the store, whatever comes in between.
    """
    short = run_async(lambda: _led(seed))
    with patched(Cache, "_ask_at_once", lambda *_: False), patched(RunTable, "may_go_on", lambda *_: False):
        assert run_async(lambda: _led(seed)) == short
    assert all(stored is not None and not stored.run.is_open for stored in short[0])  # type: ignore[attr-defined]


def test_an_answer_that_cannot_be_encoded_fails_its_task_and_no_other() -> None:
    """What is raised in the midst of the short way fails the task of that run; it is offered again."""

    async def body() -> None:
        world = await World.new()
        worker = Worker(world, 1)
        await settle()
        await world.start()
        await settle()
        (first,) = worker.activations
        broken = c.ScheduleActivity(1, "1", "echo", ActivitySpec(), (object(),))  # type: ignore[arg-type]
        world.handle.forgets(Succeeded(first.run_id, (broken,)))
        await settle()
        assert world.kinds()[-1] == "WorkflowTaskFailed"
        await world.close()

    run_async(body)


def test_a_workflow_that_is_executed_is_answered_once_at_its_end() -> None:
    """A start and its wait are one request, which says which run it was and how it ended; the same request again says
    the same.
    """

    async def body() -> None:
        world = await World.new()
        worker = Worker(world, 1)
        await settle()
        request = StartWorkflow(
            workflow_id="w", workflow_type="W", request_id="one", spec=StartSpec(task_queue="q")
        )
        call = asyncio.ensure_future(execute(world.engine, request))
        await settle()
        assert not call.done()
        await worker.work(signals=0)
        answer = await call
        assert isinstance(answer.outcome, RunCompleted)
        assert await execute(world.engine, request) == answer
        await world.close()

    run_async(body)


def test_nothing_is_said_of_an_execution_before_its_end_is_durable() -> None:
    """The run has closed in memory, and its caller still waits: for the commit of the close."""

    async def body() -> None:
        store = ScriptedStore()
        world = await World.new(store=store)
        request = StartWorkflow(
            workflow_id="w", workflow_type="W", request_id="one", spec=StartSpec(task_queue="q")
        )
        call = asyncio.ensure_future(execute(world.engine, request))
        run_id = (await world.activation()).run_id
        await world.complete(run_id, c.CompleteRun(text("1")))
        await settle()
        record = world.engine.current("w")
        assert record is not None
        assert not record.run.is_open
        assert not call.done()
        store.commit()
        assert (await call).run_id == run_id
        await world.close()

    run_async(body)


def test_a_start_that_is_refused_is_refused_to_its_executor_when_that_is_durable() -> None:
    """That the id is taken is said when the start that took it is durable, not before."""

    async def body() -> None:
        store = ScriptedStore()
        world = await World.new(store=store)
        started = asyncio.ensure_future(world.start())
        request = StartWorkflow(
            workflow_id="w", workflow_type="W", request_id="two", spec=StartSpec(task_queue="q")
        )
        await settle()
        call = asyncio.ensure_future(execute(world.engine, request))
        await settle()
        assert not call.done()
        assert not started.done()
        store.commit()
        with pytest.raises(WorkflowAlreadyStartedError):
            await call
        await started
        await world.close()

    run_async(body)
