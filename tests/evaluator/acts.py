"""Activities for the tests; nobody runs them, they are only asked for."""

from __future__ import annotations

from typing import Any

from hourglass import activity


@activity.defn
def work(name: str) -> Any:
    """Some work."""


@activity.defn
def charge(order: str, cents: int = 1) -> str:
    """Charges a card."""
    return f"{order}:{cents}"


@activity.defn
def refund(order: str) -> str:
    """Gives the money back."""
    return order


@activity.defn
def listing(name: str) -> list[int]:
    """Returns a list."""
    return []


class Shop:
    """An activity that is a method."""

    @activity.defn
    def ship(self, item: str) -> str:
        """Ships an item."""
        return item
