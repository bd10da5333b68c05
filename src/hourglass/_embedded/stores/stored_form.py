"""How runs and their events look as bytes in the file: MessagePack maps by field name, defaults left out.

Must not know: SQL, threads, files. It is read for years, so: fields are only added, each with a default; a
default never changes, for what equals it was not written; what is not known is passed over. The kinds of
events are told apart by name. Nothing is stored twice: a run's start, its end and what its activities and
children were asked for with are in its events, and come from there again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import attrgetter, or_
from types import GenericAlias
from typing import Any, TypeVar, get_type_hints

import msgspec
import msgspec.structs

from hourglass._embedded.rules.run import Activity, Child, Run, Timer
from hourglass._history import events as h
from hourglass._history.encoding import encode, plain
from hourglass._history.events import StartChildWorkflowExecutionInitiated

S = TypeVar("S", bound=h.Attributes)

IN_EVENTS = frozenset({"started", "final"})
PENDING = frozenset({"activities", "timers", "children"})

_ANY_KIND: Any = reduce(or_, h.KINDS)


def _without(original: type[msgspec.Struct], left_out: frozenset[str], tag: str | None, **types: Any) -> Any:
    """A struct with the fields of another, but for some: fields that are added there are stored by themselves."""
    hints = get_type_hints(original) | types
    fields = [
        (field.name, hints[field.name], *_default(field))
        for field in msgspec.structs.fields(original)
        if field.name not in left_out
    ]
    return msgspec.defstruct(f"Stored{original.__name__}", fields, frozen=True, omit_defaults=True, tag=tag)


def _default(field: msgspec.structs.FieldInfo) -> tuple[Any, ...]:
    if field.required:
        return ()
    if field.default_factory is not msgspec.NODEFAULT:
        return (msgspec.field(default_factory=field.default_factory),)
    return (field.default,)


_StoredEvent = _without(h.HistoryEvent, frozenset(), None, attributes=_ANY_KIND)
_StoredRun = _without(Run, IN_EVENTS | PENDING, None, held=tuple[_ANY_KIND, ...])
_StoredActivity = _without(Activity, frozenset({"spec"}), "activity")
_StoredTimer = _without(Timer, frozenset(), "timer")
_StoredChild = _without(Child, frozenset({"spec"}), "child")

_RUN_FIELDS = _StoredRun.__struct_fields__
_ACTIVITY_FIELDS = _StoredActivity.__struct_fields__
_TIMER_FIELDS = _StoredTimer.__struct_fields__
_CHILD_FIELDS = _StoredChild.__struct_fields__

_run_values = attrgetter(*_RUN_FIELDS)
_activity_values = attrgetter(*_ACTIVITY_FIELDS)
_timer_values = attrgetter(*_TIMER_FIELDS)
_child_values = attrgetter(*_CHILD_FIELDS)

_run_decoder = msgspec.msgpack.Decoder(_StoredRun)
_events: Any = GenericAlias(list, (_StoredEvent,))
_events_decoder = msgspec.msgpack.Decoder(_events)
_shown_decoder = msgspec.msgpack.Decoder(tuple[h.WorkflowExecutionStarted, h.Fields, h.Fields])
_pending_decoder = msgspec.msgpack.Decoder(_StoredActivity | _StoredTimer | _StoredChild)


def encode_state(run: Run) -> bytes:
    """A run without what its events and its pending things say."""
    return encode(_StoredRun(*_run_values(run)))


def encode_events(events: Sequence[h.HistoryEvent]) -> bytes:
    """Events that follow each other."""
    return encode(events)


def encode_pending(thing: Activity | Timer | Child) -> bytes:
    """An activity or a child without what it was asked for with, or a timer."""
    match thing:
        case Activity():
            return encode(_StoredActivity(*_activity_values(thing)))
        case Child():
            return encode(_StoredChild(*_child_values(thing)))
        case Timer():
            return encode(_StoredTimer(*_timer_values(thing)))


def encode_schedule(record: msgspec.Struct) -> bytes:
    """A schedule's record, whole."""
    return encode(record)


def decode_events(data: bytes) -> list[h.HistoryEvent]:
    """Events as they were; raises ValueError (msgspec's) for what is none."""
    return [
        h.HistoryEvent(event.id, event.time_ns, event.attributes) for event in _events_decoder.decode(data)
    ]


def decode_run(state: bytes, events: Sequence[h.HistoryEvent], pending: Mapping[int, bytes]) -> Run:
    """A run as it was, from its state, its whole history and what is pending by event id.

    Raises ValueError for what does not fit together.
    """
    stored = _run_decoder.decode(state)
    _check_history(stored.length, events)
    activities: dict[int, Activity] = {}
    timers: dict[int, Timer] = {}
    children: dict[int, Child] = {}
    for event_id in sorted(pending):
        thing = _pending_decoder.decode(pending[event_id])
        fields = msgspec.structs.asdict(thing)
        if isinstance(thing, _StoredTimer):
            timer = timers[event_id] = Timer(**fields)
            _check_began(timer.started_event_id, event_id)
        elif isinstance(thing, _StoredChild):
            asked = _spec(events, event_id, StartChildWorkflowExecutionInitiated)
            child = children[event_id] = Child(spec=asked, **fields)
            _check_began(child.initiated_event_id, event_id)
        else:
            activity = Activity(spec=_spec(events, event_id, h.ActivityTaskScheduled), **fields)
            activities[event_id] = activity
            _check_began(activity.scheduled_event_id, event_id)
    whole: Any = msgspec.structs.asdict(stored)
    whole |= {"started": events[0].attributes, "final": _final(events), "activities": activities}
    return Run(**whole, timers=timers, children=children)


def shown_form(run: Run) -> Run:
    """A run whose names are all plain, for those who write them as columns."""
    shown = (run.started, run.memo, run.search_attributes)
    try:
        msgspec.msgpack.encode(shown)
    except UnicodeEncodeError:
        started, memo, attributes = _shown_decoder.decode(encode(shown))
        run = msgspec.structs.replace(run, started=started, memo=memo, search_attributes=attributes)
    return run if run.run_id.isascii() else msgspec.structs.replace(run, run_id=plain(run.run_id))


def _check_history(length: int, events: Sequence[h.HistoryEvent]) -> None:
    if [event.id for event in events] != list(range(1, length + 1)):
        raise ValueError(f"its history has {len(events)} events where there should be 1 to {length}")
    if not events or not isinstance(events[0].attributes, h.WorkflowExecutionStarted):
        raise ValueError("its history does not begin with its start")


def _check_began(said: int, event_id: int) -> None:
    if said != event_id:
        raise ValueError(f"what is pending since event {event_id} says that it began with event {said}")


def _spec(events: Sequence[h.HistoryEvent], event_id: int, kind: type[S]) -> S:
    spec = events[event_id - 1].attributes if 1 <= event_id <= len(events) else None
    if not isinstance(spec, kind):
        raise ValueError(f"event {event_id} is no {kind.__name__}, though one is pending since then")
    return spec


def _final(events: Sequence[h.HistoryEvent]) -> h.Attributes | None:
    last = events[-1].attributes
    return last if isinstance(last, h.FINAL) else None
