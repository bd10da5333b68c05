"""Workers with temporalio's names: `async with Worker(client, task_queue="orders", …)`, or `await worker.run()`.

They delegate to `hourglass.Worker`. As with temporalio, `async def` activities run on the event loop of `async with
Worker(...)`. That loop is the program's own; no other Hourglass code runs on it. Unsupported options of temporalio's worker
are rejected by name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any

from hourglass import plugins as _plugins
from hourglass import worker as _worker
from hourglass._evaluator.specs import WorkerDeploymentVersion
from hourglass._worker.tree.plan import WorkerDeploymentConfig
from hourglass.aio._values import takes, without_defaults
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
    """The only workflow runner: there is no sandbox."""


_REFUSED = {
    "nexus_service_handlers": "pass services of hourglass.nexus as nexus_services=[…]",
    "shared_state_manager": "declare activities that run in processes with @hourglass.activity.defn(executor='process')",
    "use_worker_versioning": "set versions with deployment_config=WorkerDeploymentConfig(…)",
    "max_workflow_task_external_storage_concurrency": "storage drivers are called in the threads for codecs",
    "workflow_task_executor": "workflows run in the worker's own threads; lanes=N sets their number",
    "disable_safe_workflow_eviction": "runs are always evicted in their own thread, where their `finally` blocks are safe",
    "on_fatal_error": "no error ends a worker: it reconnects, and reports errors in its log, in /ready and in its metrics",
    "plugin_shutdown_timeout": "the worker waits until the blocks of its plugins have ended",
}
"""The reasons why options of temporalio's worker are not supported, and their replacements."""

_DEFAULTS = {
    "max_workflow_task_external_storage_concurrency": 3,
    "plugin_shutdown_timeout": timedelta(seconds=60),
}
"""temporalio's defaults for rejected options that are neither None nor false."""

_RENAMED = {
    "max_concurrent_activity_task_polls": "activity_pollers",
    "max_concurrent_workflow_task_polls": "workflow_pollers",
    "sticky_queue_schedule_to_start_timeout": "sticky_timeout",
    "workflow_failure_exception_types": "failure_exceptions",
}


_OPTIONS = (
    *_plugins.WorkerConfig.__annotations__,
    *_RENAMED,
    *_REFUSED,
    "workflow_runner",
    "unsandboxed_workflow_runner",
    "debug_mode",
    "disable_payload_error_limit",
)
"""The options of `hourglass.Worker`, and further options of temporalio's worker."""


class Worker:
    """Runs the workflows and activities of a task queue until it is shut down.

    `async def` activities run on the event loop of `async with Worker(...)` (or `await worker.run()`), and can use objects
    that `main()` created on that loop, such as an HTTP session or a lock. While the loop is blocked, the worker logs a
    warning and is not ready; workflows, `def` activities and heartbeats continue.
    """

    @takes(_OPTIONS)
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
        chosen = {
            _RENAMED.get(name, name): value for name, value in without_defaults(options, _DEFAULTS).items()
        }
        for name, instead in _REFUSED.items():
            if chosen.pop(name, None):
                raise UsageError(f"Worker does not support {name}: {instead}")
        for name in ("workflow_runner", "unsandboxed_workflow_runner"):
            if not isinstance(chosen.pop(name, None), UnsandboxedWorkflowRunner | None):
                raise UsageError(f"{name} can only be an UnsandboxedWorkflowRunner: Hourglass has no sandbox")
        if chosen.pop("debug_mode", False):
            chosen["deadlock_timeout"] = None
        if chosen.pop("disable_payload_error_limit", False):
            chosen["payload_limit"] = None
        self.wrapped = _worker.Worker(
            client.wrapped,
            task_queue,
            workflows=workflows,
            activities=activities,
            interceptors=interceptors,
            graceful_shutdown_timeout=graceful_shutdown_timeout,
            **chosen,
        )
        self._client = client
        self._over = asyncio.Event()
        self._ending: asyncio.Future[None] | None = None

    @property
    def client(self) -> Client:
        """The client of the worker. It can be replaced with another client of the same server and namespace."""
        return self._client

    @client.setter
    def client(self, value: Client) -> None:
        self.wrapped.client = value.wrapped
        self._client = value

    @property
    def task_queue(self) -> str:
        """The task queue of the worker."""
        return self.wrapped.task_queue

    @property
    def is_running(self) -> bool:
        """Whether the worker is running."""
        return self.wrapped._life.state == "running"

    async def run(self) -> None:
        """Run until `shutdown` is called or this task is cancelled. Return when the worker has stopped."""
        try:
            await self.__aenter__()
        except UsageError:
            if not self._over.is_set():
                raise
            await self.__aexit__(None, None, None)  # `shutdown` was called during the start
            return
        try:
            await self._over.wait()
        finally:
            await self.__aexit__(None, None, None)

    async def shutdown(self) -> None:
        """Stop receiving tasks, finish the tasks in progress within the graceful timeout, and stop. A worker that has not
        started yet stops as soon as it runs.
        """
        self._over.set()
        if self._ending is None:
            # A separate task, because a caller that waits may be cancelled, and several callers may wait.
            self._ending = asyncio.ensure_future(self.wrapped.__aexit__(None, None, None))
        await asyncio.shield(self._ending)

    async def __aenter__(self) -> Worker:
        self.wrapped._use_running_loop()
        self._ending = None
        await self.wrapped.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.shutdown()
        self._over.clear()  # so that the worker can be restarted
