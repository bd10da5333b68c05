"""What may stand between a worker and its activities. Runs where the activity runs: in its thread, or on the activity loop.

Process activities run in interpreters of their own, which have no interceptors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hourglass._engine.interception import Call, Headers


@dataclass(kw_only=True)
class ExecuteActivityInput(Call):
    """An activity is to run. `activity.info()` says more about the attempt."""

    activity: str
    fn: Callable[..., Any] = field(repr=False)


class ActivityInboundInterceptor:
    """What comes to an activity, on its way in. One object serves all activities of a worker, in all their threads."""

    def __init__(self, next: ActivityInboundInterceptor) -> None:
        self.next = next

    def execute_activity(self, input: ExecuteActivityInput) -> Any:
        """Run a `def` activity, in its thread; what it returns is its result."""
        return self.next.execute_activity(input)

    async def execute_async_activity(self, input: ExecuteActivityInput) -> Any:
        """Run an `async def` activity, on the activity loop; what it returns is its result."""
        return await self.next.execute_async_activity(input)


class LastActivityInbound(ActivityInboundInterceptor):
    """The end of the chain: the activity itself."""

    def __init__(self) -> None:
        pass

    def execute_activity(self, input: ExecuteActivityInput) -> Any:
        """Call the function."""
        return input._proceed(input)

    async def execute_async_activity(self, input: ExecuteActivityInput) -> Any:
        """Await the function."""
        return await input._proceed(input)


def activity_call(
    activity: str, fn: Callable[..., Any], args: list[Any], headers: Headers
) -> ExecuteActivityInput:
    """The call of an activity, on its way through the chain."""
    return ExecuteActivityInput(
        activity=activity,
        fn=fn,
        args=args,
        headers=dict(headers),
        _proceed=lambda call: call.fn(*call.args),
    )
