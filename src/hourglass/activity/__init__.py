"""Activities: ordinary functions that do the work of workflows, and what you call inside one.

    @activity.defn(start_to_close_timeout=30)
    def charge(order_id: str, cents: int) -> str: ...

Called inside a workflow, `charge("o-1", 500)` runs durably: with timeouts, retries and its result on record.
Called anywhere else it is a plain call. `.start` begins it without waiting, `.local` runs it on the
workflow's own worker, `.options(…)` changes how one call is made, `.fn` is the function itself. A method can
be an activity too: hand an instance to the worker, and call `Payments.refund("o-1")` in the workflow.

`def` activities run in threads of the worker, `async def` ones on a loop of its own, and those with
`@activity.defn(executor="process")` in interpreters beside it, which can be killed.

Activities run at least once. An attempt whose end nobody heard of is made again, so make them idempotent.
"""

from __future__ import annotations

from hourglass.activity._context import (
    Info,
    cancelled,
    client,
    complete_async,
    heartbeat,
    heartbeat_details,
    in_activity,
    info,
    logger,
    metric_meter,
    wait_cancelled,
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
    "Info",
    "PlainCallWarning",
    "RawPayload",
    "activity_definition",
    "cancelled",
    "client",
    "complete_async",
    "defn",
    "heartbeat",
    "heartbeat_details",
    "in_activity",
    "info",
    "logger",
    "metric_meter",
    "wait_cancelled",
]
