"""The log messages about a lane's runs: started, closed, parked, or making progress again."""

from __future__ import annotations

import logging
import warnings
from contextlib import suppress

from hourglass._evaluator.events import Activation, RunEvicted, RunStarted
from hourglass._worker import work_log
from hourglass._worker.code_origin import is_library, is_ours
from hourglass._worker.health.parked import ParkedRuns, WorkflowLabel
from hourglass._worker.health.quarantine import Quarantine, digest_of
from hourglass._worker.lanes.cache import Entry
from hourglass._worker.lanes.passed_handlers import passed_handler

logger = logging.getLogger("hourglass.worker")

MISFIT = "NONDETERMINISM"
"""Core's reason for evicting a run whose code issued commands that differ from its history."""


class RunLog:
    """The log of one lane's runs."""

    def __init__(self, task_queue: str, parked: ParkedRuns, quarantine: Quarantine) -> None:
        self._task_queue = task_queue
        self._parked = parked
        self._quarantine = quarantine
        self.is_verbose = work_log.logs_runs()
        """Whether runs that start or end normally are logged."""

    def begun(self, started: RunStarted, run_id: str) -> None:
        work_log.log_begun(started, run_id, self._task_queue)

    def closed(self, entry: Entry, activation: Activation) -> None:
        live = entry.run.live
        if live is not None and live.started is not None:
            result, now_ns = entry.run.state.result, activation.timestamp_ns
            hint = passed_handler(live.let_out)
            work_log.log_closed(live.started, activation.run_id, self._task_queue, result, now_ns, hint)

    def progressed(self, entry: Entry, activation: Activation, *, only_queries: bool) -> None:
        """Log the notices of a run, and release the run if it was parked or quarantined."""
        notices, entry.run.notices = entry.run.notices, ()
        if activation.is_replaying:
            return  # logged at the first execution
        for notice in notices:
            name = self.warn(entry, notice)
            for category in getattr(notice, "categories", ()):
                with suppress(Warning):  # filters may turn warnings into errors, which must not end a worker
                    warnings.warn(f"workflow {name} ({entry.workflow_id}): {notice}", category, stacklevel=2)
        if not only_queries:
            self._quarantine.release(activation.run_id)
        if self._parked.forget(activation.run_id):
            logger.info("run %s continues", activation.run_id)

    def warn(self, entry: Entry, notice: str) -> str:
        """Log a warning about a run. Return the name of its workflow."""
        name = entry.run.definition.name
        facts = {"workflow_id": entry.workflow_id, "run_id": entry.key.run_id, "workflow_type": name}
        logger.warning("workflow %s (%s): %s", name, entry.workflow_id, notice, extra=facts)
        return name

    def parked(self, entry: Entry, error: BaseException | None) -> None:
        name = entry.run.definition.name
        self._parked.log_parked(name, entry.workflow_id, entry.key.run_id, error, self._task_queue)

    def misfit(self, run_id: str, evicted: RunEvicted, entry: Entry | None, place: str) -> None:
        """Log that a run's code does not fit its history. `entry` is None if the run was not in the cache."""
        if entry is None:
            self._parked.note_unnamed(run_id, evicted.message)
            return
        definition = entry.run.definition
        label = WorkflowLabel(definition.name, entry.workflow_id, run_id, self._task_queue)
        self._parked.log_misfit(label, evicted.message, place, digest_of(definition))


def place_of(entry: Entry) -> str:
    """Return ` at file:line` of the author's innermost frame in the first suspended fiber; empty if no author's frame
    is found.
    """
    live = entry.run.live
    for line in () if live is None else live.lines:
        for frame in line.frames():
            file = frame.f_code.co_filename
            if not is_ours(file) and not is_library(file):
                return f" at {file}:{frame.f_lineno}"
    return ""
