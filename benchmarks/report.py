"""Measured values as data, medians of interleaved rounds, and the table that is printed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One line of the table: what was measured, of whom, and how much."""

    part: str
    case: str
    subject: str
    value: float
    unit: str


def interleave(
    subjects: Mapping[str, Callable[[], Mapping[str, float]]], *, rounds: int, part: str, case: str
) -> list[Row]:
    """Measure the subjects in turn, several rounds, so that a noisy moment hits all; the median of each.

    A measurement gives one value for each of its units; each unit becomes a case of its own.
    """
    values: dict[str, dict[str, list[float]]] = {}
    for _ in range(rounds):
        for name, measure in subjects.items():
            for unit, value in measure().items():
                values.setdefault(unit, {}).setdefault(name, []).append(value)
    return [
        Row(part, case, name, statistics.median(found), unit)
        for unit, by_name in values.items()
        for name, found in by_name.items()
    ]


def table(rows: list[Row]) -> str:
    """The rows as text; ratios are to the first subject of a case: 2.0x means half of its time or memory."""
    lines = [f"{'part':10} {'case':20} {'subject':24} {'value':>10} {'unit':14} {'ratio':>7}"]
    first: dict[tuple[str, str, str], Row] = {}
    for row in rows:
        base = first.setdefault((row.part, row.case, row.unit), row)
        ratio = f"{base.value / row.value:6.2f}x" if row.value > 0 else "-"
        lines.append(
            f"{row.part:10} {row.case:20} {row.subject:24} {row.value:10.1f} {row.unit:14} {ratio:>7}"
        )
    return "\n".join(lines)
