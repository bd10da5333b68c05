"""Reports of every start, exit, restart and escalation: stored in a bounded ring for status pages, and passed
to a sink.

A report in the ring contains only text. The error object is passed to the sink but not stored, because its
traceback would keep the data of the dead process alive. Exceptions of the sink are logged and do not affect any
process.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from hourglass._supervision.exits import Exit
from hourglass.errors import ServiceError

logger = logging.getLogger("hourglass.supervision")

ReportKind: TypeAlias = Literal[
    "started",  # the process reported that it had started
    "start_failed",  # the process ended, or timed out, before it reported its start
    "exited",  # the process ended; the exit contains the reason
    "overdue",  # the process was killed, because its ordered stop timed out
    "restarting",  # the supervisor restarts the process
    "delayed",  # the supervisor will restart the process after a delay
    "gave_up",  # the supervisor exceeded its restart intensity and fails
    "lingering",  # the process was killed, but its coroutine keeps running, without effect
    "discarded",  # a lingering coroutine was closed
]

_LEVELS: dict[ReportKind, int] = {
    "started": logging.DEBUG,
    "start_failed": logging.ERROR,
    "overdue": logging.WARNING,
    "restarting": logging.WARNING,
    "delayed": logging.WARNING,
    "gave_up": logging.ERROR,
    "lingering": logging.WARNING,
    "discarded": logging.WARNING,
}
_EXIT_LEVELS = {
    "normal": logging.DEBUG,
    "shutdown": logging.DEBUG,
    "killed": logging.WARNING,
    "crash": logging.ERROR,
}
_RING = 256


@dataclass(frozen=True, slots=True)
class SupervisionReport:
    """An event of one process, at a monotonic time."""

    kind: ReportKind
    path: str
    time: float
    exit: str = ""
    detail: str = ""
    level: int = logging.DEBUG
    error: BaseException | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        words = " ".join(self.kind.split("_"))
        details = "; ".join(part for part in (self.exit, self.detail) if part)
        return f"{self.path} {words}" + (f" ({details})" if details else "")


Sink: TypeAlias = Callable[[SupervisionReport], object]


def log_report(report: SupervisionReport) -> None:
    """Log a report, at a level that depends on its severity, with the traceback of a crash. Errors of a service
    or disk are logged without a traceback.
    """
    if logger.isEnabledFor(report.level):
        error = report.error
        if isinstance(error, ServiceError) and os.environ.get("HOURGLASS_TRACEBACK") != "full":
            logger.log(report.level, "%s: %s", report, error)
            return
        exception_info = (type(error), error, error.__traceback__) if error is not None else None
        logger.log(report.level, "%s", report, exc_info=exception_info)


class Reports:
    """The destination of reports: the ring and the sink."""

    def __init__(self, sink: Sink = log_report, *, size: int = _RING) -> None:
        self._sink = sink
        self._ring: deque[SupervisionReport] = deque(maxlen=size)

    def add(
        self, kind: ReportKind, path: str, time: float, reason: Exit | None = None, detail: str = ""
    ) -> None:
        """Store a report, and pass it to the sink."""
        level = _EXIT_LEVELS[reason.kind] if kind == "exited" and reason else _LEVELS.get(kind, logging.INFO)
        error = reason.error if reason else None
        report = SupervisionReport(kind, path, time, str(reason) if reason else "", detail, level, error)
        self._ring.append(replace(report, error=None))
        try:
            self._sink(report)
        except Exception:
            logger.exception("the sink of supervision reports failed")

    def recent(self) -> tuple[SupervisionReport, ...]:
        """Return the latest reports, oldest first."""
        return tuple(self._ring)
