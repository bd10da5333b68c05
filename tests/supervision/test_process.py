"""A process: how it starts, how it is stopped (shutdown value × outcome), who is told."""

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


def obedient(said: list[str]) -> Any:
    async def body(context: Context) -> None:
        await context.started()
        try:
            await asyncio.Event().wait()
        finally:
            said.append("ended")

    return body


def slow(said: list[str]) -> Any:
    """Needs a while to end, after it was asked to."""

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
                said.append("ended")
            finally:
                timer.cancel()

    return body


def stubborn(said: list[str]) -> Any:
    """Ignores cancellation."""

    async def body(context: Context) -> None:
        await context.started()
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                said.append("ignored")

    return body


def failing(said: list[str]) -> Any:
    """Crashes when it is asked to end."""

    async def body(context: Context) -> None:
        await context.started()
        try:
            await asyncio.Event().wait()
        finally:
            raise Boom

    return body


@pytest.mark.parametrize(
    ("shutdown", "body", "after", "kind", "said"),
    [
        ("brutal", obedient, 0.0, "killed", ["ended"]),
        ("brutal", stubborn, 0.0, "killed", []),
        ("brutal", failing, 0.0, "killed", []),
        ("infinity", obedient, 0.0, "shutdown", ["ended"]),
        ("infinity", slow, 2.0, "shutdown", ["ended"]),
        ("infinity", failing, 0.0, "crash", []),
        (3.0, obedient, 0.0, "shutdown", ["ended"]),
        (3.0, slow, 2.0, "shutdown", ["ended"]),
        (1.0, slow, 1.0, "killed", []),
        (1.0, stubborn, 1.0, "killed", ["ignored"]),
        (1.0, failing, 0.0, "crash", []),
        (0.0, obedient, 0.0, "shutdown", ["ended"]),
        (0.0, stubborn, 0.0, "killed", ["ignored"]),
    ],
)
@on_both_loops
async def test_shutdown_matrix(
    world: World, shutdown: Any, body: Any, after: float, kind: ExitKind, said: list[str]
) -> None:
    """Shutdown value × behaviour: when it has ended, how, and what it got to do."""
    did: list[str] = []
    tree = await world.start(ChildSpec("a", body(did), "temporary", shutdown))
    process = tree.find("App/a")
    stopping = asyncio.ensure_future(tree.stop())
    if after:
        await world.advance(after - 0.01)
        assert not stopping.done()
        await world.advance(0.01)
    await world.advance(0.0)
    assert stopping.done()
    assert process.exit is not None
    assert (process.exit.kind, did) == (kind, said)
    assert ("App/a" in world.reported("overdue")) == (kind == "killed" and shutdown != "brutal")


@on_both_loops
async def test_infinite_shutdown_waits_for_the_child(world: World) -> None:
    """With `infinity` a child that ignores its cancellation is waited for, until somebody kills it."""
    said: list[str] = []
    tree = await world.start(ChildSpec("a", stubborn(said), "temporary", "infinity"))
    stopping = asyncio.ensure_future(tree.stop())
    await world.advance(1e6)
    assert not stopping.done()
    assert tree.find("App/a").state is ProcessState.STOPPING
    tree.kill("App/a")
    await world.settle()
    assert stopping.done()


@on_both_loops
async def test_terminate_runs_before_the_body_is_cancelled(world: World) -> None:
    """An ordered stop awaits `terminate` first; a body that ends meanwhile by itself was not cancelled."""
    said: list[str] = []
    farewell = asyncio.Event()

    async def body(context: Context) -> None:
        async def terminate() -> None:
            said.append("terminate")
            farewell.set()
            await world.settle()
            said.append("terminated")

        context.on_terminate(terminate)
        await context.started()
        await farewell.wait()
        said.append("body saw the farewell")

    tree = await world.start(ChildSpec("a", body))
    process = tree.find("App/a")
    assert await tree.stop() is SHUTDOWN
    assert said == ["terminate", "body saw the farewell", "terminated"]
    assert process.exit is SHUTDOWN


