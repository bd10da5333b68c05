"""The queries behind `hourglass why`: the run, its history, the pollers of its queues, its worker, its children.

All queries except the first two may remain unanswered. The diagnosis is then less complete. This module adds information
that the history cannot show: whether a run is paused, the state of its workflow task, and the slot of `limits.slot` that it
waits for.

In a history, a wait for a slot consists of signals to a keeper, the workflow that manages the slots of the key, and a timer
with the key in its summary. If a run started the keeper itself, the keeper is a child. The run does not wait for this child,
so the child is not a finding.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import islice
from time import time_ns
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from hourglass._contract.limits import KeptLimit, KeptLimits, ListLimits
from hourglass._evaluator.built_in_queries import ACTIVITY_STACKS, AWAITED_SIGNALS
from hourglass._evaluator.specs import VersioningBehavior
from hourglass._history import events as h
from hourglass._tools.diagnosis.diagnosis import (
    Action,
    Cause,
    Diagnosis,
    Facts,
    Finding,
)
from hourglass._tools.diagnosis.reasons import diagnose
from hourglass._tools.diagnosis.reasons_tasks import queue_of
from hourglass._tools.timeline.faults import Waits, positions
from hourglass._tools.timeline.spans import Fault, Kind, Outcome, Span, Story
from hourglass._tools.timeline.text import clean, duration, harmless, nanoseconds
from hourglass._tools.timeline.timeline import open_turn
from hourglass._tools.timeline.watching import Watched
from hourglass._worker.health.incidents import known_deaths
from hourglass.client._session import asking
from hourglass.errors import HourglassError, NondeterminismError, WorkflowNotFoundError

if TYPE_CHECKING:
    from hourglass.client import Client, TaskQueueDescription, WorkflowHandle
    from hourglass.client._deployments import PollerInfo
    from hourglass.replay import History, Replayer


def is_paused(events: tuple[h.HistoryEvent, ...]) -> h.HistoryEvent | None:
    """Return the event with which an operator paused the run, or None if the run is not paused."""
    marks = (h.WorkflowExecutionPaused, h.WorkflowExecutionUnpaused)
    last = next((event for event in reversed(events) if isinstance(event.attributes, marks)), None)
    return last if last is not None and isinstance(last.attributes, marks[0]) else None


def added(diagnosis: Diagnosis, facts: Facts, temporal: str) -> Diagnosis:
    """Return the diagnosis with facts that the steps do not show. `temporal` are options for Temporal's CLI."""
    pause = is_paused(facts.events) if facts.story.end is None else None
    if pause is not None:
        # The worker does not answer and the code's position is unknown, so other findings would be guesses.
        findings = [finding for finding in diagnosis.findings if finding.cause is not Cause.MESSAGE]
        misfit = [finding for finding in findings if finding.cause is Cause.NONDETERMINISM]
        findings = [finding for finding in findings if finding not in misfit]
        return replace(diagnosis, findings=(*misfit, _paused(pause, facts), *findings), wrong=True)
    complete = (
        _unheard(_addressed(_placed(finding, facts), temporal), facts) for finding in diagnosis.findings
    )
    return replace(diagnosis, findings=tuple(complete))


def _paused(pause: h.HistoryEvent, facts: Facts) -> Finding:
    paused = pause.attributes
    assert isinstance(paused, h.WorkflowExecutionPaused)
    who, reason = clean(paused.identity), clean(paused.reason)
    return Finding(
        cause=Cause.PAUSED,
        what="is paused until it is resumed",
        since=pause.time_ns,
        details=tuple(
            detail for detail, value in ((f"by {who}", who), (f"reason: {reason}", reason)) if value
        ),
        actions=(Action("Resume the workflow:", facts.command(f"resume {facts.id}")),),
    )


def _addressed(finding: Finding, temporal: str) -> Finding:
    """Return the finding with complete commands. Temporal's CLI ignores HOURGLASS_TARGET and always needs the address."""
    if finding.cause is not Cause.PAUSED or not temporal:
        return finding
    actions = [
        replace(action, command=f"{action.command.partition(' --address ')[0].rstrip()} {temporal}")
        if action.command.startswith("temporal ")
        else action
        for action in finding.actions
    ]
    return replace(finding, actions=tuple(actions))


