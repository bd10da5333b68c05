"""Handles of `AsyncClient` for schedules, workflows and updates, and for a start with a message."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, TypeVarTuple, Unpack, overload

from hourglass._contract.schedule_specs import ScheduleBackfill, ScheduleOverlapPolicy
from hourglass._contract.workflows import (
    HistoryEventFilter,
    QueryRejectCondition,
    TimeSkippingConfig,
    UpdateStage,
)
from hourglass._evaluator.options import Duration
from hourglass.client import _operations, _reset, _schedules, _starts, _updates
from hourglass.client._async_requests import AsyncWorkflowRequests
from hourglass.client._calls import (
    BackfillScheduleInput,
    PauseScheduleInput,
    TriggerScheduleInput,
    UnpauseScheduleInput,
)
from hourglass.client._faces import (
    HandleFacts,
    ScheduleHandleFacts,
    UpdateHandleFacts,
)
from hourglass.client._options import RpcOptions, UpdateOptions, WorkflowOptionsUpdate, split_rpc
from hourglass.client._schedule_data import ScheduleDescription
from hourglass.client._session import ClientOperation, ClientSession
from hourglass.client._values import HistoryEventPage, WorkflowDescription
from hourglass.workflow import Channel

if TYPE_CHECKING:
    from hourglass.replay import History


class AsyncScheduleHandle(ScheduleHandleFacts):
    """A handle to a schedule. Returned by `client.create_schedule` and `client.get_schedule_handle`."""

    async def describe(self, **rpc: Unpack[RpcOptions]) -> ScheduleDescription:
        """Return the schedule's description: its definition, its past actions and its next action times."""
        return await self._session.arun(_schedules.describe(self._session, self.id), rpc)

    async def update(self, change: _schedules.Change, **rpc: Unpack[RpcOptions]) -> None:
        """Change the schedule: `change` receives its description and returns the new `Schedule`, or None to leave the
        schedule unchanged.

        `handle.update(lambda description: replace(description.schedule, policy=…))` changes a single field. If another
        client changes the schedule at the same time, `change` is called again with the new description, so it must not have
        side effects.
        """
        await self._session.arun(_schedules.update(self._session, self.id, change), rpc)

    async def pause(self, note: str = "", **rpc: Unpack[RpcOptions]) -> None:
        """Pause the schedule until it is resumed. `note` is the reason. A paused schedule can still be triggered."""
        operation = _schedules.patch(self._session, PauseScheduleInput, self.id, note=note)
        await self._session.arun(operation, rpc)

    async def unpause(self, note: str = "", **rpc: Unpack[RpcOptions]) -> None:
        """Resume the schedule from its next scheduled time on."""
        operation = _schedules.patch(self._session, UnpauseScheduleInput, self.id, note=note)
        await self._session.arun(operation, rpc)

    async def trigger(
        self, *, overlap: ScheduleOverlapPolicy | None = None, **rpc: Unpack[RpcOptions]
    ) -> None:
        """Run the schedule's action now, in addition to its scheduled times. `overlap` replaces the schedule's overlap
        policy for this action.
        """
        operation = _schedules.patch(self._session, TriggerScheduleInput, self.id, overlap=overlap)
        await self._session.arun(operation, rpc)

    async def backfill(self, *backfill: ScheduleBackfill, **rpc: Unpack[RpcOptions]) -> None:
        """Run the schedule's action now for past times."""
        operation = _schedules.patch(self._session, BackfillScheduleInput, self.id, backfill=backfill)
        await self._session.arun(operation, rpc)

    async def delete(self, **rpc: Unpack[RpcOptions]) -> None:
        """Delete the schedule. Workflows that the schedule started keep running."""
        await self._session.arun(_schedules.delete(self._session, self.id), rpc)


R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# mypy does not recognize that `*args: Any` accepts `*args: *Ts`, hence `ignore[misc]` on the implementations.


class AsyncUpdateHandle(UpdateHandleFacts, Generic[R]):
    """A handle to an update."""

    async def result(self, timeout: Duration | None = None, **rpc: Unpack[RpcOptions]) -> R:
        """Wait for the update's result. Raise `UpdateFailedError` if the update was rejected or its handler failed."""
        value: R = await self._session.arun(_updates.result(self._session, self._reference, timeout), rpc)
        return value


