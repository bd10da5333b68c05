"""What an executor of activities is told, and what it tells: limits and statistics, as data."""

from __future__ import annotations

from dataclasses import dataclass

from hourglass.activity._limits import PAYLOAD_LIMIT


@dataclass(frozen=True, kw_only=True)
class ExecutorLimits:
    """How patient an executor is, in seconds, and how much it holds."""

    max_processes: int = 0
    """How many process activities run at a time; 0: one for each processor."""
    payload_limit: int | None = PAYLOAD_LIMIT
    """The most bytes that an activity may report at once; None: no limit."""
    max_lost_threads: int | None = None
    """How many hung threads are replaced before their attempts hold their slots; None: as many as there are."""
    hang_grace: float = 5.0
    """From telling an attempt that nobody waits for it to giving it up."""
    cancel_grace: float = 10.0
    """From asking a process activity to stop to killing its process."""
    late: float = 5.0
    """How long after its start-to-close timeout a process activity is stopped, if the engine does not say so before."""
    loop_tick: float = 0.1
    """How often the activity loop is asked whether it lives."""
    loop_limit: float = 0.4
    """How long the activity loop may be blocked before new attempts are made on another."""
    max_blocked_loops: int = 32
    """How many loops may be blocked at a time before attempts wait for the last of them."""
    waiting_least: float = 2.0
    waiting_most: float = 30.0
    """An attempt that waits on a blocked loop, and can be made again, is given up after as long as it had been running before,
    but not sooner and not later than this: what it loses is no more than what it waited.
    """


@dataclass(frozen=True, kw_only=True)
class ExecutorStatistics:
    """A look at where activities run."""

    running: int
    threads: int
    lost_threads: int
    processes: int
    started_processes: int
    died_processes: int
    loop_blocked: bool
    replaced_loops: int
