"""Conversion of events to and from Temporal's JSON form, which `temporal workflow show`, its web UI and every SDK's
replayer use. One table covers all kinds of events.

Must not know: runs, engines, decisions, protobuf. `shapes` defines the JSON form of values and `tables` the names of
fields. This module adds the JSON of events that consists of more than their fields. Core's own records (`PATCH_MARKER`,
`LOCAL_MARKER`, flags) are written so that Core can replay histories of the embedded engine. Reading is lenient, because
a partial history is better than none. Unknown, missing or malformed fields stay unset. Payloads that the web UI has
decoded are read as JSON. Enum names are accepted in both spellings (`EVENT_TYPE_TIMER_FIRED`, `TimerFired`).
`_temporal.histories` checks that a history is well-formed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

import msgspec

from hourglass._evaluator.commands import EventGroupMarker
from hourglass._history import events as h
from hourglass._history import times
from hourglass._history.shapes import (
    DETAILS,
    PAYLOAD,
    Json,
    number,
    read_duration,
    read_moment,
    read_payload,
    read_text,
    snake,
)
from hourglass._history.tables import table
from hourglass.converter import Payload
from hourglass.errors import HistoryError

PATCH_MARKER = "core_patch"
LOCAL_MARKER = "core_local_activity"
"""The names of Core's markers. The details of these markers are JSON in a payload, with times and durations as seconds
and nanoseconds.
"""


def _add_worker(a: h.WorkflowTaskCompleted, document: Json) -> None:
    if a.version is not None:
        document["workerVersion"] = {"buildId": a.version.build_id}
        document["workerDeploymentName"] = a.version.deployment_name


def _add_origin(a: h.WorkflowExecutionUpdateAdmitted, document: Json) -> None:
    document["origin"] = "UPDATE_ADMITTED_EVENT_ORIGIN_REAPPLY"


def _add_message(a: h.WorkflowExecutionUpdateAccepted, document: Json) -> None:
    document["acceptedRequestMessageId"] = f"{a.update_id}/request"


def _add_outcome(a: h.WorkflowExecutionUpdateCompleted, document: Json) -> None:
    if a.failure is not None:
        document["outcome"].pop("success", None)
    else:
        document.setdefault("outcome", {"success": {}})


def _write_patch(a: h.MarkerRecorded, document: Json) -> None:
    data = msgspec.json.encode({"id": a.patch_id, "deprecated": a.deprecated})
    _to_marker(document, PATCH_MARKER, {"patch-data": (Payload(data),)})


def _write_local(a: h.LocalActivityMarkerRecorded, document: Json) -> None:
    data = {
        "seq": a.seq,
        "attempt": a.attempt,
        "activity_id": a.activity_id,
        "activity_type": a.activity_type,
        "complete_time": _parts(a.complete_ns),
        "backoff": _parts(a.backoff_ns),
        "original_schedule_time": _parts(a.original_schedule_ns),
        "activation_index": None if a.activation_index == h.NO_INDEX else a.activation_index,
    }
    details = {"data": (Payload(msgspec.json.encode(data)),)}
    if a.result is not None:
        details["result"] = (a.result,)
    _to_marker(document, LOCAL_MARKER, details)


def _to_marker(document: Json, name: str, details: Mapping[str, tuple[Payload, ...]]) -> None:
    """Convert an event's JSON to that of a marker: its name, payloads by name, and the fields that all markers have."""
    common = {
        key: field_value
        for key, field_value in document.items()
        if key in ("workflowTaskCompletedEventId", "failure")
    }
    document.clear()
    document |= {"markerName": name, "details": DETAILS.write(details), **common}


def _parts(ns: int) -> Json | None:
    if not ns:
        return None
    seconds, nanos = divmod(ns, times.SECOND)
    return {"seconds": seconds, "nanos": nanos}


_ADD: dict[type[h.Attributes], Callable[[Any, Json], None]] = {
    h.WorkflowTaskCompleted: _add_worker,
    h.WorkflowExecutionUpdateAdmitted: _add_origin,
    h.WorkflowExecutionUpdateAccepted: _add_message,
    h.WorkflowExecutionUpdateCompleted: _add_outcome,
    h.MarkerRecorded: _write_patch,
    h.LocalActivityMarkerRecorded: _write_local,
}


def _read_marker(marker: h.ForeignMarkerRecorded, metadata: Any) -> h.Attributes:
    """Return one of Core's markers as its own kind of event. Markers of other SDKs and unreadable markers are returned
    unchanged.
    """
    try:
        if marker.marker_name == PATCH_MARKER and "patch-data" in marker.details:
            data = msgspec.json.decode(marker.details["patch-data"][0].data)
            return h.MarkerRecorded(
                patch_id=data["id"],
                deprecated=bool(data.get("deprecated")),
                task_completed_event_id=marker.task_completed_event_id,
            )
        if marker.marker_name == LOCAL_MARKER:
            return _read_local(marker, metadata)
    except (msgspec.MsgspecError, ValueError, TypeError, LookupError, AttributeError):
        pass
    return marker


