"""Standalone activities with temporalio's names: the methods of a client, and the activity handle.

They delegate to `hourglass.AsyncClient` and its handles.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar, TypeVarTuple, Unpack, overload

from hourglass._contract.workflows import IdConflictPolicy
from hourglass._evaluator.options import Duration, RetryPolicy
from hourglass._evaluator.specs import IdReusePolicy
from hourglass.aio._activities import Awaits, Calls
from hourglass.aio._handles import HandleFace
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
from hourglass.aio.common import Priority
from hourglass.client import (
    ActivityExecution,
    ActivityExecutionDescription,
    ActivityExecutionOptions,
    AsyncActivityExecutionHandle,
    AsyncClient,
    RpcOptions,
    WorkflowExecutionCount,
)
from hourglass.converter import SearchAttributes

R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@dataclass(frozen=True)
class ActivityOptionsKey(Generic[T]):
    """An activity option that can be changed: a member of `ActivityOptionsKeys`."""

    name: str

    def value_set(self, value: T) -> ActivityOptionsUpdate[T]:
        """Return an update that sets the option to this value."""
        return ActivityOptionsUpdate(self, value)

    def value_unset(self) -> ActivityOptionsUpdate[T]:
        """Return an update that removes the option."""
        return ActivityOptionsUpdate(self, None)


@dataclass(frozen=True)
class ActivityOptionsUpdate(Generic[T]):
    """An update of a single option. None removes the option."""

    key: ActivityOptionsKey[T]
    value: T | None


class ActivityOptionsKeys:
    """The options that `ActivityHandle.update_options` can change."""

    task_queue: ClassVar = ActivityOptionsKey[str]("task_queue")
    schedule_to_close_timeout: ClassVar = ActivityOptionsKey[Duration]("schedule_to_close_timeout")
    schedule_to_start_timeout: ClassVar = ActivityOptionsKey[Duration]("schedule_to_start_timeout")
    start_to_close_timeout: ClassVar = ActivityOptionsKey[Duration]("start_to_close_timeout")
    heartbeat_timeout: ClassVar = ActivityOptionsKey[Duration]("heartbeat_timeout")
    retry_policy: ClassVar = ActivityOptionsKey[RetryPolicy]("retry_policy")
    priority: ClassVar = ActivityOptionsKey[Priority]("priority")


class ActivityHandle(HandleFace[AsyncActivityExecutionHandle[R]], Generic[R]):
    """A handle to a standalone activity."""

    _noun = "activity"

    @takes(RpcOptions)
    async def result(self, **rpc: Unpack[RpcOptions]) -> R:
        """Wait for the activity's result. Raise `ActivityFailureError` if the activity did not complete."""
        return await self._handle.result(**rpc)

    @takes(RpcOptions)
    async def describe(
        self,
        *,
        include_input: bool = False,
        include_outcome: bool = False,
        include_heartbeat_details: bool = False,
        include_last_failure: bool = False,
        **rpc: Unpack[RpcOptions],
    ) -> ActivityExecutionDescription:
        """Return the activity's description: status, attempts, times and options. It always contains the heartbeat details
        and the last failure.
        """
        reject_option(include_input, "include_input", "a description does not contain the arguments")
        reject_option(include_outcome, "include_outcome", "result() returns the outcome")
        return await self._handle.describe(**rpc)

    @takes(RpcOptions)
    async def cancel(self, *, reason: str | None = None, **rpc: Unpack[RpcOptions]) -> None:
        """Request the activity's cancellation. A running attempt is notified with its next heartbeat."""
        await self._handle.cancel(reason or "", **rpc)

    @takes(RpcOptions)
    async def terminate(self, *, reason: str | None = None, **rpc: Unpack[RpcOptions]) -> None:
        """Terminate the activity immediately. A running attempt is not notified, and its result is ignored."""
        await self._handle.terminate(reason or "", **rpc)

    @takes(RpcOptions)
    async def pause(self, *, reason: str | None = None, **rpc: Unpack[RpcOptions]) -> None:
        """Pause the activity: no new attempt starts until `unpause`."""
        await self._handle.pause(reason or "", **rpc)

    @takes(RpcOptions)
    async def unpause(
        self, *, reason: str | None = None, jitter: Duration | None = None, **rpc: Unpack[RpcOptions]
    ) -> None:
        """Resume the activity after a pause."""
        reject_option(jitter, "jitter", "the next attempt starts immediately")
        await self._handle.unpause(reason or "", **rpc)

    async def update_options(
        self, updates: Sequence[ActivityOptionsUpdate[Any]], **rpc: Unpack[RpcOptions]
    ) -> ActivityExecutionOptions:
        """Change the activity's options from the next attempt on, and return its current options."""
        changes: dict[str, Any] = {update.key.name: update.value for update in updates}
        if "priority" in changes:
            changes |= chosen_options({"priority": changes.pop("priority") or Priority.default})
        return await self._handle.update_options(**changes, **rpc)

    @takes(RpcOptions)
    async def restore_original_options(self, **rpc: Unpack[RpcOptions]) -> ActivityExecutionOptions:
        """Restore the activity's original options."""
        return await self._handle.restore_original_options(**rpc)


