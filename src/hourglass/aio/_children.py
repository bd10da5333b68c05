"""Child workflows and other workflows for `async def` workflows, with temporalio's names.

Interceptors are plain functions, so an outgoing call passes through them on a bridge (`outward`). Without interceptors there
is no bridge.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, TypedDict, TypeVar, TypeVarTuple, Unpack, cast, overload

import msgspec

from hourglass._contract.workflows import IdConflictPolicy
from hourglass._evaluator import awaited
from hourglass._evaluator.context import LiveRun
from hourglass._evaluator.event_groups import EventGroup, block_of, check_groups
from hourglass._evaluator.fibers import Bridge, bridged_wait, require_fiber
from hourglass._evaluator.interception import (
    SignalChildWorkflowInput,
    SignalExternalWorkflowInput,
    SignalWithStartWorkflowInput,
    StartChildWorkflowInput,
)
from hourglass._evaluator.operations import drop_step, keep_step
from hourglass._evaluator.options import (
    Duration,
    RetryPolicy,
    check_text,
)
from hourglass._evaluator.specs import ChildCancellationType as ChildWorkflowCancellationType
from hourglass._evaluator.specs import (
    IdReusePolicy,
    ParentClosePolicy,
    VersioningOverride,
)
from hourglass.aio._values import (
    UNSET,
    Listed,
    Named,
    NamedAs,
    Single,
    chosen_options,
    overloaded,
    positional_values,
    takes,
)
from hourglass.aio.common import Priority
from hourglass.converter import SearchAttributes
from hourglass.errors import ActivityError, UsageError
from hourglass.workflow._children import (
    WithStartOptions,
    check_external,
    check_options,
    child_command,
    refusal,
    sending,
    signal_command,
    with_start_call,
)
from hourglass.workflow._references import ResolvedReference, resolve_message, resolve_workflow

R = TypeVar("R")
W = TypeVar("W")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class ChildWorkflowConfig(TypedDict, total=False):
    """Options for starting a child workflow. A duration is a `timedelta` or seconds."""

    id: str | None
    task_queue: str | None
    cancellation_type: ChildWorkflowCancellationType
    parent_close_policy: ParentClosePolicy
    execution_timeout: Duration | None
    run_timeout: Duration | None
    task_timeout: Duration | None
    id_reuse_policy: IdReusePolicy
    retry_policy: RetryPolicy | None
    cron_schedule: str
    memo: Mapping[str, Any] | None
    search_attributes: SearchAttributes | None
    static_summary: str | None
    static_details: str | None
    event_groups: Sequence[EventGroup] | None
    priority: Priority
    versioning_override: VersioningOverride | None
    versioning_intent: None


class _NamedChild(ChildWorkflowConfig, Named, total=False): ...


class _NamedAsChild(ChildWorkflowConfig, NamedAs[R], Generic[R]): ...


class _ListedChild(ChildWorkflowConfig, Listed): ...


class _SingleChild(ChildWorkflowConfig, Single[T], Generic[T]): ...


class WithStartConfig(WithStartOptions, total=False):
    """Options for starting a workflow with a signal. A duration is a `timedelta` or seconds."""

    id_conflict_policy: IdConflictPolicy | None
    priority: Priority


class Signalled:
    """A workflow that this one can signal."""

    @overload
    async def signal(
        self,
        signal: str,
        arg: Any = UNSET,
        *positional: Any,
        args: Sequence[Any] = (),
        event_groups: Sequence[EventGroup] | None = None,
    ) -> None: ...
    @overload
    async def signal(
        self,
        signal: Callable[[*Ts], Any],
        *positional: *Ts,
        event_groups: Sequence[EventGroup] | None = None,
    ) -> None: ...
    @overload
    async def signal(
        self,
        signal: Callable[..., Any],
        *,
        args: Sequence[Any],
        event_groups: Sequence[EventGroup] | None = None,
    ) -> None: ...
    @overload
    async def signal(
        self, signal: Callable[[T], Any], *, arg: T, event_groups: Sequence[EventGroup] | None = None
    ) -> None: ...
    async def signal(  # type: ignore[misc]
        self,
        signal: Any,
        arg: Any = UNSET,
        *positional: Any,
        args: Sequence[Any] = (),
        event_groups: Sequence[EventGroup] | None = None,
    ) -> None:
        """Send a signal and wait until it is delivered. Raise `ApplicationError` if the workflow does not exist."""
        with _within(event_groups):
            await self._send(
                resolve_message("signal", signal), list(positional_values(arg, positional, args))
            )

    async def _send(self, message: ResolvedReference, values: list[Any]) -> None:
        raise NotImplementedError


def _within(event_groups: Sequence[EventGroup] | None) -> AbstractContextManager[object]:
    return nullcontext() if event_groups is None else block_of(check_groups(event_groups))


async def _signal(
    run: LiveRun, message: ResolvedReference, values: list[Any], make: Callable[..., Any], method: str
) -> None:
    """Send a signal through the interceptor method `method`. `make` creates the call."""

    async def send(call: Any) -> None:
        await awaited.signal_external(signal_command(run, message, call))

    call = make(signal=message.name, args=values, _proceed=bridging(send))
    await outward(run, send, call, method)


class ChildWorkflowHandle(Signalled, awaited.ChildHandle[R], Generic[W, R]):
    """A started child workflow: an asyncio task with the child's result and a `signal` method."""

    async def _send(self, message: ResolvedReference, values: list[Any]) -> None:
        make = functools.partial(SignalChildWorkflowInput, child_workflow_id=self.id)
        await _signal(self._run, message, values, make, "signal_child_workflow")

    def __repr__(self) -> str:
        return f"<child workflow {self._command.workflow_type} {self.id}>"


