"""Families of metrics as the text that Prometheus reads (exposition format 0.0.4). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from hourglass.metrics._samples import Buckets, Family, Labels

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_:]")
_NOT_IN_LABELS = re.compile(r"[^a-zA-Z0-9_]")


def prometheus_text(families: Iterable[Family]) -> str:
    """What `/metrics` answers. Names are made fit: dots become underscores, and counters end in `_total`."""
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
