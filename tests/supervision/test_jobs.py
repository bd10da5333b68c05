"""Processes without a body: work that is done by callbacks, seen, stopped and killed as everything else."""

from __future__ import annotations

import pytest

from hourglass._supervision import KILLED, NORMAL, SHUTDOWN, Exit, NotRunning, SpecError, TaskSupervisor, Tree

from .world import Boom, World, on_both_loops


async def grown(world: World) -> tuple[Tree, TaskSupervisor]:
    """A tree with a task supervisor, `Tasks`."""
    tasks = TaskSupervisor()
    return await world.start(tasks.as_child("Tasks")), tasks


@on_both_loops
async def test_a_job_lives_until_it_is_finished(world: World) -> None:
    """It stands in the tree, counts, and its monitors hear of its normal end."""
    tree, tasks = await grown(world)
    job = tasks.spawn_job("evaluation")
    exits: list[Exit] = []
    job.monitor(lambda down: exits.append(down.exit))
    assert tree.paths() == ["App", "App/Tasks", "App/Tasks/evaluation-1"]
    assert (len(tasks), [view.id for view in tasks.children()]) == (1, ["evaluation-1"])
    job.finish()
    assert exits == [NORMAL]
    assert (len(tasks), job.alive) == (0, False)


@on_both_loops
async def test_a_job_that_failed_is_a_crash_and_is_reported(world: World) -> None:
    """The error is in its exit, and a report tells of it as of any process that ends badly."""
    _, tasks = await grown(world)
    job = tasks.spawn_job()
    job.finish(Boom())
    assert job.exit is not None
    assert (job.exit.kind, type(job.exit.error)) == ("crash", Boom)
    assert world.reported("exited") == ["App/Tasks/job-1"]


@on_both_loops
async def test_a_killed_job_is_dead_at_once_and_cannot_finish(world: World) -> None:
    """Whoever does its work asks whether it is alive; what it says later changes nothing."""
    tree, tasks = await grown(world)
    job = tasks.spawn_job()
    exits: list[Exit] = []
    job.monitor(lambda down: exits.append(down.exit))
    tree.kill("App/Tasks/job-1")
    assert not job.alive
    job.finish()
    job.finish(Boom())
    assert exits == [KILLED]


@on_both_loops
async def test_a_job_that_is_stopped_ends_there_and_then(world: World) -> None:
    """It has nothing that would have to unwind: it does not use up its limit."""
    _, tasks = await grown(world)
    job = tasks.spawn_job()
    job.begin_stop(5.0)
    assert job.exit is SHUTDOWN
    assert world.clock.pending() == 0


@on_both_loops
async def test_jobs_end_with_their_supervisor(world: World) -> None:
    """Killed with it if it is killed, and none can be begun while it is away."""
    tree, tasks = await grown(world)
    job = tasks.spawn_job()
    tree.kill("App/Tasks")
    assert job.exit is KILLED
    with pytest.raises(NotRunning, match="cannot spawn a job"):
        tasks.spawn_job()


@on_both_loops
async def test_a_jobs_name_is_a_segment_of_a_path(world: World) -> None:
    """A name that would break paths is refused."""
    _, tasks = await grown(world)
    with pytest.raises(SpecError, match="without '/'"):
        tasks.spawn_job("a/b")
