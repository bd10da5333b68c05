"""The counters of a lane (`Counts`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from hourglass._evaluator.commands import CancelRun, CompleteRun, ContinueAsNew, FailRun

_ENDS: dict[type, str] = {
    CompleteRun: "completed",
    FailRun: "failed",
    CancelRun: "canceled",
    ContinueAsNew: "continued_as_new",
}
_MOST_KINDS = 1000


@dataclass
class Counts:
    """The counters of a lane. Written by the lane, read by any thread."""

    activations: int = 0
    failed_tasks: int = 0
    misses: int = 0
    cached: int = 0
    live: int = 0
    parked: dict[str, str] = field(default_factory=dict)
    closed: dict[tuple[str, str], int] = field(default_factory=dict)
    """The number of closed runs by workflow type and outcome."""

    def add(self, other: Counts) -> None:
        """Add the counters of a lane that has ended."""
        self.activations += other.activations
        self.failed_tasks += other.failed_tasks
        self.misses += other.misses
        for key, number in other.closed.items():
            self.closed[key] = self.closed.get(key, 0) + number

    def run_closed(self, workflow_type: str, result: object) -> None:
        """Count a run that has closed. `result` is the command that closed it."""
        key = workflow_type, _ENDS.get(type(result), "")
        if key not in self.closed and len(self.closed) >= _MOST_KINDS:
            key = "other", key[1]  # a dynamic workflow accepts any type that a client names
        self.closed[key] = self.closed.get(key, 0) + 1
