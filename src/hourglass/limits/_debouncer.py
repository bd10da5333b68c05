"""`limits.debounce`, a function that turns a burst of calls into one run, and `hourglass.debounce`, the workflow that
collects the calls.

`debounce` is used outside of workflows. The embedded engine collects the calls itself, and immediately returns the id of the
workflow that will run. On a server there is one collecting workflow for each key in use. That workflow sleeps until the
received calls are due, checks for later calls, and sleeps again: one timer for each pause, however many calls there are.
Then it starts the run with the last arguments, as an abandoned child, and ends. Calls that arrive at that moment begin the
next burst.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Required, TypedDict, TypeVar, TypeVarTuple, Unpack, overload

import msgspec

from hourglass import workflow
from hourglass._contract.limits import AwaitBurst, Burst, BurstState, DebounceCall, joined
from hourglass._evaluator.options import Duration, optional_seconds, seconds
from hourglass._evaluator.specs import VersioningBehavior
from hourglass.client import AsyncClient, AsyncWorkflowHandle, Client, WorkflowHandle
from hourglass.client._operations import Reference
from hourglass.client._session import ClientOperation, ClientSession
from hourglass.client._starts import start
from hourglass.client._waiting import call_through_outage, in_time
from hourglass.converter import Payload
from hourglass.errors import Cancelled, UsageError, WorkflowFailedError
from hourglass.limits._keepers import is_long, keeper_id
from hourglass.progress import Progress
from hourglass.workflow import ParentClosePolicy
from hourglass.workflow._references import resolve_workflow


@dataclass(frozen=True)
class Fired:
    """The workflow started for a burst, and the tickets of the burst's calls."""

    workflow_id: str
    tickets: tuple[str, ...]


fired = Progress("fired", Fired)


