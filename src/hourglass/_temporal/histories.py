"""Histories in Temporal's JSON form, to protobuf and back, and what holds in every history that a server has written.
Pure.

Both spellings of enums are read: `EVENT_TYPE_TIMER_FIRED`, and the older `TimerFired`. Which fields are enums
is taken from the messages' own descriptions, so that every field of every event is covered without a list of
ours.

What is read is checked, for Core trusts histories: on some that break the rules it panics, on others it falls silent.
So a history that comes from a file is checked first, and the message names the event. The rules (`check_rules`):

- Workflow tasks come one at a time: scheduled, started, then completed, failed or timed out.
- What a workflow asked for names the completed task in which it asked; what became of it names the event that began
  it, and ends it once.
- Nothing follows the end of the run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import History, HistoryEvent
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryResponse

from hourglass._temporal import quick_json
from hourglass._temporal.dialect import Dialect, dialect_of
from hourglass.errors import HistoryError

# --- rules -----------------------------------------------------------------------------------------------------------


_ENDS = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW,
}

# What begins something, by the kind of thing.
_BEGINS = {
    EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED: "activity",
    EventType.EVENT_TYPE_TIMER_STARTED: "timer",
    EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED: "child workflow",
    EventType.EVENT_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED: "signal to another workflow",
    EventType.EVENT_TYPE_REQUEST_CANCEL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED: "cancel request",
}

# What follows: the kind of thing, the field that names the event that began it, and whether it is the end of it.
_FOLLOWS = {
    EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED: ("activity", "scheduled_event_id", False),
    EventType.EVENT_TYPE_ACTIVITY_TASK_CANCEL_REQUESTED: ("activity", "scheduled_event_id", False),
    EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED: ("activity", "scheduled_event_id", True),
    EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED: ("activity", "scheduled_event_id", True),
    EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT: ("activity", "scheduled_event_id", True),
    EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED: ("activity", "scheduled_event_id", True),
    EventType.EVENT_TYPE_TIMER_FIRED: ("timer", "started_event_id", True),
    EventType.EVENT_TYPE_TIMER_CANCELED: ("timer", "started_event_id", True),
    EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_FAILED: (
        "child workflow",
        "initiated_event_id",
        True,
    ),
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_STARTED: ("child workflow", "initiated_event_id", False),
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_COMPLETED: ("child workflow", "initiated_event_id", True),
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_FAILED: ("child workflow", "initiated_event_id", True),
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_CANCELED: ("child workflow", "initiated_event_id", True),
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_TIMED_OUT: ("child workflow", "initiated_event_id", True),
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_TERMINATED: ("child workflow", "initiated_event_id", True),
    EventType.EVENT_TYPE_EXTERNAL_WORKFLOW_EXECUTION_SIGNALED: (
        "signal to another workflow",
        "initiated_event_id",
        True,
    ),
    EventType.EVENT_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_FAILED: (
        "signal to another workflow",
        "initiated_event_id",
        True,
    ),
    EventType.EVENT_TYPE_EXTERNAL_WORKFLOW_EXECUTION_CANCEL_REQUESTED: (
        "cancel request",
        "initiated_event_id",
        True,
    ),
    EventType.EVENT_TYPE_REQUEST_CANCEL_EXTERNAL_WORKFLOW_EXECUTION_FAILED: (
        "cancel request",
        "initiated_event_id",
        True,
    ),
}

_TASKS = {
    EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED: "scheduled",
    EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED: "started",
    EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED: "completed",
    EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED: "failed",
    EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT: "timed out",
}


def check_rules(events: Iterable[HistoryEvent], *, of_core: bool = True) -> None:
    """Raise `HistoryError` at the first event that no server would have written there.

    A history that is not `of_core` never meets Core: which task an event names as its origin is then left alone, for servers
    that SDKs bring along for tests number it in ways of their own.
    """
    tasks = _Tasks()
    open_things: dict[int, str] = {}
    end = 0
    for event in events:
        if end:
            raise HistoryError(f"event {event.event_id} comes after the run ended with event {end}")
        kind = event.event_type
        step = _TASKS.get(kind)
        if step is not None:
            tasks.take(step, event)
        elif kind in _BEGINS:
            open_things[event.event_id] = _BEGINS[kind]
        elif kind in _FOLLOWS:
            _follow(event, open_things)
        elif kind in _ENDS:
            end = event.event_id
        elif kind not in EventType.values() and not event.worker_may_ignore:
            raise HistoryError(
                f"event {event.event_id} is of a kind ({kind}) that this version of Hourglass does not know"
            )
        if of_core:
            tasks.check_origin(event)


class _Tasks:
    """The workflow tasks of a history: one at a time."""

    def __init__(self) -> None:
        self._state = "none"
        self._scheduled = 0
        self._started = 0
        self._completed: set[int] = set()

    def take(self, step: str, event: HistoryEvent) -> None:
        """Go one step on, or say why that cannot be."""
        attributes = getattr(event, str(event.WhichOneof("attributes")))
        allowed = {
            "scheduled": ("none",),
            "started": ("scheduled",),
            "completed": ("started",),
            "failed": ("scheduled", "started"),
            "timed out": ("scheduled", "started"),
        }[step]
        if self._state not in allowed:
            where = "no workflow task is open" if self._state == "none" else f"one is {self._state}"
            raise HistoryError(f"event {event.event_id}: a workflow task cannot be {step} while {where}")
        if step == "scheduled":
            self._state, self._scheduled = "scheduled", event.event_id
            return
        if attributes.scheduled_event_id != self._scheduled:
            raise HistoryError(
                f"event {event.event_id}: the workflow task that is {step} names event "
                f"{attributes.scheduled_event_id} as its schedule, but that is event {self._scheduled}"
            )
        if step == "started":
            self._state, self._started = "started", event.event_id
            return
        if step == "completed":
            # Java's server for tests names no start, and the start where others name the completion.
            if attributes.started_event_id not in (self._started, 0):
                raise HistoryError(
                    f"event {event.event_id}: the completed workflow task names event {attributes.started_event_id} "
                    f"as its start, but that is event {self._started}"
                )
            self._completed.add(event.event_id)
            if not attributes.started_event_id:
                self._completed.add(self._started)
        self._state = "none"

    def check_origin(self, event: HistoryEvent) -> None:
        """What a workflow asked for names the task in which it did."""
        attributes = getattr(event, str(event.WhichOneof("attributes")), None)
        origin = getattr(attributes, "workflow_task_completed_event_id", None)
        if origin and origin not in self._completed:
            raise HistoryError(
                f"event {event.event_id} names event {origin} as the workflow task that asked for it, "
                "which is no completed workflow task"
            )


def _follow(event: HistoryEvent, open_things: dict[int, str]) -> None:
    thing, field, is_end = _FOLLOWS[event.event_type]
    origin = getattr(getattr(event, str(event.WhichOneof("attributes"))), field)
    if open_things.get(origin) != thing:
        raise HistoryError(
            f"event {event.event_id} tells of the {thing} of event {origin}, but no {thing} is open there"
        )
    if is_end:
        del open_things[origin]


# --- reading and writing ---------------------------------------------------------------------------------------------


_BASE64 = re.compile(r"[A-Za-z0-9+/]*|[A-Za-z0-9_-]*").fullmatch
_DEEPEST = 200  # levels of JSON; a chain of causes takes one each


def history_from_json(text: str | bytes) -> bytes:
    """A history as an encoded History message. Raises `HistoryError`.

    It is given in JSON (an object with `events`, they alone, or a list of such objects: its pages) or, as bytes, in
    Temporal's binary form.
    """
    try:
        document = _load(text)
    except HistoryError:
        binary = _from_binary(text) if isinstance(text, bytes) else None
        if binary is None:
            raise
        _check(binary)
        return binary.SerializeToString()
    events = _events_in(document)
    if not isinstance(events, list):
        raise HistoryError("a history in JSON is an object with a list of events")
    return _encode([_event(event, at) for at, event in enumerate(events, 1)])


def _events_in(document: Any) -> Any:
    if isinstance(document, dict):
        inner = document.get("history")  # the answer of Temporal's own API, with the history in it
        return inner.get("events") if isinstance(inner, dict) else document.get("events")
    pages = document if isinstance(document, list) else []
    if pages and all(isinstance(page, dict) and ("events" in page or "history" in page) for page in pages):
        found = [_events_in(page) for page in pages]
        return (
            [event for page in found for event in page] if all(isinstance(p, list) for p in found) else None
        )
    return document or None


def _from_binary(data: bytes) -> History | None:
    """Bytes as a History message, or as the answer of Temporal's own API with one in it; None where they are neither."""
    for kind in (History, GetWorkflowExecutionHistoryResponse):
        try:
            message = kind.FromString(data)
        except Exception:
            continue
        found: History = message if isinstance(message, History) else message.history
        if found.events and found.events[0].WhichOneof("attributes") is not None:
            return found
    return None


