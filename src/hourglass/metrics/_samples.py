"""Metrics as data, i.e. the content of a registry at one time, and as text for Prometheus.

Pure: frozen data that knows neither threads nor formats, and a writer of the exposition format 0.0.4.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
"""The kind of a metric: a counter only increases, a gauge keeps its last value, and a histogram counts values by size."""

Value: TypeAlias = str | int | float | bool
Attributes: TypeAlias = Mapping[str, Value]
"""The attributes that distinguish the series of a metric. There should be few names, with few values each."""

Labels: TypeAlias = tuple[tuple[str, str], ...]
"""Attributes as strings in a fixed order: the key of a series."""

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Bucket bounds for durations, from a millisecond to five minutes."""


@dataclass(frozen=True)
class Buckets:
    """The counts of a histogram. `counts[i]` is the number of values above `bounds[i - 1]` and at most `bounds[i]`. The last
    count is for values above all bounds.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        """The number of recorded values."""
        return sum(self.counts)


@dataclass(frozen=True)
class Sample:
    """One series of a metric, and its current value."""

    labels: Labels
    value: float | Buckets


@dataclass(frozen=True)
class Family:
    """A metric: its name, kind and description, and all its series."""

    name: str
    kind: Kind
    description: str = ""
    unit: str = ""
    samples: tuple[Sample, ...] = ()


def labels_of(attributes: Attributes) -> Labels:
    """Return attributes as the key of a series."""
    return tuple(sorted((name, _text(value)) for name, value in attributes.items()))


def merged(families: Iterable[Family]) -> list[Family]:
    """Return one family for each name, with one sample for each series. Of several samples of a series, the last is used."""
    merged_by_name: dict[str, Family] = {}
    for family in families:
        former = merged_by_name.get(family.name)
        if former is None:
            merged_by_name[family.name] = family
            continue
        samples = {sample.labels: sample for sample in (*former.samples, *family.samples)}
        merged_by_name[family.name] = Family(
            family.name, former.kind, former.description, former.unit, tuple(samples.values())
        )
    return [merged_by_name[name] for name in sorted(merged_by_name)]


def _text(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else str(value)


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_:]")
_NOT_IN_LABELS = re.compile(r"[^a-zA-Z0-9_]")


def prometheus_text(families: Iterable[Family]) -> str:
    """Return the content of `/metrics`. Names are adapted to Prometheus: dots become underscores, and counters end in
    `_total`.
    """
    return "".join(f"{line}\n" for family in families for line in _lines(family))


def _lines(family: Family) -> Iterator[str]:
    name = _name(family)
    if family.description:
        yield f"# HELP {name} {_escaped(family.description, quotes=False)}"
    yield f"# TYPE {name} {family.kind}"
    for sample in family.samples:
        if isinstance(sample.value, Buckets):
            yield from _buckets(name, sample.labels, sample.value)
        else:
            yield f"{name}{_labels(sample.labels)} {_number(sample.value)}"


def _buckets(name: str, labels: Labels, buckets: Buckets) -> Iterator[str]:
    below = 0
    for bound, count in zip((*buckets.bounds, float("inf")), buckets.counts, strict=True):
        below += count
        yield f"{name}_bucket{_labels((*labels, ('le', _number(bound))))} {below}"
    yield f"{name}_sum{_labels(labels)} {_number(buckets.total)}"
    yield f"{name}_count{_labels(labels)} {below}"


def _name(family: Family) -> str:
    name = _NOT_IN_NAMES.sub("_", family.name)
    if name[0].isdigit():
        name = f"_{name}"
    return f"{name}_total" if family.kind == "counter" and not name.endswith("_total") else name


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{_label(name)}="{_escaped(value)}"' for name, value in labels) + "}"


def _label(name: str) -> str:
    fit = _NOT_IN_LABELS.sub("_", name) or "_"
    return f"_{fit}" if fit[0].isdigit() else fit


def _escaped(text: str, *, quotes: bool = True) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))
