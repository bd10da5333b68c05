"""Counters and helpers for tests of agents: calls of models and tools, and the activities of a run."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from hourglass import RetryPolicy

QUICK = RetryPolicy(initial_interval=0.01, maximum_interval=0.02)

call_counts: Counter[str] = Counter()
"""The number of calls of each model and tool."""
_lock = threading.Lock()


def count(name: str) -> int:
    """Count a call. Return the number of calls of this name."""
    with _lock:
        call_counts[name] += 1
        return call_counts[name]


def scheduled_activities(handle: Any) -> list[dict[str, Any]]:
    return [
        event["activityTaskScheduledEventAttributes"]
        for event in handle.history().events
        if "activityTaskScheduledEventAttributes" in event
    ]
