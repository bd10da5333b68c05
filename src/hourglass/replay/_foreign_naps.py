"""`workflow.sleep(0)` as SDKs have it that start a timer of a millisecond for it: TypeScript's and .NET's.

Python's gives way for a turn and starts none, and so does Hourglass. Where a history of such an SDK has timers of a
millisecond, a sleep of nothing is replayed as one of them. Must not know: events, commands.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hourglass._engine.interception import (
    SleepInput,
    WorkflowInboundInterceptor,
    WorkflowOutboundInterceptor,
)

_NAP = 0.001
_NAP_NS = 1_000_000


def has_naps(recorded: Iterable[Any]) -> bool:
    """Whether what a history says that was asked for has timers of a millisecond."""
    return any(item.duration_ns == _NAP_NS for item in recorded)


class Naps(WorkflowInboundInterceptor):
    """Stands next to a run's code, and lets sleeps of nothing take a millisecond."""

    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        """The run begins."""
        self.next.init(_Naps(outbound))


class _Naps(WorkflowOutboundInterceptor):
    def sleep(self, input: SleepInput) -> None:
        if input.duration == 0:
            input.duration = _NAP
        self.next.sleep(input)
