"""The state cache: states outlive lanes and handles, and each has a single owner."""

from __future__ import annotations

import threading

from hourglass._evaluator.commands import Succeeded
from hourglass._evaluator.context import RunSettings
from hourglass._evaluator.evaluator import Evaluator
from hourglass._worker.lanes.cache import CacheLimits, Entry, Key, LiveRuns, StateCache
from hourglass._worker.lanes.evaluation import Evaluations, LaneContext
from hourglass._worker.resolver import Resolver

from ..scripted import evict, on, start
from .lane_world import adds, completed, done, stage

RESOLVER = Resolver(workflows=[adds])


def entry(run_id: str, queue: str = "q", generation: int = 0) -> Entry:
    definition = RESOLVER.workflow("adds")
    return Entry(Key(queue, run_id, generation), Evaluator(definition, run_id, RunSettings(task_queue=queue)))


def evaluations(cache: StateCache, queue: str = "q") -> Evaluations:
    return Evaluations(LaneContext(RESOLVER.workflow, RunSettings(task_queue=queue), cache=cache))


def test_cached_state_is_visible_only_to_its_lane():
    cache = StateCache()
    cache.admit("one")
    cache.admit("two")
    cached = entry("r")
    assert cache.put(cached, "one")
    assert cache.get(cached.key, "two") is None
    assert cache.remove(cached.key, "two") is None
    assert cache.get(cached.key, "one") is cached
    assert cache.remove(cached.key, "one") is cached
    assert len(cache) == 0


def test_lane_handover_moves_all_cached_states_but_one_to_the_new_lane():
    cache = StateCache()
    cache.admit("old")
    for name in "abc":
        cache.put(entry(name), "old")
    left = cache.hand_over("old", "new", Key("q", "b"))
    assert left is not None
    assert left.key.run_id == "b"
    assert cache.count("new") == len(cache) == 2
    assert cache.get(Key("q", "a"), "old") is None
    assert cache.put(entry("d"), "old") is False
    assert cache.remove(Key("q", "a"), "old") is None
    assert cache.get(Key("q", "b"), "new") is None
    assert cache.get(Key("q", "a"), "new") is not None


def test_lane_handover_copies_journals_without_fibers():
    cache = StateCache()
    cache.admit("old")
    cached = entry("r")
    cached.run.activate(start("r", "adds", "r"))
    cache.put(cached, "old")
    cache.hand_over("old", "new")
    fresh = cache.get(cached.key, "new")
    assert fresh is not None
    cached.run.activate(on("r", done(1)))
    cached.run.drop()
    assert len(fresh.run.state.journal) == 1
    assert fresh.run.live is None
    assert fresh.run.last is not None


def test_closed_run_issues_no_commands_after_a_lane_handover():
    old = evaluations(StateCache())
    old.evaluate(start("r", "adds", "r"))
    old.evaluate(on("r", done(1, 1)))
    last = on("r", done(2, 2))
    assert old.evaluate(last).completion == completed("r", 3)
    replacement = old.hand_over()
    assert replacement.evaluate(last).completion == completed("r", 3)
    assert replacement.evaluate(on("r", done(9))).completion == Succeeded("r")
    old.unwind()


def test_state_cache_separates_task_queues_and_handle_generations():
    cache = StateCache(CacheLimits(states=1))
    cache.admit("lane")
    for queue, generation in (("q", 1), ("q", 2), ("p", 1)):
        cached = entry("r", queue, generation)
        cache.put(cached, "lane")
        assert cache.to_evict(cached) == []
    assert len(cache) == 3
    assert [item.key for item in cache.pop_older("q", 2, "lane")] == [Key("q", "r", 1)]
    assert len(cache) == 2
    newest = entry("s", "q", 2)
    cache.put(newest, "lane")
    assert cache.to_evict(newest) == [Key("q", "r", 2)]
    assert cache.to_evict(newest) == []


def test_state_cache_checks_journal_sizes_only_after_significant_growth() -> None:
    cache = StateCache(CacheLimits(all_journals_bytes=100 * 2**17))
    cache.admit("me")
    idle, busy = entry("idle"), entry("busy")
    for item in (idle, busy):
        item.journal_bytes = 50 * 2**17
        cache.put(item, "me")
        assert cache.to_evict(item) == []
    busy.journal_bytes += 99
    assert cache.to_evict(busy) == []
    busy.journal_bytes += 1
    assert cache.to_evict(busy) == [idle.key]


def test_two_lanes_share_a_state_cache():
    stage.__init__()  # type: ignore[misc]
    cache = StateCache()
    lane_a, lane_b = evaluations(cache), evaluations(cache)
    lane_a.evaluate(start("a", "adds", "a"))
    lane_b.evaluate(start("b", "adds", "b"))
    assert (lane_a.counts.cached, lane_b.counts.cached, len(cache)) == (1, 1, 2)
    lane_a.close()
    assert len(cache) == 1
    lane_b.evaluate(on("b", done(1, 1)))
    assert lane_b.evaluate(on("b", done(2, 1))).completion == completed("b", 2)
    lane_b.evaluate(evict("b"))
    assert len(cache) == 0
    lane_b.close()


def test_state_cache_is_thread_safe_during_lane_handovers():
    cache = StateCache(CacheLimits(states=50))
    errors: list[BaseException] = []

    def work(lane: int) -> None:
        try:
            owner: object = (lane, 0)
            cache.admit(owner)
            for n in range(300):
                cached = entry(f"{lane}-{n % 40}")
                cache.put(cached, owner)
                cache.to_evict(cached)
                if n % 7 == 0:
                    cache.remove(Key("q", f"{lane}-{n % 13}"), owner)
                if n % 50 == 49:
                    replacement = (lane, n)
                    cache.hand_over(owner, replacement)
                    owner = replacement
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for item in threads:
        item.start()
    for item in threads:
        item.join(30)
    assert errors == []
    owners = list(cache._owned)
    assert len(owners) == 4
    assert sum(cache.count(owner) for owner in owners) == len(cache)
    for owner in owners:
        cache.release(owner)
    assert len(cache) == 0


def test_least_recently_used_live_run_is_dropped_first():
    stage.__init__()  # type: ignore[misc]
    live = LiveRuns(1)
    first, second, idle = entry("a"), entry("b"), entry("c")
    for item in (first, second):
        item.run.activate(start(item.key.run_id, "adds", "x"))
        live.settle(item)
    live.settle(idle)
    assert len(live) == 2
    assert live.excess() is first
    first.run.drop()
    live.settle(first)
    assert live.excess() is None
    assert live.oldest() is second
    second.run.drop()
