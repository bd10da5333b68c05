"""The worker around large runs: what it checks, what it keeps, and when it believes that one hangs."""

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
    """The runs of one lane."""
    return lane_of(WORKFLOWS, **options)


def pump_on(evaluations: Any, workflow: Any, size: int) -> Pump:
    """A run on a lane."""

    def activate(activation: Activation) -> Any:
        return evaluations.evaluate(activation).completion

    return Pump(activate, workflow, size)


@pytest.mark.parametrize("workflow", [shapes.acting, shapes.sequence])
@pytest.mark.parametrize("at_a_time", [1, 5])
def test_verification_cost_is_linear(workflow: Any, at_a_time: int) -> None:
    """What is executed a second time, over the whole life of a run, grows with the run and not faster."""

    def work(size: int) -> int:
        pump = pump_on(lane(verify="always"), workflow, size)
        pump.begin()
        pump.finish(at_a_time)
        return pump.events

    # Powers of two fall differently into runs of different sizes: by four they fall alike.
    assert_flat(work, small=128, large=512)


def test_large_run_is_verified_after_growth() -> None:
    """Thousands of fibers that begin at once are executed again once, not at each of the next powers of two."""
    evaluations = lane(verify="always")
    pump = pump_on(evaluations, shapes.acting, 2000)
    pump.begin()
    first = evaluations.steps
    for _ in range(63):
        pump.send([pump._waiting.popleft()])
    assert first > 0
    assert evaluations.steps == first


def test_small_run_is_verified_at_powers_of_two() -> None:
    """Early faults are found early."""
    evaluations = lane(verify="always")
    pump = pump_on(evaluations, shapes.sequence, 100)
    pump.begin()
    seen = [evaluations.steps]
    for _ in range(7):
        pump.send([pump._waiting.popleft()])
        seen.append(evaluations.steps)
    changed = [n for n, (was, now) in enumerate(zip([0, *seen], seen, strict=False), 1) if now != was]
    assert changed == [1, 2, 4, 8]


def test_journal_of_the_longest_history_is_kept() -> None:
    """A run as long as Temporal allows is not evicted after each of its tasks, which would replay it each time."""
    limits = CacheLimits()
    assert limits.journal_entries > 51_200
    assert limits.journal_bytes > 50 * 1024 * 1024
    cache = StateCache(limits)
    cache.admit("me")
    long = entry("long", activations=51_200, journal_bytes=50 * 1024 * 1024)
    cache.put(long, "me")
    assert cache.to_evict(long) == []


def entry(run_id: str, **facts: Any) -> Entry:
    """A run that the cache keeps."""
    return Entry(Key("q", run_id), run_of(shapes.sequence), **facts)


def test_total_journal_size_is_limited() -> None:
    """The least recently used go, as many as it takes, each asked for once; what has gone counts no more."""
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


def test_oversized_journal_is_kept_for_its_own_task() -> None:
    """The run at hand is not given up for what it takes itself, and those handed over are counted once."""
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
    """Time that moves when it is told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


INTERVAL = 0.5  # a quarter of the timeout


class Watched:
    """As much of a lane as its guard looks at: it is at one thing, and has no thread that a debugger could be at."""

    thread_id = None

    def __init__(self, evaluations: Any) -> None:
        self.busy = Chore(lambda _: None)
        self.busy.since = 0.0
        self.evaluations = evaluations
        self.computed = 0.0

    def cpu_time(self) -> float:
        return self.computed


def looks(moving: bool, share: float = 0.0, until: float = 1000.0) -> float | None:
    """After how many seconds a lane is said to hang that is at one thing for long, and moves meanwhile or not; it gets such
    a share of a processor, until it waits for something.
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
    """Executing a long journal again may take longer than the timeout; standing still may not."""
    assert looks(moving=True) is None
    assert looks(moving=False) == 2.5


def test_starved_lane_does_not_hang() -> None:
    """Code that computes has its seconds of a processor, however few of those of the clock it gets: up to ten times as long. Code
    that waits has none of it, nor has code that waits after it has computed.
    """
    assert looks(moving=False, share=1.0) == 2.5
    assert looks(moving=False, share=0.1) == 10.5
    assert looks(moving=False, share=0.04) == 20.5
    assert looks(moving=False, share=0.01) == 2.5
    assert looks(moving=False, share=0.1, until=5.0) == 5.5


def test_progress_counts_fibers_and_activations() -> None:
    """Fibers that begin, end and are unwound, and activations of a journal, each move the number."""
    evaluations = lane()
    pump = pump_on(evaluations, shapes.in_line, 50)
    pump.begin()
    run = the_run(evaluations)
    assert run.live is not None
    assert run.live.turning_points >= 50
    before = evaluations.steps
    run.drop()
    assert evaluations.steps == before + 51
    run.rebuild()
    assert evaluations.steps == before + 52
    pump.send(numbers(1))
    assert pump.closed


def the_run(evaluations: Any) -> Any:
    """The only run of a lane."""
    (kept,) = evaluations._cache.owned(evaluations)
    return kept.run


def test_endless_fibers_count_as_hang() -> None:
    """A run that spawns without end is found to hang at last."""
    evaluations = lane()
    pump = pump_on(evaluations, shapes.sequence, 2)
    pump.begin()
    (kept,) = evaluations._cache.owned(evaluations)
    live = kept.run.live
    assert live is not None
    evaluations._executing = kept
    live.turning_points = 10**6
    first = progress_of(evaluations)
    live.turning_points = 10**7
    assert progress_of(evaluations) == first


def test_dropped_run_continues_where_it_was() -> None:
    """After its fibers were dropped a large run is brought back, and finishes with the same result."""
    evaluations = lane(cache={"live": 0})
    pump = pump_on(evaluations, shapes.acting, 60)
    pump.begin()
    pump.finish(20)
    assert pump.result == sum(range(60))
    assert isinstance(the_run(evaluations).last, Succeeded)
