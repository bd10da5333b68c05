"""How events of a history become messages and notes of the story: signals, updates, cancellation, markers, changes."""

from __future__ import annotations

from hourglass._story.drafts import Handler, Told
from hourglass._story.faults import chain
from hourglass._story.reading import Event, Json, inner, nanoseconds, number, text
from hourglass._story.spans import Kind, Outcome, Phase
from hourglass._story.values import value_of

LOCAL_ACTIVITY, PATCH = "core_local_activity", "core_patch"


def _signaled(told: Told, event: Event) -> None:
    draft = told.point(event, Kind.SIGNAL, text(event.attributes, "signalName") or "signal")
    draft.show("input", told.peek(event.attributes.get("input")))


def _cancel_requested(told: Told, event: Event) -> None:
    draft = told.point(event, Kind.CANCEL, "cancel requested")
    draft.notes += [each for each in (text(event.attributes, "cause"),) if each]


# --- updates ---------------------------------------------------------------------------------------------------------


def _update_admitted(told: Told, event: Event) -> None:
    _update_begins(told, event, inner(event.attributes, "request"), "", Phase.QUEUED)


def _update_accepted(told: Told, event: Event) -> None:
    request = inner(event.attributes, "acceptedRequest")
    known = text(request, "meta", "updateId") or text(event.attributes, "protocolInstanceId")
    admitted = told.drafts.get(told.updates.get(known, 0))
    if admitted is not None and admitted.begun is None:
        admitted.begun = event.time
        told.drafts[event.id] = admitted
        return
    _update_begins(told, event, request, known, Phase.RUNNING)


def _update_begins(told: Told, event: Event, request: Json | None, known: str, phase: Phase) -> None:
    draft = told.add(event, Kind.UPDATE, text(request, "input", "name") or "update", phase)
    draft.target = known or text(request, "meta", "updateId")
    draft.show("input", told.peek(inner(request, "input", "args")))
    told.updates[draft.target] = event.id


def _update_rejected(told: Told, event: Event) -> None:
    request = inner(event.attributes, "rejectedRequest")
    draft = told.point(event, Kind.UPDATE, text(request, "input", "name") or "update", Outcome.FAILED)
    draft.faults = chain(event.attributes.get("failure"))
    draft.notes.append("refused")


def _update_completed(told: Told, event: Event) -> None:
    draft = told.found(event, "acceptedEventId")
    if draft is None:
        draft = told.drafts.get(told.updates.get(text(event.attributes, "meta", "updateId"), 0))
    if draft is None:
        return
    outcome = inner(event.attributes, "outcome")
    failure = inner(outcome, "failure")
    draft.close(event, Outcome.DONE if failure is None else Outcome.FAILED, chain(failure))
    draft.show("result", told.peek(inner(outcome, "success")))


# --- markers ---------------------------------------------------------------------------------------------------------


def _marker(told: Told, event: Event) -> None:
    name = text(event.attributes, "markerName")
    if name == LOCAL_ACTIVITY:
        _local_activity(told, event)
    elif name == PATCH:
        told.point(event, Kind.MARKER, f"patch {_patch_id(event)}")
    elif name == "Version":
        told.point(event, Kind.MARKER, "version")
    elif name == "LocalActivity":
        draft = told.point(event, Kind.LOCAL, "local activity", _local_outcome(event))
        draft.faults = chain(event.attributes.get("failure"))
    else:
        told.point(event, Kind.MARKER, f"marker {name}".strip())


def _patch_id(event: Event) -> str:
    data = _first(inner(event.attributes, "details", "patch-data"))
    return str(
        inner(data, "id") or text(_first(inner(event.attributes, "details", "patch-id"))) or ""
    ).strip()


def _local_activity(told: Told, event: Event) -> None:
    """Core writes when it was asked for by the wall clock, and when it ended by the task's: only its length is sure."""
    data = _first(inner(event.attributes, "details", "data"))
    starts = (each.started for each in reversed(told.tasks.values()) if each.started is not None)
    began = next(starts, event.time)
    asked = nanoseconds(inner(data, "original_schedule_time")) or began
    ran = max(nanoseconds(inner(data, "complete_time")) - began, 0)
    draft = told.add(event, Kind.LOCAL, text(data, "activity_type") or "local activity")
    draft.start = min(max(asked, began), event.time)
    draft.attempts = max(number(inner(data, "attempt")), 1)
    draft.target = text(data, "activity_id")
    draft.close(event, _local_outcome(event), chain(event.attributes.get("failure")))
    draft.end = min(draft.start + ran, event.time)
    if inner(data, "backoff"):
        draft.notes.append("to be tried again")
    draft.show("result", told.peek(inner(event.attributes, "details", "result")))


def _local_outcome(event: Event) -> Outcome:
    failure = event.attributes.get("failure")
    if failure is None:
        return Outcome.DONE
    return Outcome.CANCELLED if inner(failure, "canceledFailureInfo") is not None else Outcome.FAILED


def _first(payloads: object) -> object:
    listed = inner(payloads, "payloads")
    if not isinstance(listed, list) or not listed:
        return None
    return value_of(listed[0]) if isinstance(listed[0], dict) and "data" in listed[0] else listed[0]


# --- changes ---------------------------------------------------------------------------------------------------------


def _changed(what: str) -> Handler:
    def changed(told: Told, event: Event) -> None:
        told.point(event, Kind.MARKER, what)

    return changed


MESSAGES: dict[str, Handler] = {
    "WORKFLOW_EXECUTION_SIGNALED": _signaled,
    "WORKFLOW_EXECUTION_CANCEL_REQUESTED": _cancel_requested,
    "WORKFLOW_EXECUTION_UPDATE_ADMITTED": _update_admitted,
    "WORKFLOW_EXECUTION_UPDATE_ACCEPTED": _update_accepted,
    "WORKFLOW_EXECUTION_UPDATE_REJECTED": _update_rejected,
    "WORKFLOW_EXECUTION_UPDATE_COMPLETED": _update_completed,
    "MARKER_RECORDED": _marker,
    "UPSERT_WORKFLOW_SEARCH_ATTRIBUTES": _changed("search attributes set"),
    "WORKFLOW_PROPERTIES_MODIFIED": _changed("memo set"),
    "WORKFLOW_PROPERTIES_MODIFIED_EXTERNALLY": _changed("properties changed from outside"),
    "ACTIVITY_PROPERTIES_MODIFIED_EXTERNALLY": _changed("activity's properties changed from outside"),
    "WORKFLOW_EXECUTION_OPTIONS_UPDATED": _changed("options changed from outside"),
    "WORKFLOW_EXECUTION_PAUSED": _changed("paused"),
    "WORKFLOW_EXECUTION_UNPAUSED": _changed("continued after a pause"),
}
