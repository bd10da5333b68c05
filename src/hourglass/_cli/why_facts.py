"""What `hourglass why` asks: the run, its history, the pollers of its queues, the run itself by a query, its children.

Every question but the first two may stay unanswered: then less is said, not nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import islice
from typing import TYPE_CHECKING, Any

from hourglass._cli.telling import Watched, nanoseconds
from hourglass._cli.why_added import added, is_paused
from hourglass._cli.why_limits import with_slots, without_keepers
from hourglass._engine.messages import WAITED_FOR
from hourglass._engine.versions import VersioningBehavior
from hourglass._runtime.deaths import known_deaths
from hourglass._story.diagnosis import Diagnosis, Facts, PollerFacts, QueueFacts
from hourglass._story.durations import duration
from hourglass._story.reading import inner, text
from hourglass._story.reasons import diagnose
from hourglass._story.spans import Fault, Kind, Outcome, Story
from hourglass._story.stacks import stands
from hourglass.errors import HourglassError, NondeterminismError, WorkflowNotFoundError

if TYPE_CHECKING:
    from hourglass.client import Client, TaskQueueDescription, WorkflowHandle
    from hourglass.client._task_queues import PollerInfo
    from hourglass.replay import History, Replayer

PATIENCE = 3.0
"""How long a question may take that need not be answered, in seconds."""

_MOST_CHILDREN, _MOST_QUEUES, _NEWEST = 3, 8, 500
_FORGOTTEN = 90_000_000_000  # polls are renewed within a minute


@dataclass(frozen=True)
class Asked:
    """Where to ask. `options` is what a command needs to find the same place, `temporal` what Temporal's own command needs;
    `replayer` tries the code, if that is wished.
    """

    client: Client
    options: str = ""
    replayer: Replayer | None = None
    temporal: str = ""

    def diagnosis(self, workflow_id: str, run_id: str | None, *, children: bool = True) -> Diagnosis:
        """Why a run stands as it does. Raises `WorkflowNotFoundError`."""
        watched = Watched(self.client, workflow_id, run_id)
        description, events = watched.look()
        story = without_keepers(watched.tell(description, events))
        facts = Facts(
            story=replace(story, workflow_id=workflow_id, run_id=description.run_id),
            now=time.time_ns(),
            events=events,
            next_task=nanoseconds(description.next_task_time),
            options=self.options,
            pinned=str(description.deployment_version or "")
            if description.versioning_behavior is VersioningBehavior.PINNED
            else "",
        )
        if story.end is not None:
            return diagnose(facts)
        facts = replace(facts, died=_died(self.client, description.run_id))
        facts = self._asked(facts, children)
        return with_slots(added(diagnose(facts), facts, self.temporal), facts, self._slots)

    def _slots(self, keeper: str) -> object:
        try:
            return self.client.get_workflow_handle(keeper).query("slots", rpc_timeout=PATIENCE)
        except HourglassError:
            return None

    def _asked(self, facts: Facts, children: bool) -> Facts:
        facts = replace(facts, queues=dict(self._queues(facts)))
        handle = self.client.get_workflow_handle(facts.story.workflow_id, run_id=facts.story.run_id)
        facts = _answered(facts, handle)
        if self.replayer is not None:
            facts = replace(facts, replayed=_replayed(self.replayer, handle.history()))
        return replace(facts, children=dict(self._children(facts.story))) if children else facts

    def _children(self, story: Story) -> Iterator[tuple[str, Diagnosis]]:
        opened = [
            each for each in story.spans if each.kind is Kind.CHILD and each.end is None and each.target
        ]
        for span in opened[:_MOST_CHILDREN]:
            try:
                yield span.child_id, self.diagnosis(span.child_id, None, children=False)
            except WorkflowNotFoundError:
                continue

    # --- queues ------------------------------------------------------------------------------------------------------

    def _queues(self, facts: Facts) -> Iterator[tuple[str, QueueFacts]]:
        opened = {
            each.id for each in facts.story.spans[1:] if each.end is None and each.kind is Kind.ACTIVITY
        }
        used = {text(each.attributes, "taskQueue", "name") for each in facts.events if each.id in opened}
        for name in {facts.story.task_queue, *used} - {""}:
            described = self._queue(name)
            if described is None:
                continue
            served = described.served or (() if described.workflow_pollers else tuple(self._others(name)))
            yield (
                name,
                QueueFacts(
                    name=name,
                    workflow_pollers=tuple(_alive(described.workflow_pollers)),
                    activity_pollers=tuple(_alive(described.activity_pollers)),
                    served=served,
                    current=str(described.current_version or ""),
                ),
            )

    def _queue(self, name: str) -> TaskQueueDescription | None:
        try:
            return self.client.describe_task_queue(name, rpc_timeout=PATIENCE)
        except HourglassError:
            return None  # not every server lets everybody look

    def _others(self, name: str) -> Iterator[str]:
        """Queues that are served, as far as runs of late use them: a server has no list of its queues."""
        newest = islice(self.client.list_workflows(), _NEWEST)
        seen = dict.fromkeys(["default", *(each.task_queue for each in newest)])
        others = (each for each in seen if each and each != name)
        # The one that was meant is most like it, and others may be many.
        alike = sorted(others, key=lambda each: -SequenceMatcher(None, name, each).ratio())
        for other in alike[:_MOST_QUEUES]:
            described = self._queue(other)
            if described is not None and any(_alive(described.workflow_pollers)):
                yield other


def _died(client: Client, run_id: str) -> str:
    """That processes of this machine died while a run was executing: no history can say so."""
    found = next(
        (each for each in known_deaths(client.target, client.namespace) if each.run_id == run_id), None
    )
    if found is None:
        return ""
    ago = duration(int(found.age * 1e9))
    what = f"local activity {found.activity}" if found.activity else "the workflow's code"
    return f"{found.times}× while {what} was executing, last {ago} ago"


def _alive(pollers: tuple[PollerInfo, ...]) -> Iterator[PollerFacts]:
    """A server remembers who polled some minutes ago."""
    now = time.time_ns()
    for each in pollers:
        seen = nanoseconds(each.last_seen) or 0
        if now - seen < _FORGOTTEN:
            yield PollerFacts(each.identity, seen, str(each.deployment_version or ""))


# --- the run itself --------------------------------------------------------------------------------------------------


def _answered(facts: Facts, handle: WorkflowHandle[Any]) -> Facts:
    """With what the run says of itself, if it can be asked."""
    queue = facts.queues.get(facts.story.task_queue)
    if is_paused(facts.events):
        return replace(facts, unanswered="it is paused")
    if facts.story.outcome is Outcome.RETRYING:
        return replace(facts, unanswered="its code fails")
    if queue is not None and not queue.workflow_pollers:
        return replace(facts, unanswered="no worker is there to ask")
    try:
        stack = handle.query("__stack_trace", rpc_timeout=PATIENCE)
        metadata = handle.query("__temporal_workflow_metadata", rpc_timeout=PATIENCE)
    except HourglassError as error:
        return replace(facts, unanswered=str(error))
    signals = _described(metadata, "signalDefinitions")
    return replace(
        facts,
        stands=stands(stack) if isinstance(stack, str) else (),
        signals=tuple(signals),
        awaited=tuple(name for name, about in signals.items() if about == WAITED_FOR),
        updates=tuple(_described(metadata, "updateDefinitions")),
    )


def _described(metadata: Any, kind: str) -> dict[str, str]:
    listed = inner(metadata, "definition", kind)
    found = listed if isinstance(listed, list) else []
    return {text(each, "name"): text(each, "description") for each in found if text(each, "name")}


def _replayed(replayer: Replayer, history: History) -> Fault | None:
    error = replayer.try_replay(history).error
    if error is None:
        return None
    place = f"{error.file}:{error.line}" if isinstance(error, NondeterminismError) and error.file else ""
    return Fault(type(error).__name__, str(error), place)
