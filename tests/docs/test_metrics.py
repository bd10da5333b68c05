"""docs/howto/metrics.md lists exactly the metrics of a worker."""

from __future__ import annotations

import re
from pathlib import Path

from hourglass._worker.activity_metrics import ActivityMetrics
from hourglass._worker.tree.worker_metrics import described
from hourglass.metrics import Registry

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "metrics.md"


def test_metrics_page_lists_every_metric() -> None:
    """By the names in Prometheus, where counters end in `_total`."""
    rows = "\n".join(re.findall(r"(?m)^\| (`hourglass_[^|]*) \|", PAGE.read_text()))
    documented = {name.removesuffix("_total") for name in re.findall(r"`(hourglass_\w+)`", rows)}
    registry = Registry()
    ActivityMetrics(registry, "default", "q")
    existing = {name for name, _, _ in described()} | {each.name for each in registry.collect()}
    assert existing - documented == set(), "each wants a row of the table in docs/howto/metrics.md"
    assert documented - existing == set(), "docs/howto/metrics.md tells of metrics that are gone"
