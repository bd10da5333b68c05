"""The worker with large runs: verification, cache limits, and detection of hangs."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worker.scripted import lane_of

from hourglass._evaluator.commands import Succeeded
from hourglass._evaluator.events import Activation
from hourglass._worker.lanes.cache import CacheLimits, Entry, Key, StateCache
from hourglass._worker.lanes.hang_detector import HangDetector, progress_of
from hourglass._worker.lanes.lane import Chore

from . import shapes
from .counting import assert_flat
from .pump import Pump, numbers, run_of

WORKFLOWS = [shapes.acting, shapes.sequence, shapes.reader, shapes.in_line]


def lane(**options: Any) -> Any:
    """Return the evaluations of one lane."""
    return lane_of(WORKFLOWS, **options)


def pump_on(evaluations: Any, workflow: Any, size: int) -> Pump:
    """Return a pump that executes a run on a lane."""

    def activate(activation: Activation) -> Any:
        return evaluations.evaluate(activation).completion

    return Pump(activate, workflow, size)


@pytest.mark.parametrize("workflow", [shapes.acting, shapes.sequence])
@pytest.mark.parametrize("at_a_time", [1, 5])
def test_verification_cost_is_linear(workflow: Any, at_a_time: int) -> None:
    def work(size: int) -> int:
        pump = pump_on(lane(verify="always"), workflow, size)
        pump.begin()
        pump.finish(at_a_time)
        return pump.events

    # Powers of two fall differently into runs of different sizes: by four they fall alike.
    assert_flat(work, small=128, large=512)


def test_large_run_is_verified_only_after_it_has_grown() -> None:
    evaluations = lane(verify="always")
    pump = pump_on(evaluations, shapes.acting, 2000)
    pump.begin()
    first = evaluations.steps
    for _ in range(63):
        pump.send([pump._waiting.popleft()])
    assert first > 0
    assert evaluations.steps == first


def test_small_run_is_verified_at_powers_of_two() -> None:
    evaluations = lane(verify="always")
    pump = pump_on(evaluations, shapes.sequence, 100)
    pump.begin()
    seen = [evaluations.steps]
    for _ in range(7):
        pump.send([pump._waiting.popleft()])
        seen.append(evaluations.steps)
    changed = [n for n, (was, now) in enumerate(zip([0, *seen], seen, strict=False), 1) if now != was]
    assert changed == [1, 2, 4, 8]


def test_run_with_the_longest_history_stays_cached() -> None:
    limits = CacheLimits()
    assert limits.journal_entries > 51_200
    assert limits.journal_bytes > 50 * 1024 * 1024
    cache = StateCache(limits)
    cache.admit("me")
    long = entry("long", activations=51_200, journal_bytes=50 * 1024 * 1024)
    cache.put(long, "me")
    assert cache.to_evict(long) == []


def entry(run_id: str, **facts: Any) -> Entry:
    return Entry(Key("q", run_id), run_of(shapes.sequence), **facts)


def test_total_journal_size_is_limited() -> None:
    """The least recently used runs are evicted, each requested once."""
    cache = StateCache(CacheLimits(all_journals_bytes=1000))
    cache.admit("me")
    entries = [entry(name, journal_bytes=300) for name in "abcd"]
    for each in entries[:3]:
        cache.put(each, "me")
        assert cache.to_evict(each) == []
    cache.put(entries[3], "me")
    assert [key.run_id for key in cache.to_evict(entries[3])] == ["a"]
    assert cache.to_evict(entries[3]) == []
    cache.remove(entries[0].key, "me")
    entries[1].journal_bytes = 500
    assert [key.run_id for key in cache.to_evict(entries[1])] == ["c"]


def test_oversized_journal_is_kept_during_its_own_task() -> None:
    """Journals handed over to another worker are counted once."""
    cache = StateCache(CacheLimits(all_journals_bytes=1000))
    cache.admit("old")
    big = entry("big", journal_bytes=5000)
    cache.put(big, "old")
    assert cache.to_evict(big) == []
    cache.hand_over("old", "new")
    small = entry("small", journal_bytes=1)
    cache.put(small, "new")
    assert [key.run_id for key in cache.to_evict(small)] == ["big"]
    cache.release("new")
    cache.admit("new")
    cache.put(fresh := entry("fresh", journal_bytes=900), "new")
    assert cache.to_evict(fresh) == []


class Clock:
    """A clock set by the test."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


INTERVAL = 0.5  # a quarter of the timeout


class Watched:
    """The part of a lane that the detector reads: one task in progress, and no thread for a debugger."""

    thread_id = None

    def __init__(self, evaluations: Any) -> None:
        self.busy = Chore(lambda _: None)
        self.busy.since = 0.0
        self.evaluations = evaluations
        self.computed = 0.0

    def cpu_time(self) -> float:
        return self.computed


def seconds_until_hang(moving: bool, share: float = 0.0, until: float = 1000.0) -> float | None:
    """Return after how many seconds the detector reports a lane as hung. `share` is its processor share until it waits
    at `until`.
    """
    clock, evaluations = Clock(), lane()
    detector = HangDetector(2.0, clock)
    watched: Any = Watched(evaluations)
    for _ in range(80):
        clock.now += INTERVAL
        evaluations.steps += moving
        watched.computed += share * INTERVAL if clock.now <= until else 0.0
        if detector.check([watched]).hung:
            return clock.now
    return None


def test_lane_that_makes_progress_does_not_hang() -> None:
    assert seconds_until_hang(moving=True) is None
    assert seconds_until_hang(moving=False) == 2.5


def test_starved_lane_does_not_hang() -> None:
    """Code that computes gets up to ten times the timeout, in proportion to its processor share; code that waits does
    not.
    """
    assert seconds_until_hang(moving=False, share=1.0) == 2.5
    assert seconds_until_hang(moving=False, share=0.1) == 10.5
    assert seconds_until_hang(moving=False, share=0.04) == 20.5
    assert seconds_until_hang(moving=False, share=0.01) == 2.5
    assert seconds_until_hang(moving=False, share=0.1, until=5.0) == 5.5


def test_progress_counts_fibers_and_activations() -> None:
    evaluations = lane()
    pump = pump_on(evaluations, shapes.in_line, 50)
    pump.begin()
    run = only_run(evaluations)
    assert run.live is not None
    assert run.live.turning_points >= 50
    before = evaluations.steps
    run.drop()
    assert evaluations.steps == before + 51
    run.rebuild()
    assert evaluations.steps == before + 52
    pump.send(numbers(1))
    assert pump.closed


def only_run(evaluations: Any) -> Any:
    (entry_of_run,) = evaluations._cache.owned(evaluations)
    return entry_of_run.run


def test_endless_spawning_of_fibers_counts_as_hang() -> None:
    evaluations = lane()
    pump = pump_on(evaluations, shapes.sequence, 2)
    pump.begin()
    (entry_of_run,) = evaluations._cache.owned(evaluations)
    live = entry_of_run.run.live
    assert live is not None
    evaluations._executing = entry_of_run
    live.turning_points = 10**6
    first = progress_of(evaluations)
    live.turning_points = 10**7
    assert progress_of(evaluations) == first


def test_dropped_run_is_rebuilt_and_completes() -> None:
    evaluations = lane(cache={"live": 0})
    pump = pump_on(evaluations, shapes.acting, 60)
    pump.begin()
    pump.finish(20)
    assert pump.result == sum(range(60))
    assert isinstance(only_run(evaluations).last, Succeeded)
