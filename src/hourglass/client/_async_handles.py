"""Handles of the asynchronous face: a schedule, a workflow, an update, a start with a message."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, TypeVarTuple, Unpack, overload

from hourglass._contract.schedules import OverlapPolicy
from hourglass._contract.workflows import (
    HistoryEventFilter,
    QueryRejectCondition,
    TimeSkippingConfig,
    UpdateStage,
)
from hourglass._evaluator.options import Duration
from hourglass.client import _operations, _reset, _schedules, _starts, _updates
from hourglass.client._faces import (
    HandleFacts,
    ScheduleHandleFacts,
    UpdateHandleFacts,
)
from hourglass.client._options import RpcOptions, UpdateOptions, WorkflowOptionsUpdate, split_rpc
from hourglass.client._schedule_data import ScheduleBackfill, ScheduleDescription
from hourglass.client._values import HistoryEventPage, WorkflowDescription
from hourglass.workflow import Channel

if TYPE_CHECKING:
    from hourglass.replay import History


# --- schedules ------------------------------------------------------------------------------------


class AsyncScheduleHandle(ScheduleHandleFacts):
    """A schedule. Made by `client.create_schedule` and `client.get_schedule_handle`."""

    async def describe(self, **rpc: Unpack[RpcOptions]) -> ScheduleDescription:
        """Look at it: what it does when, what it has done and when it acts next."""
        return await self._session.arun(_schedules.describe(self._session, self.id), rpc)

    async def update(self, change: _schedules.Change, **rpc: Unpack[RpcOptions]) -> None:
        """Change it: the function gets the description and returns the new `Schedule`, or None to leave it.

        `handle.update(lambda seen: replace(seen.schedule, policy=…))` changes one part. Where another client
        changes it at the same time the function is called again with the schedule as it is then, so it should do
        nothing else.
        """
        await self._session.arun_steps(_schedules.update(self._session, self.id, change), rpc)

    async def pause(self, note: str = "", **rpc: Unpack[RpcOptions]) -> None:
        """Let it rest until it is unpaused; `note` says why. It can still be triggered."""
        await self._session.arun(_schedules.pause(self._session, self.id, note), rpc)

    async def unpause(self, note: str = "", **rpc: Unpack[RpcOptions]) -> None:
        """Let it act again, from its next time on."""
        await self._session.arun(_schedules.unpause(self._session, self.id, note), rpc)

    async def trigger(self, *, overlap: OverlapPolicy | None = None, **rpc: Unpack[RpcOptions]) -> None:
        """Let it act now, besides its times; by its own overlap policy, or another one this once."""
        await self._session.arun(_schedules.trigger(self._session, self.id, overlap), rpc)

    async def backfill(self, *backfill: ScheduleBackfill, **rpc: Unpack[RpcOptions]) -> None:
        """Let it act for times of the past, as if they were now."""
        await self._session.arun(_schedules.backfill(self._session, self.id, backfill), rpc)

    async def delete(self, **rpc: Unpack[RpcOptions]) -> None:
        """Delete it. Workflows that it started go on."""
        await self._session.arun(_schedules.delete(self._session, self.id), rpc)


# --- workflows and updates ------------------------------------------------------------------------


R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# mypy does not see that `*args: Any` accepts `*args: *Ts`, hence `ignore[misc]` on the implementations.


class AsyncWorkflowHandle(HandleFacts[R], Generic[R]):
    """A workflow, from outside."""

    async def result(
        self, timeout: Duration | None = None, *, follow_runs: bool = True, **rpc: Unpack[RpcOptions]
    ) -> R:
        """Wait for the result, along successive runs unless `follow_runs` is False: then a run that another follows raises
        `WorkflowContinuedAsNewError`.

        Raises `WorkflowFailedError` if it did not complete, and `TimeoutError` if it is not done in time: it
        then goes on, and may be asked again.
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
        """Send a signal, given as its name, a channel or a decorated method. The same `request_id` again is the same signal,
        which is sent once; each call has its own by default.
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
        """Ask a question, given as its name or a decorated method. Raises `QueryFailedError`.

        With a `reject_condition`, by default the client's, a run that has closed, or did not complete, is not asked:
        `QueryRejectedError`.
        """
        return await self._session.arun(
            _operations.query(self._session, self._reference, query, args, result_type, reject_condition),
            rpc,
        )

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
        """Ask for an update, given as its name or a decorated method, and wait for its result.

        Raises `UpdateFailedError` if it was refused or its handler failed.
        """
        operation = _updates.start(
            self._session, self._reference, update, args, options, UpdateStage.COMPLETED
        )
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
        """Ask for an update and wait until it has come to a stage: by default until it is accepted.

        One that is refused raises `UpdateFailedError` here, or from the handle's `result`.
        """
        operation = _updates.start(self._session, self._reference, update, args, options, wait_for_stage)
        return await self._session.arun(operation.then(partial(AsyncUpdateHandle[Any], self._session)))

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
        """A handle to an update that was asked for before; does not ask whether it exists."""
        reference = _updates.refer_update(self._reference, id, update, result_type)
        return AsyncUpdateHandle(self._session, reference)

    async def cancel(self, reason: str = "", **rpc: Unpack[RpcOptions]) -> None:
        """Ask the workflow to cancel. It may take its time, or refuse."""
        await self._session.arun(_operations.cancel(self._session, self._reference, reason), rpc)

    async def terminate(self, reason: str = "", *details: Any, **rpc: Unpack[RpcOptions]) -> None:
        """End the workflow now. Its code is not asked and cannot clean up."""
        operation = _operations.terminate(self._session, self._reference, reason, details)
        await self._session.arun(operation, rpc)

    async def pause(self, reason: str = "", **rpc: Unpack[RpcOptions]) -> None:
        """Let the run rest: no worker gets its tasks, or new attempts of its activities, until `unpause`.

        An attempt that runs may end; signals, timers and results are written into its history, and wait. A server may have
        this switched off (`frontend.WorkflowPauseEnabled`), and then refuses it.
        """
        await self._session.arun(_operations.pause(self._session, self._reference, reason), rpc)

    async def unpause(self, reason: str = "", **rpc: Unpack[RpcOptions]) -> None:
        """Let a run that was paused go on with what has happened meanwhile."""
        await self._session.arun(_operations.unpause(self._session, self._reference, reason), rpc)

    async def update_options(self, **changes: Unpack[WorkflowOptionsUpdate]) -> None:
        """Change what was said of the run, from its next task on: which version of worker it belongs to
        (`versioning_override`), how urgent it is (`priority_key`), whose share it is counted to. What is not named stays.
        """
        said, rpc = split_rpc(changes)
        await self._session.arun(_operations.update_options(self._session, self._reference, said), rpc)

    async def fast_forward(
        self,
        duration: Duration | None = None,
        *,
        config: TimeSkippingConfig | None = None,
        timeout: Duration | None = None,
    ) -> bool:
        """For tests, on a server that can skip time: let the run's own time go ahead by so much, and wait until it is there.
        Gives False where the workflow has ended before. Without a duration it is skipped, wherever the run only waits, until
        the run ends, which is waited for.

        It is to wait for a timer or the like: while a worker or an activity is at work, time goes on as it does. A dev server can
        skip it: `testing.dev_server(time_skipping=True)`.
        """
        return await self._session.arun(
            _operations.fast_forward(self._session, self._reference, duration, config, timeout)
        )

    async def delete(self, **rpc: Unpack[RpcOptions]) -> None:
        """Remove the run and its history for good. One that is open is terminated first; a server takes a moment."""
        await self._session.arun(_operations.delete(self._reference), rpc)

    async def fork(
        self, *, id: str, before: object = None, event_id: int | None = None
    ) -> AsyncWorkflowHandle[R]:
        """Begin another workflow, of this `id`, with the history of this one up to before a step; gives its handle.

        What was done before that step is not done again; this run is left as it is. `before` and `event_id` are those of
        `reset`. What came later, signals too, is not sent to the new workflow.
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
        """End the run and begin it anew from a point of its history; gives a handle to the new run.

        `before` names a step to do again: an activity or child workflow, its name or its id. `event_id` is the end
        of a workflow task in the history. With neither, the last workflow task is done again. What arrived since is
        sent to the new run too, unless it is excluded.
        """
        operation = _reset.reset(self._reference, event_id, before, reason, reapply_signals, reapply_updates)
        return AsyncWorkflowHandle(self._session, await self._session.arun(operation, rpc))

    async def describe(self, **rpc: Unpack[RpcOptions]) -> WorkflowDescription:
        """Look at the workflow: its status, times, memo and what it waits for."""
        return await self._session.arun(_operations.describe(self._session, self._reference), rpc)

    async def history_page(
        self,
        *,
        page_size: int = 1000,
        page_token: bytes = b"",
        newest_first: bool = False,
        **rpc: Unpack[RpcOptions],
    ) -> HistoryEventPage:
        """Some of its events: the first (or the last, backwards), or those after a page that told its token. For a look at a part
        of a long history; a server may give a few more or less than `page_size`. Payloads stay as they travel.
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
        """The events of its history, as JSON objects in the spelling of Temporal's tools, page by page as they are asked for.

        With `wait_new_event` it goes on with each that is written, until the run closes; with
        `HistoryEventFilter.CLOSE_EVENT` the last one alone. `page_token` is that of a `history_page` to go on from.
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
        """Its history. Payloads stay as they travel: a codec is not applied."""
        history: History = await self._session.arun(_operations.history(self._session, self._reference), rpc)
        return history


