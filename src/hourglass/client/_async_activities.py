"""The methods of `AsyncClient` for standalone activities and for activities that complete asynchronously."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar, TypeVarTuple, Unpack, overload

from hourglass._evaluator.options import INT64, Duration, whole_number
from hourglass.client import _activities, _standalone
from hourglass.client._calls import (
    CancelActivityInput,
    PauseActivityInput,
    TerminateActivityInput,
    UnpauseActivityInput,
)
from hourglass.client._faces import ActivityExecutionHandleFacts, ActivityHandleFacts, ClientFacts
from hourglass.client._options import RpcOptions, split_rpc
from hourglass.client._session import ClientSession
from hourglass.client._standalone import (
    ActivityExecution,
    ActivityExecutionDescription,
    ActivityExecutionOptions,
    ActivityExecutionPage,
    ActivityOptionsUpdate,
    ActivityReference,
    StartActivityOptions,
)
from hourglass.client._values import WorkflowExecutionCount

R = TypeVar("R")
Ts = TypeVarTuple("Ts")

# mypy does not recognize that `*args: Any` accepts `*args: *Ts`, hence `ignore[misc]` on the implementations.


class AsyncActivityChanges:
    """The methods that both kinds of activity handles have. A handle to an activity of a workflow must have been created from
    ids.
    """

    _session: ClientSession
    _reference: ActivityReference

    async def pause(self, reason: str = "", **rpc: Unpack[RpcOptions]) -> None:
        """Pause the activity: no new attempt starts until `unpause`. A running attempt may finish. A handle that was created
        from a task token cannot do this.
        """
        operation = _standalone.act(self._session, PauseActivityInput, self._reference, reason)
        await self._session.arun(operation, rpc)

    async def unpause(self, reason: str = "", **rpc: Unpack[RpcOptions]) -> None:
        """Resume the activity after a pause."""
        operation = _standalone.act(self._session, UnpauseActivityInput, self._reference, reason)
        await self._session.arun(operation, rpc)

    async def update_options(self, **changes: Unpack[ActivityOptionsUpdate]) -> ActivityExecutionOptions:
        """Change the activity's options from the next attempt on, and return its current options. A handle that was created
        from a task token cannot do this.
        """
        options, rpc = split_rpc(changes)
        operation = _standalone.update_options(self._session, self._reference, options)
        return await self._session.arun(operation, rpc)

    async def restore_original_options(self, **rpc: Unpack[RpcOptions]) -> ActivityExecutionOptions:
        """Restore the activity's original options."""
        operation = _standalone.update_options(self._session, self._reference, None)
        return await self._session.arun(operation, rpc)


class AsyncActivityHandle(AsyncActivityChanges, ActivityHandleFacts):
    """A handle to an activity that completes asynchronously."""

    async def complete(self, result: Any = None, **rpc: Unpack[RpcOptions]) -> None:
        """Complete the activity with `result`."""
        await self._session.arun(_activities.complete(self._session, self._reference, result), rpc)

    async def fail(
        self, error: BaseException, *, last_heartbeat_details: Sequence[Any] = (), **rpc: Unpack[RpcOptions]
    ) -> None:
        """Fail the activity with `error`. The retry policy applies, and the next attempt receives these details."""
        await self._session.arun(
            _activities.fail(self._session, self._reference, error, last_heartbeat_details), rpc
        )

    async def cancel(self, *details: Any, **rpc: Unpack[RpcOptions]) -> None:
        """Report that the activity was cancelled."""
        await self._session.arun(_activities.report_cancelled(self._session, self._reference, details), rpc)

    async def reset(self, *, reset_heartbeat: bool = False, **rpc: Unpack[RpcOptions]) -> None:
        """Restart the activity from its first attempt, without waiting for the next retry. The handle must have been created
        from ids.
        """
        await self._session.arun(_activities.reset(self._session, self._reference, reset_heartbeat), rpc)

    async def heartbeat(self, *details: Any, **rpc: Unpack[RpcOptions]) -> bool:
        """Send a heartbeat. Return whether cancellation of the activity was requested."""
        return await self._session.arun(_activities.heartbeat(self._session, self._reference, details), rpc)


class AsyncActivityExecutionHandle(AsyncActivityChanges, ActivityExecutionHandleFacts[R], Generic[R]):
    """A handle to a standalone activity. Returned by `client.start_activity` and `get_activity_execution_handle`."""

    async def result(self, timeout: Duration | None = None, **rpc: Unpack[RpcOptions]) -> R:
        """Wait for the activity's result. Raise `ActivityFailedError` if the activity did not complete.

        Raise `TimeoutError` if the wait takes longer than `timeout`. The activity then keeps running, and `result` can be
        called again.
        """
        value: R = await self._session.arun(_standalone.result(self._session, self._reference, timeout), rpc)
        return value

    async def describe(self, **rpc: Unpack[RpcOptions]) -> ActivityExecutionDescription:
        """Return the activity's description: status, attempts, times and options."""
        return await self._session.arun(_standalone.describe(self._session, self._reference), rpc)

    async def cancel(self, reason: str = "", **rpc: Unpack[RpcOptions]) -> None:
        """Request the activity's cancellation. A running attempt is notified with its next heartbeat."""
        operation = _standalone.act(self._session, CancelActivityInput, self._reference, reason)
        await self._session.arun(operation, rpc)

    async def terminate(self, reason: str = "", **rpc: Unpack[RpcOptions]) -> None:
        """Terminate the activity immediately. A running attempt is not notified, and its result is ignored."""
        operation = _standalone.act(self._session, TerminateActivityInput, self._reference, reason)
        await self._session.arun(operation, rpc)

    async def delete(self, **rpc: Unpack[RpcOptions]) -> None:
        """Delete the activity. An open activity is terminated first. On a server the deletion takes a moment."""
        await self._session.arun(_standalone.delete(self._reference), rpc)


