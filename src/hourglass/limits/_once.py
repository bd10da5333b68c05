"""`limits.once`, a function that returns the same run for the same key. Used outside of workflows.

The function uses Temporal's id policies and adds a time window. A closed run is ignored after the window. If two clients
notice the end of the window simultaneously, they still start only one run, because the request id of both starts contains
the id of the previous run.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Required, TypeVar, TypeVarTuple, Unpack, overload

import msgspec

from hourglass._contract.workflows import DescribeWorkflow, IdConflictPolicy
from hourglass._evaluator.options import Duration, optional_seconds
from hourglass._evaluator.specs import IdReusePolicy
from hourglass.client import AsyncClient, AsyncWorkflowHandle, Client, StartOptions, WorkflowHandle
from hourglass.client._operations import Reference
from hourglass.client._options import start_request
from hourglass.client._session import ClientOperation, ClientSession
from hourglass.errors import UsageError, WorkflowAlreadyStartedError
from hourglass.workflow._references import resolve_workflow

R = TypeVar("R")
Ts = TypeVarTuple("Ts")

_OURS = ("id", "id_reuse_policy", "id_conflict_policy", "request_id")


class OnceOptions(StartOptions, total=False):
    """The options of `once`: all of `StartOptions` except the id and its policies, plus the options below."""

    key: Required[str]
    """The workflow id: calls with the same key refer to the same run."""
    window: Duration | None
    """The time that a closed run counts, from its start. By default, it counts as long as the engine retains it."""
    retry_failed: bool
    """Whether to ignore a run that did not complete."""


@overload
def once(
    client: Client, workflow: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[OnceOptions]
) -> WorkflowHandle[R]: ...
@overload
def once(
    client: Client, workflow: str, /, *args: Any, **options: Unpack[OnceOptions]
) -> WorkflowHandle[Any]: ...
@overload
def once(
    client: AsyncClient, workflow: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[OnceOptions]
) -> Coroutine[Any, Any, AsyncWorkflowHandle[R]]: ...
@overload
def once(
    client: AsyncClient, workflow: str, /, *args: Any, **options: Unpack[OnceOptions]
) -> Coroutine[Any, Any, AsyncWorkflowHandle[Any]]: ...
def once(  # type: ignore[misc]
    client: Client | AsyncClient,
    workflow: Any,
    /,
    *args: Any,
    key: str,
    window: Duration | None = None,
    retry_failed: bool = False,
    **options: Any,
) -> Any:
    """Start a workflow unless it has already been started: `limits.once(client, pay, invoice, key="invoice-7").result()`.

    The key is the workflow id. While a run with this key is open, and as long as the engine retains the closed run, every
    caller receives a handle of that run, whatever the arguments. With `window`, a closed run counts only for this time after
    its start. With `retry_failed`, a run that did not complete does not count. With an `AsyncClient`, await the call.
    """
    if not isinstance(client, (Client, AsyncClient)):
        raise UsageError(f"once needs a Client or an AsyncClient, not {type(client).__name__}")
    for name in _OURS:
        if name in options:
            raise UsageError(
                f"once has no option {name!r}: the key is the workflow id, and once sets the policies of the id itself"
            )
    session = client._session
    session.register_workflow(workflow)
    policy = IdReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY if retry_failed else IdReusePolicy.REJECT_DUPLICATE
    operation = _start(session, workflow, args, {**options, "id": key, "id_reuse_policy": policy}, window)
    if isinstance(client, Client):
        return WorkflowHandle[Any](session, session.run(operation))

    async def start() -> AsyncWorkflowHandle[Any]:
        return AsyncWorkflowHandle(session, await session.arun(operation))

    return start()


def _start(
    session: ClientSession,
    workflow: Any,
    args: Sequence[Any],
    options: Mapping[str, Any],
    window: Duration | None,
) -> ClientOperation[Reference]:
    definition = resolve_workflow(workflow)
    policies = {"id_conflict_policy": IdConflictPolicy.USE_EXISTING}
    request = start_request(definition, args, {**options, **policies}, session.converter, session.identity)
    limit = optional_seconds(window, "window")

    async def ask(session: ClientSession) -> str:
        try:
            return (await session.call(request)).run_id
        except WorkflowAlreadyStartedError as error:
            describe = DescribeWorkflow(workflow_id=request.workflow_id, run_id=error.run_id)
        former = (await session.call(describe)).summary
        if limit is None or session.now_ns() < former.start_time_ns + round(limit * 1e9):
            return former.run_id
        again = msgspec.structs.replace(
            request, id_reuse_policy=IdReusePolicy.ALLOW_DUPLICATE, request_id=f"after {former.run_id}"
        )
        return (await session.call(again)).run_id

    return ClientOperation(
        ask, lambda run_id: Reference(request.workflow_id, run_id, return_type=definition.return_type)
    )
