"""The end of a handle: shutdown first, everything answered, finalized with nothing in flight, or left behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hourglass._contract.handle import ActivityCancel, ActivityOk, AttemptFailed, HandleBroken
from hourglass._evaluator import events
from hourglass._evaluator.commands import Succeeded, TaskFailed
from hourglass._evaluator.events import Activation, ActivityCompleted
from hourglass.converter import ApplicationFailure, Failure

from .scripted import (
    Q,
    RustPanic,
    Taken,
    World,
    activation,
    attempt,
    complete,
    done,
    eviction,
    refused_as_stale,
    take_activation,
    take_activity,
)
from .virtual_loop import settle

pytestmark = pytest.mark.usefixtures("both_kinds_of_handles")


async def in_work(world: World, *items: Any) -> list[Taken]:
    """Items that were dispatched."""
    tickets: list[Taken] = []
    for item in items:
        world.handle.give(item)
        poll = take_activity if hasattr(item, "token") else take_activation
        tickets.append(await poll(world.holder))
    return tickets


def now() -> float:
    return asyncio.get_running_loop().time() - 1000


async def test_drain_shuts_down_before_it_fails_tasks() -> None:
    """A task that is failed after the shutdown is redelivered at once, before it only after 10 s."""
    world = await World.started()
    asking = asyncio.ensure_future(take_activation(world.holder))
    await settle()
    asking.cancel()
    world.handle.give(activation())
    await settle()
    await world.holder.unregister_worker(Q)
    await settle()
    assert world.handle.log == ["shutdown", "begin run-1", "end run-1", "finalize"]
    assert isinstance(world.handle.completions[0], TaskFailed)
    assert world.counters.forced_failures == 1
    await world.holder.stop()


async def test_drain_waits_two_seconds_for_evaluations() -> None:
    """Completions in time count; the other tasks are failed, and late completions are fenced."""
    world = await World.started()
    quick, slow = await in_work(world, activation("quick"), activation("slow"))
    await world.holder.unregister_worker(Q)
    await asyncio.sleep(1.9)
    await complete(world.holder, quick, done("quick"))
    assert len(world.handle.completions) == 1
    await world.holder.stop()
    assert now() == pytest.approx(2.0)
    kinds = {each.run_id: type(each) for each in world.handle.completions}
    assert kinds == {"quick": Succeeded, "slow": TaskFailed}
    with refused_as_stale():
        await complete(world.holder, slow, done("slow"))


async def test_drain_answers_evictions() -> None:
    """Evictions during the drain, and unanswered ones, succeed and never fail."""
    world = await World.started()
    await in_work(world, eviction("unanswered"), activation("busy"))
    world.handle.give(eviction("came-later"))
    await world.holder.stop()
    assert {each.run_id: type(each) for each in world.handle.completions} == {
        "unanswered": Succeeded,
        "came-later": Succeeded,
        "busy": TaskFailed,
    }
    assert world.counters.forced_failures == 1


async def test_drain_fails_new_tasks_at_once() -> None:
    """A task that arrives at a draining handle is returned for another handle."""
    world = await World.started()
    await in_work(world, activation("held"))
    await world.holder.recycle(Q, "test")
    old = world.engine.handles[0]
    old.give(activation("late"))
    old.give(attempt(b"late"))
    await settle()
    assert [each.run_id for each in old.completions] == ["late"]
    assert [type(each) for each in old.results] == [AttemptFailed]
    await world.holder.stop()


async def test_drain_cancels_and_then_fails_activities() -> None:
    """When a worker ends, its activities may finish; after the graceful time they are cancelled, and a second later abandoned."""
    world = await World.started(config={"graceful_shutdown": 20.0})
    await in_work(world, attempt(b"finishes"), attempt(b"stops"), attempt(b"hangs"))
    await world.holder.unregister_worker(Q)
    await asyncio.sleep(19)
    await world.holder.complete_activity(Q, 1, ActivityOk(b"finishes"))
    assert world.cancels == []
    await asyncio.sleep(1)
    await settle()
    assert world.cancels == [(1, b"stops", "WORKER_SHUTDOWN"), (1, b"hangs", "WORKER_SHUTDOWN")]
    await world.holder.complete_activity(Q, 1, ActivityOk(b"stops"))
    await world.holder.stop()
    assert now() == pytest.approx(21.0)
    assert [type(each) for each in world.handle.results] == [ActivityOk, ActivityOk, AttemptFailed]
    assert world.handle.finalized == 1


async def test_recycled_handle_lets_activities_finish() -> None:
    """The worker is alive: nobody stops its activities, although the old engine handle shuts down."""
    world = await World.started()
    await in_work(world, attempt(b"long"))
    await world.holder.recycle(Q, "test")
    old = world.engine.handles[0]
    old.give(ActivityCancel(b"long", "WORKER_SHUTDOWN"))
    await asyncio.sleep(1800)
    assert world.cancels == []
    assert world.states() == ["draining", "active"]
    world.holder.heartbeat(Q, 1, b"long", ())
    assert old.beats == [b"long"]
    await world.holder.complete_activity(Q, 1, ActivityOk(b"long"))
    await settle()
    assert old.finalized == 1
    await world.holder.stop()


async def test_cancellation_during_the_drain_is_passed_on() -> None:
    """There is no poll loop any more: the holder passes it on."""
    world = await World.started()
    await in_work(world, attempt(b"long"))
    await world.holder.recycle(Q, "test")
    world.engine.handles[0].give(ActivityCancel(b"long", "CANCELLED"))
    await settle()
    assert world.cancels == [(1, b"long", "CANCELLED")]
    await world.holder.stop()


async def test_unregistering_shortens_the_drain_of_recycled_handles() -> None:
    """Unregistering also shortens the drain of older generations."""
    world = await World.started()
    await in_work(world, attempt(b"long"))
    await world.holder.recycle(Q, "test")
    await world.holder.unregister_worker(Q)
    await world.holder.stop()
    assert now() == pytest.approx(1.0)
    assert world.cancels == [(1, b"long", "WORKER_SHUTDOWN")]
    assert [type(each) for each in world.engine.handles[0].results] == [AttemptFailed]


async def test_finalize_waits_for_pending_calls() -> None:
    """Finalizing waits for completions that the engine has not accepted yet."""
    world = await World.started()
    gate = world.handle.gates["run-1"] = asyncio.Event()
    (ticket,) = await in_work(world, activation())
    completing = asyncio.ensure_future(complete(world.holder, ticket, done()))
    await settle()
    world.handle.open_runs.clear()  # its polls end although the call has not returned
    await world.holder.unregister_worker(Q)
    await asyncio.sleep(5)
    assert world.handle.finalized == 0
    gate.set()
    await completing
    await world.holder.stop()
    assert world.handle.finalized == 1
    assert world.counters.abandoned == 0


async def test_handle_with_endless_polls_is_abandoned() -> None:
    """A handle that ignores its shutdown is abandoned after its limit, counted, and never finalized."""
    world = await World.started()
    world.handle.deaf = True
    await world.holder.stop()
    assert now() == pytest.approx(6.0)
    assert (world.counters.abandoned, world.handle.finalized, world.handle.cancelled) == (1, 0, 0)
    assert world.engine.connections[0].closed == 1
    assert world.ended == [(Q, 1)]


async def test_handle_with_an_endless_call_is_abandoned() -> None:
    """The call makes finalizing impossible: the handle is abandoned, and the worker ends."""
    world = await World.started()
    world.handle.gates["run-1"] = asyncio.Event()
    (ticket,) = await in_work(world, activation())
    completing = asyncio.ensure_future(complete(world.holder, ticket, done()))
    await world.holder.stop()
    await completing
    assert (world.counters.abandoned, world.handle.finalized) == (1, 0)


async def test_handle_with_a_hung_finalize_is_abandoned() -> None:
    """On a frozen connection finalizing takes too long; a new handle does not wait for it."""
    world = await World.started()
    world.handle.hangs_at_the_end = True
    await world.holder.recycle(Q, "test")
    await settle()
    assert world.states() == ["finalizing", "active"]
    await asyncio.sleep(36)
    assert world.states() == ["active"]
    assert world.counters.abandoned == 1
    await world.holder.stop()


@pytest.mark.parametrize("error", [HandleBroken("in use"), ValueError("x"), RustPanic("oh")], ids=repr)
async def test_handle_with_a_failing_finalize_is_abandoned(error: BaseException) -> None:
    """Whatever it raises, the drain ends, and the handle counts as abandoned."""
    world = await World.started()
    world.handle.error_at_the_end = error
    await world.holder.stop()
    assert (world.counters.abandoned, world.counters.closed) == (1, 0)


async def test_drain_that_fails_leaves_its_handle_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A handle that cannot even begin to be finalized is counted as abandoned; the worker stops, and its connection closes."""
    world = await World.started()

    def fails() -> None:
        raise LookupError("a bug of the handle")

    monkeypatch.setattr(world.handle, "finalize", fails)
    await world.holder.stop()
    assert (world.counters.abandoned, world.counters.closed) == (1, 0)
    assert world.engine.connections[0].closed == 1
    assert "a bug of the handle" in caplog.text


