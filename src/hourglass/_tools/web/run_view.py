"""What the pages of one run are made of, beyond its story: other runs it is linked to, what a reset would do, the source around a
line, values that are hidden. Pure, but for reading source.

Must not know: HTML, the client's calls.
"""

from __future__ import annotations

import json
import linecache
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from hourglass._history.events import HistoryEvent, WorkflowExecutionSignaled, WorkflowTaskCompleted
from hourglass._history.shapes import read_payload
from hourglass._tools.diagnosis.reasons_closed import around_failure, first_undone
from hourglass._tools.timeline.spans import Kind, Outcome, Span, Story
from hourglass._tools.timeline.values import Peek
from hourglass._tools.timeline.watching import HIDDEN
from hourglass._tools.web import addresses
from hourglass._tools.web.replay_child import Walked
from hourglass.errors import UsageError
from hourglass.replay import Moment, ValueChange

_RUN_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-")
_AROUND = 4

# --- other runs -------------------------------------------------------------------------------------------------------


def chain(story: Story) -> list[tuple[str, str, str]]:
    """Other runs that this one is linked to: what, the id to show, the address."""
    return [(what, value, _link(what, value, story)) for what, value in story.links]


def _link(what: str, value: str, story: Story) -> str:
    if what == "child of":
        return addresses.workflow(value)
    return addresses.run(story.workflow_id, value) if _RUN_ID.match(value) else ""


# --- what is pending --------------------------------------------------------------------------------------------------


def unheard(events: Sequence[HistoryEvent]) -> tuple[HistoryEvent, ...]:
    """Signals that came after the last workflow task that was answered: no code has seen them yet."""
    found: list[HistoryEvent] = []
    for event in reversed(events):
        if isinstance(event.attributes, WorkflowTaskCompleted):
            break
        if isinstance(event.attributes, WorkflowExecutionSignaled):
            found.append(event)
    return tuple(reversed(found))


# --- resets -----------------------------------------------------------------------------------------------------------

_EFFECTS = (Kind.ACTIVITY, Kind.LOCAL, Kind.CHILD, Kind.EXTERNAL, Kind.NEXUS)


@dataclass(frozen=True)
class ResetPlan:
    """What a reset to the event `event_id` leaves behind: steps after it that took effect, those that did not, and those that ran
    after a step had failed or the run had been asked to cancel (`after_failure`): mostly they undid what others had done.
    `undone` is the first step that they may have undone and that the new run would take for done.
    """

    event_id: int
    effects: tuple[Span, ...]
    others: tuple[Span, ...]
    after_failure: tuple[Span, ...]
    failed: str
    undone: Span | None
    signals: int
    updates: int


def reset_plan(events: Sequence[HistoryEvent], story: Story, wanted: int) -> ResetPlan:
    """What a reset to the end of the last workflow task at or before an event would do. Raises `UsageError` if there is none."""
    point = _reset_point(events, wanted)
    since = [each for each in story.spans[1:] if each.id >= point]
    again = [each for each in since if each.kind in _EFFECTS]
    done = [each for each in again if each.outcome is Outcome.DONE]
    failed, before, _ = around_failure(story)
    cancel = next((each for each in story.spans[1:] if each.kind is Kind.CANCEL), None)
    if cancel is not None and (failed is None or cancel.start < (failed.end or cancel.start)):
        failed, failed_at = cancel, cancel.start
        before = [each for each in story.spans[1:] if each.kind in _EFFECTS and each.start < failed_at]
    else:
        failed_at = story.until + 1 if failed is None or failed.end is None else failed.end
    later = [each for each in done if each.start >= failed_at]
    undone = first_undone(before, later) if failed is not None and failed.id >= point else None
    return ResetPlan(
        event_id=point,
        effects=tuple(each for each in done if each.start < failed_at),
        others=tuple(each for each in again if each.outcome is not Outcome.DONE),
        after_failure=tuple(later),
        failed=""
        if failed is None
        else "it was asked to cancel"
        if failed.kind is Kind.CANCEL
        else f"{failed.name} had failed",
        undone=undone if undone is not None and undone.id < point else None,
        signals=sum(each.kind is Kind.SIGNAL for each in since),
        updates=sum(each.kind is Kind.UPDATE for each in since),
    )


