"""What an open run waits for: its open steps from the history, and the lines of code that its fibers stand at. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from hourglass._story import advice
from hourglass._story.diagnosis import Cause, Facts, Finding
from hourglass._story.faults import place_of
from hourglass._story.reading import span_of, text
from hourglass._story.spans import Kind, Phase, Span
from hourglass._story.stacks import Stand, Waits

Step = Callable[[Facts, Span], Finding]


def steps(facts: Facts) -> list[Finding]:
    """A finding for every step that has not ended."""
    found = [each for each in facts.story.spans[1:] if each.end is None and each.kind in _STEPS]
    return [_STEPS[each.kind](facts, each) for each in found]


def standing(facts: Facts, steps: Sequence[Finding]) -> list[Finding]:
    """What the steps do not tell: messages, conditions and locks that the code waits for, by the lines it stands at."""
    found = [made for each in facts.stands if (made := _stand(facts, each)) is not None]
    if found or steps:
        return _limited(facts, found)
    return [
        Finding(
            cause=Cause.MESSAGE,
            what="waits for a signal, an update, or a condition in its code",
            since=waiting_since(facts),
            details=(f"where it stands is not known: {facts.unanswered}",) if facts.unanswered else (),
            actions=advice.send_something(facts),
        )
    ]


def waiting_since(facts: Facts) -> int | None:
    """When its code ran last."""
    segments = facts.story.run.segments
    return segments[-1].start if segments and segments[-1].phase is Phase.WAITING else None


# --- steps of the history --------------------------------------------------------------------------------------------


def _activity(facts: Facts, span: Span) -> Finding:
    queue = _queue(facts, span)
    tried = replace(
        _BASE,
        since=span.start,
        place=place_of(span.faults),
        faults=span.faults,
        attempts=span.attempts,
        max_attempts=span.max_attempts,
        next_attempt=span.next_attempt,
        details=_called_at(facts, Waits.ACTIVITY),
    )
    running = any(each.phase is Phase.RUNNING for each in span.segments[-1:])
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
            actions=advice.start_worker(queue, facts.options),
        )
    return replace(
        tried,
        cause=Cause.ACTIVITY_QUEUED,
        what=f"waits for activity {span.name}, which no worker has taken yet",
        next_attempt=None,
        actions=advice.look_again(facts),
    )


_BASE = Finding(cause=Cause.OTHER, what="")


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
    attributes = _attributes(facts, span)
    given = [
        f"{name} {limit / 1e9:g} s"
        for key, name in _LIMITS.items()
        if (limit := span_of(attributes.get(key)))
    ]
    return (f"its limits: {', '.join(given)}",) if given else ()


def _timer(facts: Facts, span: Span) -> Finding:
    length = span_of(_attributes(facts, span).get("startToFireTimeout"))
    due = span.start + length
    what = "waits for a timer" if span.name.startswith("timer ") else f"waits for a {span.name}"
    return Finding(
        cause=Cause.TIMER,
        what=what,
        since=span.start,
        until=due,
        details=_called_at(facts, Waits.TIMER) or _not_known(facts),
        actions=advice.nothing(),
    )


def _not_known(facts: Facts) -> tuple[str, ...]:
    """A timer may be the limit of another wait, which only the code knows."""
    if facts.stands or not facts.unanswered:
        return ()
    return (f"perhaps for a message before that; where its code stands is not known: {facts.unanswered}",)


def _child(facts: Facts, span: Span) -> Finding:
    inner = facts.children.get(span.child_id)
    begun = bool(span.target)
    return Finding(
        cause=Cause.CHILD,
        what=f"waits for child workflow {span.name} ({span.child_id})"
        + ("" if begun else ", which has not been started yet"),
        since=span.start,
        details=_called_at(facts, Waits.CHILD),
        actions=advice.ask_child(span.child_id, facts.options) if begun else (),
        inner=inner,
    )


def _update(facts: Facts, span: Span) -> Finding:
    stand = next((each for each in facts.stands if each.fiber == f"update {span.name}"), None)
    return Finding(
        cause=Cause.UPDATE,
        what=f"handles update {span.name!r}, which has not returned",
        since=span.start,
        place="" if stand is None else stand.place,
        code="" if stand is None else stand.code,
        details=(f"where its handler stands is not known: {facts.unanswered}",) if facts.unanswered else (),
        actions=advice.send_something(facts, without=span.name),
    )


def _other(facts: Facts, span: Span) -> Finding:
    named = f"nexus operation {span.name}" if span.kind is Kind.NEXUS else f"another workflow: {span.name}"
    return Finding(cause=Cause.OTHER, what=f"waits for {named}", since=span.start, faults=span.faults)


_STEPS: dict[Kind, Step] = {
    Kind.ACTIVITY: _activity,
    Kind.TIMER: _timer,
    Kind.CHILD: _child,
    Kind.UPDATE: _update,
    Kind.NEXUS: _other,
    Kind.EXTERNAL: _other,
}


def _attributes(facts: Facts, span: Span) -> dict[str, object]:
    found = next((each for each in facts.events if each.id == span.id), None)
    return {} if found is None else dict(found.attributes)


def _queue(facts: Facts, span: Span) -> str:
    return text(_attributes(facts, span), "taskQueue", "name") or facts.story.task_queue


def _called_at(facts: Facts, kind: Waits) -> tuple[str, ...]:
    """Where the code waits, if that can only be one place."""
    found = [each for each in facts.stands if each.waits in (kind, Waits.TASK)]
    return (f"the code waits at {found[0].place}: {found[0].code}",) if len(found) == 1 else ()


# --- where the code stands -------------------------------------------------------------------------------------------


def _stand(facts: Facts, stand: Stand) -> Finding | None:
    if stand.fiber.startswith("update "):
        return None  # told with the update
    made = _STANDS.get(stand.waits)
    if made is None:
        return None
    return replace(made(facts, stand), since=waiting_since(facts), place=stand.place, code=stand.code)


def _signal(facts: Facts, stand: Stand) -> Finding:
    names = facts.awaited or facts.signals
    said = " or ".join(repr(each) for each in names)
    return Finding(
        cause=Cause.SIGNAL,
        what=f"waits for signal {said}" if names else "waits for a signal",
        actions=advice.send_signal(facts, names),
    )


def _condition(facts: Facts, stand: Stand) -> Finding:
    return Finding(
        cause=Cause.CONDITION,
        what="waits for a condition in its code to become true",
        actions=advice.send_something(facts),
    )


def _lock(facts: Facts, stand: Stand) -> Finding:
    others = [each for each in facts.stands if each is not stand]
    return Finding(
        cause=Cause.LOCK,
        what=f"waits for {_LOCKS.get(stand.call, 'a lock')} in its code",
        details=tuple(f"meanwhile {each.fiber} stands at {each.place}: {each.code}" for each in others[:3]),
        actions=advice.let_go(facts),
    )


_LOCKS = {
    "__enter__": "a lock or semaphore that others hold",
    "acquire": "a lock or semaphore that others hold",
    "wait": "an event to be set",
    "get": "an item in a queue",
    "put": "room in a queue",
}
_STANDS: dict[Waits, Callable[[Facts, Stand], Finding]] = {
    Waits.SIGNAL: _signal,
    Waits.CONDITION: _condition,
    Waits.LOCK: _lock,
}


def _limited(facts: Facts, found: list[Finding]) -> list[Finding]:
    """A wait with a time limit has a timer: where there is one of each, they belong together."""
    timers = [each for each in facts.story.spans[1:] if each.end is None and each.kind is Kind.TIMER]
    limited = [each.place for each in facts.stands if each.limited]
    if len(timers) != 1 or len(limited) != 1:
        return found
    due = timers[0].start + span_of(_attributes(facts, timers[0]).get("startToFireTimeout"))
    return [replace(each, until=due) if each.place == limited[0] else each for each in found]
