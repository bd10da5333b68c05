"""Counters and helpers for tests of agents: calls of models and tools, and the activities of a run."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from hourglass import RetryPolicy
from hourglass.testing import Environment

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


def check_three_day_approval(activities: Sequence[Any], payment: Any, consents: Any) -> None:
    """Check that a workflow whose agent needs approval waits for it, and pays only if it is granted."""
    with Environment(activities=activities) as env:
        for agreed in (True, False):
            run = env.start_workflow(payment, "pay")
            env.after(days=3).signal(run, consents, agreed)
            before = env.now()
            assert ("paid 500" in run.result()) is agreed
            assert env.now() - before == timedelta(days=3)
    assert call_counts == {"model": 4, "paid": 1}