class AsyncUpdates:
    """The methods that request updates, of a workflow handle and of a start with a message."""

    _session: ClientSession

    def _update(
        self, update: object, arguments: Sequence[Any], options: Mapping[str, Any], stage: UpdateStage
    ) -> ClientOperation[_updates.UpdateReference]:
        raise NotImplementedError

    @overload
    async def execute_update(
        self, update: str, /, *args: Any, result_type: type[T], **options: Unpack[UpdateOptions]
    ) -> T: ...
    @overload
    async def execute_update(
        self, update: str, /, *args: Any, result_type: Any = None, **options: Unpack[UpdateOptions]
    ) -> Any: ...
    @overload
    async def execute_update(
        self, update: Callable[[*Ts], T], /, *args: *Ts, **options: Unpack[UpdateOptions]
    ) -> T: ...
    async def execute_update(self, update: Any, /, *args: Any, **options: Any) -> Any:  # type: ignore[misc]
        """Request an update and wait for its result. Pass the update's name or its decorated method. After
        `client.with_start`, the workflow is started first unless it is running.

        Raise `UpdateFailedError` if the update was rejected or its handler failed.
        """
        operation = self._update(update, args, options, UpdateStage.COMPLETED)
        handle = await self._session.arun(operation.then(partial(AsyncUpdateHandle[Any], self._session)))
        return await handle.result()

    @overload
    async def start_update(
        self,
        update: str,
        /,
        *args: Any,
        wait_for_stage: UpdateStage = UpdateStage.ACCEPTED,
        result_type: type[T],
        **options: Unpack[UpdateOptions],
    ) -> AsyncUpdateHandle[T]: ...
    @overload
    async def start_update(
        self,
        update: str,
        /,
        *args: Any,
        wait_for_stage: UpdateStage = UpdateStage.ACCEPTED,
        result_type: Any = None,
        **options: Unpack[UpdateOptions],
    ) -> AsyncUpdateHandle[Any]: ...
    @overload
    async def start_update(
        self,
        update: Callable[[*Ts], T],
        /,
        *args: *Ts,
        wait_for_stage: UpdateStage = UpdateStage.ACCEPTED,
        **options: Unpack[UpdateOptions],
    ) -> AsyncUpdateHandle[T]: ...
    async def start_update(  # type: ignore[misc]
        self, update: Any, /, *args: Any, wait_for_stage: UpdateStage = UpdateStage.ACCEPTED, **options: Any
    ) -> Any:
        """Request an update and wait until it has reached a stage, by default until it is accepted. After `client.with_start`,
        the workflow is started first unless it is running.

        A rejected update raises `UpdateFailedError`, either here or in the handle's `result`.
        """
        operation = self._update(update, args, options, wait_for_stage)
        return await self._session.arun(operation.then(partial(AsyncUpdateHandle[Any], self._session)))


