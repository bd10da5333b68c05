"""Measured values as data, medians of interleaved rounds, and the table that is printed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Row:
    """One line of the table: what was measured, of whom, and how much."""

    part: str
    case: str
    subject: str
    value: float
    unit: str


class NotHere(Exception):
    """A subject cannot be measured here, and why: it is said, and left out."""


class TooSlow(NotHere):
    """A subject did not come to an end in time: it is left out of this case only."""


LEFT_OUT: dict[str, str] = {}
"""The subjects that could not be measured, and why."""


def leave_out(subject: str, why: object) -> None:
    """Say once that a subject cannot be measured."""
    if subject not in LEFT_OUT:
        LEFT_OUT[subject] = str(why)
        print(f"  left out: {subject}: {why}", flush=True)


def in_turn(subjects: Mapping[str, T], number: int) -> list[tuple[str, T]]:
    """The subjects in the order of this round: every other one goes backwards, so that none always comes after the same one."""
    return list(subjects.items())[:: -1 if number % 2 else 1]


def interleave(
    subjects: Mapping[str, Callable[[], Mapping[str, float]]], *, rounds: int, part: str, case: str
) -> list[Row]:
    """Measure the subjects in turn, several rounds, so that a noisy moment hits all; the median of each.

    A measurement gives one value for each of its units; each unit becomes a case of its own. One that raises `NotHere` is left
    out, and the others are measured all the same.
    """
    values: dict[str, dict[str, list[float]]] = {}
    for number in range(rounds):
        for name, measure in in_turn(subjects, number):
            if name in LEFT_OUT:
                continue
            try:
                found = measure()
            except TooSlow as why:
                print(f"  left out: {name}, {case}: {why}", flush=True)
                continue
            except NotHere as why:
                leave_out(name, why)
                continue
            for unit, value in found.items():
                values.setdefault(unit, {}).setdefault(name, []).append(value)
    return [
        Row(part, case, name, statistics.median(found), unit)
        for unit, by_name in values.items()
        for name, found in by_name.items()
    ]


def more_is_better(unit: str) -> bool:
    """Whether a larger value of this unit is the better one: rates are, times and sizes are not."""
    return unit.endswith("/s") or unit == "answered"


def better(base: Row, row: Row) -> float:
    """How many times better the second is than the first."""
    return row.value / base.value if more_is_better(row.unit) else base.value / row.value


def table(rows: list[Row]) -> str:
    """The rows as text; ratios are to the first subject of a case: 2.0x means half of its time or memory, or twice its rate."""
    lines = [f"{'part':10} {'case':20} {'subject':24} {'value':>10} {'unit':14} {'ratio':>7}"]
    first: dict[tuple[str, str, str], Row] = {}
    for row in rows:
        base = first.setdefault((row.part, row.case, row.unit), row)
        ratio = f"{better(base, row):6.2f}x" if row.value > 0 and base.value > 0 else "-"
        lines.append(
            f"{row.part:10} {row.case:20} {row.subject:24} {row.value:10.1f} {row.unit:14} {ratio:>7}"
        )
    return "\n".join(lines)
