"""What is seen of a span in a row of columns: each column shows one phase, so that nothing can overlap or leave the picture.

A column is a character in a terminal and a pixel elsewhere. Where several phases meet in one column, the more telling one wins.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hourglass._story.axis import Scale
from hourglass._story.spans import Phase, Segment

_WEIGHT = {phase: weight for weight, phase in enumerate(Phase, 1)}


@dataclass(frozen=True, slots=True)
class Stretch:
    """Columns from `left` up to, not including, `right`."""

    left: int
    right: int
    phase: Phase


def stretches(segments: Iterable[Segment], scale: Scale, columns: int, least: int = 1) -> tuple[Stretch, ...]:
    """The segments in columns; each is `least` wide where there is room."""
    row = bytearray(columns)
    for segment in segments:
        left = min(int(scale.at(segment.start) + 1e-6), columns - 1)
        right = max(int(scale.at(segment.end) + 0.999), left + _least(segment.phase, least))
        if right > columns:
            left, right = max(0, min(left, columns - _least(segment.phase, least))), columns
        weight = _WEIGHT[segment.phase]
        for column in range(left, right):
            if row[column] < weight:
                row[column] = weight
    return tuple(_runs(row))


def _least(phase: Phase, least: int) -> int:
    return least if phase in (Phase.RUNNING, Phase.FAILED, Phase.POINT) else 1


def _runs(row: bytearray) -> Iterable[Stretch]:
    phases = tuple(Phase)
    left = 0
    for column in range(1, len(row) + 1):
        if column == len(row) or row[column] != row[left]:
            if row[left]:
                yield Stretch(left, column, phases[row[left] - 1])
            left = column
