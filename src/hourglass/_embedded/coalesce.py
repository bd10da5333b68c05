"""Changes that are committed together, as one change per run or schedule: only the last state need be written.

Pure. Must not know: SQL, bytes, threads. Invariants: no event, no request id and no touched thing is lost; runs
keep the order in which they first appear, events and requests theirs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hourglass._embedded import history as h
from hourglass._embedded.relations import Child
from hourglass._embedded.run import Activity, Run, Timer
from hourglass._embedded.store import Change, ScheduleChange


@dataclass(slots=True)
class Merged:
    """All changes of one run in a batch: its last state, and everything that happened."""

    run: Run
    events: tuple[h.HistoryEvent, ...]
    touched: frozenset[int]
    wake_ns: int
    request_ids: tuple[str, ...]

    @property
    def is_new(self) -> bool:
        """Whether the run begins in this batch."""
        return bool(self.events) and self.events[0].id == 1

    @property
    def length_before(self) -> int:
        """How many events the run had before."""
        return self.run.length - len(self.events)

    def to_keep(self) -> Iterable[tuple[int, Activity | Timer | Child]]:
        """What was touched and is pending now."""
        for event_id in sorted(self.touched):
            thing = self.run.pending(event_id)
            if thing is not None:
                yield event_id, thing

    def to_drop(self) -> Iterable[int]:
        """What was touched, is gone, and may have been written by an earlier batch."""
        for event_id in sorted(self.touched):
            if event_id <= self.length_before and self.run.pending(event_id) is None:
                yield event_id


def coalesce(changes: Iterable[Change | ScheduleChange]) -> tuple[list[Merged], list[ScheduleChange]]:
    """One change per run, in the order in which the runs first appear, and one per schedule."""
    merged: dict[str, Merged] = {}
    schedules: dict[str, ScheduleChange] = {}
    for change in _flat(changes):
        if isinstance(change, ScheduleChange):
            schedules[change.schedule_id] = change
            continue
        known = merged.get(change.run.run_id)
        if known is None:
            merged[change.run.run_id] = Merged(
                change.run, change.events, change.touched, change.wake_ns, change.request_ids
            )
            continue
        known.run = change.run
        known.events += change.events
        known.touched |= change.touched
        known.wake_ns = change.wake_ns
        known.request_ids += change.request_ids
    return list(merged.values()), list(schedules.values())


def _flat(changes: Iterable[Change | ScheduleChange]) -> Iterable[Change | ScheduleChange]:
    for change in changes:
        yield change
        yield from _flat(change.also)
