"""Handles with temporalio's names, for workflows and for activities that complete asynchronously.

They delegate to the handles of `hourglass.AsyncClient`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Generic, TypeVar, TypeVarTuple, Unpack, overload

from hourglass._contract.workflows import HistoryEventFilter, QueryRejectCondition
from hourglass._contract.workflows import UpdateStage as WorkflowUpdateStage
from hourglass.aio._values import (
    UNSET,
    Listed,
    Named,
    NamedAs,
    Single,
    chosen_options,
    overloaded,
    positional_values,
    reject_option,
    takes,
)
from hourglass.client import (
    AsyncActivityExecutionHandle,
    AsyncUpdateHandle,
    AsyncWorkflowHandle,
    RpcOptions,
)
from hourglass.client import AsyncActivityHandle as _AsyncActivityHandle
from hourglass.client import WorkflowDescription as WorkflowExecutionDescription
from hourglass.errors import CancelledError
from hourglass.replay import History as WorkflowHistory

H = TypeVar("H", bound=AsyncWorkflowHandle[Any] | AsyncActivityExecutionHandle[Any])
R = TypeVar("R")
W = TypeVar("W")
A = TypeVar("A")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class SignalConfig(RpcOptions, total=False):
    """Options for sending a signal."""

    request_id: str | None


class UpdateConfig(RpcOptions, total=False):
    """Options for requesting an update."""

    id: str | None


class NamedUpdate(UpdateConfig, Named, total=False): ...


class NamedAsUpdate(UpdateConfig, NamedAs[R], Generic[R]): ...


class ListedUpdate(UpdateConfig, Listed): ...


class SingleUpdate(UpdateConfig, Single[T], Generic[T]): ...


class HandleFace(Generic[H]):
    """The base class of handles that wrap a handle of `hourglass.client`."""

    _noun: ClassVar[str]

    def __init__(self, handle: H) -> None:
        self._handle = handle

    @property
    def wrapped(self) -> H:
        """The wrapped handle of `hourglass.client`."""
        return self._handle

    @property
    def id(self) -> str:
        """The id of the workflow or the activity."""
        return self._handle.id

    @property
    def run_id(self) -> str | None:
        """The id of the run that was started or selected; None if the handle refers only to the id."""
        return self._handle.run_id

    def __repr__(self) -> str:
        return f"<{self._noun} handle {self.id}>"


class WorkflowHandle(HandleFace[AsyncWorkflowHandle[R]], Generic[W, R]):
    """A handle to a workflow."""

    _noun = "workflow"

    @property
    def first_execution_run_id(self) -> str | None:
        """The id of the run that began the chain, if this handle started it."""
        return self._handle.first_execution_run_id

    @property
    def result_run_id(self) -> str | None:
        """The id of the run at which `result` begins to wait."""
        return self._handle.run_id

    @takes(RpcOptions)
    async def result(self, *, follow_runs: bool = True, **rpc: Unpack[RpcOptions]) -> R:
        """Wait for the workflow's result. Raise `WorkflowFailureError` if the workflow did not complete."""
        return await self._handle.result(follow_runs=follow_runs, **rpc)

    @overload
    async def signal(
        self,
        signal: str,
        arg: Any = UNSET,
        *positional: Any,
        args: Sequence[Any] = (),
        **options: Unpack[SignalConfig],
    ) -> None: ...
    @overload
    async def signal(
        self, signal: Callable[[*Ts], Any], *positional: *Ts, **options: Unpack[SignalConfig]
    ) -> None: ...
    @overload
    async def signal(
        self, signal: Callable[..., Any], *, args: Sequence[Any], **options: Unpack[SignalConfig]
    ) -> None: ...
    @overload
    async def signal(
        self, signal: Callable[[T], Any], *, arg: T, **options: Unpack[SignalConfig]
    ) -> None: ...
    @overloaded(SignalConfig)
    async def signal(
        self, signal: Any, arg: Any = UNSET, *positional: Any, args: Sequence[Any] = (), **options: Any
    ) -> None:
        """Send a signal. Pass its name or its decorated method. Calls with the same `request_id` send the signal only once."""
        await self._handle.signal(signal, *positional_values(arg, positional, args), **options)

    @overload
    async def query(
        self,
        query: str,
        arg: Any = UNSET,
        *positional: Any,
        args: Sequence[Any] = (),
        result_type: type[T],
        reject_condition: QueryRejectCondition | None = None,
        **rpc: Unpack[RpcOptions],
    ) -> T: ...
    @overload
    async def query(
        self,
        query: str,
        arg: Any = UNSET,
        *positional: Any,
        args: Sequence[Any] = (),
        result_type: Any = None,
        reject_condition: QueryRejectCondition | None = None,
        **rpc: Unpack[RpcOptions],
    ) -> Any: ...
    @overload
    async def query(
        self,
        query: Callable[[*Ts], T],
        *positional: *Ts,
        reject_condition: QueryRejectCondition | None = None,
        **rpc: Unpack[RpcOptions],
    ) -> T: ...
    @overload
    async def query(
        self,
        query: Callable[..., T],
        *,
        args: Sequence[Any],
        reject_condition: QueryRejectCondition | None = None,
        **rpc: Unpack[RpcOptions],
    ) -> T: ...
    @overload
    async def query(
        self,
        query: Callable[[A], T],
        *,
        arg: A,
        reject_condition: QueryRejectCondition | None = None,
        **rpc: Unpack[RpcOptions],
    ) -> T: ...
    @overloaded(RpcOptions)
    async def query(
        self,
        query: Any,
        arg: Any = UNSET,
        *positional: Any,
        args: Sequence[Any] = (),
        result_type: Any = None,
        reject_condition: QueryRejectCondition | None = None,
        **rpc: Any,
    ) -> Any:
        """Query the workflow. Pass the query's name or its decorated method."""
        return await self._handle.query(
            query,
            *positional_values(arg, positional, args),
            result_type=result_type,
            reject_condition=reject_condition,
            **rpc,
        )

    @overload
    async def execute_update(
        self, update: str, *positional: Any, **options: Unpack[NamedAsUpdate[T]]
    ) -> T: ...
    @overload
    async def execute_update(self, update: str, *positional: Any, **options: Unpack[NamedUpdate]) -> Any: ...
    @overload
    async def execute_update(
        self, update: Callable[[*Ts], T], *positional: *Ts, **options: Unpack[UpdateConfig]
    ) -> T: ...
    @overload
    async def execute_update(self, update: Callable[..., T], **options: Unpack[ListedUpdate]) -> T: ...
    @overload
    async def execute_update(self, update: Callable[[A], T], **options: Unpack[SingleUpdate[A]]) -> T: ...
    @overloaded(NamedUpdate)
    async def execute_update(
        self, update: Any, arg: Any = UNSET, *positional: Any, args: Sequence[Any] = (), **options: Any
    ) -> Any:
        """Request an update and wait for its result. Raise `WorkflowUpdateFailedError` if the update was rejected or failed."""
        return await self._handle.execute_update(
            update, *positional_values(arg, positional, args), **chosen_options(options)
        )

    @overload
    async def start_update(
        self,
        update: str,
        *positional: Any,
        wait_for_stage: WorkflowUpdateStage,
        **options: Unpack[NamedAsUpdate[T]],
    ) -> AsyncUpdateHandle[T]: ...
    @overload
    async def start_update(
        self,
        update: str,
        *positional: Any,
        wait_for_stage: WorkflowUpdateStage,
        **options: Unpack[NamedUpdate],
    ) -> AsyncUpdateHandle[Any]: ...
    @overload
    async def start_update(
        self,
        update: Callable[[*Ts], T],
        *positional: *Ts,
        wait_for_stage: WorkflowUpdateStage,
        **options: Unpack[UpdateConfig],
    ) -> AsyncUpdateHandle[T]: ...
    @overload
    async def start_update(
        self,
        update: Callable[..., T],
        *,
        wait_for_stage: WorkflowUpdateStage,
        **options: Unpack[ListedUpdate],
    ) -> AsyncUpdateHandle[T]: ...
    @overload
    async def start_update(
        self,
        update: Callable[[A], T],
        *,
        wait_for_stage: WorkflowUpdateStage,
        **options: Unpack[SingleUpdate[A]],
    ) -> AsyncUpdateHandle[T]: ...
    @overloaded(NamedUpdate)
    async def start_update(
        self,
        update: Any,
        arg: Any = UNSET,
        *positional: Any,
        wait_for_stage: WorkflowUpdateStage,
        args: Sequence[Any] = (),
        **options: Any,
    ) -> Any:
        """Request an update and wait until the update has reached a stage."""
        return await self._handle.start_update(
            update,
            *positional_values(arg, positional, args),
            wait_for_stage=wait_for_stage,
            **chosen_options(options),
        )

    @overload
    def get_update_handle(
        self, id: str, *, workflow_run_id: str | None = None, result_type: type[T]
    ) -> AsyncUpdateHandle[T]: ...
    @overload
    def get_update_handle(
        self, id: str, *, workflow_run_id: str | None = None, result_type: Any = None
    ) -> AsyncUpdateHandle[Any]: ...
    def get_update_handle(
        self, id: str, *, workflow_run_id: str | None = None, result_type: Any = None
    ) -> AsyncUpdateHandle[Any]:
        """Return a handle to an update that was requested earlier, of this run or of another run."""
        return _of_run(self._handle.get_update_handle(id, result_type=result_type), workflow_run_id)

    def get_update_handle_for(
        self, update: Callable[..., T], id: str, *, workflow_run_id: str | None = None
    ) -> AsyncUpdateHandle[T]:
        """Return a handle to an update that was requested earlier, typed with the update's result."""
        return _of_run(self._handle.get_update_handle(id, update=update), workflow_run_id)

    @takes(RpcOptions)
    async def cancel(self, *, reason: str | None = None, **rpc: Unpack[RpcOptions]) -> None:
        """Request the cancellation of the workflow. The workflow may clean up first, or ignore the request."""
        await self._handle.cancel(reason or "", **rpc)

    @takes(RpcOptions)
    async def terminate(self, *args: Any, reason: str | None = None, **rpc: Unpack[RpcOptions]) -> None:
        """Terminate the workflow immediately. Its code is not notified and cannot clean up."""
        await self._handle.terminate(reason or "", *args, **rpc)

    @takes(RpcOptions)
    async def describe(self, **rpc: Unpack[RpcOptions]) -> WorkflowExecutionDescription:
        """Return the workflow's description: status, times and memo, and its pending activities, children and updates."""
        return await self._handle.describe(**rpc)

    @takes(RpcOptions)
    async def fetch_history(
        self,
        *,
        event_filter_type: HistoryEventFilter = HistoryEventFilter.ALL_EVENT,
        skip_archival: bool = False,
        **rpc: Unpack[RpcOptions],
    ) -> WorkflowHistory:
        """Return the workflow's history. `skip_archival` has no effect, because archived histories are not read."""
        reject_option(
            event_filter_type is not HistoryEventFilter.ALL_EVENT,
            "event_filter_type=CLOSE_EVENT of fetch_history",
            "fetch_history_events returns the last event alone",
        )
        return await self._handle.history(**rpc)

    def fetch_history_events(
        self,
        *,
        page_size: int | None = None,
        next_page_token: bytes | None = None,
        wait_new_event: bool = False,
        event_filter_type: HistoryEventFilter = HistoryEventFilter.ALL_EVENT,
        skip_archival: bool = False,
        **rpc: Unpack[RpcOptions],
    ) -> AsyncIterator[dict[str, Any]]:
        """Return an iterator over the events of the workflow's history, as JSON objects in the format of Temporal's tools.

        With `wait_new_event`, the iterator also waits for new events until the run closes. `skip_archival` has no effect,
        because archived histories are not read.
        """
        return self._handle.history_events(
            wait_new_event=wait_new_event,
            event_filter=event_filter_type,
            page_size=page_size or 1000,
            page_token=next_page_token or b"",
            **rpc,
        )


def _of_run(handle: AsyncUpdateHandle[Any], run_id: str | None) -> AsyncUpdateHandle[Any]:
    if run_id is None:
        return handle
    return AsyncUpdateHandle(handle._session, replace(handle._reference, run_id=run_id))


class AsyncActivityCancelledError(CancelledError):
    """Raised by a heartbeat if cancellation of the activity was requested."""


class AsyncActivityHandle(_AsyncActivityHandle):
    """A handle to an activity that completes asynchronously."""

    @takes(RpcOptions)
    async def heartbeat(self, *details: Any, **rpc: Unpack[RpcOptions]) -> bool:
        """Send a heartbeat. Raise `AsyncActivityCancelledError` if cancellation of the activity was requested."""
        if await super().heartbeat(*details, **rpc):
            raise AsyncActivityCancelledError("cancellation of the activity was requested")
        return False

    @takes(RpcOptions)
    async def report_cancellation(self, *details: Any, **rpc: Unpack[RpcOptions]) -> None:
        """Report that the activity was cancelled."""
        await self.cancel(*details, **rpc)
