"""When each run in memory is looked at again: one alarm per run, at the earliest time that something of it needs.

Must not know: how runs change. Invariant: an open run that needs a time has an alarm at that time or before.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hourglass._embedded.clock import Clock
from hourglass._embedded.rules.run import RUNNING
from hourglass._embedded.rules.wakes import run_wake_ns
from hourglass._embedded.running.record import Record


class Alarms:
    """The alarms on one clock; `elapse` is called for a run whose time has come."""

    def __init__(self, clock: Clock, elapse: Callable[[Record], None]) -> None:
        self._clock = clock
        self._early_is_harmless = clock.early_is_harmless
        self._elapse = elapse

    def set(self, record: Record, earliest: int, now: int) -> None:
        """Let the run be looked at when it must be; `earliest` is what the things that changed need."""
        if record.alarm is not None and self._early_is_harmless and record.run.status is RUNNING:
            due = record.alarm_ns
            if not 0 < earliest < due and not 0 < run_wake_ns(record.run, now) < due:
                return  # where it is too early it will find nothing due and be set anew
        wake = record.wakes.next_ns(record.run, now)
        if record.alarm is not None:
            if wake == record.alarm_ns:
                return
            record.alarm()
            record.alarm = None
        if wake:
            record.alarm_ns = wake
            record.alarm = self._clock.call_at(wake, partial(self._elapse, record))

    def silence(self, record: Record) -> None:
        """Do not look at the run any more."""
        if record.alarm is not None:
            record.alarm()
            record.alarm = None
