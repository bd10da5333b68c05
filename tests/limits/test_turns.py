"""The decisions about turns: pure, so tried with whatever comes."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from hourglass._contract.limits import (
    Rate,
    SlotClaim,
    TurnAsk,
    TurnBook,
    Turns,
    is_forgettable,
    next_turn,
)

GAPS = st.lists(st.integers(0, 300), min_size=1, max_size=60)


def take(gaps: list[int], rate: Rate) -> list[tuple[int, int]]:
    """Ask after each gap; when each asked, and when its turn is."""
    turns, now, found = Turns(), 1_000, []
    for number, gap in enumerate(gaps):
        now += gap
        turns, at = next_turn(turns, f"ticket-{number}", rate, now, None)
        assert at is not None
        found.append((now, at))
    return found


@given(GAPS, st.integers(1, 6), st.integers(1, 500), st.booleans())
def test_turns_respect_the_rate(gaps: list[int], limit: int, period: int, smooth: bool) -> None:
    """Of any `limit` + 1 turns in a row the last is a whole period after the first, and none is before its request."""
    found = take(gaps, Rate(limit, period, smooth))
    at = [turn for _, turn in found]
    assert all(turn >= asked for asked, turn in found)
    assert at == sorted(at)
    assert all(later - sooner >= period for sooner, later in zip(at, at[limit:], strict=False))


@given(GAPS, st.integers(1, 6), st.integers(1, 500))
def test_turns_are_as_early_as_possible(gaps: list[int], limit: int, period: int) -> None:
    """A turn is delayed only as far as the order or the limit demands."""
    found = take(gaps, Rate(limit, period))
    at = [turn for _, turn in found]
    for number, (asked, turn) in enumerate(found):
        needed = [asked, *at[max(0, number - 1) : number]]
        if number >= limit:
            needed.append(at[number - limit] + period)
        assert turn == max(needed)


def test_smooth_turns_are_spread_evenly() -> None:
    """Ten a second are a tenth of a second apart, and a period that does not divide is rounded up, never down."""
    assert [at for _, at in take([0] * 4, Rate(10, 1000, smooth=True))] == [1000, 1100, 1200, 1300]
    assert [at for _, at in take([0] * 4, Rate(3, 100, smooth=True))] == [1000, 1034, 1068, 1102]


def test_repeated_request_returns_the_same_turn() -> None:
    """A repeated request uses up nothing."""
    turns, first = next_turn(Turns(), "a", Rate(1, 100), 1000, None)
    same, again = next_turn(turns, "a", Rate(1, 100), 1050, None)
    assert (first, again, same) == (1000, 1000, turns)


def test_late_turn_is_not_granted() -> None:
    """The caller gets none, and the turn is still available for others."""
    turns, _ = next_turn(Turns(), "a", Rate(1, 100), 1000, None)
    same, none = next_turn(turns, "b", Rate(1, 100), 1000, 1099)
    assert none is None
    assert same == turns
    assert next_turn(turns, "c", Rate(1, 100), 1000, 1100)[1] == 1100


def test_past_turns_count_for_one_period() -> None:
    """Before the last turn is a period old it still counts."""
    turns, _ = next_turn(Turns(), "a", Rate(1, 100), 1000, None)
    assert is_forgettable(Turns(), 100, 0)
    assert not is_forgettable(turns, 100, 1099)
    assert is_forgettable(turns, 100, 1100)


@given(st.lists(st.integers(0, 3_000_000), max_size=12), st.integers(1, 4), st.booleans(), st.booleans())
def test_turns_are_corrected_after_the_clock_was_wrong(
    gaps: list[int], limit: int, smooth: bool, stored: bool
) -> None:
    """Whatever was given while the clock was ahead: set right, the next turn is as near as it would have been by that clock,
    also where a process that never saw the wrong clock has read it from the disk.
    """
    book, rate, now = TurnBook(), Rate(limit, 10_000_000, smooth), 10**15
    for number, gap in enumerate([0, *gaps]):
        now += gap
        book.open.append(TurnAsk(SlotClaim(f"t{number}", "w", "r", "pool"), rate, None, 1))
        book.serve(now)
    would_be = _next(TurnBook(book.throttle), rate, now) - now
    if stored:
        book = TurnBook(msgspec.json.decode(msgspec.json.encode(book.throttle), type=type(book.throttle)))
    back = now - 3 * 3600 * 1_000_000
    assert _next(book, rate, back) - back == would_be


def _next(book: TurnBook, rate: Rate, now: int) -> int:
    book.open.append(TurnAsk(SlotClaim("next", "w", "r", "pool"), rate, None, 1))
    (answer,) = book.serve(now)
    (moment,) = answer.answers.numbers
    assert moment is not None
    return moment
