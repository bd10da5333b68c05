"""The commands that a history records: the events that each command leads to, and these events in the terms and words of
commands (`_evaluator.words`). Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from hourglass._evaluator import commands as c
from hourglass._evaluator.words import CommandSummary, describe, spaced
from hourglass._history import events as h
from hourglass._history.walk import normalize_run_end

_Facts = tuple[str, dict[str, Any]]
_Commands = type[c.Command] | tuple[type[c.Command], ...]


def recorded(event: h.HistoryEvent) -> CommandSummary | None:
    """Return the command that led to an event, or None if no command leads to events of this kind."""
    attributes = normalize_run_end(event.attributes)
    row = _DESCRIPTIONS.get(type(attributes))
    if row is None:
        return None
    _, summarize = row
    kind, facts = summarize(attributes)
    return CommandSummary(kind, event_id=event.id, **facts)


def all_recorded(events: Iterable[h.HistoryEvent]) -> tuple[CommandSummary, ...]:
    """Return the commands that led to these events, except markers."""
    commands = (recorded(event) for event in events if type(event.attributes) not in _MARKERS)
    return tuple(command for command in commands if command is not None)


def describe_event(event: h.HistoryEvent) -> str:
    """Describe an event in a few words."""
    command = recorded(event)
    return spaced(h.kind_of(event.attributes)) if command is None else describe(command)


def _activity(a: h.ActivityTaskScheduled) -> _Facts:
    return "activity", {"key": a.activity_id, "name": a.activity_type, "payloads": a.arguments}


def _child(a: h.StartChildWorkflowExecutionInitiated) -> _Facts:
    return "child workflow", {
        "key": a.workflow_id,
        "name": a.workflow_type,
        "payloads": a.arguments,
        "memo": a.spec.memo,
        "search_attributes": a.spec.search_attributes,
    }


def _signal(a: h.SignalExternalWorkflowExecutionInitiated) -> _Facts:
    facts = {"key": a.workflow_id, "name": a.signal_name, "payloads": a.arguments}
    return "signal to another workflow", facts


def _nexus(a: h.NexusOperationScheduled) -> _Facts:
    argument = () if a.argument is None else (a.argument,)
    return "Nexus operation", {
        "key": a.endpoint,
        "name": f"{a.service}.{a.operation}",
        "payloads": argument,
    }


def _continued(a: h.WorkflowExecutionContinuedAsNew) -> _Facts:
    return "continue-as-new", {
        "name": a.workflow_type,
        "payloads": a.arguments,
        "memo": a.spec.memo,
        "search_attributes": a.spec.search_attributes,
    }


def _completed(a: h.WorkflowExecutionCompleted) -> _Facts:
    return "completion", {"payloads": () if a.result == h.NO_RESULT else (a.result,)}


def _accepted(a: h.WorkflowExecutionUpdateAccepted) -> _Facts:
    return "acceptance of update", {"key": a.update_id, "name": "" if a.request is None else a.request.name}


def _update_completed(a: h.WorkflowExecutionUpdateCompleted) -> _Facts:
    if a.failure is not None:
        return "failure of update", {"key": a.update_id, "failure": a.failure}
    return "result of update", {"key": a.update_id, "payloads": () if a.result is None else (a.result,)}


_MARKERS = (h.MarkerRecorded, h.LocalActivityMarkerRecorded)

_DESCRIPTIONS: dict[type[h.Attributes], tuple[_Commands, Callable[[Any], _Facts]]] = {
    h.ActivityTaskScheduled: (c.ScheduleActivity, _activity),
    h.ActivityTaskCancelRequested: (
        c.RequestCancelActivity,
        lambda a: ("cancellation of the activity of event", {"key": str(a.scheduled_event_id)}),
    ),
    h.TimerStarted: (
        c.StartTimer,
        lambda a: ("timer", {"key": a.timer_id, "duration_ns": a.duration_ns}),
    ),
    h.TimerCanceled: (
        c.CancelTimer,
        lambda a: ("cancellation of the timer of event", {"key": str(a.started_event_id)}),
    ),
    h.StartChildWorkflowExecutionInitiated: (c.StartChildWorkflow, _child),
    h.SignalExternalWorkflowExecutionInitiated: (c.SignalExternalWorkflow, _signal),
    h.RequestCancelExternalWorkflowExecutionInitiated: (
        c.RequestCancelExternal,
        lambda a: ("cancel request to another workflow", {"key": a.workflow_id}),
    ),
    h.NexusOperationScheduled: (c.ScheduleNexusOperation, _nexus),
    h.NexusOperationCancelRequested: (
        c.CancelNexusOperation,
        lambda a: ("cancellation of the Nexus operation of event", {"key": str(a.scheduled_event_id)}),
    ),
    h.WorkflowExecutionUpdateAccepted: (c.AcceptUpdate, _accepted),
    h.WorkflowExecutionUpdateCompleted: ((c.CompleteUpdate, c.RejectUpdate), _update_completed),
    h.MarkerRecorded: (c.SetPatchMarker, lambda a: ("patch", {"key": a.patch_id})),
    h.LocalActivityMarkerRecorded: (
        h.RecordLocalActivity,
        lambda a: ("local activity", {"key": a.activity_id, "name": a.activity_type}),
    ),
    h.UpsertWorkflowSearchAttributes: (
        c.UpsertSearchAttributes,
        lambda a: ("change of search attributes", {"search_attributes": a.search_attributes}),
    ),
    h.WorkflowPropertiesModified: (c.UpsertMemo, lambda a: ("change of the memo", {"memo": a.memo})),
    h.WorkflowExecutionCompleted: (c.CompleteRun, _completed),
    h.WorkflowExecutionFailed: (c.FailRun, lambda a: ("failure", {"failure": a.failure})),
    h.WorkflowExecutionCanceled: (c.CancelRun, lambda a: ("cancellation", {})),
    h.WorkflowExecutionContinuedAsNew: (c.ContinueAsNew, _continued),
}

COMMAND_OF: dict[type[h.Attributes], _Commands] = {
    kind: commands for kind, (commands, _) in _DESCRIPTIONS.items()
}
"""The commands that lead to events of each kind."""
