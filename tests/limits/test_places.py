"""The decisions about slots: pure, so tried with whatever order of events can come."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hourglass._contract.limits import SlotBook, SlotClaim, Slots, SlotTable

OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(0, 12), st.integers(1, 4)),
        st.tuples(st.just("give back"), st.integers(0, 12), st.just(0)),
    ),
    max_size=60,
)


def place(number: int) -> SlotClaim:
    """The place of somebody."""
    return SlotClaim(f"ticket-{number}", f"workflow-{number}", "run", f"pool-{number}")


@given(OPERATIONS, st.integers(1, 4))
def test_slots_never_exceed_the_limit(operations: list[tuple[str, int, int]], limit: int) -> None:
    """Whatever is requested and returned, twice or out of order, at most `limit` hold a slot, and none is idle."""
    places = SlotBook(Slots(SlotTable(limit)))
    for kind, number, _ in operations:
        if kind == "ask":
            places.want(place(number), limit)
        else:
            places.give_back({f"ticket-{number}"})
        places.grant()
        assert len(places.held) <= limit
        assert not (places.waiting and len(places.held) < limit)
        tickets = [each.ticket for each in (*places.held.values(), *places.waiting.values())]
        assert len(tickets) == len(set(tickets))


@given(OPERATIONS)
def test_lowered_limit_removes_no_holder(
    operations: list[tuple[str, int, int]],
) -> None:
    """A slot is granted only if the present limit allows one more."""
    places = SlotBook()
    for kind, number, limit in operations:
        if kind == "ask":
            places.want(place(number), limit)
        else:
            places.give_back({f"ticket-{number}"})
        before = len(places.held)
        lucky = places.grant()
        assert len(lucky) <= max(0, places.limit - before)


@given(st.lists(st.integers(0, 30), unique=True, max_size=20), st.integers(1, 5))
def test_slots_are_granted_in_order(numbers: list[int], limit: int) -> None:
    """First come, first served."""
    places = SlotBook(Slots(SlotTable(limit)))
    for number in numbers:
        places.want(place(number), limit)
    order: list[SlotClaim] = []
    while True:
        lucky = places.grant()
        if not lucky:
            break
        order += lucky
        places.give_back({each.ticket for each in lucky})
    assert order == [place(number) for number in numbers]
    assert places.is_idle
