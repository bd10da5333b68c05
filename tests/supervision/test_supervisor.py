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
from .world import Boom, World, on_both_loops, processes, restarts


@on_both_loops
async def test_ordered_start_and_reverse_stop(world: World) -> None:
    """Children start in order and are stopped in reverse, one after the other."""
    tree = await world.start(*(world.worker(id) for id in "abc"))
    assert world.took() == ["+a", "+b", "+c"]
    assert await tree.stop() is SHUTDOWN
    assert world.took() == ["-c", "-b", "-a"]


@on_both_loops
async def test_next_child_starts_after_the_previous_has_started(world: World) -> None:
    """A child that takes its time keeps those after it waiting."""
    ready = asyncio.Event()

    async def slow(context: Context) -> None:
        world.log.append("+slow")
        await ready.wait()
        await context.started()
        await asyncio.Event().wait()

    starting = asyncio.ensure_future(world.start(ChildSpec("slow", slow), world.worker("b")))
    await world.settle()
    assert world.took() == ["+slow"]
    ready.set()
    await starting
    assert world.took() == ["+b"]


@on_both_loops
async def test_failing_start_stops_earlier_children_in_reverse(world: World) -> None:
    """If a child does not start, those before it are stopped in reverse, those after it never run, and the start fails."""
    world.refusals["c"] = 1
    with pytest.raises(StartFailed) as caught:
        await world.start(*(world.worker(id) for id in "abcd"))
    assert world.took() == ["+a", "+b", "+c", "-c", "-b", "-a"]
    cause = caught.value.__cause__
    assert isinstance(cause, StartFailed)
    assert isinstance(cause.__cause__, Boom)


@on_both_loops
async def test_start_timeout(world: World) -> None:
    """A child that does not say in time that it has started is killed, and the start fails."""

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
    assert world.took() == ["+a", "-never", "-a"]


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
async def test_restart_strategies(world: World, strategy: Any, expected: list[str], way: str) -> None:
    """one_for_one restarts the one, one_for_all all, rest_for_one it and the later ones; stops reversed, starts in order."""
    tree = await world.start(*(world.worker(id) for id in "abcd"), strategy=strategy)
    world.took()
    if way == "crash":
        await world.crash("App/b")
    else:
        tree.kill("App/b")
        await world.settle()
    assert world.took() == expected
    assert tree.paths() == ["App", "App/a", "App/b", "App/c", "App/d"]


@on_both_loops
async def test_rest_for_one_restarts_only_later_children(world: World) -> None:
    """Earlier siblings are the same processes after the cascade, later ones are new."""
    tree = await world.start(*(world.worker(id) for id in "abc"), strategy="rest_for_one")
    before = processes(tree)
    await world.crash("App/b")
    after = processes(tree)
    assert {path for path in before if before[path] is after[path]} == {"App", "App/a"}


@pytest.mark.parametrize(("kind", "reason"), RESTARTED)
@on_both_loops
async def test_restart_kinds_of_running_children(world: World, kind: Any, reason: str) -> None:
    """The matrix of restart kind × exit reason holds for running children."""
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
async def test_transient_child_restarts_with_a_cascade(world: World) -> None:
    """A launcher that has done its work and ended normally does it again after those before it were restarted."""
    children = (world.worker("holder"), world.worker("launcher", restart="transient"))
    tree = await world.start(*children, strategy="rest_for_one")
    await world.finish("App/launcher")
    assert tree.paths() == ["App", "App/holder"]
    await world.crash("App/holder")
    assert tree.paths() == ["App", "App/holder", "App/launcher"]


@on_both_loops
async def test_cascade_drops_temporary_siblings(world: World) -> None:
    """A temporary sibling that a cascade stopped stays down."""
    tree = await world.start(
        world.worker("a"), world.worker("t", restart="temporary"), strategy="one_for_all"
    )
    await world.crash("App/a")
    assert tree.paths() == ["App", "App/a"]