@on_both_loops
async def test_terminate_is_bounded_by_the_shutdown_limit(world: World) -> None:
    """A `terminate` that hangs is killed with its process when the limit has passed."""
    said: list[str] = []

    async def body(context: Context) -> None:
        async def terminate() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                said.append("terminate unwound")

        context.on_terminate(terminate)
        await context.started()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            said.append("cancelled")
            raise

    tree = await world.start(ChildSpec("a", body, shutdown=2.0))
    process = tree.find("App/a")
    stopping = asyncio.ensure_future(tree.stop())
    await world.advance(1.9)
    assert process.state is ProcessState.STOPPING
    await world.advance(0.1)
    assert (process.exit, said, stopping.done()) == (KILLED, ["terminate unwound"], True)


@on_both_loops
async def test_exception_in_terminate_is_a_crash(world: World) -> None:
    """A `terminate` that raises makes the exit a crash; the body is still cancelled in order and siblings are stopped."""
    said: list[str] = []

    async def body(context: Context) -> None:
        async def terminate() -> None:
            raise Boom

        context.on_terminate(terminate)
        await context.started()
        try:
            await asyncio.Event().wait()
        finally:
            said.append("body ended")

    tree = await world.start(world.worker("first"), ChildSpec("a", body))
    process = tree.find("App/a")
    assert await tree.stop() is SHUTDOWN
    assert process.exit is not None
    assert isinstance(process.exit.error, Boom)
    assert (said, world.log) == (["body ended"], ["+first", "-first"])


@on_both_loops
async def test_kill_during_terminate(world: World) -> None:
    """A kill during `terminate` ends both at once."""
    said: list[str] = []

    async def body(context: Context) -> None:
        async def terminate() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                said.append("terminate unwound")

        context.on_terminate(terminate)
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
    assert (said, stopping.done()) == (["terminate unwound"], True)


@on_both_loops
async def test_exits_are_recorded(world: World) -> None:
    """A body that returns ends normally; one that raises crashes with its error; both are in the process's record."""
    tree = await world.start(world.worker("a", restart="temporary"), world.worker("b", restart="temporary"))
    a, b = tree.find("App/a"), tree.find("App/b")
    await world.finish("App/a")
    await world.crash("App/b")
    assert a.exit is NORMAL
    assert b.exit is not None
    assert isinstance(b.exit.error, Boom)
    assert str(b.exit).startswith("crash: Boom at ")


@on_both_loops
async def test_unrequested_cancellation_is_a_crash(world: World) -> None:
    """A `CancelledError` that no stop asked for is no ordered end: a transient child that meets one is restarted."""
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
async def test_monitors_are_notified_once_in_order(world: World) -> None:
    """Monitors hear of a death once, in order; a cancelled one does not, a late one hears at once, a failing one harms nobody."""
    tree = await world.start(world.worker("a", restart="temporary"))
    process = tree.find("App/a")
    told: list[str] = []
    process.monitor(lambda down: told.append("first"))
    process.monitor(lambda down: told.append("cancelled")).cancel()
    process.monitor(lambda down: 1 / 0)
    process.monitor(lambda down: told.append("second"))
    await world.crash("App/a")
    process.monitor(lambda down: told.append(f"late: {down.exit.kind}"))
    assert told == ["first", "second", "late: crash"]


@on_both_loops
async def test_return_before_started_is_a_failed_start(world: World) -> None:
    """Returning before `started` is a failed start, and says so."""

    async def body(context: Context) -> None:
        return

    with pytest.raises(StartFailed) as caught:
        await world.start(ChildSpec("a", body))
    causes = str(caught.value.__cause__) + str(caught.value.__cause__ and caught.value.__cause__.__cause__)
    assert "App/a ended before it reported its start" in causes


@on_both_loops
async def test_start_must_be_a_coroutine_function(world: World) -> None:
    """A start that gives no coroutine is a failed start like any other."""
    with pytest.raises(StartFailed):
        await world.start(ChildSpec("a", lambda context: None))  # type: ignore[arg-type, return-value]
    assert world.reported("start_failed") == ["App/a", "App"]
