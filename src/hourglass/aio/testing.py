"""Tests under temporalio's names: an engine of one's own as `async with`, and activities on their own.

`start_local` is the engine in this process, in memory: nothing is downloaded. Virtual time is `hourglass.testing.Environment`,
which needs no worker.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

from hourglass import testing
from hourglass.aio.client import Client
from hourglass.errors import UsageError

__all__ = ["ActivityEnvironment", "WorkflowEnvironment"]


class WorkflowEnvironment:
    """An engine for tests, with a client of it."""

    def __init__(self, client: Client) -> None:
        self.client = client

    @classmethod
    async def start_local(cls, **options: Any) -> WorkflowEnvironment:
        """An engine in this process, in memory. Its time is real. Options of a dev server say nothing to it."""
        return cls(await Client.connect("local:"))

    @classmethod
    def from_client(cls, client: Client) -> WorkflowEnvironment:
        """The same with a client of yours, of a server perhaps."""
        return cls(client)

    @classmethod
    async def start_time_skipping(cls, **options: Any) -> NoReturn:
        """Refused: virtual time has an environment of its own."""
        raise UsageError(
            "a worker cannot skip time here. For virtual time use `async with hourglass.testing.Environment() as env:`, "
            "which runs workflows without a worker: `await env.execute_workflow(Cart.run, …)`"
        )

    @property
    def supports_time_skipping(self) -> bool:
        """Never: see `start_time_skipping`."""
        return False

    async def shutdown(self) -> None:
        """End."""
        await self.client.close()

    async def __aenter__(self) -> WorkflowEnvironment:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.shutdown()


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