async def test_connection_that_fails_to_close_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The handle is finalized, and the worker ends although its connection raises."""
    world = await World.started()

    async def fails() -> None:
        raise ConnectionResetError("peer")

    monkeypatch.setattr(world.engine.connections[0], "close", fails)
    await world.holder.stop()
    assert (world.counters.abandoned, world.counters.closed) == (0, 1)
    assert "did not close: ConnectionResetError" in caplog.text


@pytest.mark.parametrize("error", [HandleBroken("gone"), RustPanic("oh")], ids=repr)
async def test_drain_continues_after_a_failing_shutdown(error: BaseException) -> None:
    """Unregistering returns, and the rest of the drain happens."""
    world = await World.started()
    world.handle.shutdown_error = error
    await world.holder.unregister_worker(Q)
    assert not world.is_served()
    await world.holder.stop()
    assert world.handle.finalized == 1


async def test_too_many_abandoned_handles_are_reported_once() -> None:
    """After the sixth the connections are not trusted any more; the count starts again."""
    world = await World.started()
    for number in range(6):
        world.handle.deaf = True
        assert world.alarms == 0
        await world.holder.recycle(Q, str(number))
        await asyncio.sleep(31)
    assert world.counters.abandoned == 6
    assert world.alarms == 1
    world.handle.deaf = True
    await world.holder.stop()
    assert (world.counters.abandoned, world.alarms) == (7, 1)


async def test_failing_callback_does_not_stop_a_drain() -> None:
    """The drain of this handle and of the next one continues."""
    world = World()

    def raises(*_: object) -> None:
        raise RuntimeError("not my problem")

    world.holder._on_handle_ended = raises
    await world.holder.start()
    await world.register()
    await world.holder.recycle(Q, "test")
    await world.holder.stop()
    assert world.counters.closed == 2


async def test_drain_fails_undispatched_items_at_once() -> None:
    """Kept items have no evaluator: they are failed at once, not after two seconds."""
    world = await World.started()

    def fails(item: Activation) -> None:
        raise LookupError("nothing would be at it")

    loop = asyncio.ensure_future(world.holder.serve_activations(Q, lambda _: fails))
    await settle()
    world.handle.give(activation())
    await asyncio.gather(loop, return_exceptions=True)
    assert world.handle.completions == []
    await world.holder.unregister_worker(Q)
    await world.holder.stop()
    assert now() == 0.0
    assert isinstance(world.handle.completions[0], TaskFailed)


def local_end(run_id: str, event: Any = None) -> Activation:
    """What a run hears of its local activity."""
    return Activation(run_id=run_id, events=(event or ActivityCompleted(1, None, is_local=True),))


def local(token: bytes, run_id: str) -> Any:
    return attempt(token, is_local=True, run_id=run_id)


async def test_drain_continues_runs_with_local_activities() -> None:
    """Within the graceful time the run is evaluated and may start further local activities, so that its task can end."""
    world = await World.started(config={"graceful_shutdown": 20.0})
    handle = world.handle
    handle.resting.add("another")  # whose local activities are not begun: the polls go on until it is done
    await in_work(world, local(b"first", "run"))
    await world.holder.unregister_worker(Q)
    await asyncio.sleep(5)
    await world.holder.complete_activity(Q, 1, ActivityOk(b"first"))
    handle.give(local_end("run"))
    await settle()
    (ticket,) = world.dispatched
    await asyncio.sleep(1.9)  # as long as evaluators always have, counted from here
    await complete(world.holder, ticket, done("run"))
    handle.give(local(b"second", "run"))
    await settle()
    await world.holder.complete_activity(Q, 1, ActivityOk(b"second"))
    handle.give(local_end("run"))
    await settle()
    await complete(world.holder, world.dispatched[-1], done("run"))
    handle.resting.clear()
    handle.wake()
    await world.holder.stop()
    assert now() == pytest.approx(6.9)
    assert [type(each) for each in handle.completions] == [Succeeded, Succeeded]
    assert [type(each) for each in handle.results] == [ActivityOk, ActivityOk]
    assert world.counters.forced_failures == 0


async def test_drain_evaluates_events_of_runs_with_local_activities() -> None:
    """A signal fails no task whose local activity may finish; a task of another run goes to another handle."""
    world = await World.started(config={"graceful_shutdown": 20.0})
    await in_work(world, local(b"out", "run"))
    await world.holder.unregister_worker(Q)
    world.handle.give(activation("run"))
    world.handle.give(activation("other"))
    await settle()
    assert [each.item.run_id for each in world.dispatched] == ["run"]
    assert [each.run_id for each in world.handle.completions] == ["other"]
    await complete(world.holder, world.dispatched[0], done("run"))
    await world.holder.complete_activity(Q, 1, ActivityOk(b"out"))
    await world.holder.stop()
    assert world.counters.abandoned == 0


async def test_drain_fails_task_of_an_ended_local_activity() -> None:
    """Without a retry, because the engine would retry it here; the run sees no failure."""
    world = await World.started(config={"graceful_shutdown": 5.0})
    handle = world.handle
    await in_work(world, local(b"told", "one"), local(b"deaf", "two"), local(b"quick", "three"))
    await world.holder.unregister_worker(Q)
    await asyncio.sleep(5.5)
    failure = Failure("told to stop", ApplicationFailure(type="WorkerShutdown"))
    await world.holder.complete_activity(Q, 1, AttemptFailed(b"told", failure))
    await world.holder.complete_activity(Q, 1, ActivityOk(b"quick"))
    handle.give(local_end("three"))
    handle.give(local_end("one", events.ActivityFailed(1, failure, is_local=True)))
    await settle()
    # Told to stop, it came to its end in time.
    assert [each.item.run_id for each in world.dispatched] == ["three"]
    await complete(world.holder, world.dispatched[0], done("three"))
    await asyncio.sleep(0.6)
    handle.give(local_end("two", events.ActivityFailed(1, failure, is_local=True)))
    await world.holder.stop()
    assert {each.run_id: type(each) for each in handle.completions} == {
        "three": Succeeded,
        "one": TaskFailed,
        "two": TaskFailed,
    }
    assert [each.is_last_here for each in handle.results if isinstance(each, AttemptFailed)] == [True, True]


async def test_drain_answers_items_without_evaluators() -> None:
    """Without a supervisor of evaluations the task fails, and the local attempt as well."""
    world = await World.started(config={"graceful_shutdown": 5.0})
    world.dispatches = False
    await in_work(world, local(b"out", "run"))
    await world.holder.unregister_worker(Q)
    world.handle.give(activation("run"))
    world.handle.give(local(b"next", "run"))
    await settle()
    assert [type(each) for each in world.handle.completions] == [TaskFailed]
    assert [type(each) for each in world.handle.results] == [AttemptFailed]
    await world.holder.stop()


async def test_handle_with_endless_tasks_is_abandoned() -> None:
    """It delivers task after task, each is failed, and the worker still ends."""
    world = await World.started(config={"graceful_shutdown": 2.0})
    handle = world.handle
    handle.deaf = True
    await world.holder.unregister_worker(Q)
    stopping = asyncio.ensure_future(world.holder.stop())
    for number in range(100):
        handle.give(attempt(f"{number}".encode(), is_local=True, run_id="run"))
        await asyncio.sleep(0.25)
        for ticket in world.dispatched:
            if ticket.item.token in handle.open_attempts:
                await world.holder.complete_activity(Q, 1, ActivityOk(ticket.item.token))
        if stopping.done():
            break
    assert stopping.done()
    assert now() == pytest.approx(8.0, abs=0.3)
    assert world.counters.abandoned == 1
