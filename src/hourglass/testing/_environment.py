"""`Environment`: workflows in a test, in this process and this thread, on virtual time.

    with Environment() as env:
        env.fake(charge, returns="c-1")
        assert env.execute_workflow(checkout, order) == "c-1"
        assert env.calls(charge) == [call("o-1", 1200)]

The engine, the evaluator, the converters and the calls of activities are those of production. What is missing is
what would make a test slow or chancy: real time, and threads for workflow code.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar, TypeVarTuple, Unpack, overload

from hourglass._engine.options import Duration
from hourglass.client import Client, WorkflowHandle
from hourglass.client._options import StartOptions
from hourglass.errors import UsageError
from hourglass.testing._async_environment import AsyncEnvironment
from hourglass.testing._faces import EnvironmentFacts
from hourglass.testing._stage import Stage
from hourglass.testing._virtual_time import span

R = TypeVar("R")
Ts = TypeVarTuple("Ts")


class Environment(EnvironmentFacts):
    """Workflows on virtual time, for a test: `with Environment() as env:`, or `async with`.

    Workflows and activities need no list: what is called as a decorated object is found. `workflows`, `activities`
    and `modules` are for what is called by name, and for instances whose methods are activities. With
    `real_activities=False` an activity without a fake is an error. `verify` and `watch` are a Worker's, and on.
    Time begins at `start`, moves only while the test waits in the environment, and not past `horizon`.
    """

    _asynchronous: AsyncEnvironment | None = None

    def open(self) -> Environment:
        """Begin; `with` does it."""
        if self._opened is not None or self._asynchronous is not None:
            raise UsageError("this Environment was opened before: make another")
        self._opened = Stage(self._setting)
        return self

    def close(self) -> None:
        """End. Runs that are still open are left as they are. Can be repeated."""
        stage = self._stage
        if not stage.driver.closed:
            stage.driver.check()
            stage.close()

    def __enter__(self) -> Environment:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open_async(self) -> AsyncEnvironment:
        """Begin an environment for asyncio; `async with` does it."""
        if self._opened is not None or self._asynchronous is not None:
            raise UsageError("this Environment was opened before: make another")
        self._asynchronous = AsyncEnvironment(self._setting)
        return self._asynchronous.open()

    async def __aenter__(self) -> AsyncEnvironment:
        return self.open_async()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._asynchronous is not None:
            self._asynchronous.close()

    @property
    def client(self) -> Client:
        """A client of the environment, for everything else that a client can do."""
        return self._stage.client

    # --- workflows ------------------------------------------------------------------------------------------

    @overload
    def start_workflow(
        self, workflow: str, /, *args: Any, result_type: Any = None, **options: Unpack[StartOptions]
    ) -> WorkflowHandle[Any]: ...
    @overload
    def start_workflow(
        self, workflow: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[StartOptions]
    ) -> WorkflowHandle[R]: ...
    def start_workflow(self, workflow: Any, /, *args: Any, **options: Any) -> Any:  # type: ignore[misc]
        """Start a workflow and get a handle to it, as from a client. All happens that takes no time."""
        self._stage.driver.check()
        self._stage.driver.cast.meet_workflow(workflow)
        return self.client.start_workflow(workflow, *args, **options)

    @overload
    def execute_workflow(
        self, workflow: str, /, *args: Any, result_type: Any = None, **options: Unpack[StartOptions]
    ) -> Any: ...
    @overload
    def execute_workflow(
        self, workflow: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[StartOptions]
    ) -> R: ...
    def execute_workflow(self, workflow: Any, /, *args: Any, **options: Any) -> Any:  # type: ignore[misc]
        """Start a workflow and wait for its result; time passes as it needs to."""
        return self.start_workflow(workflow, *args, **options).result()

    # --- time -----------------------------------------------------------------------------------------------

    def skip(
        self,
        duration: Duration | None = None,
        /,
        *,
        weeks: float = 0,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
    ) -> None:
        """Let so much virtual time pass, and all happen that is due on the way."""
        driver = self._stage.driver
        driver.skip_to(driver.clock.now_ns() + span(duration, weeks, days, hours, minutes, seconds))

    def crash(self) -> None:
        """Lose what a worker holds, as if its process had been killed: runs are rebuilt from their histories."""
        self._stage.driver.crash()
