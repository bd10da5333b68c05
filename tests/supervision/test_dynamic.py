"""Dynamic supervisors, whose children are added and removed, and task supervisors with thousands of jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from hourglass._supervision import (
    NORMAL,
    ChildSpec,
    Context,
    Down,
    DynamicSupervisor,
    IntensityExceeded,
    Job,
    NoSuchChild,
    NotRunning,
    ProcessState,
    SpecError,
    StartFailed,
    Supervisor,
    TaskSupervisor,
    Tree,
)

from .world import Boom, World, ignores_cancellation, never_starts, on_both_loops, run_in_world, starts_when


async def start_pool(world: World, **options: float) -> tuple[Tree, DynamicSupervisor]:
    """Start a tree with a dynamic supervisor, `Pool`."""
    pool = DynamicSupervisor(**options)  # type: ignore[arg-type]
    return await world.start(pool.as_child("Pool")), pool


@on_both_loops
async def test_dynamic_supervisor_starts_and_terminates_children(world: World) -> None:
    tree, pool = await start_pool(world)
    process = await pool.start_child(world.worker("a"))
    assert (process.value, process.state) == ("a", ProcessState.RUNNING)
    await pool.start_child(world.worker("b"))
    assert tree.paths() == ["App", "App/Pool", "App/Pool/a", "App/Pool/b"]
    await pool.terminate_child("a")
    assert [view.id for view in pool.children()] == ["b"]
    assert world.log == ["+a", "+b", "-a"]


@on_both_loops
async def test_duplicate_and_unknown_child_ids_are_rejected(world: World) -> None:
    _, pool = await start_pool(world)
    await pool.start_child(world.worker("a"))
    with pytest.raises(SpecError, match="App/Pool already has a child 'a'"):
        await pool.start_child(world.worker("a"))
    with pytest.raises(NoSuchChild, match="App/Pool has no child 'b'"):
        await pool.terminate_child("b")
    await pool.terminate_child("a")
    await pool.start_child(world.worker("a"))


@on_both_loops
async def test_invalid_spec_of_a_dynamic_child_is_rejected(world: World) -> None:
    _, pool = await start_pool(world)
    with pytest.raises(SpecError, match="restart must be one of"):
        await pool.start_child(ChildSpec("a", world.body("a"), "never"))  # type: ignore[arg-type]


@on_both_loops
async def test_crashed_dynamic_child_is_restarted_without_its_siblings(world: World) -> None:
    tree, pool = await start_pool(world)
    a, b = [await pool.start_child(world.worker(id)) for id in "ab"]
    await world.crash("App/Pool/a")
    assert not a.alive
    assert b.alive
    assert tree.find("App/Pool/a").state is ProcessState.RUNNING
    assert [(view.id, view.restarts) for view in pool.children()] == [("a", 1), ("b", 0)]


@on_both_loops
async def test_dynamic_children_that_are_not_restarted_are_removed(world: World) -> None:
    _, pool = await start_pool(world)
    await pool.start_child(world.worker("a", restart="transient"))
    await pool.start_child(world.worker("b", restart="temporary"))
    await world.finish("App/Pool/a")
    await world.crash("App/Pool/b")
    assert pool.children() == ()


@on_both_loops
async def test_failed_start_of_a_dynamic_child_is_raised_and_frees_its_id(world: World) -> None:
    tree, pool = await start_pool(world, max_restarts=0)
    world.refusals["a"] = 2
    for _ in range(2):
        with pytest.raises(StartFailed) as caught:
            await pool.start_child(world.worker("a"))
        assert isinstance(caught.value.__cause__, Boom)
    await pool.start_child(world.worker("a"))
    assert tree.paths() == ["App", "App/Pool", "App/Pool/a"]


@on_both_loops
async def test_dynamic_supervisor_fails_and_restarts_empty_after_too_many_failed_restarts(
    world: World,
) -> None:
    tree, pool = await start_pool(world, max_restarts=2)
    await pool.start_child(world.worker("a"))
    await pool.start_child(world.worker("b"))
    before = tree.find("App/Pool")
    world.refusals["a"] = 5
    await world.crash("App/Pool/a")
    assert before.exit is not None
    assert isinstance(before.exit.error, IntensityExceeded)
    assert world.log == ["+a", "+b", "-a", "+a", "-a", "+a", "-a", "-b"]
    assert tree.paths() == ["App", "App/Pool"]
    assert pool.children() == ()


@on_both_loops
async def test_dynamic_child_restarts_after_its_backoff_unless_terminated(world: World) -> None:
    tree, pool = await start_pool(world, max_restarts=0)
    for id in "ab":
        await pool.start_child(world.worker(id, backoff=(1.0, 8.0)))
        await world.crash(f"App/Pool/{id}")
    assert [view.state for view in pool.children()] == ["waiting", "waiting"]
    await pool.terminate_child("b")
    await world.advance(1.0)
    assert tree.paths() == ["App", "App/Pool", "App/Pool/a"]


@on_both_loops
async def test_dynamic_child_terminated_at_the_end_of_its_backoff_is_not_restarted(world: World) -> None:
    tree, pool = await start_pool(world)
    await pool.start_child(world.worker("a", backoff=(1.0, 1.0)))
    await world.crash("App/Pool/a")
    assert world.clock.fire_next(1.0)
    await pool.terminate_child("a")
    await world.settle()
    assert (world.log, tree.paths()) == (["+a", "-a"], ["App", "App/Pool"])


@on_both_loops
async def test_slow_start_of_a_dynamic_child_does_not_delay_others(world: World) -> None:
    _, pool = await start_pool(world)
    ready = asyncio.Event()
    starting = asyncio.ensure_future(pool.start_child(ChildSpec("slow", starts_when(ready))))
    await world.settle()
    await pool.start_child(world.worker("b"))
    await world.crash("App/Pool/b")
    assert [(view.id, view.state) for view in pool.children()] == [("slow", "starting"), ("b", "running")]
    ready.set()
    assert (await starting).state is ProcessState.RUNNING


@on_both_loops
async def test_children_cannot_be_started_before_the_start_or_after_the_stop_of_their_supervisor(
    world: World,
) -> None:
    pool, tasks = DynamicSupervisor(), TaskSupervisor()
    with pytest.raises(NotRunning, match="has not been started"):
        await pool.start_child(world.worker("early"))
    tree = await world.start(pool.as_child("Pool"), tasks.as_child("Tasks"))
    finish = asyncio.Event()

    async def slow(context: Context) -> None:
        context.on_terminate(finish.wait)
        await context.started()
        await asyncio.Event().wait()

    await pool.start_child(ChildSpec("slow", slow))
    stopping = asyncio.ensure_future(tree.stop())
    await world.settle()
    with pytest.raises(NotRunning, match="App/Pool is stopping"):
        await pool.start_child(world.worker("late"))
    with pytest.raises(NotRunning, match="App/Tasks is dead"):
        tasks.spawn_job(Job)
    finish.set()
    await stopping
    with pytest.raises(NotRunning, match="App/Pool is dead"):
        await pool.start_child(world.worker("late"))
    assert world.log == []


@on_both_loops
async def test_terminating_a_starting_child_fails_its_start(world: World) -> None:
    _, pool = await start_pool(world)

    starting = asyncio.ensure_future(pool.start_child(ChildSpec("n", never_starts)))
    await world.settle()
    await pool.terminate_child("n")
    with pytest.raises(StartFailed, match="App/Pool/n did not start: shutdown"):
        await starting


@on_both_loops
async def test_child_continues_to_start_if_the_caller_of_start_child_is_cancelled(world: World) -> None:
    tree, pool = await start_pool(world)
    ready = asyncio.Event()
    starting = asyncio.ensure_future(pool.start_child(ChildSpec("slow", starts_when(ready))))
    await world.settle()
    starting.cancel()
    await world.settle()
    ready.set()
    await world.settle()
    assert tree.find("App/Pool/slow").state is ProcessState.RUNNING


@on_both_loops
async def test_dynamic_children_are_stopped_concurrently(world: World) -> None:
    tree, pool = await start_pool(world)

    for number in range(10):
        await pool.start_child(ChildSpec(f"s{number}", ignores_cancellation, shutdown=2.0))
    stopping = asyncio.ensure_future(tree.stop())
    await world.advance(2.0)
    assert stopping.done()


@on_both_loops
async def test_dynamic_supervisor_object_cannot_be_used_twice_in_a_tree(world: World) -> None:
    pool = DynamicSupervisor()
    with pytest.raises(StartFailed) as caught:
        await world.start(pool.as_child("One"), pool.as_child("Two"))
    assert caught.value.__cause__ is not None
    assert "the supervisor is already running as App/One" in str(caught.value.__cause__.__cause__)


@on_both_loops
async def test_killed_and_failed_jobs_are_reported_and_do_not_affect_other_jobs(world: World) -> None:
    tasks = TaskSupervisor()
    tree = await world.grow(tasks.as_child("Tasks"))
    waiting, failing, killed = (tasks.spawn_job(Job) for _ in range(3))
    down: list[Down] = []
    failing.monitor(down.append)
    killed.kill()
    failing.finish(Boom())
    await world.settle()
    assert [notice.exit.kind for notice in down] == ["crash"]
    assert tasks.jobs() == (waiting,)
    waiting.finish()
    assert await waiting.wait_dead() is NORMAL
    assert world.reported("exited") == [killed.path, failing.path]
    assert tree.paths() == ["Tasks"]


@on_both_loops
async def test_jobs_survive_the_restart_of_another_subsystem(world: World) -> None:
    tasks = TaskSupervisor()
    subsystem = Supervisor("rest_for_one", [world.worker("holder"), world.worker("worker")])
    tree = await world.start(subsystem.as_child("Subsystem"), tasks.as_child("Tasks"))
    task = tasks.spawn_job(Job)
    tree.kill("App/Subsystem")
    await world.settle()
    assert task.alive
    assert tree.find("App/Subsystem/worker").state is ProcessState.RUNNING


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_ten_thousand_jobs_finish_are_killed_or_stopped(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    # Not in the loop's debug mode, which records a stack for every job.
    run_in_world(_ten_thousand_jobs, new_loop)


async def _ten_thousand_jobs(world: World) -> None:
    tasks = TaskSupervisor()
    tree = await world.grow(tasks.as_child("Tasks"))
    handles = [tasks.spawn_job(Job) for _ in range(10_000)]
    await world.settle()
    assert len(tasks.jobs()) == len(tree.paths()) - 1 == 10_000
    assert "… and 9980 more" in tree.render()
    for number, handle in enumerate(handles[:5000]):
        handle.finish(None if number % 3 else Boom())
    for handle in handles[5000:7000]:
        handle.kill()
    await world.settle()
    assert len(tasks.jobs()) == 3000
    ended = [handle.exit.kind for handle in handles[:5000] if handle.exit]
    assert (ended.count("normal"), ended.count("crash")) == (3333, 1667)
    await tree.stop()
    assert {handle.exit.kind for handle in handles[7000:] if handle.exit} == {"shutdown"}