@overload
async def start_child_workflow(
    workflow: str, *positional: Any, **options: Unpack[_NamedAsChild[R]]
) -> ChildWorkflowHandle[Any, R]: ...
@overload
async def start_child_workflow(
    workflow: str, *positional: Any, **options: Unpack[_NamedChild]
) -> ChildWorkflowHandle[Any, Any]: ...
@overload
async def start_child_workflow(
    workflow: Callable[[*Ts], R], *positional: *Ts, **options: Unpack[ChildWorkflowConfig]
) -> ChildWorkflowHandle[Any, R]: ...
@overload
async def start_child_workflow(
    workflow: Callable[..., R], **options: Unpack[_ListedChild]
) -> ChildWorkflowHandle[Any, R]: ...
@overload
async def start_child_workflow(
    workflow: Callable[[T], R], **options: Unpack[_SingleChild[T]]
) -> ChildWorkflowHandle[Any, R]: ...
@overloaded(ChildWorkflowConfig)
async def start_child_workflow(
    workflow: Any,
    arg: Any = UNSET,
    *positional: Any,
    args: Sequence[Any] = (),
    result_type: Any = None,
    **options: Any,
) -> Any:
    """Start a child workflow and wait until it has started. Pass its run method or its name.

    Raise `WorkflowAlreadyStartedError` if the workflow id is in use. `result_type` is for workflows passed by name.
    """
    live = require_fiber("starting a child workflow").run
    target = resolve_workflow(workflow)
    return_type = target.return_type if result_type is None else result_type
    child_options = chosen_options(options)
    check_options(child_options, f"workflow {target.name}")

    async def start(call: StartChildWorkflowInput) -> Any:
        command = child_command(live, call.workflow, target.encode, call.args, call.options, call.headers)
        return await awaited.start_child(command, return_type, ChildWorkflowHandle)

    call = StartChildWorkflowInput(
        workflow=target.name,
        args=list(positional_values(arg, positional, args)),
        options=child_options,
        _proceed=bridging(start),
    )
    return await outward(live, start, call, "start_child_workflow")


@overload
async def execute_child_workflow(
    workflow: str, *positional: Any, **options: Unpack[_NamedAsChild[R]]
) -> R: ...
@overload
async def execute_child_workflow(workflow: str, *positional: Any, **options: Unpack[_NamedChild]) -> Any: ...
@overload
async def execute_child_workflow(
    workflow: Callable[[*Ts], R], *positional: *Ts, **options: Unpack[ChildWorkflowConfig]
) -> R: ...
@overload
async def execute_child_workflow(workflow: Callable[..., R], **options: Unpack[_ListedChild]) -> R: ...
@overload
async def execute_child_workflow(workflow: Callable[[T], R], **options: Unpack[_SingleChild[T]]) -> R: ...
@overloaded(ChildWorkflowConfig)
async def execute_child_workflow(
    workflow: Any,
    arg: Any = UNSET,
    *positional: Any,
    args: Sequence[Any] = (),
    result_type: Any = None,
    **options: Any,
) -> Any:
    """Run a child workflow and wait for its result. Raise `ChildWorkflowError` if the child did not complete."""
    call_args = positional_values(arg, positional, args)
    return await (await start_child_workflow(workflow, args=call_args, result_type=result_type, **options))


