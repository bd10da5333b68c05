"""Workers under temporalio's names: `async with Worker(client, task_queue="orders", …)`, or `await worker.run()`.

A face of `hourglass.Worker`, which does the work. What only temporalio's needs (executors, a workflow runner, a sandbox) is
taken and ignored; what it can do and ours cannot is refused by name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from types import TracebackType
from typing import Any

from hourglass import worker as _worker
from hourglass._engine.specs import WorkerDeploymentVersion
from hourglass._runtime.plan import WorkerDeploymentConfig
from hourglass.aio.client import Client
from hourglass.errors import UsageError
from hourglass.interceptors import Interceptor
from hourglass.replay import Replayer

__all__ = [
    "Interceptor",
    "Replayer",
    "UnsandboxedWorkflowRunner",
    "Worker",
    "WorkerDeploymentConfig",
    "WorkerDeploymentVersion",
]


class UnsandboxedWorkflowRunner:
    """How workflows run here in any case: there is no sandbox."""


_IGNORED = frozenset(
    (
        "debug_mode",
        "disable_safe_workflow_eviction",
        "on_fatal_error",
        "shared_state_manager",
        "unsandboxed_workflow_runner",
        "use_worker_versioning",
        "workflow_runner",
        "workflow_task_executor",
    )
)
"""What temporalio's worker is told of threads and sandboxes, which are ours and none."""

_RENAMED = {
    "max_concurrent_activity_task_polls": "activity_pollers",
    "max_concurrent_workflow_task_polls": "workflow_pollers",
    "sticky_queue_schedule_to_start_timeout": "sticky_timeout",
    "workflow_failure_exception_types": "failure_exceptions",
}


class Worker:
    """Runs workflows and activities of one task queue, until it is shut down."""

    def __init__(
        self,
        client: Client,
        *,
        task_queue: str,
        activities: Sequence[Callable[..., Any]] = (),
        workflows: Sequence[type] = (),
        interceptors: Sequence[Interceptor] = (),
        graceful_shutdown_timeout: timedelta | float = 10.0,
        **options: Any,
    ) -> None:
        said = {
            _RENAMED.get(name, name): value
            for name, value in options.items()
            if name not in _IGNORED and value is not None
        }
        if said.pop("nexus_service_handlers", None):
            raise UsageError(
                "a Worker has no nexus_service_handlers here: give services of hourglass.nexus, nexus_services=[…]"
            )
        if isinstance(said.get("activity_executor"), ProcessPoolExecutor):
            del said["activity_executor"]  # threads do as well
        self.wrapped = _worker.Worker(
            client.wrapped,
            task_queue,
            workflows=workflows,
            activities=activities,
            interceptors=interceptors,
            graceful_shutdown_timeout=graceful_shutdown_timeout,
            **said,
        )
        self._client = client
        self._over = asyncio.Event()
        self._ending: asyncio.Future[None] | None = None

    @property
    def client(self) -> Client:
        """The client that it works for. It can be set, to another one of the same server and namespace."""
        return self._client

    @client.setter
    def client(self, value: Client) -> None:
        self.wrapped.client = value.wrapped
        self._client = value

    @property
    def task_queue(self) -> str:
        """The queue that it works for."""
        return self.wrapped.task_queue

    @property
    def is_running(self) -> bool:
        """Whether it works."""
        return self.wrapped._life.state == "running"

    async def run(self) -> None:
        """Work until `shutdown` is called or this task is cancelled. Returns when the worker has ended."""
        async with self:
            await self._over.wait()

    async def shutdown(self) -> None:
        """Take no new work, finish what is in flight within the graceful timeout, and end. A worker that has not started yet
        ends as soon as it runs.
        """
        self._over.set()
        if self._ending is None:
            # A task of its own: whoever waits for the end may be cancelled, and several may wait.
            self._ending = asyncio.ensure_future(self.wrapped.__aexit__(None, None, None))
        await asyncio.shield(self._ending)

    async def __aenter__(self) -> Worker:
        self.wrapped._use_running_loop()
        await self.wrapped.__aenter__()
        self._ending = None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.shutdown()
        self._over.clear()  # it can be started again
