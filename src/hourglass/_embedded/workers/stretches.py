"""Where a stretch of a history ends: what lies between two tasks that succeeded. Pure.

Must not know: activations, commands, who walks. Invariants: failed and timed-out tasks end no stretch; nor does a task
that was answered with nothing and asked for again at once, which was a heartbeat, unless an update came after it.
"""

from __future__ import annotations

from collections.abc import Sequence

from hourglass._embedded.workers.matching import COMMAND_OF
from hourglass._history import events as h
from hourglass._history.events import WorkflowExecutionUpdateAccepted

_ENDS = frozenset((*h.FINAL, h.WorkflowTaskStarted))
"""Events that a stretch can end with."""

_BROKEN_OFF = (
    h.WorkflowTaskFailed,
    h.WorkflowTaskTimedOut,
    h.WorkflowExecutionTerminated,
    h.WorkflowExecutionTimedOut,
)


def end_of_stretch(
    history: Sequence[h.HistoryEvent], position: int, stop: int, *, live: bool, updates: bool
) -> int | None:
    """The index after the last event of the stretch that begins at `position`; None if the history, up to `stop`, does
    not hold a whole one. `live`: it ends with the start of a task in hand, which came with updates or without.
    """
    commands = False
    beats: list[int] = []
    for index in range(position, stop):
        kind = type(history[index].attributes)
        if kind not in _ENDS:
            commands = commands or kind in COMMAND_OF
            continue
        if kind is not h.WorkflowTaskStarted:
            return index + 1
        following = history[index + 1].attributes if index + 1 < stop else None
        if following is None and not live:
            return None
        if following is None:
            # A replay will find what is accepted in it right behind the task before: so it is now.
            return (beats[-1] if beats and updates else index) + 1
        if isinstance(following, _BROKEN_OFF):
            continue
        if commands or not _is_heartbeat(history, index, stop):
            return _before_update(history, index, stop, beats) + 1
        beats.append(index)
    return None


def _before_update(history: Sequence[h.HistoryEvent], started: int, stop: int, beats: list[int]) -> int:
    """The last of the tasks so far that an update, if one was accepted in the task that started there, came after: that
    was no heartbeat, then, though it was answered with nothing.
    """
    after = started + 2
    accepted = history[after].attributes if after < stop else None
    if isinstance(accepted, WorkflowExecutionUpdateAccepted):
        for index in reversed(beats):
            if history[index].id < accepted.sequencing_event_id:
                return index
    return started


def _is_heartbeat(history: Sequence[h.HistoryEvent], started: int, stop: int) -> bool:
    """Whether the task that started there was one."""
    after = started + 2
    return after < stop and isinstance(history[after].attributes, h.WorkflowTaskScheduled)
