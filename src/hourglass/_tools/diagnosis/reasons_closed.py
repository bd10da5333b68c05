"""The reason why a closed run ended: one finding with its outcome and the cause. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence

from hourglass._history import events as h
from hourglass._tools.diagnosis import advice, reasons_tasks
from hourglass._tools.diagnosis.diagnosis import Action, Cause, Facts, Finding, command
from hourglass._tools.timeline.captions import KINDS, counted
from hourglass._tools.timeline.faults import place_of, root
from hourglass._tools.timeline.spans import Kind, Outcome, Span, Story
from hourglass._tools.timeline.text import S, clean, duration


def closed(facts: Facts) -> list[Finding]:
    """Return the outcome of a run and its cause: completed, failed, timed out, cancelled or terminated."""
    return [_CLOSED.get(facts.story.outcome, _done)(facts)]


def _done(facts: Facts) -> Finding:
    return Finding(
        cause=Cause.DONE,
        what="has completed",
        since=facts.story.end,
        details=_trouble(facts),
        actions=advice.see(facts),
    )


def _failed(facts: Facts) -> Finding:
    step = _culprit(facts.story)
    first = root(facts.story.faults)
    place = place_of(facts.story.faults) or ("" if step is None else place_of(step.faults))
    what = "failed" if step is None else f"failed, because {KINDS[step.kind]} {step.name} {_ended(step)}"
    details = () if step is None or not step.note else (f"{step.name}: {step.note}",)
    _, before, since = around_failure(facts.story)
    undone = first_undone(before, since)
    if since:
        ran = ", ".join(dict.fromkeys(later.name for later in since))
        details = (
            *details,
            f"after that it ran {ran}",
            *(f"{later.name} {_ended(later)}, too" for later in since if later.outcome.bad),
        )
    return Finding(
        cause=Cause.FAILED,
        what=what,
        since=facts.story.end,
        place=place,
        faults=facts.story.faults if first is not None else (),
        attempts=0 if step is None else step.attempts,
        max_attempts=0 if step is None else step.max_attempts,
        details=details,
        actions=advice.after_undoing(facts, "" if undone is None else undone.name, since)
        if since
        else advice.after_failure(facts, "" if step is None else step.name),
    )


_WORK = (Kind.ACTIVITY, Kind.LOCAL, Kind.CHILD, Kind.NEXUS)


def around_failure(story: Story) -> tuple[Span | None, list[Span], list[Span]]:
    """Return the step whose failure ended the run, if any, the steps up to and including that step, and the steps after it.

    The steps after the failure usually compensate earlier steps. If the run raised an error of its own, its last failed step
    counts as the failed step.
    """
    steps = [step for step in story.spans[1:] if step.kind in _WORK and step.depth == 0]
    failed = _culprit(story) or next((step for step in reversed(steps) if step.outcome.bad), None)
    if failed is None or failed.end is None:
        return failed, steps, []
    since = [step for step in steps if step.start >= (failed.end or 0) and step is not failed]
    return failed, [step for step in steps if step not in since], since


def first_undone(before: Sequence[Span], since: Sequence[Span]) -> Span | None:
    """Return the first step in `before` that the steps in `since` have undone.

    Steps match if their names share a word (`book_flight`, `cancel_flight`). If a later step matches no earlier one, all
    steps count as undone, so that no undone step counts as done.
    """
    positions: list[int] = []
    for later in since:
        name_words = _words(later.name)
        shared = [at for at, step in enumerate(before) if name_words & _words(step.name)]
        if not shared:
            return before[0] if before else None
        positions.append(shared[0])
    return before[min(positions)] if positions else None


def _words(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+", name)}


def _culprit(story: Story) -> Span | None:
    """Return the step whose failure ended the run: the last step with the same root cause."""
    first = root(story.faults)
    if first is None:
        return None
    steps = [span for span in story.spans[1:] if span.kind in _WORK and span.outcome.bad and span.faults]
    same = [span for span in steps if (cause := root(span.faults)) and cause.message == first.message]
    return same[-1] if same else None


def _ended(step: Span) -> str:
    return {Outcome.TIMED_OUT: "timed out", Outcome.TERMINATED: "was terminated"}.get(step.outcome, "failed")


def _timed_out(facts: Facts) -> Finding:
    ran = (facts.story.end or 0) - facts.story.start
    details = [f"it timed out while it waited for {wait}" for wait in _left(facts)]
    for name in ("run_timeout", "execution_timeout"):
        limit = round(getattr(reasons_tasks.started(facts).spec, name) * S)
        if limit and limit <= ran + _SLACK:
            details.insert(0, f"its {name} was {duration(limit)}")
            break
    return Finding(
        cause=Cause.TIMED_OUT,
        what="timed out",
        since=facts.story.end,
        details=tuple(details),
        actions=advice.after_failure(facts, ""),
    )


_SLACK = 1_000_000_000


def _left(facts: Facts) -> list[str]:
    left = [span for span in facts.story.spans[1:] if span.outcome is Outcome.LEFT]
    return [
        f"{KINDS[span.kind]} {span.name}" if span.kind is not Kind.TIMER else span.name for span in left[:3]
    ]


def moved(target: str, run_id: str) -> str:
    """Return the termination reason of a run that continues at another target."""
    return f"moved to {target} as run {run_id}"


_MOVED = re.compile(r"moved to (\S+) as run \S+\Z")


def _terminated(facts: Facts) -> Finding:
    end = facts.events[-1].attributes
    who, reason = clean(getattr(end, "identity", "")), clean(getattr(end, "reason", ""))
    if match := _MOVED.match(reason):  # a reset here would execute the run twice
        return Finding(
            cause=Cause.CONTINUED,
            what=f"was {reason}, where it continues",
            since=facts.story.end,
            actions=(
                Action(
                    "Diagnose it on the server:",
                    command(f"why {facts.id}", f"--target {shlex.quote(match[1])}"),
                ),
                *advice.see(facts),
            ),
        )
    return Finding(
        cause=Cause.TERMINATED,
        what="was terminated" + (f" by {who}" if who else ""),
        since=facts.story.end,
        details=(
            (f"reason: {reason}" if reason else "without a reason"),
            *(f"it was waiting for {wait}" for wait in _left(facts)),
        ),
        actions=advice.after_failure(facts, ""),
    )


def _cancelled(facts: Facts) -> Finding:
    request = reasons_tasks.last(facts, (h.WorkflowExecutionCancelRequested,))
    who, reason, parent = (
        clean(getattr(request and request.attributes, name, ""))
        for name in ("identity", "reason", "external_workflow_id")
    )
    by = f" by workflow {parent}" if parent else f" by {who}" if who else ""
    return Finding(
        cause=Cause.CANCELLED,
        what=f"was cancelled{by}",
        since=facts.story.end,
        details=((f"reason: {reason}",) if reason else ()),
        actions=advice.see(facts),
    )


def _continued(facts: Facts) -> Finding:
    return Finding(
        cause=Cause.CONTINUED,
        what="continued as another run of the same workflow",
        since=facts.story.end,
        details=tuple(f"{what} {value}" for what, value in facts.story.links if what == "continued by run"),
        actions=advice.see(facts),
    )


def _trouble(facts: Facts) -> tuple[str, ...]:
    lines = []
    if facts.story.failed_tasks:
        lines.append(f"its workflow task had failed {facts.story.failed_tasks}×")
    for span in facts.story.spans[1:]:
        if span.kind is Kind.ACTIVITY and (span.outcome.bad or span.attempts > 1):
            lines.append(f"activity {span.name} {span.outcome} ({counted(span) or '1 attempt'})")
    return tuple(lines[:5])


_CLOSED: dict[Outcome, Callable[[Facts], Finding]] = {
    Outcome.FAILED: _failed,
    Outcome.TIMED_OUT: _timed_out,
    Outcome.TERMINATED: _terminated,
    Outcome.CANCELLED: _cancelled,
    Outcome.CONTINUED: _continued,
}
