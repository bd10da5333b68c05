"""What a run's history says, for tests of what goes wrong."""

from __future__ import annotations

from typing import Any

from hourglass.client import WorkflowHandle


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