class AsyncWorkflowHandle(AsyncWorkflowRequests, AsyncUpdates, HandleFacts[R], Generic[R]):
    """A handle to a workflow."""

    def _update(
        self, update: object, arguments: Sequence[Any], options: Mapping[str, Any], stage: UpdateStage
    ) -> ClientOperation[_updates.UpdateReference]:
        return _updates.start(self._session, self._reference, update, arguments, options, stage)

    async def result(
        self, timeout: Duration | None = None, *, follow_runs: bool = True, **rpc: Unpack[RpcOptions]
    ) -> R:
        """Wait for the workflow's result, following the chain of runs. Raise `WorkflowFailedError` if the workflow did not
        complete.

        If `follow_runs` is False, raise `WorkflowContinuedAsNewError` if another run follows this one. Raise `TimeoutError`
        if the wait takes longer than `timeout`. The workflow then keeps running, and `result` can be called again.
        """
        operation = _operations.result(self._session, self._reference, timeout, follow_runs)
        value: R = await self._session.arun(operation, rpc)
        return value

    @overload
    async def signal(
        self,
        signal: str,
        /,
        *args: Any,
        request_id: str | None = None,
        **rpc: Unpack[RpcOptions],
    ) -> None: ...
    @overload
    async def signal(
        self,
        signal: Channel[T],
        value: T,
        /,
        *,
        request_id: str | None = None,
        **rpc: Unpack[RpcOptions],
    ) -> None: ...
    @overload
    async def signal(
        self,
        signal: Callable[[*Ts], None],
        /,
        *args: *Ts,
        request_id: str | None = None,
        **rpc: Unpack[RpcOptions],
    ) -> None: ...
    async def signal(  # type: ignore[misc]
        self,
        signal: Any,
        /,
        *args: Any,
        request_id: str | None = None,
        **rpc: Unpack[RpcOptions],
    ) -> None:
        """Send a signal. Pass its name, its channel or its decorated method. Calls with the same `request_id` send the
        signal only once; by default each call has a new id.
        """
        await self._session.arun(
            _operations.signal(self._session, self._reference, signal, args, request_id),
            rpc,
        )

    @overload
    async def query(
        self,
        query: str,
        /,
        *args: Any,
        result_type: type[T],
        reject_condition: QueryRejectCondition | None = None,
        **rpc: Unpack[RpcOptions],
    ) -> T: ...
    @overload
    async def query(
        self,
        query: str,
        /,
        *args: Any,
        result_type: Any = None,
        reject_condition: QueryRejectCondition | None = None,
        **rpc: Unpack[RpcOptions],
    ) -> Any: ...
    @overload
    async def query(
        self,
        query: Callable[[*Ts], T],
        /,
        *args: *Ts,
        reject_condition: QueryRejectCondition | None = None,
        **rpc: Unpack[RpcOptions],
    ) -> T: ...
    async def query(  # type: ignore[misc]
        self,
        query: Any,
        /,
        *args: Any,
        result_type: Any = None,
        reject_condition: QueryRejectCondition | None = None,
        **rpc: Unpack[RpcOptions],
    ) -> Any:
        """Query the workflow. Pass the query's name or its decorated method. Raise `QueryFailedError` if the query fails.

        `reject_condition` is the client's by default. With it, a run that has closed, or has closed without completing,
        rejects the query with `QueryRejectedError`.
        """
        return await self._session.arun(
            _operations.query(self._session, self._reference, query, args, result_type, reject_condition),
            rpc,
        )

    @overload
    def get_update_handle(
        self, id: str, *, update: object = None, result_type: type[T]
    ) -> AsyncUpdateHandle[T]: ...
    @overload
    def get_update_handle(
        self, id: str, *, update: object = None, result_type: Any = None
    ) -> AsyncUpdateHandle[Any]: ...
    def get_update_handle(
        self, id: str, *, update: object = None, result_type: Any = None
    ) -> AsyncUpdateHandle[Any]:
        """Return a handle to an update that was requested earlier. Does not check whether the update exists."""
        reference = _updates.refer_update(self._reference, id, update, result_type)
        return AsyncUpdateHandle(self._session, reference)

    async def cancel(self, reason: str = "", **rpc: Unpack[RpcOptions]) -> None:
        """Request the cancellation of the workflow. The workflow may clean up first, or ignore the request."""
        await self._session.arun(_operations.cancel(self._session, self._reference, reason), rpc)

    async def terminate(self, reason: str = "", *details: Any, **rpc: Unpack[RpcOptions]) -> None:
        """Terminate the workflow immediately. Its code is not notified and cannot clean up."""
        operation = _operations.terminate(self._session, self._reference, reason, details)
        await self._session.arun(operation, rpc)

    async def update_options(self, **changes: Unpack[WorkflowOptionsUpdate]) -> None:
        """Change the options of the run from its next workflow task on: the worker version (`versioning_override`), the
        priority (`priority_key`), and the fairness key and weight. Other options are kept.
        """
        options, rpc = split_rpc(changes)
        await self._session.arun(_operations.update_options(self._session, self._reference, options), rpc)

    async def fast_forward(
        self,
        duration: Duration | None = None,
        *,
        config: TimeSkippingConfig | None = None,
        timeout: Duration | None = None,
    ) -> bool:
        """Advance the run's own clock by this duration, and wait until that is done. For tests, on a server that can skip
        time. Return False if the workflow closed before the time was reached.

        Without a duration, time is skipped whenever the run is only waiting, and the call returns when the run closes. Time
        is not skipped while a worker executes a task or an activity. A dev server supports this:
        `testing.dev_server(time_skipping=True)`.
        """
        return await self._session.arun(
            _operations.fast_forward(self._session, self._reference, duration, config, timeout)
        )

    async def fork(
        self, *, id: str, before: object = None, event_id: int | None = None
    ) -> AsyncWorkflowHandle[R]:
        """Start another workflow with this `id` and the history of this workflow up to a step, and return its handle.

        Earlier steps are not repeated, and this run is unchanged. `before` and `event_id` are as for `reset`. Messages that
        this run received later are not sent to the new workflow.
        """
        operation = _reset.fork(self._reference, id, event_id, before)
        return AsyncWorkflowHandle(self._session, await self._session.arun(operation))

    async def reset(
        self,
        *,
        event_id: int | None = None,
        before: object = None,
        reason: str = "",
        reapply_signals: bool = True,
        reapply_updates: bool = True,
        **rpc: Unpack[RpcOptions],
    ) -> AsyncWorkflowHandle[R]:
        """Terminate the run and restart it from a point of its history. Return a handle to the new run.

        `before` is the step to repeat: the name or id of an activity or child workflow. `event_id` is the id of a history
        event that ends a workflow task. With neither, the last workflow task is repeated. Messages received after that point
        are also sent to the new run, unless they are excluded.
        """
        operation = _reset.reset(self._reference, event_id, before, reason, reapply_signals, reapply_updates)
        return AsyncWorkflowHandle(self._session, await self._session.arun(operation, rpc))

    async def describe(self, **rpc: Unpack[RpcOptions]) -> WorkflowDescription:
        """Return the workflow's description: status, times and memo, and its pending activities, children and updates."""
        return await self._session.arun(_operations.describe(self._session, self._reference), rpc)

    async def history_page(
        self,
        *,
        page_size: int = 1000,
        page_token: bytes = b"",
        newest_first: bool = False,
        **rpc: Unpack[RpcOptions],
    ) -> HistoryEventPage:
        """Return one page of the run's events: the first page, the last events with `newest_first`, or the page after
        `page_token`. Use it to read part of a long history. A server may return slightly more or fewer events than
        `page_size`. Payloads are not decoded.
        """
        return await self._session.arun(
            _operations.history_page(self._session, self._reference, page_size, page_token, newest_first), rpc
        )

    async def history_events(
        self,
        *,
        wait_new_event: bool = False,
        event_filter: HistoryEventFilter = HistoryEventFilter.ALL_EVENT,
        page_size: int = 1000,
        page_token: bytes = b"",
        **rpc: Unpack[RpcOptions],
    ) -> AsyncIterator[dict[str, Any]]:
        """Return an iterator over the events of the run's history, as JSON objects in the format of Temporal's tools. Pages
        are fetched during iteration.

        With `wait_new_event`, the iterator also waits for new events until the run closes. With
        `HistoryEventFilter.CLOSE_EVENT`, it returns only the last event. `page_token` is the token of a `history_page` from
        which to continue.
        """
        token = page_token
        while True:
            page = await self._session.arun(
                _operations.history_page(
                    self._session, self._reference, page_size, token, False, wait_new_event, event_filter
                ),
                rpc,
            )
            for event in page.events:
                yield event
            token = page.next_page_token
            if not token:
                return

    async def history(self, **rpc: Unpack[RpcOptions]) -> History:
        """Return the run's history. Payloads are not decoded, and no codec is applied."""
        history: History = await self._session.arun(_operations.history(self._session, self._reference), rpc)
        return history


