"""What `hourglass why` says of an id that no workflow has: another run, a schedule, or one that is nearly spelt like it."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from hourglass._cli import connecting
from hourglass._cli.telling import nanoseconds
from hourglass._story import reasons
from hourglass._story.diagnosis import Action, Diagnosis, Finding
from hourglass.errors import HourglassError

if TYPE_CHECKING:
    from hourglass.client import Client, ScheduleDescription


def diagnosis(client: Client, workflow_id: str, run_id: str | None, options: str) -> Diagnosis:
    """Why it is not found."""
    latest = connecting.latest_run(client, workflow_id, run_id)
    if latest is not None:
        found = reasons.not_found(workflow_id, (), options)
        return replace(found, findings=(_another_run(found, run_id or "", latest, options),))
    found = reasons.not_found(workflow_id, connecting.similar(client, workflow_id), options)
    schedule = _schedule(client, workflow_id)
    return found if schedule is None else replace(found, findings=(_scheduled(found, schedule, options),))


def _another_run(found: Diagnosis, run_id: str, latest: str, options: str) -> Finding:
    command = f"hourglass why {shlex.quote(found.workflow_id)} {options}".rstrip()
    return replace(
        found.findings[0],
        what=f"has no run {run_id!r}",
        details=(f"its latest run is {latest}",),
        actions=(Action("Ask about that one:", command),),
    )


def _schedule(client: Client, schedule_id: str) -> ScheduleDescription | None:
    try:
        return client.get_schedule_handle(schedule_id).describe()
    except HourglassError:
        return None  # none, or nobody may look


def _scheduled(found: Diagnosis, schedule: ScheduleDescription, options: str) -> Finding:
    """A schedule is no workflow: it starts some, whose ids begin with that of the schedule's action."""
    state, coming, action = schedule.schedule.state, schedule.info.next_action_times, schedule.schedule.action
    paused = f": it is paused ({state.note})" if state.note else ": it is paused, and starts nothing"
    begun = shlex.quote(f"WorkflowId STARTS_WITH '{action.options.get('id', schedule.id)}'")
    return replace(
        found.findings[0],
        what="is a schedule, no workflow" + (paused if state.paused else ""),
        until=nanoseconds(coming[0]) if coming and not state.paused else None,
        details=(f"it has started {schedule.info.num_actions} workflows",),
        actions=(
            *(
                (Action(f"Let it go on: client.get_schedule_handle({schedule.id!r}).unpause()"),)
                if state.paused
                else ()
            ),
            Action("Look at what it started:", f"hourglass list {begun} {options}".rstrip()),
        ),
    )
