"""The process registry: names are unique, and released when their process dies."""

from __future__ import annotations

import pytest

from hourglass._supervision import DeadProcess, NameTaken, NotRunning, ProcessRegistry

from .world import World, on_both_loops


@on_both_loops
async def test_registry_finds_a_registered_process_by_name(world: World) -> None:
    tree = await world.start(world.worker("a"))
    registry = ProcessRegistry()
    registry.register(("queue", "default"), tree.find("App/a"))
    assert registry.whereis(("queue", "default")) is tree.find("App/a")
    assert registry.whereis("other") is None


@on_both_loops
async def test_registry_rejects_a_name_in_use(world: World) -> None:
    tree = await world.start(world.worker("a"), world.worker("b"))
    registry = ProcessRegistry()
    registry.register("x", tree.find("App/a"))
    with pytest.raises(NameTaken, match="cannot register App/b as 'x': App/a already has this name"):
        registry.register("x", tree.find("App/b"))


@on_both_loops
async def test_registry_releases_the_names_of_a_dead_process(world: World) -> None:
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
async def test_unregistered_name_is_not_released_again_by_its_former_process(world: World) -> None:
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
async def test_registry_is_empty_after_its_restart(world: World) -> None:
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
