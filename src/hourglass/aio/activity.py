"""Activities under temporalio's names. A decorated function stays callable; a workflow asks for it by `execute_activity`.

The one difference to `hourglass.activity`: nothing is scheduled with heartbeats unless a call says so, for the worker that
runs it may be temporalio's, which sends none by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, overload

from hourglass._evaluator.definition import check_name
from hourglass.activity import (
    Activity,
    Info,
    cancellation_details,
    cancelled,
    complete_async,
    heartbeat,
    in_activity,
    info,
    is_worker_shutdown,
    logger,
    metric_meter,
    wait_cancelled,
    wait_for_worker_shutdown,
    wait_for_worker_shutdown_sync,
)
from hourglass.activity import CancellationDetails as ActivityCancellationDetails
from hourglass.activity import client as _client
from hourglass.activity._context import current
from hourglass.activity._definition import OnCancel, called, check_executor, check_function, with_call
from hourglass.activity._interruption import ThreadInterruption
from hourglass.activity._options import FOREIGN_DEFAULTS
from hourglass.aio._values import PayloadConverter

if TYPE_CHECKING:
    from hourglass.aio.client import Client

__all__ = [
    "ActivityCancellationDetails",
    "Info",
    "cancellation_details",
    "client",
    "defn",
    "heartbeat",
    "in_activity",
    "info",
    "is_cancelled",
    "is_worker_shutdown",
    "logger",
    "metric_meter",
    "payload_converter",
    "raise_complete_async",
    "shield_thread_cancel_exception",
    "wait_for_cancelled",
    "wait_for_cancelled_sync",
    "wait_for_worker_shutdown",
    "wait_for_worker_shutdown_sync",
]

F = TypeVar("F", bound=Callable[..., Any])


class AsyncActivity(Activity[..., Any]):
    """A decorated function. Called outside a workflow it is that function, also where it is `async def`."""

    _on_cancel: OnCancel = "raise"

    def _call_plainly(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.fn(*args, **kwargs)


class UninterruptedActivity(AsyncActivity):
    """A decorated function in whose thread no cancellation is raised."""

    _on_cancel: OnCancel = "silent"


@overload
def defn(fn: F, /) -> F: ...
@overload
def defn(
    *, name: str | None = None, no_thread_cancel_exception: bool = False, dynamic: bool = False
) -> Callable[[F], F]: ...
def defn(
    fn: Any = None,
    *,
    name: str | None = None,
    no_thread_cancel_exception: bool = False,
    dynamic: bool = False,
) -> Any:
    """Make a function or method an activity. `name` is its type on the wire, by default the function's name.

    When a `def` activity is cancelled, `exceptions.CancelledError` is raised in its thread, unless
    `no_thread_cancel_exception` is set: then `is_cancelled` and `wait_for_cancelled_sync` tell it.
    """
    kind = UninterruptedActivity if no_thread_cancel_exception else AsyncActivity

    def define(fn: Any) -> Any:
        if isinstance(fn, type):
            call = kind(
                called(fn), check_name(name or fn.__name__, "an activity"), FOREIGN_DEFAULTS, dynamic=dynamic
            )
            return with_call(fn, call)
        check_function(fn)
        check_executor(fn, "thread")
        title = check_name(fn.__name__ if name is None else name, f"activity {fn.__qualname__}")
        return kind(fn, title, FOREIGN_DEFAULTS, dynamic=dynamic)

    return define if fn is None else define(fn)


def client() -> Client:
    """The client of the worker that runs this activity, awaited."""
    from hourglass.aio.client import Client  # not for workflows, which import this module too
    from hourglass.client import AsyncClient

    return Client(AsyncClient(_client()._session))


def is_cancelled() -> bool:
    """Whether this activity was asked to stop."""
    return cancelled()


async def wait_for_cancelled() -> None:
    """Wait until this activity is asked to stop: `asyncio.CancelledError` is raised then."""
    # Never set: the request comes as `asyncio.CancelledError`, here as at any await.
    await asyncio.Event().wait()


def wait_for_cancelled_sync(timeout: timedelta | float | None = None) -> None:
    """Block this thread until the activity is asked to stop, or the time has passed. Raises `exceptions.CancelledError` if the
    activity was asked to stop, unless it is shielded or has `no_thread_cancel_exception`.
    """
    wait_cancelled(timeout)
    if (interruption := _interruption()) is not None:
        interruption.check()


def raise_complete_async() -> NoReturn:
    """Leave the activity without ending it: a client completes it later."""
    complete_async()


def shield_thread_cancel_exception() -> AbstractContextManager[None]:
    """Within the block no cancellation is raised in this activity's thread; at its end it is."""
    interruption = _interruption()
    return nullcontext() if interruption is None else interruption.shielded()


def _interruption() -> ThreadInterruption | None:
    context = current.get()
    return None if context is None else context.interruption


def payload_converter() -> PayloadConverter:
    """How values become payloads here, and back."""
    return PayloadConverter(info().converter)
