"""The part of `hourglass move` that handles schedules: pause and hold them while the runs move, then activate
them.

A schedule never acts in both places, and each step survives the death of this process. Pause the schedule in the file, with
the destination and the user's note as its note. Create it on the server, paused, with the note `HELD`. Move the runs.
Restore the original state and note on the server. Leave the schedule paused in the file, with the new location as its note.
A later `move` reads these notes and continues.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from hourglass._contract.schedule_specs import ScheduleState
from hourglass._contract.schedules import (
    CreateSchedule,
    DescribeSchedule,
    ScheduleDetails,
)
from hourglass._tools.cli import connecting, console
from hourglass._tools.cli.move import MOVING
from hourglass.client._schedules import is_same_schedule
from hourglass.client._session import asking, nothing
from hourglass.errors import HourglassError, ScheduleNotFoundError

if TYPE_CHECKING:
    from collections.abc import Collection

    from hourglass.client import Client, Schedule, ScheduleDescription

MOVED = "moved to "
"""The prefix of a schedule's note in the file after its move. During the move, the prefix is `MOVING`."""
HELD = "paused by hourglass move until the move is complete"
"""The note that a schedule on the server has until its move is complete."""


@dataclass(frozen=True)
class ScheduleMove:
    """A schedule in the file, the plan for its move, and the workflows that it waits for.

    `paused` and `note` are the user's values from before any move. `since` is the time since when actions have been missed.
    `counts` is False if the schedule stays because it was not selected.
    """

    id: str
    workflow_type: str
    paused: bool
    note: str
    marked: bool
    running: tuple[str, ...]
    stays: str = ""
    counts: bool = True
    since: datetime | None = None


