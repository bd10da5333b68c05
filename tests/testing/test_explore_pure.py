"""The pure parts of an exploration: the search for orders, shrinking and tokens."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hourglass.errors import UsageError
from hourglass.testing._explore.choices import SORTS, Choices, Option, Swarm, script_of, token_of
from hourglass.testing._explore.search import OrderSearch, Script, shrink, singles, size, stripped
from hourglass.testing._explore.story import clock_text, duration_text

scripts = st.lists(st.integers(0, 4), max_size=12).map(tuple)


def play(choices: Choices, widths: Sequence[int]) -> None:
    for width in widths:
        choices.choose([Option("task")] * width)


def test_exploration_search_tries_every_order_once_fewest_deviations_first() -> None:
    search, seen = OrderSearch(1000, seed=0), list[Script]()
    while (choices := search.next()) is not None:
        play(choices, (2, 3, 2))
        search.tried(choices)
        seen.append(tuple(choices.taken))
    assert len(seen) == len(set(seen)) == 12
    assert search.is_complete
    deviations = [size(item)[0] for item in seen]
    assert deviations == sorted(deviations)


def test_exploration_search_samples_a_large_space_after_single_deviations() -> None:
    search, seen = OrderSearch(100, seed=0), list[Script]()
    while (choices := search.next()) is not None:
        play(choices, (4,) * 10)
        search.tried(choices)
        seen.append(tuple(choices.taken))
    assert len(seen) == 100
    assert not search.is_complete
    assert set(map(stripped, seen)) >= set(singles((4,) * 10))
    assert max(size(item)[0] for item in seen) > 2


def test_exploration_choice_that_does_not_exist_falls_back_to_the_default() -> None:
    choices = Choices((1, 7, 1))
    play(choices, (2, 2, 1, 2, 2))
    assert choices.taken == [1, 0, 1, 0]


@given(scripts)
def test_exploration_token_is_parsed_to_the_same_order(script: Script) -> None:
    assert script_of(token_of(script)) == stripped(script)


@pytest.mark.parametrize("token", ["", "4", "4.2-", "a.b", "4.2-3.1", "4.2 5.1", "1.1-1.1"])
def test_invalid_exploration_tokens_are_rejected(token: str) -> None:
    with pytest.raises(UsageError):
        script_of(token)


@given(scripts, st.sets(st.integers(0, 11), min_size=1, max_size=3))
def test_exploration_shrinks_a_failing_order_to_the_choices_that_fail(
    script: Script, needed: set[int]
) -> None:
    padded = (*script, *[0] * 24)[:24]
    failing = [max(choice, 1) if place in needed else choice for place, choice in enumerate(padded)]

    def fails(candidate: Script) -> Sequence[int] | None:
        padded = (*candidate, *[0] * 24)[:24]
        return padded if all(padded[place] for place in needed) else None

    smallest = shrink(failing, fails, most=4000)
    assert smallest == tuple(1 if place in needed else 0 for place in range(max(needed) + 1))


def test_exploration_stops_shrinking_after_its_maximum_number_of_tries() -> None:
    tried: list[Script] = []

    def fails(candidate: Script) -> Sequence[int] | None:
        tried.append(candidate)
        return None

    assert shrink([1, 2, 3, 4] * 20, fails, most=50) == (1, 2, 3, 4) * 20
    assert len(tried) == 50


def test_exploration_choices_of_a_random_order_depend_only_on_the_seed() -> None:
    def drawn(seed: int) -> list[int]:
        swarm = Swarm.drawn(Random(seed), 40)
        return [swarm.choose([Option("task"), Option("time"), Option("crash")]) for _ in range(40)]

    assert [drawn(seed) for seed in range(20)] == [drawn(seed) for seed in range(20)]
    counts = [sum(1 for choice in drawn(seed) if choice) for seed in range(200)]
    assert max(counts) <= 6
    assert len(set(counts)) > 3


def test_exploration_choices_of_a_random_order_take_only_enabled_kinds() -> None:
    swarm = Swarm(Random(0), frozenset({"crashes"}), 1.0, 100)
    assert [swarm.choose([Option("task"), Option("time")]) for _ in range(10)] == [0] * 10
    assert swarm.choose([Option("task"), Option("time"), Option("crash")]) == 2
    assert len(SORTS) == 6


@pytest.mark.parametrize(
    ("ns", "clock", "duration"),
    [
        (0, "0:00:00", "0 s"),
        (1_500_000_000, "0:00:01.500", "1.5 s"),
        (90 * 10**9, "0:01:30", "90 s"),
        (3600 * 10**9, "1:00:00", "1 hour"),
        (3 * 86_400 * 10**9 + 10**9, "3d 0:00:01", "259201 s"),
        (7 * 86_400 * 10**9, "7d 0:00:00", "7 days"),
    ],
)
def test_exploration_story_formats_times_and_durations(ns: int, clock: str, duration: str) -> None:
    assert (clock_text(ns), duration_text(ns)) == (clock, duration)
