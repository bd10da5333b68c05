"""A worker that dies and comes back finds its handle as it left it.

Ending a healthy handle is dear: what the engine gives to a poll that is being ended must time out there before anybody else
has it, and every run on it is replayed. So the handle of a worker that said no farewell, or said that it would return, is set
aside: nobody polls it again, what the polls that are out bring is kept, and still takes its completions.

Must not know: who registers, and why somebody went. Invariants: a handle serves one registration at a time; one that waits is
adopted or drained within `Limits.adoption`; only a healthy one is adopted, and only by a worker that asks for the same.
Generations and tokens are untouched, so that what was handed out before counts as before.
"""

from __future__ import annotations

import asyncio

from hourglass._bridge.draining import begin_drain
from hourglass._bridge.handle_life import Signal
from hourglass._bridge.handle_record import HandleRecord
from hourglass._bridge.registration import Registration
from hourglass._bridge.tables import HandleTables, logger


def may_wait(tables: HandleTables, record: HandleRecord) -> bool:
    """Whether a handle is worth waiting with."""
    return record.healthy and tables.limits.adoption > 0


def set_aside(tables: HandleTables, record: HandleRecord) -> None:
    """Let a healthy handle wait for its worker; those who poll on it see that it has gone."""
    record.stop_waiting()
    loop = asyncio.get_running_loop()
    record.spare = loop.call_later(tables.limits.adoption, begin_drain, tables, record, Signal.RECYCLED)
    for line in record.lines():
        line.bell.ring()


def adopt(tables: HandleTables, registration: Registration) -> None:
    """Give a registration the handle that waits for it, if there is one; others that wait for its queue end."""
    for record in reversed(tables.of_queue(registration.queue)):
        if record.spare is None:
            continue
        if registration.current is None and record.healthy and record.config == registration.config:
            record.stop_waiting()
            tables.counters.adopted += 1
            logger.info("%r is adopted", record)
            registration.serve(record)
        else:
            begin_drain(tables, record, Signal.RECYCLED)