def history_from_events(events: Iterable[bytes]) -> bytes:
    """Events in JSON, as `GetHistory` gives them, as an encoded History message. Raises `HistoryError`."""
    return _encode([_event(_load(event), at) for at, event in enumerate(events, 1)])


def history_to_json(history: bytes) -> str:
    """An encoded History message in JSON, as Temporal's own tools write it."""
    return json_format.MessageToJson(_parse(history))


def event_to_json(event: HistoryEvent) -> bytes:
    """One event in JSON, in one line."""
    return json.dumps(json_format.MessageToDict(event), ensure_ascii=False, separators=(",", ":")).encode()


def events_of(history: bytes) -> Sequence[Any]:
    """The events of an encoded History message, as messages."""
    return _parse(history).events


def check_history(history: bytes) -> None:
    """Raise `HistoryError` where an encoded History message cannot be replayed."""
    parsed = _parse(history)
    _check(parsed)
    if len(parsed.events) == 1:
        # Core would wait for ever for the task that is not there.
        raise HistoryError("nothing to replay: the workflow of this history has not been given a task yet")


def _parse(history: bytes) -> History:
    try:
        return History.FromString(history)
    except Exception:
        raise HistoryError("these bytes are no history") from None


def _load(text: str | bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass  # the standard library reads a little more, and says better what is wrong
    try:
        return json.loads(text)
    except RecursionError:
        raise HistoryError("this JSON is nested too deeply for a history") from None
    except ValueError as error:
        raise HistoryError(f"a history must be JSON: {error}") from None


def _encode(events: list[HistoryEvent]) -> bytes:
    history = History(events=events)
    _check(history)
    return history.SerializeToString()


def _event(event: Any, at: int) -> HistoryEvent:
    if not isinstance(event, dict):
        raise HistoryError(f"event {at} is no JSON object")
    try:
        built: HistoryEvent = quick_json.build(HistoryEvent, event)
        return built
    except (ValueError, TypeError, OverflowError):
        return _event_in_full(event, at)


def _event_in_full(event: dict[str, Any], at: int) -> HistoryEvent:
    """The same for an event that is not plain, or cannot be read: it is said why."""
    message = HistoryEvent()
    try:
        modern = _modernise(event, HistoryEvent.DESCRIPTOR, 0)
        # Servers newer than us send fields that we do not know.
        return json_format.ParseDict(modern, message, ignore_unknown_fields=True)
    except (json_format.ParseError, TypeError, ValueError) as error:
        raise HistoryError(f"event {at} cannot be read: {str(error)[:200]}") from None


def _modernise(value: dict[str, Any], kind: Descriptor, depth: int) -> dict[str, Any]:
    """The same object with every enum in its modern spelling."""
    if depth > _DEEPEST:
        raise ValueError("it is nested too deeply")
    fields = kind.fields_by_camelcase_name
    out = {}
    for key, item in value.items():
        field = fields.get(key) or kind.fields_by_name.get(key)
        out[key] = item if field is None else _modern_field(item, field, depth + 1)
    return out


def _modern_field(value: Any, field: FieldDescriptor, depth: int) -> Any:
    if isinstance(value, list):
        return [_modern_field(item, field, depth) for item in value]
    if field.enum_type is not None and isinstance(value, str):
        return quick_json.modern_name(value, field.enum_type)
    if field.type == FieldDescriptor.TYPE_BYTES and isinstance(value, str) and not _is_base64(value):
        # Protobuf would leave out what it cannot read, and take the rest for the whole.
        raise ValueError(f"its field {field.json_name} is no base64")
    kind = field.message_type
    if kind is None or not isinstance(value, dict) or kind.full_name.startswith("google.protobuf."):
        return value
    if kind.GetOptions().map_entry:
        inner = kind.fields_by_name["value"]
        return {key: _modern_field(item, inner, depth) for key, item in value.items()}
    return _modernise(value, kind, depth)


def _is_base64(text: str) -> bool:
    """Whether a text is base64 of either alphabet, with its padding or without."""
    bare = text.rstrip("=")
    return bool(_BASE64(bare)) and len(bare) % 4 != 1 and len(text) - len(bare) in (0, -len(bare) % 4)


def _check(history: History) -> None:
    events = history.events
    if not events:
        raise HistoryError("this history has no events")
    _check_start(events[0])
    for at, event in enumerate(events, 1):
        if event.event_id != at:
            raise HistoryError(f"event {at} of this history carries the number {event.event_id}")
        kind = event.event_type
        if at > 1 and kind == _STARTED:
            raise HistoryError(f"event {at} starts the workflow a second time")
        _check_attributes(event, kind)
        if kind == _TASK_STARTED and at < len(events):
            _check_task_end(events[at])
    check_rules(events, of_core=dialect_of(events) is not Dialect.OTHER)


def _check_start(event: HistoryEvent) -> None:
    if event.event_type != _STARTED:
        raise HistoryError("a history begins with the event that starts its workflow")
    started = event.workflow_execution_started_event_attributes
    for what, there in (
        ("workflow type (workflowType)", bool(started.workflow_type.name)),
        ("task queue (taskQueue)", started.HasField("task_queue")),
        ("run (originalExecutionRunId)", bool(started.original_execution_run_id)),
    ):
        if not there:
            raise HistoryError(f"the first event of this history names no {what}")


def _check_attributes(event: HistoryEvent, kind: int) -> None:
    if not kind:
        if event.worker_may_ignore:
            return
        raise HistoryError(
            f"event {event.event_id} is of a kind that this version of Hourglass does not know"
        )
    expected = _ATTRIBUTES.get(kind)
    if expected is None:
        return  # `check_rules` refuses it by its number
    attributes = event.WhichOneof("attributes")
    if attributes != expected:
        name = EventType.Name(event.event_type)
        raise HistoryError(f"event {event.event_id} ({name}) carries {attributes or 'no attributes'}")


def _check_task_end(event: HistoryEvent) -> None:
    # Core's replay worker panics on anything else, and then never answers.
    if event.event_type not in _TASK_ENDS:
        raise HistoryError(f"event {event.event_id} cannot follow the start of a workflow task")


# Looked up once: of tens of thousands of events each is asked for its kind several times.
_STARTED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED
_TASK_STARTED = EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED
_ATTRIBUTES: dict[int, str] = {
    number: name.removeprefix("EVENT_TYPE_").lower() + "_event_attributes"
    for name, number in EventType.items()
}

_TASK_ENDS = (
    EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT,
)
