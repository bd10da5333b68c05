"""`limits.debounce`: a burst of calls is one run, with the arguments of the last. Used from outside of workflows."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Generic, TypedDict, TypeVar, TypeVarTuple, Unpack, overload

from hourglass._engine.options import Duration, optional_seconds, seconds
from hourglass.client import AsyncClient, AsyncWorkflowHandle, Client, WorkflowHandle
from hourglass.client._operations import Reference, start
from hourglass.client._session import Operation, Session
from hourglass.errors import UsageError, WorkflowFailedError
from hourglass.limits._debouncer import Call, Debouncer, fired
from hourglass.limits._reaching import keeper_id
from hourglass.workflow._given import given_workflow

R = TypeVar("R")
Ts = TypeVarTuple("Ts")

_OWN = ("execution_timeout", "run_timeout", "task_timeout")


class DebounceOptions(TypedDict, total=False):
    """How the run is started that a burst becomes. All are optional."""

    task_queue: str
    """The queue whose workers run it, and collect its calls; "default" by default."""
    execution_timeout: Duration | None
    """The longest time for all its runs together."""
    run_timeout: Duration | None
    """The longest time for one run."""
    task_timeout: Duration | None
    """How long a worker may take for one workflow task."""


class _Burst(Generic[R]):
    """A call, and the burst that it is part of."""

    def __init__(self, session: Session, keeper: Reference, ticket: str, return_type: Any) -> None:
        self._session = session
        self._keeper = keeper
        self._ticket = ticket
        self._return_type = return_type

    def _refer(self, workflow_id: str) -> Reference:
        return Reference(workflow_id, return_type=self._return_type)

    def _never(self) -> WorkflowFailedError:
        return WorkflowFailedError("this call was never run: what collected it was cancelled or terminated")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._keeper.workflow_id}>"


class Debounced(_Burst[R], Generic[R]):
    """A call that will be run with others, or in the place of others. Made by `debounce`."""

    def started(self, timeout: Duration | None = None) -> WorkflowHandle[R]:
        """Wait until the burst has become a run; gives its handle, the same to all calls of the burst."""
        keeper: WorkflowHandle[None] = WorkflowHandle(self._session, self._keeper)
        for each in fired.follow(keeper, timeout=timeout):
            if self._ticket in each.tickets:
                return WorkflowHandle(self._session, self._refer(each.workflow_id))
        raise self._never()

    def result(self) -> R:
        """Wait until the burst has become a run and that has ended; gives its result."""
        return self.started().result()


class AsyncDebounced(_Burst[R], Generic[R]):
    """A call that will be run with others, or in the place of others. Made by `debounce`."""

    async def started(self, timeout: Duration | None = None) -> AsyncWorkflowHandle[R]:
        """Wait until the burst has become a run; gives its handle, the same to all calls of the burst."""
        keeper: AsyncWorkflowHandle[None] = AsyncWorkflowHandle(self._session, self._keeper)
        async for each in fired.follow(keeper, timeout=timeout):
            if self._ticket in each.tickets:
                return AsyncWorkflowHandle(self._session, self._refer(each.workflow_id))
        raise self._never()

    async def result(self) -> R:
        """Wait until the burst has become a run and that has ended; gives its result."""
        return await (await self.started()).result()


@overload
def debounce(
    client: Client,
    workflow: Callable[[*Ts], R],
    /,
    *args: *Ts,
    key: str,
    wait: Duration,
    max_wait: Duration | None = None,
    **options: Unpack[DebounceOptions],
) -> Debounced[R]: ...
@overload
def debounce(
    client: Client,
    workflow: str,
    /,
    *args: Any,
    key: str,
    wait: Duration,
    max_wait: Duration | None = None,
    **options: Unpack[DebounceOptions],
) -> Debounced[Any]: ...
@overload
def debounce(
    client: AsyncClient,
    workflow: Callable[[*Ts], R],
    /,
    *args: *Ts,
    key: str,
    wait: Duration,
    max_wait: Duration | None = None,
    **options: Unpack[DebounceOptions],
) -> Coroutine[Any, Any, AsyncDebounced[R]]: ...
@overload
def debounce(
    client: AsyncClient,
    workflow: str,
    /,
    *args: Any,
    key: str,
    wait: Duration,
    max_wait: Duration | None = None,
    **options: Unpack[DebounceOptions],
) -> Coroutine[Any, Any, AsyncDebounced[Any]]: ...
def debounce(  # type: ignore[misc]
    client: Client | AsyncClient,
    workflow: Any,
    /,
    *args: Any,
    key: str,
    wait: Duration,
    max_wait: Duration | None = None,
    **options: Any,
) -> Any:
    """Run a workflow once the calls of a key have calmed down: `limits.debounce(client, reindex, page, key="page-7", wait=5)`.

    Each call begins the wait anew; when none has come for `wait`, the workflow is run once, with the arguments of the last
    call. `max_wait` bounds what a steady stream of calls can put off. A call returns as soon as it is recorded, whether or
    not a worker is there. With an `AsyncClient` it is awaited.
    """
    if not isinstance(client, (Client, AsyncClient)):
        raise UsageError(f"a debounce needs a Client or an AsyncClient, not {type(client).__name__}")
    session = client._session
    call = _call(workflow, key, wait, max_wait, options)
    operation = _send(session, workflow, args, call)
    return_type = given_workflow(workflow).return_type
    if isinstance(client, Client):
        return Debounced[Any](session, session.run(operation), call.ticket, return_type)

    async def send() -> AsyncDebounced[Any]:
        return AsyncDebounced(session, await session.arun(operation), call.ticket, return_type)

    return send()


def _call(
    workflow: Any, key: str, wait: Duration, max_wait: Duration | None, options: Mapping[str, Any]
) -> Call:
    known = DebounceOptions.__annotations__
    for name in options:
        if name not in known:
            raise UsageError(f"a debounce has no option {name!r}; there are: {', '.join(known)}")
    longest = optional_seconds(max_wait, "max_wait")
    if longest is not None and longest < seconds(wait, "wait"):
        raise UsageError("max_wait must not be shorter than wait")
    timeouts = {name: optional_seconds(options.get(name), name) for name in _OWN}
    return Call(
        ticket=uuid.uuid4().hex[:12],
        workflow=given_workflow(workflow).name,
        wait=seconds(wait, "wait"),
        max_wait=longest,
        prefix=key,
        task_queue=options.get("task_queue", "default"),
        **timeouts,
    )


def _send(session: Session, workflow: Any, args: Sequence[Any], call: Call) -> Operation[Reference]:
    session.meet(workflow)
    # Encoded here by the workflow's own signature, and handed on by the one who collects them as they are.
    arguments = given_workflow(workflow).encode(session.converter, args)
    options = {
        "id": keeper_id("debounce", call.prefix),
        "task_queue": call.task_queue,
        "start_signal": Debouncer.call,
        "start_signal_args": (call, *arguments),
    }
    return start(session, Debouncer.run, (), options, None)