@workflow.defn(name="hourglass.debounce", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class Debouncer:
    """The workflow that collects the calls of one key."""

    @workflow.init
    def __init__(self, burst: Burst | None = None, *arguments: Payload) -> None:
        self.burst = burst
        self.arguments = arguments
        self.messages = 0
        self.is_long = False

    @workflow.signal
    def call(self, call: DebounceCall, *arguments: Payload) -> None:
        """Receive a call of `debounce` for this key."""
        self.burst = joined(self.burst, call, workflow.time())
        self.arguments = arguments
        self.messages += 1
        self.is_long = is_long(self.messages)

    @workflow.run
    def run(self, burst: Burst | None = None, *arguments: Payload) -> None:
        """Wait until no more calls arrive, start the run, and end."""
        number = 0
        while self.burst is not None:
            self._wait_until_due()
            burst, arguments, self.burst = self.burst, self.arguments, None
            number += 1
            id = f"{burst.call.prefix}:{workflow.info().run_id}" + (f":{number}" if number > 1 else "")
            with workflow.shield():
                workflow.start_child_workflow(
                    burst.call.workflow,
                    *arguments,
                    id=id,
                    task_queue=burst.call.task_queue,
                    execution_timeout=burst.call.execution_timeout,
                    run_timeout=burst.call.run_timeout,
                    task_timeout=burst.call.task_timeout,
                    parent_close_policy=ParentClosePolicy.ABANDON,
                )
            fired.publish(Fired(id, burst.tickets))

    def _wait_until_due(self) -> None:
        while self.burst is not None and self.burst.due > workflow.time():
            if self.is_long:
                workflow.continue_as_new(self.burst, *self.arguments)
            self._wait_until(self.burst.due)

    def _wait_until(self, due: float) -> None:
        """Wait until this time, or until a new call makes the burst due earlier or the history too long."""
        try:
            workflow.wait_condition(
                lambda: self.is_long or (self.burst is not None and self.burst.due < due),
                timeout=due - workflow.time(),
            )
        except TimeoutError:
            pass
        except Cancelled:
            workflow.logger.info("no workflow is started: the calls of this key were cancelled")
            raise


R = TypeVar("R")
Ts = TypeVarTuple("Ts")

_OWN = ("execution_timeout", "run_timeout", "task_timeout")


class DebounceOptions(TypedDict, total=False):
    """Options of the run started for a burst. All are optional."""

    task_queue: str
    """The task queue of the run, and of the workflow that collects the calls; "default" by default."""
    execution_timeout: Duration | None
    """The timeout of all runs of the workflow together."""
    run_timeout: Duration | None
    """The timeout of a single run."""
    task_timeout: Duration | None
    """The timeout of a single workflow task; values above 120 s count as 120 s."""


class _DebounceOptions(DebounceOptions, total=False):
    key: Required[str]
    """The key of the burst: calls with the same key belong together."""
    wait: Required[Duration]
    """The pause between the last call and the start of the run."""
    max_wait: Duration | None
    """The maximum delay of the run by further calls; unlimited by default."""


class _Burst(Generic[R]):
    """A debounced call, and the burst that it belongs to."""

    def __init__(
        self, session: ClientSession, keeper: Reference, call: DebounceCall, return_type: Any
    ) -> None:
        self._session = session
        self._keeper = msgspec.structs.replace(keeper, return_type=return_type)
        self._id = keeper_id("debounce", call.prefix)
        self._ticket = call.ticket
        self._return_type = return_type

    @property
    def _is_kept(self) -> bool:
        """Whether the engine itself collects the calls. The engine has then returned the id of the workflow that will
        run."""
        return self._keeper.workflow_id != self._id

    def _became(self, timeout: Duration | None) -> ClientOperation[None]:
        """Wait until the engine has started the workflow of the burst."""
        limit = optional_seconds(timeout, "timeout")
        request = AwaitBurst(id=self._id, workflow_id=self._keeper.workflow_id)

        async def ask(session: ClientSession) -> BurstState:
            async with in_time(session, limit, f"the calls of {self._id!r} were not run within"):
                while (state := await call_through_outage(session, request)).pending:
                    pass
                return state

        def check(state: BurstState) -> None:
            if not state.run_id:
                raise self._never()

        return ClientOperation(ask, check)

    def _refer(self, workflow_id: str) -> Reference:
        return Reference(workflow_id, return_type=self._return_type)

    def _never(self) -> WorkflowFailedError:
        return WorkflowFailedError(
            "this call was not run, because the workflow that collected it was cancelled or terminated"
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._id}>"


# --- faces: awaited, the source of what follows ---


class AsyncDebounced(_Burst[R], Generic[R]):
    """A call that `debounce` combines with others into a single run. Returned by `debounce`."""

    async def started(self, timeout: Duration | None = None) -> AsyncWorkflowHandle[R]:
        """Wait until the run for the burst has started, and return its handle. All calls of the burst share the handle's
        run."""
        if self._is_kept:
            await self._session.arun(self._became(timeout))
            return AsyncWorkflowHandle(self._session, self._keeper)
        keeper: AsyncWorkflowHandle[None] = AsyncWorkflowHandle(self._session, self._keeper)
        async for event in fired.follow(keeper, timeout=timeout):
            if self._ticket in event.tickets:
                return AsyncWorkflowHandle(self._session, self._refer(event.workflow_id))
        raise self._never()

    async def result(self) -> R:
        """Wait until the run for the burst has started and closed, and return its result."""
        handle = await self.started()
        return await handle.result()


# --- faces: blocking, made by `make faces` from the lines above: edit those ---


class Debounced(_Burst[R], Generic[R]):
    """A call that `debounce` combines with others into a single run. Returned by `debounce`."""

    def started(self, timeout: Duration | None = None) -> WorkflowHandle[R]:
        """Wait until the run for the burst has started, and return its handle. All calls of the burst share the handle's
        run."""
        if self._is_kept:
            self._session.run(self._became(timeout))
            return WorkflowHandle(self._session, self._keeper)
        keeper: WorkflowHandle[None] = WorkflowHandle(self._session, self._keeper)
        for event in fired.follow(keeper, timeout=timeout):
            if self._ticket in event.tickets:
                return WorkflowHandle(self._session, self._refer(event.workflow_id))
        raise self._never()

    def result(self) -> R:
        """Wait until the run for the burst has started and closed, and return its result."""
        handle = self.started()
        return handle.result()


# --- faces: end ---


@overload
def debounce(
    client: Client, workflow: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[_DebounceOptions]
) -> Debounced[R]: ...
@overload
def debounce(
    client: Client, workflow: str, /, *args: Any, **options: Unpack[_DebounceOptions]
) -> Debounced[Any]: ...
@overload
def debounce(
    client: AsyncClient, workflow: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[_DebounceOptions]
) -> Coroutine[Any, Any, AsyncDebounced[R]]: ...
@overload
def debounce(
    client: AsyncClient, workflow: str, /, *args: Any, **options: Unpack[_DebounceOptions]
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
    """Run a workflow once the calls of a key have stopped: `limits.debounce(client, reindex, page, key="page-7", wait=5)`.

    Each call restarts the wait. When no call has arrived for `wait`, the workflow runs once, with the arguments of the last
    call. `max_wait` limits how long further calls can delay the run. A call returns as soon as it is recorded, even if no
    worker is running. With an `AsyncClient`, await the call.
    """
    if not isinstance(client, (Client, AsyncClient)):
        raise UsageError(f"a debounce needs a Client or an AsyncClient, not {type(client).__name__}")
    session = client._session
    call = _call(workflow, key, wait, max_wait, options)
    operation = _send(session, workflow, args, call)
    return_type = resolve_workflow(workflow).return_type
    if isinstance(client, Client):
        return Debounced[Any](session, session.run(operation), call, return_type)

    async def send() -> AsyncDebounced[Any]:
        return AsyncDebounced(session, await session.arun(operation), call, return_type)

    return send()


def _call(
    workflow: Any, key: str, wait: Duration, max_wait: Duration | None, options: Mapping[str, Any]
) -> DebounceCall:
    names = DebounceOptions.__annotations__
    for name in options:
        if name not in names:
            raise UsageError(f"a debounce has no option {name!r}; known options: {', '.join(names)}")
    longest = optional_seconds(max_wait, "max_wait")
    if longest is not None and longest < seconds(wait, "wait"):
        raise UsageError("max_wait must not be shorter than wait")
    timeouts = {name: optional_seconds(options.get(name), name) for name in _OWN}
    return DebounceCall(
        ticket=uuid.uuid4().hex[:12],
        workflow=resolve_workflow(workflow).name,
        wait=seconds(wait, "wait"),
        max_wait=longest,
        prefix=key,
        task_queue=options.get("task_queue", "default"),
        **timeouts,
    )


def _send(
    session: ClientSession, workflow: Any, args: Sequence[Any], call: DebounceCall
) -> ClientOperation[Reference]:
    session.register_workflow(workflow)
    # Encode here, by the workflow's own signature. The collecting workflow passes the payloads on unchanged.
    arguments = resolve_workflow(workflow).encode(session.converter, args)
    options = {
        "id": keeper_id("debounce", call.prefix),
        "task_queue": call.task_queue,
        "start_signal": Debouncer.call,
        "start_signal_args": (call, *arguments),
    }
    return start(session, Debouncer.run, (), options, None)
