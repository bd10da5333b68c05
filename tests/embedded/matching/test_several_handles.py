"""Several handles of one task queue, as of several processes: distribution of tasks, and tasks of a lost worker."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import msgspec
import pytest
from tests.specs import made

from hourglass._contract.handle import ActivityOk, ActivityTask, WorkKind
from hourglass._contract.workflows import QueryWorkflow, SignalWorkflow
from hourglass._embedded.multiprocess.worker_peer import ProcessorUse, next_handicap
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass._evaluator.commands import Succeeded
from hourglass._evaluator.events import Activation
from hourglass._evaluator.specs import ActivitySpec, RetryRule
from hourglass._history.events import kind_of

from ..memory_world import World, settle, start_waiting, text


class Receiver:
    """A worker of another process, which collects the items that its handle delivers."""

    def __init__(self, world: World, *, process_id: int = 4711, **config: Any) -> None:
        config.setdefault("identity", "other")
        self.handle: Any = world.other_handle(process_id, id(self), **config)
        self.activations: list[Activation] = []
        self.activities: list[Any] = []
        self.handle.start(self.activations.extend, self.activities.extend, lambda kind, why: None)

    def complete(self, run_id: str, *commands: c.Command) -> None:
        self.handle.complete_workflow_task(Succeeded(run_id, commands))

    def lose(self) -> None:
        self.handle.lose()


@pytest.fixture
def world(runner: asyncio.Runner, world: World) -> World:
    """An engine in memory whose own worker receives nothing."""

    async def shut_worker_down() -> None:
        world.handle.initiate_shutdown()

    runner.run(shut_worker_down())
    return world


async def start_run(world: World) -> str:
    """Start a run, and let the workers receive it. Return its id."""
    run_id = (await world.start("w")).run_id
    await settle()
    return run_id


async def start_on_one_of_two(world: World) -> tuple[str, Receiver, Receiver]:
    """Start a run with two idle workers. Return its id, the worker that received it, and the other one."""
    worker_a, worker_b = Receiver(world), Receiver(world)
    run_id = await start_run(world)
    return (run_id, worker_a, worker_b) if worker_a.activations else (run_id, worker_b, worker_a)


def schedule(seq: int, kind: str = "act", **spec: Any) -> c.ScheduleActivity:
    return c.ScheduleActivity(
        seq, str(seq), kind, ActivitySpec(task_queue="q", start_to_close_timeout=60.0, **spec)
    )


def kinds(world: World, run_id: str) -> list[str]:
    record = world.record(run_id=run_id)
    return [kind_of(event.attributes) for event in record.events]


async def test_workflow_tasks_are_spread_over_idle_workers(world: World) -> None:
    worker_a, worker_b = Receiver(world, identity="one"), Receiver(world, identity="two")
    await settle()
    for number in range(6):
        await world.start(f"w{number}")
    await settle()
    assert (len(worker_a.activations), len(worker_b.activations)) == (3, 3)


async def test_activities_of_one_run_are_spread_over_workers(world: World) -> None:
    run_id, holder, other_worker = await start_on_one_of_two(world)
    holder.complete(run_id, *(schedule(seq) for seq in range(1, 9)))
    await settle()
    assert (len(holder.activities), len(other_worker.activities)) == (4, 4)


async def test_sequential_activities_stay_with_one_worker(world: World) -> None:
    run_id, holder, other_worker = await start_on_one_of_two(world)
    for seq in range(1, 5):
        holder.complete(run_id, schedule(seq))
        await settle()
        task = holder.activities[-1]
        assert task.activity_id == str(seq)
        holder.handle.complete_activity(ActivityOk(task.token, text("done")))
        await settle()
    assert len(holder.activations) == 5
    assert not other_worker.activations
    assert not other_worker.activities


async def test_cached_run_waits_for_its_busy_worker(world: World) -> None:
    """Tasks of the run go to another worker only when the first one is lost."""
    worker_a = Receiver(world, max_concurrent_workflow_tasks=1)
    first = await world.start("first")
    await settle()
    worker_a.complete(first.run_id, c.StartTimer(1, 10**12))
    await world.start("second")
    await settle()
    assert len(worker_a.activations) == 2, "the worker has a free slot"
    worker_b = Receiver(world)
    await world.call(made(SignalWorkflow, workflow_id="first", signal_name="s", request_id="r"))
    await settle()
    assert not worker_b.activations
    worker_a.complete(worker_a.activations[-1].run_id, c.StartTimer(1, 10**12))
    await settle()
    assert [activation.run_id for activation in worker_a.activations] == [
        first.run_id,
        worker_a.activations[1].run_id,
        first.run_id,
    ]
    worker_a.lose()
    await world.call(made(SignalWorkflow, workflow_id="first", signal_name="s", request_id="r2"))
    await settle()
    assert {activation.run_id for activation in worker_b.activations} == {first.run_id}, (
        "no worker knows it any more"
    )


async def test_workflow_task_of_a_lost_worker_is_redelivered(world: World) -> None:
    """Later completions of the lost worker are ignored."""
    run_id, holder, other_worker = await start_on_one_of_two(world)
    holder.lose()
    await settle()
    assert [activation.run_id for activation in other_worker.activations] == [run_id]
    assert isinstance(other_worker.activations[0].events[0], e.RunStarted)
    other_worker.complete(run_id, c.CompleteRun(text("done")))
    holder.complete(run_id, c.FailRun(msgspec.UNSET))  # type: ignore[arg-type]
    await settle()
    assert kinds(world, run_id)[-1] == "WorkflowExecutionCompleted"
    assert "WorkflowTaskTimedOut" in kinds(world, run_id)


async def test_tasks_of_a_lost_worker_keep_their_fairness_weight(world: World) -> None:
    worker_a = Receiver(world, identity="one", max_concurrent_workflow_tasks=100)
    worker_b = Receiver(world, identity="two", max_concurrent_workflow_tasks=1)
    worker_b.handle.pause(WorkKind.WORKFLOWS)
    tenants: dict[str, str] = {}
    for number in range(8):
        for tenant, weight in (("a", 1.0), ("b", 3.0)):
            options = {"fairness_key": tenant, "fairness_weight": weight}
            tenants[(await world.start(f"{tenant}{number}", **options)).run_id] = tenant
    await settle()
    for activation in worker_a.activations:
        worker_a.complete(activation.run_id)
    worker_a.handle.pause(WorkKind.WORKFLOWS)
    for number in range(8):
        for tenant in "ab":
            request = SignalWorkflow(workflow_id=f"{tenant}{number}", signal_name="s", request_id="")
            await world.call(request)
    worker_a.lose()
    worker_b.handle.resume(WorkKind.WORKFLOWS)
    received = ""
    for _ in range(8):
        await settle()
        run_id = worker_b.activations.pop().run_id
        received += tenants[run_id]
        worker_b.complete(run_id)
    assert Counter(received) == {"a": 2, "b": 6}


async def test_attempt_of_a_lost_worker_is_retried(world: World) -> None:
    """The first loss is retried immediately, the second after the backoff of the retry policy."""
    worker_b = Receiver(world, activities=False)
    lost = [Receiver(world, workflows=False)]
    run_id = await start_run(world)
    worker_b.complete(run_id, schedule(1, retry_policy=RetryRule(initial_interval=1.0)))
    for attempt in (1, 2):
        await settle()
        assert [task.attempt for task in lost[-1].activities] == [attempt]
        lost.append(Receiver(world, workflows=False))
        lost[-2].lose()
    await settle()
    last = lost[-1]
    assert not last.activities
    world.clock.advance(2.0)
    await settle()
    assert [task.attempt for task in last.activities] == [3]
    lost[0].handle.complete_activity(ActivityOk(lost[0].activities[0].token, text("late")))
    last.handle.complete_activity(ActivityOk(last.activities[0].token, text("done")))
    await settle()
    assert worker_b.activations[-1].events == (e.ActivityCompleted(1, text("done")),)


async def test_attempt_without_retries_fails_when_its_worker_is_lost(world: World) -> None:
    worker_a, worker_b = Receiver(world, workflows=False), Receiver(world, activities=False)
    run_id = await start_run(world)
    worker_b.complete(run_id, schedule(1, retry_policy=RetryRule(maximum_attempts=1)))
    await settle()
    worker_c = Receiver(world, workflows=False)
    worker_a.lose()
    await settle()
    assert isinstance(worker_b.activations[-1].events[0], e.ActivityFailed)
    assert not worker_c.activities


async def test_query_of_a_lost_worker_is_answered_by_another(world: World) -> None:
    worker_a = Receiver(world)
    run_id = await start_run(world)
    worker_a.complete(run_id, c.StartTimer(1, 10**12))
    asking = await start_waiting(world.call(QueryWorkflow(workflow_id="w", query_name="count")))
    assert isinstance(worker_a.activations[-1].events[0], e.QueryReceived)
    worker_b = Receiver(world)
    worker_a.lose()
    await settle()
    worker_b.complete(run_id, c.StartTimer(1, 10**12))  # replayed first
    await settle()
    query = worker_b.activations[-1].events[0]
    assert isinstance(query, e.QueryReceived)
    worker_b.complete(run_id, c.AnswerQuery(query.id, text("7")))
    assert (await asking).result == (text("7"),)


async def test_local_activity_of_a_lost_worker_runs_again(world: World) -> None:
    worker_a = Receiver(world)
    run_id = await start_run(world)
    local = c.ScheduleLocalActivity(1, "1", "act", ActivitySpec(start_to_close_timeout=60.0))
    worker_a.complete(run_id, local)
    await settle()
    assert [task.is_local for task in worker_a.activities] == [True]
    worker_b = Receiver(world)
    worker_a.lose()
    await settle()
    worker_b.complete(run_id, local)
    await settle()
    (task,) = worker_b.activities
    assert (task.is_local, task.attempt) == (True, 1)
    worker_b.handle.complete_activity(ActivityOk(task.token, text("done")))
    await settle()
    assert worker_b.activations[-1].events == (e.ActivityCompleted(1, text("done"), is_local=True),)


async def test_worker_receives_only_registered_types(world: World) -> None:
    """A type that no worker has registered goes to any worker."""
    old = Receiver(world, workflow_types=frozenset({"W"}), activity_types=frozenset({"act"}))
    new = Receiver(world, workflow_types=frozenset({"W", "X"}), activity_types=frozenset({"act", "later"}))
    runs = [await world.start(f"x{number}", workflow_type="X") for number in range(4)]
    await settle()
    assert not old.activations
    assert len(new.activations) == 4
    new.complete(runs[0].run_id, schedule(1, "later"), schedule(2, "later"), schedule(3, "act"))
    await settle()
    assert [task.activity_type for task in new.activities] == ["later", "later"]
    assert [task.activity_type for task in old.activities] == ["act"]
    started = await world.start("w", workflow_type="W")
    await settle()
    old.complete(started.run_id, schedule(1, "later"))
    await settle()
    assert [task.activity_type for task in new.activities] == ["later"] * 3, (
        "it asks for what it does not know"
    )
    old.handle.complete_activity(ActivityOk(old.activities[0].token, text("done")))
    await world.start("u", workflow_type="unknown")
    await settle()
    assert len(old.activations) == 2, "the unknown type went to the busier worker"


async def test_worker_in_a_busy_engine_process_receives_fewer_tasks() -> None:
    world = await World.new()
    world.engine.queues.pollers.handicap = 3.0
    remote_worker = Receiver(world)
    waiting = [asyncio.create_task(world.activation())]
    for number in range(8):
        await world.start(f"w{number}")
        await settle()
        if waiting[-1].done():
            waiting.append(asyncio.create_task(world.activation()))
    waiting[-1].cancel()
    assert (len(world.seen), len(remote_worker.activations)) == (2, 6)


async def test_light_load_stays_in_the_engine_process() -> None:
    """Another process receives only what exceeds the slots of the engine's own worker."""
    world = await World.new("another")
    remote_worker, here = Receiver(world), Receiver(world, process_id=0, max_concurrent_workflow_tasks=6)
    world.engine.queues.pollers.handicap = 0.0
    await settle()
    for number in range(8):
        await world.start(f"w{number}")
        await settle()
    assert (len(here.activations), len(remote_worker.activations)) == (6, 2)


