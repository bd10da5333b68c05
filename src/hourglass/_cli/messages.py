"""`hourglass signal`, `query` and `update`: talk to a workflow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from hourglass._cli import asking, connecting, console
from hourglass._cli.asking import Json, MaybeWorkflowId, Query, RunId, Values, WorkflowId, Yes
from hourglass._cli.options import Codec, Namespace, Target
from hourglass.errors import ServiceError, ServiceTimeoutError, UsageError

if TYPE_CHECKING:
    from hourglass.client import Client, WorkflowHandle

Name = Annotated[str, typer.Argument(metavar="NAME", help="The handler's or channel's name.")]


def signal(
    name: Name,
    workflow_id: MaybeWorkflowId = None,
    arguments: Values = None,
    query: Query = None,
    run_id: RunId = None,
    yes: Yes = False,
    target: Target = None,
    namespace: Namespace = None,
    codec: Codec = None,
    json: Json = False,
) -> None:
    """Send a signal to a workflow, or with --query to many. With --query every VALUE is an argument.

    \b
    Examples:
      hourglass signal decision order-1 true
      hourglass signal wake --query "WorkflowType = 'poller'" --yes
    """
    given = list(arguments or ())
    if query is not None and workflow_id is not None:
        given, workflow_id = [workflow_id, *given], None
    asking.one_or_many(workflow_id, query)
    with connecting.connected(
        target, namespace, codec, about=workflow_id, run_id=run_id, said_before=name
    ) as client:
        if query is not None:
            asking.sure("signal", query, client, yes)
            with asking.progress("signalling") as progress:
                result = client.signal_workflows(query, name, *asking.values(given), progress=progress)
            asking.tell_bulk("signalled", result, json)
            return
        if workflow_id is None:
            raise UsageError("name the workflow")
        asking.handle_of(client, workflow_id, run_id).signal(name, *asking.values(given))
        if json:
            asking.write_json({"id": workflow_id, "signal": name})
        else:
            console.show(f"signalled {workflow_id}: {name}")


def query(
    name: Name,
    workflow_id: WorkflowId,
    arguments: Values = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="How long to wait for the answer.")
    ] = 10.0,
    run_id: RunId = None,
    target: Target = None,
    namespace: Namespace = None,
    codec: Codec = None,
    json: Json = False,
) -> None:
    """Ask a workflow a question and show the answer. It is a worker that answers: one must be running.

    \b
    Example:
      hourglass query progress import-7
    """
    with connecting.connected(
        target, namespace, codec, about=workflow_id, run_id=run_id, said_before=name
    ) as client:
        handle = asking.handle_of(client, workflow_id, run_id)
        try:
            answer = handle.query(name, *asking.values(arguments), rpc_timeout=timeout)
        except TimeoutError as error:
            raise ServiceTimeoutError(
                _unanswered(client, handle, timeout), status="DEADLINE_EXCEEDED"
            ) from error
        except ServiceError as error:
            if error.status == "FAILED_PRECONDITION":  # nothing is wrong with the question, but with the run
                raise ServiceError(
                    f"{error}\n  see hourglass why {handle.id}", status=error.status
                ) from error
            raise
        asking.answer(answer, json)


def _unanswered(client: Client, handle: WorkflowHandle[Any], limit: float) -> str:
    """Why nobody answered, as far as that can be seen."""
    told = f"the query was not answered within {limit:g} s"
    queue = handle.describe().task_queue
    if client.describe_task_queue(queue).workflow_pollers:
        return f"{told}: see hourglass why {handle.id}"
    return f"{told}: no worker polls task queue {queue!r}\n  start one: hourglass worker FILE" + (
        "" if queue == "default" else f" --task-queue {queue}"
    )


def update(
    name: Name,
    workflow_id: WorkflowId,
    arguments: Values = None,
    update_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="The update's id: again is the same update.")
    ] = None,
    run_id: RunId = None,
    target: Target = None,
    namespace: Namespace = None,
    codec: Codec = None,
    json: Json = False,
) -> None:
    """Ask a workflow for an update, wait for it and show its result.

    \b
    Example:
      hourglass update deposit account-1 500
    """
    with connecting.connected(
        target, namespace, codec, about=workflow_id, run_id=run_id, said_before=name
    ) as client:
        handle = asking.handle_of(client, workflow_id, run_id)
        given = asking.values(arguments)
        if update_id is None:
            asking.answer(handle.execute_update(name, *given), json)
        else:
            asking.answer(handle.execute_update(name, *given, id=update_id), json)
