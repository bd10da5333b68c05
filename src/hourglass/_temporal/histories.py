"""Conversion of histories between Temporal's JSON form and protobuf, the form that Core accepts. Strict: the
error for an unreadable event names the event, and every history is checked (`_history.walk.check`). Pure.

Both spellings of enums are accepted: `EVENT_TYPE_TIMER_FIRED`, and the older `TimerFired`. Enum fields are
recognised by the message descriptors, so that every field of every event is covered without a list of ours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import History, HistoryEvent
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryResponse

from hourglass._history import events as h
from hourglass._history.codec import documents_in, load_json, read_event
from hourglass._history.dialect import Dialect, dialect_of
from hourglass._history.walk import check, check_start
from hourglass.errors import HistoryError

_BASE64 = re.compile(r"[A-Za-z0-9+/]*|[A-Za-z0-9_-]*").fullmatch
_CAPITALS = re.compile("([A-Z]+)")
_DEEPEST = 200  # levels of JSON; each cause of a failure takes one


class Recorded(NamedTuple):
    """A checked history: its events, and the encoded History message for Core."""

    events: tuple[h.HistoryEvent, ...]
    encoded: bytes
    of_server: bool = False
    """Whether a Temporal server wrote the history. Servers put a task id into each event; the embedded engine
    does not.
    """


def read_history(text: str | bytes) -> Recorded:
    """Read and check a history. Raise `HistoryError` if it is invalid.

    The input is JSON (an object with `events`, a list of events, or a list of such objects: pages) or, as
    bytes, Temporal's binary form.
    """
    try:
        document = load_json(text)
    except HistoryError:
        binary = _from_binary(text) if isinstance(text, bytes) else None
        if binary is None:
            raise
        return _recorded(list(binary.events), [json_format.MessageToDict(event) for event in binary.events])
    documents = documents_in(document)
    if documents is None:
        raise HistoryError("the JSON of a history must be an object with a list of events")
    return _recorded(
        [_event(document, position) for position, document in enumerate(documents, 1)], documents
    )


def _recorded(messages: list[HistoryEvent], documents: list[Any]) -> Recorded:
    if not messages:
        raise HistoryError("the history contains no events")
    if messages[0].event_type != EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
        raise HistoryError("a history must begin with WorkflowExecutionStarted")
    check_start(read_event(documents[0], 1))
    for message in messages:
        _check_attributes(message)
        attributes = message.WhichOneof("attributes")
        if message.event_type not in _ATTRIBUTES and attributes is not None:
            message.ClearField(attributes)  # Core determines the kind of an event by its attributes
    events = tuple(
        [
            read_event(document) if message.event_type in _ATTRIBUTES else _unknown(document, message)
            for document, message in zip(documents, messages, strict=True)
        ]
    )
    check(events, of_core=dialect_of(events) is not Dialect.OTHER)
    of_server = any(message.task_id for message in messages)
    return Recorded(events, History(events=messages).SerializeToString(), of_server)


def _unknown(document: dict[str, Any], message: HistoryEvent) -> h.HistoryEvent:
    """Return an event of an unknown kind that workers may ignore. Its attributes may be of any kind."""
    event = read_event(document)
    if isinstance(event.attributes, h.UnknownEvent):
        return event
    unknown = h.UnknownEvent(name=f"EVENT_TYPE_{message.event_type}", may_be_ignored=True)
    return h.HistoryEvent(event.id, event.time_ns, unknown)


def _from_binary(data: bytes) -> History | None:
    """Parse bytes as a History message, or as an API response that contains one. Return None if they are neither."""
    for kind in (History, GetWorkflowExecutionHistoryResponse):
        try:
            message = kind.FromString(data)
        except Exception:
            continue
        history: History = message if isinstance(message, History) else message.history
        if history.events and history.events[0].WhichOneof("attributes") is not None:
            return history
    return None


def history_to_json(history: bytes) -> str:
    """Return an encoded History message as JSON, in the format of Temporal's own tools."""
    return json_format.MessageToJson(History.FromString(history))


def event_to_json(event: HistoryEvent) -> bytes:
    """Return one event as one line of JSON."""
    return json.dumps(json_format.MessageToDict(event), ensure_ascii=False, separators=(",", ":")).encode()