class ScheduleMover:
    """A mover that checks the schedules of a file and moves them to a server."""

    def __init__(self, source: Client, destination: Client) -> None:
        self._source = source
        self._destination = destination
        self._mark = f"{MOVING}{destination.target}"

    def plan(self, *, is_selected: bool) -> list[ScheduleMove]:
        """Return the plan for each schedule that has not been moved yet. No data is changed."""
        return [
            self._plan(schedule.id, is_selected)
            for schedule in list(self._source.list_schedules())
            if not (schedule.paused and (schedule.note or "").startswith(MOVED))
        ]

    def _plan(self, schedule_id: str, is_selected: bool) -> ScheduleMove:
        seen = self._source.get_schedule_handle(schedule_id).describe()
        state = seen.schedule.state
        marked = state.paused and (state.note or "").startswith(MOVING)
        note = state.note or ""
        if marked:
            note = note.removeprefix(self._mark).removeprefix(": ")
        move = ScheduleMove(
            id=schedule_id,
            workflow_type=str(seen.schedule.action.workflow),
            paused=state.paused and not marked,
            note=note,
            marked=marked,
            running=tuple(action.workflow_id for action in seen.info.running_actions),
            since=seen.info.last_updated_at if marked else None,
        )
        if not is_selected:
            why = "--query selects only workflows; omit it to move schedules"
            return replace(move, stays=why, counts=False)
        try:
            return replace(move, stays=self._obstacle(seen, marked))
        except HourglassError as error:
            return replace(move, stays=console.one_line(str(error)))

    def _obstacle(self, seen: ScheduleDescription, marked: bool) -> str:
        note = seen.schedule.state.note or ""
        if marked and not (note == self._mark or note.startswith(f"{self._mark}: ")):
            return f"an earlier move was interrupted ({note}): finish that move, or use hourglass schedule resume {seen.id}"
        if waiting := seen.info.num_actions_waiting:
            return (
                f"{waiting} buffered starts wait for the previous workflow: wait until they have started, or pause the "
                "schedule"
            )
        try:
            existing = self._details(self._destination, seen.id)
        except ScheduleNotFoundError:
            return ""
        if _is_held(existing) or (marked and self._is_copy(existing)):
            return ""
        return "a schedule on the server already has this id: delete one of the two"

    def begin(self, move: ScheduleMove) -> ScheduleMove:
        """Pause a schedule in the file, and create it paused on the server. Undo the pause if that fails."""
        handle = self._source.get_schedule_handle(move.id)
        marked = move
        if not move.paused and not move.marked:
            note = f"{self._mark}: {move.note}" if move.note else self._mark
            # Including actions that became due while no worker ran.
            upcoming = handle.describe().info.next_action_times
            self._set_state(move.id, paused=True, note=note)
            marked = replace(move, marked=True, since=next(iter(upcoming), None))
        try:
            details = self._details(self._source, move.id)
            try:
                self._details(self._destination, move.id)
            except ScheduleNotFoundError:
                self._create(details)
        except HourglassError as error:
            self.abort(marked)
            return replace(move, stays=console.one_line(str(error)))
        return marked

    def _create(self, details: ScheduleDetails) -> None:
        state = replace(details.schedule.state, paused=True, note=HELD)
        request = CreateSchedule(
            schedule_id=details.schedule_id,
            schedule=msgspec.structs.replace(details.schedule, state=state),
            request_id=f"moved-{details.schedule_id}-{details.info.created_at}",
            memo=details.memo,
            search_attributes=details.search_attributes,
        )
        self._destination._session.run(asking(request, nothing))

    def foresee(self, move: ScheduleMove, staying: Collection[str]) -> tuple[str, str]:
        """Return the result for a schedule that could be moved, given the workflows that stay."""
        if waited_for := next((workflow_id for workflow_id in move.running if workflow_id in staying), None):
            return "stays", f"it waits for {waited_for}, which stays in the file"
        return "moves", "will be paused on the server, as in the file" if move.paused else ""

    def finish(self, move: ScheduleMove, staying: Collection[str]) -> tuple[str, str]:
        """Activate a schedule on the server, or undo its move if a workflow that it waits for stays."""
        verdict, why = self.foresee(move, staying)
        if verdict == "stays":
            try:
                if _is_held(self._details(self._destination, move.id)):
                    self._destination.get_schedule_handle(move.id).delete()
                self.abort(move)
            except HourglassError as error:
                why = f"{why}; the move could not be undone: {console.one_line(str(error))}"
            return verdict, why
        try:
            self._destination.get_schedule_handle(move.id).update(
                lambda seen: (
                    _with_state(seen, paused=move.paused, note=move.note)
                    if seen.schedule.state.note == HELD
                    else None
                )
            )
            moved = f"{MOVED}{self._destination.target}" + (f": {move.note}" if move.note else "")
            self._set_state(move.id, paused=True, note=moved)
        except HourglassError as error:
            return "stays", f"{console.one_line(str(error))}; the schedule is paused: run the move again"
        remarks = [
            "paused on the server, as in the file" if move.paused else "active on the server from now on"
        ]
        if move.since is not None and move.since <= datetime.now(UTC):
            remarks.append(f"actions since {connecting.clock(move.since)} were skipped")
        remarks += [
            f"it does not wait for {workflow_id}, which continues on the server"
            for workflow_id in move.running
        ]
        return "moved", "; ".join(remarks)

    def abort(self, move: ScheduleMove) -> None:
        """Restore a schedule in the file to its state before the move."""
        if move.marked:
            self._set_state(move.id, paused=False, note=move.note)

    def _set_state(self, schedule_id: str, *, paused: bool, note: str) -> None:
        handle = self._source.get_schedule_handle(schedule_id)
        handle.update(lambda seen: _with_state(seen, paused=paused, note=note))

    def _is_copy(self, existing: ScheduleDetails) -> bool:
        """Whether an earlier move has activated the schedule on the server: it is equal except for its state."""
        original = self._details(self._source, existing.schedule_id)
        plain = ScheduleState()
        return is_same_schedule(
            msgspec.structs.replace(original.schedule, state=plain),
            msgspec.structs.replace(existing.schedule, state=plain),
        )

    def _details(self, client: Client, schedule_id: str) -> ScheduleDetails:
        details: ScheduleDetails = client._session.run(
            asking(DescribeSchedule(schedule_id=schedule_id), lambda answer: answer)
        )
        return details


def _is_held(details: ScheduleDetails) -> bool:
    return details.schedule.state.paused and details.schedule.state.note == HELD


def _with_state(seen: ScheduleDescription, *, paused: bool, note: str) -> Schedule:
    return replace(seen.schedule, state=replace(seen.schedule.state, paused=paused, note=note))
