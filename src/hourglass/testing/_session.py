"""The client of an environment: the same operations as with an engine, but waiting for a result drives the environment.

Blocking calls run on the environment's thread. An activity that runs in another thread may also make blocking calls while
the test waits in the environment; calls from any other thread are rejected. Asynchronous calls go through an executor with
the environment's thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from hourglass._contract.activities import StartActivity
from hourglass._contract.request_checks import check_request
from hourglass._contract.schedules import CreateSchedule, UpdateSchedule
from hourglass._contract.service import Connection, Request
from hourglass._contract.workflows import (
    DescribeWorkflow,
    Executed,
    ExecuteWorkflow,
    QueryWorkflow,
    StartWorkflow,
    StillOpen,
    WaitForClose,
)
from hourglass._embedded.clock import to_ns
from hourglass._worker.daemon_executor import DaemonExecutor
from hourglass._worker.portal import Portal
from hourglass.activity._current import in_activity
from hourglass.client._link import Link, WaitList
from hourglass.client._session import ClientOperation, ClientSession
from hourglass.errors import UsageError
from hourglass.testing._driver import EnvironmentDriver

A = TypeVar("A")
T = TypeVar("T")

_UNLIMITED = nullcontext()


class EnvironmentLink(Link):
    """The link of a client to an environment. It is always open and has no control loop."""

    def __init__(self, connection: Connection) -> None:
        self.target = connection.target
        self.namespace = connection.namespace
        self.closed = False
        self.requested_updates = {}
        self.unserved = set()
        self.waits = WaitList()
        self._connection = connection

    @property
    def portal(self) -> Portal:
        """Raise `UsageError`, because an environment has no portal."""
        raise UsageError(
            "this client belongs to a test Environment, which executes its workflows itself and ends with its `with` block: "
            "do not close the client, and do not pass it to a Worker"
        )

    async def opened(self) -> Connection:
        """Return the open connection."""
        return self.connection


@dataclass(frozen=True)
class EnvironmentSession(ClientSession):
    """Runs operations. A blocking call drives the environment until the operation's result is available."""

    driver: EnvironmentDriver = field(kw_only=True)
    runner: DaemonExecutor | None = field(kw_only=True, default=None)

    def perform(self, operation: ClientOperation[T]) -> T:
        """Run an operation to completion and return its result."""
        answer = operation.parse(self._answer_to(operation))
        return self.perform(answer) if isinstance(answer, ClientOperation) else answer

    def _answer_to(self, operation: ClientOperation[Any]) -> Any:
        driver = self.driver
        if driver.is_own_thread or not in_activity():
            return driver.run(operation.ask(self))
        if driver.closed:
            driver.check()
        future = asyncio.run_coroutine_threadsafe(self._call_from_thread(operation.ask(self)), driver.loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise UsageError("the Environment was closed while an activity waited in it") from None

    async def aperform(self, operation: ClientOperation[T]) -> T:
        """Run an operation on the environment's thread and await its result."""
        answer = operation.parse(await self.in_thread(lambda: self.driver.run(operation.ask(self))))
        return await self.aperform(answer) if isinstance(answer, ClientOperation) else answer

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Call a function on the environment's thread and await its result."""
        if self.runner is None:
            raise UsageError(
                "this Environment is blocking: use its handles without await, or `async with Environment()`"
            )
        future = self.runner.submit(work)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self.driver.interrupt()
            raise

    def now_ns(self) -> int:
        """Return the virtual time."""
        return self.driver.clock.now_ns()

    def register_workflow(self, workflow: object) -> None:
        """Register a workflow that a schedule will start."""
        self.driver.registry.register_workflow(workflow)

    async def call(self, request: Request[A]) -> A:
        """Send a request to the engine on the environment's loop."""
        request = self.travelling(request)
        check_request(request)
        driver, untyped = self.driver, cast(object, request)
        if isinstance(untyped, ExecuteWorkflow):  # the driver must see start and wait separately
            started = await self.call(untyped.start)
            return cast(A, Executed(started.run_id, StillOpen(started.run_id)))
        if isinstance(untyped, (StartWorkflow, StartActivity)):
            await driver.serve(untyped.spec.task_queue)
        elif isinstance(untyped, (CreateSchedule, UpdateSchedule)):
            await driver.serve(untyped.schedule.action.spec.task_queue)
        if isinstance(untyped, (WaitForClose, QueryWorkflow)):
            await self._raise_if_parked(untyped.workflow_id, untyped.run_id)
        if not isinstance(untyped, WaitForClose):
            return await driver.connection.call(request)
        driver.waited_for.append(untyped)
        try:
            return await driver.connection.call(request)
        finally:
            driver.waited_for.remove(untyped)

    def within(self, seconds: float | None) -> AbstractAsyncContextManager[object]:
        """Return a context manager that limits its block to `seconds` of virtual time."""
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

    async def _raise_if_parked(self, workflow_id: str, run_id: str) -> None:
        """Raise the error of a parked run, because the run never closes and answers no queries."""
        if not self.driver.errors.any_parked:
            return
        if not run_id:
            description = DescribeWorkflow(workflow_id=workflow_id)
            run_id = (await self.driver.connection.call(description)).summary.run_id
        parked = self.driver.errors.of_run(run_id)
        if parked is not None:
            raise parked.with_traceback(None)

    async def _call_from_thread(self, coro: Coroutine[Any, Any, T]) -> T:
        task = asyncio.current_task()
        assert task is not None
        self.driver.outside.add(task)
        self.driver.ring()
        try:
            return await coro
        finally:
            self.driver.outside.discard(task)
            self.driver.ring()
