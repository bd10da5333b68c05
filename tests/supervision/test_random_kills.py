"""Whoever is killed, whenever: afterwards the tree is whole and in order, and nothing has leaked."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from effort import cases
from hourglass._supervision import ChildSpec, Context, ProcessState, Supervisor, Tree

from .world import World, run_in_world

# A plan is a worker's manner, or a supervisor's strategy and the plans of its children.
MANNERS = st.sampled_from(["prompt", "slow start", "slow end", "swallows", "terminate"])
STRATEGIES = st.sampled_from(["one_for_one", "one_for_all", "rest_for_one"])
SUPERVISORS = st.recursive(
    st.tuples(STRATEGIES, st.lists(MANNERS, min_size=1, max_size=3).map(tuple)),
    lambda below: st.tuples(STRATEGIES, st.lists(MANNERS | below, min_size=1, max_size=3).map(tuple)),
    max_leaves=8,
)


@dataclass
class Life:
    """What the workers of a random tree did: one clock of starts, and who lives at each path."""

    started: dict[str, int]
    living: dict[str, int]
    ticks: int = 0

    def worker(self, manner: str) -> Any:
        """A worker that is slow, awkward or obedient."""

        async def body(context: Context) -> None:
            path = context.path
            self.living[path] = self.living.get(path, 0) + 1
            try:
                if manner == "slow start":
                    await _turns(3)
                if manner == "terminate":
                    context.on_terminate(lambda: _turns(2))
                self.ticks += 1
                self.started[path] = self.ticks
                await context.started()
                await asyncio.Event().wait()
            except BaseException:
                if manner == "swallows":
                    await _turns(4)  # detached: it is killed and goes on for a while
                raise
            finally:
                try:
                    if manner == "slow end":
                        await _turns(3)
                finally:
                    self.living[path] -= 1

        return body


async def _turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def _spec(life: Life, id: str, plan: Any) -> ChildSpec:
    if isinstance(plan, str):
        return ChildSpec(id, life.worker(plan))
    strategy, below = plan
    children = [_spec(life, f"{id}{place}", child) for place, child in enumerate(below)]
    return Supervisor(strategy, children, max_restarts=10_000).as_child(id)


def _expected(id: str, plan: Any, above: str = "") -> list[str]:
    path = f"{above}{id}"
    below = () if isinstance(plan, str) else plan[1]
    return [
        path,
        *(p for place, each in enumerate(below) for p in _expected(f"{id}{place}", each, f"{path}/")),
    ]


@given(plan=SUPERVISORS, data=st.data())
@settings(max_examples=cases(40, 300), deadline=None)
def test_random_kills_of_random_paths_in_random_trees(plan: Any, data: st.DataObject) -> None:
    """Random kills at random instants: every path lives again, once, running, started in the order that its strategy promises."""

    async def scenario(world: World) -> None:
        life = Life({}, {})
        tree = await world.grow(_spec(life, "r", plan))
        expected = _expected("r", plan)
        for _ in range(data.draw(st.integers(1, 6), label="kills")):
            below = [path for path in tree.paths() if path != "r"]
            if below:
                tree.kill(data.draw(st.sampled_from(below), label="path"))
            await _turns(data.draw(st.integers(0, 12), label="turns"))
        await _until_whole(tree, expected)
        await world.settle()
        assert tree.paths() == expected
        assert {path for path, count in life.living.items() if count != 1} == set()
        _check_starts(life, "r", plan)

    run_in_world(scenario)


async def _until_whole(tree: Tree, expected: list[str]) -> None:
    """Turn the loop until every path runs; a tree that does not heal fails here."""
    for _ in range(2000):
        if tree.paths() == expected and all(
            tree.find(path).state is ProcessState.RUNNING for path in expected
        ):
            return
        await asyncio.sleep(0)
    raise AssertionError(f"the tree did not heal:\n{tree.render()}")


def _check_starts(life: Life, path: str, plan: Any) -> None:
    if isinstance(plan, str):
        return
    strategy, below = plan
    id = path.rpartition("/")[2]
    for place, each in enumerate(below):
        _check_starts(life, f"{path}/{id}{place}", each)
    if strategy != "one_for_one":
        # Only workers tell when they themselves started; a supervisor's parts may have restarted later.
        starts = [
            life.started[f"{path}/{id}{place}"] for place, each in enumerate(below) if isinstance(each, str)
        ]
        assert starts == sorted(starts), f"{path} ({strategy}) started its workers as {starts}"


@given(data=st.data())
@settings(max_examples=cases(30, 200), deadline=None)
def test_stop_at_any_instant_of_a_recovery(data: st.DataObject) -> None:
    """A tree that is stopped while it heals stops cleanly: everybody has ended, in whatever state it was met."""

    async def scenario(world: World) -> None:
        life = Life({}, {})
        plan = data.draw(SUPERVISORS, label="plan")
        tree = await world.grow(_spec(life, "r", plan))
        for _ in range(data.draw(st.integers(0, 3), label="kills")):
            if tree.paths():
                tree.kill(data.draw(st.sampled_from(tree.paths()), label="path"))
            await _turns(data.draw(st.integers(0, 6), label="turns"))
        await tree.stop()
        assert set(life.living.values()) <= {0}
        assert tree.paths() == []

    run_in_world(scenario)