@on_both_loops
async def test_too_many_restarts_escalate_to_the_parent(world: World) -> None:
    """After one restart too many, the supervisor stops its children in reverse order and fails; its parent restarts
    the whole subtree.
    """
    inner = Supervisor("one_for_one", [world.worker("a"), world.worker("b")], max_restarts=2, window=5.0)
    tree = await world.start(inner.as_child("Sub"), world.worker("c"))
    sub = tree.find("App/Sub")
    for _ in range(2):
        await world.crash("App/Sub/a")
    assert tree.find("App/Sub") is sub
    world.took()
    await world.crash("App/Sub/a")
    assert world.took() == ["-a", "-b", "+a", "+b"]
    assert tree.find("App/Sub") is not sub
    assert sub.exit is not None
    assert isinstance(sub.exit.error, IntensityExceeded)
    assert "intensity exceeded: more than 2 restarts in 5 s; last a" in str(sub.exit.error)
    assert isinstance(sub.exit.error.__cause__, Boom)
    assert world.reported("gave_up") == ["App/Sub"]
    assert restarts(tree, "App/Sub") == 1


@on_both_loops
async def test_restart_window_slides(world: World) -> None:
    """Restarts that lie further apart than the window never escalate."""
    tree = await world.start(world.worker("a"), max_restarts=1, window=5.0)
    for _ in range(10):
        await world.crash("App/a")
        await world.advance(5.1)
    assert restarts(tree, "App/a") == 10


@on_both_loops
async def test_escalation_at_the_root_ends_the_tree(world: World) -> None:
    """A root that gives up ends with the reason, and leaves no task running."""
    tree = await world.start(world.worker("a"), world.worker("b"), max_restarts=0)
    await world.crash("App/a")
    reason = await tree.root.wait_dead()
    assert isinstance(reason.error, IntensityExceeded)
    assert (tree.paths(), world.log[-1]) == ([], "-b")


@on_both_loops
async def test_failing_restarts_count_towards_the_intensity(world: World) -> None:
    """A failed restart is retried at once and counted, until it succeeds or the supervisor gives up."""
    tree = await world.start(world.worker("a"), world.worker("b"), strategy="rest_for_one", max_restarts=3)
    world.took()
    world.refusals["a"] = 2
    await world.crash("App/a")
    assert world.took() == ["-a", "-b", "+a", "-a", "+a", "-a", "+a", "+b"]
    world.refusals["a"] = 1
    await world.crash("App/a")
    assert isinstance((await tree.root.wait_dead()).error, IntensityExceeded)


@on_both_loops
async def test_sibling_that_fails_to_start_in_a_cascade(world: World) -> None:
    """In a cascade a later child's failed start is that child's failure: what started before it stays under rest_for_one."""
    tree = await world.start(*(world.worker(id) for id in "abc"), strategy="rest_for_one")
    world.took()
    world.refusals["b"] = 1
    await world.crash("App/a")
    assert world.took() == ["-a", "-c", "-b", "+a", "+b", "-b", "+b", "+c"]
    assert len(tree.paths()) == 4


@on_both_loops
async def test_backoff_does_not_use_up_the_intensity(world: World) -> None:
    """A child with back-off waits longer and longer, and however often it fails its supervisor does not give up."""
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
async def test_backoff_is_reset_after_a_long_life(world: World) -> None:
    """The backoff starts again from its first delay after a child has run for as long as the longest delay."""
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
async def test_siblings_are_restarted_during_a_backoff(world: World) -> None:
    """While one child waits out its back-off its siblings are restarted as ever, and a cascade takes the waiting one along."""
    tree = await world.start(
        world.worker("a"), world.worker("b", backoff=(9.0, 9.0)), world.worker("c"), strategy="rest_for_one"
    )
    await world.crash("App/b")
    assert tree.paths() == ["App", "App/a"]
    await world.crash("App/a")
    assert tree.paths() == ["App", "App/a", "App/b", "App/c"]
    world.took()
    await world.advance(20.0)
    assert world.took() == []


@on_both_loops
async def test_backoff_that_ends_during_a_cascade(world: World) -> None:
    """A pause that is over while a cascade is about to take the waiting child along starts nobody twice."""
    tree = await world.start(
        world.worker("a"), world.worker("b", backoff=(9.0, 9.0)), strategy="rest_for_one"
    )
    await world.crash("App/b")
    world.took()
    tree.kill("App/a")
    assert world.clock.fire_next(9.0)
    await world.settle()
    assert world.took() == ["-a", "+a", "+b"]
    assert tree.paths() == ["App", "App/a", "App/b"]


@on_both_loops
async def test_stop_during_a_backoff(world: World) -> None:
    """A tree that is stopped while a child waits for its restart does not start it, and leaves no timer."""
    tree = await world.start(world.worker("a", backoff=(1.0, 1.0)))
    await world.crash("App/a")
    world.took()
    await tree.stop()
    await world.advance(5.0)
    assert world.took() == []


