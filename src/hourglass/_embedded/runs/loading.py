"""Loading of a stored run into memory, and recovery of its work in progress.

Must not know: how the store reads, why the run is needed. Invariant: a run with readable but inconsistent data is
reported as `StorageError` and is not kept in memory.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from hourglass._embedded.runs.lost_attempts import LOST_WITH_PROCESS, log_lost
from hourglass._embedded.runs.run import LoadedRun
from hourglass._embedded.store.store import Stored
from hourglass._embedded.transitions import transitions
from hourglass.errors import StorageError

if TYPE_CHECKING:
    from hourglass._embedded.runs.runs import RunTable

logger = logging.getLogger("hourglass.embedded")


def load(runs: RunTable, stored: Stored, *, late: bool) -> LoadedRun:
    """Load a run into memory. Raise `StorageError` if its data is inconsistent."""
    try:
        return _load(runs, stored, late)
    except StorageError:
        raise
    except Exception as error:
        run_id = stored.run.run_id
        logger.exception("run %s cannot be loaded", run_id)
        runs.discard(run_id)
        raise StorageError(
            f"run {run_id} cannot be loaded from the store ({type(error).__name__})",
            status="DATA_LOSS",
        ) from error


def _load(runs: RunTable, stored: Stored, late: bool) -> LoadedRun:
    now = runs.clock.now_ns()
    record = LoadedRun(stored.run, list(stored.events), has_past=True, late=late)
    runs.adopt(record)
    pending = frozenset((*stored.run.activities, *stored.run.timers))
    earliest = record.refresh_deadlines(pending, now)
    record.stored_wake_ns = record.wake_ns(now)
    if stored.run.run_id in runs.parked:
        return record
    if transitions.needs_recovery(stored.run):
        # A worker of the previous owner had the run's task or an activity attempt.
        recovered = runs.kept_attempts.recover(record.run, runs.new_run_id(), now)
        runs.apply(record, recovered, pending, now)
        log_lost(stored.run, record.run, stored.run.activities, LOST_WITH_PROCESS)
    else:
        runs.notify(record, pending, earliest, now)
    runs.timers.set_back(record, now)
    if record.alarm is not None and record.alarm_ns <= now:
        runs.timers.elapse(record)
    return record
