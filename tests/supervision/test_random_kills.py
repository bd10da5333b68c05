"""Random kills of random trees: afterwards the tree is complete and in order, and no process has leaked."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from effort import cases
from hourglass._supervision import ChildSpec, Context, ProcessState, Supervisor, Tree

from .world import World, run_in_world

# A plan is the behaviour of a worker, or the strategy of a supervisor and the plans of its children.
BEHAVIOURS = st.sampled_from(["prompt", "slow start", "slow end", "swallows", "terminate"])
STRATEGIES = st.sampled_from(["one_for_one", "one_for_all", "rest_for_one"])
SUPERVISORS = st.recursive(
    st.tuples(STRATEGIES, st.lists(BEHAVIOURS, min_size=1, max_size=3).map(tuple)),
    lambda below: st.tuples(STRATEGIES, st.lists(BEHAVIOURS | below, min_size=1, max_size=3).map(tuple)),
    max_leaves=8,
)


@dataclass
class WorkerRecords:
    """The workers of a random tree: when each path was last started, and how many of its bodies are running."""

    started: dict[str, int]
    living: dict[str, int]
    ticks: int = 0

    def worker(self, behaviour: str) -> Any:
        async def body(context: Context) -> None:
            path = context.path
            self.living[path] = self.living.get(path, 0) + 1
            try:
                if behaviour == "slow start":
                    await _turns(3)
                if behaviour == "terminate":
                    context.on_terminate(lambda: _turns(2))
                self.ticks += 1
                self.started[path] = self.ticks
                await context.started()
                await asyncio.Event().wait()
            except BaseException:
                if behaviour == "swallows":
                    await _turns(4)  # a killed process that continues for a while
                raise
            finally:
                try:
                    if behaviour == "slow end":
                        await _turns(3)
                finally:
                    self.living[path] -= 1

        return body


async def _turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def _spec(records: WorkerRecords, id: str, plan: Any) -> ChildSpec:
    if isinstance(plan, str):
        return ChildSpec(id, records.worker(plan))
    strategy, below = plan
    children = [_spec(records, f"{id}{place}", child) for place, child in enumerate(below)]
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
def test_tree_is_restored_in_order_after_random_kills(plan: Any, data: st.DataObject) -> None:
    async def scenario(world: World) -> None:
        records = WorkerRecords({}, {})
        tree = await world.grow(_spec(records, "r", plan))
        expected = _expected("r", plan)
        for _ in range(data.draw(st.integers(1, 6), label="kills")):
            below = [path for path in tree.paths() if path != "r"]
            if below:
                tree.kill(data.draw(st.sampled_from(below), label="path"))
            await _turns(data.draw(st.integers(0, 12), label="turns"))
        await _until_complete(tree, expected)
        await world.settle()
        assert tree.paths() == expected
        assert {path for path, count in records.living.items() if count != 1} == set()
        _check_starts(records, "r", plan)

    run_in_world(scenario)


async def _until_complete(tree: Tree, expected: list[str]) -> None:
    """Run the loop until every path is running, or fail."""
    for _ in range(2000):
        if tree.paths() == expected and all(
            tree.find(path).state is ProcessState.RUNNING for path in expected
        ):
            return
        await asyncio.sleep(0)
    raise AssertionError(f"the tree did not heal:\n{tree.render()}")


def _check_starts(records: WorkerRecords, path: str, plan: Any) -> None:
    """Check that the workers of cascading supervisors were started in order."""
    if isinstance(plan, str):
        return
    strategy, below = plan
    id = path.rpartition("/")[2]
    for place, each in enumerate(below):
        _check_starts(records, f"{path}/{id}{place}", each)
    if strategy != "one_for_one":
        # Only workers record their start; the children of a supervisor may have restarted later.
        starts = [
            records.started[f"{path}/{id}{place}"]
            for place, each in enumerate(below)
            if isinstance(each, str)
        ]
        assert starts == sorted(starts), f"{path} ({strategy}) started its workers as {starts}"


@given(data=st.data())
@settings(max_examples=cases(30, 200), deadline=None)
def test_tree_stopped_during_a_recovery_leaves_no_process(data: st.DataObject) -> None:
    async def scenario(world: World) -> None:
        records = WorkerRecords({}, {})
        plan = data.draw(SUPERVISORS, label="plan")
        tree = await world.grow(_spec(records, "r", plan))
        for _ in range(data.draw(st.integers(0, 3), label="kills")):
            if tree.paths():
                tree.kill(data.draw(st.sampled_from(tree.paths()), label="path"))
            await _turns(data.draw(st.integers(0, 6), label="turns"))
        await tree.stop()
        assert set(records.living.values()) <= {0}
        assert tree.paths() == []

    run_in_world(scenario)
