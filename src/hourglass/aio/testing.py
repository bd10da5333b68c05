"""Tests with temporalio's names: an engine as `async with`, and activities without a worker.

`start_local` uses an in-memory engine in this process and downloads no server. `start_time_skipping` runs a dev server that
skips time in runs. `hourglass.testing.Environment` provides virtual time without a server or worker.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any

from hourglass import testing
from hourglass.activity import Activity, CancellationDetails, Info
from hourglass.activity._context import ActivityContext, Equipment, current
from hourglass.aio._values import PayloadConverter, takes, without_defaults
from hourglass.aio.client import Client, WorkflowHandle
from hourglass.aio.common import Priority
from hourglass.client import Client as BlockingClient
from hourglass.client import TimeSkippingConfig, TimeSkippingInfo
from hourglass.converter import default_converter
from hourglass.errors import UsageError
from hourglass.metrics import MetricMeter, default_registry

__all__ = ["ActivityEnvironment", "TimeSkippingConfig", "WorkflowEnvironment"]


_FULFILLED = frozenset(
    (
        "dev_server_download_ttl",
        "dev_server_startup_timeout",
        "download_dest_dir",
        "search_attributes",  # the engine creates an attribute on first use
        "test_server_download_ttl",
        "test_server_startup_timeout",
    )
)
"""Options that can be ignored: there are no downloads, and search attributes need no registration."""

_DEFAULTS = {
    "dev_server_download_version": "default",
    "dev_server_extra_args": [],
    "dev_server_log_format": "pretty",
    "dev_server_log_level": "warn",
    "test_server_download_version": "default",
    "test_server_extra_args": [],
}
"""temporalio's defaults for options that are otherwise rejected."""

_OF_A_SERVER = frozenset(
    (
        *_DEFAULTS,
        "dev_server_database_filename",
        "dev_server_existing_path",
        "ip",
        "port",
        "runtime",
        "test_server_existing_path",
        "tls",
        "ui",
        "ui_port",
    )
)
"""Options that select or configure a server."""

_OPTIONS = sorted(
    {*inspect.signature(Client.connect).parameters} - {"target_host"} | _FULFILLED | _OF_A_SERVER
)


def _client_options(options: dict[str, Any], method: str, reason: str) -> dict[str, Any]:
    """Return the options for the client of an environment. Raise `UsageError` for an option that only a server supports."""
    chosen = {
        name: value
        for name, value in without_defaults(options, _DEFAULTS).items()
        if value and name not in _FULFILLED
    }
    for name in sorted(_OF_A_SERVER & chosen.keys()):
        raise UsageError(f"{method} does not support {name}: {reason}")
    return chosen


