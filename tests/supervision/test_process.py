"""The start, the stop (shutdown value × behaviour) and the monitors of a process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hourglass._supervision import (
    KILLED,
    NORMAL,
    SHUTDOWN,
    ChildSpec,
    Context,
    ProcessState,
    StartFailed,
)
from hourglass._supervision.exits import ExitKind

from .world import Boom, World, on_both_loops


def ends_when_cancelled(steps: list[str]) -> Any:
    async def body(context: Context) -> None:
        await context.started()
        try:
            await asyncio.Event().wait()
        finally:
            steps.append("ended")

    return body


def ends_two_seconds_later(steps: list[str]) -> Any:
    async def body(context: Context) -> None:
        await context.started()
        clock = context.node.clock
        try:
            await asyncio.Event().wait()
        finally:
            done = asyncio.Event()
            timer = clock.call_later(2.0, done.set)
            try:
                await done.wait()
                steps.append("ended")
            finally:
                timer.cancel()

    return body


def ignores_cancellation(steps: list[str]) -> Any:
    async def body(context: Context) -> None:
        await context.started()
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                steps.append("ignored")

    return body


def crashes_when_cancelled(steps: list[str]) -> Any:
    async def body(context: Context) -> None:
        await context.started()
        try:
            await asyncio.Event().wait()
        finally:
            raise Boom

    return body


@pytest.mark.parametrize(
    ("shutdown", "body", "after", "kind", "steps"),
    [
        ("brutal", ends_when_cancelled, 0.0, "killed", ["ended"]),
        ("brutal", ignores_cancellation, 0.0, "killed", []),
        ("brutal", crashes_when_cancelled, 0.0, "killed", []),
        ("infinity", ends_when_cancelled, 0.0, "shutdown", ["ended"]),
        ("infinity", ends_two_seconds_later, 2.0, "shutdown", ["ended"]),
        ("infinity", crashes_when_cancelled, 0.0, "crash", []),
        (3.0, ends_when_cancelled, 0.0, "shutdown", ["ended"]),
        (3.0, ends_two_seconds_later, 2.0, "shutdown", ["ended"]),
        (1.0, ends_two_seconds_later, 1.0, "killed", []),
        (1.0, ignores_cancellation, 1.0, "killed", ["ignored"]),
        (1.0, crashes_when_cancelled, 0.0, "crash", []),
        (0.0, ends_when_cancelled, 0.0, "shutdown", ["ended"]),
        (0.0, ignores_cancellation, 0.0, "killed", ["ignored"]),
    ],
)
@on_both_loops
async def test_process_exit_follows_shutdown_value_and_behaviour_of_the_body(
    world: World, shutdown: Any, body: Any, after: float, kind: ExitKind, steps: list[str]
) -> None:
    actual_steps: list[str] = []
    tree = await world.start(ChildSpec("a", body(actual_steps), "temporary", shutdown))
    process = tree.find("App/a")
    stopping = asyncio.ensure_future(tree.stop())
    if after:
        await world.advance(after - 0.01)
        assert not stopping.done()
        await world.advance(0.01)
    await world.advance(0.0)
    assert stopping.done()
    assert process.exit is not None
    assert (process.exit.kind, actual_steps) == (kind, steps)
    assert ("App/a" in world.reported("overdue")) == (kind == "killed" and shutdown != "brutal")


@on_both_loops
async def test_stop_with_infinite_shutdown_waits_until_the_child_is_killed(world: World) -> None:
    steps: list[str] = []
    tree = await world.start(ChildSpec("a", ignores_cancellation(steps), "temporary", "infinity"))
    stopping = asyncio.ensure_future(tree.stop())
    await world.advance(1e6)
    assert not stopping.done()
    assert tree.find("App/a").state is ProcessState.STOPPING
    tree.kill("App/a")
    await world.settle()
    assert stopping.done()


@on_both_loops
async def test_stopped_process_runs_terminate_before_its_body_is_cancelled(world: World) -> None:
    steps: list[str] = []
    terminating = asyncio.Event()

    async def body(context: Context) -> None:
        async def terminate() -> None:
            steps.append("terminate")
            terminating.set()
            await world.settle()
            steps.append("terminated")

        context.on_terminate(terminate)
        await context.started()
        await terminating.wait()
        steps.append("body saw terminate")

    tree = await world.start(ChildSpec("a", body))
    process = tree.find("App/a")
    assert await tree.stop() is SHUTDOWN
    assert steps == ["terminate", "body saw terminate", "terminated"]
    assert process.exit is SHUTDOWN


async def hanging_terminate(steps: list[str]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        steps.append("terminate unwound")


@on_both_loops
async def test_process_whose_terminate_hangs_is_killed_at_the_shutdown_limit(world: World) -> None:
    steps: list[str] = []

    async def body(context: Context) -> None:
        context.on_terminate(lambda: hanging_terminate(steps))
        await context.started()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            steps.append("cancelled")
            raise

    tree = await world.start(ChildSpec("a", body, shutdown=2.0))
    process = tree.find("App/a")
    stopping = asyncio.ensure_future(tree.stop())
    await world.advance(1.9)
    assert process.state is ProcessState.STOPPING
    await world.advance(0.1)
    assert (process.exit, steps, stopping.done()) == (KILLED, ["terminate unwound"], True)


@on_both_loops
async def test_exception_in_terminate_makes_the_exit_a_crash(world: World) -> None:
    steps: list[str] = []

    async def body(context: Context) -> None:
        async def terminate() -> None:
            raise Boom

        context.on_terminate(terminate)
        await context.started()
        try:
            await asyncio.Event().wait()
        finally:
            steps.append("body ended")

    tree = await world.start(world.worker("first"), ChildSpec("a", body))
    process = tree.find("App/a")
    assert await tree.stop() is SHUTDOWN
    assert process.exit is not None
    assert isinstance(process.exit.error, Boom)
    assert (steps, world.log) == (["body ended"], ["+first", "-first"])


@on_both_loops
async def test_killing_a_process_during_terminate_ends_its_body_and_terminate(world: World) -> None:
    steps: list[str] = []

    async def body(context: Context) -> None:
        context.on_terminate(lambda: hanging_terminate(steps))
        await context.started()
        await asyncio.Event().wait()

    tree = await world.start(ChildSpec("a", body, shutdown="infinity"))
    process = tree.find("App/a")
    stopping = asyncio.ensure_future(tree.stop())
    await world.settle()
    assert process.state is ProcessState.STOPPING
    process.kill()
    assert process.exit is KILLED
    await world.settle()
    assert (steps, stopping.done()) == (["terminate unwound"], True)


@on_both_loops
async def test_process_records_a_normal_exit_or_a_crash_with_its_error(world: World) -> None:
    tree = await world.start(world.worker("a", restart="temporary"), world.worker("b", restart="temporary"))
    a, b = tree.find("App/a"), tree.find("App/b")
    await world.finish("App/a")
    await world.crash("App/b")
    assert a.exit is NORMAL
    assert b.exit is not None
    assert isinstance(b.exit.error, Boom)
    assert str(b.exit).startswith("crash: Boom at ")


@on_both_loops
async def test_process_cancelled_without_a_stop_request_exits_with_a_crash(world: World) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def body(context: Context) -> None:
        await context.started()
        await (future if not future.done() else asyncio.Event().wait())

    tree = await world.start(ChildSpec("a", body, "transient"))
    first = tree.find("App/a")
    await world.settle()
    future.cancel()
    await world.settle()
    assert first.exit is not None
    assert first.exit.kind == "crash"
    assert tree.find("App/a") is not first


@on_both_loops
async def test_monitors_of_a_process_are_notified_once_in_order(world: World) -> None:
    tree = await world.start(world.worker("a", restart="temporary"))
    process = tree.find("App/a")
    notified: list[str] = []
    process.monitor(lambda down: notified.append("first"))
    process.monitor(lambda down: notified.append("cancelled")).cancel()
    process.monitor(lambda down: 1 / 0)
    process.monitor(lambda down: notified.append("second"))
    await world.crash("App/a")
    process.monitor(lambda down: notified.append(f"late: {down.exit.kind}"))
    assert notified == ["first", "second", "late: crash"]


@on_both_loops
async def test_process_that_returns_before_started_fails_to_start(world: World) -> None:
    async def body(context: Context) -> None:
        return

    with pytest.raises(StartFailed) as caught:
        await world.start(ChildSpec("a", body))
    causes = str(caught.value.__cause__) + str(caught.value.__cause__ and caught.value.__cause__.__cause__)
    assert "App/a ended before it reported its start" in causes


@on_both_loops
async def test_process_start_that_is_no_coroutine_function_fails(world: World) -> None:
    with pytest.raises(StartFailed):
        await world.start(ChildSpec("a", lambda context: None))  # type: ignore[arg-type, return-value]
    assert world.reported("start_failed") == ["App/a", "App"]
