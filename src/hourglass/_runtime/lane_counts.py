"""What a lane has done so far, as figures. Written by the lane, read by anybody."""

from __future__ import annotations

from dataclasses import dataclass, field

from hourglass._engine.commands import CancelRun, CompleteRun, ContinueAsNew, FailRun

_ENDS: dict[type, str] = {
    CompleteRun: "completed",
    FailRun: "failed",
    CancelRun: "canceled",
    ContinueAsNew: "continued_as_new",
}
_MOST_KINDS = 1000


@dataclass
class Counts:
    """What a lane has done so far. Written by the lane, read by anybody."""

    activations: int = 0
    failed_tasks: int = 0
    misses: int = 0
    cached: int = 0
    live: int = 0
    parked: dict[str, str] = field(default_factory=dict)
    closed: dict[tuple[str, str], int] = field(default_factory=dict)
    """How many runs closed, by workflow type and how."""

    def add(self, other: Counts) -> None:
        """Count what a lane that is no more has done."""
        self.activations += other.activations
        self.failed_tasks += other.failed_tasks
        self.misses += other.misses
        for key, number in other.closed.items():
            self.closed[key] = self.closed.get(key, 0) + number

    def run_closed(self, workflow_type: str, result: object) -> None:
        """A run has sent its last command."""
        key = workflow_type, _ENDS.get(type(result), "")
        if key not in self.closed and len(self.closed) >= _MOST_KINDS:
            key = "other", key[1]  # a dynamic workflow takes any type that the wire names
        self.closed[key] = self.closed.get(key, 0) + 1