def with_next_task(history: bytes) -> bytes:
    """Return the history of an open run as its worker receives it with the next workflow task.

    Core evaluates the last completed task only if an event follows it. An event that workers ignore is inserted
    before the new task, because Core treats an empty task directly after another one as a heartbeat.
    """
    message = History.FromString(history)
    last = next(event for event in reversed(message.events) if event.event_type in _TASK_EVENTS)
    if last.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED:
        return history
    if last.event_type != EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED:
        ignored = _add(message, EventType.EVENT_TYPE_WORKFLOW_EXECUTION_OPTIONS_UPDATED)
        ignored.worker_may_ignore = True
        ignored.workflow_execution_options_updated_event_attributes.SetInParent()
        last = _add(message, EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED)
        started = message.events[0].workflow_execution_started_event_attributes
        last.workflow_task_scheduled_event_attributes.task_queue.CopyFrom(started.task_queue)
        last.workflow_task_scheduled_event_attributes.attempt = 1
    scheduled_id = last.event_id
    task = _add(message, EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED)
    task.workflow_task_started_event_attributes.scheduled_event_id = scheduled_id
    return message.SerializeToString()


_TASK_EVENTS = frozenset(
    number for name, number in EventType.items() if name.startswith("EVENT_TYPE_WORKFLOW_TASK_")
)


def _add(message: History, kind: EventType.ValueType) -> HistoryEvent:
    newest = message.events[-1]
    event = message.events.add(event_id=newest.event_id + 1, event_type=kind)
    event.event_time.CopyFrom(newest.event_time)
    return event


def check_replayable(events: Sequence[h.HistoryEvent]) -> None:
    """Raise `HistoryError` if a checked history cannot be replayed."""
    if len(events) == 1:
        # Core would wait forever for the missing task.
        raise HistoryError("the history contains no workflow task, so there is nothing to replay")


def _event(event: Any, position: int) -> HistoryEvent:
    if not isinstance(event, dict):
        raise HistoryError(f"event {position} is not a JSON object")
    message = HistoryEvent()
    try:
        modern = _modernise(event, HistoryEvent.DESCRIPTOR, 0)
        # Servers newer than this release send unknown fields.
        return json_format.ParseDict(modern, message, ignore_unknown_fields=True)
    except Exception as error:
        raise HistoryError(f"event {position} cannot be decoded: {str(error)[:200]}") from None


def _modernise(document: dict[str, Any], kind: Descriptor, depth: int) -> dict[str, Any]:
    """Return a copy of the object with every enum in its modern spelling."""
    if depth > _DEEPEST:
        raise ValueError("it is nested too deeply")
    fields = kind.fields_by_camelcase_name
    converted = {}
    for key, value in document.items():
        field = fields.get(key) or kind.fields_by_name.get(key)
        converted[key] = value if field is None else _modern_field(value, field, depth + 1)
    return converted


def _modern_field(value: Any, field: FieldDescriptor, depth: int) -> Any:
    if isinstance(value, list):
        return [_modern_field(item, field, depth) for item in value]
    if field.enum_type is not None and isinstance(value, str):
        return _modern_name(value, field.enum_type)
    if field.type == FieldDescriptor.TYPE_BYTES and isinstance(value, str) and not _is_base64(value):
        # Without this check, protobuf would skip invalid characters and decode the remainder without an error.
        raise ValueError(f"its field {field.json_name} is not base64")
    kind = field.message_type
    if kind is None or not isinstance(value, dict) or kind.full_name.startswith("google.protobuf."):
        return value
    if kind.GetOptions().map_entry:
        inner = kind.fields_by_name["value"]
        return {key: _modern_field(item, inner, depth) for key, item in value.items()}
    return _modernise(value, kind, depth)


def _modern_name(name: str, enum: EnumDescriptor) -> str:
    """Return an enum value in its modern spelling: `EVENT_TYPE_TIMER_FIRED` for `TimerFired`."""
    if name in enum.values_by_name:
        return name
    prefix = enum.values[0].name.removesuffix("_UNSPECIFIED")
    modern = prefix + _CAPITALS.sub(r"_\1", name).upper()
    return modern if modern in enum.values_by_name else name


def _is_base64(text: str) -> bool:
    """Whether a string is base64 of either alphabet, with or without padding."""
    bare = text.rstrip("=")
    return bool(_BASE64(bare)) and len(bare) % 4 != 1 and len(text) - len(bare) in (0, -len(bare) % 4)


def _check_attributes(event: HistoryEvent) -> None:
    """Raise `HistoryError` if an event is of an unknown kind or carries the attributes of another kind."""
    kind = event.event_type
    expected = _ATTRIBUTES.get(kind)
    if expected is None:
        if event.worker_may_ignore:
            return
        number = f" ({kind})" if kind else ""
        raise HistoryError(
            f"event {event.event_id} has a type{number} that this version of Hourglass does not support"
        )
    attributes = event.WhichOneof("attributes")
    if attributes != expected:
        name = EventType.Name(kind)
        raise HistoryError(
            f"event {event.event_id} ({name}) has the wrong attributes: {attributes or 'none'}"
        )


_ATTRIBUTES: dict[int, str] = {
    number: name.removeprefix("EVENT_TYPE_").lower() + "_event_attributes"
    for name, number in EventType.items()
    if number
}
