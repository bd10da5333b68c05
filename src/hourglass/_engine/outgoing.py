"""What a run asks for, handed to the interceptors of its worker first. Used only where there are any."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hourglass._engine.events import Payloads
from hourglass._engine.fibers import Task
from hourglass._engine.interception import (
    SleepInput,
    StartActivityInput,
    StartLocalActivityInput,
    WorkflowOutboundInterceptor,
)
from hourglass._engine.operations import sleep, start_activity
from hourglass._engine.options import ActivitySettings

Encode = Callable[[Sequence[Any]], Payloads]


def start_intercepted(
    outbound: WorkflowOutboundInterceptor,
    activity: str,
    args: list[Any],
    settings: ActivitySettings,
    return_type: Any,
    encode: Encode,
    *,
    local: bool,
) -> Task[Any]:
    """Schedule an activity as the interceptors will have it; `encode` makes payloads of what they leave of its arguments."""

    def go_on(call: StartActivityInput | StartLocalActivityInput) -> Task[Any]:
        return start_activity(
            call.activity,
            encode(call.args),
            call.settings,
            return_type,
            local=local,
            headers=call.headers,
        )

    task: Task[Any]
    if local:
        task = outbound.start_local_activity(
            StartLocalActivityInput(activity=activity, settings=settings, args=args, _proceed=go_on)
        )
    else:
        task = outbound.start_activity(
            StartActivityInput(activity=activity, settings=settings, args=args, _proceed=go_on)
        )
    return task


def sleep_intercepted(outbound: WorkflowOutboundInterceptor, duration: float, summary: str) -> None:
    """Wait as the interceptors will have it."""
    outbound.sleep(
        SleepInput(
            duration=duration, summary=summary, _proceed=lambda call: sleep(call.duration, call.summary)
        )
    )