class WorkflowEnvironment:
    """An engine for tests, and its client."""

    def __init__(self, client: Client, ends: Callable[[], object] | None = None) -> None:
        self.client = client
        self._ends = ends
        self._skipper: testing.TimeSkipper | None = None

    @classmethod
    @takes(name for name in _OPTIONS if not name.startswith("test_server_"))
    async def start_local(cls, *, ip: str = "127.0.0.1", **options: Any) -> WorkflowEnvironment:
        """Return an environment with an in-memory engine in this process, in real time.

        Options are those of `client.Client.connect`. Options for downloads and start timeouts are accepted and ignored;
        options that only a server supports are rejected.
        """
        if ip not in ("127.0.0.1", "localhost", "::1"):
            options["ip"] = ip
        reason = "it runs an engine in this process, without a server. For a server, use hourglass.testing.dev_server()"
        chosen = _client_options(options, "start_local", reason)
        return cls(await Client.connect("local:", **chosen))

    @classmethod
    def from_client(cls, client: Client) -> WorkflowEnvironment:
        """Return an environment that uses your client, for example one connected to a server."""
        return cls(client)

    @classmethod
    @takes(name for name in _OPTIONS if not name.startswith("dev_server_"))
    async def start_time_skipping(
        cls, *, ts_config: TimeSkippingConfig | None = None, **options: Any
    ) -> WorkflowEnvironment:
        """Return an environment with a Temporal dev server that skips time in every workflow that its `client` starts, and
        in that workflow's children.

        This requires the `temporal` command; `hourglass.testing.Environment` provides virtual time without a server or
        worker. Options are those of `client.Client.connect`. Options for downloads are accepted and ignored; options that
        select another server are rejected.
        """
        skipper = testing.TimeSkipper(ts_config)
        reason = "it runs the `temporal` command. Start another server, and use from_client"
        chosen = _client_options(options, "start_time_skipping", reason)
        server = testing.dev_server(namespace=chosen.pop("namespace", "default"), time_skipping=True)
        running = await asyncio.to_thread(server.__enter__)
        try:
            interceptors = [*chosen.pop("interceptors", ()), skipper]
            client = await Client.connect(
                running.target, namespace=running.namespace, interceptors=interceptors, **chosen
            )
        except BaseException:
            await asyncio.to_thread(server.__exit__, None, None, None)
            raise
        made = cls(client, lambda: server.__exit__(None, None, None))
        made._skipper = skipper
        return made

    start_time_skipping_v2 = start_time_skipping

    @property
    def supports_time_skipping(self) -> bool:
        """Whether the environment skips time."""
        return self._skipper is not None

    @property
    def supports_time_skipping_v2(self) -> bool:
        """Whether the environment skips time, with a separate clock for each workflow."""
        return self._skipper is not None

    async def fast_forward(
        self, handle: WorkflowHandle[Any, Any], duration: timedelta | float | None = None, /
    ) -> bool:
        """Advance a workflow's time by this duration or, without a duration, until the workflow ends. Return False if the
        workflow ended before the time was reached.
        """
        return await handle.wrapped.fast_forward(duration)

    async def get_current_time(self, handle: WorkflowHandle[Any, Any] | None = None) -> datetime:
        """Return a workflow's own time if time is skipped in it, otherwise the real time."""
        if handle is not None:
            seen = (await handle.wrapped.describe()).time_skipping
            if seen is not None and seen.current_time is not None:
                return seen.current_time
        elif self._skipper is not None:
            raise UsageError(
                "each workflow of this environment has its own time: use get_current_time(handle)"
            )
        return datetime.now(UTC)

    async def get_time_skipping_info(self, handle: WorkflowHandle[Any, Any]) -> TimeSkippingInfo | None:
        """Return the state of time skipping in a workflow; None if time was never skipped in it."""
        return (await handle.wrapped.describe()).time_skipping

    @contextmanager
    def with_time_skipping_disabled(self) -> Iterator[None]:
        """Start the workflows of the block in real time."""
        with nullcontext() if self._skipper is None else self._skipper.disabled():
            yield

    async def shutdown(self) -> None:
        """Close the client, and stop the engine."""
        await self.client.close()
        if self._ends is not None:
            await asyncio.to_thread(self._ends)

    async def __aenter__(self) -> WorkflowEnvironment:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.shutdown()


@dataclass(frozen=True, kw_only=True)
class EnvironmentInfo(Info):
    """The value of `activity.info()` in an `ActivityEnvironment`. Change fields with `dataclasses.replace`."""

    heartbeat_details: Sequence[Any] = ()  # pyright: ignore[reportIncompatibleVariableOverride]
    workflow_namespace: str = "default"  # pyright: ignore[reportIncompatibleMethodOverride]
    priority: Priority = Priority.default


