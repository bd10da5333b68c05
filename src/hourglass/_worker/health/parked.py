"""Runs that are parked: their workflow task keeps failing, because their code raises or does not fit its history.

`ParkedRuns` remembers the reasons and logs them, once per run and reason.

Must not know: threads, engines. Thread-safe. At most `_MOST_RUNS` reasons are remembered.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from typing import NamedTuple

from hourglass._evaluator.commands import TaskFailed
from hourglass._worker.code_origin import is_ours, where_raised, without_our_frames
from hourglass.converter import ApplicationFailure, Failure
from hourglass.errors import ArgumentError, UnknownTypeError, WorkflowParked

logger = logging.getLogger("hourglass.worker")

_MOST_UNNAMED = 100
_MOST_RUNS = 1000


class WorkflowLabel(NamedTuple):
    """The names that identify a run in log records."""

    workflow_type: str
    workflow_id: str
    run_id: str
    task_queue: str


class ParkedRuns:
    """The parked runs of all lanes of a worker."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.reasons: OrderedDict[str, str] = OrderedDict()
        self.unnamed: dict[str, str] = {}
        """The nondeterminism messages of runs that are not in the cache, by run id. Only the engine knows the workflow
        ids of these runs (see `parked_watch`). The dict is never changed in place, only replaced by a changed copy.
        """

    def note_unnamed(self, run_id: str, difference: str) -> None:
        """Remember a run that is not in the cache and does not fit its history, unless the run was logged already."""
        with self._lock:
            if run_id not in self.reasons and len(self.unnamed) < _MOST_UNNAMED:
                self.unnamed = {**self.unnamed, run_id: difference}

    def drop_unnamed(self, run_id: str) -> None:
        """Forget a run that was logged, or that the engine does not know."""
        with self._lock:
            self.unnamed = {name: difference for name, difference in self.unnamed.items() if name != run_id}

    def remember(self, run_id: str, reason: str) -> bool:
        """Remember the reason for which a run is parked. Return False if the run already has this reason."""
        with self._lock:
            is_new = self.reasons.get(run_id) != reason
            self.reasons[run_id] = reason
            self.reasons.move_to_end(run_id)
            while len(self.reasons) > _MOST_RUNS:
                self.reasons.popitem(last=False)
            return is_new

    def forget(self, run_id: str) -> bool:
        """Forget a run that makes progress. Return whether it was parked."""
        if not self.reasons:
            return False
        with self._lock:
            return self.reasons.pop(run_id, None) is not None

    def kinds(self) -> dict[str, str]:
        """Return the kind and place of each error by run id, without the message, which may contain user data."""
        with self._lock:
            return {run_id: reason.partition(": ")[0] for run_id, reason in self.reasons.items()}

    def log_parked(
        self, workflow: str, workflow_id: str, run_id: str, error: BaseException | None, task_queue: str = ""
    ) -> None:
        """Log that a run's code has a bug, or does not accept the arguments of its start."""
        raised = error.__cause__ or error if isinstance(error, WorkflowParked) else error
        kind, place = ("failed task", "") if raised is None else (type(raised).__name__, _place(raised))
        if not self.remember(run_id, f"{kind}{place}: {error}"):
            return
        extra = {
            "workflow_id": workflow_id,
            "run_id": run_id,
            "workflow_type": workflow,
            "task_queue": task_queue,
            "error_type": kind,
        }
        if isinstance(error, ArgumentError) and not place:
            logger.error(
                "workflow %s (%s, run %s) cannot start: %s. Its task is retried until the code accepts its arguments. To "
                "change the arguments, terminate the workflow and start it again",
                workflow,
                workflow_id,
                run_id,
                error,
                extra=extra,
            )
            return
        logger.error(
            "workflow %s (%s, run %s) is parked: %s%s. Its task is retried until the code is fixed",
            workflow,
            workflow_id,
            run_id,
            kind,
            place,
            exc_info=None if error is None else without_our_frames(error),
            extra=extra,
        )

    def log_misfit(self, run: WorkflowLabel, difference: str, place: str, code: str) -> None:
        """Log that a run's code does not fit its history, once per run, difference and version of the code.

        `difference` is the engine's message, `place` is empty or ` at file:line`, `code` a digest of the code.
        """
        if not self.remember(run.run_id, f"NondeterminismError{place}: {difference} {code}"):
            return
        logger.error(
            "workflow %s (%s, run %s) is parked: its code does not match its history%s: %s. Its task is retried until the "
            "code matches: guard the change with workflow.patched(), or deploy the old code; `hourglass why %s` shows both "
            "sides",
            run.workflow_type,
            run.workflow_id,
            run.run_id,
            place,
            difference,
            run.workflow_id,
            extra={**run._asdict(), "error_type": "NondeterminismError"},
        )

    def log_died(self, run_id: str, error: BaseException) -> None:
        """Log that a run could not be evaluated: its type is unknown, or Hourglass has a bug."""
        if not isinstance(error, UnknownTypeError):
            logger.error("the evaluation of run %s failed", run_id, exc_info=error, extra={"run_id": run_id})
        elif self.remember(run_id, str(error)):
            logger.error("run %s cannot continue: %s", run_id, error, extra={"run_id": run_id})


def cache_miss(run_id: str) -> TaskFailed:
    """Return a failed task for a run that is not in the cache and has no start event in the activation."""
    return task_failed(
        run_id, "RunNotCached", "the run is not cached in this worker: its whole history is needed"
    )


def task_failed(run_id: str, type_: str, message: str, stack_trace: str = "") -> TaskFailed:
    """Return a failed task with this type of failure, message and stack trace."""
    info = ApplicationFailure(type=type_)
    return TaskFailed(run_id, Failure(message=message, info=info, stack_trace=stack_trace))


def _place(error: BaseException) -> str:
    """Return ` at file:line` of the author's code that raised, or of Hourglass's code if the bug is in Hourglass."""
    origin = where_raised(error)
    if origin is None or (is_ours(origin[0]) and isinstance(error, ArgumentError)):
        return ""
    return f" at {origin[0]}:{origin[1]}"
