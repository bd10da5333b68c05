"""Names: unique, and gone when their process dies."""

from __future__ import annotations

import pytest

from hourglass._supervision import DeadProcess, NameTaken, NotRunning, ProcessRegistry

from .world import World, on_both_loops


@on_both_loops
async def test_registered_names_are_found(world: World) -> None:
    """`whereis` finds a registered process, and nothing for an unknown name."""
    tree = await world.start(world.worker("a"))
    registry = ProcessRegistry()
    registry.register(("queue", "default"), tree.find("App/a"))
    assert registry.whereis(("queue", "default")) is tree.find("App/a")
    assert registry.whereis("other") is None


@on_both_loops
async def test_duplicate_names_are_rejected(world: World) -> None:
    """A name has one process; the error names both."""
    tree = await world.start(world.worker("a"), world.worker("b"))
    registry = ProcessRegistry()
    registry.register("x", tree.find("App/a"))
    with pytest.raises(NameTaken, match="cannot register App/b as 'x': App/a already has this name"):
        registry.register("x", tree.find("App/b"))


@on_both_loops
async def test_names_are_released_when_their_process_ends(world: World) -> None:
    """At the instant of a death its names are free, and the successor can take them."""
    tree = await world.start(world.worker("a"))
    registry = ProcessRegistry()
    first = tree.find("App/a")
    registry.register("x", first)
    registry.register("y", first)
    first.kill()
    assert registry.names() == ()
    with pytest.raises(DeadProcess, match="App/a is dead"):
        registry.register("x", first)
    await world.settle()
    registry.register("x", tree.find("App/a"))
    assert registry.names() == ("x",)


@on_both_loops
async def test_unregistering_is_idempotent_and_final(world: World) -> None:
    """A name that was taken back is not touched by the later death of its former process."""
    tree = await world.start(world.worker("a"), world.worker("b"))
    registry = ProcessRegistry()
    a, b = tree.find("App/a"), tree.find("App/b")
    registry.register("x", a)
    registry.unregister("x")
    registry.unregister("x")
    registry.register("x", b)
    a.kill()
    assert registry.whereis("x") is b


@on_both_loops
async def test_restarted_registry_is_empty(world: World) -> None:
    """A registry that dies forgets all names and takes none until it is back; then it begins empty."""
    registry = ProcessRegistry()
    tree = await world.start(world.worker("a"), registry.as_child("Names"))
    registry.register("x", tree.find("App/a"))
    tree.kill("App/Names")
    assert registry.names() == ()
    with pytest.raises(NotRunning, match="the registry App/Names is down"):
        registry.register("x", tree.find("App/a"))
    await world.settle()
    registry.register("x", tree.find("App/a"))
    assert tree.find("App/Names").value is registry
