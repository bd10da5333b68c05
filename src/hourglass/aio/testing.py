"""Tests under temporalio's names: an engine of one's own as `async with`, and activities on their own.

`start_local` is the engine in this process, in memory: nothing is downloaded. `start_time_skipping` is a dev server that skips
the time of runs; virtual time without a server is `hourglass.testing.Environment`, which needs no worker.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any

from hourglass import testing
from hourglass.aio.client import Client, WorkflowHandle
from hourglass.client import TimeSkippingConfig, TimeSkippingInfo
from hourglass.errors import UsageError

__all__ = ["ActivityEnvironment", "TimeSkippingConfig", "WorkflowEnvironment"]


class WorkflowEnvironment:
    """An engine for tests, with a client of it."""

    def __init__(self, client: Client, ends: Callable[[], object] | None = None) -> None:
        self.client = client
        self._ends = ends
        self._skipper: testing.TimeSkipper | None = None

    @classmethod
    async def start_local(cls, **options: Any) -> WorkflowEnvironment:
        """An engine in this process, in memory. Its time is real. Options of a dev server say nothing to it."""
        return cls(await Client.connect("local:"))

    @classmethod
    def from_client(cls, client: Client) -> WorkflowEnvironment:
        """The same with a client of yours, of a server perhaps."""
        return cls(client)

    @classmethod
    async def start_time_skipping(
        cls, *, ts_config: TimeSkippingConfig | None = None, **options: Any
    ) -> WorkflowEnvironment:
        """A Temporal dev server that skips the time of each workflow that `client` starts, and of its children. It needs the
        `temporal` command; `hourglass.testing.Environment` has virtual time without a server, and without a worker. Options are
        those of `client.Client.connect`; what is said of a download says nothing here.
        """
        skipper = testing.TimeSkipper(ts_config)
        said = {name: value for name, value in options.items() if not name.startswith(_DOWNLOADS)}
        server = testing.dev_server(namespace=said.pop("namespace", "default"), time_skipping=True)
        running = await asyncio.to_thread(server.__enter__)
        try:
            interceptors = [*said.pop("interceptors", ()), skipper]
            client = await Client.connect(
                running.target, namespace=running.namespace, interceptors=interceptors, **said
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
        """Whether its time is skipped."""
        return self._skipper is not None

    @property
    def supports_time_skipping_v2(self) -> bool:
        """The same: each workflow has a time of its own."""
        return self._skipper is not None

    async def fast_forward(
        self, handle: WorkflowHandle[Any], duration: timedelta | float | None = None, /
    ) -> bool:
        """Let a workflow's time go ahead by so much; without a duration until it ends. Gives False where it has ended before."""
        return await handle.wrapped.fast_forward(duration)

    async def get_current_time(self, handle: WorkflowHandle[Any] | None = None) -> datetime:
        """A workflow's own time, where it is skipped; else the time."""
        if handle is not None:
            seen = (await handle.wrapped.describe()).time_skipping
            if seen is not None and seen.current_time is not None:
                return seen.current_time
        elif self._skipper is not None:
            raise UsageError("each workflow has a time of its own here: get_current_time(handle)")
        return datetime.now(UTC)

    async def get_time_skipping_info(self, handle: WorkflowHandle[Any]) -> TimeSkippingInfo | None:
        """How a workflow's time goes; None where it was never skipped."""
        return (await handle.wrapped.describe()).time_skipping

    @contextmanager
    def with_time_skipping_disabled(self) -> Iterator[None]:
        """Within the block workflows are started with real time."""
        with nullcontext() if self._skipper is None else self._skipper.disabled():
            yield

    async def shutdown(self) -> None:
        """End."""
        await self.client.close()
        if self._ends is not None:
            await asyncio.to_thread(self._ends)

    async def __aenter__(self) -> WorkflowEnvironment:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.shutdown()


_DOWNLOADS = ("dev_server_", "test_server_", "download_")


class ActivityEnvironment:
    """Calls an activity as a worker would, without one."""

    def __init__(self) -> None:
        self._wrapped = testing.ActivityEnvironment()

    def run(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Call an activity; of an `async def` one the coroutine, to be awaited."""
        is_async = inspect.iscoroutinefunction(getattr(fn, "fn", fn))
        return self._wrapped.arun(fn, *args) if is_async else self._wrapped.run(fn, *args)

    def cancel(self) -> None:
        """Ask the activity to stop."""
        self._wrapped.cancel()
