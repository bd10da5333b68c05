"""What an open run waits for: its open steps from the history, and the lines of code that its fibers stand at. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from hourglass._story import advice
from hourglass._story.diagnosis import Cause, Facts, Finding
from hourglass._story.reading import span_of
from hourglass._story.reasons_activities import activity, attributes, called_at
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


def _timer(facts: Facts, span: Span) -> Finding:
    length = span_of(attributes(facts, span).get("startToFireTimeout"))
    due = span.start + length
    what = "waits for a timer" if span.name.startswith("timer ") else f"waits for a {span.name}"
    return Finding(
        cause=Cause.TIMER,
        what=what,
        since=span.start,
        until=due,
        details=called_at(facts, Waits.TIMER) or _not_known(facts),
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
        details=called_at(facts, Waits.CHILD),
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
    Kind.ACTIVITY: activity,
    Kind.TIMER: _timer,
    Kind.CHILD: _child,
    Kind.UPDATE: _update,
    Kind.NEXUS: _other,
    Kind.EXTERNAL: _other,
}


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
    due = timers[0].start + span_of(attributes(facts, timers[0]).get("startToFireTimeout"))
    return [replace(each, until=due) if each.place == limited[0] else each for each in found]
