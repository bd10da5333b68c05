"""Why an activity has not ended: it fails, times out, is paused, runs, or nobody takes it. Pure."""

from __future__ import annotations

from dataclasses import replace

from hourglass._story import advice
from hourglass._story.diagnosis import Cause, Facts, Finding, QueueFacts
from hourglass._story.faults import place_of
from hourglass._story.reading import span_of, text
from hourglass._story.spans import Phase, Span
from hourglass._story.stacks import Waits

_MOMENT, _PATIENCE = 1_000_000_000, 10_000_000_000
"""How long an activity may wait to be taken before that is worth a word, and before it is worth more than another look."""


def activity(facts: Facts, span: Span) -> Finding:
    """What an open activity does: it fails, is paused, runs, or waits to be taken."""
    queue = _queue(facts, span)
    tried = replace(
        _BASE,
        since=span.start,
        place=place_of(span.faults),
        faults=span.faults,
        attempts=span.attempts,
        max_attempts=span.max_attempts,
        next_attempt=span.next_attempt,
        details=called_at(facts, Waits.ACTIVITY),
    )
    running = any(each.phase is Phase.RUNNING for each in span.segments[-1:])
    if span.paused:
        return _paused(facts, span, tried)
    if span.faults:
        return _retried(facts, span, replace(tried, attempts=max(span.attempts - 1, 1)), queue)
    if running:
        return replace(
            tried,
            cause=Cause.ACTIVITY_RUNS,
            what=f"waits for activity {span.name}, which is running",
            since=span.segments[-1].start,
            next_attempt=None,
            actions=advice.look_again(facts),
        )
    known = facts.queues.get(queue)
    if known is not None and not known.activity_pollers:
        return replace(
            tried,
            cause=Cause.NO_ACTIVITY_WORKER,
            what=f"waits for activity {span.name}, which nobody takes: no worker polls task queue {queue!r} for activities",
            next_attempt=None,
            actions=advice.start_worker(
                queue, facts.options, "Start a worker with the activity's code on that queue:"
            ),
        )
    return replace(
        tried,
        cause=Cause.ACTIVITY_QUEUED,
        what=f"waits for activity {span.name}, which no worker has taken yet",
        next_attempt=None,
        details=(*tried.details, *(_full(known) if facts.now - span.start > _MOMENT else ())),
        actions=advice.more_room(facts, queue)
        if facts.now - span.start > _PATIENCE
        else advice.look_again(facts),
    )


_BASE = Finding(cause=Cause.OTHER, what="")


def _full(queue: QueueFacts | None) -> tuple[str, ...]:
    """They poll, and do not take it: they have no room."""
    many = 0 if queue is None else len(queue.activity_pollers)
    if not many:
        return ()
    who = (
        "the worker that polls for activities has"
        if many == 1
        else f"the {many} workers that poll for activities have"
    )
    return (
        f"{who} no room for it yet: as many activities run as may, or as many are begun as a second allows",
    )


def _paused(facts: Facts, span: Span, tried: Finding) -> Finding:
    return replace(
        tried,
        cause=Cause.PAUSED,
        what=f"waits for activity {span.name}, which is paused: it is not tried until somebody lets it go on",
        attempts=max(span.attempts - 1, 1) if span.faults else 0,
        next_attempt=None,
        actions=advice.unpause(facts, span.target),
    )


def _retried(facts: Facts, span: Span, tried: Finding, queue: str) -> Finding:
    last = span.faults[-1]
    if any(each.type == "UnknownTypeError" for each in span.faults):
        return replace(
            tried,
            cause=Cause.UNKNOWN_ACTIVITY,
            what=f"waits for activity {span.name}, which the worker does not know",
            actions=advice.unknown_activity(facts, queue),
        )
    if last.type.startswith(("timeout", "TimedOutError")):
        return replace(
            tried,
            cause=Cause.ACTIVITY_TIMES_OUT,
            what=f"waits for activity {span.name}, which times out again and again",
            details=(*tried.details, *_limits(facts, span)),
            actions=advice.longer_timeout(facts),
        )
    return replace(
        tried,
        cause=Cause.ACTIVITY_FAILS,
        what=f"waits for activity {span.name}, which fails and is retried",
        actions=advice.failing_activity(facts),
    )


_LIMITS = {
    "scheduleToCloseTimeout": "schedule_to_close_timeout",
    "scheduleToStartTimeout": "schedule_to_start_timeout",
    "startToCloseTimeout": "start_to_close_timeout",
    "heartbeatTimeout": "heartbeat_timeout",
}


def _limits(facts: Facts, span: Span) -> tuple[str, ...]:
    begun = attributes(facts, span)
    given = [
        f"{name} {limit / 1e9:g} s" for key, name in _LIMITS.items() if (limit := span_of(begun.get(key)))
    ]
    return (f"its limits: {', '.join(given)}",) if given else ()


# --- what others ask, too ------------------------------------------------------------------------------------------


def attributes(facts: Facts, span: Span) -> dict[str, object]:
    """Those of the event that a span began with."""
    found = next((each for each in facts.events if each.id == span.id), None)
    return {} if found is None else dict(found.attributes)


def _queue(facts: Facts, span: Span) -> str:
    return text(attributes(facts, span), "taskQueue", "name") or facts.story.task_queue


def called_at(facts: Facts, kind: Waits) -> tuple[str, ...]:
    """Where the code waits, if that can only be one place: one that waits for such a thing, else one that waits for a task."""
    exact = [each for each in facts.stands if each.waits is kind]
    found = exact or [each for each in facts.stands if each.waits is Waits.TASK]
    return (f"the code waits at {found[0].place}: {found[0].code}",) if len(found) == 1 else ()
