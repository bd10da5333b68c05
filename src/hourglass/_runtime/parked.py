"""Runs that cannot go on: what their engine is told, and what is said aloud, once per run and reason.

Nobody may hang on a parked run unawares. Reasons are kept for a bounded number of runs. For several threads.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict

from hourglass._engine.commands import TaskFailed
from hourglass._runtime.places import where_raised
from hourglass._runtime.quarantine import Hang
from hourglass.converter import ApplicationFailure, Failure
from hourglass.errors import UnknownTypeError

logger = logging.getLogger("hourglass.worker")

_REMEMBERED = 1000


class ParkedRuns:
    """The runs that are parked, of all lanes that work together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reasons: OrderedDict[str, str] = OrderedDict()

    def remember(self, run_id: str, reason: str) -> bool:
        """Note why a run cannot go on; False if that is known."""
        with self._lock:
            known = self._reasons.get(run_id) == reason
            self._reasons[run_id] = reason
            self._reasons.move_to_end(run_id)
            while len(self._reasons) > _REMEMBERED:
                self._reasons.popitem(last=False)
            return not known

    def say_parked(self, workflow: str, workflow_id: str, run_id: str, error: BaseException | None) -> None:
        """A run's code has a bug."""
        kind, where = ("failed task", "") if error is None else (type(error).__name__, _place(error))
        if self.remember(run_id, f"{kind}{where}: {error}"):
            logger.error(
                "workflow %s (%s, run %s) is parked: %s%s. Its task is retried until the code is mended",
                workflow,
                workflow_id,
                run_id,
                kind,
                where,
                exc_info=error,
            )

    def say_died(self, run_id: str, error: BaseException) -> None:
        """A run could not be evaluated: its type is unknown, or we have a bug."""
        if not isinstance(error, UnknownTypeError):
            logger.error("the evaluation of run %s died", run_id, exc_info=error)
        elif self.remember(run_id, str(error)):
            logger.error("run %s cannot go on: %s", run_id, error)

    def forget(self, run_id: str) -> bool:
        """A run goes on; True if it was parked."""
        if not self._reasons:
            return False
        with self._lock:
            return self._reasons.pop(run_id, None) is not None

    def kinds(self) -> dict[str, str]:
        """What kind of error and where, by run: never the message, which may quote data."""
        with self._lock:
            return {run_id: reason.partition(": ")[0] for run_id, reason in self._reasons.items()}


def miss(run_id: str) -> TaskFailed:
    """The run is not here, and its start is not among the events."""
    return task_failed(
        run_id, "RunNotCached", "this worker does not hold the run: its whole history is needed"
    )


def refusal(run_id: str, hang: Hang) -> TaskFailed:
    """The run hung, or killed its process, too often to be executed now."""
    if hang.died:
        text = (
            f"this run is not executed, because the worker's process died while "
            f"{f'its local activity {hang.activity}' if hang.activity else 'its code'} was executing ({hang.times}×): a crash "
            f"in an extension module, too much memory, a kill. It is tried again when the workflow's file has changed, or "
            f"after a while"
        )
        return task_failed(run_id, "ProcessDied", text)
    text = (
        f"this run is not executed, because its code hung ({hang.times}×), last at {hang.stack.place}. "
        f"It is tried again when the code has changed, or after a while"
    )
    return task_failed(run_id, "WorkflowQuarantined", text, hang.stack.text)


def task_failed(run_id: str, type_: str, message: str, stack_trace: str = "") -> TaskFailed:
    """A failed task, of a kind that has a name."""
    info = ApplicationFailure(type=type_)
    return TaskFailed(run_id, Failure(message=message, info=info, stack_trace=stack_trace))


def _place(error: BaseException) -> str:
    found = where_raised(error)
    return f" at {found[0]}:{found[1]}" if found is not None else ""
