"""Everything that a handle gives out is answered once, whatever happens to the task that is at it."""

from __future__ import annotations

import asyncio
import logging

from hourglass._contract.handle import ActivityCancel, ActivityOk, AttemptFailed
from hourglass._evaluator.commands import Succeeded, TaskFailed
from hourglass._evaluator.events import Activation, RunEvicted, RunStarted
from hourglass._supervision import NotRunning
from hourglass._worker.handles.life import HandleLimits
from hourglass._worker.lanes import hang_detector
from hourglass.converter import ApplicationFailure, default_converter
from worker.handles.scripted import activation, attempt, eviction

from .world import (
    EVALUATORS,
    EXECUTORS,
    WORKER,
    begun,
    memory,
    play,
    scripted,
    slow,
    stage,
    steps,
    until,
    waiting,
)


def started(run_id: str, workflow: str, *args: object) -> Activation:
    event = RunStarted(workflow_type=workflow, workflow_id="w", arguments=default_converter.encode_all(args))
    return Activation(run_id=run_id, events=(event,))


def kind_of(answer: object) -> str:
    assert isinstance(answer, (TaskFailed, AttemptFailed)), answer
    assert isinstance(answer.failure.info, ApplicationFailure)
    return answer.failure.info.type


# --- workflow tasks ---------------------------------------------------------------------------------------------------


async def test_killed_evaluation_is_failed_once():
    """I3: the activation is completed as failed; a later completion of the lane is dropped."""
    async with scripted() as world:
        handle = world.handle
        handle.deliver(started("r", "slow", 1))
        await begun()
        world.kill(f"{EVALUATORS}/evaluation-1")
        await until(lambda: handle.completions)
        stage.go.set()
        (services,) = world.app.configured()
        await until(lambda: services.lanes.counts()[0].activations == 1)
        handle.deliver(eviction("r"))
        await until(lambda: len(handle.completions) == 2)
        assert kind_of(handle.completions[0]) == "EvaluationDied"
        assert handle.completions[1] == Succeeded("r")


async def test_run_continues_after_killed_evaluation():
    """The engine sends the task again, and the run completes."""
    async with memory() as world:
        await world.start(slow, 5)
        await begun()
        stage.go.set()
        world.kill(f"{EVALUATORS}/evaluation-1")
        assert await world.result() == 5
        assert stage.evaluations == 2


async def test_killed_supervisor_answers_all_evaluations():
    """Each activation of the killed jobs is answered, and the runs complete."""
    async with memory() as world:
        for number in range(10):
            await world.start(slow, number, id=f"w{number}")
        await begun()
        stage.go.set()
        world.kill(EVALUATORS)
        for number in range(10):
            assert await world.result(f"w{number}") == number
        await until(lambda: not world.record().runs.open)


async def test_killed_eviction_succeeds():
    """An eviction cannot fail: it is answered with success."""
    async with scripted() as world:
        handle = world.handle
        stage.evaluations = 0
        handle.deliver(started("other", "slow", 1))  # it holds the only lane
        await begun()
        handle.deliver(eviction("r"))
        await until(lambda: f"{EVALUATORS}/evaluation-2" in world.paths())
        world.kill(f"{EVALUATORS}/evaluation-2")
        await until(lambda: handle.completions)
        assert handle.completions == [Succeeded("r")]


async def test_items_wait_for_the_evaluator_supervisor():
    """An item that arrives while the supervisor of evaluations is down waits for its restart."""
    async with scripted() as world:
        line, evaluators = world.record().activations, world.app.evaluators
        spawn = evaluators.spawn_job
        refused = []

        def watched(*args, **named):
            if not refused:
                world.kill(EVALUATORS)
            try:
                return spawn(*args, **named)
            except NotRunning:
                refused.append(line)
                raise

        evaluators.spawn_job = watched
        world.handle.deliver(activation("unknown"))
        await until(lambda: refused)
        assert len(line.kept) == 1
        await until(lambda: world.handle.completions)
        assert isinstance(world.handle.completions[0], TaskFailed)
        assert not line.kept


async def test_item_survives_death_of_loop_and_supervisor():
    """The poll loop and the supervisor of evaluations die together: the next loop receives the item."""
    async with memory() as world:
        line = world.record().activations
        world.kill(EVALUATORS)
        await world.start(steps, 1)
        await until(lambda: line.received)
        if f"{WORKER}/WorkflowPollLoop" in world.paths():
            world.kill(f"{WORKER}/WorkflowPollLoop")
        assert await world.result() == 4


def test_completion_without_a_handle_is_logged(caplog):
    """`WorkerNotRegistered`: the handle is gone; the job logs this and ends normally."""
    caplog.set_level(logging.INFO)

    async def script():
        async with scripted(limits=HandleLimits(workflow_grace=0.01, adoption=0)) as world:
            world.handle.deliver(started("r", "slow", 1))
            await begun()
            evaluation = world.find(f"{EVALUATORS}/evaluation-1")
            former = world.handle
            world.kill(WORKER)
            await until(lambda: former.finalized)
            stage.go.set()
            exit = await evaluation.wait_dead()
            assert exit.kind == "normal"
            assert kind_of(former.completions[0]) == "WorkerShutdown"
            assert len(former.completions) == 1

    play(script)
    assert "the completion of run r is not sent: generation 1 of 'default' is gone" in caplog.text


