"""Starting a workflow together with the first thing it is told, on the asynchronous face."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar, TypeVarTuple, Unpack, overload

from hourglass._contract.service import UpdateStage
from hourglass.client import _with_start
from hourglass.client._async_handles import AsyncUpdateHandle, AsyncWorkflowHandle
from hourglass.client._options import UpdateOptions
from hourglass.workflow import Channel

R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class AsyncWithStart(_with_start.Planned, Generic[R]):
    """A workflow that is started, unless it runs, by what is sent to it. Used once: made by `client.with_start`."""

    @overload
    async def signal(self, signal: str, /, *args: Any) -> AsyncWorkflowHandle[R]: ...
    @overload
    async def signal(self, signal: Channel[T], value: T, /) -> AsyncWorkflowHandle[R]: ...
    @overload
    async def signal(self, signal: Callable[[*Ts], None], /, *args: *Ts) -> AsyncWorkflowHandle[R]: ...
    async def signal(self, signal: Any, /, *args: Any) -> Any:  # type: ignore[misc]
        """Start it and send a signal in one step; one that runs already gets the signal alone."""
        operation = _with_start.signal(self, signal, args)
        return await self._session.arun(operation.then(partial(AsyncWorkflowHandle, self._session)))

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
        operation = _with_start.update(self, update, args, options, UpdateStage.COMPLETED)
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
        operation = _with_start.update(self, update, args, options, wait_for_stage)
        return await self._session.arun(
            operation.then(lambda answer: AsyncUpdateHandle[Any](self._session, answer[1]))
        )

    @property
    def handle(self) -> AsyncWorkflowHandle[R]:
        """The workflow that was started or used. Known once something was sent."""
        return AsyncWorkflowHandle(self._session, self.reference)
