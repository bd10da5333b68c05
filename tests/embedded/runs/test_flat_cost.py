"""Constant cost of a step with many pending items and long histories: function calls are counted, not seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hourglass._contract import workflows as wf
from hourglass._contract.handle import ActivityTask
from hourglass._embedded import VirtualClock
from hourglass._embedded.runs.run import Wakes, activity_wake_ns, run_wake_ns, timer_wake_ns
from hourglass._embedded.store.memory import MemoryStore
from hourglass._embedded.store.store import RunChange
from hourglass._embedded.transitions.run import OpenActivity, PendingTimer, Run
from hourglass._embedded.transitions.size_limits import Limits
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e

from ..activations.test_replay_equals_live import Life
from ..memory_world import World, activity, run_async, text
from ..stores import Noted

ROOMY = Limits(pending=10**6, history_events=10**6)


class Calls:
    """Counts calls of our functions, and of builtins by them, in a `with` block."""

    def __enter__(self) -> Calls:
        self.count = 0
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        if event in ("call", "c_call") and "hourglass" in frame.f_code.co_filename:
            self.count += 1


async def step_costs(world: World, run_id: str, tasks: list[ActivityTask]) -> list[int]:
    """Return the cost of completing each activity and the workflow task that it causes."""
    costs = []
    for task in tasks:
        with Calls() as calls:
            await world.succeed(task, text("r"))
            await world.handle.poll_activation()
            await world.complete(run_id)
        costs.append(calls.count)
    return costs


async def test_step_cost_is_constant_with_many_activities() -> None:
    store = Noted()
    world = await World.new(store=store, limits=ROOMY, max_concurrent_activities=10_000)
    run_id = await world.start_run(
        *[activity(seq, start_to_close_timeout=60.0 + seq) for seq in range(1, 3001)]
    )
    with Calls() as first:
        tasks = [await world.activity()]
    for _ in range(2998):
        tasks.append(await world.activity())
    with Calls() as last:
        tasks.append(await world.activity())
    assert abs(first.count - last.count) <= 20
    costs = await step_costs(world, run_id, tasks)
    assert max(costs[10:]) <= min(costs) * 1.5
    assert {len(change.touched) for change in store.changes[-100:]} == {0, 1}


async def test_signal_cost_is_constant() -> None:
    world = await World.new(limits=ROOMY)
    await world.start()
    costs = []
    for number in range(3000):
        request = wf.SignalWorkflow(workflow_id="w", signal_name="s", request_id=f"r{number}")
        with Calls() as calls:
            await world.call(request)
        costs.append(calls.count)
    assert max(costs[10:]) <= min(costs) * 1.2


async def test_timer_cost_is_constant() -> None:
    world = await World.new(limits=ROOMY)
    run_id = await world.start_run(*[c.StartTimer(seq, seq * 10**9) for seq in range(1, 2001)])
    costs = []
    for seq in range(1, 2001):
        with Calls() as calls:
            world.clock.advance(1)
        costs.append(calls.count)
        assert (await world.activation()).events == (e.TimerFired(seq),)
        await world.complete(run_id)
    assert max(costs[10:]) <= min(costs) * 1.5


# --- what is kept to make it so ---------------------------------------------------------------------------


def _item_wake_ns(run: Run, event_id: int, now: int) -> int:
    pending = run.activities.get(event_id)
    return timer_wake_ns(run, event_id) if pending is None else activity_wake_ns(pending, now)


def _all_ids(run: Run) -> list[int]:
    return [*run.activities, *run.timers]


def _next_by_complete_scan(run: Run, now: int) -> int:
    deadlines = [_item_wake_ns(run, event_id, now) for event_id in _all_ids(run)] + [run_wake_ns(run, now)]
    return min(filter(None, deadlines), default=0)


class Checking(MemoryStore):
    """A store that compares the touched ids and the wake time of each change with a complete scan."""

    def __init__(self, now: Callable[[], int]) -> None:
        super().__init__()
        self.now = now
        self.checked = 0

    def append(self, change: RunChange) -> int:
        before = self.load(change.run.run_id)
        old: dict[int, OpenActivity | PendingTimer] = (
            {} if before is None else {**before.run.activities, **before.run.timers}
        )
        new: dict[int, OpenActivity | PendingTimer] = {**change.run.activities, **change.run.timers}
        differing = {key for key in old.keys() | new.keys() if old.get(key) != new.get(key)}
        assert differing <= change.touched
        if change.wake_ns > 1:
            assert change.wake_ns == _next_by_complete_scan(change.run, self.now())
        self.checked += 1
        return super().append(change)


class Lazy(VirtualClock):
    """A virtual clock that lets obsolete alarms run, as the real clock does."""

    early_is_harmless = True


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), lazy=st.booleans())
def test_touched_ids_and_wake_times_are_exact(seed: int, lazy: bool) -> None:
    async def body() -> None:
        store = Checking(lambda: world.clock.now_ns())
        world = await World.new(store=store, clock=Lazy() if lazy else None)
        await Life(world, seed).live(40)
        assert store.checked > 1

    run_async(body)


async def test_elapsed_deadline_is_reported_once(world: World) -> None:
    wakes = Wakes()
    run_id = await world.start_run(c.StartTimer(1, 5 * 10**9), c.StartTimer(2, 9 * 10**9))
    record = world.record(run_id=run_id)
    run, now = record.run, world.clock.now_ns()
    for event_id in _all_ids(run):
        wakes.enter(event_id, _item_wake_ns(run, event_id, now))
    assert wakes.next_ns(run, now) == now + 5 * 10**9
    assert wakes.due(now) == []
    assert wakes.due(now + 5 * 10**9) == [5]
    world.clock.advance(5)
    assert wakes.next_ns(record.run, world.clock.now_ns()) == now + 9 * 10**9
