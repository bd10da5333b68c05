"""A registry: every metric of a process, or of one worker, and the sinks that receive each record.

Must not know: workflows, workers, formats. Any thread may record and collect. Invariants:

- A name identifies one metric, and the metric's kind never changes.
- Memory is bounded: a metric has a maximum number of series. Further series are dropped, with a single warning.
- A sink that raises an exception is logged once and never called again. The recording code is not affected.
"""

from __future__ import annotations

import logging
import math
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence, Sized
from functools import partial
from typing import Protocol

from hourglass.errors import UsageError
from hourglass.metrics._samples import SECONDS, Buckets, Family, Kind, Labels, Sample, merged

logger = logging.getLogger("hourglass.metrics")

Source = Callable[[], Iterable[Family]]


class Sink(Protocol):
    """A receiver of every record, for example the bridge to OpenTelemetry. Called in the recording thread."""

    def recorded(self, metric: Metric, value: float, labels: Labels) -> None:
        """Receive a value that was added to a counter, set on a gauge, or recorded in a histogram."""
        ...


class _Histogram:
    """The bucket counts and the total of one series."""

    __slots__ = ("counts", "total")

    def __init__(self, size: int) -> None:
        self.counts = [0] * size
        self.total = 0.0


class Metric:
    """A metric of a registry. Create it with `Registry.metric`."""

    def __init__(
        self,
        registry: Registry,
        name: str,
        kind: Kind,
        description: str,
        unit: str,
        bounds: tuple[float, ...],
    ) -> None:
        self.name = name
        self.kind: Kind = kind
        self.description = description
        self.unit = unit
        self.bounds = bounds
        self._pending: dict[Labels, list[float]] = {}
        self._registry = registry
        self._lock = threading.Lock()
        self._values: dict[Labels, float] = {}
        self._histograms: dict[Labels, _Histogram] = {}
        self._is_full = False

    def record(self, value: float, labels: Labels = ()) -> None:
        """Add the value to a counter, set a gauge to it, or record it in a histogram."""
        if self.kind == "counter" and value < 0:
            raise UsageError(
                f"metric {self.name} is a counter and cannot decrease: the added value must not be negative, not {value}"
            )
        with self._lock:
            has_room = self._add(value, labels)
        if has_room and self._registry.sinks:
            self._registry.tell(self, value, labels)

    def pending(self, labels: Labels) -> list[float]:
        """Return the list with the values of a series that `fold` will record.

        This is for code that records thousands of values per second on one thread. Appending a number needs neither a call
        nor an object for the garbage collector. The appending code calls `fold` before the list grows large; `collect` does
        so, too.
        """
        return self._pending.setdefault(labels, [])

    def fold(self) -> None:
        """Record all pending values."""
        recorded: list[tuple[list[float], Labels]] = []
        with self._lock:
            for labels, pending in tuple(self._pending.items()):
                if not pending:
                    continue
                values = pending[:]
                del pending[: len(values)]  # values appended in the meantime stay
                if self._add_all(values, labels):
                    recorded.append((values, labels))
        if self._registry.sinks:
            for values, labels in recorded:
                for value in values:
                    self._registry.tell(self, value, labels)

    def collect(self) -> Family:
        """Return the current values."""
        self.fold()
        with self._lock:
            samples = [Sample(labels, value) for labels, value in self._values.items()]
            samples += [
                Sample(labels, Buckets(self.bounds, tuple(histogram.counts), histogram.total))
                for labels, histogram in self._histograms.items()
            ]
        return Family(self.name, self.kind, self.description, self.unit, tuple(samples))

    def _add(self, value: float, labels: Labels) -> bool:
        """Add a value; call it with the lock held. Return False if there is no room for a new series."""
        if self.kind != "histogram":
            former = self._values.get(labels)
            if former is None and not self._has_room(self._values):
                return False
            self._values[labels] = value + (former or 0) if self.kind == "counter" else value
            return True
        histogram = self._histograms.get(labels)
        if histogram is None:
            if not self._has_room(self._histograms):
                return False
            histogram = self._histograms[labels] = _Histogram(len(self.bounds) + 1)
        histogram.counts[bisect_left(self.bounds, value)] += 1
        histogram.total += value
        return True

    def _add_all(self, values: list[float], labels: Labels) -> bool:
        """Add several values of a series; call it with the lock held. Return False if there is no room for a new series."""
        if self.kind == "counter":
            return self._add(sum(values), labels)
        has_room = self._add(values[0], labels)
        histogram = self._histograms.get(labels)
        if not has_room or histogram is None:  # a gauge keeps the value that was set last
            return self._add(values[-1], labels)
        bounds, counts = self.bounds, histogram.counts
        for value in values[1:]:
            counts[bisect_left(bounds, value)] += 1
        histogram.total += sum(values[1:])
        return True

    def _has_room(self, series: Sized) -> bool:
        if len(series) < self._registry.max_series:
            return True
        if not self._is_full:
            self._is_full = True
            logger.warning(
                "metric %s has reached the maximum of %d series: its attributes have too many different values",
                self.name,
                len(series),
            )
        return False


