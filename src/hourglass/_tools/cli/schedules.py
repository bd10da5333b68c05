"""`hourglass schedule`: workflows that are started repeatedly: create, list, describe, pause, resume, trigger,
backfill and delete.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hourglass._tools.cli import connecting, console
from hourglass._tools.cli.commands import Commands
from hourglass._tools.cli.connecting import DecodingEngine, Engine, Json, Limit, Values, WorkflowName, Yes
from hourglass._tools.cli.console import Column, lines
from hourglass.errors import UsageError

if TYPE_CHECKING:
    from hourglass.client import (
        Schedule,
        ScheduleDescription,
        ScheduleListDescription,
        ScheduleOverlapPolicy,
        ScheduleSpec,
        ScheduleStartOptions,
    )

schedule = Commands(
    name="schedule",
    help="Schedules: workflows that are started at given times.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

ScheduleId = Annotated[str, typer.Argument(metavar="ID", help="The schedule's id.")]


class Overlap(StrEnum):
    """The policy for a workflow that is due while the previous workflow is still running."""

    skip = "skip"
    buffer_one = "buffer-one"
    buffer_all = "buffer-all"
    cancel_other = "cancel-other"
    terminate_other = "terminate-other"
    allow_all = "allow-all"


OverlapOption = Annotated[
    Overlap | None,
    typer.Option(
        help="What to do if the previous workflow is still running.  [default: the schedule's policy]"
    ),
]
Note = Annotated[str, typer.Option(metavar="TEXT", help="A reason, recorded in the schedule.")]


@schedule.command()
def create(
    schedule_id: ScheduleId,
    workflow: WorkflowName,
    arguments: Values = None,
    every: Annotated[
        list[str] | None,
        typer.Option(metavar="DURATION", help="The interval: 90s, 15m, 6h, 1d; counted from midnight UTC."),
    ] = None,
    cron: Annotated[
        list[str] | None, typer.Option(metavar="CRON", help='At these times: "0 9 * * MON-FRI", @daily.')
    ] = None,
    time_zone: Annotated[
        str | None,
        typer.Option(metavar="ZONE", help="Time zone of the cron strings: Europe/Berlin.  [default: UTC]"),
    ] = None,
    start_at: Annotated[
        str | None, typer.Option(metavar="TIME", help="No start before this time: 2030-01-31T09:00.")
    ] = None,
    end_at: Annotated[str | None, typer.Option(metavar="TIME", help="No start after this time.")] = None,
    jitter: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Delay each start by a random time up to this.")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="The maximum number of starts.   [default: no limit]"),
    ] = None,
    overlap: Annotated[
        Overlap, typer.Option(help="What to do if the previous workflow is still running.")
    ] = Overlap.skip,
    catchup: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="After an outage, make up for starts missed within this time."),
    ] = None,
    pause_on_failure: Annotated[
        bool, typer.Option("--pause-on-failure", help="Pause after a workflow that failed.")
    ] = False,
    workflow_id: Annotated[
        str | None, typer.Option(metavar="ID", help="The prefix of the workflows' ids.  [default: ID]")
    ] = None,
    task_queue: Annotated[
        str, typer.Option(metavar="NAME", help="The task queue of the workflows.")
    ] = "default",
    note: Note = "",
    paused: Annotated[bool, typer.Option("--paused", help="Create it paused.")] = False,
    trigger: Annotated[bool, typer.Option("--trigger", help="Also start the workflow once, now.")] = False,
    *,
    engine: DecodingEngine,
    json: Json = False,
) -> None:
    """Create a schedule. It starts WORKFLOW with these arguments at each of its times.

    \b
    Examples:
      hourglass schedule create nightly report --cron "0 3 * * *" --time-zone Europe/Berlin
      hourglass schedule create poll check_mail inbox --every 15m --overlap buffer-one
    """
    from hourglass import client as c

    if not every and not cron:
        raise UsageError('set a time: --every 1h, or --cron "0 9 * * *"; both may be repeated')
    spec = c.ScheduleSpec(
        intervals=[
            c.ScheduleIntervalSpec(connecting.duration(interval, "--every")) for interval in every or ()
        ],
        cron_expressions=list(cron or ()),
        time_zone_name=time_zone,
        start_at=None if start_at is None else connecting.moment(start_at, "--start-at"),
        end_at=None if end_at is None else connecting.moment(end_at, "--end-at"),
        jitter=None if jitter is None else connecting.duration(jitter, "--jitter"),
    )
    options: ScheduleStartOptions = {"task_queue": task_queue}
    if workflow_id:
        options["id"] = workflow_id
    made = c.Schedule(
        c.ScheduleActionStartWorkflow(workflow, *connecting.values(arguments), **options),
        spec,
        c.SchedulePolicy(
            overlap=_policy(overlap),
            catchup_window=None if catchup is None else connecting.duration(catchup, "--catchup"),
            pause_on_failure=pause_on_failure,
        ),
        c.ScheduleState(
            note=note, paused=paused, limited_actions=limit is not None, remaining_actions=limit or 0
        ),
    )
    with engine.connect(makes_file=True) as client:
        handle = client.create_schedule(schedule_id, made, trigger_immediately=trigger)
        seen = handle.describe()
    if json:
        connecting.write_json(_document(seen))
        return
    following = seen.info.next_action_times
    console.show(
        f"created {schedule_id}: {_when(made.spec)}"
        + ("; it is paused" if paused else f"; next at {connecting.clock(following[0])}" if following else "")
    )


def _policy(overlap: Overlap) -> ScheduleOverlapPolicy:
    from hourglass import client

    policy: ScheduleOverlapPolicy = getattr(client.ScheduleOverlapPolicy, overlap.name.upper())
    return policy


_COLUMNS = (
    Column("ID"),
    Column("STATE", fixed=True),
    Column("WORKFLOW"),
    Column("WHEN"),
    Column("NEXT", fixed=True),
    Column("LAST", fixed=True),
)


@schedule.command("list")
def list_(limit: Limit = 50, *, engine: DecodingEngine, json: Json = False) -> None:
    """List schedules with their next times.

    \b
    Example:
      hourglass schedule list
    """
    with engine.connect() as client:
        entries = list(islice(client.list_schedules(), min(limit, sys.maxsize)))
    table = lines(_COLUMNS, [_row(entry) for entry in entries], console.room())
    connecting.report_found(entries, table, json, nothing="no schedules", limit=limit)


def _row(entry: ScheduleListDescription) -> list[tuple[str, str]]:
    last = entry.recent_actions[-1].started_at if entry.recent_actions else None
    following = entry.next_action_times[0] if entry.next_action_times and not entry.paused else None
    return [
        (entry.id, ""),
        ("paused", "yellow") if entry.paused else ("active", "green"),
        (entry.workflow_type, ""),
        (_when(entry.spec), ""),
        ("" if following is None else connecting.clock(following), ""),
        ("" if last is None else connecting.clock(last), ""),
    ]


@schedule.command()
def describe(schedule_id: ScheduleId, *, engine: DecodingEngine, json: Json = False) -> None:
    """Describe one schedule. Shows its action, times, recent workflows and next time.

    \b
    Example:
      hourglass schedule describe nightly
    """
    with engine.connect() as client:
        seen = client.get_schedule_handle(schedule_id).describe()
    if json:
        connecting.write_json(_document(seen))
    else:
        console.show_facts(_facts(seen))


def _facts(seen: ScheduleDescription) -> list[tuple[str, object]]:
    made, info = seen.schedule, seen.info
    state = "paused" if made.state.paused else "active"
    facts: list[tuple[str, object]] = [
        ("id", seen.id),
        ("state", state + (f": {made.state.note}" if made.state.note else "")),
        ("workflow", f"{made.action.workflow}({', '.join(map(repr, made.action.args))})"),
        ("task queue", made.action.options.get("task_queue", "default")),
        ("when", _when(made.spec)),
        ("overlap", made.policy.overlap.name.lower().replace("_", " ")),
        ("acted", f"{info.num_actions} times"),
        ("skipped", info.num_actions_skipped_overlap or None),
        ("missed", info.num_actions_missed_catchup_window or None),
        ("remaining", made.state.remaining_actions if made.state.limited_actions else None),
    ]
    facts += [("running", action.workflow_id) for action in info.running_actions]
    facts += [
        ("started", f"{action.action.workflow_id} at {connecting.clock(action.started_at)}")
        for action in info.recent_actions[-5:]
        if action.started_at is not None
    ]
    if not made.state.paused:
        facts += [("next", connecting.clock(action)) for action in info.next_action_times[:3]]
    return facts


def _document(seen: ScheduleDescription) -> dict[str, object]:
    """Return a description as plain JSON. The action needs special treatment, because it is not a dataclass."""
    made: Schedule = seen.schedule
    return {
        "id": seen.id,
        "workflow": str(made.action.workflow),
        "args": list(made.action.args),
        "options": dict(made.action.options),
        "spec": made.spec,
        "policy": made.policy,
        "state": made.state,
        "info": seen.info,
        "memo": seen.memo,
        "search_attributes": seen.search_attributes,
    }


def _when(spec: ScheduleSpec) -> str:
    """Return a short description of a spec. Engines return cron strings as calendars."""
    parts = [f"every {connecting.span(entry.every)}" for entry in spec.intervals]
    parts += [f"cron {entry}" for entry in spec.cron_expressions]
    for calendar in spec.calendars:
        numbers = (_numbers(getattr(calendar, name), low, high) for name, low, high in _PARTS)
        parts.append(f"cron {' '.join(numbers)}")
    zone = f" ({spec.time_zone_name})" if spec.time_zone_name and spec.time_zone_name != "UTC" else ""
    return ", ".join(parts) + zone


_PARTS = (
    ("minute", 0, 59),
    ("hour", 0, 23),
    ("day_of_month", 1, 31),
    ("month", 1, 12),
    ("day_of_week", 0, 6),
)


def _numbers(ranges: Any, low: int, high: int) -> str:
    """Return the numbers of a calendar as a field of a cron string."""
    fields: list[str] = []
    for entry in ranges if isinstance(ranges, Sequence) else (ranges,):
        start, end, step = (
            (entry, entry, 1)
            if isinstance(entry, int)
            else (entry.start, max(entry.start, entry.end), entry.step)
        )
        bounds = "*" if (start, end) == (low, high) else f"{start}" if start == end else f"{start}-{end}"
        fields.append(bounds if step <= 1 else f"{bounds}/{step}")
    return ",".join(fields)


@schedule.command()
def pause(schedule_id: ScheduleId, note: Note = "", *, engine: Engine, json: Json = False) -> None:
    """Pause a schedule. Workflows that it started continue; it can still be triggered.

    \b
    Example:
      hourglass schedule pause nightly --note "the database moves"
    """
    with engine.connect() as client:
        client.get_schedule_handle(schedule_id).pause(note)
    connecting.report(f"paused {schedule_id}", json, id=schedule_id)


@schedule.command()
def resume(schedule_id: ScheduleId, note: Note = "", *, engine: Engine, json: Json = False) -> None:
    """Resume a paused schedule, from its next time on.

    \b
    Example:
      hourglass schedule resume nightly
    """
    with engine.connect() as client:
        client.get_schedule_handle(schedule_id).unpause(note)
    connecting.report(f"resumed {schedule_id}", json, id=schedule_id)


@schedule.command()
def trigger(
    schedule_id: ScheduleId, overlap: OverlapOption = None, *, engine: Engine, json: Json = False
) -> None:
    """Start a schedule's workflow now, even while it is paused.

    \b
    Example:
      hourglass schedule trigger nightly --overlap allow-all
    """
    with engine.connect() as client:
        handle = client.get_schedule_handle(schedule_id)
        handle.trigger(overlap=None if overlap is None else _policy(overlap))
    connecting.report(f"triggered {schedule_id}", json, id=schedule_id)


@schedule.command()
def backfill(
    schedule_id: ScheduleId,
    start: Annotated[str, typer.Option("--from", metavar="TIME", help="The first time: 2026-01-28T09:00.")],
    end: Annotated[str, typer.Option("--to", metavar="TIME", help="The last time, inclusive.")],
    overlap: OverlapOption = None,
    *,
    engine: Engine,
    json: Json = False,
) -> None:
    """Start a schedule's workflows for past times.

    \b
    Example:
      hourglass schedule backfill nightly --from 2026-01-28 --to 2026-01-31 --overlap buffer-all
    """
    from hourglass.client import ScheduleBackfill

    begin, until = connecting.moment(start, "--from"), connecting.moment(end, "--to")
    with engine.connect() as client:
        client.get_schedule_handle(schedule_id).backfill(
            ScheduleBackfill(
                start_at=begin, end_at=until, overlap=None if overlap is None else _policy(overlap)
            )
        )
    connecting.report(
        f"{schedule_id} starts workflows for its times from {start} to {end}", json, id=schedule_id
    )


@schedule.command()
def delete(schedule_id: ScheduleId, yes: Yes = False, *, engine: Engine, json: Json = False) -> None:
    """Delete a schedule. Workflows that it started continue.

    \b
    Example:
      hourglass schedule delete nightly --yes
    """
    with engine.connect() as client:
        handle = client.get_schedule_handle(schedule_id)
        handle.describe()  # report a missing schedule before asking for confirmation
        connecting.confirm(f"delete the schedule {schedule_id}", yes)
        handle.delete()
    connecting.report(f"deleted {schedule_id}", json, id=schedule_id)
