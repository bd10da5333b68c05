"""The search for the order in which another SDK delivered concurrent events to a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from hourglass._evaluator import events as e
from hourglass.replay import History, Replayer, _foreign_walk
from hourglass.replay._foreign_walk import Order, TurnSearch

from .typescript_random import TWINS

TWO: list[e.AnyEvent] = [e.TimerFired(1), e.TimerFired(2)]
STARTED = e.RunStarted(workflow_type="W", workflow_id="w")


def test_order_delivers_events_together_one_by_one_and_reversed() -> None:
    told = [Order({0: way}).of(0, TWO)[1] for way in range(4)]
    assert told == [[TWO], [TWO], [[TWO[0]], [TWO[1]]], [[TWO[1]], [TWO[0]]]]
    mixed: list[e.AnyEvent] = [TWO[0], e.ActivityCompleted(1), TWO[1]]
    apart = [mixed[1], mixed[2], mixed[0]]
    assert [Order({0: way}).of(0, mixed)[1] for way in (4, 5)] == [[apart], [[each] for each in apart]]
    assert Order({0: 0}).of(0, TWO)[0] != Order({0: 1}).of(0, TWO)[0]


def test_order_delivers_start_and_patches_first() -> None:
    due: list[e.AnyEvent] = [STARTED, e.PatchNoticed("p"), e.SignalReceived("a"), e.SignalReceived("b")]
    for way in (2, 3):
        batches = Order({0: way}).of(0, due)[1]
        assert batches[0] == due[:2]
        assert sorted(event.name for batch in batches[1:] for event in batch) == ["a", "b"]  # type: ignore[union-attr]


def test_single_event_has_one_delivery_order() -> None:
    assert Order().choices(TWO[:1]) == 1
    assert Order().choices([]) == 1
    assert Order().choices(TWO) > 1
    assert Order().of(0, [])[1] == []


def test_order_search_backtracks_from_the_mismatch() -> None:
    search = TurnSearch(10, has_updates=False)
    seen = []
    for order in search.orders():
        seen.append(dict(order.modes))
        search.reject(2, [4, 1, 4, 4])
    assert seen[:6] == [{}, {2: 1}, {2: 2}, {2: 3}, {0: 1}, {0: 1, 2: 1}]
    assert len(seen) == len({str(sorted(modes.items())) for modes in seen}) == 16


def test_order_search_is_bounded() -> None:
    """Long histories are tried less often, updates double the tries."""

    def tries(events: int, *, has_updates: bool, choices: list[int]) -> int:
        search = TurnSearch(events, has_updates=has_updates)
        count = 0
        for _ in search.orders():
            count += 1
            search.reject(len(choices) - 1, choices)
        return count

    assert tries(10, has_updates=False, choices=[1, 1]) == 1
    assert tries(10, has_updates=False, choices=[4] * 9) == 48
    assert tries(10, has_updates=True, choices=[4] * 9) == 96
    assert tries(50_000, has_updates=False, choices=[4] * 9) == 3


def test_recorded_history_replays_only_with_the_order_search(monkeypatch: pytest.MonkeyPatch) -> None:
    history = History.from_file(Path(__file__).parent / "typescript" / "random08.json")
    with Replayer(workflows=list(TWINS.values())) as replayer:
        assert replayer.try_replay(history).does_the_same
        monkeypatch.setattr(_foreign_walk, "_MODES", 1)
        assert not replayer.try_replay(history).does_the_same