async def test_idle_worker_in_the_engine_process_is_preferred() -> None:
    """Sending to another process costs time, even if its worker registered first."""
    world = await World.new("another")
    remote_worker, here = Receiver(world), Receiver(world, process_id=0)
    await settle()
    for number in range(3):
        run_id = (await world.start(f"w{number}")).run_id
        await settle()
        here.complete(run_id, c.CompleteRun(None))
        await settle()
        here.complete(run_id)  # the eviction
    assert not remote_worker.activations


def processor_use(share: float, control: float) -> ProcessorUse:
    found = ProcessorUse()
    found.share, found.control = share, control
    return found


def handicap_after(ours: ProcessorUse, *others: ProcessorUse) -> float:
    """Return the handicap after 40 updates with constant loads."""
    handicap = 1.0
    for _ in range(40):
        handicap = next_handicap(handicap, ours, others)
    return handicap


def test_handicap_follows_the_load_of_the_engine_process() -> None:
    """Heavy code is sent to idle processes, light code stays because sending costs as much, an idle engine process gets
    an equal share.
    """
    computing, idle = processor_use(1.0, 0.15), processor_use(0.3, 0.1)
    assert handicap_after(computing, idle) > 10
    assert handicap_after(processor_use(1.0, 0.15), processor_use(1.0, 0.1)) == 1.0
    light = handicap_after(processor_use(1.0, 0.6), processor_use(0.4, 0.3))
    assert light == handicap_after(processor_use(1.0, 0.6), idle, idle) == 0.0
    assert next_handicap(light, computing, [idle]) >= 1.0
    for before in (1.0, 50.0):
        nearly_all = next_handicap(before, processor_use(1.0, 0.6), [processor_use(0.4, 0.3)])
        assert next_handicap(nearly_all, processor_use(1.0, 0.6), [idle]) == 0.0, "a second look is enough"
    assert light == handicap_after(processor_use(0.4, 0.3), idle), "also where others take the processors"
    at_leisure = processor_use(0.1, 0.08)
    handicap = light
    for _ in range(40):
        handicap = next_handicap(handicap, at_leisure, [idle])
    assert handicap == handicap_after(at_leisure, idle) == 1.0


def test_processor_use_is_computed_from_reports() -> None:
    """A clock that goes back, or an older process without the second value, does no harm."""
    noted = ProcessorUse()
    noted.note(5.0, 3.0)
    assert (noted.share, noted.control) == (0.0, 0.0)
    noted.note(1e9, 1e9)
    assert 0.0 < noted.control == noted.share <= 1.0
    noted.note(0.0, 0.0)
    assert 0.0 <= noted.control == noted.share < 1.0


async def test_attempt_taken_but_not_delivered_goes_to_another_worker(world: World) -> None:
    worker_a = Receiver(world, activities=False)
    worker_b = Receiver(world, workflows=False)
    run_id = await start_run(world)
    worker_a.complete(run_id, schedule(1))
    assert (len(worker_b.handle.poller.active_runs), len(worker_b.handle.poller.attempts)) == (0, 1)
    worker_b.lose()  # in the same turn of the loop: it was taken, and not given out yet
    assert not worker_b.activities
    worker_c = Receiver(world, workflows=False)
    await settle()
    assert [(type(task), task.attempt) for task in worker_c.activities] == [(ActivityTask, 1)]