def _reset_point(events: Sequence[HistoryEvent], wanted: int) -> int:
    """The end of the last workflow task at or before an event."""
    ends = [each.id for each in events if isinstance(each.attributes, WorkflowTaskCompleted)]
    before = [each for each in ends if each <= wanted] or ends[:1]
    if not before:
        raise UsageError("the run has completed no workflow task yet: there is nothing to reset to")
    return before[-1]


# --- values -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HistoryTable:
    """A page of the table of a run's events. `next_page` asks for the next one; empty: there is none."""

    workflow_id: str
    run_id: str
    rows: tuple[Mapping[str, Any], ...]
    total: int
    newest_first: bool
    next_page: str


def event_row(event: Mapping[str, Any], peek: Peek | None) -> dict[str, Any]:
    """An event as the table of a history shows it: its payloads as values, or hidden without `peek`."""
    attributes: Any = next((value for key, value in event.items() if key.endswith("EventAttributes")), {})
    return {
        "id": event.get("eventId"),
        "time": event.get("eventTime", ""),
        "kind": str(event.get("eventType", "")).removeprefix("EVENT_TYPE_"),
        "attributes": json.dumps(_with_values(attributes, peek), indent=2, ensure_ascii=False),
    }


def _with_values(node: Any, peek: Peek | None) -> Any:
    if isinstance(node, list):
        return [_with_values(each, peek) for each in node]
    if not isinstance(node, dict):
        return node
    if isinstance(node.get("metadata"), dict) and "encoding" in node["metadata"]:
        return HIDDEN if peek is None else _value(peek([read_payload(node)]))
    return {
        name: HIDDEN
        if peek is None and name in _TEXTS_OF_FAILURES and _is_failure(node)
        else _with_values(each, peek)
        for name, each in node.items()
    }


_TEXTS_OF_FAILURES = ("message", "stackTrace")


def _is_failure(node: Mapping[str, Any]) -> bool:
    """Whether this is a failure of Temporal's JSON form, which names its kind in a field such as `applicationFailureInfo`."""
    return any(
        name.endswith("FailureInfo") or name in ("stackTrace", "cause", "encodedAttributes") for name in node
    )


def _value(shown: str) -> Any:
    try:
        return json.loads(shown)
    except ValueError:  # cut, or no JSON
        return shown


def hide_moment(moment: Moment) -> Moment:
    """A moment without the values of variables and the message of its error: with a codec they are as secret as the payloads that
    they came from.
    """
    fibers = moment.fibers or ()
    return msgspec.structs.replace(
        moment,
        error=moment.error and f"{moment.error.partition(':')[0]} {HIDDEN}",
        fibers=tuple(
            msgspec.structs.replace(
                fiber,
                frames=tuple(
                    msgspec.structs.replace(frame, values=dict.fromkeys(frame.values, HIDDEN))
                    for frame in fiber.frames
                ),
            )
            for fiber in fibers
        ),
    )


def hide_parked(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a worker without the messages of the errors that parked runs raised."""
    return {**facts, "parked": dict.fromkeys(facts["parked"], HIDDEN)}


def error_text(error: BaseException, *, shows: bool) -> str:
    """Return the message of an error, which may quote values; only its type unless values may be shown."""
    return str(error) if shows else f"{type(error).__name__} {HIDDEN}"


def replay_error(walked: Walked, *, shows: bool) -> str:
    """Return why a replay stopped, as `error_text` does; a report of nondeterminism quotes no values."""
    return (
        walked.error
        if shows or walked.is_nondeterminism or not walked.error
        else f"{walked.error_type} {HIDDEN}"
    )


def hide_change(change: ValueChange) -> ValueChange:
    """That a variable has changed, without its values."""
    return msgspec.structs.replace(change, before=change.before and HIDDEN, after=change.after and HIDDEN)


def source(file: str, line: int) -> list[tuple[int, str]]:
    """The lines of a file around one of them."""
    found = []
    for number in range(max(1, line - _AROUND), line + _AROUND + 1):
        text = linecache.getline(file, number)
        if text:
            found.append((number, text.rstrip("\n")))
    return found
