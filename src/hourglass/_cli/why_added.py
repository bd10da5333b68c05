"""What `hourglass why` says beyond a run's steps: that somebody paused it, and what its workflow task is at work on. Pure."""

from __future__ import annotations

import shlex
from dataclasses import replace

from hourglass._story.diagnosis import Action, Cause, Diagnosis, Facts, Finding
from hourglass._story.reading import Event, text
from hourglass._story.stacks import Waits


def is_paused(events: tuple[Event, ...]) -> Event | None:
    """The event by which somebody paused the run, if nobody has let it go on since."""
    marks = [each for each in events if each.kind in _PAUSES]
    return marks[-1] if marks and _PAUSES[marks[-1].kind] else None


_PAUSES = {"WORKFLOW_EXECUTION_PAUSED": True, "WORKFLOW_EXECUTION_UNPAUSED": False}


def added(diagnosis: Diagnosis, facts: Facts, temporal: str) -> Diagnosis:
    """The diagnosis, and what its steps do not say. `temporal` is what Temporal's own command needs to find the server."""
    pause = is_paused(facts.events) if facts.story.end is None else None
    if pause is not None:
        # A worker is not asked, and where the code stands is not known: what else is said are guesses.
        rest = [each for each in diagnosis.findings if each.cause is not Cause.MESSAGE]
        return replace(diagnosis, findings=(_paused(pause, facts, temporal), *rest), wrong=True)
    found = (_unheard(_addressed(_placed(each, facts), temporal), facts) for each in diagnosis.findings)
    return replace(diagnosis, findings=tuple(found))


def _paused(pause: Event, facts: Facts, temporal: str) -> Finding:
    who, reason = text(pause.attributes, "identity"), text(pause.attributes, "reason")
    words = f"temporal workflow unpause --workflow-id {shlex.quote(facts.story.workflow_id)} {temporal}"
    return Finding(
        cause=Cause.PAUSED,
        what="is paused: its code is not run until somebody lets it go on",
        since=pause.time,
        details=tuple(
            told for told, known in ((f"by {who}", who), (f"the reason given: {reason}", reason)) if known
        ),
        actions=(Action("Let it go on, in Temporal's web UI or by its own command:", words.rstrip()),),
    )


def _addressed(finding: Finding, temporal: str) -> Finding:
    """Temporal's own command does not know HOURGLASS_TARGET: it needs the address, also where we do without."""
    if finding.cause is not Cause.PAUSED or not temporal:
        return finding
    found = [
        replace(each, command=f"{each.command.partition(' --address ')[0].rstrip()} {temporal}")
        if each.command.startswith("temporal ")
        else each
        for each in finding.actions
    ]
    return replace(finding, actions=tuple(found))


def _unheard(finding: Finding, facts: Facts) -> Finding:
    """A run that waits for a signal that was the last that happened to it: mostly it came in a form that nobody can decode."""
    happened = [each for each in facts.events if not each.kind.startswith("WORKFLOW_TASK_")]
    name = text(happened[-1].attributes, "signalName") if happened else ""
    if finding.cause is not Cause.SIGNAL or not name or name not in facts.awaited:
        return finding
    told = f"the last signal {name!r} has changed nothing: one that cannot be decoded is dropped, as the worker's log says"
    return replace(finding, details=(*finding.details, told))


def _placed(finding: Finding, facts: Facts) -> Finding:
    """A workflow task that is in the midst of something: mostly of a local activity, which no history shows before its end."""
    if finding.cause is not Cause.CODE_RUNS:
        return finding
    local = [each for each in facts.stands if each.waits is Waits.ACTIVITY and each.call in _LOCAL]
    if local:
        return replace(
            finding,
            what=f"{finding.what}, where a local activity runs or is retried",
            place=local[0].place,
            code=local[0].code,
            details=(_LOG,),
        )
    if facts.stands or facts.now - (finding.since or facts.now) < _MOMENT:
        return finding
    # A server does not ask a run while its task is out, and a task of our own code takes milliseconds.
    told = "probably a local activity runs there, or is retried"
    return replace(finding, details=(f"{told}: {_LOG}", *finding.details))


_MOMENT = 1_000_000_000
_LOG = "what makes it fail, if it does, is in the worker's log"
_LOCAL = frozenset({"local", "execute_local_activity"})
