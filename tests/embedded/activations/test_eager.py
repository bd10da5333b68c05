"""Eager dispatch: a completion also starts the attempts and the task that it causes, if its worker has free slots."""

from __future__ import annotations

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

from ..memory_world import World, settle, start_waiting, text
from ..store.store_conformance import NOW, Life, activity

LIMITS = Limits()


def eager(attempts: int = 9, queue: str = "q", limits: Limits = LIMITS) -> Eager:
    return Eager("me", queue, limits, attempts)


def complete(life: Life, *commands: c.Command, eager_worker: Eager | None) -> Change:
    answer = tasks.TaskCompletion(commands=tuple(map(tasks.Sent, commands)), identity="me")
    return tasks.complete_task(life.run, answer, "", LIMITS, eager_worker, NOW)


def life_with_started_task() -> Life:
    life = Life("r")
    life.take_task()
    return life


def started_attempts(step: Change) -> list[int]:
    return [event_id for event_id, activity in step.run.activities.items() if activity.started_ns]


def test_eager_attempts_write_the_same_events_as_separate_starts() -> None:
    life = life_with_started_task()
    both = complete(life, activity(1), activity(2), eager_worker=eager())
    step = complete(life, activity(1), activity(2), eager_worker=None)
    run = step.run
    for event_id in tuple(run.activities):
        run = transitions.start_attempt(run, run.activities[event_id], "me", NOW).run
    assert both.run == run
    assert both.events == step.events
    assert both.touched == step.touched == set(run.activities)


def test_eager_task_start_writes_the_same_events_as_a_separate_start() -> None:
    life = life_with_started_task()
    run = complete(life, activity(1), eager_worker=eager()).run
    (pending,) = run.activities.values()
    both = transitions.complete_activity(run, pending, text("r"), "me", eager(), NOW)
    first = transitions.complete_activity(run, pending, text("r"), "me", None, NOW)
    second = tasks.start_task(first.run, "me", LIMITS, None, NOW)
    assert both.run == second.run
    assert both.run.task_is_started
    assert both.events == first.events + second.events


def test_eager_dispatch_starts_no_more_attempts_than_free_slots() -> None:
    step = complete(life_with_started_task(), activity(1), activity(2), activity(3), eager_worker=eager(2))
    assert started_attempts(step) == sorted(step.run.activities)[:2]


def test_eager_dispatch_skips_activities_of_other_task_queues() -> None:
    step = complete(
        life_with_started_task(), activity(1, task_queue="other"), activity(2), eager_worker=eager()
    )
    assert [step.run.activities[event_id].spec.task_queue for event_id in started_attempts(step)] == ["q"]


def test_run_over_its_history_limit_gets_no_eager_attempts() -> None:
    step = complete(
        life_with_started_task(), activity(1), eager_worker=eager(limits=Limits(history_events=3))
    )
    assert started_attempts(step) == []


async def test_activity_is_queued_if_no_worker_polls(world: World) -> None:
    run_id = await world.start_run(activity(1))
    assert world.engine.queues.waiting_attempts() == [(run_id, 5)]
    assert isinstance(await world.handle.poll_activity(), ActivityTask)


class TasksOnly(DispatchPolicy):
    """A policy that allows workflow tasks and no attempts."""

    is_selective = True

    def may_take(self, run_id: str, scheduled_event_id: int) -> bool:
        return scheduled_event_id == 0


async def test_dispatch_policy_applies_to_eager_attempts() -> None:
    policy = TasksOnly()
    world = await World.new(policy=policy)
    run_id = (await world.start()).run_id
    poll = await start_waiting(world.handle.poll_activity())
    await world.activation()
    await world.complete(run_id, activity(1))
    await settle()
    assert not poll.done()
    policy.is_selective = False
    world.engine.queues.wake_all()
    assert isinstance(await poll, ActivityTask)


async def test_queued_attempts_are_dispatched_before_eager_ones() -> None:
    world = await World.new(max_concurrent_activities=1)
    ids = [(await world.start(name)).run_id for name in ("a", "b", "c")]
    polls = [await start_waiting(world.handle.poll_activity()) for _ in ids]
    for _ in ids:
        await world.activation()
    for run_id in ids:
        await world.complete(run_id, activity(1))
    seen = []
    for _ in ids:
        await settle()
        (poll,) = (poll for poll in polls if poll.done())
        polls.remove(poll)
        seen.append(poll.result().run_id)
        await world.handle.complete_activity(ActivityOk(poll.result().token, text("r")))
    assert seen == ids


async def test_activity_result_during_a_workflow_task_is_delivered_in_the_next_task(world: World) -> None:
    run_id = await world.start_run(activity(1), activity(2))
    items = [await world.handle.poll_activity() for _ in range(2)]
    poll = await start_waiting(world.activation())
    for item in items:
        await world.succeed(item, text(item.token.decode()[-3:-1]))
    first = await poll
    await world.complete(run_id)
    second = await world.activation()
    assert [
        event.seq
        for each in (first, second)
        for event in each.events
        if isinstance(event, e.ActivityCompleted)
    ] == [1, 2]


@given(
    now=st.integers(50, 150),
    latest=st.integers(50, 150),
    began=st.integers(0, 150),
    after=st.sampled_from([0, 120]),
    length=st.integers(5, 12),
    value=st.sampled_from([None, text("1")]),
)
def test_fast_activity_completion_equals_the_general_builder(
    now: int, latest: int, began: int, after: int, length: int, value: Payload | None
) -> None:
    """`complete_activity` takes a shorter path than `ChangeBuilder`; the resulting change must be equal."""
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
    builder.write_or_hold(*activities.completed(attempt, value, "me"))
    take_task(builder, wants)
    assert transitions.complete_activity(run, attempt, value, "me", wants, now) == builder.build()
