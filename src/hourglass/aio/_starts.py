"""Options for workflow starts with temporalio's names, and `WithStartWorkflowOperation`: a start together with an update."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar, TypeVarTuple, Unpack, overload

from hourglass._contract.workflows import IdConflictPolicy
from hourglass._evaluator.options import Duration, RetryPolicy
from hourglass._evaluator.specs import IdReusePolicy, VersioningOverride
from hourglass.aio._handles import WorkflowHandle
from hourglass.aio._values import (
    UNSET,
    Listed,
    Named,
    NamedAs,
    Single,
    chosen_options,
    overloaded,
    positional_values,
)
from hourglass.aio.common import Priority
from hourglass.client import AsyncClient, AsyncWithStart, RpcOptions
from hourglass.converter import SearchAttributes
from hourglass.errors import UsageError

R = TypeVar("R")
W = TypeVar("W")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class StartOptions(RpcOptions, total=False):
    """Options for starting a workflow. All are optional."""

    id: str
    task_queue: str
    execution_timeout: Duration | None
    run_timeout: Duration | None
    task_timeout: Duration | None
    start_delay: Duration | None
    id_reuse_policy: IdReusePolicy
    id_conflict_policy: IdConflictPolicy
    retry_policy: RetryPolicy | None
    cron_schedule: str
    memo: Mapping[str, Any] | None
    search_attributes: SearchAttributes | None
    static_summary: str | None
    static_details: str | None
    start_signal: str | None
    start_signal_args: Sequence[Any]
    priority: Priority
    request_id: str | None
    request_eager_start: bool
    versioning_override: VersioningOverride | None


class StartConfig(StartOptions, total=False):
    """Options for starting a workflow, and its result type."""

    result_type: Any


class NamedStart(StartOptions, Named, total=False): ...


class NamedAsStart(StartOptions, NamedAs[R], Generic[R]): ...


class ListedStart(StartConfig, Listed): ...


class SingleStart(StartConfig, Single[T], Generic[T]): ...


class WithStartWorkflowOperation(Generic[W, R]):
    """A workflow that an update starts unless it is running, for `Client.execute_update_with_start_workflow`."""

    @overload
    def __init__(
        self: WithStartWorkflowOperation[Any, Any],
        workflow: str,
        *positional: Any,
        **options: Unpack[NamedStart],
    ) -> None: ...
    @overload
    def __init__(
        self: WithStartWorkflowOperation[Any, R],
        workflow: Callable[[*Ts], R],
        *positional: *Ts,
        **options: Unpack[StartConfig],
    ) -> None: ...
    @overload
    def __init__(
        self: WithStartWorkflowOperation[Any, R], workflow: Callable[..., R], **options: Unpack[ListedStart]
    ) -> None: ...
    @overload
    def __init__(
        self: WithStartWorkflowOperation[Any, R],
        workflow: Callable[[T], R],
        **options: Unpack[SingleStart[T]],
    ) -> None: ...
    @overloaded(StartConfig)
    def __init__(
        self, workflow: Any, arg: Any = UNSET, *positional: Any, args: Sequence[Any] = (), **options: Any
    ) -> None:
        self.workflow = workflow
        self.values = positional_values(arg, positional, args)
        self.options = chosen_options(options)
        self._is_used = False
        self._waiters: list[asyncio.Future[WorkflowHandle[W, R]]] = []
        self._handle: WorkflowHandle[W, R] | None = None
        self._error: BaseException | None = None

    async def workflow_handle(self) -> WorkflowHandle[W, R]:
        """Wait until the update has been sent, and return a handle to the workflow that was started or used. If the start
        failed, raise its error.
        """
        if self._error is not None:
            raise self._error
        if self._handle is None:
            waiter: asyncio.Future[WorkflowHandle[W, R]] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            return await waiter
        return self._handle

    def _planned(self, client: AsyncClient) -> AsyncWithStart[R]:
        if self._is_used:
            raise UsageError("a WithStartWorkflowOperation can be used for only one call: create another one")
        self._is_used = True
        return client.with_start(self.workflow, *self.values, **self.options)

    def _sent(self, planned: AsyncWithStart[R], error: BaseException | None = None) -> None:
        """Resolve the workflow handle with the outcome of the start, even if the update itself failed."""
        if planned.is_sent:
            self._handle = WorkflowHandle(planned.handle)
        else:
            self._error = error
        for waiter in self._waiters:
            if waiter.done():
                continue
            if self._handle is not None:
                waiter.set_result(self._handle)
            elif error is None or isinstance(error, asyncio.CancelledError):
                waiter.cancel()
            else:
                waiter.set_exception(error)
        self._waiters.clear()
