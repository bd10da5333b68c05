"""The commands that a history records: the events that each command leads to, and these events in the terms and words of
commands (`_evaluator.words`). Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from hourglass._evaluator import commands as c
from hourglass._evaluator import words
from hourglass._evaluator.words import CommandSummary, describe, spaced, summary_of
from hourglass._history import events as h
from hourglass._history.walk import normalize_run_end

_Commands = type[c.Command] | tuple[type[c.Command], ...]


def recorded(event: h.HistoryEvent) -> CommandSummary | None:
    """Return the command that led to an event, or None if no command leads to events of this kind."""
    attributes = normalize_run_end(event.attributes)
    row = _DESCRIPTIONS.get(type(attributes))
    if row is None:
        return None
    _, kind, paths = row
    summary = summary_of(attributes, kind, paths, event_id=event.id)
    match attributes:
        case h.WorkflowExecutionCompleted(result=h.NO_RESULT):
            return msgspec.structs.replace(summary, payloads=())
        case h.WorkflowExecutionUpdateAccepted(request=h.UpdateRequest(name=name)):
            return msgspec.structs.replace(summary, name=name)
        case h.WorkflowExecutionUpdateCompleted(failure=failure) if failure is not None:
            return msgspec.structs.replace(summary, kind="failure of update", payloads=(), failure=failure)
        case _:
            return summary


def all_recorded(events: Iterable[h.HistoryEvent]) -> tuple[CommandSummary, ...]:
    """Return the commands that led to these events, except markers."""
    commands = (recorded(event) for event in events if type(event.attributes) not in _MARKERS)
    return tuple(command for command in commands if command is not None)


def describe_event(event: h.HistoryEvent) -> str:
    """Describe an event in a few words."""
    command = recorded(event)
    return spaced(h.kind_of(event.attributes)) if command is None else describe(command)


_MARKERS = (h.MarkerRecorded, h.LocalActivityMarkerRecorded)

_DESCRIPTIONS: dict[type[h.Attributes], tuple[_Commands, str, words.Paths]] = {
    h.ActivityTaskScheduled: (c.ScheduleActivity, "activity", words.ACTIVITY),
    h.ActivityTaskCancelRequested: (
        c.RequestCancelActivity,
        "cancellation of the activity of event",
        {"key": "scheduled_event_id"},
    ),
    h.TimerStarted: (c.StartTimer, "timer", {"key": "timer_id", "duration_ns": "duration_ns"}),
    h.TimerCanceled: (c.CancelTimer, "cancellation of the timer of event", {"key": "started_event_id"}),
    h.StartChildWorkflowExecutionInitiated: (c.StartChildWorkflow, "child workflow", words.CHILD),
    h.SignalExternalWorkflowExecutionInitiated: (
        c.SignalExternalWorkflow,
        "signal to another workflow",
        words.SIGNAL,
    ),
    h.RequestCancelExternalWorkflowExecutionInitiated: (
        c.RequestCancelExternal,
        "cancel request to another workflow",
        {"key": "workflow_id"},
    ),
    h.NexusOperationScheduled: (c.ScheduleNexusOperation, *words.NEXUS),
    h.NexusOperationCancelRequested: (
        c.CancelNexusOperation,
        "cancellation of the Nexus operation of event",
        {"key": "scheduled_event_id"},
    ),
    h.WorkflowExecutionUpdateAccepted: (c.AcceptUpdate, "acceptance of update", {"key": "update_id"}),
    h.WorkflowExecutionUpdateCompleted: (
        (c.CompleteUpdate, c.RejectUpdate),
        "result of update",
        {"key": "update_id", "payloads": "result"},
    ),
    h.MarkerRecorded: (c.SetPatchMarker, "patch", {"key": "patch_id"}),
    h.LocalActivityMarkerRecorded: (
        h.RecordLocalActivity,
        "local activity",
        {"key": "activity_id", "name": "activity_type"},
    ),
    h.UpsertWorkflowSearchAttributes: (
        c.UpsertSearchAttributes,
        "change of search attributes",
        {"search_attributes": "search_attributes"},
    ),
    h.WorkflowPropertiesModified: (c.UpsertMemo, "change of the memo", {"memo": "memo"}),
    h.WorkflowExecutionCompleted: (c.CompleteRun, "completion", {"payloads": "result"}),
    h.WorkflowExecutionFailed: (c.FailRun, "failure", {"failure": "failure"}),
    h.WorkflowExecutionCanceled: (c.CancelRun, "cancellation", {}),
    h.WorkflowExecutionContinuedAsNew: (c.ContinueAsNew, "continue-as-new", words.NEXT_RUN),
}

COMMAND_OF: dict[type[h.Attributes], _Commands] = {kind: row[0] for kind, row in _DESCRIPTIONS.items()}
"""The commands that lead to events of each kind."""
