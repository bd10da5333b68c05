"""The pure decisions about the turns of a throttle, with random requests."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from hourglass._contract.limits import (
    Rate,
    SlotClaim,
    TurnBook,
    TurnRequest,
    Turns,
    is_forgettable,
    next_turn,
)

GAPS = st.lists(st.integers(0, 300), min_size=1, max_size=60)


def request_turns(gaps: list[int], rate: Rate) -> list[tuple[int, int]]:
    """Request a turn after each gap; return the times of the requests and of the turns."""
    turns, now, granted = Turns(), 1_000, []
    for number, gap in enumerate(gaps):
        now += gap
        turns, at = next_turn(turns, f"ticket-{number}", rate, now, None)
        assert at is not None
        granted.append((now, at))
    return granted


@given(GAPS, st.integers(1, 6), st.integers(1, 500), st.booleans())
def test_throttle_turns_respect_the_rate(gaps: list[int], limit: int, period: int, smooth: bool) -> None:
    """Any `limit` + 1 consecutive turns span at least a period, and no turn precedes its request."""
    granted = request_turns(gaps, Rate(limit, period, smooth))
    at = [turn for _, turn in granted]
    assert all(turn >= requested for requested, turn in granted)
    assert at == sorted(at)
    assert all(later - sooner >= period for sooner, later in zip(at, at[limit:], strict=False))


@given(GAPS, st.integers(1, 6), st.integers(1, 500))
def test_throttle_turns_are_as_early_as_order_and_rate_allow(
    gaps: list[int], limit: int, period: int
) -> None:
    granted = request_turns(gaps, Rate(limit, period))
    at = [turn for _, turn in granted]
    for number, (requested, turn) in enumerate(granted):
        earliest = [requested, *at[max(0, number - 1) : number]]
        if number >= limit:
            earliest.append(at[number - limit] + period)
        assert turn == max(earliest)


def test_smooth_throttle_rounds_the_distance_of_turns_up() -> None:
    assert [at for _, at in request_turns([0] * 4, Rate(10, 1000, smooth=True))] == [1000, 1100, 1200, 1300]
    assert [at for _, at in request_turns([0] * 4, Rate(3, 100, smooth=True))] == [1000, 1034, 1068, 1102]


def test_repeated_throttle_request_returns_the_same_turn() -> None:
    turns, first = next_turn(Turns(), "a", Rate(1, 100), 1000, None)
    same, again = next_turn(turns, "a", Rate(1, 100), 1050, None)
    assert (first, again, same) == (1000, 1000, turns)


def test_throttle_turn_after_the_deadline_is_left_for_other_requests() -> None:
    turns, _ = next_turn(Turns(), "a", Rate(1, 100), 1000, None)
    same, none = next_turn(turns, "b", Rate(1, 100), 1000, 1099)
    assert none is None
    assert same == turns
    assert next_turn(turns, "c", Rate(1, 100), 1000, 1100)[1] == 1100


def test_last_turn_of_a_throttle_is_kept_for_one_period() -> None:
    turns, _ = next_turn(Turns(), "a", Rate(1, 100), 1000, None)
    assert is_forgettable(Turns(), 100, 0)
    assert not is_forgettable(turns, 100, 1099)
    assert is_forgettable(turns, 100, 1100)


@given(st.lists(st.integers(0, 3_000_000), max_size=12), st.integers(1, 4), st.booleans(), st.booleans())
def test_throttle_turns_granted_by_a_fast_clock_are_corrected_after_it_is_set_back(
    gaps: list[int], limit: int, smooth: bool, reload: bool
) -> None:
    """The next turn is as near as it was by the fast clock, also in a process that has only read the turns from disk."""
    book, rate, now = TurnBook(), Rate(limit, 10_000_000, smooth), 10**15
    for number, gap in enumerate([0, *gaps]):
        now += gap
        book.open.append(TurnRequest(SlotClaim(f"t{number}", "w", "r", "pool"), rate, None, 1))
        book.serve(now)
    expected = _next(TurnBook(book.throttle), rate, now) - now
    if reload:
        book = TurnBook(msgspec.json.decode(msgspec.json.encode(book.throttle), type=type(book.throttle)))
    corrected_now = now - 3 * 3600 * 1_000_000
    assert _next(book, rate, corrected_now) - corrected_now == expected


def _next(book: TurnBook, rate: Rate, now: int) -> int:
    book.open.append(TurnRequest(SlotClaim("next", "w", "r", "pool"), rate, None, 1))
    (answer,) = book.serve(now)
    (moment,) = answer.answers.numbers
    assert moment is not None
    return moment
