"""Metrics of activity attempts (`ActivityMetrics`)."""

from __future__ import annotations

from typing import NamedTuple

from hourglass._contract.handle import (
    ActivityDeferred,
    ActivityOk,
    ActivityResult,
    ActivityTask,
    AttemptCancelled,
    AttemptFailed,
)
from hourglass.metrics import Registry
from hourglass.metrics._samples import Labels, labels_of

_OUTCOMES: dict[type[ActivityResult], str] = {
    ActivityOk: "completed",
    AttemptFailed: "failed",
    AttemptCancelled: "cancelled",
    ActivityDeferred: "deferred",
}


class _Series(NamedTuple):
    """The metric series of one activity type, and the values that are still to be recorded in them."""

    plain: Labels
    outcomes: dict[type[ActivityResult], Labels]
    waits: list[float]
    seconds: list[float]
    ends: dict[type[ActivityResult], list[float]]


_BATCH = 256


class ActivityMetrics:
    """A recorder of the attempts of one task queue: their number, outcomes, durations and waiting times.

    Must be used on the control loop. Every step calls this class, so values are recorded in batches, unless a
    sink must receive each value.
    """

    def __init__(self, registry: Registry, namespace: str, task_queue: str) -> None:
        self._registry = registry
        self._common = {"namespace": namespace, "task_queue": task_queue}
        self._series_by_type: dict[str, _Series] = {}
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
        """Record the time that an attempt has waited before its start."""
        since, until = task.current_attempt_scheduled_time_ns or task.scheduled_time_ns, task.started_time_ns
        if since and until and not task.is_local:
            series = self._series_by_type.get(task.activity_type) or self._series(task.activity_type)
            waited = (until - since) / 1e9 if until > since else 0.0
            if self._registry.sinks:
                self._waits.record(waited, series.plain)
            else:
                series.waits.append(waited)

    def ended(self, task: ActivityTask, result: ActivityResult, seconds: float) -> None:
        """Record the outcome and the duration of an attempt."""
        series = self._series_by_type.get(task.activity_type) or self._series(task.activity_type)
        if self._registry.sinks:
            self._executions.record(1, series.outcomes[type(result)])
            self._seconds.record(seconds, series.plain)
            return
        series.ends[type(result)].append(1)
        series.seconds.append(seconds)
        if len(series.seconds) >= _BATCH:
            for metric in (self._waits, self._executions, self._seconds):
                metric.fold()

    def _series(self, activity_type: str) -> _Series:
        plain = {**self._common, "activity_type": activity_type}
        labels = labels_of(plain)
        outcomes = {kind: labels_of({**plain, "outcome": name}) for kind, name in _OUTCOMES.items()}
        if len(self._series_by_type) >= self._registry.max_series:
            # The number of series is limited, because clients choose the type names. The registry has the same
            # limit.
            return _Series(labels, outcomes, [], [], {kind: [] for kind in _OUTCOMES})
        series = self._series_by_type[activity_type] = _Series(
            labels,
            outcomes,
            self._waits.pending(labels),
            self._seconds.pending(labels),
            {kind: self._executions.pending(outcome) for kind, outcome in outcomes.items()},
        )
        return series
