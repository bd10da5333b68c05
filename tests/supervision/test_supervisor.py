"""Supervisors of fixed children: order, strategies, restarts, intensity, escalation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hourglass._supervision import (
    SHUTDOWN,
    ChildSpec,
    Context,
    IntensityExceeded,
    ProcessState,
    StartFailed,
    Supervisor,
    start_tree,
)

from .test_policy import RESTARTED
from .world import Boom, World, ignores_cancellation, on_both_loops, processes, restarts


@on_both_loops
async def test_supervisor_starts_children_in_order_and_stops_them_in_reverse(world: World) -> None:
    tree = await world.start(*(world.worker(id) for id in "abc"))
    assert world.take_log() == ["+a", "+b", "+c"]
    assert await tree.stop() is SHUTDOWN
    assert world.take_log() == ["-c", "-b", "-a"]


@on_both_loops
async def test_supervisor_starts_the_next_child_after_the_previous_has_started(world: World) -> None:
    ready = asyncio.Event()

    async def slow(context: Context) -> None:
        world.log.append("+slow")
        await ready.wait()
        await context.started()
        await asyncio.Event().wait()

    starting = asyncio.ensure_future(world.start(ChildSpec("slow", slow), world.worker("b")))
    await world.settle()
    assert world.take_log() == ["+slow"]
    ready.set()
    await starting
    assert world.take_log() == ["+b"]


@on_both_loops
async def test_failed_start_of_a_child_stops_earlier_children_in_reverse(world: World) -> None:
    world.refusals["c"] = 1
    with pytest.raises(StartFailed) as caught:
        await world.start(*(world.worker(id) for id in "abcd"))
    assert world.take_log() == ["+a", "+b", "+c", "-c", "-b", "-a"]
    cause = caught.value.__cause__
    assert isinstance(cause, StartFailed)
    assert isinstance(cause.__cause__, Boom)


@on_both_loops
async def test_child_that_exceeds_its_start_timeout_is_killed_and_fails_the_start(world: World) -> None:
    async def never(context: Context) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            world.log.append("-never")

    starting = asyncio.ensure_future(world.start(world.worker("a"), ChildSpec("n", never, start_timeout=3.0)))
    await world.advance(2.9)
    assert not starting.done()
    await world.advance(0.1)
    with pytest.raises(StartFailed):
        await starting
    assert world.take_log() == ["+a", "-never", "-a"]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("one_for_one", ["-b", "+b"]),
        ("one_for_all", ["-b", "-d", "-c", "-a", "+a", "+b", "+c", "+d"]),
        ("rest_for_one", ["-b", "-d", "-c", "+b", "+c", "+d"]),
    ],
)
@pytest.mark.parametrize("way", ["crash", "kill"])
@on_both_loops
async def test_restart_strategy_decides_which_children_are_restarted(
    world: World, strategy: Any, expected: list[str], way: str
) -> None:
    tree = await world.start(*(world.worker(id) for id in "abcd"), strategy=strategy)
    world.take_log()
    if way == "crash":
        await world.crash("App/b")
    else:
        tree.kill("App/b")
        await world.settle()
    assert world.take_log() == expected
    assert tree.paths() == ["App", "App/a", "App/b", "App/c", "App/d"]


@on_both_loops
async def test_rest_for_one_replaces_only_later_children(world: World) -> None:
    tree = await world.start(*(world.worker(id) for id in "abc"), strategy="rest_for_one")
    before = processes(tree)
    await world.crash("App/b")
    after = processes(tree)
    assert {path for path in before if before[path] is after[path]} == {"App", "App/a"}


@pytest.mark.parametrize(("kind", "reason"), RESTARTED)
@on_both_loops
async def test_running_child_is_restarted_by_its_restart_kind_and_exit(
    world: World, kind: Any, reason: str
) -> None:
    tree = await world.start(world.worker("a", restart=kind))
    process = tree.find("App/a")
    match reason:
        case "normal":
            await world.finish("App/a")
        case "crash":
            await world.crash("App/a")
        case "killed":
            process.kill()
        case "shutdown":
            process.begin_stop(1.0)
    await world.settle()
    assert process.exit is not None
    assert process.exit.kind == reason
    assert ("App/a" in tree.paths()) == RESTARTED[kind, reason]


@on_both_loops
async def test_transient_child_that_ended_normally_is_restarted_by_a_cascade(world: World) -> None:
    children = (world.worker("holder"), world.worker("launcher", restart="transient"))
    tree = await world.start(*children, strategy="rest_for_one")
    await world.finish("App/launcher")
    assert tree.paths() == ["App", "App/holder"]
    await world.crash("App/holder")
    assert tree.paths() == ["App", "App/holder", "App/launcher"]


@on_both_loops
async def test_temporary_child_stopped_by_a_cascade_is_not_restarted(world: World) -> None:
    tree = await world.start(
        world.worker("a"), world.worker("t", restart="temporary"), strategy="one_for_all"
    )
    await world.crash("App/a")
    assert tree.paths() == ["App", "App/a"]


@on_both_loops
async def test_supervisor_with_too_many_restarts_fails_and_is_restarted_by_its_parent(world: World) -> None:
    inner = Supervisor("one_for_one", [world.worker("a"), world.worker("b")], max_restarts=2, window=5.0)
    tree = await world.start(inner.as_child("Sub"), world.worker("c"))
    sub = tree.find("App/Sub")
    for _ in range(2):
        await world.crash("App/Sub/a")
    assert tree.find("App/Sub") is sub
    world.take_log()
    await world.crash("App/Sub/a")
    assert world.take_log() == ["-a", "-b", "+a", "+b"]
    assert tree.find("App/Sub") is not sub
    assert sub.exit is not None
    assert isinstance(sub.exit.error, IntensityExceeded)
    assert "exceeded its restart intensity with more than 2 restarts in 5 s; last child 'a'" in str(
        sub.exit.error
    )
    assert isinstance(sub.exit.error.__cause__, Boom)
    assert world.reported("gave_up") == ["App/Sub"]
    assert restarts(tree, "App/Sub") == 1


@on_both_loops
async def test_restarts_further_apart_than_the_window_never_escalate(world: World) -> None:
    tree = await world.start(world.worker("a"), max_restarts=1, window=5.0)
    for _ in range(10):
        await world.crash("App/a")
        await world.advance(5.1)
    assert restarts(tree, "App/a") == 10


@on_both_loops
async def test_escalation_at_the_root_ends_the_supervision_tree(world: World) -> None:
    tree = await world.start(world.worker("a"), world.worker("b"), max_restarts=0)
    await world.crash("App/a")
    reason = await tree.root.wait_dead()
    assert isinstance(reason.error, IntensityExceeded)
    assert (tree.paths(), world.log[-1]) == ([], "-b")


@on_both_loops
async def test_failed_restarts_count_towards_the_intensity(world: World) -> None:
    tree = await world.start(world.worker("a"), world.worker("b"), strategy="rest_for_one", max_restarts=3)
    world.take_log()
    world.refusals["a"] = 2
    await world.crash("App/a")
    assert world.take_log() == ["-a", "-b", "+a", "-a", "+a", "-a", "+a", "+b"]
    world.refusals["a"] = 1
    await world.crash("App/a")
    assert isinstance((await tree.root.wait_dead()).error, IntensityExceeded)


@on_both_loops
async def test_sibling_that_fails_to_start_in_a_cascade_is_restarted_without_earlier_ones(
    world: World,
) -> None:
    tree = await world.start(*(world.worker(id) for id in "abc"), strategy="rest_for_one")
    world.take_log()
    world.refusals["b"] = 1
    await world.crash("App/a")
    assert world.take_log() == ["-a", "-c", "-b", "+a", "+b", "-b", "+b", "+c"]
    assert len(tree.paths()) == 4


@on_both_loops
async def test_child_with_backoff_never_exceeds_the_intensity(world: World) -> None:
    child = world.worker("a", backoff=(0.25, 1.0))
    tree = await world.start(child, world.worker("b"), max_restarts=0)
    world.refusals["a"] = 50
    await world.crash("App/a")
    assert "a  waiting" in tree.render()
    times: list[float] = []
    for _ in range(6):
        before = world.clock.time
        while world.log.count("+a") == len(times) + 1:
            await world.advance(0.125)
        times.append(world.clock.time - before)
    assert times == [0.25, 0.5, 1.0, 1.0, 1.0, 1.0]
    world.refusals["a"] = 0
    await world.advance(1.0)
    assert tree.paths() == ["App", "App/a", "App/b"]
    assert world.log.count("+b") == 1


@on_both_loops
async def test_backoff_is_reset_after_a_child_ran_for_the_longest_delay(world: World) -> None:
    tree = await world.start(world.worker("a", backoff=(0.5, 4.0)))
    for _ in range(2):
        await world.crash("App/a")
        await world.advance(1.0)
    assert tree.paths() == ["App", "App/a"]
    await world.crash("App/a")
    await world.advance(1.9)
    assert tree.paths() == ["App"]
    await world.advance(0.1 + 4.0)
    await world.crash("App/a")
    await world.advance(0.5)
    assert tree.paths() == ["App", "App/a"]


@on_both_loops
async def test_siblings_of_a_child_in_backoff_are_restarted(world: World) -> None:
    tree = await world.start(
        world.worker("a"), world.worker("b", backoff=(9.0, 9.0)), world.worker("c"), strategy="rest_for_one"
    )
    await world.crash("App/b")
    assert tree.paths() == ["App", "App/a"]
    await world.crash("App/a")
    assert tree.paths() == ["App", "App/a", "App/b", "App/c"]
    world.take_log()
    await world.advance(20.0)
    assert world.take_log() == []


@on_both_loops
async def test_child_whose_backoff_ends_during_a_cascade_is_started_once(world: World) -> None:
    tree = await world.start(
        world.worker("a"), world.worker("b", backoff=(9.0, 9.0)), strategy="rest_for_one"
    )
    await world.crash("App/b")
    world.take_log()
    tree.kill("App/a")
    assert world.clock.fire_next(9.0)
    await world.settle()
    assert world.take_log() == ["-a", "+a", "+b"]
    assert tree.paths() == ["App", "App/a", "App/b"]


@on_both_loops
async def test_tree_stopped_during_a_backoff_does_not_restart_the_child(world: World) -> None:
    tree = await world.start(world.worker("a", backoff=(1.0, 1.0)))
    await world.crash("App/a")
    world.take_log()
    await tree.stop()
    await world.advance(5.0)
    assert world.take_log() == []


@on_both_loops
async def test_tree_stopped_during_a_restart_starts_no_further_child(world: World) -> None:
    ready = asyncio.Event()
    ready.set()

    async def slow(context: Context) -> None:
        world.log.append("+slow")
        try:
            await ready.wait()
            await context.started()
            await asyncio.Event().wait()
        finally:
            world.log.append("-slow")

    children = (world.worker("a"), world.worker("b"), ChildSpec("slow", slow), world.worker("z"))
    tree = await world.start(*children, strategy="rest_for_one")
    ready.clear()
    await world.crash("App/b")
    assert tree.find("App/slow").state is ProcessState.STARTING
    world.take_log()
    assert await tree.stop() is SHUTDOWN
    assert world.take_log() == ["-slow", "-b", "-a"]


@on_both_loops
async def test_tree_stop_during_a_restart_cascade_does_not_extend_the_shutdown_limit(world: World) -> None:
    children = (world.worker("a"), world.worker("b"), ChildSpec("s", ignores_cancellation, shutdown=4.0))
    tree = await world.start(*children, strategy="rest_for_one")
    await world.crash("App/b")
    await world.advance(3.0)
    stopping = asyncio.ensure_future(tree.stop())
    await world.advance(0.9)
    assert not stopping.done()
    await world.advance(0.1)
    assert stopping.done()
    assert world.take_log() == ["+a", "+b", "-b", "-a"]


@on_both_loops
async def test_cancelled_tree_start_stops_started_children_in_reverse(world: World) -> None:
    async def never(context: Context) -> None:
        world.log.append("+never")
        await asyncio.Event().wait()

    root = Supervisor("one_for_one", [world.worker("a"), world.worker("b"), ChildSpec("n", never)]).as_child(
        "App"
    )
    starting = asyncio.ensure_future(start_tree(root, clock=world.clock, sink=world.reports.append))
    await world.settle()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert world.take_log() == ["+a", "+b", "+never", "-b", "-a"]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("abc", ["+a", "+b", "+c"]),  # the first cascade restarts all, so the deaths of b and c are outdated
        (
            "cba",
            ["+c", "-c", "+b", "+c", "-c", "-b", "+a", "+b", "+c"],
        ),  # each cascade is larger than the previous one
    ],
)
@on_both_loops
async def test_simultaneous_deaths_are_handled_in_order_without_double_restarts(
    world: World, order: str, expected: list[str]
) -> None:
    tree = await world.start(*(world.worker(id) for id in "abc"), strategy="rest_for_one")
    world.take_log()
    for id in order:
        tree.kill(f"App/{id}")
    await world.settle()
    assert world.take_log() == [f"-{id}" for id in order] + expected
    assert [process.state for process in processes(tree).values()] == [ProcessState.RUNNING] * 4


@on_both_loops
async def test_cancelled_root_task_stops_its_children_in_reverse_order(world: World) -> None:
    async def slow(context: Context) -> None:
        done = asyncio.Event()
        context.on_terminate(done.wait)
        await context.started(done)
        try:
            await asyncio.Event().wait()
        finally:
            world.log.append("-slow")

    tree = await world.start(world.worker("a"), ChildSpec("slow", slow), world.worker("c"))
    world.take_log()
    task = next(task for task in asyncio.all_tasks() if task.get_name() == "App")
    finish = tree.find("App/slow").value
    task.cancel()
    await world.settle()
    assert world.take_log() == ["-c"]
    task.cancel()
    await world.settle()
    assert world.take_log() == []
    finish.set()
    assert await tree.root.wait_dead() is SHUTDOWN
    assert world.take_log() == ["-slow", "-a"]


def test_closing_the_loop_stops_a_running_tree() -> None:
    world = World()

    async def main() -> None:
        inner = Supervisor("rest_for_one", [world.worker("a"), world.worker("b")])
        await start_tree(
            Supervisor("one_for_one", [inner.as_child("Sub"), world.worker("c")]).as_child("App"),
            sink=world.reports.append,
        )

    asyncio.run(main())
    assert sorted(world.log) == ["+a", "+b", "+c", "-a", "-b", "-c"]


@on_both_loops
async def test_worker_that_runs_a_supervisor_terminates_before_its_children_stop(world: World) -> None:
    async def worker(context: Context) -> None:
        world.log.append("register")
        context.on_terminate(lambda: world.log.append("unregister"))
        await Supervisor("one_for_one", [world.worker("loop")])(context)

    tree = await world.start(ChildSpec("w", worker))
    assert tree.paths() == ["App", "App/w", "App/w/loop"]
    await tree.stop()
    assert world.take_log() == ["register", "+loop", "unregister", "-loop"]


@on_both_loops
async def test_supervisor_that_exceeds_its_shutdown_limit_is_killed_with_its_children(world: World) -> None:
    inner = Supervisor(
        "one_for_one", [world.worker("a"), ChildSpec("s", ignores_cancellation, shutdown="infinity")]
    )
    tree = await world.start(ChildSpec("Sub", inner, shutdown=2.0, type="supervisor"))
    stopping = asyncio.ensure_future(tree.stop())
    await world.advance(2.0)
    assert stopping.done()
    assert world.reported("overdue") == ["App/Sub"]
    assert world.log == ["+a", "-a"]
