"""Where to reset a run to: from a step's name to the workflow task that asked for it. Pure but for the operation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from hourglass._contract.ids import new_id
from hourglass._contract.service import ResetWorkflow
from hourglass._engine.options import INT64, Duration, optional_seconds, whole_number
from hourglass.client._operations import Reference, fetch_history_events
from hourglass.client._session import ClientOperation, ClientSession
from hourglass.errors import UsageError

_STEPS: Mapping[str, tuple[str, str]] = {
    "activityTaskScheduledEventAttributes": ("activityType", "activityId"),
    "startChildWorkflowExecutionInitiatedEventAttributes": ("workflowType", "workflowId"),
    "timerStartedEventAttributes": ("", "timerId"),
    "markerRecordedEventAttributes": ("", "markerName"),
}


def reset(
    reference: Reference,
    event_id: int | None,
    before: object,
    reason: str,
    reapply_signals: bool,
    reapply_updates: bool,
    rpc_timeout: Duration | None,
) -> ClientOperation[Reference]:
    """Begin the run anew from an event, from before a step, or (with neither) from its last workflow task."""
    if event_id is not None and before is not None:
        raise UsageError("give event_id or before, not both")
    limit = optional_seconds(rpc_timeout, "rpc_timeout")
    if event_id is not None:
        whole_number(event_id, "event_id", 0, INT64)
    step = _named(before)

    async def ask(session: ClientSession) -> str:
        point = event_id
        if point is None:
            events = [json.loads(event) for event in await fetch_history_events(reference).ask(session)]
            point = reset_point(events, step)
        answer = await session.call(
            ResetWorkflow(
                workflow_id=reference.workflow_id,
                run_id=reference.addressed_run,
                event_id=point,
                request_id=new_id(),
                reason=reason,
                identity=session.identity,
                reapply_signals=reapply_signals,
                reapply_updates=reapply_updates,
                rpc_timeout=limit,
            )
        )
        return answer.run_id

    def parse(run_id: str) -> Reference:
        return msgspec.structs.replace(reference, run_id=run_id, pinned=False, first_execution_run_id="")

    return ClientOperation(ask, parse)


def reset_point(events: Sequence[Mapping[str, Any]], step: str) -> int:
    """The id of the workflow task's end to reset to: the one that asked for a step, the last one for no step."""
    tasks = [int(event["eventId"]) for event in events if _kind(event) == "WORKFLOW_TASK_COMPLETED"]
    if not tasks:
        raise UsageError("the run has completed no workflow task yet: there is nothing to reset to")
    if not step:
        return tasks[-1]
    for event in events:
        for key, (kind, name) in _STEPS.items():
            attributes = event.get(key)
            if attributes is not None and step in (
                attributes.get(kind, {}).get("name") if kind else None,
                attributes.get(name),
            ):
                return int(attributes["workflowTaskCompletedEventId"])
    known = sorted(
        {
            attributes[kind]["name"]
            for event in events
            for key, (kind, _) in _STEPS.items()
            if kind and (attributes := event.get(key)) is not None
        }
    )
    raise UsageError(f"the run's history has no step {step!r}; its steps are {', '.join(known) or 'none'}")


def _kind(event: Mapping[str, Any]) -> str:
    return str(event.get("eventType", "")).removeprefix("EVENT_TYPE_")


def _named(before: object) -> str:
    if before is None:
        return ""
    name = before if isinstance(before, str) else getattr(before, "name", None)
    if not isinstance(name, str) or not name:
        raise UsageError("before names a step: an activity, a child workflow, or a text (its type or id)")
    return name
