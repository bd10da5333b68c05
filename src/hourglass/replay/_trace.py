"""Comparison of a run's history with the commands that the run issued while Core replayed it, task by task. Pure.

Core pairs commands with events in order, but it overlooks some differences. A command that comes a task too early waits for
its event and matches it. The commands of the last task have no events to match. Core never compares arguments, nor names and
ids in histories without the flag for that check. This module compares everything again. Invariants:

- A command belongs to the task of the activation that caused it. The history length of the activation identifies the start of
  that task.
- The commands and events of a task are compared in order. If Core has accepted a different order, each event is instead paired
  with the command that matches it best.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from hourglass._embedded.activations.command_matching import COMMAND_OF
from hourglass._embedded.activations.command_matching import fits as engine_fits
from hourglass._embedded.activations.outcomes import BadCommand
from hourglass._evaluator import commands as c
from hourglass._evaluator.call_sites import NOWHERE, Site
from hourglass._evaluator.words import CommandSummary, summarize
from hourglass._history import events as h
from hourglass.errors import NondeterminismError
from hourglass.replay._comparison import both_end_update, changed_value, mismatch, same_thing
from hourglass.replay._foreign_markers import LocalMark, MarkedTask, VersionMark
from hourglass.replay._foreign_matching import pair_up
from hourglass.replay._issued import IssuedCommands, summarize_local, unknown_command
from hourglass.replay._session import ReplayStep

Where: TypeAlias = Callable[[MarkedTask], str]
"""A function that describes a task in messages."""


def check_removed_markers(
    group: Sequence[MarkedTask], issued: IssuedCommands, waiting_at: Site, where: Where
) -> None:
    """Check that the code requested the patch or local activity of each marker in the group of tasks that Core rejected."""
    for task in group:
        for mark in task.marks:
            if isinstance(mark, VersionMark):
                is_requested = mark.is_deprecated or mark.change_id in issued.patches
                recorded = CommandSummary("patch", mark.change_id, event_id=mark.event_id)
            elif isinstance(mark, LocalMark):
                is_requested = not mark.seq or mark.seq in issued.local_activities
                recorded = summarize_local(mark)
            else:
                continue
            if not is_requested:
                commands = [command for command in issued.of_task if issued.site_of(command)[0]]
                actual = issued.summarize(commands[0]) if commands else None
                site = actual.site if actual is not None else waiting_at
                raise mismatch(recorded, actual, site, where(task))


def check_local_activities(tasks: Sequence[MarkedTask], issued: IssuedCommands, where: Where) -> None:
    """Check that each recorded local activity has the same type in the replay."""
    for task in tasks:
        for mark in task.marks:
            command = issued.local_activities.get(mark.seq) if isinstance(mark, LocalMark) else None
            if command is None or not isinstance(mark, LocalMark) or not mark.activity_type:
                continue
            if mark.activity_type != command.activity_type:
                actual = summarize(command, issued.site_of(command))
                raise mismatch(summarize_local(mark), actual, actual.site, where(task))


def check_new_local_activities(
    last: MarkedTask, marked: set[int], issued: IssuedCommands, where: Where
) -> None:
    """Check that the code starts no local activity without a marker in the history. `last` is the last task of the
    history."""
    if not last.is_completed or issued.has_closed:
        return
    if not last.command_events and not last.marks:
        return  # the task may have been completed only to extend its timeout
    for seq, command in issued.local_activities.items():
        if seq not in marked and seq not in issued.cancelled_local_activities:
            actual = summarize(command, issued.site_of(command))
            raise mismatch(None, actual, actual.site, where(last))


class Trace:
    """The commands that a run issued during a replay by Core, compared with its history.

    `foreign` is True if another SDK recorded the history, with different default ids and random numbers. `accepted` is True
    if Core has accepted the replay.
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
        self._issued = IssuedCommands(run_id)
        self._outcomes = self._issued.outcomes
        self._names: dict[str, str] = {}
        """The ids of children in this replay, mapped to the recorded ids."""

    def difference(
        self, tasks: Sequence[MarkedTask], steps: Sequence[ReplayStep]
    ) -> NondeterminismError | None:
        """Return the first difference, or None if there is none."""
        by_task: dict[int, list[ReplayStep]] = {}
        for step in steps:
            by_task.setdefault(step.history_length, []).append(step)
        last = max(by_task, default=0)
        marked = {mark.seq for task in tasks for mark in task.marks if isinstance(mark, LocalMark)}
        try:
            for group in _groups(tasks):
                if group[0].history_length > last or not group[-1].is_completed:
                    break
                self._issued.replay(
                    group, [step for task in group for step in by_task.get(task.history_length, ())]
                )
                if not self._accepted and group[-1].history_length >= last:
                    check_removed_markers(group, self._issued, self._waiting_at, self._where)
                self._compare_group(group)
            check_local_activities(tasks, self._issued, self._where)
            if self._accepted and tasks:
                check_new_local_activities(tasks[-1], marked, self._issued, self._where)
        except NondeterminismError as error:
            return error
        except BadCommand:
            return None  # Core has accepted the command, and a server would check it
        return None

    def _compare_group(self, group: Sequence[MarkedTask]) -> None:
        of_task = self._issued.of_task
        if len(group) == 1 and self._is_as_recorded(group[0].command_events, of_task):
            self._outcomes.bind(of_task[0], group[0].command_events[0].id)
            of_task.clear()
            return
        issued = list(of_task)
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
        of_task.clear()

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
        if late and self._accepted:  # otherwise Core has moved the terminal command to the end
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
        """Return whether a command could have caused this event. Compare the kind, the name, the id and the referenced
        event.
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
        recorded, issued = self._recorded.get(event.id), self._issued.summarize(command)
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
            issued = self._issued.summarize(command) if command is not None else None
            site = issued.site if issued is not None else self._waiting_at
            raise mismatch(recorded, issued, site, self._where(task))

    def _compare_pair(self, event: h.HistoryEvent, command: c.Command, task: MarkedTask) -> None:
        recorded, issued = self._recorded.get(event.id), self._issued.summarize(command)
        if recorded is None:
            return
        if recorded.kind != issued.kind and not both_end_update(recorded, issued):
            raise mismatch(recorded, issued, issued.site, self._where(task))
        if self._compare and not (self._foreign and self._issued.has_drawn):
            changed = changed_value(recorded, issued, foreign=self._foreign)
            if changed is not None:
                self.is_allowed = True
                raise changed

    def _where(self, task: MarkedTask) -> str:
        where = f"in the workflow task that started with event {task.history_length}"
        return f"{where}\n  {self._reason}" if self._reason else where


def _groups(tasks: Sequence[MarkedTask]) -> list[list[MarkedTask]]:
    """Group the tasks. A task that was completed only to extend its timeout, for a local activity, belongs to the next
    task's group.
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
