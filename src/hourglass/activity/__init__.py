"""Activities: ordinary functions that do the work of workflows, and the functions to call in them.

    @activity.defn(start_to_close_timeout=30)
    def charge(order_id: str, cents: int) -> str: ...

`def` activities run in threads of the worker, and `async def` activities on an event loop of their own. Activities with
`@activity.defn(executor="process")` run in separate interpreters, so that the worker can kill them.

Activities run at least once. An attempt whose completion never reaches the engine is retried, so make
activities idempotent.

    _context       the context of a running activity, and interceptors
    _current       the functions to call in a running activity
    _definition    `@activity.defn`
    _interruption  raises a cancellation in the thread of a `def` activity of `hourglass.aio`
    _options       the options of an activity
"""

from __future__ import annotations

from hourglass.activity._context import CancellationDetails, Info
from hourglass.activity._current import (
    cancellation_details,
    cancelled,
    client,
    complete_async,
    heartbeat,
    heartbeat_details,
    in_activity,
    info,
    is_worker_shutdown,
    logger,
    metric_meter,
    publish,
    resource,
    wait_cancelled,
    wait_for_worker_shutdown,
    wait_for_worker_shutdown_sync,
)
from hourglass.activity._definition import (
    Activity,
    ActivityDefinition,
    PlainCallWarning,
    activity_definition,
    defn,
)
from hourglass.activity._options import ActivityOptions
from hourglass.converter import RawPayload

__all__ = [
    "Activity",
    "ActivityDefinition",
    "ActivityOptions",
    "CancellationDetails",
    "Info",
    "PlainCallWarning",
    "RawPayload",
    "activity_definition",
    "cancellation_details",
    "cancelled",
    "client",
    "complete_async",
    "defn",
    "heartbeat",
    "heartbeat_details",
    "in_activity",
    "info",
    "is_worker_shutdown",
    "logger",
    "metric_meter",
    "publish",
    "resource",
    "wait_cancelled",
    "wait_for_worker_shutdown",
    "wait_for_worker_shutdown_sync",
]
