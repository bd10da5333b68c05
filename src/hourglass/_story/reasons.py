"""From what is known of a run to why it stands as it does. Pure; the parts are in `reasons_tasks`, `_steps` and `_closed`.

The order of `Cause` is the order of importance; what is alike becomes one finding with a count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hourglass._story import advice, reasons_closed, reasons_steps, reasons_tasks
from hourglass._story.captions import status
from hourglass._story.diagnosis import Cause, Diagnosis, Facts, Finding
from hourglass._story.faults import root
from hourglass._story.reading import text

_ORDER = {cause: at for at, cause in enumerate(Cause)}
_WRONG = frozenset(list(Cause)[: _ORDER[Cause.WORKER_BUSY]]) | {
    Cause.FAILED,
    Cause.TIMED_OUT,
    Cause.TERMINATED,
}


def diagnose(facts: Facts) -> Diagnosis:
    """Why a run stands as it does."""
    story = facts.story
    found = reasons_closed.closed(facts) if story.end is not None else _open(facts)
    findings = _folded(sorted(found, key=lambda each: _ORDER[each.cause]))
    return Diagnosis(
        workflow_id=story.workflow_id,
        workflow_type=story.workflow_type,
        run_id=story.run_id,
        task_queue=story.task_queue,
        state=status(story),
        start=story.start,
        end=story.end,
        now=facts.now,
        findings=findings,
        wrong=any(is_wrong(each) for each in findings),
    )


def is_wrong(finding: Finding) -> bool:
    """Whether somebody should do something about it; a child's trouble is its parent's."""
    return finding.cause in _WRONG or (finding.inner is not None and finding.inner.wrong)


def _open(facts: Facts) -> list[Finding]:
    asked = _cancelling(facts)
    stuck = reasons_tasks.stuck(facts)
    if stuck:
        return [*stuck, *asked]
    steps = reasons_steps.steps(facts)
    standing = reasons_steps.standing(facts, steps)
    limits = {each.until for each in standing}  # the timer of a wait with a limit is told with the wait
    steps = [each for each in steps if each.cause is not Cause.TIMER or each.until not in limits]
    return [*reasons_tasks.misfit(facts), *reasons_tasks.unserved(facts), *asked, *steps, *standing]


def _cancelling(facts: Facts) -> list[Finding]:
    """That it was asked to cancel: its code has the last word, and has not said it."""
    asked = next((each for each in facts.events if each.kind == "WORKFLOW_EXECUTION_CANCEL_REQUESTED"), None)
    if asked is None:
        return []
    reason = text(asked.attributes, "cause")
    return [
        Finding(
            cause=Cause.CANCELLING,
            what="was asked to cancel and has not ended: its code cleans up, or goes on all the same",
            since=asked.time,
            details=(f"the reason given: {reason}",) if reason else (),
            actions=advice.refused_cancel(facts),
        )
    ]


def not_found(workflow_id: str, similar: Sequence[str], options: str) -> Diagnosis:
    """There is no such workflow."""
    finding = Finding(
        cause=Cause.NOT_FOUND,
        what="is not known here",
        details=(f"similar ids: {', '.join(similar)}",)
        if similar
        else ("no other workflow has a similar id",),
        actions=advice.search(similar, options),
    )
    return Diagnosis(workflow_id=workflow_id, state="not found", findings=(finding,), wrong=True)


def unreachable(workflow_id: str, target: str, reason: str, options: str) -> Diagnosis:
    """Nobody can be asked."""
    finding = Finding(
        cause=Cause.UNREACHABLE,
        what=f"cannot be looked at: {target} cannot be reached",
        details=(reason,),
        actions=advice.reach(options),
    )
    return Diagnosis(workflow_id=workflow_id, state="unknown", findings=(finding,), wrong=True)


def _folded(findings: list[Finding]) -> tuple[Finding, ...]:
    kept: dict[tuple[Cause, str, str], Finding] = {}
    for each in findings:
        first = root(each.faults)
        key = each.cause, each.what, "" if first is None else first.message
        known = kept.get(key)
        kept[key] = each if known is None else replace(known, count=known.count + 1)
    return tuple(kept.values())
