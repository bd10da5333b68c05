"""Comparison of the commands that a run issued while Core replayed it with its history, task by task. Pure.

Core pairs commands with events in order, but it overlooks some differences. A command that comes a task too
early waits for its event and matches it. The last task has no events to pair with. Arguments are never
compared, nor names and ids in histories without Core's flag for them. This module compares everything again.
Invariants:

- A command belongs to the task of the activation that it answers: the history length of the activation identifies the
  start of its task.
- The rules of the embedded engine, which are Core's, decide which commands are sent (one that is cancelled within its
  task is not).
- The commands and events of a task are compared in order. Only if Core has accepted a different order, each event is
  paired with the command that fits it best.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hourglass._embedded.activations.command_matching import COMMAND_OF
from hourglass._embedded.activations.command_matching import fits as engine_fits
from hourglass._embedded.activations.outcomes import BadCommand, Outcomes
from hourglass._embedded.transitions.run import RequestCancelChild
from hourglass._evaluator import commands as c
from hourglass._evaluator.call_sites import NOWHERE, Site
from hourglass._evaluator.words import CommandSummary, spaced, summarize
from hourglass._history import events as h
from hourglass.errors import NondeterminismError
from hourglass.replay._comparison import both_end_update, changed_value, mismatch, same_thing
from hourglass.replay._foreign_markers import LocalMark, MarkedTask, VersionMark
from hourglass.replay._foreign_matching import pair_up
from hourglass.replay._session import ReplayStep


class Trace:
    """The commands that a run issued during a replay by Core, compared with its history.

    `foreign`: another SDK recorded it, with different default ids and random numbers. `accepted`: Core has
    accepted the replay.
    """

    def __init__(
        self,
        run_id: str,
        recorded: Mapping[int, CommandSummary],
        *,
        foreign: bool,
        compare: bool,
        accepted: bool,
        reason: str = "",
        waiting_at: Site = NOWHERE,
    ) -> None:
        self._recorded = recorded
        self._foreign = foreign
        self._compare = compare
        self._accepted = accepted
        self._reason = reason
        self._waiting_at = waiting_at
        self.is_allowed = False
        """Whether no engine checks the property that differs: arguments, durations, results, targets."""
        self._outcomes = Outcomes.for_replay(run_id)
        self._admitted: dict[str, h.UpdateRequest] = {}
        self._sites: dict[tuple[type[c.Command], int], Site] = {}
        self._by_identity: dict[int, tuple[c.Command, Site]] = {}
        self._names: dict[str, str] = {}
        self._drawn = False
        self._locals: dict[int, c.ScheduleLocalActivity] = {}
        self._patches: set[str] = set()
        self._cancelled_locals: set[int] = set()

    def difference(
        self, tasks: Sequence[MarkedTask], steps: Sequence[ReplayStep]
    ) -> NondeterminismError | None:
        """Return the first difference, or None."""
        by_task: dict[int, list[ReplayStep]] = {}
        for step in steps:
            by_task.setdefault(step.history_length, []).append(step)
        last = max(by_task, default=0)
        marked = {mark.seq for task in tasks for mark in task.marks if isinstance(mark, LocalMark)}
        try:
            for group in _groups(tasks):
                if group[0].history_length > last or not group[-1].is_completed:
                    break
                self._replay_group(
                    group, [step for task in group for step in by_task.get(task.history_length, ())]
                )
                if not self._accepted and group[-1].history_length >= last:
                    self._check_removed_markers(group)
                self._compare_group(group)
            self._compare_locals(tasks, marked)
        except NondeterminismError as error:
            return error
        except BadCommand:
            return None  # Core has accepted the command; a server would judge it itself
        return None

    def _replay_group(self, group: Sequence[MarkedTask], steps: Sequence[ReplayStep]) -> None:
        for task in group:
            for event in task.new_events:
                if isinstance(event.attributes, h.WorkflowExecutionUpdateAdmitted):
                    request = event.attributes.request
                    self._admitted[request.update_id] = request
                self._outcomes.resolve(event.attributes, event.id)
            for accepted in task.updates:
                request_or_none = accepted.request or self._admitted.get(accepted.update_id)
                if request_or_none is not None:
                    self._outcomes.updates.receive(request_or_none, 0, is_replaying=True)
        for step in steps:
            self._drawn = self._drawn or step.has_drawn
            for command, site in step.commands:
                self._issue(command, site)

    def _issue(self, command: c.Command, site: Site) -> None:
        self._sites[type(command), getattr(command, "seq", 0)] = site
        self._by_identity[id(command)] = command, site
        match command:
            case c.ScheduleLocalActivity():
                self._locals.setdefault(command.seq, command)
            case c.RequestCancelLocalActivity():
                self._cancelled_locals.add(command.seq)
            case c.SetPatchMarker():
                self._patches.add(command.patch_id)
            case _:
                self._outcomes.issue(command, replaying=True)

    def _site(self, command: c.Command) -> Site:
        entry = self._by_identity.get(id(command))
        if entry is not None and entry[0] is command:
            return entry[1]
        return self._sites.get((type(command), getattr(command, "seq", 0)), NOWHERE)

    def _summarize(self, command: c.Command) -> CommandSummary:
        return summarize_issued(command, self._site(command), self._outcomes)

    def _compare_group(self, group: Sequence[MarkedTask]) -> None:
        if len(group) == 1 and self._is_as_recorded(group[0].command_events, self._outcomes.issued):
            self._outcomes.bind(self._outcomes.issued[0], group[0].command_events[0].id)
            self._outcomes.issued.clear()
            return
        issued = list(self._outcomes.issued)
        terminal = [command for command in issued if isinstance(command, c.TERMINAL)]
        ordinary = [command for command in issued if not isinstance(command, c.TERMINAL)]
        late = issued[issued.index(terminal[0]) + 1 :] if terminal else []
        events = [event for task in group for event in task.command_events]
        pairs = self._pairs(events, ordinary + terminal[:1], late, group[-1])
        for event, command in pairs:
            if isinstance(command, c.StartChildWorkflow):
                self._names[command.workflow_id] = getattr(event.attributes, "workflow_id", "")
            self._compare_pair(event, command, group[-1])
            self._outcomes.bind(command, event.id)
        self._outcomes.issued.clear()

    def _check_removed_markers(self, group: Sequence[MarkedTask]) -> None:
        """Raise `NondeterminismError` if the task that Core rejected has a marker, but the code has not
        requested its patch or its local activity.
        """
        for task in group:
            for mark in task.marks:
                if isinstance(mark, VersionMark):
                    is_there = mark.is_deprecated or mark.change_id in self._patches
                    recorded = CommandSummary("patch", mark.change_id, event_id=mark.event_id)
                elif isinstance(mark, LocalMark):
                    is_there = not mark.seq or mark.seq in self._locals
                    recorded = summarize_local(mark)
                else:
                    continue
                if not is_there:
                    issued = [command for command in self._outcomes.issued if self._site(command)[0]]
                    actual = self._summarize(issued[0]) if issued else None
                    site = actual.site if actual is not None else self._waiting_at
                    raise mismatch(recorded, actual, site, self._where(task))

    def _is_as_recorded(self, events: Sequence[h.HistoryEvent], commands: Sequence[c.Command]) -> bool:
        """Return whether a task only scheduled one activity, exactly as recorded.

        This is the most frequent case, and it needs no further comparison.
        """
        if len(commands) != 1 or len(events) != 1:
            return False
        command, event = commands[0], events[0]
        if type(command) is not c.ScheduleActivity or type(event.attributes) is not h.ActivityTaskScheduled:
            return False
        recorded = self._recorded.get(event.id)
        return (
            recorded is not None
            and recorded.key == command.activity_id
            and recorded.name == command.activity_type
            and recorded.payloads == command.arguments
        )

    def _pairs(
        self,
        events: list[h.HistoryEvent],
        commands: list[c.Command],
        late: list[c.Command],
        task: MarkedTask,
    ) -> list[tuple[h.HistoryEvent, c.Command]]:
        on_time = commands
        if late and self._accepted:  # else Core has sent the commands after the terminal one before it
            on_time = [
                command for command in commands if not any(command is late_command for late_command in late)
            ]
        for candidates in (commands, on_time) if on_time is not commands else (commands,):
            if len(candidates) == len(events) and all(map(self._fits, events, candidates)):
                return list(zip(events, candidates, strict=True))
        if self._accepted:
            pairing = pair_up(events, commands, self._outcomes, self._names, self._recorded)
            surplus = [
                command
                for command in pairing.surplus
                if not any(command is late_command for late_command in late)
            ]
            paired = {id(command) for _, command in pairing.pairs}
            is_new_cancellation = not self._foreign and any(
                isinstance(command, c.CancelTimer) and id(command) not in paired for command in on_time
            )
            if not pairing.missing and not surplus and not is_new_cancellation:
                return list(pairing.pairs)
        self._raise_mismatch(events, on_time, task)
        return []

    def _fits(self, event: h.HistoryEvent, command: c.Command) -> bool:
        """Return whether a command could have caused this event: compare kind, name, id and the event that it
        refers to.
        """
        if not isinstance(command, COMMAND_OF[type(event.attributes)]):
            return False
        match command:
            case c.CancelTimer():
                return bool(self._outcomes.link_of(command) == event.attributes.started_event_id)  # type: ignore[attr-defined]
            case c.RequestCancelActivity() | c.CancelNexusOperation():
                return bool(self._outcomes.link_of(command) == event.attributes.scheduled_event_id)  # type: ignore[attr-defined]
            case _:
                pass
        recorded, issued = self._recorded.get(event.id), self._summarize(command)
        return recorded is None or same_thing(recorded, issued, self._names, foreign=self._foreign)

    def _raise_mismatch(
        self, events: Sequence[h.HistoryEvent], commands: Sequence[c.Command], task: MarkedTask
    ) -> None:
        self.is_allowed = len(events) == len(commands) and all(
            engine_fits(command, event.attributes, self._outcomes)
            for event, command in zip(events, commands, strict=True)
        )
        for position in range(max(len(events), len(commands))):
            event = events[position] if position < len(events) else None
            command = commands[position] if position < len(commands) else None
            if event is not None and command is not None and self._fits(event, command):
                continue
            recorded = None
            if event is not None:
                recorded = self._recorded.get(event.id) or unknown_command(event)
            issued = self._summarize(command) if command is not None else None
            site = issued.site if issued is not None else self._waiting_at
            raise mismatch(recorded, issued, site, self._where(task))

    def _compare_pair(self, event: h.HistoryEvent, command: c.Command, task: MarkedTask) -> None:
        recorded, issued = self._recorded.get(event.id), self._summarize(command)
        if recorded is None:
            return
        if recorded.kind != issued.kind and not both_end_update(recorded, issued):
            raise mismatch(recorded, issued, issued.site, self._where(task))
        if self._compare and not (self._foreign and self._drawn):
            changed = changed_value(recorded, issued, foreign=self._foreign)
            if changed is not None:
                self.is_allowed = True
                raise changed

    def _compare_locals(self, tasks: Sequence[MarkedTask], marked: set[int]) -> None:
        for task in tasks:
            for mark in task.marks:
                command = self._locals.get(mark.seq) if isinstance(mark, LocalMark) else None
                if command is None or not isinstance(mark, LocalMark) or not mark.activity_type:
                    continue
                issued = summarize(command, self._site(command))
                if mark.activity_type != command.activity_type:
                    raise mismatch(summarize_local(mark), issued, issued.site, self._where(task))
        if not self._accepted or not tasks or not tasks[-1].is_completed or self._has_closed():
            return
        if not tasks[-1].command_events and not tasks[-1].marks:
            return  # it may have been completed only to extend its timeout
        for seq, command in self._locals.items():
            if seq not in marked and seq not in self._cancelled_locals:
                issued = summarize(command, self._site(command))
                raise mismatch(None, issued, self._site(command), self._where(tasks[-1]))

    def _has_closed(self) -> bool:
        return any(isinstance(command, c.TERMINAL) for command, _ in self._by_identity.values())

    def _where(self, task: MarkedTask) -> str:
        where = f"in the workflow task that started with event {task.history_length}"
        return f"{where}\n  {self._reason}" if self._reason else where


def summarize_local(mark: LocalMark) -> CommandSummary:
    """Return the summary of the local activity that a marker records."""
    return CommandSummary(f"local activity {mark.activity_type}".rstrip(), event_id=mark.event_id)


def unknown_command(event: h.HistoryEvent) -> CommandSummary:
    """Return the summary of an event whose kind is not compared."""
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


def _groups(tasks: Sequence[MarkedTask]) -> list[list[MarkedTask]]:
    """Group the tasks: a task that was completed only to extend its timeout (for a local activity) belongs to
    the next.
    """
    groups: list[list[MarkedTask]] = []
    for task in tasks:
        if groups and not task.new_events:
            previous = groups[-1][-1]
            if not previous.command_events and not previous.marks:
                groups[-1].append(task)
                continue
        groups.append([task])
    return groups
