"""`hourglass cancel`, `terminate` and `reset`: end a workflow, politely, at once, or to begin it anew."""

from __future__ import annotations

from typing import Annotated

import typer

from hourglass._cli import asking, connecting, console
from hourglass._cli.asking import Json, MaybeWorkflowId, Query, Reason, RunId, WorkflowId, Yes
from hourglass._cli.options import Namespace, Target


def cancel(
    workflow_id: MaybeWorkflowId = None,
    query: Query = None,
    reason: Reason = "",
    run_id: RunId = None,
    yes: Yes = False,
    target: Target = None,
    namespace: Namespace = None,
    json: Json = False,
) -> None:
    """Ask a workflow, or all that a filter finds, to cancel. It may clean up, take its time, or refuse.

    \b
    Examples:
      hourglass cancel order-1 --reason "customer called"
      hourglass cancel --query "WorkflowType = 'import'"
    """
    asking.one_or_many(workflow_id, query)
    with connecting.connected(target, namespace, about=workflow_id, run_id=run_id) as client:
        if query is not None:
            asking.sure("cancel", query, client, yes)
            with asking.progress("cancelling") as progress:
                result = client.cancel_workflows(query, reason=reason, progress=progress)
            asking.tell_bulk("asked to cancel", result, json)
        elif workflow_id is not None:
            handle = asking.handle_of(client, workflow_id, run_id)
            status = handle.describe().status.name  # asking a closed one succeeds, and does nothing
            handle.cancel(reason)
            closed = f"{workflow_id} has closed already ({status.lower().replace('_', ' ')})"
            _told(f"asked {workflow_id} to cancel" if status == "RUNNING" else closed, workflow_id, json)


def terminate(
    workflow_id: MaybeWorkflowId = None,
    query: Query = None,
    reason: Reason = "",
    run_id: RunId = None,
    yes: Yes = False,
    target: Target = None,
    namespace: Namespace = None,
    json: Json = False,
) -> None:
    """End a workflow, or all that a filter finds, now. Its code is not asked and cannot clean up.

    \b
    Examples:
      hourglass terminate order-1
      hourglass terminate --query "WorkflowType = 'import'" --yes
    """
    asking.one_or_many(workflow_id, query)
    with connecting.connected(target, namespace, about=workflow_id, run_id=run_id) as client:
        if query is not None:
            asking.sure("terminate", query, client, yes)
            with asking.progress("terminating") as progress:
                result = client.terminate_workflows(query, reason=reason, progress=progress)
            asking.tell_bulk("terminated", result, json)
        elif workflow_id is not None:
            asking.handle_of(client, workflow_id, run_id).terminate(reason)
            _told(f"terminated {workflow_id}", workflow_id, json)


def reset(
    workflow_id: WorkflowId,
    before: Annotated[
        str | None,
        typer.Option(metavar="STEP", help="Do this step again: an activity or child, by name or id."),
    ] = None,
    event_id: Annotated[
        int | None, typer.Option(metavar="N", help="Or begin anew from the end of a workflow task.")
    ] = None,
    reason: Reason = "",
    run_id: RunId = None,
    target: Target = None,
    namespace: Namespace = None,
    json: Json = False,
) -> None:
    """Begin a workflow anew from a point of its history. What happened before that is kept.

    \b
    Examples:
      hourglass reset order-1 --before charge
      hourglass reset order-1                  the last workflow task again
    """
    with connecting.connected(target, namespace, about=workflow_id, run_id=run_id) as client:
        handle = asking.handle_of(client, workflow_id, run_id)
        again = handle.reset(before=before, event_id=event_id, reason=reason)
        if json:
            asking.write_json({"id": again.id, "run_id": again.run_id})
        else:
            console.show(f"{again.id} goes on as run {again.run_id}")


def _told(text: str, workflow_id: str, json: bool) -> None:
    if json:
        asking.write_json({"id": workflow_id})
    else:
        console.show(text)
