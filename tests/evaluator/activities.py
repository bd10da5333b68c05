"""Activities that workflows of the tests schedule. Their code is never executed."""

from __future__ import annotations

from typing import Any

from hourglass import activity


@activity.defn
def work(name: str) -> Any: ...


@activity.defn
def charge(order: str, cents: int = 1) -> str:
    return f"{order}:{cents}"


@activity.defn
def refund(order: str) -> str:
    return order


@activity.defn
def listing(name: str) -> list[int]:
    return []
