"""Why a process ended, as data.

An exit is normal (the body returned), shutdown (it was asked to stop, and did), crash (it raised) or killed. The text of
an exit names the error's type and place, not its message: messages may carry what the process worked on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Literal, TypeAlias

from hourglass.errors import HourglassError, UsageError

# --- what can go wrong -------------------------------------------------------------------------------------------------
#
# What can go wrong in supervision. Messages name paths and ids, never values that processes carry.


class SupervisionError(HourglassError):
    """The root of what supervision raises."""


class SpecError(SupervisionError, UsageError, ValueError):
    """A child spec, or a supervisor's options, are not what they must be."""


class StartFailed(SupervisionError):
    """A child did not start; its cause says why."""


class IntensityExceeded(SupervisionError):
    """A supervisor's children ended more often than it may restart them; its cause is the last one's error."""


class DeadProcess(SupervisionError):
    """A process that has ended tried to act, or was asked for what only a living one has."""


class NotRunning(SupervisionError):
    """The supervisor is not running: not started yet, stopping, or between two restarts."""


class NoSuchChild(SupervisionError, LookupError):
    """No child of that id, or no process at that path."""


class NameTaken(SupervisionError):
    """The name belongs to a living process."""


# --- why a process ended -----------------------------------------------------------------------------------------------


ExitKind: TypeAlias = Literal["normal", "shutdown", "crash", "killed"]


@dataclass(frozen=True, slots=True)
class Exit:
    """Why a process ended; `error` is what a crashed one raised."""

    kind: ExitKind
    error: BaseException | None = field(default=None, repr=False)

    def __str__(self) -> str:
        if self.error is None:
            return self.kind
        return f"{self.kind}: {type(self.error).__name__}{_place(self.error)}"

    @property
    def abnormal(self) -> bool:
        """Whether it is one that a transient child is restarted after."""
        return self.kind in ("crash", "killed")


NORMAL = Exit("normal")
SHUTDOWN = Exit("shutdown")
KILLED = Exit("killed")


def crash(error: BaseException) -> Exit:
    """The exit of a process that raised."""
    return Exit("crash", error)


def _place(error: BaseException) -> str:
    """Where it was raised: the innermost frame, as ` at file:line`."""
    traceback = error.__traceback__
    if traceback is None:
        return ""
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return f" at {PurePath(traceback.tb_frame.f_code.co_filename).name}:{traceback.tb_lineno}"