def _unheard(finding: Finding, facts: Facts) -> Finding:
    """Add a hint if the awaited signal has arrived already: usually the worker could not decode it."""
    kinds = (
        event.attributes for event in reversed(facts.events) if type(event.attributes) not in h.TASK_KINDS
    )
    name = clean(getattr(next(kinds, None), "signal_name", ""))
    if finding.cause is not Cause.SIGNAL or not name or name not in facts.awaited:
        return finding
    detail = f"the last signal {name!r} had no effect: the worker drops signals that it cannot decode, and logs an error"
    return replace(finding, details=(*finding.details, detail))


def _placed(finding: Finding, facts: Facts) -> Finding:
    """Explain a workflow task in progress: usually a local activity. A history shows it only at its end."""
    if finding.cause is not Cause.CODE_RUNS:
        return finding
    local = [
        position
        for position in facts.positions
        if position.waits is Waits.ACTIVITY and position.call in _LOCAL
    ]
    if local:
        return replace(
            finding,
            what=f"{finding.what}, where a local activity is running or being retried",
            place=local[0].place,
            code=local[0].code,
            details=(_LOG,),
        )
    if facts.positions or facts.now - (finding.since or facts.now) < _MOMENT:
        return finding
    # A server answers no query while a workflow task is in progress, and a task without local activities
    # takes milliseconds.
    detail = "a local activity is probably running or being retried"
    return replace(finding, details=(f"{detail}: {_LOG}", *finding.details))


_MOMENT = 1_000_000_000
_LOG = "if it fails, the worker logs the reason"
_LOCAL = frozenset({"local", "execute_local_activity"})


_PREFIX = "hourglass.slots:"
_TURNS = "hourglass.throttle:"
_KEEPERS = frozenset({"hourglass.slots", "hourglass.throttle", "hourglass.debounce"})
_OURS = re.compile(r"hourglass[/\\]limits[/\\]")
_MOST = 3

Ask: TypeAlias = Callable[[str], object]
"""A function that queries a keeper for `slots`. It returns a mapping with `limit`, `held` and `waiting`, or another value on
failure.
"""


def without_keepers(story: Story) -> Story:
    """Return the story without the children that manage limits."""
    spans = tuple(span for span in story.spans if span.kind is not Kind.CHILD or span.name not in _KEEPERS)
    return replace(story, spans=spans)


def with_slots(diagnosis: Diagnosis, facts: Facts, ask: Ask) -> Diagnosis:
    """Return the diagnosis with awaited slots in place of the timers and conditions that implement their waits."""
    findings = diagnosis.findings
    for key, since, timer in _waits_for_limits(facts, _PREFIX, slot=True):
        keeper = f"{_PREFIX}{key}"
        answer = ask(keeper)
        slot = Finding(
            cause=Cause.LOCK,
            what=f"waits for a slot of {key!r}, held by other workflows",
            since=since,
            details=tuple(_slot_lines(answer, facts.story.workflow_id)),
            actions=_actions(answer, keeper, facts),
        )
        findings = _replaced(findings, timer, slot, _waiting_places(facts, "__enter__"))
    for key, _, timer in _waits_for_limits(facts, _TURNS, slot=False):
        action = Action(
            "Wait a moment. If the workflow does not continue, diagnose the keeper of the limit:",
            facts.command(f"why {shlex.quote(_TURNS + key)}"),
        )
        if isinstance(ask(_TURNS + key), Mapping):
            # The engine keeps the limit, so there is no keeper workflow that could be stuck.
            action = Action("Nothing: the workflow gets its turn automatically.")
        turn = Finding(
            cause=Cause.LOCK,
            what=f"waits for a turn of {key!r}",
            since=timer.start,
            actions=(action,),
        )
        findings = _replaced(findings, timer, turn, _waiting_places(facts, "throttle"))
    return replace(diagnosis, findings=findings)


def _waits_for_limits(facts: Facts, prefix: str, *, slot: bool) -> Iterator[tuple[str, int, Span]]:
    """Yield the keys of slots or turns that the run has requested but not received, with the request's time and the timer."""
    for key, since in _open_requests(facts.events, prefix).items():
        for timer in facts.story.spans[1:]:
            if timer.name == open_turn(key, slot=slot):
                yield key, since, timer


