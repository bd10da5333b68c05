"""Jobs: supervised processes without a body, whose work is done by callbacks."""

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


async def start_tasks(world: World) -> tuple[Tree, TaskSupervisor]:
    """Start a tree with a task supervisor, `Tasks`."""
    tasks = TaskSupervisor()
    return await world.start(tasks.as_child("Tasks")), tasks


@on_both_loops
async def test_job_is_in_the_tree_until_it_finishes(world: World) -> None:
    tree, tasks = await start_tasks(world)
    job = tasks.spawn_job(Job, "evaluation")
    exits: list[Exit] = []
    job.monitor(lambda down: exits.append(down.exit))
    assert tree.paths() == ["App", "App/Tasks", "App/Tasks/evaluation-1"]
    assert (len(tasks.jobs()), [view.id for view in tasks.children()]) == (1, ["evaluation-1"])
    job.finish()
    assert exits == [NORMAL]
    assert (len(tasks.jobs()), job.alive) == (0, False)


@on_both_loops
async def test_finishing_a_killed_job_has_no_effect(world: World) -> None:
    tree, tasks = await start_tasks(world)
    job = tasks.spawn_job(Job)
    exits: list[Exit] = []
    job.monitor(lambda down: exits.append(down.exit))
    tree.kill("App/Tasks/job-1")
    assert not job.alive
    job.finish()
    job.finish(Boom())
    assert exits == [KILLED]


@on_both_loops
async def test_stopped_job_ends_without_waiting_for_its_shutdown_limit(world: World) -> None:
    _, tasks = await start_tasks(world)
    job = tasks.spawn_job(Job)
    job.begin_stop(5.0)
    assert job.exit is SHUTDOWN
    assert world.clock.pending() == 0


@on_both_loops
async def test_jobs_are_killed_with_their_supervisor(world: World) -> None:
    tree, tasks = await start_tasks(world)
    job = tasks.spawn_job(Job)
    tree.kill("App/Tasks")
    assert job.exit is KILLED
    with pytest.raises(NotRunning, match="cannot spawn a job"):
        tasks.spawn_job(Job)


@on_both_loops
async def test_job_name_must_be_a_path_segment(world: World) -> None:
    _, tasks = await start_tasks(world)
    with pytest.raises(SpecError, match="without '/'"):
        tasks.spawn_job(Job, "a/b")


class RecordingJob(Job):
    """A job that records its exit."""

    __slots__ = ("seen",)

    seen: list[Exit]

    def on_failure(self, reason: Exit) -> None:
        self.seen.append(reason)


def spawn_recording_job(tasks: TaskSupervisor) -> RecordingJob:
    job = tasks.spawn_job(RecordingJob)
    job.seen = []
    return job


@on_both_loops
async def test_job_is_notified_of_its_failure_once_and_before_its_monitors(world: World) -> None:
    tree, tasks = await start_tasks(world)
    finished, killed, failed = (
        spawn_recording_job(tasks),
        spawn_recording_job(tasks),
        spawn_recording_job(tasks),
    )
    killed.monitor(lambda down: killed.seen.append(down.exit))
    finished.finish()
    finished.finish()
    tree.kill("App/Tasks/job-2")
    failed.finish(Boom())
    assert finished.seen == []
    assert killed.seen == [KILLED, KILLED]
    assert [item.kind for item in failed.seen] == ["crash"]


@on_both_loops
async def test_exception_in_the_on_failure_callback_of_a_job_is_logged(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    _, tasks = await start_tasks(world)
    job = tasks.spawn_job(RecordingJob)  # without its list `seen`, so that `on_failure` raises
    job.kill()
    assert (job.exit, len(tasks.jobs())) == (KILLED, 0)
    assert "a monitor of App/Tasks/job-1 failed" in caplog.text
