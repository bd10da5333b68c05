"""Metrics as data: what a registry holds at one moment. Frozen; knows neither threads nor formats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
"""A counter only grows, a gauge stands where it was set, a histogram counts what was recorded by size."""

Value: TypeAlias = str | int | float | bool
Attributes: TypeAlias = Mapping[str, Value]
"""What tells one series of a metric from another: few names, few values each."""

Labels: TypeAlias = tuple[tuple[str, str], ...]
"""Attributes in a fixed order, as texts: the key of a series."""

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Bounds for durations: from a millisecond to five minutes."""


@dataclass(frozen=True)
class Buckets:
    """A histogram's counts: `counts[i]` is how many were at most `bounds[i]` and above the bound before; the last, all above."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        """How many values were recorded."""
        return sum(self.counts)


@dataclass(frozen=True)
class Sample:
    """One series of a metric, and where it stands."""

    labels: Labels
    value: float | Buckets


@dataclass(frozen=True)
class Family:
    """A metric: its name, what it is, and all its series."""

    name: str
    kind: Kind
    description: str = ""
    unit: str = ""
    samples: tuple[Sample, ...] = ()


def labels_of(attributes: Attributes) -> Labels:
    """Attributes as the key of a series."""
    return tuple(sorted((name, _text(value)) for name, value in attributes.items()))


def merged(families: Iterable[Family]) -> list[Family]:
    """One family for each name, one sample for each of its series: of two the later counts."""
    found: dict[str, Family] = {}
    for each in families:
        former = found.get(each.name)
        if former is None:
            found[each.name] = each
            continue
        samples = {sample.labels: sample for sample in (*former.samples, *each.samples)}
        found[each.name] = Family(
            each.name, former.kind, former.description, former.unit, tuple(samples.values())
        )
    return [found[name] for name in sorted(found)]


def _text(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else str(value)
