"""`hourglass activity`: list the pending activities of a workflow, and complete, fail or reset one by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hourglass._tools.cli import connecting, console
from hourglass._tools.cli.commands import Commands
from hourglass._tools.cli.connecting import DecodingEngine, Json, RunId, WorkflowId
from hourglass._tools.cli.console import Column, lines
from hourglass.errors import ServiceError, UsageError

if TYPE_CHECKING:
    from hourglass.client import ActivityHandle, Client, PendingActivityInfo

activity = Commands(
    name="activity",
    help="Activities of a workflow: list, complete, fail, reset.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Activity = Annotated[
    str,
    typer.Argument(
        metavar="ACTIVITY", help="The activity's id, or its name if only one of that name is open."
    ),
]

_COLUMNS = (
    Column("ACTIVITY", fixed=True),
    Column("NAME"),
    Column("STATE", fixed=True),
    Column("ATTEMPT", fixed=True),
    Column("NEXT", fixed=True),
    Column("LAST FAILURE"),
)


@activity.command("list")
def list_(
    workflow_id: WorkflowId, run_id: RunId = None, *, engine: DecodingEngine, json: Json = False
) -> None:
    """List pending activities with attempts and last failures.

    \b
    Example:
      hourglass activity list order-1
    """
    with engine.workflow(workflow_id, run_id) as handle:
        pending = handle.describe().pending_activities
    table = lines(_COLUMNS, [_row(entry) for entry in pending], console.room())
    connecting.report_found(pending, table, json, nothing=f"{workflow_id} has no pending activities")


def _row(activity: PendingActivityInfo) -> list[tuple[str, str]]:
    of = f" of {activity.maximum_attempts}" if activity.maximum_attempts else ""
    following = activity.next_attempt_time
    return [
        (activity.id, ""),
        (activity.activity_type, ""),
        (activity.state.lower().replace("_", " "), "cyan" if activity.state == "STARTED" else ""),
        (f"{activity.attempt}{of}", ""),
        ("" if following is None else connecting.clock(following), ""),
        ("" if activity.last_failure is None else str(activity.last_failure), "red"),
    ]


@activity.command()
def complete(
    workflow_id: WorkflowId,
    name: Activity,
    value: Annotated[
        str, typer.Argument(metavar="VALUE", help="Its result: JSON if it parses as JSON, else a string.")
    ] = "null",
    run_id: RunId = None,
    *,
    engine: DecodingEngine,
    json: Json = False,
) -> None:
    """Complete an activity by hand. The workflow continues as if it had returned VALUE.

    This also works between two attempts. A running attempt is not stopped, but its result is ignored.

    \b
    Examples:
      hourglass activity complete order-1 charge '"receipt-17"'
      hourglass activity complete order-1 3
    """
    with engine.connect(about=workflow_id, run_id=run_id) as client:
        pending, handle = _found(client, workflow_id, run_id, name)
        handle.complete(connecting.values([value])[0])
    _report(f"completed {pending.activity_type} ({pending.id}) of {workflow_id}", workflow_id, pending, json)


@activity.command()
def fail(
    workflow_id: WorkflowId,
    name: Activity,
    message: Annotated[str, typer.Option("--message", "-m", metavar="TEXT", help="What went wrong.")],
    type: Annotated[
        str, typer.Option(metavar="NAME", help="The error's type, which workflows can test.")
    ] = "ApplicationError",
    retry: Annotated[
        bool, typer.Option("--retry", help="Fail only this attempt; the activity is retried by its policy.")
    ] = False,
    run_id: RunId = None,
    *,
    engine: DecodingEngine,
    json: Json = False,
) -> None:
    """Fail an activity by hand. The workflow receives an ActivityError.

    Only a running attempt can be failed; between two attempts the activity can be completed or reset.

    \b
    Example:
      hourglass activity fail order-1 charge --message "the bank says no" --type Declined
    """
    from hourglass.errors import ApplicationError

    error = ApplicationError(message, type=type, non_retryable=not retry)
    with engine.connect(about=workflow_id, run_id=run_id) as client:
        pending, handle = _found(client, workflow_id, run_id, name)
        try:
            handle.fail(error)
        except ServiceError as refused:
            if pending.state != "SCHEDULED":
                raise
            raise ServiceError(
                f"{pending.activity_type} ({pending.id}) waits for attempt {pending.attempt}: only a running attempt can be "
                f"failed\n  hourglass activity complete {workflow_id} {pending.id} VALUE   completes it with a result\n  "
                f"hourglass cancel {workflow_id}                     cancels it with its workflow",
                status=refused.status,
            ) from refused
    _report(f"failed {pending.activity_type} ({pending.id}) of {workflow_id}", workflow_id, pending, json)


@activity.command()
def reset(
    workflow_id: WorkflowId,
    name: Activity,
    reset_heartbeat: Annotated[
        bool, typer.Option("--reset-heartbeat", help="Also delete the details of its last heartbeat.")
    ] = False,
    run_id: RunId = None,
    *,
    engine: DecodingEngine,
    json: Json = False,
) -> None:
    """Retry an activity now, counting attempts from the start. Use this after the cause of its failures is fixed.

    A running attempt continues; if it fails, the next one counts as the first.

    \b
    Example:
      hourglass activity reset order-1 charge
    """
    with engine.connect(about=workflow_id, run_id=run_id) as client:
        pending, handle = _found(client, workflow_id, run_id, name)
        handle.reset(reset_heartbeat=reset_heartbeat)
    _report(
        f"{pending.activity_type} ({pending.id}) of {workflow_id} is retried from attempt 1",
        workflow_id,
        pending,
        json,
    )


def _found(
    client: Client, workflow_id: str, run_id: str | None, name: str
) -> tuple[PendingActivityInfo, ActivityHandle]:
    """Return the pending activity with this id or name. Raise `UsageError` unless there is exactly one."""
    pending = client.get_workflow_handle(workflow_id, run_id=run_id).describe().pending_activities
    matching = [activity for activity in pending if activity.id == name] or [
        activity for activity in pending if activity.activity_type == name
    ]
    if len(matching) == 1:
        handle = client.get_activity_handle(
            workflow_id=workflow_id, run_id=run_id, activity_id=matching[0].id
        )
        return matching[0], handle
    if matching:
        ids = ", ".join(activity.id for activity in matching)
        raise UsageError(
            f"{workflow_id} waits for {len(matching)} activities {name!r}: choose one by its id: {ids}"
        )
    available = ", ".join(f"{activity.activity_type} ({activity.id})" for activity in pending) or "none"
    raise UsageError(f"{workflow_id} has no pending activity {name!r}; pending activities: {available}")


def _report(text: str, workflow_id: str, activity: PendingActivityInfo, json: bool) -> None:
    connecting.report(text, json, id=workflow_id, activity=activity.id, name=activity.activity_type)