def _open_requests(events: tuple[h.HistoryEvent, ...], prefix: str) -> dict[str, int]:
    """Return the keys that were requested and not released, with the time of the request. Reminders are ignored."""
    requested: dict[str, int] = {}
    for event in events:
        a = event.attributes
        if not isinstance(a, _EXTERNAL_REQUESTS) or not a.workflow_id.startswith(prefix):
            continue
        key = a.workflow_id.removeprefix(prefix)
        if getattr(a, "signal_name", "") in ("give_back", "take_back"):
            requested.pop(key, None)
        else:
            requested.setdefault(key, event.time_ns)
    return requested


_EXTERNAL_REQUESTS = (
    h.StartChildWorkflowExecutionInitiated,
    h.SignalExternalWorkflowExecutionInitiated,
    h.RequestCancelExternalWorkflowExecutionInitiated,
)


def _replaced(
    findings: tuple[Finding, ...], timer: Span, combined: Finding, positions: Mapping[str, bool]
) -> tuple[Finding, ...]:
    """Return the findings with the parts of a wait replaced by a single finding, at the author's line."""
    parts = [finding for finding in findings if _is_part(finding, timer, positions)]
    shown = next((finding for finding in parts if finding.place and positions.get(finding.place)), None)
    if shown is not None:
        combined = replace(combined, place=shown.place, code=shown.code)
    order = list(Cause)
    unrelated = [finding for finding in findings if finding not in parts]
    return tuple(sorted([combined, *unrelated], key=lambda finding: order.index(finding.cause)))


def _waiting_places(facts: Facts, call: str) -> dict[str, bool]:
    """Return the places where fibers wait in a call of `limits`, and whether each place is a line of the author's code.

    In a checkout of Hourglass, its own lines look like the author's.
    """
    inside = [position for position in facts.positions if position.waits in (Waits.CONDITION, Waits.LOCK)]
    ours = {position.place: False for position in inside if _OURS.search(position.place)}
    return {position.place: True for position in inside if position.call == call} | ours


def _is_part(finding: Finding, timer: Span, positions: Mapping[str, bool]) -> bool:
    """Whether a finding is the timer of reminders to the keeper, or the condition that waits for the keeper's answer."""
    if finding.cause is Cause.TIMER:
        return finding.since == timer.start and finding.what == timer.name
    return finding.cause in (Cause.CONDITION, Cause.LOCK) and finding.place in positions


def _slot_lines(answer: object, workflow_id: str) -> Iterator[str]:
    if not isinstance(answer, Mapping):
        yield "the holder is unknown: the keeper of the limit does not respond"
        return
    holders, waiting = _ids(answer, "held"), _ids(answer, "waiting")
    if holders:
        more = f" and {len(holders) - _MOST} more" if len(holders) > _MOST else ""
        yield f"held by {', '.join(holders[:_MOST])}{more}; {answer.get('limit')} at a time"
    before = waiting.index(workflow_id) if workflow_id in waiting else 0
    if before:
        yield f"workflows ahead of it: {before}"


def _actions(answer: object, keeper: str, facts: Facts) -> tuple[Action, ...]:
    if not isinstance(answer, Mapping):
        command = facts.command(f"why {shlex.quote(keeper)}")
        return (Action("Find out why the keeper does not respond:", command),)
    holders = _ids(answer, "held")[:1]
    return tuple(
        Action("Diagnose the holder:", facts.command(f"why {shlex.quote(holder)}")) for holder in holders
    )


def _ids(answer: object, where: str) -> list[str]:
    places = answer.get(where) if isinstance(answer, Mapping) else None
    return [_text(place, "workflow_id") for place in places] if isinstance(places, list) else []


def _text(value: object, key: str) -> str:
    """Return a string from an answer, cleaned for display, or "" if there is none."""
    text = value.get(key) if isinstance(value, Mapping) else None
    return clean(text) if isinstance(text, str) else ""


def kept_by_engine(client: Client, id: str = "") -> tuple[KeptLimit, ...] | None:
    """Return the limits that the engine manages: all, or the one with this id. Return None if workflows manage them.

    Raise `ServiceError` if the engine cannot answer.
    """
    limits: KeptLimits = client._session.run(asking(ListLimits(id=id), lambda answer: answer))
    return limits.found


