"""`ActivityEnvironment`: executes a single activity, with the context that a worker would provide.

    env = ActivityEnvironment(attempt=2, heartbeat_details=(10,))
    assert env.run(copy_rows, "table") == 20
    assert env.heartbeats == [(15,), (20,)]

Exceptions of the activity are raised unchanged. There is no engine: attempts are not retried, and no timeout applies.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar, cast

from hourglass._evaluator.specs import Payloads
from hourglass.activity import Activity, Info
from hourglass.activity._context import ActivityContext, Equipment, GivenContext, Resources, current
from hourglass.client import Client
from hourglass.converter import Converter, Payload, default_converter
from hourglass.errors import UsageError

P = ParamSpec("P")
R = TypeVar("R")

_INFO = Info(
    activity_id="1",
    activity_type="",
    attempt=1,
    namespace="default",
    task_queue="test",
    workflow_id="test",
    workflow_run_id="test-run",
    workflow_type="test",
    task_token=b"test",
)


class ActivityEnvironment:
    """An environment that executes one activity at a time.

    `info` is the result of `activity.info()`. `attempt` and `heartbeat_details` (of an earlier attempt) replace parts of
    `info`. `on_heartbeat` is called with the details of each heartbeat, in the activity's thread, for example to cancel the
    activity.
    """

    def __init__(
        self,
        *,
        info: Info | None = None,
        attempt: int | None = None,
        heartbeat_details: Sequence[Any] = (),
        on_heartbeat: Callable[..., object] | None = None,
        client: Client | None = None,
        resources: Sequence[Any] = (),
        converter: Converter = default_converter,
    ) -> None:
        base = info or _INFO
        self.info = replace(
            base,
            attempt=base.attempt if attempt is None else attempt,
            converter=converter,
            encoded_heartbeat_details=tuple(converter.encode_all(heartbeat_details))
            or base.encoded_heartbeat_details,
        )
        self.heartbeats: list[tuple[Any, ...]] = []
        """The details of all heartbeats so far."""
        self.published: list[tuple[str, Any]] = []
        """The names and values published so far."""
        self._on_heartbeat = on_heartbeat
        self._client = client
        self._resources = Resources(resources)
        self._converter = converter
        self._reason: str | None = None
        self._context: ActivityContext | None = None
        self._task: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None

    def run(self, activity: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Execute an activity, or any function as an activity, in this thread. An `async def` function runs on its own event
        loop.
        """
        fn = _function(activity)
        if inspect.iscoroutinefunction(fn):
            return cast(R, asyncio.run(self._await(activity, fn, args, kwargs)))
        context = self._begin(activity)
        try:
            return cast(R, contextvars.copy_context().run(_call, context, fn, args, kwargs))
        finally:
            self._context = None
            self._resources.close()

    async def arun(
        self,
        activity: Callable[P, R] | Callable[P, Coroutine[Any, Any, R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Execute an `async def` activity, or any `async def` function as an activity, on the running event loop."""
        fn = _function(activity)
        if not inspect.iscoroutinefunction(fn):
            raise UsageError(f"{getattr(fn, '__qualname__', fn)} is not an async function: use run(…)")
        return cast(R, await self._await(activity, fn, args, kwargs))

    def cancel(self) -> None:
        """Cancel the running activity, or the next one that is executed. May be called from any thread."""
        self._stop("CANCELLED")

    def shut_down_worker(self) -> None:
        """Cancel the activity like a worker that shuts down. May be called from any thread."""
        self._stop("WORKER_SHUTDOWN")

    def _stop(self, reason: str) -> None:
        self._reason = self._reason or reason
        if self._context is not None:
            self._context.cancel(reason)
        if self._task is not None:
            loop, task = self._task
            loop.call_soon_threadsafe(task.cancel)

    def _begin(self, activity: Callable[..., Any]) -> ActivityContext:
        if self._context is not None:
            raise UsageError("an ActivityEnvironment runs one activity at a time")
        name = activity.name if isinstance(activity, Activity) else getattr(activity, "__name__", "activity")
        info = self.info if self.info.activity_type else replace(self.info, activity_type=name)
        client = self._client
        self._resources.open()
        equipment = Equipment(
            converter=info.converter,
            client=None if client is None else lambda: client,
            resources=self._resources,
        )
        context = self._context = GivenContext(
            info, self._beat, equipment, info.encoded_heartbeat_details, self._publish
        )
        if self._reason is not None:
            context.cancel(self._reason)
        return context

    async def _await(
        self,
        activity: Callable[..., Any],
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        context = self._begin(activity)

        async def within() -> Any:
            current.set(context)
            return await fn(*args, **kwargs)

        loop = asyncio.get_running_loop()
        task = loop.create_task(within())
        self._task = loop, task
        if self._reason is not None:
            task.cancel()
        try:
            return await task
        finally:
            self._task = self._context = None
            self._resources.close()

    def _publish(self, name: str, value: Payload) -> None:
        self.published.append((name, self._converter.decode(value)))

    def _beat(self, payloads: Payloads) -> None:
        details = tuple(self._converter.decode(payload) for payload in payloads)
        self.heartbeats.append(details)
        if self._on_heartbeat is not None:
            self._on_heartbeat(*details)


def _function(activity: Callable[..., Any]) -> Callable[..., Any]:
    return activity.fn if isinstance(activity, Activity) else activity


def _call(
    context: ActivityContext, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    current.set(context)
    return fn(*args, **kwargs)
