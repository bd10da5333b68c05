# Made by `make faces` from _async_activities.py: edit that one.
"""Activities, for the blocking face: those that are completed from outside, and those that belong to no workflow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
from hourglass.client._standalone import (
    ActivityExecution,
    ActivityExecutionDescription,
    ActivityExecutionOptions,
    ActivityExecutionPage,
    ActivityOptionsUpdate,
    StartActivityOptions,
)
from hourglass.client._values import WorkflowExecutionCount

R = TypeVar("R")
Ts = TypeVarTuple("Ts")

# mypy does not see that `*args: Any` accepts `*args: *Ts`, hence `ignore[misc]` on the implementations.


class ActivityHandle(ActivityHandleFacts):
    """An activity that is completed from outside."""

    def complete(self, result: Any = None, **rpc: Unpack[RpcOptions]) -> None:
        """The activity returned `result`."""
        self._session.run(_activities.complete(self._session, self._reference, result), rpc)

    def fail(
        self, error: BaseException, *, last_heartbeat_details: Sequence[Any] = (), **rpc: Unpack[RpcOptions]
    ) -> None:
        """The activity failed with `error`; it is retried as its policy says, and the next attempt finds these details."""
        self._session.run(
            _activities.fail(self._session, self._reference, error, last_heartbeat_details), rpc
        )

    def cancel(self, *details: Any, **rpc: Unpack[RpcOptions]) -> None:
        """The activity ended because its cancellation was requested."""
        self._session.run(_activities.report_cancelled(self._session, self._reference, details), rpc)

    def reset(self, *, reset_heartbeat: bool = False, **rpc: Unpack[RpcOptions]) -> None:
        """Begin its attempts anew, at the first and now: for one that waits long for its next attempt. Named by its ids."""
        self._session.run(_activities.reset(self._session, self._reference, reset_heartbeat), rpc)

    def pause(self, reason: str = "", **rpc: Unpack[RpcOptions]) -> None:
        """Let it rest: no new attempt begins until `unpause`. One that runs may end. Named by its ids."""
        operation = _activities.act(self._session, PauseActivityInput, self._reference, reason)
        self._session.run(operation, rpc)

    def unpause(self, reason: str = "", **rpc: Unpack[RpcOptions]) -> None:
        """Let one that was paused go on."""
        operation = _activities.act(self._session, UnpauseActivityInput, self._reference, reason)
        self._session.run(operation, rpc)

    def update_options(self, **changes: Unpack[ActivityOptionsUpdate]) -> ActivityExecutionOptions:
        """Change what was said of it, from its next attempt on; gives what holds now. Named by its ids."""
        said, rpc = split_rpc(changes)
        return self._session.run(_activities.update_options(self._session, self._reference, said), rpc)

    def restore_original_options(self, **rpc: Unpack[RpcOptions]) -> ActivityExecutionOptions:
        """Let hold again what was said of it at first."""
        return self._session.run(_activities.restore_options(self._session, self._reference), rpc)

    def heartbeat(self, *details: Any, **rpc: Unpack[RpcOptions]) -> bool:
        """The activity lives. True means that it is asked to stop."""
        return self._session.run(_activities.heartbeat(self._session, self._reference, details), rpc)


class ActivityExecutionHandle(ActivityExecutionHandleFacts[R], Generic[R]):
    """An activity that belongs to no workflow. Made by `client.start_activity` and `get_activity_execution_handle`."""

    def result(self, timeout: Duration | None = None, **rpc: Unpack[RpcOptions]) -> R:
        """Wait for the result. Raises `ActivityFailedError` if it did not complete, and `TimeoutError` if it is not done in
        time: it then goes on, and may be asked again.
        """
        value: R = self._session.run(_standalone.result(self._session, self._reference, timeout), rpc)
        return value

    def describe(self, **rpc: Unpack[RpcOptions]) -> ActivityExecutionDescription:
        """Look at it: its status, attempts, times and options."""
        return self._session.run(_standalone.describe(self._session, self._reference), rpc)

    def cancel(self, reason: str = "", **rpc: Unpack[RpcOptions]) -> None:
        """Ask it to cancel: an attempt that runs hears of it with its next heartbeat."""
        operation = _standalone.act(self._session, CancelActivityInput, self._reference, reason)
        self._session.run(operation, rpc)

    def terminate(self, reason: str = "", **rpc: Unpack[RpcOptions]) -> None:
        """End it now. An attempt that runs is not asked, and its result counts no more."""
        operation = _standalone.act(self._session, TerminateActivityInput, self._reference, reason)
        self._session.run(operation, rpc)

    def pause(self, reason: str = "", **rpc: Unpack[RpcOptions]) -> None:
        """Let it rest: no new attempt begins until `unpause`. One that runs may end."""
        operation = _standalone.act(self._session, PauseActivityInput, self._reference, reason)
        self._session.run(operation, rpc)

    def unpause(self, reason: str = "", **rpc: Unpack[RpcOptions]) -> None:
        """Let one that was paused go on."""
        operation = _standalone.act(self._session, UnpauseActivityInput, self._reference, reason)
        self._session.run(operation, rpc)

    def delete(self, **rpc: Unpack[RpcOptions]) -> None:
        """Remove it for good. One that is open is terminated first; a server takes a moment."""
        self._session.run(_standalone.delete(self._reference), rpc)

    def update_options(self, **changes: Unpack[ActivityOptionsUpdate]) -> ActivityExecutionOptions:
        """Change what was said of it, from its next attempt on; gives what holds now."""
        said, rpc = split_rpc(changes)
        return self._session.run(_standalone.update_options(self._session, self._reference, said), rpc)

    def restore_original_options(self, **rpc: Unpack[RpcOptions]) -> ActivityExecutionOptions:
        """Let hold again what was said of it at first."""
        return self._session.run(_standalone.restore_options(self._session, self._reference), rpc)


class Activities(ClientFacts):
    """What a client does with activities: starts those that belong to no workflow, and finds both kinds."""

    @overload
    def start_activity(
        self, activity: str, /, *args: Any, result_type: type[R], **options: Unpack[StartActivityOptions]
    ) -> ActivityExecutionHandle[R]: ...
    @overload
    def start_activity(
        self, activity: str, /, *args: Any, result_type: Any = None, **options: Unpack[StartActivityOptions]
    ) -> ActivityExecutionHandle[Any]: ...
    @overload
    def start_activity(
        self, activity: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[StartActivityOptions]
    ) -> ActivityExecutionHandle[R]: ...
    def start_activity(  # type: ignore[misc]
        self, activity: Any, /, *args: Any, result_type: Any = None, **options: Any
    ) -> Any:
        """Start an activity by itself, without a workflow, and get a handle to it: durable, retried by its policy, and run by
        the workers of its task queue. It is given as its decorated object or its name.
        """
        operation = _standalone.start(self._session, activity, args, options, result_type)
        return self._session.run(operation.then(partial(ActivityExecutionHandle, self._session)))

    @overload
    def execute_activity(
        self, activity: str, /, *args: Any, result_type: type[R], **options: Unpack[StartActivityOptions]
    ) -> R: ...
    @overload
    def execute_activity(
        self, activity: str, /, *args: Any, result_type: Any = None, **options: Unpack[StartActivityOptions]
    ) -> Any: ...
    @overload
    def execute_activity(
        self, activity: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[StartActivityOptions]
    ) -> R: ...
    def execute_activity(  # type: ignore[misc]
        self, activity: Any, /, *args: Any, result_type: Any = None, **options: Any
    ) -> Any:
        """Start an activity by itself, and wait for its result."""
        handle = self.start_activity(activity, *args, result_type=result_type, **options)
        return handle.result()

    @overload
    def get_activity_execution_handle(
        self, id: str, *, run_id: str | None = None, activity: Callable[..., R]
    ) -> ActivityExecutionHandle[R]: ...
    @overload
    def get_activity_execution_handle(
        self, id: str, *, run_id: str | None = None, activity: str | None = None, result_type: type[R]
    ) -> ActivityExecutionHandle[R]: ...
    @overload
    def get_activity_execution_handle(
        self, id: str, *, run_id: str | None = None, activity: str | None = None, result_type: Any = None
    ) -> ActivityExecutionHandle[Any]: ...
    def get_activity_execution_handle(
        self, id: str, *, run_id: str | None = None, activity: Any = None, result_type: Any = None
    ) -> Any:
        """A handle to an activity that a client started; does not ask whether it exists."""
        reference = _standalone.refer(id, run_id, activity, result_type)
        return ActivityExecutionHandle(self._session, reference)

    def list_activities(
        self, query: str = "", *, page_size: int = 100, limit: int | None = None, **rpc: Unpack[RpcOptions]
    ) -> Iterator[ActivityExecution]:
        """The activities, of those that clients started, that match a filter (all, if it is empty), page by page as they are
        asked for. With a `limit` no more than so many.
        """
        if limit is not None:
            whole_number(limit, "limit", 0, INT64)
        page = partial(_standalone.list_page, self._session, query, page_size)
        return self._session.each(page, rpc, limit)

    def list_activities_page(
        self, query: str = "", *, page_size: int = 100, page_token: bytes = b"", **rpc: Unpack[RpcOptions]
    ) -> ActivityExecutionPage:
        """One page of them: the first, or the one after a page that told its token."""
        return self._session.run(_standalone.list_page(self._session, query, page_size, page_token), rpc)

    def count_activities(self, query: str = "", **rpc: Unpack[RpcOptions]) -> WorkflowExecutionCount:
        """How many activities that clients started match a filter."""
        return self._session.run(_standalone.count(self._session, query), rpc)

    def get_activity_handle(
        self,
        *,
        token: bytes | None = None,
        workflow_id: str | None = None,
        run_id: str | None = None,
        activity_id: str | None = None,
    ) -> ActivityHandle:
        """A handle to an activity that is completed from outside, by its token or by ids."""
        reference = _activities.refer_activity(token, workflow_id, run_id, activity_id)
        return ActivityHandle(self._session, reference)
