"""The pure decisions about slots, with random orders of requests and returns."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hourglass._contract.limits import SlotBook, SlotClaim, Slots, SlotTable

OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("request"), st.integers(0, 12), st.integers(1, 4)),
        st.tuples(st.just("release"), st.integers(0, 12), st.just(0)),
    ),
    max_size=60,
)


def claim(number: int) -> SlotClaim:
    return SlotClaim(f"ticket-{number}", f"workflow-{number}", "run", f"pool-{number}")


@given(OPERATIONS, st.integers(1, 4))
def test_slot_holders_never_exceed_the_limit(operations: list[tuple[str, int, int]], limit: int) -> None:
    """No slot stays free while a request waits. Requests and returns may be repeated or out of order."""
    book = SlotBook(Slots(SlotTable(limit)))
    for kind, number, _ in operations:
        if kind == "request":
            book.want(claim(number), limit)
        else:
            book.give_back({f"ticket-{number}"})
        book.grant()
        assert len(book.held) <= limit
        assert not (book.waiting and len(book.held) < limit)
        tickets = [slot.ticket for slot in (*book.held.values(), *book.waiting.values())]
        assert len(tickets) == len(set(tickets))


@given(OPERATIONS)
def test_lowered_slot_limit_removes_no_holder(
    operations: list[tuple[str, int, int]],
) -> None:
    book = SlotBook()
    for kind, number, limit in operations:
        if kind == "request":
            book.want(claim(number), limit)
        else:
            book.give_back({f"ticket-{number}"})
        before = len(book.held)
        granted = book.grant()
        assert len(granted) <= max(0, book.limit - before)


@given(st.lists(st.integers(0, 30), unique=True, max_size=20), st.integers(1, 5))
def test_slots_are_granted_in_the_order_of_requests(numbers: list[int], limit: int) -> None:
    book = SlotBook(Slots(SlotTable(limit)))
    for number in numbers:
        book.want(claim(number), limit)
    order: list[SlotClaim] = []
    while True:
        granted = book.grant()
        if not granted:
            break
        order += granted
        book.give_back({slot.ticket for slot in granted})
    assert order == [claim(number) for number in numbers]
    assert book.is_idle
