"""Commands that act on a workflow, or on all workflows of a filter: `start`, `result`, `signal`, `query`, `update`,
`cancel`, `terminate`, `reset`, `fork`, `pause`, `resume` and `delete`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hourglass._tools.cli import connecting
from hourglass._tools.cli.connecting import (
    AnyQuery,
    DecodingEngine,
    Engine,
    Json,
    MaybeWorkflowId,
    NewId,
    Query,
    Reason,
    RunId,
    Values,
    WorkflowId,
    WorkflowName,
    Yes,
)
from hourglass.errors import ServiceError, ServiceTimeoutError, UsageError, WorkflowNotFoundError

if TYPE_CHECKING:
    from hourglass.client import Client, WorkflowHandle


def cancel(
    workflow_id: MaybeWorkflowId = None,
    query: Query = None,
    reason: Reason = "",
    run_id: RunId = None,
    yes: Yes = False,
    *,
    engine: Engine,
    json: Json = False,
) -> None:
    """Request cancellation of one workflow or of many. A workflow may clean up first, or ignore the request.

    \b
    Examples:
      hourglass cancel order-1 --reason "customer called"
      hourglass cancel --query "WorkflowType = 'import'"
    """
    query = connecting.bulk_filter(workflow_id, query)
    with engine.connect(about=workflow_id, run_id=run_id) as client:
        if query is not None:
            connecting.to_many(
                client,
                query,
                ("cancel", "cancelling", "requested cancellation"),
                yes,
                json,
                lambda report: client.cancel_workflows(query, reason=reason, progress=report),
            )
        elif workflow_id is not None:
            handle = client.get_workflow_handle(workflow_id, run_id=run_id)
            try:
                status = handle.describe().status.name  # cancelling a closed workflow has no effect
            except WorkflowNotFoundError:
                status = "RUNNING"  # activities without a workflow have no run to describe; others are rejected below
            handle.cancel(reason)
            closed = f"{workflow_id} is already closed ({status.lower().replace('_', ' ')})"
            connecting.report(
                f"requested cancellation of {workflow_id}" if status == "RUNNING" else closed,
                json,
                id=workflow_id,
            )


def terminate(
    workflow_id: MaybeWorkflowId = None,
    query: Query = None,
    reason: Reason = "",
    run_id: RunId = None,
    yes: Yes = False,
    *,
    engine: Engine,
    json: Json = False,
) -> None:
    """Terminate a workflow, or all that match a filter, now. Its code cannot clean up.

    \b
    Examples:
      hourglass terminate order-1
      hourglass terminate --query "WorkflowType = 'import'" --yes
    """
    query = connecting.bulk_filter(workflow_id, query)
    with engine.connect(about=workflow_id, run_id=run_id) as client:
        if query is not None:
            connecting.to_many(
                client,
                query,
                ("terminate", "terminating", "terminated"),
                yes,
                json,
                lambda report: client.terminate_workflows(query, reason=reason, progress=report),
            )
        elif workflow_id is not None:
            client.get_workflow_handle(workflow_id, run_id=run_id).terminate(reason)
            connecting.report(f"terminated {workflow_id}", json, id=workflow_id)


Before = Annotated[
    str | None,
    typer.Option(metavar="STEP", help="The first step to repeat: an activity or child, by name or id."),
]
EventId = Annotated[
    int | None, typer.Option(metavar="N", help="Or the id of the event that ends a workflow task.")
]


def reset(
    workflow_id: WorkflowId,
    before: Before = None,
    event_id: EventId = None,
    reason: Reason = "",
    run_id: RunId = None,
    *,
    engine: Engine,
    json: Json = False,
) -> None:
    """Start a workflow again from a point of its history. Everything before that point is kept.

    \b
    Examples:
      hourglass reset order-1 --before charge
      hourglass reset order-1                  the last workflow task again
    """
    with engine.workflow(workflow_id, run_id) as handle:
        again = handle.reset(before=before, event_id=event_id, reason=reason)
    connecting.report(
        f"reset {again.id}: it continues as run {again.run_id}", json, id=again.id, run_id=again.run_id
    )


def fork(
    workflow_id: WorkflowId,
    id: Annotated[str, typer.Option(metavar="NEW", help="The id of the new workflow.")],
    before: Before = None,
    event_id: EventId = None,
    run_id: RunId = None,
    *,
    engine: Engine,
    json: Json = False,
) -> None:
    """Start a copy of a workflow from before a step.

    This one does not change. Steps before STEP are not repeated. Later events, including signals, are not copied to the new
    workflow.

    \b
    Example:
      hourglass fork order-1 --before ship --id order-1-again
    """
    if before is None and event_id is None:
        raise UsageError("choose the step with --before STEP or --event-id N")
    with engine.workflow(workflow_id, run_id) as handle:
        made = handle.fork(id=id, before=before, event_id=event_id)
    connecting.report(
        f"forked {workflow_id}: the copy is {made.id} (run {made.run_id})",
        json,
        id=made.id,
        run_id=made.run_id,
    )


def pause(
    workflow_id: WorkflowId, reason: Reason = "", run_id: RunId = None, *, engine: Engine, json: Json = False
) -> None:
    """Pause a workflow until it is resumed.

    No worker receives its tasks. A running attempt of an activity may finish. Signals, timers and results are recorded, and
    timeouts continue.

    \b
    Example:
      hourglass pause order-1 --reason "the warehouse counts"
    """
    with engine.workflow(workflow_id, run_id) as handle, _advised():
        handle.pause(reason)
    connecting.report(
        f"paused {workflow_id}; to resume it: hourglass resume {workflow_id}", json, id=workflow_id
    )


def resume(
    workflow_id: WorkflowId, reason: Reason = "", run_id: RunId = None, *, engine: Engine, json: Json = False
) -> None:
    """Resume a paused workflow.

    \b
    Example:
      hourglass resume order-1
    """
    with engine.workflow(workflow_id, run_id) as handle, _advised():
        handle.unpause(reason)
    connecting.report(f"resumed {workflow_id}", json, id=workflow_id)


@contextmanager
def _advised() -> Iterator[None]:
    """If the server rejects pausing, explain the setting that enables it."""
    try:
        yield
    except ServiceError as error:
        if error.status != "UNIMPLEMENTED":
            raise
        raise ServiceError(
            f"{error}\n  a Temporal server can pause workflows only if its setting frontend.WorkflowPauseEnabled is true:\n  "
            "temporal server start-dev --dynamic-config-value frontend.WorkflowPauseEnabled=true",
            status=error.status,
        ) from error


def delete(
    workflow_id: MaybeWorkflowId = None,
    query: AnyQuery = None,
    run_id: RunId = None,
    yes: Yes = False,
    *,
    engine: Engine,
    json: Json = False,
) -> None:
    """Delete a workflow, or all that match a filter, permanently.

    Its history is deleted as well. An open workflow is terminated first.

    \b
    Examples:
      hourglass delete order-1
      hourglass delete --query "ExecutionStatus = 'Completed' AND CloseTime < '2026-01-01T00:00:00Z'" --yes
    """
    query = connecting.bulk_filter(workflow_id, query)
    with engine.connect(about=workflow_id, run_id=run_id) as client:
        if query is not None:
            _delete_many(client, query, yes, json)
        elif workflow_id is not None:
            handle = client.get_workflow_handle(workflow_id, run_id=run_id)
            seen = handle.describe()
            was = "is open and would be terminated" if seen.close_time is None else "is closed"
            connecting.confirm(f"delete {workflow_id}, which {was}, with its history", yes)
            handle.delete()
            connecting.report(f"deleted {workflow_id} (run {seen.run_id})", json, id=workflow_id)


def _delete_many(client: Client, query: str, yes: bool, json: bool) -> None:
    if not yes:
        connecting.confirm(f"permanently delete {connecting.workflows(client.count_workflows(query))}", yes)
    done, errors = 0, dict[str, ServiceError]()
    runs = list(client.list_workflows(query))
    with connecting.progress("deleting") as report:
        for run in runs:
            try:
                client.get_workflow_handle(run.id, run_id=run.run_id).delete()
                done += 1
            except WorkflowNotFoundError:
                pass  # the workflow was deleted in the meantime, or its retention has passed
            except ServiceError as refused:
                errors[run.id] = refused
            report(done + len(errors), len(runs))
    document = {"found": len(runs), "done": done, "errors": errors}
    connecting.report_many(f"deleted: {done} of {len(runs)}", document, errors, json)


SignalName = Annotated[str, typer.Argument(metavar="NAME", help="The signal's or channel's name.")]
QueryName = Annotated[str, typer.Argument(metavar="NAME", help="The query's name.")]
UpdateName = Annotated[str, typer.Argument(metavar="NAME", help="The update's name.")]


def signal(
    name: SignalName,
    workflow_id: MaybeWorkflowId = None,
    arguments: Values = None,
    query: Query = None,
    run_id: RunId = None,
    yes: Yes = False,
    *,
    engine: DecodingEngine,
    json: Json = False,
) -> None:
    """Send a signal to a workflow, or with --query to many. With --query every VALUE is an argument.

    \b
    Examples:
      hourglass signal decision order-1 true
      hourglass signal wake --query "WorkflowType = 'poller'" --yes
    """
    texts = list(arguments or ())
    if query is not None and workflow_id is not None:
        texts, workflow_id = [workflow_id, *texts], None
    query = connecting.bulk_filter(workflow_id, query)
    with engine.connect(about=workflow_id, run_id=run_id, said_before=name) as client:
        if query is not None:
            values = connecting.values(texts)
            connecting.to_many(
                client,
                query,
                ("signal", "signalling", "signalled"),
                yes,
                json,
                lambda report: client.signal_workflows(query, name, *values, progress=report),
            )
            return
        if workflow_id is None:
            raise UsageError("pass the id of the workflow, or --query")
        client.get_workflow_handle(workflow_id, run_id=run_id).signal(name, *connecting.values(texts))
        connecting.report(f"signalled {workflow_id}: {name}", json, id=workflow_id, signal=name)


def query(
    name: QueryName,
    workflow_id: WorkflowId,
    arguments: Values = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="Timeout for the answer.")
    ] = 10.0,
    run_id: RunId = None,
    *,
    engine: DecodingEngine,
    json: Json = False,
) -> None:
    """Query a workflow and show the answer. A worker must be running to answer it.

    \b
    Example:
      hourglass query progress import-7
    """
    with engine.connect(about=workflow_id, run_id=run_id, said_before=name) as client:
        handle = client.get_workflow_handle(workflow_id, run_id=run_id)
        try:
            answer = handle.query(name, *connecting.values(arguments), rpc_timeout=timeout)
        except TimeoutError as error:
            raise ServiceTimeoutError(
                _unanswered(client, handle, timeout), status="DEADLINE_EXCEEDED"
            ) from error
        except ServiceError as error:
            if error.status == "FAILED_PRECONDITION":  # the run is the problem, not the query
                raise ServiceError(
                    f"{error}\n  see hourglass why {handle.id}", status=error.status
                ) from error
            raise
        connecting.answer(answer, json)


def _unanswered(client: Client, handle: WorkflowHandle[Any], limit: float) -> str:
    """Return the reason why no worker answered, if known."""
    message = f"the query was not answered within {limit:g} s"
    queue = handle.describe().task_queue
    if client.describe_task_queue(queue).workflow_pollers:
        return f"{message}: see hourglass why {handle.id}"
    return f"{message}: no worker polls task queue {queue!r}\n  start one: hourglass worker FILE" + (
        "" if queue == "default" else f" --task-queue {queue}"
    )


def update(
    name: UpdateName,
    workflow_id: WorkflowId,
    arguments: Values = None,
    update_id: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="The update's id; the same id is the same update."),
    ] = None,
    run_id: RunId = None,
    *,
    engine: DecodingEngine,
    json: Json = False,
) -> None:
    """Send an update to a workflow and show its result.

    \b
    Example:
      hourglass update deposit account-1 500
    """
    options: dict[str, Any] = {} if update_id is None else {"id": update_id}
    with engine.workflow(workflow_id, run_id, said_before=name) as handle:
        connecting.answer(handle.execute_update(name, *connecting.values(arguments), **options), json)


def start(
    workflow: WorkflowName,
    arguments: Values = None,
    id: NewId = None,
    task_queue: Annotated[str, typer.Option(metavar="NAME", help="Its task queue.")] = "default",
    start_delay: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Start after this delay.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Wait for its result and show it.")] = False,
    *,
    engine: DecodingEngine,
    json: Json = False,
) -> None:
    """Start a workflow.

    \b
    Examples:
      hourglass start checkout '{"id": "o-1", "cents": 1200}' --id order-1
      hourglass start report daily --wait
    """
    _reject_file(workflow)
    options: dict[str, Any] = {} if id is None else {"id": id}
    with engine.connect(makes_file=True) as client:
        handle = client.start_workflow(
            workflow, *connecting.values(arguments), task_queue=task_queue, start_delay=start_delay, **options
        )
        if wait:
            connecting.answer(handle.result(), json)
        else:
            connecting.report(
                f"started {handle.id} (run {handle.run_id})", json, id=handle.id, run_id=handle.run_id
            )


def result(
    workflow_id: WorkflowId,
    timeout: Annotated[
        float | None, typer.Option(min=0.0, metavar="SECONDS", help="Timeout.  [default: no limit]")
    ] = None,
    run_id: RunId = None,
    *,
    engine: DecodingEngine,
    json: Json = False,
) -> None:
    """Wait until a workflow ends and show its result. Exit code 1 if it failed, or did not end in time.

    \b
    Examples:
      hourglass result order-1
      hourglass result order-1 --timeout 10 --json
    """
    with engine.workflow(workflow_id, run_id) as handle:
        handle.describe()  # report a missing workflow immediately instead of waiting
        try:
            connecting.answer(handle.result(timeout), json)
        except TimeoutError as error:
            raise ServiceTimeoutError(
                f"{workflow_id} did not end within {timeout:g} s\n  see hourglass why {workflow_id}",
                status="DEADLINE_EXCEEDED",
            ) from error


def _reject_file(workflow: str) -> None:
    """Reject a file name. `run` accepts files, but an engine would take the name for a workflow type that no worker has."""
    file, _, name = workflow.rpartition(":") if ".py:" in workflow else (workflow, "", "")
    if file.endswith(".py"):
        raise UsageError(
            f"{workflow!r} is a file; start needs the name of a workflow, whose code runs in a worker\n  hourglass worker "
            f"{file}            in another terminal\n  hourglass start {name or 'NAME'} …\n  or in one command: hourglass "
            f"run {workflow} …"
        )
