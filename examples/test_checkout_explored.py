"""Exploration test of `checkout.py` with unusual orders of events: run it with pytest.

The activities are faked by a small shop that records their effects. The exploration injects failures, timeouts and lost results,
sends the approval early, late or never, and kills the worker in between.
"""

from __future__ import annotations

from checkout import Order, Receipt, approvals, ask_for_approval, charge, checkout, reserve, ship

from hourglass.errors import ActivityError
from hourglass.testing import Environment, sometime

ORDER = Order(id="o-1", items=["lamp", "chair"], cents=12_900)


class Shop:
    """Recorded effects of the activities."""

    def __init__(self) -> None:
        self.reserved: set[str] = set()
        self.charged: dict[str, int] = {}
        self.shipped: list[str] = []

    def reserve(self, item: str) -> str:
        self.reserved.add(item)
        return f"reserved-{item}"

    def charge(self, order_id: str, cents: int) -> str:
        self.charged[order_id] = cents  # idempotent: keyed by the order id
        return f"charge-{order_id}"

    def ship(self, item: str) -> str:
        assert item in self.reserved, f"{item} is shipped, and not reserved"
        self.shipped.append(item)
        return f"parcel-{item}"


def test_checkout_in_any_order() -> None:
    """Nothing is shipped unless reserved and paid; an order with a receipt is complete."""
    shop = Shop()

    def prepare(env: Environment) -> None:
        nonlocal shop
        shop = Shop()
        env.fake(reserve, shop.reserve)
        env.fake(charge, shop.charge)
        env.fake(ship, shop.ship)
        env.fake(ask_for_approval)

    def invariant(env: Environment) -> None:
        assert not shop.shipped or shop.charged == {"o-1": 12_900}, "shipped, and not paid"

    def check(result: object, env: Environment) -> None:
        if isinstance(result, Receipt):
            assert result.approved_by == "Ann"
            assert set(shop.shipped) == set(ORDER.items)

    with Environment() as env:
        report = env.explore(
            checkout,
            ORDER,
            runs=150,
            arrivals=[sometime().signal(approvals, "Ann")],
            prepare=prepare,
            invariant=invariant,
            check=check,
            # An activity may run out of attempts, and the approval may time out after three days.
            allowed=[ActivityError, TimeoutError],
        )
    assert report.orders > 100
