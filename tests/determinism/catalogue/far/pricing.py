"""Prices, with a surcharge that looks harmless from here."""

from __future__ import annotations

from .moments import surcharge as extra


def price(cents: int) -> int:
    return cents + extra()