class Registry:
    """Metrics by name. `collect` also calls the sources, for values that need no recording."""

    def __init__(self, *, max_series: int = 2000) -> None:
        self.max_series = max_series
        self.sinks: tuple[Sink, ...] = ()
        self._sources: dict[object, Source] = {}
        self._metrics: dict[str, Metric] = {}
        self._lock = threading.Lock()

    def metric(
        self,
        name: str,
        kind: Kind,
        description: str = "",
        unit: str = "",
        bounds: Sequence[float] | None = None,
    ) -> Metric:
        """Return the metric with this name. Create it on first use. Raise `UsageError` if the metric exists with another
        kind.
        """
        existing = self._metrics.get(name)
        if existing is None:
            made = Metric(self, _checked(name), kind, description, unit, _bounds(name, bounds))
            with self._lock:
                existing = self._metrics.setdefault(name, made)
        if existing.kind != kind:
            raise UsageError(
                f"metric {name} already exists as a {existing.kind} and cannot be registered as a {kind}"
            )
        return existing

    def collect(self) -> list[Family]:
        """Return the current values of all metrics, by name. Log and omit a source that raises an exception."""
        with self._lock:
            metrics, sources = list(self._metrics.values()), list(self._sources.values())
        families = [metric.collect() for metric in metrics]
        for source in sources:
            try:
                families.extend(source())
            except Exception:
                logger.exception("a source of metrics raised an exception")
        return merged(families)

    def add_source(self, source: Source) -> Callable[[], None]:
        """Call this source in every `collect`. Return a function that removes the source."""
        key = object()
        with self._lock:
            self._sources[key] = source

        def remove() -> None:
            with self._lock:
                self._sources.pop(key, None)

        return remove

    def add_sink(self, sink: Sink) -> Callable[[], None]:
        """Send every record to this sink from now on. Return a function that removes the sink."""
        for registered in list(self._metrics.values()):
            registered.fold()
        with self._lock:
            self.sinks = (*self.sinks, sink)

        return partial(self._remove_sink, sink)

    def _remove_sink(self, sink: Sink) -> None:
        with self._lock:
            self.sinks = tuple(registered for registered in self.sinks if registered is not sink)

    def tell(self, metric: Metric, value: float, labels: Labels) -> None:
        """Send a record to the sinks."""
        for sink in self.sinks:
            try:
                sink.recorded(metric, value, labels)
            except Exception:
                logger.exception("a sink of metrics raised an exception and was removed")
                self._remove_sink(sink)


def _checked(name: str) -> str:
    if not isinstance(name, str) or not name.strip():
        raise UsageError(f"a metric's name must be a non-empty str, not {name!r}")
    return name


def _bounds(name: str, bounds: Sequence[float] | None) -> tuple[float, ...]:
    if bounds is None:
        return SECONDS
    checked = tuple(float(bound) for bound in bounds)
    if (
        not checked
        or any(not math.isfinite(bound) for bound in checked)
        or sorted(set(checked)) != list(checked)
    ):
        raise UsageError(
            f"the buckets of metric {name} must be finite and increasing numbers, not {bounds!r}"
        )
    return checked


default_registry = Registry()
"""The registry of this process. Workers without their own registry use it."""
