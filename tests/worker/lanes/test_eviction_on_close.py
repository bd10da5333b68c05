"""A worker on an in-process engine evicts a run when it closes, without an eviction activation."""

from __future__ import annotations

from hourglass import activity, workflow
from hourglass._worker.lanes.cache import Entry, Key, StateCache
from hourglass.client import Client
from hourglass.worker import Worker

from .test_cache import entry


@activity.defn
def double(number: int) -> int:
    return number * 2


@workflow.defn
def doubles(number: int) -> int:
    return double(number)


def test_closed_run_is_evicted_without_an_activation() -> None:
    with (
        Client.connect("local:") as client,
        Worker(client, workflows=[doubles], activities=[double]) as worker,
    ):
        for number in range(1, 4):
            assert client.execute_workflow(doubles, number, id=f"w{number}") == 2 * number
            seen = worker.statistics()
            assert (seen.cached_workflows, seen.live_workflows, seen.activations) == (0, 0, 2 * number)


def test_discarding_a_cached_state_removes_it_from_any_lane() -> None:
    cache = StateCache()
    for owner, kept in (("one", entry("a")), ("two", entry("b")), ("two", entry("a", generation=1))):
        cache.admit(owner)
        assert cache.put(kept, owner)
    cache.hand_over("one", "heir")
    cache.discard(Key("q", "a"))
    cache.discard(Key("q", "unknown"))
    left: list[Entry] = [entry for owner in ("heir", "two") for entry in cache.owned(owner)]
    assert [(entry.key.run_id, entry.key.generation) for entry in left] == [("b", 0), ("a", 1)]
    assert len(cache) == 2
