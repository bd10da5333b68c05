"""The coverage of an exploration: counts of orders, choice points and states, and the progress line."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from time import monotonic


@dataclass(frozen=True)
class Exploration:
    """The coverage of an exploration: the numbers of different orders, choice points, and states of the workflow.

    `is_complete`: every possible order was tried. `deviations`: every order with fewer deviations than this was tried.
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
    """The coverage of a running exploration. Writes a progress line every second if standard error is a terminal."""

    workflow: str
    seed: int
    orders: set[tuple[int, ...]] = field(default_factory=set)
    points: set[int] = field(default_factory=set)
    states: set[int] = field(default_factory=set)
    _shown_at: float = 0.0

    def __post_init__(self) -> None:
        self._shown_at = monotonic()

    def add(self, order: tuple[int, ...], points: set[int], states: set[int]) -> None:
        """Add an order that was run."""
        self.orders.add(order)
        self.points |= points
        self.states |= states
        if monotonic() - self._shown_at >= 1 and sys.stderr.isatty():
            self._shown_at = monotonic()
            sys.stderr.write(f"exploring {self.exploration()}\n")

    def exploration(self, is_complete: bool = False, deviations: int = 0) -> Exploration:
        """Return the coverage so far."""
        return Exploration(
            workflow=self.workflow,
            orders=len(self.orders),
            choice_points=len(self.points),
            states=len(self.states),
            is_complete=is_complete,
            deviations=deviations,
            seed=self.seed,
        )
