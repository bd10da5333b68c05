"""Measured values, medians of interleaved rounds, and the printed table."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Row:
    """One measured value: a row of the table."""

    part: str
    case: str
    subject: str
    value: float
    unit: str


class NotHere(Exception):
    """A subject is not available on this machine, with the reason. It is reported and skipped."""


class TooSlow(NotHere):
    """A subject did not finish in time. It is skipped in this case only."""


LEFT_OUT: dict[str, str] = {}
"""Reasons why subjects were skipped, by subject."""


def leave_out(subject: str, reason: object) -> None:
    """Skip a subject from now on, and print the reason once."""
    if subject not in LEFT_OUT:
        LEFT_OUT[subject] = str(reason)
        print(f"  left out: {subject}: {reason}", flush=True)


def in_turn(subjects: Mapping[str, T], number: int) -> list[tuple[str, T]]:
    """Return the subjects in the order of this round: odd rounds are reversed to balance the effects of order."""
    return list(subjects.items())[:: -1 if number % 2 else 1]


def interleave(
    subjects: Mapping[str, Callable[[], Mapping[str, float]]], *, rounds: int, part: str, case: str
) -> list[Row]:
    """Measure the subjects alternately for several rounds, so that noise affects all of them, and return the medians.

    A measurement returns one value per unit, and each unit becomes a row. A subject that raises `NotHere` is skipped.
    """
    values: dict[str, dict[str, list[float]]] = {}
    for number in range(rounds):
        for name, measure in in_turn(subjects, number):
            if name in LEFT_OUT:
                continue
            try:
                measured = measure()
            except TooSlow as error:
                print(f"  left out: {name}, {case}: {error}", flush=True)
                continue
            except NotHere as error:
                leave_out(name, error)
                continue
            for unit, value in measured.items():
                values.setdefault(unit, {}).setdefault(name, []).append(value)
    return [
        Row(part, case, name, statistics.median(samples), unit)
        for unit, samples_by_name in values.items()
        for name, samples in samples_by_name.items()
    ]


def more_is_better(unit: str) -> bool:
    """Whether larger values of this unit are better: true for rates, false for times and sizes."""
    return unit.endswith("/s") or unit == "answered"


def better(base: Row, row: Row) -> float:
    """Return the improvement of the second row over the first as a ratio; above 1 is better."""
    return row.value / base.value if more_is_better(row.unit) else base.value / row.value


def table(rows: list[Row]) -> str:
    """Return the rows as text. Ratios relate to the first subject of a case: 2.0x is half its time or twice its rate."""
    lines = [f"{'part':10} {'case':20} {'subject':24} {'value':>10} {'unit':14} {'ratio':>7}"]
    first: dict[tuple[str, str, str], Row] = {}
    for row in rows:
        base = first.setdefault((row.part, row.case, row.unit), row)
        ratio = f"{better(base, row):6.2f}x" if row.value > 0 and base.value > 0 else "-"
        lines.append(
            f"{row.part:10} {row.case:20} {row.subject:24} {row.value:10.1f} {row.unit:14} {ratio:>7}"
        )
    return "\n".join(lines)
