"""Every item that a handle delivers is answered once, even if the job that processes it is killed."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from hourglass._contract.handle import ActivityCancel, ActivityOk
from hourglass._evaluator.commands import Succeeded, TaskFailed
from hourglass._evaluator.events import Activation, RunEvicted
from hourglass._supervision import NotRunning
from hourglass._worker.handles.life import HandleLimits
from hourglass._worker.health.lane_notes import SIZE, LaneNotes, read_notes
from hourglass._worker.lanes import hang_detector
from hourglass.converter import default_converter
from worker.handles.scripted import ScriptedHandle, activation, eviction

from .world import (
    EVALUATORS,
    EXECUTORS,
    WORKER,
    ScriptedWorld,
    attempt_of,
    begun,
    failure_type,
    memory,
    scripted,
    slow,
    stage,
    start_of,
    steps,
    until,
    waiting,
)

# --- workflow tasks ---------------------------------------------------------------------------------------------------


async def test_killed_evaluation_job_fails_its_workflow_task_once():
    async with scripted() as world:
        handle = world.handle
        handle.deliver(start_of("r", "slow", 1))
        await begun()
        world.kill(f"{EVALUATORS}/evaluation-1")
        await until(lambda: handle.completions)
        stage.go.set()
        (services,) = world.app.configured()
        await until(lambda: services.lanes.counts()[0].activations == 1)
        handle.deliver(eviction("r"))
        await until(lambda: len(handle.completions) == 2)
        assert failure_type(handle.completions[0]) == "EvaluationDied"
        assert handle.completions[1] == Succeeded("r")


async def test_workflow_completes_after_its_evaluation_job_is_killed():
    async with memory() as world:
        await world.start(slow, 5)
        await begun()
        stage.go.set()
        world.kill(f"{EVALUATORS}/evaluation-1")
        assert await world.result() == 5
        assert stage.evaluations == 2


async def test_workflows_complete_after_the_evaluator_supervisor_is_killed():
    async with memory() as world:
        for number in range(10):
            await world.start(slow, number, id=f"w{number}")
        await begun()
        stage.go.set()
        world.kill(EVALUATORS)
        for number in range(10):
            assert await world.result(f"w{number}") == number
        await until(lambda: not world.record().runs.open)


async def test_killed_eviction_job_answers_the_eviction_with_success():
    async with scripted() as world:
        handle = world.handle
        stage.evaluations = 0
        handle.deliver(start_of("other", "slow", 1))  # occupies the only lane
        await begun()
        handle.deliver(eviction("r"))
        await until(lambda: f"{EVALUATORS}/evaluation-2" in world.paths())
        world.kill(f"{EVALUATORS}/evaluation-2")
        await until(lambda: handle.completions)
        assert handle.completions == [Succeeded("r")]


async def test_received_tasks_are_kept_until_the_evaluator_supervisor_restarts():
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
        assert len(line.undelivered) == 1
        await until(lambda: world.handle.completions)
        assert isinstance(world.handle.completions[0], TaskFailed)
        assert not line.undelivered


async def test_task_is_not_lost_if_its_poll_loop_and_the_evaluator_supervisor_die():
    async with memory() as world:
        line = world.record().activations
        world.kill(EVALUATORS)
        await world.start(steps, 1)
        await until(lambda: line.received)
        if f"{WORKER}/WorkflowPollLoop" in world.paths():
            world.kill(f"{WORKER}/WorkflowPollLoop")
        assert await world.result() == 4


async def test_completion_after_its_handle_closed_is_logged_and_dropped(caplog):
    caplog.set_level(logging.INFO)
    async with scripted(limits=HandleLimits(workflow_grace=0.01, adoption=0)) as world:
        world.handle.deliver(start_of("r", "slow", 1))
        await begun()
        evaluation = world.find(f"{EVALUATORS}/evaluation-1")
        former = world.handle
        world.kill(WORKER)
        await until(lambda: former.finalized)
        stage.go.set()
        exit = await evaluation.wait_dead()
        assert exit.kind == "normal"
        assert failure_type(former.completions[0]) == "WorkerShutdown"
        assert len(former.completions) == 1
    assert "the completion of run r is not sent: generation 1 of 'default' has ended" in caplog.text


async def test_full_cache_requests_an_eviction_after_the_completion():
    async with scripted(max_cached_workflows=0, max_concurrent_workflow_tasks=1) as world:
        world.handle.deliver(start_of("a", "waiting", 1))
        await until(lambda: len(world.handle.completions) == 1)
        assert world.handle.evictions == []
        world.handle.deliver(start_of("b", "waiting", 1))
        await until(lambda: world.handle.evictions)
        assert world.handle.evictions == ["a"]
        assert len(world.handle.completions) == 2


async def test_thousand_runs_are_spread_over_three_lanes_and_answered_once(monkeypatch):
    # On a busy machine a lane may pause for so long that its queued runs move to a spare lane.
    monkeypatch.setattr(hang_detector, "_DELAYED_AFTER", 60.0)

    async with scripted(more={"lanes": 3}) as world:
        for number in range(1000):
            world.handle.deliver(start_of(f"r{number}", "waiting", 1))
        await until(lambda: len(world.handle.completions) == 1000)
        assert len({completion.run_id for completion in world.handle.completions}) == 1000
        (services,) = world.app.configured()
        assert [lane.runs for lane in services.lanes.status()] == [334, 333, 333]


# --- activities -------------------------------------------------------------------------------------------------------


async def test_activity_is_retried_after_its_attempt_job_is_killed():
    async with memory() as world:
        await world.start(waiting, 1)
        await begun()
        stage.go.set()
        world.kill(f"{EXECUTORS}/attempt-1")
        assert await world.result() == 3
        assert stage.attempts == 2


async def test_killed_attempt_job_reports_a_single_failure():
    async with scripted() as world:
        handle = world.handle
        handle.deliver(attempt_of("waits", 1))
        await begun()
        world.kill(f"{EXECUTORS}/attempt-1")
        await until(lambda: handle.results)
        stage.go.set()
        await until(lambda: not world.app.configured()[0].executor.running)
        assert [failure_type(result) for result in handle.results] == ["AttemptDied"]


async def test_activity_cancellation_is_dispatched_by_task_token():
    async with scripted() as world:
        world.handle.deliver(attempt_of("waits", 1))
        await begun()
        (services,) = world.app.configured()
        world.handle.deliver(ActivityCancel(b"t", "CANCELLED"))
        running = services.executor.attempts[b"t"]
        await until(lambda: running.context.cancel_reason == "CANCELLED")
        stage.go.set()
        await until(lambda: world.handle.results)


@pytest.mark.parametrize("is_killed", [False, True])
async def test_local_activity_is_noted_until_its_attempt_ends(tmp_path: Path, is_killed: bool):
    """If the process dies, the noted runs are suspects."""
    path = tmp_path / "notes"
    path.write_bytes(bytes(SIZE))
    async with scripted(limits=HandleLimits(leave=0.01)) as world:
        (services,) = world.app.configured()
        with path.open("r+b") as file:
            services.notes = LaneNotes(file.fileno())
        world.handle.deliver(attempt_of("waits", 1, run_id="r", is_local=True))
        await begun()
        assert [noted.run_id for noted in read_notes(path.read_bytes())] == ["r"]
        if is_killed:
            world.kill(f"{EXECUTORS}/attempt-1")
        else:
            stage.go.set()
        await until(lambda: world.handle.results)
        assert read_notes(path.read_bytes()) == []


async def with_closed_run(world: ScriptedWorld) -> ScriptedHandle:
    """Let run `r` close before its local activity ends. Return the handle, which has no result of the activity yet."""
    handle = world.handle
    handle.deliver(attempt_of("waits", 1, run_id="r", is_local=True))
    await begun()
    stage.evaluations = 1  # so that the workflow does not wait
    handle.deliver(start_of("r", "slow", 1))
    await until(lambda: handle.completions)
    stage.go.set()
    await until(lambda: stage.ended)
    return handle


async def test_local_activity_result_of_a_closed_run_is_held_until_its_eviction():
    """The engine would record it after the end of the run and reject the task."""
    async with scripted() as world:
        handle = await with_closed_run(world)
        handle.deliver(attempt_of("double", 1, token=b"other", run_id="s", is_local=True))
        await until(lambda: handle.results)
        assert [result.token for result in handle.results] == [b"other"]
        assert f"{EXECUTORS}/attempt-1" in world.paths()
        handle.deliver(Activation(run_id="r", events=(RunEvicted("CACHE_FULL"),)))
        await until(lambda: len(handle.results) == 2)
        assert handle.results[1] == ActivityOk(b"t", default_converter.encode(2))


async def test_drain_releases_held_local_activity_results():
    """Otherwise a recycled handle would wait an hour for its local activity."""
    async with scripted() as world:
        handle = await with_closed_run(world)
        assert handle.results == []
        handle.pending["workflow"].append(eviction("r"))  # arrives as the handle shuts down
        await world.app.holder.recycle("default", "test")
        await until(lambda: handle.finalized)
        assert handle.results == [ActivityOk(b"t", default_converter.encode(2))]


async def test_attempt_job_ends_with_its_queue_although_the_activity_continues():
    async with memory(graceful_shutdown=0.0, limits=HandleLimits(cancel_grace=0.01)) as world:
        await world.serve("second")
        await world.start(waiting, 1)
        await begun()
        await world.app.stop_worker("default")
        assert [path for path in world.paths() if "attempt-" in path] == []
        assert await world.run(steps, 1, id="after", queue="second") == 4
        stage.go.set()
        await asyncio.sleep(0)
