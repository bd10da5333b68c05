"""The story as JSON, for programs. Fields are only added. Times are RFC 3339 in UTC, durations are seconds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hourglass._story.durations import S, precise
from hourglass._story.spans import Fault, Span, Story


def document(story: Story) -> dict[str, Any]:
    """The story, ready for `json.dumps`."""
    return {
        "workflow_id": story.workflow_id,
        "run_id": story.run_id,
        "workflow_type": story.workflow_type,
        "task_queue": story.task_queue,
        "outcome": str(story.outcome),
        "start": precise(story.start),
        "end": None if story.end is None else precise(story.end),
        "until": precise(story.until),
        "duration": (story.until - story.start) / S,
        "events": story.events,
        "workflow_tasks": story.tasks,
        "failed_workflow_tasks": story.failed_tasks,
        "failure": _faults(story.faults),
        "links": [{"what": what, "value": value} for what, value in story.links],
        "values": dict(story.shown),
        "waiting_for": list(story.waiting_for),
        "waits": [
            {"start": precise(each.start), "duration": (each.end - each.start) / S, "for": each.what}
            for each in story.waits
        ],
        "spans": [_span(each, story) for each in story.spans],
    }


def _span(span: Span, story: Story) -> dict[str, Any]:
    end = story.until if span.end is None else span.end
    return {
        "event_id": span.id,
        "kind": str(span.kind),
        "name": span.name,
        "outcome": str(span.outcome),
        "start": precise(span.start),
        "end": None if span.end is None else precise(span.end),
        "duration": (end - span.start) / S,
        "attempts": span.attempts,
        "maximum_attempts": span.max_attempts or None,
        "next_attempt": None if span.next_attempt is None else precise(span.next_attempt),
        "depth": span.depth,
        "note": span.note,
        "failure": _faults(span.faults),
        "values": dict(span.shown),
        "segments": [
            {
                "start": precise(each.start),
                "duration": (each.end - each.start) / S,
                "phase": str(each.phase),
                "guessed": each.guessed,
            }
            for each in span.segments
        ],
    }


def _faults(faults: Iterable[Fault]) -> list[dict[str, str]]:
    return [{"type": each.type, "message": each.message, "place": each.place} for each in faults]
