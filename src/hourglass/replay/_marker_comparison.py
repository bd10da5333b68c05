"""Comparison of the markers of a history (patches, local activities) with the commands of a replay. Pure.

Each function raises `NondeterminismError` at the first difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from hourglass._evaluator.call_sites import Site
from hourglass._evaluator.words import CommandSummary, summarize
from hourglass.replay._comparison import mismatch
from hourglass.replay._foreign_markers import LocalMark, MarkedTask, VersionMark
from hourglass.replay._issued import IssuedCommands, summarize_local

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