@on_both_loops
async def test_stop_during_restart(world: World) -> None:
    """A stop that meets a restart half-way ends the starting child and the others in reverse, and starts nothing more."""
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
    world.took()
    assert await tree.stop() is SHUTDOWN
    assert world.took() == ["-slow", "-b", "-a"]


@on_both_loops
async def test_stop_during_a_cascade(world: World) -> None:
    """A stop that meets a cascade which waits for a slow sibling to end does not lengthen that sibling's limit."""

    async def stubborn(context: Context) -> None:
        await context.started()
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    children = (world.worker("a"), world.worker("b"), ChildSpec("s", stubborn, shutdown=4.0))
    tree = await world.start(*children, strategy="rest_for_one")
    await world.crash("App/b")
    await world.advance(3.0)
    stopping = asyncio.ensure_future(tree.stop())
    await world.advance(0.9)
    assert not stopping.done()
    await world.advance(0.1)
    assert stopping.done()
    assert world.took() == ["+a", "+b", "-b", "-a"]


@on_both_loops
async def test_stop_during_the_first_start(world: World) -> None:
    """Giving up the start of a tree stops what had started, in reverse."""

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
    assert world.took() == ["+a", "+b", "+never", "-b", "-a"]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("abc", ["+a", "+b", "+c"]),  # the first cascade replaces all; the news of b and c is stale by then
        (
            "cba",
            ["+c", "-c", "+b", "+c", "-c", "-b", "+a", "+b", "+c"],
        ),  # each cascade is larger than the one before
    ],
)
@on_both_loops
async def test_several_simultaneous_deaths(world: World, order: str, expected: list[str]) -> None:
    """Children that die in the same instant are handled in that order, and one that was replaced is not replaced again."""
    tree = await world.start(*(world.worker(id) for id in "abc"), strategy="rest_for_one")
    world.took()
    for id in order:
        tree.kill(f"App/{id}")
    await world.settle()
    assert world.took() == [f"-{id}" for id in order] + expected
    assert [process.state for process in processes(tree).values()] == [ProcessState.RUNNING] * 4


@on_both_loops
async def test_cancelled_root_task_stops_its_children_in_order(world: World) -> None:
    """Cancelling the root's task from outside stops the tree in order; a second cancellation does not break the
    order.
    """

    async def slow(context: Context) -> None:
        done = asyncio.Event()
        context.on_terminate(done.wait)
        await context.started(done)
        try:
            await asyncio.Event().wait()
        finally:
            world.log.append("-slow")

    tree = await world.start(world.worker("a"), ChildSpec("slow", slow), world.worker("c"))
    world.took()
    task = next(task for task in asyncio.all_tasks() if task.get_name() == "App")
    finish = tree.find("App/slow").value
    task.cancel()
    await world.settle()
    assert world.took() == ["-c"]
    task.cancel()
    await world.settle()
    assert world.took() == []
    finish.set()
    assert await tree.root.wait_dead() is SHUTDOWN
    assert world.took() == ["-slow", "-a"]


def test_closing_the_loop_stops_a_running_tree() -> None:
    """When a program ends without stopping its tree, everything is ended and no task is destroyed while pending."""
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
async def test_supervisor_can_be_part_of_a_process(world: World) -> None:
    """A worker that brackets its children with something of its own says goodbye before they are stopped."""

    async def worker(context: Context) -> None:
        world.log.append("register")
        context.on_terminate(lambda: world.log.append("unregister"))
        await Supervisor("one_for_one", [world.worker("loop")])(context)

    tree = await world.start(ChildSpec("w", worker))
    assert tree.paths() == ["App", "App/w", "App/w/loop"]
    await tree.stop()
    assert world.took() == ["register", "+loop", "unregister", "-loop"]


@on_both_loops
async def test_overdue_supervisor_is_killed_with_its_children(world: World) -> None:
    """A supervisor with a limit of its own is killed when its children take longer, and they with it."""

    async def stubborn(context: Context) -> None:
        await context.started()
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    inner = Supervisor("one_for_one", [world.worker("a"), ChildSpec("s", stubborn, shutdown="infinity")])
    tree = await world.start(ChildSpec("Sub", inner, shutdown=2.0, type="supervisor"))
    stopping = asyncio.ensure_future(tree.stop())
    await world.advance(2.0)
    assert stopping.done()
    assert world.reported("overdue") == ["App/Sub"]
    assert world.log == ["+a", "-a"]
