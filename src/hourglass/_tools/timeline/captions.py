"""The text of a picture, shared by all formats: names, durations, tooltips, and the lines above and below the bars."""

from __future__ import annotations

from collections import defaultdict

from hourglass._tools.timeline.faults import root
from hourglass._tools.timeline.run_state import FAILING_AFTER, Problem
from hourglass._tools.timeline.spans import Kind, Outcome, Phase, Span, Story
from hourglass._tools.timeline.text import duration, moment, share

OUTCOMES = {
    Outcome.OPEN: "running",
    Outcome.RETRYING: "retrying",
    Outcome.DONE: "completed",
}
KINDS = {
    Kind.RUN: "workflow",
    Kind.TASK: "workflow task",
    Kind.ACTIVITY: "activity",
    Kind.LOCAL: "local activity",
    Kind.TIMER: "timer",
    Kind.CHILD: "child workflow",
    Kind.NEXUS: "nexus operation",
    Kind.EXTERNAL: "another workflow",
    Kind.UPDATE: "update",
    Kind.SIGNAL: "signal",
    Kind.CANCEL: "cancellation",
    Kind.MARKER: "note",
}
STYLES = {
    Kind.RUN: "run",
    Kind.ACTIVITY: "activity",
    Kind.LOCAL: "local",
    Kind.TIMER: "timer",
    Kind.CHILD: "child",
    Kind.NEXUS: "child",
    Kind.EXTERNAL: "message",
    Kind.UPDATE: "message",
    Kind.SIGNAL: "message",
}
"""The style of each kind of span, which is the name of a colour in each picture."""
_MOST_WAITS = 4
_LEAST_SHARE = 0.01


def status(story: Story) -> str:
    """Return the state of the run, in the words of lists (see `run_state`)."""
    if story.outcome is Outcome.RETRYING:
        return f"{OUTCOMES[Outcome.OPEN]}, {Problem.PARKED.value}"
    if story.end is None and any(map(_is_failing, story.spans[1:])):
        return f"{outcome(story.outcome)}, {Problem.ACTIVITY_FAILS.value}"
    return outcome(story.outcome)


def _is_failing(span: Span) -> bool:
    retried = span.outcome is Outcome.RETRYING or (span.outcome is Outcome.OPEN and span.attempts > 1)
    return span.kind is Kind.ACTIVITY and span.end is None and retried and span.attempts > FAILING_AFTER


def outcome(which: Outcome) -> str:
    """Return the name of an outcome, in one or two words."""
    return OUTCOMES.get(which, str(which))


def counted(span: Span) -> str:
    """Return the text after the name: the count, or the number of attempts."""
    if span.count > 1:
        return f"×{span.count}" + (f", {span.bad} failed" if span.bad else "")
    if span.attempts > 1:
        return (
            f"{span.attempts} attempts"
            if span.outcome is not Outcome.RETRYING
            else f"attempt {span.attempts}"
        )
    return ""


def length(span: Span, story: Story) -> str:
    """Return the duration of a span, or "" for a point in time."""
    if span.segments and span.count == 1 and all(segment.phase is Phase.POINT for segment in span.segments):
        return ""
    end = story.until if span.end is None else span.end
    return duration(end - span.start)


def tooltip(span: Span, story: Story) -> str:
    """Return all details of a span, as several lines."""
    lines = [f"{KINDS[span.kind]} {span.name}" if span.kind not in _SELF else span.name]
    parts = [outcome(span.outcome), length(span, story), counted(span), span.note]
    lines.append(", ".join(entry for entry in parts if entry))
    lines.append(f"at {duration(span.start - story.start)}: {moment(span.start)}")
    lines += [str(entry) for entry in span.faults]
    if span.attempts > 1 and any(entry.guessed for entry in span.segments):
        lines.append("the times of earlier attempts are estimated from the retry policy")
    lines += [f"{what}: {value}" for what, value in span.shown]
    return "\n".join(lines)


_SELF = (Kind.TIMER, Kind.TASK, Kind.CANCEL, Kind.MARKER)


def reason(span: Span) -> str:
    """Return the reason for a failure in one line, or "" if there is no failure."""
    if not (span.outcome.bad or span.bad):
        return ""
    first = root(span.faults)
    return "" if first is None else str(first)


def reason_beside(span: Span, story: Story) -> str:
    """Return the failure reason for the row of a span. Return "" for the run if one of its steps shows the same reason."""
    why = reason(span)
    if span.kind is Kind.RUN and any(reason(step) == why for step in story.spans[1:]):
        return ""
    return why


def facts(story: Story) -> tuple[str, ...]:
    """Return the start, the duration, the size of the history and similar facts, as short phrases."""
    ran = duration(max(story.until - story.start, 0))
    lines = [
        f"started {moment(story.start)}",
        f"{'running for' if story.end is None else 'ran'} {ran}",
        f"{story.events:,} events".replace(",", " ") if story.events != 1 else "1 event",
    ]
    if story.task_queue:
        lines.append(f"task queue {story.task_queue}")
    if story.failed_tasks:
        lines.append(f"{story.failed_tasks} failed workflow task{'s' * (story.failed_tasks != 1)}")
    return tuple(lines)


def waited(story: Story) -> tuple[tuple[str, str], ...]:
    """Return the longest waits of the run, each as its duration and the awaited object."""
    total: dict[str, int] = defaultdict(int)
    times: dict[str, int] = defaultdict(int)
    for wait in story.waits:
        total[wait.what] += wait.end - wait.start
        times[wait.what] += 1
    ran = story.until - story.start
    most = sorted(
        (what for what in total if total[what] >= _LEAST_SHARE * ran), key=lambda what: -total[what]
    )
    rows = []
    # If only one wait would remain for the summary line, show that wait instead.
    shown = _MOST_WAITS + (len(most) == _MOST_WAITS + 1)
    for what in most[:shown]:
        often = f", {times[what]} times" if times[what] > 1 else ""
        rows.append((duration(total[what]), f"{what}{often} ({share(total[what], ran)})"))
    if len(most) > shown:
        remaining = sum(total[what] for what in most[shown:])
        rows.append((duration(remaining), f"{len(most) - shown} others ({share(remaining, ran)})"))
    return tuple(rows)
