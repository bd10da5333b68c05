"""`hourglass list` and `describe`: what there is, and one of it in detail."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from hourglass._cli import asking, console
from hourglass._cli.asking import Json, RunId, WorkflowId
from hourglass._cli.options import Namespace, Target

if TYPE_CHECKING:
    from rich.table import Table

    from hourglass.client import Client, WorkflowDescription, WorkflowExecution

_COLOURS = {
    "RUNNING": "cyan",
    "COMPLETED": "green",
    "FAILED": "red",
    "TIMED_OUT": "red",
    "TERMINATED": "yellow",
    "CANCELED": "yellow",
}


def list_(
    query: Annotated[
        str, typer.Argument(metavar="[FILTER]", help="Temporal's list filter; all where there is none.")
    ] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, metavar="N", help="How many at most.")] = 50,
    parked: Annotated[
        bool, typer.Option("--parked", help="Only those whose code fails and is tried again and again.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Keep looking; Ctrl-C ends it.")] = False,
    count: Annotated[bool, typer.Option("--count", help="Only how many there are.")] = False,
    target: Target = None,
    namespace: Namespace = None,
    json: Json = False,
) -> None:
    """List workflows: open ones first, the newest first.

    \b
    Examples:
      hourglass list
      hourglass list "WorkflowType = 'checkout' AND ExecutionStatus = 'Failed'"
      hourglass list --parked
      hourglass list --watch
    """
    with asking.connected(target, namespace) as client:
        if count:
            found = client.count_workflows(query)
            asking.write_json({"count": found}) if json else console.show(str(found))
        elif watch:
            _watch(client, query, limit, parked)
        else:
            _once(client, query, limit, parked, json)


def _once(client: Client, query: str, limit: int, parked: bool, json: bool) -> None:
    runs = _find(client, query, limit, parked)
    if json:
        for run in runs:
            asking.write_json(run, indent=None)
    elif not runs:
        console.show("nothing is parked" if parked else "no workflows")
    else:
        console.draw(_table(runs))
        if len(runs) == limit:
            console.show(f"the first {limit}; --limit shows more")


def _find(client: Client, query: str, limit: int, parked: bool) -> list[WorkflowExecution]:
    if not parked:
        return list(islice(client.list_workflows(query), limit))
    opened = f"({query}) AND ExecutionStatus = 'Running'" if query.strip() else "ExecutionStatus = 'Running'"
    described = (
        client.get_workflow_handle(run.id, run_id=run.run_id).describe()
        for run in client.list_workflows(opened)
    )
    return list(islice((each for each in described if each.parked), limit))


def _watch(client: Client, query: str, limit: int, parked: bool) -> None:
    with console.live() as redraw:
        while True:
            redraw(_table(_find(client, query, limit, parked)))
            time.sleep(1)


def _table(runs: Sequence[WorkflowExecution]) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("ID", "TYPE", "STATUS", "STARTED", "TOOK"):
        table.add_column(name, overflow="ellipsis", no_wrap=True, ratio=3 if name == "ID" else None)
    now = datetime.now(UTC)
    for run in runs:
        name = run.status.name
        table.add_row(
            run.id,
            run.workflow_type,
            f"[{_COLOURS.get(name, 'default')}]{name.lower().replace('_', ' ')}[/]",
            "" if run.start_time is None else run.start_time.astimezone().strftime("%Y-%m-%d %H:%M:%S"),
            ""
            if run.start_time is None
            else _span(((run.close_time or now) - run.start_time).total_seconds()),
        )
    return table


def _span(seconds: float) -> str:
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.2f} s"


def describe(
    workflow_id: WorkflowId,
    run_id: RunId = None,
    target: Target = None,
    namespace: Namespace = None,
    json: Json = False,
) -> None:
    """Describe one workflow: its status, times, notes and what it waits for. `hourglass why` says more.

    \b
    Example:
      hourglass describe order-1
    """
    with asking.connected(target, namespace) as client:
        described = asking.handle_of(client, workflow_id, run_id).describe()
    if json:
        asking.write_json(described)
        return
    for name, value in _facts(described):
        console.show(f"{name:<14} {value}")


def _facts(run: WorkflowDescription) -> list[tuple[str, object]]:
    facts: list[tuple[str, object]] = [
        ("id", run.id),
        ("run", run.run_id),
        ("type", run.workflow_type),
        ("status", run.status.name.lower() + (" (parked)" if run.parked else "")),
        ("task queue", run.task_queue),
        ("started", run.start_time),
        ("closed", run.close_time),
        ("events", run.history_length or None),
        ("parent", run.parent_id or None),
        ("summary", run.static_summary),
        ("memo", dict(run.memo) or None),
        ("attributes", dict(run.search_attributes) or None),
    ]
    for activity in run.pending_activities:
        told = (
            f"{activity.activity_type} ({activity.id}), attempt {activity.attempt}, {activity.state.lower()}"
        )
        if activity.last_failure is not None:
            told += f", last failure: {activity.last_failure}"
        facts.append(("waits for", told))
    return [(name, value) for name, value in facts if value is not None]