class ActivityEnvironment:
    """Calls activities with a worker's context, but without a worker.

    `info` is the result of `activity.info()`, and `payload_converter` is the result of `activity.payload_converter()`.
    `on_heartbeat` is called with the details of each heartbeat. Set these attributes before `run`.
    """

    def __init__(self, client: Client | None = None) -> None:
        self.info: Info = self.default_info()
        self.on_heartbeat: Callable[..., object] = lambda *details: None
        self.payload_converter = PayloadConverter(default_converter)
        self._client = None if client is None else BlockingClient(client.wrapped._session)
        self._reason: str | None = None
        self._is_worker_shutdown = False
        self._running: set[_EnvironmentContext] = set()

    @staticmethod
    def default_info() -> EnvironmentInfo:
        """Return the default value of `info`."""
        epoch = datetime.fromtimestamp(0, UTC)
        second = timedelta(seconds=1)
        return EnvironmentInfo(
            activity_id="test",
            activity_type="unknown",
            attempt=1,
            namespace="default",
            task_queue="test",
            task_token=b"test",
            workflow_id="test",
            workflow_run_id="test-run",
            workflow_type="test",
            scheduled_time=epoch,
            current_attempt_scheduled_time=epoch,
            started_time=epoch,
            schedule_to_close_timeout=second,
            start_to_close_timeout=second,
        )

    @property
    def metric_meter(self) -> MetricMeter:
        """The meter that `activity.metric_meter()` returns, which uses the registry of this process."""
        return MetricMeter(default_registry)

    def run(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call an activity, or any function as an activity. For an `async def` function, return the coroutine."""
        definition = fn if isinstance(fn, Activity) else getattr(fn, "__call__", None)  # noqa: B004
        definition = definition if isinstance(definition, Activity) else None
        function = fn if definition is None else definition.fn
        on_cancel = "raise" if definition is None else definition._on_cancel
        call = functools.partial(function, *args, **kwargs)
        context = _EnvironmentContext(self)
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004
        ):
            return self._run_coroutine(context, call)
        variables = contextvars.copy_context()
        with self._active(context):
            if on_cancel == "heartbeat":
                return variables.run(_within, context, call)
            return context.run_interruptibly(
                lambda: variables.run(_within, context, call), silent=on_cancel == "silent"
            )

    async def _run_coroutine(
        self, context: _EnvironmentContext, call: Callable[[], Coroutine[Any, Any, Any]]
    ) -> Any:
        async def within() -> Any:
            current.set(context)
            return await call()

        context.task = asyncio.create_task(within())
        with self._active(context):
            if self._reason is not None:
                context.task.cancel()
            return await context.task

    @contextmanager
    def _active(self, context: _EnvironmentContext) -> Iterator[None]:
        self._running.add(context)
        try:
            if self._reason is not None:
                context.cancel(self._reason)
            if self._is_worker_shutdown:
                context.worker_stops()
            yield
        finally:
            self._running.discard(context)

    def cancel(
        self, cancellation_details: CancellationDetails = CancellationDetails(cancel_requested=True)
    ) -> None:
        """Request the cancellation of the environment's activities. Only the first call has an effect."""
        if self._reason is not None:
            return
        self._reason = cancellation_details.reason
        for context in list(self._running):
            context.cancel(self._reason)
            if context.task is not None:
                context.task.cancel()

    def worker_shutdown(self) -> None:
        """Notify the activities that the worker is shutting down."""
        self._is_worker_shutdown = True
        for context in list(self._running):
            context.worker_stops()


class _EnvironmentContext(ActivityContext):
    """The activity context in a test environment."""

    def __init__(self, environment: ActivityEnvironment) -> None:
        client, info = environment._client, environment.info
        converter = environment.payload_converter.wrapped
        super().__init__(
            Equipment(converter=converter, client=None if client is None else lambda: client), ()
        )
        details = tuple(converter.encode_all(info.heartbeat_details))
        self._info = replace(info, converter=converter, encoded_heartbeat_details=details)
        self.task: asyncio.Task[Any] | None = None
        self._environment = environment

    def heartbeat(self, details: Sequence[Any]) -> None:
        """Pass the details on unchanged, and check whether the activity was cancelled."""
        self._environment.on_heartbeat(*details)
        self.check_cancelled()


def _within(context: ActivityContext, call: Callable[[], Any]) -> Any:
    current.set(context)
    return call()
