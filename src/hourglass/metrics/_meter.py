"""A meter: creates counters, gauges and histograms that carry the attributes of the current activity or
workflow.

Must not know: activities, workflows. In a workflow, the meter receives a function `silent` that it calls before each record.
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
    """A metric together with attributes that are added to each record."""

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
        """The metric's description."""
        return self._metric.description

    @property
    def unit(self) -> str:
        """The metric's unit."""
        return self._metric.unit

    def with_additional_attributes(self: I, attributes: Attributes) -> I:
        """Return the same metric with additional attributes on each record."""
        return type(self)(self._metric, {**self._attributes, **attributes}, self._silent)

    def _record(self, value: float, attributes: Attributes | None) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise UsageError(f"the value of metric {self.name} must be a finite number, not {value!r}")
        if not self._silent():
            labels = labels_of({**self._attributes, **attributes}) if attributes else self._labels
            self._metric.record(value, labels)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


class MetricCounter(_Instrument):
    """A value that only increases."""

    def add(self, value: float, additional_attributes: Attributes | None = None) -> None:
        """Add a value to the counter."""
        self._record(value, additional_attributes)


class MetricGauge(_Instrument):
    """A value that can increase and decrease; the value that was set last counts."""

    def set(self, value: float, additional_attributes: Attributes | None = None) -> None:
        """Set the value."""
        self._record(value, additional_attributes)


class MetricHistogram(_Instrument):
    """A distribution of values."""

    def record(self, value: float | timedelta, additional_attributes: Attributes | None = None) -> None:
        """Record a value. A `timedelta` is converted to seconds."""
        number = value.total_seconds() if isinstance(value, timedelta) else value
        self._record(number, additional_attributes)


class MetricMeter:
    """Creates metrics. Obtain a meter from `workflow.metric_meter()` or `activity.metric_meter()`, or create one for your
    own registry.
    """

    def __init__(
        self,
        registry: Registry,
        attributes: Attributes | None = None,
        *,
        silent: Callable[[], bool] = _never,
    ) -> None:
        """Create a meter. `silent` is called before each record; the record is dropped if it returns True."""
        self._registry = registry
        self._attributes: dict[str, Value] = dict(attributes or {})
        self._silent = silent

    def create_counter(
        self, name: str, description: str | None = None, unit: str | None = None
    ) -> MetricCounter:
        """Return the counter with this name. Create it on first use."""
        return MetricCounter(self._metric(name, "counter", description, unit), self._attributes, self._silent)

    def create_gauge(self, name: str, description: str | None = None, unit: str | None = None) -> MetricGauge:
        """Return the gauge with this name. Create it on first use."""
        return MetricGauge(self._metric(name, "gauge", description, unit), self._attributes, self._silent)

    def create_histogram(
        self,
        name: str,
        description: str | None = None,
        unit: str | None = None,
        *,
        buckets: Sequence[float] | None = None,
    ) -> MetricHistogram:
        """Return the histogram with this name. Create it on first use. `buckets` are its bounds; the defaults suit durations
        in seconds.
        """
        metric = self._metric(name, "histogram", description, unit, buckets)
        return MetricHistogram(metric, self._attributes, self._silent)

    def with_additional_attributes(self, additional_attributes: Attributes) -> MetricMeter:
        """Return a meter that adds these attributes to its metrics."""
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
