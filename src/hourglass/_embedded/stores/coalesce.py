"""Changes that are committed together, as one change per run or schedule: only the last state need be written.

Pure. Must not know: SQL, threads. Invariants: no event, no request id and no touched thing is lost; runs keep the
order in which they first appear, events and requests theirs. Most runs change once in a batch: then nothing is made.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from hourglass._embedded.stores.store import Change, ScheduleChange
from hourglass._history.encoding import encode


def coalesce(changes: Iterable[Change | ScheduleChange]) -> tuple[list[Change], list[ScheduleChange]]:
    """One change per run, in the order in which the runs first appear, and one per schedule."""
    merged: dict[str, Change] = {}
    schedules: dict[str, ScheduleChange] = {}
    for change in flat(changes):
        if isinstance(change, ScheduleChange):
            schedules[change.schedule_id] = change
            continue
        run_id = change.run.run_id
        known = merged.get(run_id)
        merged[run_id] = change if known is None else _merge(known, change)
    return list(merged.values()), list(schedules.values())


def length_before(change: Change) -> int:
    """How many events the run had before; 0: it begins with this change."""
    return change.run.length - len(change.events)


def events_as_bytes(change: Change) -> tuple[bytes, ...]:
    """The events, each as bytes."""
    return change.encoded if change.encoded else tuple(map(encode, change.events))


def _merge(first: Change, second: Change) -> Change:
    return msgspec.structs.replace(
        second,
        events=first.events + second.events,
        encoded=events_as_bytes(first) + events_as_bytes(second),
        touched=first.touched | second.touched,
        request_ids=first.request_ids + second.request_ids,
    )


def flat(changes: Iterable[Change | ScheduleChange]) -> Iterable[Change | ScheduleChange]:
    """Changes with all that becomes durable with them, one after the other."""
    for change in changes:
        yield change
        if change.also:
            yield from flat(change.also)