async def test_cache_requests_evictions():
    """If the cache is full, the handle receives the request for an eviction after the completion."""
    async with scripted(max_cached_workflows=0, max_concurrent_workflow_tasks=1) as world:
        world.handle.deliver(started("a", "waiting", 1))
        await until(lambda: len(world.handle.completions) == 1)
        assert world.handle.evictions == []
        world.handle.deliver(started("b", "waiting", 1))
        await until(lambda: world.handle.evictions)
        assert world.handle.evictions == ["a"]
        assert len(world.handle.completions) == 2


async def test_many_runs_on_few_lanes_are_each_answered_once(monkeypatch):
    """A thousand concurrent runs on three lanes."""
    # On a busy machine a lane may stand still for long enough that what waits behind it moves: another test's matter.
    monkeypatch.setattr(hang_detector, "_DELAYED_AFTER", 60.0)

    async with scripted(more={"lanes": 3}) as world:
        for number in range(1000):
            world.handle.deliver(started(f"r{number}", "waiting", 1))
        await until(lambda: len(world.handle.completions) == 1000)
        assert len({each.run_id for each in world.handle.completions}) == 1000
        (services,) = world.app.configured()
        assert [lane.runs for lane in services.lanes.status()] == [334, 333, 333]


# --- activities -------------------------------------------------------------------------------------------------------


async def test_killed_attempt_is_retried():
    """The engine is notified at once, without a timeout, and the retry succeeds."""
    async with memory() as world:
        await world.start(waiting, 1)
        await begun()
        stage.go.set()
        world.kill(f"{EXECUTORS}/attempt-1")
        assert await world.result() == 3
        assert stage.attempts == 2


async def test_killed_attempt_is_reported_once():
    """The result that its thread returns later is not sent."""
    async with scripted() as world:
        handle = world.handle
        handle.deliver(attempt_of("waits", 1))
        await begun()
        world.kill(f"{EXECUTORS}/attempt-1")
        await until(lambda: handle.results)
        stage.go.set()
        await until(lambda: not world.app.configured()[0].executor.running)
        assert [kind_of(each) for each in handle.results] == ["AttemptDied"]


def attempt_of(name: str, *args: object, token: bytes = b"t", **more: object):
    return attempt(token, **more).__replace__(  # type: ignore[attr-defined]
        activity_type=name, arguments=default_converter.encode_all(args)
    )


async def test_cancellation_reaches_its_attempt():
    """A cancellation is passed to the attempt with that task token."""
    async with scripted() as world:
        world.handle.deliver(attempt_of("waits", 1))
        await begun()
        (services,) = world.app.configured()
        world.handle.deliver(ActivityCancel(b"t", "CANCELLED"))
        running = services.executor.attempts[b"t"]
        await until(lambda: running.context.cancel_reason == "CANCELLED")
        stage.go.set()
        await until(lambda: world.handle.results)


async def test_local_activity_results_wait_from_close_to_eviction():
    """The engine would record them after the end of the run and reject the task."""
    async with scripted() as world:
        handle = world.handle
        handle.deliver(attempt_of("waits", 1, run_id="r", is_local=True))
        await begun()
        stage.evaluations = 1  # so that the workflow does not wait
        handle.deliver(started("r", "slow", 1))
        await until(lambda: handle.completions)
        stage.go.set()
        await until(lambda: stage.ended)
        handle.deliver(attempt_of("double", 1, token=b"other", run_id="s", is_local=True))
        await until(lambda: handle.results)
        assert [each.token for each in handle.results] == [b"other"]
        assert f"{EXECUTORS}/attempt-1" in world.paths()
        handle.deliver(Activation(run_id="r", events=(RunEvicted("CACHE_FULL"),)))
        await until(lambda: len(handle.results) == 2)
        assert handle.results[1] == ActivityOk(b"t", default_converter.encode(2))


async def test_held_results_are_released_by_drain():
    """Otherwise a recycled handle would wait for its local activity for an hour."""
    async with scripted() as world:
        handle = world.handle
        handle.deliver(attempt_of("waits", 1, run_id="r", is_local=True))
        await begun()
        stage.evaluations = 1  # so that the workflow does not wait
        handle.deliver(started("r", "slow", 1))
        await until(lambda: handle.completions)
        stage.go.set()
        await until(lambda: stage.ended)
        assert handle.results == []
        handle.pending["workflow"].append(eviction("r"))  # arrives as the handle shuts down
        await world.app.holder.recycle("default", "a test says so")
        await until(lambda: handle.finalized)
        assert handle.results == [ActivityOk(b"t", default_converter.encode(2))]


async def test_no_job_remains_for_a_removed_queue():
    """An activity that does not stop is abandoned, but its job ends, even if another queue keeps the tree alive."""
    async with memory(graceful_shutdown=0.0, limits=HandleLimits(cancel_grace=0.01)) as world:
        await world.serve("second")
        await world.start(waiting, 1)
        await begun()
        await world.app.stop_worker("default")
        assert [path for path in world.paths() if "attempt-" in path] == []
        assert await world.run(steps, 1, id="after", queue="second") == 4
        stage.go.set()
        await asyncio.sleep(0)
