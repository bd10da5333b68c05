"""Registries, meters, and the text format of Prometheus."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest

from hourglass.errors import UsageError
from hourglass.metrics import Buckets, Family, MetricMeter, Registry, Sample, prometheus_text


def value_of(registry: Registry, name: str, **labels: str) -> float | Buckets:
    """Return the value of a series."""
    families = {family.name: family for family in registry.collect()}
    found = {sample.labels: sample.value for sample in families[name].samples}
    return found[tuple(sorted(labels.items()))]


def test_counter_has_a_series_per_set_of_attributes() -> None:
    """Attributes of the call override those of the counter, which override those of the meter."""
    registry = Registry()
    meter = MetricMeter(registry, {"queue": "q", "kind": "outer"})
    counter = meter.create_counter("orders", "Orders.", "1").with_additional_attributes({"kind": "inner"})
    counter.add(2)
    counter.add(3, {"paid": True})
    counter.add(1)
    assert value_of(registry, "orders", kind="inner", queue="q") == 3
    assert value_of(registry, "orders", kind="inner", queue="q", paid="true") == 3
    assert (counter.name, counter.description, counter.unit) == ("orders", "Orders.", "1")


def test_gauge_keeps_its_last_value() -> None:
    registry = Registry()
    gauge = MetricMeter(registry).create_gauge("depth")
    for depth in (3, 7.5, -1):
        gauge.set(depth)
    assert value_of(registry, "depth") == -1


def test_histogram_counts_values_by_bucket_and_timedeltas_in_seconds() -> None:
    registry = Registry()
    sizes = MetricMeter(registry).create_histogram("sizes", buckets=[1, 10])
    for size in (0.5, 1, 2, 10, 11):
        sizes.record(size)
    sizes.record(timedelta(minutes=1))
    assert value_of(registry, "sizes") == Buckets((1.0, 10.0), (2, 2, 2), 84.5)
    found = value_of(registry, "sizes")
    assert isinstance(found, Buckets)
    assert found.count == 6


def test_metric_name_cannot_be_used_for_two_kinds() -> None:
    meter = MetricMeter(Registry())
    meter.create_counter("a").add(1)
    meter.create_counter("a").add(1)
    with pytest.raises(
        UsageError, match="metric a already exists as a counter and cannot be registered as a gauge"
    ):
        meter.create_gauge("a")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), True, "1", None])
def test_gauge_rejects_values_that_are_not_finite_numbers(value: Any) -> None:
    gauge = MetricMeter(Registry()).create_gauge("g")
    with pytest.raises(UsageError, match="finite number"):
        gauge.set(value)


def test_counter_rejects_negative_amounts() -> None:
    with pytest.raises(UsageError, match="cannot decrease"):
        MetricMeter(Registry()).create_counter("c").add(-1)


@pytest.mark.parametrize("buckets", [[], [2, 1], [1, 1], [1, float("inf")]])
def test_invalid_histogram_buckets_are_rejected(buckets: list[float]) -> None:
    with pytest.raises(UsageError, match="buckets"):
        MetricMeter(Registry()).create_histogram("h", buckets=buckets)


@pytest.mark.parametrize("name", ["", "  "])
def test_empty_metric_name_is_rejected(name: str) -> None:
    with pytest.raises(UsageError, match="name"):
        MetricMeter(Registry()).create_counter(name)


def test_metric_drops_new_series_beyond_the_maximum(caplog: pytest.LogCaptureFixture) -> None:
    registry = Registry(max_series=2)
    counter = MetricMeter(registry).create_counter("c")
    for number in range(5):
        counter.add(1, {"id": number})
    counter.add(1, {"id": 0})
    assert value_of(registry, "c", id="0") == 2
    assert len(registry.collect()[0].samples) == 2
    assert [record.getMessage() for record in caplog.records] == [
        "metric c has reached the maximum of 2 series: its attributes have too many different values"
    ]


def test_counter_is_thread_safe() -> None:
    registry = Registry()
    counter = MetricMeter(registry).create_counter("c")

    def count() -> None:
        for _ in range(1000):
            counter.add(1)

    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert value_of(registry, "c") == 8000


def test_silenced_meter_records_nothing() -> None:
    registry, quiet = Registry(), [True, False]
    counter = MetricMeter(registry, silent=lambda: quiet.pop(0)).create_counter("c")
    counter.add(1)
    counter.add(1)
    assert value_of(registry, "c") == 1


def test_metric_source_is_read_at_each_collection_until_removed() -> None:
    registry = Registry()
    registry.metric("m", "gauge").record(1)
    remove = registry.add_source(lambda: [Family("m", "gauge", samples=(Sample((), 5),))])
    assert value_of(registry, "m") == 5
    remove()
    assert value_of(registry, "m") == 1


def test_failing_metric_source_is_skipped_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    registry = Registry()
    registry.metric("m", "gauge").record(1)
    registry.add_source(lambda: [][1])
    assert value_of(registry, "m") == 1
    assert "a source of metrics raised an exception" in caplog.text


class FailingSink:
    """Raises on each record."""

    calls = 0

    def recorded(self, *_: Any) -> None:
        self.calls += 1
        raise RuntimeError("no network")


def test_failing_metric_sink_is_removed_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    registry, sink = Registry(), FailingSink()
    registry.add_sink(sink)
    counter = MetricMeter(registry).create_counter("c")
    counter.add(1)
    counter.add(1)
    assert (sink.calls, value_of(registry, "c")) == (1, 2)
    assert "was removed" in caplog.text


def test_prometheus_text_adapts_names_and_escapes_labels() -> None:
    registry = Registry()
    meter = MetricMeter(registry)
    meter.create_counter("shop.orders", 'Orders\nof "all"').add(2, {"a-b": 'x"\\\n', "0": 1})
    meter.create_gauge("0depth").set(0.25)
    meter.create_histogram("sizes", buckets=[1, 2.5]).record(2, {"k": "v"})
    assert prometheus_text(registry.collect()).splitlines() == [
        "# TYPE _0depth gauge",
        "_0depth 0.25",
        '# HELP shop_orders_total Orders\\nof "all"',
        "# TYPE shop_orders_total counter",
        'shop_orders_total{_0="1",a_b="x\\"\\\\\\n"} 2',
        "# TYPE sizes histogram",
        'sizes_bucket{k="v",le="1"} 0',
        'sizes_bucket{k="v",le="2.5"} 1',
        'sizes_bucket{k="v",le="+Inf"} 1',
        'sizes_sum{k="v"} 2',
        'sizes_count{k="v"} 1',
    ]
