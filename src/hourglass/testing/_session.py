"""A client's session over an environment: the same operations, but a waiting call drives the environment.

Blocking calls run in the environment's thread. An activity that runs in another thread may call too, while
the test waits in the environment; any other thread is refused. Asynchronous calls go through a `Runner`, which
has the environment's thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, cast

from hourglass._contract.activities import StartActivity
from hourglass._contract.schedules import CreateSchedule, UpdateSchedule
from hourglass._contract.service import Connection, Request, check_request
from hourglass._contract.workflows import DescribeWorkflow, QueryWorkflow, StartWorkflow, WaitForClose
from hourglass._embedded.clock import to_ns
from hourglass._runtime.portal import Portal
from hourglass.activity._current import in_activity
from hourglass.client._link import Link
from hourglass.client._session import ClientOperation, ClientSession
from hourglass.errors import UsageError
from hourglass.testing._driver import EnvironmentDriver

A = TypeVar("A")
T = TypeVar("T")

_UNLIMITED = nullcontext()


class Runner(Protocol):
    """A thread that an asynchronous environment lives in."""

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Do something there."""
        ...


class EnvironmentLink(Link):
    """The link of a client whose engine is an environment's: there is nothing to open, and no control loop."""

    def __init__(self, connection: Connection) -> None:
        self.target = connection.target
        self.namespace = connection.namespace
        self.closed = False
        self._connection = connection

    @property
    def portal(self) -> Portal:
        """There is none."""
        raise UsageError(
            "this client belongs to a test Environment, which runs its workflows by itself and ends with its `with` block: "
            "it is neither closed nor given to a Worker"
        )

    async def opened(self) -> Connection:
        """The open connection."""
        return self.connection


@dataclass(frozen=True)
class EnvironmentSession(ClientSession):
    """Runs operations and, while it waits, the environment."""

    driver: EnvironmentDriver = field(kw_only=True)
    runner: Runner | None = field(kw_only=True, default=None)

    def executing(self, request: StartWorkflow) -> None:
        """There is none: of a start and of a wait the driver must hear apart."""

    def perform(self, operation: ClientOperation[T]) -> T:
        """Run an operation to its end."""
        driver = self.driver
        if driver.at_home or not in_activity():
            return operation.parse(driver.run(operation.ask(self)))
        if driver.closed:
            driver.check()
        asked = asyncio.run_coroutine_threadsafe(self._from_outside(operation.ask(self)), driver.loop)
        try:
            return operation.parse(asked.result())
        except concurrent.futures.CancelledError:
            raise UsageError("the Environment was closed while an activity waited in it") from None

    async def aperform(self, operation: ClientOperation[T]) -> T:
        """Run an operation in the environment's thread, and await it."""
        return operation.parse(await self.in_thread(lambda: self.driver.run(operation.ask(self))))

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Do something in the environment's thread, and await it."""
        if self.runner is None:
            raise UsageError(
                "this environment blocks: use its handles without await, or `async with Environment()`"
            )
        future = self.runner.submit(work)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self.driver.interrupt()
            raise

    def now_ns(self) -> int:
        """The virtual time."""
        return self.driver.clock.now_ns()

    def meet(self, workflow: object) -> None:
        """A workflow that a schedule will start."""
        self.driver.registry.meet_workflow(workflow)

    async def call(self, request: Request[A]) -> A:
        """Ask the engine, on the environment's loop."""
        request = self.travelling(request)
        check_request(request)
        driver, asked = self.driver, cast(object, request)
        if isinstance(asked, (StartWorkflow, StartActivity)):
            await driver.serve(asked.spec.task_queue)
        elif isinstance(asked, (CreateSchedule, UpdateSchedule)):
            await driver.serve(asked.schedule.action.spec.task_queue)
        if isinstance(asked, (WaitForClose, QueryWorkflow)):
            await self._refuse_parked(asked.workflow_id, asked.run_id)
        if not isinstance(asked, WaitForClose):
            return await driver.connection.call(request)
        driver.waited_for.append(asked)
        try:
            return await driver.connection.call(request)
        finally:
            driver.waited_for.remove(asked)

    def within(self, seconds: float | None) -> AbstractAsyncContextManager[object]:
        """A time limit in virtual seconds."""
        return _UNLIMITED if seconds is None else self._within(seconds)

    @asynccontextmanager
    async def _within(self, seconds: float) -> AsyncIterator[None]:
        async with asyncio.timeout(None) as limit:
            clock = self.driver.clock
            over = asyncio.get_running_loop().time
            cancel = clock.call_at(clock.now_ns() + to_ns(seconds), lambda: limit.reschedule(over()))
            try:
                yield
            finally:
                cancel()

    async def _refuse_parked(self, workflow_id: str, run_id: str) -> None:
        """A parked run never closes and answers nothing: every call that waits for one is told why."""
        if not self.driver.troubles.any_parked:
            return
        if not run_id:
            question = DescribeWorkflow(workflow_id=workflow_id)
            run_id = (await self.driver.connection.call(question)).summary.run_id
        parked = self.driver.troubles.of_run(run_id)
        if parked is not None:
            raise parked.with_traceback(None)

    async def _from_outside(self, coro: Coroutine[Any, Any, T]) -> T:
        task = asyncio.current_task()
        assert task is not None
        self.driver.outside.add(task)
        self.driver.ring()
        try:
            return await coro
        finally:
            self.driver.outside.discard(task)
            self.driver.ring()
