"""`hourglass list` and `describe`: list workflows, and show one of them in detail."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from time import sleep
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from hourglass._built_in import without_keepers
from hourglass._tools.cli import connecting, console
from hourglass._tools.cli.connecting import DecodingEngine, Json, Limit, RunId, WorkflowId
from hourglass._tools.cli.console import Column, cut, lines
from hourglass._tools.timeline.run_state import Problem, problem_of, run_state
from hourglass.errors import ServiceError, UsageError

if TYPE_CHECKING:
    from hourglass.client import Client, WorkflowDescription, WorkflowExecution, WorkflowExecutionCount

_COLOURS = {
    "RUNNING": "cyan",
    "COMPLETED": "green",
    "FAILED": "red",
    "TIMED_OUT": "red",
    "TERMINATED": "yellow",
    "CANCELED": "yellow",
    "PAUSED": "yellow",
}


def list_(
    query: Annotated[
        str, typer.Argument(metavar="FILTER", help="Temporal's list filter.  [default: all]")
    ] = "",
    limit: Limit = 50,
    parked: Annotated[
        bool, typer.Option("--parked", help="Only open workflows that are parked, because their code fails.")
    ] = False,
    failing: Annotated[
        bool, typer.Option("--failing", help="Only open workflows with an activity that keeps failing.")
    ] = False,
    no_worker: Annotated[
        bool, typer.Option("--no-worker", help="Only open workflows without a worker on their task queue.")
    ] = False,
    watch: Annotated[
        bool,
        typer.Option("--watch", "-w", help="Refresh until Ctrl-C. In a pipe, write a line for each change."),
    ] = False,
    count: Annotated[
        bool,
        typer.Option("--count", help="Show only the number; FILTER may end with GROUP BY ExecutionStatus."),
    ] = False,
    all_: Annotated[
        bool,
        typer.Option("--all", "-a", help="Include the workflows that enforce limits (slots, turns, bursts)."),
    ] = False,
    *,
    engine: DecodingEngine,
    json: Json = False,
) -> None:
    """List workflows: open ones first, then the newest.

    \b
    Examples:
      hourglass list
      hourglass list --all
      hourglass list "WorkflowType = 'checkout' AND ExecutionStatus = 'Failed'"
      hourglass list --parked
      hourglass list --failing --count
      hourglass list --watch
    """
    chosen = {Problem.PARKED: parked, Problem.ACTIVITY_FAILS: failing, Problem.NO_WORKER: no_worker}
    problems = [problem for problem, is_chosen in chosen.items() if is_chosen]
    if len(problems) > 1:
        raise UsageError("use only one of --parked, --failing and --no-worker")
    only = problems[0] if problems else None
    full_query = query if all_ else without_keepers(query)
    with engine.connect() as client:
        from hourglass._tools.diagnosis.problems import find

        try:
            if count and only is not None:
                number = sum(1 for _ in find(client, only, full_query, sys.maxsize))
                connecting.report(str(number), json, count=number)
            elif count:
                _print_count(client.count_workflows(full_query), json)
            elif watch:
                _watch(client, full_query, limit, only, json)
            else:
                _once(client, full_query, limit, only, json)
        except ServiceError as error:
            if error.status == "INVALID_ARGUMENT" and full_query != query:
                # The error refers to the user's own filter instead of our extended filter.
                client.count_workflows(query)
            raise


def _print_count(result: WorkflowExecutionCount, json: bool) -> None:
    """Print a count. If the filter ends with GROUP BY, also print the count of each group."""
    groups = [{"values": group.group_values, "count": group.count} for group in result.groups]
    if json:
        connecting.write_json({"count": int(result)} | ({"groups": groups} if groups else {}))
        return
    for group in result.groups:
        console.show(f"{group.count:>8}  {console.one_line(', '.join(map(str, group.group_values)))}")
    console.show(f"{int(result):>8}  in total" if groups else str(int(result)))


def _once(client: Client, query: str, limit: int, only: Problem | None, json: bool) -> None:
    page = _find(client, query, limit, only)
    nothing = "no workflows" if only is None else _NOTHING[only]
    documents = [_document(run, page.problems.get(run.run_id)) for run in page.runs] if json else page.runs
    connecting.report_found(documents, _lines(page), json, nothing=nothing, limit=limit)


_NOTHING = {
    Problem.PARKED: "no workflow is parked",
    Problem.ACTIVITY_FAILS: "no activity keeps failing",
    Problem.NO_WORKER: "every open workflow has a worker",
}


@dataclass(frozen=True)
class _Found:
    """The runs of a list, and the runs' problems by run id."""

    runs: list[WorkflowExecution]
    problems: Mapping[str, Problem]


