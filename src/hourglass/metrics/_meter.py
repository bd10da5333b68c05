"""A meter: makes counters, gauges and histograms that carry the attributes of the activity or workflow that records.

Must not know where it is used: in a workflow it is given a question, `silent`, that it asks before each record.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TypeVar

from hourglass.errors import UsageError
from hourglass.metrics._registry import Metric, Registry
from hourglass.metrics._samples import Attributes, Kind, Value, labels_of

I = TypeVar("I", bound="_Instrument")  # noqa: E741


def _never() -> bool:
    return False


class _Instrument:
    """A metric, with the attributes that go with each record."""

    def __init__(self, metric: Metric, attributes: Mapping[str, Value], silent: Callable[[], bool]) -> None:
        self._metric = metric
        self._attributes = attributes
        self._silent = silent
        self._labels = labels_of(attributes)

    @property
    def name(self) -> str:
        """The metric's name."""
        return self._metric.name

    @property
    def description(self) -> str:
        """What it says."""
        return self._metric.description

    @property
    def unit(self) -> str:
        """What it is measured in."""
        return self._metric.unit

    def with_additional_attributes(self: I, attributes: Attributes) -> I:
        """The same metric, recorded with more attributes."""
        return type(self)(self._metric, {**self._attributes, **attributes}, self._silent)

    def _record(self, value: float, attributes: Attributes | None) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise UsageError(f"metric {self.name} takes a finite number, not {value!r}")
        if not self._silent():
            labels = labels_of({**self._attributes, **attributes}) if attributes else self._labels
            self._metric.record(value, labels)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


class MetricCounter(_Instrument):
    """Something that is counted and never gets less."""

    def add(self, value: float, additional_attributes: Attributes | None = None) -> None:
        """Count so many more."""
        self._record(value, additional_attributes)


class MetricGauge(_Instrument):
    """Something that goes up and down: what was set last counts."""

    def set(self, value: float, additional_attributes: Attributes | None = None) -> None:
        """It stands here now."""
        self._record(value, additional_attributes)


class MetricHistogram(_Instrument):
    """Something whose sizes matter: how many were small, how many large."""

    def record(self, value: float | timedelta, additional_attributes: Attributes | None = None) -> None:
        """One more of this size; a `timedelta` counts in seconds."""
        number = value.total_seconds() if isinstance(value, timedelta) else value
        self._record(number, additional_attributes)


class MetricMeter:
    """Makes metrics. Got by `workflow.metric_meter()`, `activity.metric_meter()`, or made on a registry of your own."""

    def __init__(
        self,
        registry: Registry,
        attributes: Attributes | None = None,
        *,
        silent: Callable[[], bool] = _never,
    ) -> None:
        """`silent` is asked before each record: True, and nothing is recorded."""
        self._registry = registry
        self._attributes: dict[str, Value] = dict(attributes or {})
        self._silent = silent

    def create_counter(
        self, name: str, description: str | None = None, unit: str | None = None
    ) -> MetricCounter:
        """A counter; the same one where the name is known already."""
        return MetricCounter(self._metric(name, "counter", description, unit), self._attributes, self._silent)

    def create_gauge(self, name: str, description: str | None = None, unit: str | None = None) -> MetricGauge:
        """A gauge; the same one where the name is known already."""
        return MetricGauge(self._metric(name, "gauge", description, unit), self._attributes, self._silent)

    def create_histogram(
        self,
        name: str,
        description: str | None = None,
        unit: str | None = None,
        *,
        buckets: Sequence[float] | None = None,
    ) -> MetricHistogram:
        """A histogram; the same one where the name is known already. `buckets` are its bounds: seconds by default."""
        metric = self._metric(name, "histogram", description, unit, buckets)
        return MetricHistogram(metric, self._attributes, self._silent)

    def with_additional_attributes(self, additional_attributes: Attributes) -> MetricMeter:
        """A meter whose metrics carry more attributes."""
        return MetricMeter(self._registry, {**self._attributes, **additional_attributes}, silent=self._silent)

    def _metric(
        self,
        name: str,
        kind: Kind,
        description: str | None,
        unit: str | None,
        buckets: Sequence[float] | None = None,
    ) -> Metric:
        return self._registry.metric(name, kind, description or "", unit or "", buckets)
