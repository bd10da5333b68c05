"""The choice of the event to which a run is reset: from the name of a step to the workflow task that scheduled the step.
Pure, except for the operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from hourglass._contract.ids import new_id
from hourglass._contract.workflows import ImportWorkflow, ResetWorkflow
from hourglass._evaluator.options import INT64, whole_number
from hourglass._history import events as h
from hourglass._history.codec import LOCAL_MARKER, PATCH_MARKER, read_event
from hourglass.client._operations import Reference, fetch_history_events, refer
from hourglass.client._session import ClientOperation, ClientSession
from hourglass.errors import UsageError


def reset(
    reference: Reference,
    event_id: int | None,
    before: object,
    reason: str,
    reapply_signals: bool,
    reapply_updates: bool,
) -> ClientOperation[Reference]:
    """Reset the run to an event, to the point before a step, or (with neither) to its last workflow task."""
    step = _checked(event_id, 0, before)

    async def ask(session: ClientSession) -> str:
        point = event_id
        if point is None:
            events = await fetch_history_events(reference).ask(session)
            point = reset_point([read_event(msgspec.json.decode(event)) for event in events], step)
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
            )
        )
        return answer.run_id

    def parse(run_id: str) -> Reference:
        return msgspec.structs.replace(reference, run_id=run_id, pinned=False, first_execution_run_id="")

    return ClientOperation(ask, parse)


def fork(
    reference: Reference, workflow_id: str, event_id: int | None, before: object
) -> ClientOperation[Reference]:
    """Start another workflow with the run's history up to an event, a step, or the run's last workflow task."""
    step = _checked(event_id, 2, before)
    refer(workflow_id, None, None, None)  # raises for an invalid id
    if workflow_id == reference.workflow_id:
        raise UsageError("a fork needs a new workflow id; to start the same workflow again, use reset")

    def parse(events: list[bytes]) -> ClientOperation[Reference]:
        point = event_id
        if point is None:
            point = reset_point([read_event(msgspec.json.decode(event)) for event in events], step)
        return import_workflow(events[: point - 1], workflow_id, None, return_type=reference.return_type)

    return ClientOperation(fetch_history_events(reference).ask, parse)


def import_workflow(
    events: Sequence[bytes],
    workflow_id: str,
    request_id: str | None,
    dry_run: bool = False,
    hold: bool = False,
    return_type: Any = Any,
) -> ClientOperation[Reference]:
    """Start a workflow from an existing history."""
    new = refer(workflow_id, None, None, return_type)

    async def ask(session: ClientSession) -> str:
        answer = await session.call(
            ImportWorkflow(
                workflow_id=workflow_id,
                events=tuple(events),
                request_id=request_id or new_id(),
                identity=session.identity,
                dry_run=dry_run,
                hold=hold,
            )
        )
        return answer.run_id

    return ClientOperation(ask, lambda run_id: msgspec.structs.replace(new, run_id=run_id))


def reset_point(events: Sequence[h.HistoryEvent], step: str) -> int:
    """Return the id of the event to reset to: the end of the workflow task that scheduled the step, or of the last workflow
    task if there is no step.
    """
    tasks = [event.id for event in events if isinstance(event.attributes, h.WorkflowTaskCompleted)]
    if not tasks:
        raise UsageError("the run cannot be reset, because it has not completed a workflow task yet")
    if not step:
        return tasks[-1]
    steps: set[str] = set()
    for event in events:
        names, task = _step(event.attributes)
        if step in names:
            return task
        steps.update(names[:1] if len(names) > 1 else ())
    raise UsageError(
        f"the run's history has no step {step!r}; its steps are {', '.join(sorted(steps)) or 'none'}"
    )


def _step(attributes: h.Attributes) -> tuple[tuple[str, ...], int]:
    """Return the names of the step that an event schedules, its type first, and the id of the event that ended the
    scheduling workflow task.
    """
    match attributes:
        case h.ActivityTaskScheduled() as a:
            return (a.activity_type, a.activity_id), a.task_completed_event_id
        case h.StartChildWorkflowExecutionInitiated() as a:
            return (a.workflow_type, a.workflow_id), a.task_completed_event_id
        case h.TimerStarted() as a:
            return (a.timer_id,), a.task_completed_event_id
        case h.ForeignMarkerRecorded() as a:
            return (a.marker_name,), a.task_completed_event_id
        case h.MarkerRecorded() as a:
            return (PATCH_MARKER,), a.task_completed_event_id
        case h.LocalActivityMarkerRecorded() as a:
            return (a.activity_type, a.activity_id, LOCAL_MARKER), a.task_completed_event_id
        case _:
            return (), 0


def _checked(event_id: int | None, least: int, before: object) -> str:
    """Return the step's name, or "" if an event id or neither is set."""
    if event_id is not None and before is not None:
        raise UsageError("pass event_id or before, not both")
    if event_id is not None:
        whole_number(event_id, "event_id", least, INT64)
    if before is None:
        return ""
    name = before if isinstance(before, str) else getattr(before, "name", None)
    if not isinstance(name, str) or not name:
        raise UsageError("before must name a step: an activity, a child workflow, or a str (its type or id)")
    return name