def _document(run: WorkflowExecution, problem: Problem | None) -> dict[str, Any]:
    return {**connecting.plain(run), "problem": None if problem is None else problem.value}


def _find(client: Client, query: str, limit: int, only: Problem | None) -> _Found:
    from hourglass._tools.diagnosis.problems import find, problems_of

    limit = min(limit, sys.maxsize)
    if only is not None:
        runs = list(find(client, only, query, limit))
        return _Found(runs, {run.run_id: only for run in runs})
    runs = list(islice(client.list_workflows(query), limit))
    return _Found(runs, problems_of(client, runs))


def _watch(client: Client, query: str, limit: int, only: Problem | None, json: bool) -> None:
    if json or console.rows() is None:
        _print_changes(client, query, limit, only, json)
        return
    with console.live() as redraw:
        while True:
            drawn = _lines(_find(client, query, limit, only))
            redraw(Text("\n").join(cut(drawn, (console.rows() or len(drawn)) - 1)))
            sleep(_PAUSE)


def _print_changes(client: Client, query: str, limit: int, only: Problem | None, json: bool) -> None:
    """Print a line for each run that is new or has changed its state. Used for JSON, and if stdout is not a terminal."""
    previous: dict[str, str] = {}
    while True:
        page = _find(client, query, limit, only)
        states = {run.run_id: run_state(run, page.problems.get(run.run_id)) for run in page.runs}
        for run in reversed(page.runs):
            if previous.get(run.run_id) == states[run.run_id]:
                continue
            if json:
                connecting.write_json(_document(run, page.problems.get(run.run_id)), indent=None)
            else:
                console.show(_lines(_Found([run], page.problems))[-1])
        previous = states
        sleep(_PAUSE)


_PAUSE = 1.0

_COLUMNS = (
    Column("ID"),
    Column("STATUS", fixed=True),
    Column("TYPE"),
    Column("STARTED", fixed=True),
    Column("TOOK", fixed=True),
)


def _lines(page: _Found) -> list[Text]:
    now = datetime.now(UTC)
    room = console.room()
    return lines(_COLUMNS, [_row(run, page.problems.get(run.run_id), now, room) for run in page.runs], room)


def _row(
    run: WorkflowExecution, problem: Problem | None, now: datetime, room: int | None
) -> list[tuple[str, str]]:
    began = run.start_time
    return [
        (run.id, ""),
        (run_state(run, problem), "red" if problem is not None else _COLOURS.get(run.status.name, "")),
        (run.workflow_type, ""),
        ("" if began is None else connecting.clock(began) if room is None else _shortly(began, now), ""),
        ("" if began is None else _span(((run.close_time or now) - began).total_seconds()), ""),
    ]


def _shortly(moment: datetime, now: datetime) -> str:
    at = moment.astimezone()
    return f"{at:%H:%M:%S}" if at.date() == now.astimezone().date() else f"{at:%Y-%m-%d %H:%M}"


def _span(seconds: float) -> str:
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.2f} s"


def describe(
    workflow_id: WorkflowId, run_id: RunId = None, *, engine: DecodingEngine, json: Json = False
) -> None:
    """Describe one workflow. Shows status, times, memo and pending activities; `hourglass why` shows more.

    \b
    Example:
      hourglass describe order-1
    """
    with engine.workflow(workflow_id, run_id) as handle:
        described = handle.describe()
    if json:
        connecting.write_json(_document(described, problem_of(described)))
    else:
        console.show_facts(_facts(described))


def _facts(run: WorkflowDescription) -> list[tuple[str, object]]:
    facts: list[tuple[str, object]] = [
        ("id", run.id),
        ("run", run.run_id),
        ("type", run.workflow_type),
        ("status", run_state(run, problem_of(run))),
        ("task queue", run.task_queue),
        ("started", None if run.start_time is None else connecting.clock(run.start_time)),
        ("closed", None if run.close_time is None else connecting.clock(run.close_time)),
        ("events", run.history_length or None),
        ("parent", run.parent_id or None),
        ("summary", run.static_summary),
        ("memo", dict(run.memo) or None),
        ("attributes", dict(run.search_attributes) or None),
    ]
    for activity in run.pending_activities:
        wait = (
            f"{activity.activity_type} ({activity.id}), attempt {activity.attempt}, {activity.state.lower()}"
        )
        if activity.last_failure is not None:
            wait += f", last failure: {activity.last_failure}"
        facts.append(("waits for", wait))
    for update in run.pending_updates:
        facts.append(("waits for", f"update {update.name} ({update.id}), not yet accepted by a worker"))
    return facts
