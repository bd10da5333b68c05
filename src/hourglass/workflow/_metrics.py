"""Metrics that a workflow records about itself: quiet while a run catches up with its history."""

from __future__ import annotations

from hourglass._engine.context import require_run
from hourglass.metrics import MetricMeter, default_registry


def metric_meter() -> MetricMeter:
    """A meter for this run. What it records carries namespace, task queue and workflow type; replayed code records nothing."""
    live = require_run("workflow.metric_meter")
    settings = live.settings
    return MetricMeter(
        default_registry if settings.metrics is None else settings.metrics,
        {
            "namespace": settings.namespace,
            "task_queue": settings.task_queue,
            "workflow_type": live.state.workflow_type,
        },
        # Asked of this very execution of the run: one that executes it again has meters of its own.
        silent=lambda: live.facts.is_replaying or live.quiet or live.dead,
    )
