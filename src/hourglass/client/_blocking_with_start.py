"""Starting a workflow together with the first thing it is told, on the blocking face."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar, TypeVarTuple, Unpack, overload

from hourglass._contract.service import UpdateStage
from hourglass.client import _with_start
from hourglass.client._blocking_handles import UpdateHandle, WorkflowHandle
from hourglass.client._options import UpdateOptions
from hourglass.workflow import Channel

R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class WithStart(_with_start.Planned, Generic[R]):
    """A workflow that is started, unless it runs, by what is sent to it. Used once: made by `client.with_start`."""

    @overload
    def signal(self, signal: str, /, *args: Any) -> WorkflowHandle[R]: ...
    @overload
    def signal(self, signal: Channel[T], value: T, /) -> WorkflowHandle[R]: ...
    @overload
    def signal(self, signal: Callable[[*Ts], None], /, *args: *Ts) -> WorkflowHandle[R]: ...
    def signal(self, signal: Any, /, *args: Any) -> Any:  # type: ignore[misc]
        """Start it and send a signal in one step; one that runs already gets the signal alone."""
        operation = _with_start.signal(self, signal, args)
        return self._session.run(operation.then(partial(WorkflowHandle, self._session)))

    @overload
    def execute_update(
        self, update: str, /, *args: Any, result_type: Any = None, **options: Unpack[UpdateOptions]
    ) -> Any: ...
    @overload
    def execute_update(
        self, update: Callable[[*Ts], T], /, *args: *Ts, **options: Unpack[UpdateOptions]
    ) -> T: ...
    def execute_update(self, update: Any, /, *args: Any, **options: Any) -> Any:  # type: ignore[misc]
        """Start it, or use the one that runs, ask it for an update and wait for the update's result."""
        operation = _with_start.update(self, update, args, options, UpdateStage.COMPLETED)
        handle = self._session.run(operation.then(lambda answer: UpdateHandle[Any](self._session, answer[1])))
        return handle.result()

    @overload
    def start_update(
        self,
        update: str,
        /,
        *args: Any,
        wait_for_stage: UpdateStage = UpdateStage.ACCEPTED,
        result_type: Any = None,
        **options: Unpack[UpdateOptions],
    ) -> UpdateHandle[Any]: ...
    @overload
    def start_update(
        self,
        update: Callable[[*Ts], T],
        /,
        *args: *Ts,
        wait_for_stage: UpdateStage = UpdateStage.ACCEPTED,
        **options: Unpack[UpdateOptions],
    ) -> UpdateHandle[T]: ...
    def start_update(  # type: ignore[misc]
        self, update: Any, /, *args: Any, wait_for_stage: UpdateStage = UpdateStage.ACCEPTED, **options: Any
    ) -> Any:
        """Start it, or use the one that runs, and ask it for an update; waits until that is accepted."""
        operation = _with_start.update(self, update, args, options, wait_for_stage)
        return self._session.run(operation.then(lambda answer: UpdateHandle[Any](self._session, answer[1])))

    @property
    def handle(self) -> WorkflowHandle[R]:
        """The workflow that was started or used. Known once something was sent."""
        return WorkflowHandle(self._session, self.reference)
