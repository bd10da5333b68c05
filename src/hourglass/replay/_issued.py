"""The commands of a run that Core replayed, in the terms of the history. Pure.

Task by task, the embedded engine's rules for outcomes are applied to the history and the commands. The rules select the
commands to send: a command that is cancelled within its task is not sent. Must not know: how commands are compared with
events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from hourglass._embedded.activations.outcomes import Outcomes
from hourglass._embedded.transitions.run import RequestCancelChild
from hourglass._evaluator import commands as c
from hourglass._evaluator.call_sites import NOWHERE, Site
from hourglass._evaluator.words import CommandSummary, spaced, summarize
from hourglass._history import events as h
from hourglass.replay._foreign_markers import LocalMark, MarkedTask
from hourglass.replay._session import ReplayStep


class IssuedCommands:
    """The commands that a run has issued up to a task, and their positions in the code."""

    def __init__(self, run_id: str) -> None:
        self.outcomes = Outcomes.for_replay(run_id)
        self.has_drawn = False
        """Whether the run has used its random numbers."""
        self.local_activities: dict[int, c.ScheduleLocalActivity] = {}
        self.cancelled_local_activities: set[int] = set()
        self.patches: set[str] = set()
        self._admitted: dict[str, h.UpdateRequest] = {}
        self._sites: dict[tuple[type[c.Command], int], Site] = {}
        self._by_identity: dict[int, tuple[c.Command, Site]] = {}

    @property
    def of_task(self) -> deque[c.Command]:
        """The commands of the current task that would be sent, in order."""
        return self.outcomes.issued

    @property
    def has_closed(self) -> bool:
        """Whether the run has issued a terminal command."""
        return any(isinstance(command, c.TERMINAL) for command, _ in self._by_identity.values())

    def replay(self, group: Sequence[MarkedTask], steps: Sequence[ReplayStep]) -> None:
        """Apply the events of a group of tasks, and then the commands that the run issued in response."""
        for task in group:
            for event in task.new_events:
                if isinstance(event.attributes, h.WorkflowExecutionUpdateAdmitted):
                    request = event.attributes.request
                    self._admitted[request.update_id] = request
                self.outcomes.resolve(event.attributes, event.id)
            for accepted in task.updates:
                request_or_none = accepted.request or self._admitted.get(accepted.update_id)
                if request_or_none is not None:
                    self.outcomes.updates.receive(request_or_none, 0, is_replaying=True)
        for step in steps:
            self.has_drawn = self.has_drawn or step.has_drawn
            for command, site in step.commands:
                self._issue(command, site)

    def _issue(self, command: c.Command, site: Site) -> None:
        self._sites[type(command), getattr(command, "seq", 0)] = site
        self._by_identity[id(command)] = command, site
        match command:
            case c.ScheduleLocalActivity():
                self.local_activities.setdefault(command.seq, command)
            case c.RequestCancelLocalActivity():
                self.cancelled_local_activities.add(command.seq)
            case c.SetPatchMarker():
                self.patches.add(command.patch_id)
            case _:
                self.outcomes.issue(command, replaying=True)

    def site_of(self, command: c.Command) -> Site:
        """Return the position in the code that issued a command."""
        entry = self._by_identity.get(id(command))
        if entry is not None and entry[0] is command:
            return entry[1]
        return self._sites.get((type(command), getattr(command, "seq", 0)), NOWHERE)

    def summarize(self, command: c.Command) -> CommandSummary:
        """Return the summary of a command."""
        return summarize_issued(command, self.site_of(command), self.outcomes)


def summarize_local(mark: LocalMark) -> CommandSummary:
    """Return the summary of the local activity that a marker records."""
    return CommandSummary(f"local activity {mark.activity_type}".rstrip(), event_id=mark.event_id)


def unknown_command(event: h.HistoryEvent) -> CommandSummary:
    """Return the summary of an event that is of a kind that replay does not compare."""
    return CommandSummary(spaced(h.kind_of(event.attributes)), event_id=event.id)


def summarize_issued(command: c.Command, site: Site, outcomes: Outcomes) -> CommandSummary:
    """Return the summary of any command, in terms of history events."""
    match command:
        case RequestCancelChild():
            return summarize(c.RequestCancelExternal(seq=0, workflow_id=command.workflow_id), site)
        case c.CancelTimer():
            return _cancellation("timer", command.seq, outcomes.link_of(command), site)
        case c.RequestCancelActivity():
            return _cancellation("activity", command.seq, outcomes.link_of(command), site)
        case c.CancelNexusOperation():
            return _cancellation("Nexus operation", command.seq, outcomes.link_of(command), site)
        case _:
            return summarize(command, site)


def _cancellation(kind: str, seq: int, event_id: int, site: Site) -> CommandSummary:
    if event_id:
        return CommandSummary(f"cancellation of the {kind} of event", str(event_id), site=site)
    return CommandSummary(f"cancellation of {kind} number", str(seq), site=site)
