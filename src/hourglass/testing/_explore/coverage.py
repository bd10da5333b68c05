"""The coverage of an exploration: a count of orders, choice points and states, and the progress line."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from time import monotonic


@dataclass(frozen=True)
class Exploration:
    """What was covered: different orders, places where a choice was made, states of the workflow.

    `is_complete`: there is no other order. `deviations`: every order with fewer deviations than this was tried.
    """

    workflow: str
    orders: int
    choice_points: int
    states: int
    is_complete: bool
    deviations: int
    seed: int

    def __str__(self) -> str:
        what = "all of its" if self.is_complete else f"{self.orders:,}"
        count = f"{what} {self.orders:,} orders" if self.is_complete else f"{what} orders"
        return (
            f"{self.workflow}: {count} explored, {self.choice_points:,} choice points, {self.states:,} states "
            f"(seed {self.seed})"
        )


@dataclass
class Coverage:
    """The same while it grows; on a terminal it says so once a second."""

    workflow: str
    seed: int
    orders: set[tuple[int, ...]] = field(default_factory=set)
    points: set[int] = field(default_factory=set)
    states: set[int] = field(default_factory=set)
    _told: float = 0.0

    def __post_init__(self) -> None:
        self._told = monotonic()

    def add(self, order: tuple[int, ...], points: set[int], states: set[int]) -> None:
        """One order more."""
        self.orders.add(order)
        self.points |= points
        self.states |= states
        if monotonic() - self._told >= 1 and sys.stderr.isatty():
            self._told = monotonic()
            sys.stderr.write(f"exploring {self.so_far()}\n")

    def so_far(self, is_complete: bool = False, deviations: int = 0) -> Exploration:
        """What is covered by now."""
        return Exploration(
            workflow=self.workflow,
            orders=len(self.orders),
            choice_points=len(self.points),
            states=len(self.states),
            is_complete=is_complete,
            deviations=deviations,
            seed=self.seed,
        )