def plain_form(value: object) -> Any:
    """Return the engine's data about a limit in the form of a keeper's answer, as dicts and lists."""
    return msgspec.json.decode(msgspec.json.encode(value))


PATIENCE = 3.0
"""The timeout in seconds of queries that may stay unanswered."""

_MOST_CHILDREN, _MOST_QUEUES, _NEWEST = 3, 8, 500
_FORGOTTEN = 90_000_000_000  # polls are renewed within a minute


@dataclass(frozen=True)
class WhyContext:
    """The target of the queries. `options` and `temporal` are the command-line options that `hourglass` and Temporal's CLI
    need to find the target.

    If the user requested a check of the local code, `replayer` runs it.
    """

    client: Client
    options: str = ""
    replayer: Replayer | None = None
    temporal: str = ""
    failures: bool = True
    """Whether failure messages are displayed."""

    def diagnosis(self, workflow_id: str, run_id: str | None, *, children: bool = True) -> Diagnosis:
        """Return the diagnosis of a run. Raise `WorkflowNotFoundError` if the run does not exist."""
        watched = Watched(self.client, workflow_id, run_id, failures=self.failures)
        description, events = watched.fetch()
        story = without_keepers(watched.story_from(description, events))
        facts = Facts(
            story=replace(story, workflow_id=workflow_id, run_id=description.run_id),
            now=time_ns(),
            events=events,
            next_task=nanoseconds(description.next_task_time),
            options=self.options,
            pinned=str(description.deployment_version or "")
            if description.versioning_behavior is VersioningBehavior.PINNED
            else "",
        )
        if story.end is not None:
            return diagnose(self._tried(facts))
        facts = replace(facts, died=_died(self.client, description.run_id))
        facts = self._query_engine(facts, children)
        return with_slots(added(diagnose(facts), facts, self.temporal), facts, self._slots)

    def _slots(self, keeper: str) -> object:
        try:
            for limit in kept_by_engine(self.client, keeper) or ():
                return plain_form(limit.slots or limit.turns)
            return self.client.get_workflow_handle(keeper).query("slots", rpc_timeout=PATIENCE)
        except HourglassError:
            return None

    def _query_engine(self, facts: Facts, children: bool) -> Facts:
        facts = replace(facts, queues=dict(self._queues(facts)))
        handle = self.client.get_workflow_handle(facts.story.workflow_id, run_id=facts.story.run_id)
        facts = _answered(facts, handle)
        facts = self._tried(facts)
        return replace(facts, children=dict(self._children(facts.story))) if children else facts

    def _tried(self, facts: Facts) -> Facts:
        if self.replayer is None:
            return facts
        handle = self.client.get_workflow_handle(facts.story.workflow_id, run_id=facts.story.run_id)
        replayed = _replayed(self.replayer, handle.history())
        return replace(facts, replayed=replayed, fits=replayed is None)

    def _children(self, story: Story) -> Iterator[tuple[str, Diagnosis]]:
        opened = [
            child_span
            for child_span in story.spans
            if child_span.kind is Kind.CHILD and child_span.end is None and child_span.target
        ]
        for span in opened[:_MOST_CHILDREN]:
            try:
                yield span.child_id, self.diagnosis(span.child_id, None, children=False)
            except WorkflowNotFoundError:
                continue

    def _queues(self, facts: Facts) -> Iterator[tuple[str, TaskQueueDescription]]:
        opened = {
            item.id for item in facts.story.spans[1:] if item.end is None and item.kind is Kind.ACTIVITY
        }
        used = {queue_of(item.attributes) for item in facts.events if item.id in opened}
        for name in {facts.story.task_queue, *used} - {""}:
            described = self._queue(name)
            if described is None:
                continue
            served = described.served or (() if described.workflow_pollers else tuple(self._others(name)))
            yield (
                name,
                replace(
                    described,
                    workflow_pollers=tuple(alive(described.workflow_pollers)),
                    activity_pollers=tuple(alive(described.activity_pollers)),
                    served=served,
                ),
            )

    def _queue(self, name: str) -> TaskQueueDescription | None:
        try:
            return self.client.describe_task_queue(name, rpc_timeout=PATIENCE)
        except HourglassError:
            return None  # not every server allows every client to list runs

    def _others(self, name: str) -> Iterator[str]:
        """Yield task queues with workers, among the queues that recent runs use. A server cannot list its queues."""
        newest = islice(self.client.list_workflows(), _NEWEST)
        seen = dict.fromkeys(["default", *(queue.task_queue for queue in newest)])
        queues = (queue for queue in seen if queue and queue != name)
        # Of possibly many queues, the intended queue has the most similar name.
        alike = sorted(queues, key=lambda queue: -SequenceMatcher(None, name, queue).ratio())
        for candidate in alike[:_MOST_QUEUES]:
            described = self._queue(candidate)
            if described is not None and any(alive(described.workflow_pollers)):
                yield candidate