def _read_local(marker: h.ForeignMarkerRecorded, metadata: Any) -> h.Attributes:
    data = msgspec.json.decode(marker.details["data"][0].data)
    index = data.get("activation_index")
    result = marker.details.get("result", ())
    summary = metadata.get("summary") if isinstance(metadata, dict) else None
    return h.LocalActivityMarkerRecorded(
        seq=number(data.get("seq")),
        activity_id=read_text(data.get("activity_id")),
        activity_type=read_text(data.get("activity_type")),
        task_completed_event_id=marker.task_completed_event_id,
        attempt=number(data.get("attempt")),
        complete_ns=read_moment(data.get("complete_time")),
        backoff_ns=read_duration(data.get("backoff")),
        original_schedule_ns=read_moment(data.get("original_schedule_time")),
        activation_index=h.NO_INDEX if index is None else number(index),
        result=result[0] if result else None,
        failure=marker.failure,
        summary=None if summary is None else read_payload(summary),
    )


def _with_own_id(accepted: h.WorkflowExecutionUpdateAccepted) -> h.Attributes:
    """Return the event with the update's own id, because the protocol message that carried the update may have another
    id.
    """
    request = accepted.request
    if request is None or not request.update_id:
        return accepted
    return msgspec.structs.replace(accepted, update_id=request.update_id)


class _Names(NamedTuple):
    """Temporal's names for a kind of event: its type, and the JSON key of its attributes."""

    event_type: str
    attributes: str


@cache
def _names(kind: type[h.Attributes]) -> _Names:
    name = h.name_of(kind)
    return _Names(f"EVENT_TYPE_{snake(name).upper()}", f"{name[0].lower()}{name[1:]}EventAttributes")


_MARKERS = (h.MarkerRecorded, h.LocalActivityMarkerRecorded, h.ForeignMarkerRecorded)


def _kinds() -> dict[str, type[h.Attributes]]:
    """Return the kinds of events by every name that a history may use for them."""
    kinds: dict[str, type[h.Attributes]] = {}
    for kind in (*h.KINDS, *h.FOREIGN_KINDS):
        names = _names(kind)
        bare = names.event_type.removeprefix("EVENT_TYPE_")
        spellings = (*names, bare, h.name_of(kind), f"{bare.lower()}_event_attributes")
        kinds |= dict.fromkeys(spellings, h.ForeignMarkerRecorded if kind in _MARKERS else kind)
    return kinds


_KINDS = _kinds()


_IGNORED = frozenset(
    {h.WorkflowExecutionOptionsUpdated, h.WorkflowExecutionPaused, h.WorkflowExecutionUnpaused}
)
"""The kinds of events that a worker may ignore. Their JSON is marked accordingly, because an SDK that does not know the
kind would otherwise reject the history.
"""


def event_document(event: h.HistoryEvent) -> Json:
    """Convert an event to a JSON object."""
    attributes = event.attributes
    kind = type(attributes)
    names = _names(kind)
    made = table(kind)
    document_of_attributes = made.write(attributes)
    add = _ADD.get(kind)
    if add is not None:
        add(attributes, document_of_attributes)
    document: Json = {
        "eventId": str(event.id),
        "eventTime": times.moment_text(event.time_ns),
        "eventType": names.event_type,
        names.attributes: document_of_attributes,
    }
    metadata = made.write_metadata(attributes)
    if metadata:
        document["userMetadata"] = metadata
    if event.event_groups:
        document["eventGroupMarkers"] = [_group_document(group) for group in event.event_groups]
    if kind in _IGNORED:
        document["workerMayIgnore"] = True
    return document


def _group_document(group: EventGroupMarker) -> Json:
    if group.inbound_event_id:
        return {"inboundEvent": {"inboundEventId": str(group.inbound_event_id)}}
    if group.inbound_update_id:
        return {"inboundUpdate": {"inboundUpdateId": group.inbound_update_id}}
    label = {} if group.label is None else {"label": PAYLOAD.write(group.label)}
    return {"label": {"id": group.id, **label}}


def _read_group(document: Any) -> EventGroupMarker | None:
    """Return an event group, or None if the object has no known fields."""
    match document:
        case {"label": {"id": str(name), **rest}} if name:
            label = rest.get("label")
            return EventGroupMarker(id=name, label=None if label is None else read_payload(label))
        case {"inboundEvent": {"inboundEventId": event_id}} | {
            "inbound_event": {"inbound_event_id": event_id}
        }:
            return EventGroupMarker(inbound_event_id=number(event_id))
        case {"inboundUpdate": {"inboundUpdateId": str(name)}} | {
            "inbound_update": {"inbound_update_id": str(name)}
        }:
            return EventGroupMarker(inbound_update_id=name)
        case _:
            return None


def _read_groups(markers: Any) -> tuple[EventGroupMarker, ...]:
    groups = map(_read_group, markers if isinstance(markers, list) else ())
    return tuple([group for group in groups if group is not None])


