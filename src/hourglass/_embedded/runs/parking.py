"""Parking of a run with a change that cannot be stored, while the file and all other runs are fine.

Must not know: why the store refuses a change, what clients receive. Invariants:

- The run returns to its stored state.
- Work that depends on the rejected change is never given to a worker.
- A second rejection for the same reason does not park the run again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from hourglass._embedded.store.store import Rejection

if TYPE_CHECKING:
    from hourglass._embedded.runs.run import LoadedRun
    from hourglass._embedded.runs.runs import RunTable

logger = logging.getLogger("hourglass.embedded")


def park(runs: RunTable, run_id: str, rejection: Rejection) -> LoadedRun | None:
    """Remove a run from memory because the store has rejected one of its changes. Return the run's record if it was in
    memory.

    Caches and requests that still use the record see a closed run.
    """
    if rejection.number <= runs.parked_until.get(run_id, 0):
        return None  # this change depended on an earlier rejected change, but the current state in memory does not
    # Every change up to the newest may depend on the rejected change.
    runs.parked_until[run_id] = max(runs.writes.appended, rejection.number)
    record = runs.in_memory(run_id)
    runs.writes.drop(run_id)
    if run_id not in runs.parked:
        runs.parked[run_id] = rejection.error
        logger.error(
            "a change of run %s of workflow %r could not be stored. The run keeps its previous state and is parked "
            "until the file is reopened: %s",
            run_id,
            "" if record is None else record.run.started.workflow_id,
            rejection.error,
        )
    if record is None:
        return None
    runs.remove(record)
    now = runs.clock.now_ns()
    pending = record.close_unstored(now)
    runs.queues.offer(record.run, pending, now, record.sticky)
    holders = record.holders()
    record.notify_holders(pending)
    for holder in holders:
        holder.receiver.parked(run_id)
    record.changed.ring()
    record.closed.ring()
    return record
