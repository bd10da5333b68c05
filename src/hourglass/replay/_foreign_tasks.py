"""A history, cut into its workflow tasks: what the run was told in each, and what it asked for. Pure.

Must not know: commands, how things are told. Invariants:

- Tasks that failed or timed out leave no trace; what happened before them is told in the next that was completed.
- What a run asked for belongs to the task that was completed last before it: where it stands says whose it is, not the
  number that it names, for servers made for tests number it otherwise. What became at once of something that was asked for
  (an activity that was cancelled before it began) may stand between.
- A history that ends within a task has a last task of which it is not known what the run asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from hourglass._history import events as h
from hourglass._history import events as u
from hourglass._temporal.payloads import nanos_from
from hourglass.errors import HistoryError
from hourglass.replay._foreign_events import ASKED, read_event
from hourglass.replay._foreign_markers import Decode, Mark, read_marker

_BROKEN_OFF = ("workflow_task_failed", "workflow_task_timed_out")


class WorkflowTask(msgspec.Struct, frozen=True, kw_only=True):
    """One workflow task."""

    told: tuple[h.HistoryEvent, ...]
    asked: tuple[h.HistoryEvent, ...] = ()
    marks: tuple[Mark, ...] = ()
    time_ns: int = 0
    history_length: int = 0
    history_size: int = 0
    suggest_continue_as_new: bool = False
    is_completed: bool = True

    @property
    def updates(self) -> tuple[u.WorkflowExecutionUpdateAccepted, ...]:
        """The updates that were accepted in it: told in it, too."""
        return tuple(
            event.attributes
            for event in self.asked
            if isinstance(event.attributes, u.WorkflowExecutionUpdateAccepted)
        )


def tasks_of(events: Sequence[Any], decode: Decode | None = None) -> list[WorkflowTask]:
    """The tasks of a history (Temporal's messages), in order. Raises `HistoryError`."""
    tasks: list[WorkflowTask] = []
    told: list[h.HistoryEvent] = []
    started: Any = None
    position = 0
    while position < len(events):
        event = events[position]
        position += 1
        kind = (event.WhichOneof("attributes") or "").removesuffix("_event_attributes")
        if kind == "workflow_task_started":
            started = event
        elif kind in _BROKEN_OFF:
            started = None
            told += _read(event)
        elif kind == "workflow_task_completed" and started is not None:
            asked, marks, between, position = _asked(events, position, decode)
            tasks.append(_task(told, started, asked=tuple(asked), marks=tuple(marks)))
            told, started = between, None
        else:
            told += _read(event)
            if told and isinstance(told[-1].attributes, ASKED) and told[-1].id == event.event_id:
                raise HistoryError(
                    f"event {event.event_id} ({kind}) was asked for by no workflow task: none was completed before it"
                )
    if started is not None:
        tasks.append(_task(told, started, is_completed=False))
    return tasks


def _task(told: list[h.HistoryEvent], started: Any, **facts: Any) -> WorkflowTask:
    attributes = started.workflow_task_started_event_attributes
    return WorkflowTask(
        told=tuple(told),
        time_ns=nanos_from(started.event_time),
        history_length=started.event_id,
        history_size=attributes.history_size_bytes,
        suggest_continue_as_new=attributes.suggest_continue_as_new,
        **facts,
    )


def _read(event: Any) -> list[h.HistoryEvent]:
    attributes = read_event(event)
    if attributes is None:
        return []
    return [h.HistoryEvent(event.event_id, nanos_from(event.event_time), attributes)]


def _asked(
    events: Sequence[Any], position: int, decode: Decode | None
) -> tuple[list[h.HistoryEvent], list[Mark], list[h.HistoryEvent], int]:
    """What a task asked for, what happened between, and where the next task starts."""
    asked: list[h.HistoryEvent] = []
    marks: list[Mark] = []
    between: list[h.HistoryEvent] = []
    while position < len(events):
        event = events[position]
        kind = event.WhichOneof("attributes")
        if kind == "workflow_task_started_event_attributes":
            break
        if kind == "marker_recorded_event_attributes":
            marks.append(read_marker(event, decode))
        else:
            read = _read(event)
            if not read or not isinstance(read[0].attributes, ASKED):
                between += read
            elif not is_patch_index(read[0].attributes):
                asked += read
        position += 1
    return asked, marks, between, position


def is_patch_index(attributes: h.Attributes) -> bool:
    """Whether search attributes were changed by the SDK itself, behind a version or patch."""
    return isinstance(attributes, h.UpsertWorkflowSearchAttributes) and set(attributes.search_attributes) == {
        h.PATCHES
    }
