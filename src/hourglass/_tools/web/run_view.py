"""Data that the pages of a run need besides its story: linked runs, the effects of a reset, source lines, hidden values.
Pure, except for reading source files.

Must not know: HTML, the client's calls.
"""

from __future__ import annotations

import json
import linecache
import re
from collections.abc import Iterator, Mapping, Sequence
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
from hourglass._tools.web.replay_child import WalkResult
from hourglass.errors import UsageError
from hourglass.replay import Moment, ValueChange

_RUN_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-")
_CONTEXT_LINES = 4


def chain(story: Story) -> Iterator[tuple[str, str, str]]:
    """Yield the runs linked to this one, each as its relation, the id to display, and the URL."""
    for relation, linked_id in story.links:
        url = addresses.run(story.workflow_id, linked_id) if _RUN_ID.match(linked_id) else ""
        yield relation, linked_id, addresses.workflow(linked_id) if relation == "child of" else url


def unprocessed_signals(events: Sequence[HistoryEvent]) -> tuple[HistoryEvent, ...]:
    """Return the signals received after the last completed workflow task. No code has processed these signals yet."""
    signals: list[HistoryEvent] = []
    for event in reversed(events):
        if isinstance(event.attributes, WorkflowTaskCompleted):
            break
        if isinstance(event.attributes, WorkflowExecutionSignaled):
            signals.append(event)
    return tuple(reversed(signals))


_EFFECTS = (Kind.ACTIVITY, Kind.LOCAL, Kind.CHILD, Kind.EXTERNAL, Kind.NEXUS)


@dataclass(frozen=True)
class ResetPlan:
    """The effects of a reset to the event `event_id`.

    The plan groups the steps after this event. `effects` took effect, and `unsuccessful` did not. `after_failure` started
    after a step had failed or a cancellation had been requested, and are usually compensations. `undone` is the first step
    that they may have compensated and that the new run would consider done.
    """

    event_id: int
    effects: tuple[Span, ...]
    unsuccessful: tuple[Span, ...]
    after_failure: tuple[Span, ...]
    failed: str
    undone: Span | None
    signals: int
    updates: int


def reset_plan(events: Sequence[HistoryEvent], story: Story, event_id: int) -> ResetPlan:
    """Return the effects of a reset to the last workflow task at or before an event.

    Raise `UsageError` if no workflow task has completed.
    """
    reset_id = _reset_point(events, event_id)
    later_steps = [step for step in story.spans[1:] if step.id >= reset_id]
    repeated = [step for step in later_steps if step.kind in _EFFECTS]
    done = [step for step in repeated if step.outcome is Outcome.DONE]
    failed, earlier_steps, _ = around_failure(story)
    cancel = next((step for step in story.spans[1:] if step.kind is Kind.CANCEL), None)
    if cancel is not None and (failed is None or cancel.start < (failed.end or cancel.start)):
        failed, failed_at = cancel, cancel.start
        earlier_steps = [step for step in story.spans[1:] if step.kind in _EFFECTS and step.start < failed_at]
    else:
        failed_at = story.until + 1 if failed is None or failed.end is None else failed.end
    after_failure = [step for step in done if step.start >= failed_at]
    undone = (
        first_undone(earlier_steps, after_failure) if failed is not None and failed.id >= reset_id else None
    )
    return ResetPlan(
        event_id=reset_id,
        effects=tuple(step for step in done if step.start < failed_at),
        unsuccessful=tuple(step for step in repeated if step.outcome is not Outcome.DONE),
        after_failure=tuple(after_failure),
        failed=""
        if failed is None
        else "the cancellation request"
        if failed.kind is Kind.CANCEL
        else f"{failed.name} failed",
        undone=undone if undone is not None and undone.id < reset_id else None,
        signals=sum(step.kind is Kind.SIGNAL for step in later_steps),
        updates=sum(step.kind is Kind.UPDATE for step in later_steps),
    )


def _reset_point(events: Sequence[HistoryEvent], event_id: int) -> int:
    """Return the id of the event that completed the last workflow task at or before an event."""
    ends = [event.id for event in events if isinstance(event.attributes, WorkflowTaskCompleted)]
    candidates = [end for end in ends if end <= event_id] or ends[:1]
    if not candidates:
        raise UsageError("the run cannot be reset, because it has not completed a workflow task yet")
    return candidates[-1]


@dataclass(frozen=True)
class HistoryTable:
    """A page of the table of a run's events. `next_page` is the token of the next page, or empty on the last page."""

    workflow_id: str
    run_id: str
    rows: tuple[Mapping[str, Any], ...]
    total: int
    newest_first: bool
    next_page: str


def event_row(event: Mapping[str, Any], peek: Peek | None) -> dict[str, Any]:
    """Return an event as a row of the table. Payloads are displayed by `peek`, or hidden without it."""
    attributes: Any = next((value for key, value in event.items() if key.endswith("EventAttributes")), {})
    return {
        "id": event.get("eventId"),
        "time": event.get("eventTime", ""),
        "kind": str(event.get("eventType", "")).removeprefix("EVENT_TYPE_"),
        "attributes": json.dumps(_with_values(attributes, peek), indent=2, ensure_ascii=False),
    }


def _with_values(node: Any, peek: Peek | None) -> Any:
    if isinstance(node, list):
        return [_with_values(member, peek) for member in node]
    if not isinstance(node, dict):
        return node
    if isinstance(node.get("metadata"), dict) and "encoding" in node["metadata"]:
        return HIDDEN if peek is None else _value(peek([read_payload(node)]))
    return {
        name: HIDDEN
        if peek is None and name in _FAILURE_TEXTS and _is_failure(node)
        else _with_values(member, peek)
        for name, member in node.items()
    }


_FAILURE_TEXTS = ("message", "stackTrace")


def _is_failure(node: Mapping[str, Any]) -> bool:
    """Whether a JSON object is a failure in Temporal's format, whose kind is a field such as `applicationFailureInfo`."""
    return any(
        name.endswith("FailureInfo") or name in ("stackTrace", "cause", "encodedAttributes") for name in node
    )


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:  # truncated, or not JSON
        return text


def hide_moment(moment: Moment) -> Moment:
    """Return a moment without values of variables and error message: they are as secret as their payloads."""
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


def error_text(error: BaseException, *, shows: bool) -> str:
    """Return the message of an error, or only the error's type if values must not be displayed."""
    return str(error) if shows else f"{type(error).__name__} {HIDDEN}"


def replay_error(walked: WalkResult, *, shows: bool) -> str:
    """Return why a replay stopped, like `error_text`. A report of nondeterminism has no values, so it is never hidden."""
    return (
        walked.error
        if shows or walked.is_nondeterminism or not walked.error
        else f"{walked.error_type} {HIDDEN}"
    )


def hide_change(change: ValueChange) -> ValueChange:
    """Return a change of a variable without its values."""
    return msgspec.structs.replace(change, before=change.before and HIDDEN, after=change.after and HIDDEN)


def source(file: str, line: int) -> list[tuple[int, str]]:
    """Return the lines of a file around a line."""
    lines = []
    for number in range(max(1, line - _CONTEXT_LINES), line + _CONTEXT_LINES + 1):
        text = linecache.getline(file, number)
        if text:
            lines.append((number, text.rstrip("\n")))
    return lines
