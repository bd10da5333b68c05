"""What a holder can show of itself, as frozen data for status pages and watchdogs. Read from the tables,
changes nothing.

Times are of the tables' monotonic clock, in nanoseconds; 0 means never.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from hourglass._bridge.handle_life import HandleState
from hourglass._bridge.handle_record import HandleRecord
from hourglass._bridge.poll_line import PollLine
from hourglass._bridge.registration import Registration
from hourglass._bridge.tables import HandleTables


@dataclass(frozen=True, kw_only=True)
class PollStatus:
    """One kind of poll. A loop that lives shows as `in_flight` or `waiting`, or has polled not long ago."""

    in_flight: bool
    waiting: int
    kept: int
    in_hand: int
    received: int
    last_poll_ns: int
    last_issued_ns: int
    ended: str = ""


@dataclass(frozen=True, kw_only=True)
class HandleStatus:
    """One handle that is not closed."""

    queue: str
    generation: int
    state: str
    open_runs: int
    open_activities: int
    calls_in_flight: int
    opened_ns: int
    activations: PollStatus
    activities: PollStatus


@dataclass(frozen=True, kw_only=True)
class QueueStatus:
    """One registered task queue; generation 0 while it has no handle."""

    queue: str
    generation: int
    state: str
    setbacks: int


@dataclass(frozen=True, kw_only=True)
class HolderStatus:
    """All of it."""

    now_ns: int
    queues: tuple[QueueStatus, ...]
    handles: tuple[HandleStatus, ...]
    counters: dict[str, int]


def holder_status(tables: HandleTables) -> HolderStatus:
    """Look at the tables."""
    return HolderStatus(
        now_ns=tables.now_ns(),
        queues=tuple(_queue(each) for each in tables.registrations.values()),
        handles=tuple(_handle(each) for each in tables.records.values()),
        counters=asdict(tables.counters),
    )


def _queue(registration: Registration) -> QueueStatus:
    record = registration.current
    state = HandleState.CONNECTING if record is None else record.state
    return QueueStatus(
        queue=registration.queue,
        generation=0 if record is None else record.generation,
        state=state.value,
        setbacks=registration.setbacks,
    )


def _handle(record: HandleRecord) -> HandleStatus:
    return HandleStatus(
        queue=record.queue,
        generation=record.generation,
        state=record.state.value,
        open_runs=len(record.runs.open),
        open_activities=len(record.attempts.open),
        calls_in_flight=len(record.calls),
        opened_ns=record.opened_ns,
        activations=_poll(record.activations),
        activities=_poll(record.activities),
    )


def _poll(line: PollLine[Any]) -> PollStatus:
    return PollStatus(
        in_flight=line.in_flight,
        waiting=line.bell.waiting,
        kept=len(line.kept),
        in_hand=line.in_hand,
        received=line.received,
        last_poll_ns=line.returned_ns,
        last_issued_ns=line.issued_ns,
        ended="" if line.end is None else type(line.end).__name__,
    )
