"""Reasons why a process ended, as data.

An exit is normal (the body returned), shutdown (the process stopped on request), crash (the body raised an
exception) or killed. The text of an exit names the error's type and position, not its message, because messages
may contain data of the process.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Literal, TypeAlias

from hourglass.errors import HourglassError, UsageError

# Errors of supervision. Messages name paths and ids, never values of processes.


class SupervisionError(HourglassError):
    """The base class of errors of supervision."""


class SpecError(SupervisionError, UsageError, ValueError):
    """A child spec, or an option of a supervisor, is invalid."""


class StartFailed(SupervisionError):
    """A child did not start. The `__cause__` is its error, if any."""


class IntensityExceeded(SupervisionError):
    """A supervisor's children ended more often than it may restart them. The `__cause__` is the error of the
    last child.
    """


class DeadProcess(SupervisionError):
    """A dead process tried to act, or an operation needs a live process."""


class NotRunning(SupervisionError):
    """The supervisor is not running: not started yet, stopping, or between two restarts."""


class NoSuchChild(SupervisionError, LookupError):
    """No child has that id, or no process has that path."""


class NameTaken(SupervisionError):
    """The name belongs to a live process."""


ExitKind: TypeAlias = Literal["normal", "shutdown", "crash", "killed"]


@dataclass(frozen=True, slots=True)
class Exit:
    """The reason why a process ended. `error` is the exception of a crash."""

    kind: ExitKind
    error: BaseException | None = field(default=None, repr=False)

    def __str__(self) -> str:
        if self.error is None:
            return self.kind
        return f"{self.kind}: {type(self.error).__name__}{_place(self.error)}"

    @property
    def abnormal(self) -> bool:
        """Whether a transient child is restarted after this exit."""
        return self.kind in ("crash", "killed")


NORMAL = Exit("normal")
SHUTDOWN = Exit("shutdown")
KILLED = Exit("killed")


def crash(error: BaseException) -> Exit:
    return Exit("crash", error)


def _place(error: BaseException) -> str:
    """Return the position of an exception's innermost frame, as ` at file:line`."""
    traceback = error.__traceback__
    if traceback is None:
        return ""
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return f" at {PurePath(traceback.tb_frame.f_code.co_filename).name}:{traceback.tb_lineno}"
