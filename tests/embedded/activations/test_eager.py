"""What a worker's answer leads to is taken at once, in the same step, if that worker waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hourglass._contract.handle import ActivityOk, ActivityTask
from hourglass._embedded.matching.task_queues import DispatchPolicy
from hourglass._embedded.transitions import activities, transitions
from hourglass._embedded.transitions import tasks as tasks
from hourglass._embedded.transitions.change_builder import ChangeBuilder
from hourglass._embedded.transitions.run import Change, OpenActivity, Run
from hourglass._embedded.transitions.size_limits import Limits
from hourglass._embedded.transitions.task_starts import Eager, take_task
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass._evaluator.specs import ActivitySpec, StartSpec
from hourglass._history import events as h
from hourglass.converter import Payload

from ..memory_world import World, settle, text
from ..store.store_conformance import NOW, Life, activity

LIMITS = Limits()


def eager(attempts: int = 9, queue: str = "q", limits: Limits = LIMITS) -> Eager:
    return Eager("me", queue, limits, attempts)


def answered(life: Life, *commands: c.Command, at_once: Eager | None) -> Change:
    answer = tasks.TaskAnswer(commands=tuple(map(tasks.Sent, commands)), identity="me")
    return tasks.complete_task(life.run, answer, "", LIMITS, at_once, NOW)


def with_task() -> Life:
    life = Life("r")
    life.take_task()
    return life


def begun(step: Change) -> list[int]:
    return [event_id for event_id, each in step.run.activities.items() if each.started_ns]


async def started(call: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    task = asyncio.ensure_future(call)
    await settle()
    return task


def test_eager_attempts_equal_separate_starts() -> None:
    """An answer that takes its own attempts leaves the same run and events as the answer and then each attempt."""
    life = with_task()
    both = answered(life, activity(1), activity(2), at_once=eager())
    step = answered(life, activity(1), activity(2), at_once=None)
    run = step.run
    for event_id in tuple(run.activities):
        run = transitions.start_attempt(run, run.activities[event_id], "me", NOW).run
    assert both.run == run
    assert both.events == step.events
    assert both.touched == step.touched == set(run.activities)


def test_eager_task_equals_separate_start() -> None:
    """The end of an attempt and the start of the task that it leads to are the same as one step or as two."""
    life = with_task()
    run = answered(life, activity(1), at_once=eager()).run
    (pending,) = run.activities.values()
    both = transitions.complete_activity(run, pending, text("r"), "me", eager(), NOW)
    first = transitions.complete_activity(run, pending, text("r"), "me", None, NOW)
    second = tasks.start_task(first.run, "me", LIMITS, None, NOW)
    assert both.run == second.run
    assert both.run.task_is_started
    assert both.events == first.events + second.events


def test_eager_attempts_use_only_free_slots() -> None:
    """Of three activities two are taken, the first ones; the third waits."""
    step = answered(with_task(), activity(1), activity(2), activity(3), at_once=eager(2))
    assert begun(step) == sorted(step.run.activities)[:2]


def test_eager_attempts_skip_other_queues() -> None:
    """An activity on a queue that the worker does not serve waits for somebody who does."""
    step = answered(with_task(), activity(1, task_queue="other"), activity(2), at_once=eager())
    assert [step.run.activities[event_id].spec.task_queue for event_id in begun(step)] == ["q"]


def test_overgrown_run_gets_no_eager_attempts() -> None:
    """A run that has outgrown its limits is ended by whoever deals with it next, so nobody takes anything of it."""
    step = answered(with_task(), activity(1), at_once=eager(limits=Limits(history_events=3)))
    assert begun(step) == []


async def test_worker_without_a_poll_gets_no_eager_attempts() -> None:
    """Without a poll that waits an attempt is offered, and the first poll that comes gets it."""
    world = await World.new()
    run_id = (await world.start()).run_id
    await world.activation()
    await world.complete(run_id, activity(1))
    assert world.engine.queues.waiting_attempts() == [(run_id, 5)]
    assert isinstance(await world.handle.poll_activity(), ActivityTask)
    await world.close()


class TasksOnly(DispatchPolicy):
    """No attempt may be taken."""

    is_selective = True

    def may_take(self, run_id: str, scheduled_event_id: int) -> bool:
        return scheduled_event_id == 0


async def test_dispatch_policy_applies_to_waiting_polls() -> None:
    """Where it decides what is taken when, nothing passes it by."""
    policy = TasksOnly()
    world = await World.new(policy=policy)
    run_id = (await world.start()).run_id
    poll = await started(world.handle.poll_activity())
    await world.activation()
    await world.complete(run_id, activity(1))
    await settle()
    assert not poll.done()
    policy.is_selective = False
    world.engine.queues.wake_all()
    assert isinstance(await poll, ActivityTask)
    await world.close()


async def test_waiting_attempts_come_before_eager_ones() -> None:
    """An attempt that waits already is not passed by one that is asked for later."""
    world = await World.new(max_concurrent_activities=1)
    ids = [(await world.start(name)).run_id for name in ("a", "b", "c")]
    polls = [await started(world.handle.poll_activity()) for _ in ids]
    for _ in ids:
        await world.activation()
    for run_id in ids:
        await world.complete(run_id, activity(1))
    seen = []
    for _ in ids:
        await settle()
        (poll,) = (each for each in polls if each.done())
        polls.remove(poll)
        seen.append(poll.result().run_id)
        await world.handle.complete_activity(ActivityOk(poll.result().token, text("r")))
    assert seen == ids
    await world.close()


async def test_results_during_a_task_are_held() -> None:
    """The first of two results brings a task at once; the second, which comes while that is out, the next one."""
    world = await World.new()
    run_id = (await world.start()).run_id
    await world.activation()
    await world.complete(run_id, activity(1), activity(2))
    items = [await world.handle.poll_activity() for _ in range(2)]
    poll = await started(world.activation())
    for item in items:
        await world.handle.complete_activity(ActivityOk(item.token, text(item.token.decode()[-3:-1])))
    first = await poll
    await world.complete(run_id)
    second = await world.activation()
    assert [
        event.seq
        for each in (first, second)
        for event in each.events
        if isinstance(event, e.ActivityCompleted)
    ] == [1, 2]
    await world.close()


@given(
    now=st.integers(50, 150),
    latest=st.integers(50, 150),
    began=st.integers(0, 150),
    after=st.sampled_from([0, 120]),
    length=st.integers(5, 12),
    value=st.sampled_from([None, text("1")]),
)
def test_fast_completion_equals_completion_then_task(
    now: int, latest: int, began: int, after: int, length: int, value: Payload | None
) -> None:
    """The short way of an activity's end to the worker's next task leads to the same step as a builder does."""
    started = h.WorkflowExecutionStarted(
        workflow_id="w",
        workflow_type="t",
        original_run_id="r",
        first_run_id="r",
        spec=StartSpec(task_queue="q"),
    )
    scheduled = h.ActivityTaskScheduled("1", "echo", ActivitySpec(task_queue="q"), 4)
    attempt = OpenActivity(
        scheduled_event_id=5,
        scheduled=scheduled,
        spec=scheduled.spec,
        scheduled_ns=40,
        available_ns=40,
        started_ns=began,
        after_ns=after,
    )
    run = Run(
        run_id="r",
        started=started,
        start_ns=1,
        length=length,
        latest_ns=latest,
        history_size=1000,
        task_count=1,
        activities={5: attempt, 6: attempt},
    )
    wants = Eager("me", "q", Limits(history_events=13, suggest_events=12))
    builder = ChangeBuilder(run, now)
    builder.drop_activity(5)
    builder.happen(*activities.completed(attempt, value, "me"))
    take_task(builder, wants)
    assert transitions.complete_activity(run, attempt, value, "me", wants, now) == builder.build()
