"""Processes without a body: work that is done by callbacks, seen, stopped and killed as everything else."""

from __future__ import annotations

import pytest

from hourglass._supervision import (
    KILLED,
    NORMAL,
    SHUTDOWN,
    Exit,
    Job,
    NotRunning,
    SpecError,
    TaskSupervisor,
    Tree,
)

from .world import Boom, World, on_both_loops


async def grown(world: World) -> tuple[Tree, TaskSupervisor]:
    """A tree with a task supervisor, `Tasks`."""
    tasks = TaskSupervisor()
    return await world.start(tasks.as_child("Tasks")), tasks


@on_both_loops
async def test_job_lives_until_it_is_finished(world: World) -> None:
    """It stands in the tree, counts, and its monitors hear of its normal end."""
    tree, tasks = await grown(world)
    job = tasks.spawn_job(Job, "evaluation")
    exits: list[Exit] = []
    job.monitor(lambda down: exits.append(down.exit))
    assert tree.paths() == ["App", "App/Tasks", "App/Tasks/evaluation-1"]
    assert (len(tasks.jobs()), [view.id for view in tasks.children()]) == (1, ["evaluation-1"])
    job.finish()
    assert exits == [NORMAL]
    assert (len(tasks.jobs()), job.alive) == (0, False)


@on_both_loops
async def test_failed_job_is_reported_as_a_crash(world: World) -> None:
    """The error is in its exit, and a report tells of it as of any process that ends badly."""
    _, tasks = await grown(world)
    job = tasks.spawn_job(Job)
    job.finish(Boom())
    assert job.exit is not None
    assert (job.exit.kind, type(job.exit.error)) == ("crash", Boom)
    assert world.reported("exited") == ["App/Tasks/job-1"]


@on_both_loops
async def test_killed_job_cannot_finish(world: World) -> None:
    """Whoever does its work asks whether it is alive; what it says later changes nothing."""
    tree, tasks = await grown(world)
    job = tasks.spawn_job(Job)
    exits: list[Exit] = []
    job.monitor(lambda down: exits.append(down.exit))
    tree.kill("App/Tasks/job-1")
    assert not job.alive
    job.finish()
    job.finish(Boom())
    assert exits == [KILLED]


@on_both_loops
async def test_stopped_job_ends_at_once(world: World) -> None:
    """It has nothing that would have to unwind: it does not use up its limit."""
    _, tasks = await grown(world)
    job = tasks.spawn_job(Job)
    job.begin_stop(5.0)
    assert job.exit is SHUTDOWN
    assert world.clock.pending() == 0


@on_both_loops
async def test_jobs_end_with_their_supervisor(world: World) -> None:
    """Killed with it if it is killed, and none can be begun while it is away."""
    tree, tasks = await grown(world)
    job = tasks.spawn_job(Job)
    tree.kill("App/Tasks")
    assert job.exit is KILLED
    with pytest.raises(NotRunning, match="cannot spawn a job"):
        tasks.spawn_job(Job)


@on_both_loops
async def test_job_name_must_be_a_path_segment(world: World) -> None:
    """A name that would break paths is refused."""
    _, tasks = await grown(world)
    with pytest.raises(SpecError, match="without '/'"):
        tasks.spawn_job(Job, "a/b")


class Told(Job):
    """A job that writes down how it ended."""

    __slots__ = ("seen",)

    seen: list[Exit]

    def on_death(self, reason: Exit) -> None:
        self.seen.append(reason)


def told(tasks: TaskSupervisor) -> Told:
    """A job that tells, with an empty list."""
    job = tasks.spawn_job(Told)
    job.seen = []
    return job


@on_both_loops
async def test_job_is_notified_of_its_end_once(world: World) -> None:
    """Whatever the reason, and before its monitors."""
    tree, tasks = await grown(world)
    finished, killed, failed = told(tasks), told(tasks), told(tasks)
    killed.monitor(lambda down: killed.seen.append(down.exit))
    finished.finish()
    finished.finish()
    tree.kill("App/Tasks/job-2")
    failed.finish(Boom())
    assert finished.seen == [NORMAL]
    assert killed.seen == [KILLED, KILLED]
    assert [each.kind for each in failed.seen] == ["crash"]


@on_both_loops
async def test_exception_in_a_jobs_death_callback_is_logged(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """What its owner raises is logged, and harms nobody."""
    _, tasks = await grown(world)
    job = tasks.spawn_job(Told)  # without its list: writing there raises
    job.finish()
    assert (job.exit, len(tasks.jobs())) == (NORMAL, 0)
    assert "a monitor of App/Tasks/job-1 failed" in caplog.text