class AsyncUpdateHandle(UpdateHandleFacts, Generic[R]):
    """An update that was asked for."""

    async def result(self, timeout: Duration | None = None, **rpc: Unpack[RpcOptions]) -> R:
        """Wait for the result. Raises `UpdateFailedError` if it was refused or its handler failed."""
        value: R = await self._session.arun(_updates.result(self._session, self._reference, timeout), rpc)
        return value


# --- with start -----------------------------------------------------------------------------------


class AsyncWithStart(_starts.PlannedStart, Generic[R]):
    """A workflow that is started, unless it runs, by what is sent to it. Used once: made by `client.with_start`."""

    @overload
    async def signal(self, signal: str, /, *args: Any) -> AsyncWorkflowHandle[R]: ...
    @overload
    async def signal(self, signal: Channel[T], value: T, /) -> AsyncWorkflowHandle[R]: ...
    @overload
    async def signal(self, signal: Callable[[*Ts], None], /, *args: *Ts) -> AsyncWorkflowHandle[R]: ...
    async def signal(self, signal: Any, /, *args: Any) -> Any:  # type: ignore[misc]
        """Start it and send a signal in one step; one that runs already gets the signal alone."""
        operation = _starts.signal(self, signal, args)
        return await self._session.arun(operation.then(partial(AsyncWorkflowHandle, self._session)))

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
        """Start it, or use the one that runs, ask it for an update and wait for the update's result."""
        operation = _updates.update(self, update, args, options, UpdateStage.COMPLETED)
        handle = await self._session.arun(
            operation.then(lambda answer: AsyncUpdateHandle[Any](self._session, answer[1]))
        )
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
        """Start it, or use the one that runs, and ask it for an update; waits until that is accepted."""
        operation = _updates.update(self, update, args, options, wait_for_stage)
        return await self._session.arun(
            operation.then(lambda answer: AsyncUpdateHandle[Any](self._session, answer[1]))
        )

    @property
    def handle(self) -> AsyncWorkflowHandle[R]:
        """The workflow that was started or used. Known once something was sent."""
        return AsyncWorkflowHandle(self._session, self.reference)
