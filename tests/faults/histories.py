"""Parts of a run's history, for tests of failures."""

from __future__ import annotations

from typing import Any

from hourglass.client import WorkflowHandle


def task_failures(handle: WorkflowHandle[Any]) -> list[str]:
    """Return the messages of the failed workflow tasks."""
    return [
        event["workflowTaskFailedEventAttributes"]["failure"]["message"]
        for event in handle.history().events
        if "workflowTaskFailedEventAttributes" in event
    ]


def kinds(handle: WorkflowHandle[Any]) -> list[str]:
    """Return the event types of a run's history."""
    return [event["eventType"].removeprefix("EVENT_TYPE_") for event in handle.history().events]
