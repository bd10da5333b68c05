"""Activities with temporalio's names. A decorated function remains callable; workflows run it with `execute_activity`.

The only difference from `hourglass.activity` is that activities have no heartbeat timeout by default. They may run on
temporalio's worker, which does not send heartbeats automatically.
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
    """A decorated activity function. Outside a workflow, calling the object calls the function, even if it is `async def`."""

    _on_cancel: OnCancel = "raise"

    def _call_plainly(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.fn(*args, **kwargs)


class UninterruptedActivity(AsyncActivity):
    """A decorated activity function whose thread receives no cancellation exception."""

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
    """Make a function or method an activity. `name` is its activity type in histories, by default the function's name.

    When a `def` activity is cancelled, `exceptions.CancelledError` is raised in its thread. With
    `no_thread_cancel_exception` it is not raised: use `is_cancelled` and `wait_for_cancelled_sync` instead.
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
    """Return the asynchronous client of this activity's worker."""
    from hourglass.aio.client import Client  # not at the top, because workflows also import this module
    from hourglass.client import AsyncClient

    return Client(AsyncClient(_client()._session))


def is_cancelled() -> bool:
    """Return whether cancellation of the activity was requested."""
    return cancelled()


async def wait_for_cancelled() -> None:
    """Wait until cancellation of the activity is requested. `asyncio.CancelledError` is then raised."""
    # Never set, because the request arrives as `asyncio.CancelledError`, as at every await.
    await asyncio.Event().wait()


def wait_for_cancelled_sync(timeout: timedelta | float | None = None) -> None:
    """Block this thread until cancellation of the activity is requested, or until the timeout.

    Raise `exceptions.CancelledError` if cancellation was requested, unless the thread is shielded or the activity has
    `no_thread_cancel_exception`.
    """
    wait_cancelled(timeout)
    if (interruption := _interruption()) is not None:
        interruption.check()


def raise_complete_async() -> NoReturn:
    """Leave the activity without completing it. A client completes the activity later."""
    complete_async()


def shield_thread_cancel_exception() -> AbstractContextManager[None]:
    """Delay the cancellation exception in this activity's thread until the block ends."""
    interruption = _interruption()
    return nullcontext() if interruption is None else interruption.shielded()


def _interruption() -> ThreadInterruption | None:
    context = current.get()
    return None if context is None else context.interruption


def payload_converter() -> PayloadConverter:
    """Return the payload converter of this activity."""
    return PayloadConverter(info().converter)
