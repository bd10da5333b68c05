"""Runs that wait for a slot of `limits.slot`: which key, who holds its slots, and who is before them. Pure but for one question.

A history shows such a wait as signals to a keeper, the workflow that keeps the key's slots, and as a timer whose summary names
the key. Where a run started the keeper itself, it is a child; nobody waits for that one, so it is no finding.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from hourglass._story.diagnosis import Action, Cause, Diagnosis, Facts, Finding
from hourglass._story.reading import Event, inner, number, text
from hourglass._story.spans import Kind, Span, Story
from hourglass._story.stacks import Waits

_PREFIX = "hourglass.slots:"
_KEEPERS = frozenset({"hourglass.slots", "hourglass.throttle", "hourglass.debounce"})
_OURS = re.compile(r"hourglass[/\\]limits[/\\]")
_MOST = 3

Ask: TypeAlias = Callable[[str], object]
"""What a keeper answers to the query `slots`: an object of `limit`, `held` and `waiting`; anything else if it does not."""


@dataclass(frozen=True)
class Wanted:
    """A slot that the run has asked for and does not have."""

    key: str
    since: int
    timer: Span

    @property
    def keeper(self) -> str:
        """The id of the workflow that keeps it."""
        return f"{_PREFIX}{self.key}"


def without_keepers(story: Story) -> Story:
    """The story without the children that keep limits."""
    kept = tuple(each for each in story.spans if each.kind is not Kind.CHILD or each.name not in _KEEPERS)
    return replace(story, spans=kept)


def with_slots(diagnosis: Diagnosis, facts: Facts, ask: Ask) -> Diagnosis:
    """The diagnosis with the slots that are waited for, in place of the timers and conditions that they are made of."""
    found = diagnosis.findings
    for wanted in _wanted(facts):
        found = _replaced(found, facts, wanted, ask(wanted.keeper))
    return replace(diagnosis, findings=found)


def _wanted(facts: Facts) -> Iterator[Wanted]:
    for key, since in _asked(facts.events).items():
        for timer in facts.story.spans[1:]:
            open_ = timer.kind is Kind.TIMER and timer.end is None
            if open_ and timer.name.endswith(f"waits for a slot of {key!r}"):
                yield Wanted(key, since, timer)


def _asked(events: tuple[Event, ...]) -> dict[str, int]:
    """The keys that were asked for and not given back, and when that was; asking once more as a reminder does not count."""
    asked: dict[str, int] = {}
    for event in events:
        keeper = text(event.attributes, "workflowExecution", "workflowId") or text(
            event.attributes, "workflowId"
        )
        key = keeper.removeprefix(_PREFIX)
        if key == keeper or not event.kind.endswith("_INITIATED"):
            continue
        if text(event.attributes, "signalName") == "give_back":
            asked.pop(key, None)
        else:
            asked.setdefault(key, event.time)
    return asked


def _replaced(
    found: tuple[Finding, ...], facts: Facts, wanted: Wanted, answer: object
) -> tuple[Finding, ...]:
    stands = _stands(facts)
    mine = [each for each in found if _is_part(each, wanted, stands)]
    shown = next((each for each in mine if each.place and stands.get(each.place)), None)
    slot = Finding(
        cause=Cause.LOCK,
        what=f"waits for a slot of {wanted.key!r}, which others hold",
        since=wanted.since,
        place="" if shown is None else shown.place,
        code="" if shown is None else shown.code,
        details=tuple(_told(answer, facts.story.workflow_id)),
        actions=_actions(answer, facts.options),
    )
    order = list(Cause)
    rest = [each for each in found if each not in mine]
    return tuple(sorted([slot, *rest], key=lambda each: order.index(each.cause)))


def _stands(facts: Facts) -> dict[str, bool]:
    """Where fibers stand in `limits.slot`, and whether that is a line of the author's: in a checkout ours look like it."""
    inside = [each for each in facts.stands if each.waits is Waits.CONDITION]
    ours = {each.place: False for each in inside if _OURS.search(each.place)}
    return {each.place: True for each in inside if each.call == "__enter__"} | ours


def _is_part(finding: Finding, wanted: Wanted, stands: Mapping[str, bool]) -> bool:
    """The timer that reminds the keeper, or the condition that waits for its answer."""
    if finding.cause is Cause.TIMER:
        return finding.since == wanted.timer.start and wanted.timer.name.removeprefix("timer") in finding.what
    return finding.cause is Cause.CONDITION and finding.place in stands


# --- who holds it ----------------------------------------------------------------------------------------------------


def _told(answer: object, workflow_id: str) -> Iterator[str]:
    if not isinstance(answer, Mapping):
        yield "who holds it is not known: its keeper does not answer"
        return
    holders, waiting = _ids(answer, "held"), _ids(answer, "waiting")
    if holders:
        more = f" and {len(holders) - _MOST} more" if len(holders) > _MOST else ""
        yield f"held by {', '.join(holders[:_MOST])}{more}; {number(answer.get('limit'))} at a time"
    before = waiting.index(workflow_id) if workflow_id in waiting else 0
    if before:
        yield f"{before} wait{'s' * (before == 1)} before it"


def _actions(answer: object, options: str) -> tuple[Action, ...]:
    holders = _ids(answer, "held")
    if not holders:
        return ()
    command = f"hourglass why {shlex.quote(holders[0])} {options}".rstrip()
    return (Action("See what keeps who holds it:", command),)


def _ids(answer: object, where: str) -> list[str]:
    places = inner(answer, where)
    return [text(each, "workflow_id") for each in places] if isinstance(places, list) else []