def event_json(event: h.HistoryEvent) -> bytes:
    """Convert an event to JSON text."""
    return msgspec.json.encode(event_document(event))


def read_event(document: Any, at: int = 0) -> h.HistoryEvent:
    """Convert a JSON object to an event. `at` is its position in the history. Raise `HistoryError` if the object is not
    an event.
    """
    if not isinstance(document, dict):
        raise HistoryError(f"item {at} is not a history event: eventType is missing")
    kind: type[h.Attributes] | None = None
    fields: Any = None
    metadata = document.get("userMetadata", document.get("user_metadata"))
    for key, value in document.items():
        if key.endswith(("EventAttributes", "_event_attributes")):
            kind, fields = _KINDS.get(key), value
            break
    else:
        fields = document.get("attributes")
    event_type = document.get("eventType", document.get("event_type"))
    if kind is None:
        if event_type is None:
            raise HistoryError(f"item {at} is not a history event: eventType is missing")
        kind = _KINDS.get(event_type) if isinstance(event_type, str) else None
    elif isinstance(event_type, str) and event_type and event_type not in _KINDS:
        kind = None  # an unknown kind of event with the attributes of a known kind
    number_of = number(document.get("eventId", document.get("event_id"))) or at
    time_ns = read_moment(document.get("eventTime", document.get("event_time")))
    if kind is None:
        ignored = bool(document.get("workerMayIgnore", document.get("worker_may_ignore")))
        attributes: h.Attributes = h.UnknownEvent(
            name=_spelled(event_type),
            document=fields if isinstance(fields, dict) else {},
            may_be_ignored=ignored,
        )
    else:
        attributes = table(kind).read(fields, metadata)
        if isinstance(attributes, h.ForeignMarkerRecorded):
            attributes = _read_marker(attributes, metadata)
        elif isinstance(attributes, h.WorkflowExecutionUpdateAccepted):
            attributes = _with_own_id(attributes)
    groups = document.get("eventGroupMarkers", document.get("event_group_markers"))
    return h.HistoryEvent(number_of, time_ns, attributes, _read_groups(groups) if groups else ())


def _spelled(name: Any) -> str:
    """Return the name of an unknown kind of event in the current spelling."""
    text = str(name)
    return text.removeprefix("EVENT_TYPE_") if "_" in text else snake(text).upper()


def load_json(text: str | bytes) -> Any:
    """Parse JSON. Raise `HistoryError` if the text is not valid JSON."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass  # the standard library accepts slightly more, and has better error messages
    try:
        document = json.loads(text, parse_float=_finite, parse_constant=_finite)
        json.dumps(document, ensure_ascii=False).encode()  # raises for a lone surrogate
    except RecursionError:
        raise HistoryError("the history cannot be read: the JSON is nested too deeply") from None
    except UnicodeEncodeError:
        raise HistoryError("the history cannot be read: the JSON contains a lone surrogate") from None
    except ValueError as error:
        raise HistoryError(f"the history is not valid JSON: {error}") from None
    return document


def _finite(text: str) -> float:
    """Parse a JSON number. Reject `NaN`, `Infinity` and numbers that are too large for a float."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is not a valid JSON number")
    return value


def documents_in(document: Any) -> list[Any] | None:
    """Return the events in a parsed file, or None if it contains none.

    The file may contain an object with `events`, a bare list, a response of Temporal's API, or a list of these responses
    (its pages).
    """
    if isinstance(document, dict):
        inner = document.get("history")
        events = inner.get("events") if isinstance(inner, dict) else document.get("events")
        return events if isinstance(events, list) else None
    if not isinstance(document, list) or not document:
        return None
    if not all(isinstance(page, dict) and ("events" in page or "history" in page) for page in document):
        return document
    pages = [documents_in(page) for page in document]
    return None if None in pages else [event for page in pages for event in page or ()]


def events_from_text(text: str | bytes) -> tuple[h.HistoryEvent, ...]:
    """Return the events of a history in JSON, or in a format with one JSON object per line. Raise `HistoryError` for
    invalid text.
    """
    try:
        document = load_json(text)
    except HistoryError:
        lines = [line for line in text.splitlines() if line.strip()]
        try:
            document = [msgspec.json.decode(line) for line in lines] if len(lines) > 1 else None
        except (msgspec.MsgspecError, ValueError, RecursionError):
            document = None
        if document is None:
            raise
    documents = documents_in(document)
    if documents is None and document != []:
        raise HistoryError("the JSON of a history must be an object with a list of events")
    return events_from(documents or ())


def events_from(documents: Iterable[Any]) -> tuple[h.HistoryEvent, ...]:
    """Convert JSON objects to events. Raise `HistoryError` if one of them is not an event, or if there are none."""
    events = tuple(read_event(document, at) for at, document in enumerate(documents, 1))
    if not events:
        raise HistoryError("the history contains no events")
    for event in events:
        if not event.time_ns:
            raise HistoryError(f"event {event.id} has no eventTime")
    return events
