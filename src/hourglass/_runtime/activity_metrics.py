"""What a worker counts of its activities: how many, how they ended, how long they took and waited.

Belongs to the control loop. One attempt costs three records; the series of a type are found by one look.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hourglass._contract.handle import (
    ActivityCancelled,
    ActivityDeferred,
    ActivityFailed,
    ActivityOk,
    ActivityResult,
    ActivityTask,
)
from hourglass.metrics import Registry
from hourglass.metrics._samples import Labels, labels_of

_OUTCOMES: dict[type[ActivityResult], str] = {
    ActivityOk: "completed",
    ActivityFailed: "failed",
    ActivityCancelled: "cancelled",
    ActivityDeferred: "deferred",
}


@dataclass(frozen=True)
class _Series:
    """What records for one activity type; how attempts ended is recorded by the keys of those series."""

    waited: Callable[[float], None]
    took: Callable[[float], None]
    outcomes: dict[type[ActivityResult], Labels]


class ActivityMetrics:
    """Counts the attempts of one queue."""

    def __init__(self, registry: Registry, namespace: str, task_queue: str) -> None:
        self._common = {"namespace": namespace, "task_queue": task_queue}
        self._known: dict[str, _Series] = {}
        self._executions = registry.metric(
            "hourglass_activity_executions", "counter", "Attempts of activities that have ended, by outcome."
        )
        self._seconds = registry.metric(
            "hourglass_activity_execution_seconds", "histogram", "How long attempts of activities took.", "s"
        )
        self._waits = registry.metric(
            "hourglass_activity_schedule_to_start_seconds",
            "histogram",
            "How long attempts waited in their task queue.",
            "s",
        )

    def began(self, task: ActivityTask) -> None:
        """An attempt begins."""
        since, until = task.current_attempt_scheduled_time_ns or task.scheduled_time_ns, task.started_time_ns
        if since and until and not task.is_local:
            series = self._known.get(task.activity_type) or self._series(task.activity_type)
            series.waited((until - since) / 1e9 if until > since else 0.0)

    def ended(self, task: ActivityTask, result: ActivityResult, seconds: float) -> None:
        """An attempt has ended, after so long."""
        series = self._known.get(task.activity_type) or self._series(task.activity_type)
        self._executions.record(1, series.outcomes[type(result)])
        series.took(seconds)

    def _series(self, activity_type: str) -> _Series:
        plain = {**self._common, "activity_type": activity_type}
        labels = labels_of(plain)
        found = _Series(
            self._waits.series(labels),
            self._seconds.series(labels),
            {kind: labels_of({**plain, "outcome": name}) for kind, name in _OUTCOMES.items()},
        )
        if len(self._known) < 2000:  # names come from the wire: what is remembered is bounded
            self._known[activity_type] = found
        return found
