"""Kills: they take effect immediately at any await, without `terminate`, and a killed process has no further effect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from hourglass._supervision import (
    KILLED,
    ChildSpec,
    Context,
    DeadProcess,
    Exit,
    Job,
    Process,
    Supervisor,
    TaskSupervisor,
    Tree,
)
from hourglass._supervision.driver import Killed

from .world import World, on_both_loops


async def start_process(world: World, body: Callable[[Context], Any], **options: Any) -> tuple[Tree, Process]:
    """Start a tree with one temporary child of this body."""
    tree = await world.start(ChildSpec("a", body, "temporary"), **options)
    return tree, tree.find("App/a")


async def wait_uncancellably(release: asyncio.Event, steps: list[str]) -> None:
    """Wait for an event even if the task is cancelled."""
    while not release.is_set():
        try:
            await release.wait()
        except asyncio.CancelledError:
            steps.append("inner task cancelled")


@on_both_loops
async def test_process_is_dead_and_its_monitors_are_notified_when_kill_returns(world: World) -> None:
    _, process = await start_process(world, world.body("a"))
    seen: list[Exit] = []
    process.monitor(lambda down: seen.append(down.exit))
    process.kill()
    assert (process.alive, process.exit, seen) == (False, KILLED, [KILLED])
    assert await process.wait_dead() is KILLED


@on_both_loops
async def test_killed_process_runs_its_finally_blocks_but_not_terminate(world: World) -> None:
    steps: list[str] = []

    async def body(context: Context) -> None:
        context.on_terminate(lambda: steps.append("terminate"))
        await context.started()
        try:
            await asyncio.Event().wait()
        except Exception:
            steps.append("except Exception")
        except BaseException as error:
            steps.append(type(error).__name__)
            raise
        finally:
            steps.append("finally")

    _, process = await start_process(world, body)
    process.kill()
    await world.settle()
    assert steps == ["Killed", "finally"]


@on_both_loops
async def test_kill_ends_a_process_that_awaits_an_uncancellable_task(world: World) -> None:
    release = asyncio.Event()
    unwound: list[str] = []

    async def body(context: Context) -> None:
        await context.started()
        try:
            await asyncio.create_task(wait_uncancellably(release, unwound))
        finally:
            unwound.append("body")

    _, process = await start_process(world, body)
    await world.settle()
    process.kill()
    await world.settle()
    release.set()  # before any assertion: the loop cannot be closed while a task refuses its cancellation
    interrupted = sorted(unwound)
    await world.settle()
    assert interrupted == ["body", "inner task cancelled"]


@on_both_loops
async def test_killing_a_process_cancels_the_tasks_that_it_awaits(world: World) -> None:
    ended: list[int] = []

    async def inner(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    async def body(context: Context) -> None:
        await context.started()
        await asyncio.gather(inner(1), inner(2))

    _, process = await start_process(world, body)
    await world.settle()
    process.kill()
    await world.settle()
    assert sorted(ended) == [1, 2]


@on_both_loops
async def test_process_killed_before_its_first_step_never_runs(world: World) -> None:
    ran: list[str] = []
    killed: list[Exit | None] = []

    async def below() -> None:
        ran.append("ran")

    async def body(context: Context) -> None:
        await context.started()
        process = context.spawn_task("below", below())
        process.kill()
        killed.append(process.exit)
        await asyncio.Event().wait()

    await start_process(world, body)
    await world.settle()
    assert (ran, killed) == ([], [KILLED])


@on_both_loops
async def test_killed_process_does_not_receive_a_result_that_is_already_set(world: World) -> None:
    got: list[object] = []
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def body(context: Context) -> None:
        await context.started()
        got.append(await future)

    _, process = await start_process(world, body)
    await world.settle()
    future.set_result("news")
    process.kill()
    await world.settle()
    assert got == []


@on_both_loops
async def test_killed_process_that_only_yields_to_the_loop_ends_at_its_next_step(world: World) -> None:
    rounds: list[int] = []

    async def body(context: Context) -> None:
        await context.started()
        while True:
            rounds.append(1)
            await asyncio.sleep(0)

    _, process = await start_process(world, body)
    await world.settle()
    process.kill()
    await asyncio.sleep(0)
    before = len(rounds)
    await world.settle()
    assert before == len(rounds) > 1


@on_both_loops
async def test_process_that_kills_itself_unwinds_at_its_next_await(world: World) -> None:
    steps: list[str] = []
    now = asyncio.Event()

    async def body(context: Context) -> None:
        await context.started()
        await now.wait()
        context.process.kill()
        with pytest.raises(DeadProcess):
            await context.started()
        steps.append("continued")
        try:
            await asyncio.Event().wait()
        finally:
            steps.append("unwound")

    _, process = await start_process(world, body)
    now.set()
    await world.settle()
    assert (steps, process.exit) == (["continued", "unwound"], KILLED)


@on_both_loops
async def test_process_that_kills_itself_ends_although_it_awaits_an_uncancellable_task(world: World) -> None:
    now, release = asyncio.Event(), asyncio.Event()
    steps: list[str] = []

    async def body(context: Context) -> None:
        await context.started()
        inner = asyncio.create_task(wait_uncancellably(release, steps))
        await now.wait()
        context.process.kill()
        try:
            await inner
        finally:
            steps.append("body")

    await start_process(world, body)
    await world.settle()
    now.set()
    await world.settle()
    release.set()
    interrupted = sorted(steps)
    await world.settle()
    assert interrupted == ["body", "inner task cancelled"]


@on_both_loops
async def test_process_that_swallows_killed_is_detached_and_replaced(world: World) -> None:
    release = asyncio.Event()
    heard: list[str] = []
    first = True

    async def body(context: Context) -> None:
        nonlocal first
        mine, first = first, False
        await context.started("first" if mine else "second")
        try:
            await asyncio.Event().wait()
        except Killed:
            if not mine:
                raise
        await release.wait()
        for call in (
            lambda: context.spawn(world.worker("b")),
            lambda: context.on_terminate(lambda: None),
            lambda: context.shows(tuple),
            lambda: context.node,
        ):
            with pytest.raises(DeadProcess):
                call()
        with pytest.raises(DeadProcess, match="App/a is dead"):
            await context.started("again")
        heard.append("nothing was heard")

    tree = await world.start(ChildSpec("a", body))
    tree.kill("App/a")
    await world.settle()
    assert tree.find("App/a").value == "second"
    assert world.reported("lingering") == ["App/a"]
    release.set()
    await world.settle()
    assert heard == ["nothing was heard"]
    assert tree.find("App/a").value == "second"


@on_both_loops
async def test_tree_stop_waits_for_the_awaiting_finally_of_a_killed_process(world: World) -> None:
    release = asyncio.Event()
    steps: list[str] = []

    async def body(context: Context) -> None:
        await context.started()
        try:
            await asyncio.Event().wait()
        finally:
            await release.wait()
            steps.append("cleaned")

    tree, process = await start_process(world, body)
    process.kill()
    await world.settle()
    stopping = asyncio.ensure_future(tree.stop())
    await world.settle()
    assert not stopping.done()
    release.set()
    await stopping
    assert steps == ["cleaned"]


@on_both_loops
async def test_killed_process_that_exceeds_the_grace_period_is_closed(world: World) -> None:
    closed: list[str] = []

    async def body(context: Context) -> None:
        await context.started()
        while True:
            try:
                await asyncio.Event().wait()
            except GeneratorExit:
                closed.append("closed")
                raise
            except BaseException:
                continue

    tree, process = await start_process(world, body)
    process.kill()
    stopping = asyncio.ensure_future(tree.stop())
    await world.advance(4.9)
    assert (closed, stopping.done()) == ([], False)
    await world.advance(0.2)
    assert (closed, stopping.done()) == (["closed"], True)
    assert world.reported("discarded") == ["App/a"]


@on_both_loops
async def test_killed_process_that_ignores_closing_is_discarded(world: World) -> None:
    refused: list[str] = []

    async def body(context: Context) -> None:
        await context.started()
        while True:
            try:
                await asyncio.Event().wait()
            except GeneratorExit:
                refused.append("refused")
                if len(refused) > 1:
                    raise  # Python closes a dropped coroutine again, and would log another refusal
            except BaseException:
                continue

    tree, process = await start_process(world, body)
    process.kill()
    await world.advance(5.0)
    await tree.stop()
    assert [report.detail for report in world.reports if report.kind == "discarded"] == [
        "it could not be closed"
    ]


@on_both_loops
async def test_killed_supervisor_kills_its_children_youngest_first(world: World) -> None:
    tasks = TaskSupervisor()
    inner = Supervisor("one_for_one", [world.worker("a"), world.worker("b"), tasks.as_child("Tasks")])
    tree = await world.start(ChildSpec("Sub", inner, "temporary", type="supervisor"), world.worker("c"))
    task = tasks.spawn_job(Job)
    died: list[str] = []
    watched = [task, *(tree.find(f"App/Sub{below}") for below in ("", "/a", "/b", "/Tasks"))]
    for process in watched:
        process.monitor(lambda down: died.append(down.process.path))
    tree.kill("App/Sub")
    assert died == ["App/Sub/Tasks/job-1", "App/Sub/Tasks", "App/Sub/b", "App/Sub/a", "App/Sub"]
    await world.settle()
    assert tree.paths() == ["App", "App/c"]


@on_both_loops
async def test_successor_starts_after_the_killed_process_has_unwound(world: World) -> None:
    tree = await world.start(world.worker("a"))
    for _ in range(3):
        tree.kill("App/a")
        await world.settle()
    assert world.log == ["+a", "-a", "+a", "-a", "+a", "-a", "+a"]