NO_TOKEN = "a list is fetched page by page as it is read, from its beginning"


class StartActivityOptions(RpcOptions, total=False):
    """Options for starting a standalone activity. All are optional."""

    id: str
    task_queue: str
    schedule_to_close_timeout: Duration | None
    schedule_to_start_timeout: Duration | None
    start_to_close_timeout: Duration | None
    heartbeat_timeout: Duration | None
    id_reuse_policy: IdReusePolicy
    id_conflict_policy: IdConflictPolicy
    retry_policy: RetryPolicy | None
    search_attributes: SearchAttributes | None
    summary: str | None
    priority: Priority
    start_delay: Duration | None


class StartActivityConfig(StartActivityOptions, total=False):
    """Options for starting a standalone activity, and its result type."""

    result_type: Any


class _NamedStart(StartActivityOptions, Named, total=False): ...


class _NamedAsStart(StartActivityOptions, NamedAs[R], Generic[R]): ...


class _ListedStart(StartActivityConfig, Listed): ...


class _SingleStart(StartActivityConfig, Single[T], Generic[T]): ...


class ActivityClient:
    """The methods of a client for standalone activities."""

    wrapped: AsyncClient

    @overload
    async def start_activity(
        self, activity: str, *positional: Any, **options: Unpack[_NamedAsStart[R]]
    ) -> ActivityHandle[R]: ...
    @overload
    async def start_activity(
        self, activity: str, *positional: Any, **options: Unpack[_NamedStart]
    ) -> ActivityHandle[Any]: ...
    @overload
    async def start_activity(
        self,
        activity: Callable[[*Ts], Awaitable[R]],
        *positional: *Ts,
        **options: Unpack[StartActivityConfig],
    ) -> ActivityHandle[R]: ...
    @overload
    async def start_activity(
        self, activity: Callable[[*Ts], R], *positional: *Ts, **options: Unpack[StartActivityConfig]
    ) -> ActivityHandle[R]: ...
    @overload
    async def start_activity(
        self, activity: Callable[..., Any], **options: Unpack[_ListedStart]
    ) -> ActivityHandle[Any]: ...
    @overload
    async def start_activity(
        self, activity: Callable[[T], Awaitable[R]], **options: Unpack[_SingleStart[T]]
    ) -> ActivityHandle[R]: ...
    @overload
    async def start_activity(
        self, activity: Callable[[T], R], **options: Unpack[_SingleStart[T]]
    ) -> ActivityHandle[R]: ...
    @overloaded(StartActivityConfig)
    async def start_activity(
        self, activity: Any, arg: Any = UNSET, *positional: Any, args: Sequence[Any] = (), **options: Any
    ) -> Any:
        """Start a standalone activity and return its handle. Pass the activity function or its name."""
        chosen = chosen_options(options)
        if "summary" in chosen:
            chosen["static_summary"] = chosen.pop("summary")
        return ActivityHandle(
            await self.wrapped.start_activity(activity, *positional_values(arg, positional, args), **chosen)
        )

    @overload
    async def start_activity_method(
        self,
        activity: Callable[[Any, *Ts], Awaitable[R]],
        *positional: *Ts,
        **options: Unpack[StartActivityConfig],
    ) -> ActivityHandle[R]: ...
    @overload
    async def start_activity_method(
        self, activity: Callable[[Any, *Ts], R], *positional: *Ts, **options: Unpack[StartActivityConfig]
    ) -> ActivityHandle[R]: ...
    @overload
    async def start_activity_method(
        self, activity: Callable[..., Any], **options: Unpack[_ListedStart]
    ) -> ActivityHandle[Any]: ...
    @overload
    async def start_activity_method(
        self, activity: Callable[[Any, T], Awaitable[R]], **options: Unpack[_SingleStart[T]]
    ) -> ActivityHandle[R]: ...
    @overload
    async def start_activity_method(
        self, activity: Callable[[Any, T], R], **options: Unpack[_SingleStart[T]]
    ) -> ActivityHandle[R]: ...
    @overloaded(StartActivityConfig)
    async def start_activity_method(
        self, activity: Any, arg: Any = UNSET, *positional: Any, args: Sequence[Any] = (), **options: Any
    ) -> Any:
        """Start a standalone activity that is a method, such as `Billing.charge`, and return its handle."""
        return await self.start_activity(activity, args=positional_values(arg, positional, args), **options)

    @overload
    async def start_activity_class(
        self, activity: type[Awaits[*Ts, R]], *positional: *Ts, **options: Unpack[StartActivityConfig]
    ) -> ActivityHandle[R]: ...
    @overload
    async def start_activity_class(
        self, activity: type[Calls[*Ts, R]], *positional: *Ts, **options: Unpack[StartActivityConfig]
    ) -> ActivityHandle[R]: ...
    @overload
    async def start_activity_class(
        self, activity: type, **options: Unpack[_ListedStart]
    ) -> ActivityHandle[Any]: ...
    @overload
    async def start_activity_class(
        self, activity: type[Awaits[T, R]], **options: Unpack[_SingleStart[T]]
    ) -> ActivityHandle[R]: ...
    @overload
    async def start_activity_class(
        self, activity: type[Calls[T, R]], **options: Unpack[_SingleStart[T]]
    ) -> ActivityHandle[R]: ...
    @overloaded(StartActivityConfig)
    async def start_activity_class(
        self, activity: Any, arg: Any = UNSET, *positional: Any, args: Sequence[Any] = (), **options: Any
    ) -> Any:
        """Start a standalone activity that is a class with `__call__`, and return its handle."""
        return await self.start_activity(activity, args=positional_values(arg, positional, args), **options)

    @overload
    async def execute_activity(
        self, activity: str, *positional: Any, **options: Unpack[_NamedAsStart[R]]
    ) -> R: ...
    @overload
    async def execute_activity(
        self, activity: str, *positional: Any, **options: Unpack[_NamedStart]
    ) -> Any: ...
    @overload
    async def execute_activity(
        self,
        activity: Callable[[*Ts], Awaitable[R]],
        *positional: *Ts,
        **options: Unpack[StartActivityConfig],
    ) -> R: ...
    @overload
    async def execute_activity(
        self, activity: Callable[[*Ts], R], *positional: *Ts, **options: Unpack[StartActivityConfig]
    ) -> R: ...
    @overload
    async def execute_activity(
        self, activity: Callable[..., Any], **options: Unpack[_ListedStart]
    ) -> Any: ...
    @overload
    async def execute_activity(
        self, activity: Callable[[T], Awaitable[R]], **options: Unpack[_SingleStart[T]]
    ) -> R: ...
    @overload
    async def execute_activity(self, activity: Callable[[T], R], **options: Unpack[_SingleStart[T]]) -> R: ...
    @overloaded(StartActivityConfig)
    async def execute_activity(
        self, activity: Any, arg: Any = UNSET, *positional: Any, args: Sequence[Any] = (), **options: Any
    ) -> Any:
        """Start a standalone activity and wait for its result."""
        handle = await self.start_activity(activity, args=positional_values(arg, positional, args), **options)
        return await handle.result()

    @overload
    async def execute_activity_method(
        self,
        activity: Callable[[Any, *Ts], Awaitable[R]],
        *positional: *Ts,
        **options: Unpack[StartActivityConfig],
    ) -> R: ...
    @overload
    async def execute_activity_method(
        self, activity: Callable[[Any, *Ts], R], *positional: *Ts, **options: Unpack[StartActivityConfig]
    ) -> R: ...
    @overload
    async def execute_activity_method(
        self, activity: Callable[..., Any], **options: Unpack[_ListedStart]
    ) -> Any: ...
    @overload
    async def execute_activity_method(
        self, activity: Callable[[Any, T], Awaitable[R]], **options: Unpack[_SingleStart[T]]
    ) -> R: ...
    @overload
    async def execute_activity_method(
        self, activity: Callable[[Any, T], R], **options: Unpack[_SingleStart[T]]
    ) -> R: ...
    @overloaded(StartActivityConfig)
    async def execute_activity_method(
        self, activity: Any, arg: Any = UNSET, *positional: Any, args: Sequence[Any] = (), **options: Any
    ) -> Any:
        """Start a standalone activity that is a method, such as `Billing.charge`, and wait for its result."""
        return await self.execute_activity(activity, args=positional_values(arg, positional, args), **options)

    @overload
    async def execute_activity_class(
        self, activity: type[Awaits[*Ts, R]], *positional: *Ts, **options: Unpack[StartActivityConfig]
    ) -> R: ...
    @overload
    async def execute_activity_class(
        self, activity: type[Calls[*Ts, R]], *positional: *Ts, **options: Unpack[StartActivityConfig]
    ) -> R: ...
    @overload
    async def execute_activity_class(self, activity: type, **options: Unpack[_ListedStart]) -> Any: ...
    @overload
    async def execute_activity_class(
        self, activity: type[Awaits[T, R]], **options: Unpack[_SingleStart[T]]
    ) -> R: ...
    @overload
    async def execute_activity_class(
        self, activity: type[Calls[T, R]], **options: Unpack[_SingleStart[T]]
    ) -> R: ...
    @overloaded(StartActivityConfig)
    async def execute_activity_class(
        self, activity: Any, arg: Any = UNSET, *positional: Any, args: Sequence[Any] = (), **options: Any
    ) -> Any:
        """Start a standalone activity that is a class with `__call__`, and wait for its result."""
        return await self.execute_activity(activity, args=positional_values(arg, positional, args), **options)

    @overload
    def get_activity_handle(
        self, activity_id: str, *, run_id: str | None = None, result_type: type[R]
    ) -> ActivityHandle[R]: ...
    @overload
    def get_activity_handle(
        self, activity_id: str, *, run_id: str | None = None, result_type: Any = None
    ) -> ActivityHandle[Any]: ...
    def get_activity_handle(
        self, activity_id: str, *, run_id: str | None = None, result_type: Any = None
    ) -> ActivityHandle[Any]:
        """Return a handle to a standalone activity. Does not check whether the activity exists."""
        return ActivityHandle(
            self.wrapped.get_activity_execution_handle(activity_id, run_id=run_id, result_type=result_type)
        )

    def list_activities(
        self,
        query: str | None = None,
        *,
        limit: int | None = None,
        page_size: int = 1000,
        next_page_token: bytes | None = None,
        **rpc: Unpack[RpcOptions],
    ) -> AsyncIterator[ActivityExecution]:
        """Return an iterator over the standalone activities that match a filter. Pages are fetched during iteration."""
        reject_option(next_page_token, "next_page_token", NO_TOKEN)
        return self.wrapped.list_activities(query or "", limit=limit, page_size=page_size, **rpc)

    async def count_activities(
        self, query: str | None = None, **rpc: Unpack[RpcOptions]
    ) -> WorkflowExecutionCount:
        """Return the number of standalone activities that match a filter."""
        return await self.wrapped.count_activities(query or "", **rpc)
