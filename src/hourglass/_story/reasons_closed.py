"""How a run ended and why: by itself, by a failure, by its time, by somebody's hand. Pure."""

from __future__ import annotations

from collections.abc import Callable

from hourglass._story import advice
from hourglass._story.captions import KINDS, counted
from hourglass._story.diagnosis import Cause, Facts, Finding
from hourglass._story.durations import duration
from hourglass._story.faults import place_of, root
from hourglass._story.reading import Event, span_of, text
from hourglass._story.spans import Kind, Outcome, Span


def closed(facts: Facts) -> list[Finding]:
    """What is said of a run that has ended."""
    return [_CLOSED.get(facts.story.outcome, _done)(facts)]


def _done(facts: Facts) -> Finding:
    return Finding(
        cause=Cause.DONE,
        what="has completed: nothing is wrong",
        since=facts.story.end,
        details=_trouble(facts),
        actions=advice.see(facts),
    )


def _failed(facts: Facts) -> Finding:
    step = _culprit(facts)
    first = root(facts.story.faults)
    place = place_of(facts.story.faults) or ("" if step is None else place_of(step.faults))
    what = "failed" if step is None else f"failed, because {KINDS[step.kind]} {step.name} {_ended(step)}"
    details = () if step is None or not step.note else (f"{step.name}: {step.note}",)
    return Finding(
        cause=Cause.FAILED,
        what=what,
        since=facts.story.end,
        place=place,
        faults=facts.story.faults if first is not None else (),
        attempts=0 if step is None else step.attempts,
        max_attempts=0 if step is None else step.max_attempts,
        details=details,
        actions=advice.after_failure(facts, "" if step is None else step.name),
    )


def _culprit(facts: Facts) -> Span | None:
    """The step whose failure the run died of: the last that ended with the same root cause."""
    first = root(facts.story.faults)
    if first is None:
        return None
    steps = [
        each
        for each in facts.story.spans[1:]
        if each.kind in (Kind.ACTIVITY, Kind.LOCAL, Kind.CHILD, Kind.NEXUS)
        and each.outcome.bad
        and each.faults
    ]
    same = [each for each in steps if (cause := root(each.faults)) and cause.message == first.message]
    return same[-1] if same else None


def _ended(step: Span) -> str:
    return {Outcome.TIMED_OUT: "timed out", Outcome.TERMINATED: "was terminated"}.get(step.outcome, "failed")


def _timed_out(facts: Facts) -> Finding:
    started = next((each for each in facts.events if each.kind == "WORKFLOW_EXECUTION_STARTED"), None)
    ran = (facts.story.end or 0) - facts.story.start
    details = [f"when its time was over, it waited for {each}" for each in _left(facts)]
    for key, name in (
        ("workflowRunTimeout", "run_timeout"),
        ("workflowExecutionTimeout", "execution_timeout"),
    ):
        limit = 0 if started is None else span_of(started.attributes.get(key))
        if limit and limit <= ran + _SLACK:
            details.insert(0, f"its {name} was {duration(limit)}")
            break
    return Finding(
        cause=Cause.TIMED_OUT,
        what="timed out: it took longer than it was allowed to",
        since=facts.story.end,
        details=tuple(details),
        actions=advice.after_failure(facts, ""),
    )


_SLACK = 1_000_000_000


def _left(facts: Facts) -> list[str]:
    left = [each for each in facts.story.spans[1:] if each.outcome is Outcome.LEFT]
    return [
        f"{KINDS[each.kind]} {each.name}" if each.kind is not Kind.TIMER else each.name for each in left[:3]
    ]


def _terminated(facts: Facts) -> Finding:
    event = facts.events[-1]
    who, reason = text(event.attributes, "identity"), text(event.attributes, "reason")
    return Finding(
        cause=Cause.TERMINATED,
        what="was terminated" + (f" by {who}" if who else ""),
        since=facts.story.end,
        details=((f"the reason given: {reason}" if reason else "no reason was given"), *_waited(facts)),
        actions=advice.after_failure(facts, ""),
    )


def _cancelled(facts: Facts) -> Finding:
    asked = _last(facts, "WORKFLOW_EXECUTION_CANCEL_REQUESTED")
    who = "" if asked is None else text(asked.attributes, "identity")
    reason = "" if asked is None else text(asked.attributes, "cause")
    parent = "" if asked is None else text(asked.attributes, "externalWorkflowExecution", "workflowId")
    by = f" by workflow {parent}" if parent else f" by {who}" if who else ""
    return Finding(
        cause=Cause.CANCELLED,
        what=f"was cancelled, as it was asked to{by}",
        since=facts.story.end,
        details=((f"the reason given: {reason}",) if reason else ()),
        actions=advice.see(facts),
    )


def _continued(facts: Facts) -> Finding:
    return Finding(
        cause=Cause.CONTINUED,
        what="goes on as another run of the same workflow: nothing is wrong",
        since=facts.story.end,
        details=tuple(f"{what} {value}" for what, value in facts.story.links if what == "continued by run"),
        actions=advice.see(facts),
    )


def _waited(facts: Facts) -> tuple[str, ...]:
    return tuple(f"it waited for {each}" for each in _left(facts))


def _last(facts: Facts, kind: str) -> Event | None:
    return next((each for each in reversed(facts.events) if each.kind == kind), None)


def _trouble(facts: Facts) -> tuple[str, ...]:
    """What went wrong on the way, though it ended well."""
    told = []
    if facts.story.failed_tasks:
        told.append(f"on the way its workflow task failed {facts.story.failed_tasks}×")
    for each in facts.story.spans[1:]:
        if each.kind is Kind.ACTIVITY and (each.outcome.bad or each.attempts > 1):
            told.append(f"on the way activity {each.name} {each.outcome} ({counted(each) or '1 attempt'})")
    return tuple(told[:5])


_CLOSED: dict[Outcome, Callable[[Facts], Finding]] = {
    Outcome.FAILED: _failed,
    Outcome.TIMED_OUT: _timed_out,
    Outcome.TERMINATED: _terminated,
    Outcome.CANCELLED: _cancelled,
    Outcome.CONTINUED: _continued,
}