class AsyncActivities(ClientFacts):
    """The activity methods of a client: starting standalone activities, and getting handles to both kinds."""

    @overload
    async def start_activity(
        self, activity: str, /, *args: Any, result_type: type[R], **options: Unpack[StartActivityOptions]
    ) -> AsyncActivityExecutionHandle[R]: ...
    @overload
    async def start_activity(
        self, activity: str, /, *args: Any, result_type: Any = None, **options: Unpack[StartActivityOptions]
    ) -> AsyncActivityExecutionHandle[Any]: ...
    @overload
    async def start_activity(
        self, activity: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[StartActivityOptions]
    ) -> AsyncActivityExecutionHandle[R]: ...
    async def start_activity(  # type: ignore[misc]
        self, activity: Any, /, *args: Any, result_type: Any = None, **options: Any
    ) -> Any:
        """Start a standalone activity and return its handle. Pass the decorated activity or its name.

        The activity is durable. Workers of its task queue execute it, and failed attempts are retried by its retry policy.
        """
        operation = _standalone.start(self._session, activity, args, options, result_type)
        return await self._session.arun(operation.then(partial(AsyncActivityExecutionHandle, self._session)))

    @overload
    async def execute_activity(
        self, activity: str, /, *args: Any, result_type: type[R], **options: Unpack[StartActivityOptions]
    ) -> R: ...
    @overload
    async def execute_activity(
        self, activity: str, /, *args: Any, result_type: Any = None, **options: Unpack[StartActivityOptions]
    ) -> Any: ...
    @overload
    async def execute_activity(
        self, activity: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[StartActivityOptions]
    ) -> R: ...
    async def execute_activity(  # type: ignore[misc]
        self, activity: Any, /, *args: Any, result_type: Any = None, **options: Any
    ) -> Any:
        """Start a standalone activity and wait for its result."""
        handle = await self.start_activity(activity, *args, result_type=result_type, **options)
        return await handle.result()

    @overload
    def get_activity_execution_handle(
        self, id: str, *, run_id: str | None = None, activity: Callable[..., R]
    ) -> AsyncActivityExecutionHandle[R]: ...
    @overload
    def get_activity_execution_handle(
        self, id: str, *, run_id: str | None = None, activity: str | None = None, result_type: type[R]
    ) -> AsyncActivityExecutionHandle[R]: ...
    @overload
    def get_activity_execution_handle(
        self, id: str, *, run_id: str | None = None, activity: str | None = None, result_type: Any = None
    ) -> AsyncActivityExecutionHandle[Any]: ...
    def get_activity_execution_handle(
        self, id: str, *, run_id: str | None = None, activity: Any = None, result_type: Any = None
    ) -> Any:
        """Return a handle to a standalone activity. Does not check whether the activity exists."""
        reference = _standalone.refer(id, run_id, activity, result_type)
        return AsyncActivityExecutionHandle(self._session, reference)

    def list_activities(
        self, query: str = "", *, page_size: int = 100, limit: int | None = None, **rpc: Unpack[RpcOptions]
    ) -> AsyncIterator[ActivityExecution]:
        """Return an iterator over the standalone activities that match a filter, or over all of them by default. Pages are
        fetched during iteration. `limit` is the maximum number of activities.
        """
        if limit is not None:
            whole_number(limit, "limit", 0, INT64)
        page = partial(_standalone.list_page, self._session, query, page_size)
        return self._session.aeach(page, rpc, limit)

    async def list_activities_page(
        self, query: str = "", *, page_size: int = 100, page_token: bytes = b"", **rpc: Unpack[RpcOptions]
    ) -> ActivityExecutionPage:
        """Return one page of the standalone activities that match a filter: the first page, or the page after
        `next_page_token`.
        """
        return await self._session.arun(
            _standalone.list_page(self._session, query, page_size, page_token), rpc
        )

    async def count_activities(self, query: str = "", **rpc: Unpack[RpcOptions]) -> WorkflowExecutionCount:
        """Return the number of standalone activities that match a filter."""
        return await self._session.arun(_standalone.count(self._session, query), rpc)

    def get_activity_handle(
        self,
        *,
        token: bytes | None = None,
        workflow_id: str | None = None,
        run_id: str | None = None,
        activity_id: str | None = None,
    ) -> AsyncActivityHandle:
        """Return a handle to an activity that completes asynchronously, by its task token or by its ids."""
        reference = _activities.refer_activity(token, workflow_id, run_id, activity_id)
        return AsyncActivityHandle(self._session, reference)