def _died(client: Client, run_id: str) -> str:
    """Return a sentence if processes on this machine died while they executed the run, because no history shows that."""
    death = next(
        (record for record in known_deaths(client.target, client.namespace) if record.run_id == run_id), None
    )
    if death is None:
        return ""
    ago = duration(max(0, time_ns() - int(death.at * 1e9)))
    what = f"local activity {death.activity_id}" if death.activity_id else "the workflow's code"
    return f"{death.times}× while {what} was executing, last {ago} ago"


def alive(pollers: tuple[PollerInfo, ...]) -> Iterator[PollerInfo]:
    """Return the pollers that are still alive. A server lists a poller for minutes after it has left."""
    now = time_ns()
    return (poller for poller in pollers if now - (nanoseconds(poller.last_seen) or 0) < _FORGOTTEN)


def _answered(facts: Facts, handle: WorkflowHandle[Any]) -> Facts:
    queue = facts.queues.get(facts.story.task_queue)
    if is_paused(facts.events):
        return replace(facts, unanswered="it is paused")
    if facts.story.outcome is Outcome.RETRYING:
        return replace(facts, unanswered="its code fails")
    if queue is not None and not queue.workflow_pollers:
        return replace(facts, unanswered="no worker is running to answer queries")
    try:
        stack = handle.query("__stack_trace", rpc_timeout=PATIENCE)
        metadata = handle.query("__temporal_workflow_metadata", rpc_timeout=PATIENCE)
    except HourglassError as error:
        return replace(facts, unanswered=str(error))
    signals = _described(metadata, "signalDefinitions")
    names = _optional(handle, AWAITED_SIGNALS) if signals else None
    return replace(
        facts,
        positions=positions(stack) if isinstance(stack, str) else (),
        signals=signals,
        awaited=tuple(map(str, names)) if isinstance(names, list) else (),
        updates=_described(metadata, "updateDefinitions"),
        activity_stacks=_stacks(handle, facts.story),
        takes_any=any(not _text(definition, "name") for definition in _listed(metadata, "signalDefinitions")),
    )


_HEAD = re.compile(r"^activity (.+)$", re.MULTILINE)


def _stacks(handle: WorkflowHandle[Any], story: Story) -> dict[str, str]:
    """Return the stacks of a run's running activities by id, if its worker executes them and supports the query."""
    if not any(item.kind is Kind.ACTIVITY and item.end is None for item in story.spans[1:]):
        return {}
    answer = _optional(handle, ACTIVITY_STACKS)
    parts = _HEAD.split(harmless(answer)) if isinstance(answer, str) else []
    return dict(zip(parts[1::2], (item.strip("\n") for item in parts[2::2]), strict=False))


def _optional(handle: WorkflowHandle[Any], query: str) -> object:
    try:
        return handle.query(query, rpc_timeout=PATIENCE)
    except HourglassError:
        return None


def _described(metadata: Any, kind: str) -> tuple[str, ...]:
    names = (_text(definition, "name") for definition in _listed(metadata, kind))
    return tuple(dict.fromkeys(filter(None, names)))


def _listed(metadata: Any, kind: str) -> list[Any]:
    definition = metadata.get("definition") if isinstance(metadata, Mapping) else None
    listed = definition.get(kind) if isinstance(definition, Mapping) else None
    return listed if isinstance(listed, list) else []


def _replayed(replayer: Replayer, history: History) -> Fault | None:
    error = replayer.try_replay(history).error
    if error is None:
        return None
    place = f"{error.file}:{error.line}" if isinstance(error, NondeterminismError) and error.file else ""
    return Fault(type(error).__name__, str(error), place)