class ExternalWorkflowHandle(Signalled, Generic[T]):
    """A workflow that is not a child of this one. Returned by `get_external_workflow_handle`."""

    id: str
    run_id: str | None

    def __init__(self, id: str, run_id: str | None) -> None:
        self.id = id
        self.run_id = run_id

    async def _send(self, message: ResolvedReference, values: list[Any]) -> None:
        run = require_fiber("signalling another workflow").run
        make = functools.partial(
            SignalExternalWorkflowInput, workflow_id=self.id, workflow_run_id=self.run_id
        )
        await _signal(run, message, values, make, "signal_external_workflow")

    async def cancel(self, reason: str = "", *, event_groups: Sequence[EventGroup] | None = None) -> None:
        """Request the cancellation of the workflow. Wait until the request is delivered, not until the workflow is
        cancelled.
        """
        with _within(event_groups):
            await awaited.cancel_external(self.id, self.run_id or "", check_text(reason, "reason"))

    def __repr__(self) -> str:
        return f"<external workflow {self.id}>"


def get_external_workflow_handle(
    workflow_id: str, *, run_id: str | None = None
) -> ExternalWorkflowHandle[Any]:
    """Return a handle to another workflow, or, with `run_id`, to that run only. Does not check whether the workflow exists."""
    check_external(workflow_id, run_id)
    return ExternalWorkflowHandle(workflow_id, run_id)


def get_external_workflow_handle_for(
    workflow: Callable[..., Any], workflow_id: str, *, run_id: str | None = None
) -> ExternalWorkflowHandle[Any]:
    """Return a handle to another workflow. The `workflow` argument only determines the type of the handle."""
    return get_external_workflow_handle(workflow_id, run_id=run_id)


@takes(WithStartConfig)
async def signal_with_start_workflow(
    workflow: Any,
    *positional: Any,
    signal: Any,
    signal_args: Any = None,
    args: Sequence[Any] | None = None,
    **options: Unpack[WithStartConfig],
) -> ExternalWorkflowHandle[Any]:
    """Signal another workflow, starting it first unless it is running. Return its handle.

    `signal_args` is the signal's only argument, or a list of all its arguments. `id_conflict_policy` can only be
    `USE_EXISTING`, because a running workflow is signalled.
    """
    live = require_fiber("signalling with a start").run
    target, message = resolve_workflow(workflow), resolve_message("signal", signal)
    signal_values = (
        () if signal_args is None else tuple(signal_args) if isinstance(signal_args, list) else (signal_args,)
    )
    chosen = chosen_options(options)
    policy = chosen.pop("id_conflict_policy", IdConflictPolicy.USE_EXISTING)
    if policy not in (IdConflictPolicy.USE_EXISTING, IdConflictPolicy.UNSPECIFIED):
        raise UsageError(
            f"id_conflict_policy of signal_with_start_workflow can only be USE_EXISTING, not {policy!r}: a running workflow is "
            "signalled"
        )

    async def send(call: SignalWithStartWorkflowInput) -> ExternalWorkflowHandle[Any]:
        definition = sending(live, target, message, call)
        key = keep_step(live, definition, definition.settings)
        settings = msgspec.structs.replace(definition.settings, activity_id=key)
        try:
            run_id = await awaited.start_activity(definition.name, (), settings, str, local=True)
        except ActivityError as error:
            drop_step(live, key)
            raise refusal(call, error) from None
        drop_step(live, key)
        return ExternalWorkflowHandle(call.workflow_id, run_id)

    values = positional_values(positional[0] if positional else UNSET, positional[1:], args)
    call = with_start_call(target, values, chosen, signal, signal_values, bridging(send))
    return await outward(live, send, call, "signal_with_start_workflow")


def bridging(send: Callable[[Any], Coroutine[Any, Any, T]]) -> Callable[[Any], T]:
    """Return the last step of a chain of plain interceptors. The step waits for a coroutine."""
    return lambda call: cast(T, bridged_wait(send(call)))


async def outward(run: LiveRun, send: Callable[[Any], Coroutine[Any, Any, T]], call: Any, method: str) -> T:
    """Make an outgoing call, through the interceptors if there are any, without taking a separate turn."""
    if run.outbound is None:
        return await send(call)
    chain = functools.partial(getattr(run.outbound, method), call)
    return cast(T, await Bridge(run.loop.fiber, chain).drive())