class AsyncWithStart(AsyncUpdates, _starts.PlannedStart, Generic[R]):
    """A workflow to start together with a message: each method starts the workflow, or uses the running one, and sends the
    message. Can be used only once. Returned by `client.with_start`.
    """

    @overload
    async def signal(self, signal: str, /, *args: Any) -> AsyncWorkflowHandle[R]: ...
    @overload
    async def signal(self, signal: Channel[T], value: T, /) -> AsyncWorkflowHandle[R]: ...
    @overload
    async def signal(self, signal: Callable[[*Ts], None], /, *args: *Ts) -> AsyncWorkflowHandle[R]: ...
    async def signal(self, signal: Any, /, *args: Any) -> Any:  # type: ignore[misc]
        """Start the workflow and send a signal in one step; a running workflow only receives the signal."""
        operation = _starts.signal(self, signal, args)
        return await self._session.arun(operation.then(partial(AsyncWorkflowHandle, self._session)))

    def _update(
        self, update: object, arguments: Sequence[Any], options: Mapping[str, Any], stage: UpdateStage
    ) -> ClientOperation[_updates.UpdateReference]:
        return _updates.start_together(self, update, arguments, options, stage)

    @property
    def handle(self) -> AsyncWorkflowHandle[R]:
        """The workflow that was started or used. Available after the message was sent."""
        return AsyncWorkflowHandle(self._session, self.reference)
