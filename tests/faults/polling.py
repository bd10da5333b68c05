"""Waiting, in tests, for what an engine does in its own time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from hourglass.client import WorkflowHandle

T = TypeVar("T")
LIMIT = 30.0


def eventually(look: Callable[[], T]) -> T:
    """Ask until the answer is true, and return it."""
    deadline = time.monotonic() + LIMIT
    while not (found := look()):
        assert time.monotonic() < deadline, "it never came"
    return found


def task_failures(handle: WorkflowHandle[Any]) -> list[str]:
    """The messages of the workflow tasks that failed."""
    return [
        event["workflowTaskFailedEventAttributes"]["failure"]["message"]
        for event in handle.history().events
        if "workflowTaskFailedEventAttributes" in event
    ]


def kinds(handle: WorkflowHandle[Any]) -> list[str]:
    """The types of the events in a run's history."""
    return [event["eventType"].removeprefix("EVENT_TYPE_") for event in handle.history().events]
